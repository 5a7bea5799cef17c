"""Open audio files, and report those that cannot be read."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import numpy as np
import soundfile

from sepkit.data._ffmpeg import FFMPEG_SUFFIXES, FFmpegFile, has_ffmpeg
from sepkit.errors import UserError, exhausted
from sepkit.limits import CHANNELS, RECORDING_SECONDS, SAMPLE_RATES

AudioPath = str | os.PathLike[str]
SampleType = Literal["float32", "int16", "int32"]
OpenFile = soundfile.SoundFile | FFmpegFile

# libsndfile reports this length for a stream whose header does not give one.
_UNKNOWN_LENGTH = 2**62


class ReadThrough(soundfile.SoundFile):
    """A file that is read from beginning to end, without the seek of python-soundfile after every read.

    That seek goes to the present position, and yet it spoils the next frames of an mp3.
    """

    def seekable(self) -> bool:
        return False


@contextmanager
def open_audio(path: AudioPath, kind: type[soundfile.SoundFile] = soundfile.SoundFile) -> Iterator[OpenFile]:
    """Open a file with libsndfile, or with ffmpeg if its ending asks for it."""
    try:
        check_is_file(path)
        file: OpenFile = FFmpegFile(path) if _is_for_ffmpeg(path) else kind(_name_of(path))  # type: ignore[arg-type]
    except (soundfile.LibsndfileError, TypeError, ValueError, OSError) as error:
        _raise_if_exhausted(error)
        raise _unreadable(path, error) from error
    with file:
        check_holds_samples(file, path)
        yield file


def _name_of(path: AudioPath) -> str | bytes:
    """Return a path for libsndfile: bytes, because names need not be UTF-8, except on Windows, where they are text."""
    return os.fspath(path) if sys.platform == "win32" else os.fsencode(path)


def check_is_file(path: AudioPath) -> None:
    """Raise UserError for a pipe, socket or device, which reading might wait for without end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # whoever opens it says that there is no such file
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path}: is a pipe, socket or device, expected a file; write what it gives to a file first")


def _raise_if_exhausted(error: Exception) -> None:
    """Raise OSError where libsndfile, which keeps the reason to itself, fails because too many files are open."""
    if exhausted(error):
        raise error
    if isinstance(error, soundfile.LibsndfileError):
        # Fails with the reason if no file at all can be opened.
        os.close(os.open(os.devnull, os.O_RDONLY))


def _is_for_ffmpeg(path: AudioPath) -> bool:
    suffix = Path(path).suffix.lower()
    if suffix not in FFMPEG_SUFFIXES or not os.path.isfile(path):
        return False
    # libsndfile reads only some of these containers, and mistakes some AAC streams for MP3.
    if suffix == ".caf":
        with contextlib.suppress(soundfile.LibsndfileError):
            soundfile.info(_name_of(path))  # type: ignore[arg-type]
            return False
    if not has_ffmpeg():
        raise UserError(
            f"{path}: {suffix} needs the program ffmpeg, which is not installed; install it, or convert the file"
        )
    return True


def check_holds_samples(file: OpenFile, path: AudioPath) -> None:
    """Raise UserError if the file is empty, or its header does not say how long it is, or is beyond `sepkit.limits`."""
    if file.frames == 0:
        raise UserError(f"{path}: holds 0 samples; leave out the file")
    if file.frames >= _UNKNOWN_LENGTH:
        raise UserError(f"{path}: its header does not say how many samples it holds; encode it again")
    low, high = SAMPLE_RATES
    if not low <= file.samplerate <= high:
        raise UserError(
            f"{path}: its header says {file.samplerate} Hz, expected {low} to {high}; correct it, or resample"
        )
    if file.channels > CHANNELS:
        raise UserError(f"{path}: has {file.channels} channels, expected at most {CHANNELS}; split the file")
    if file.frames > RECORDING_SECONDS * file.samplerate:
        raise UserError(
            f"{path}: its header says {file.frames / file.samplerate / 3600:.0f} hours, expected at most "
            f"{RECORDING_SECONDS // 3600}; cut the file"
        )


def check_channel(file: OpenFile, path: AudioPath, channel: int | None) -> None:
    """Raise UserError if the file has no such channel."""
    if channel is not None and not 0 <= channel < file.channels:
        raise UserError(f"{path}: has {file.channels} channel(s), numbered from 0; channel {channel} was asked for")


def check_finite(waveform: np.ndarray, path: AudioPath) -> None:
    """Raise UserError if a sample is NaN or infinite."""
    if not np.isfinite(waveform).all():
        raise UserError(
            f"{path}: holds samples that are not finite numbers (NaN or infinity); repair or leave out the file"
        )


def _unreadable(path: AudioPath, error: Exception) -> UserError:
    reason = str(getattr(error, "error_string", error)).rstrip(".")
    if not os.path.exists(path):
        return UserError(f"{path}: no such file; check the path")
    if os.path.isdir(path):
        reason = "it is a folder"
    elif _is_shortened_sphere(path):
        return UserError(
            f"{path}: a NIST sphere file compressed with shorten, which cannot be read here; "
            f"convert it with: sph2pipe -p -f wav {path} {Path(path).with_suffix('.wav')}"
        )
    return UserError(
        f"{path}: cannot be read as audio ({reason}); expected wav, flac, mp3 or another format of libsndfile; "
        "convert it (ffmpeg -i FILE FILE.wav), or get it again"
    )


def _is_shortened_sphere(path: AudioPath) -> bool:
    try:
        with open(path, "rb") as file:
            header = file.read(1024)
    except OSError:
        return False
    return header.startswith(b"NIST_1A") and b"shorten" in header


@contextmanager
def write_flac(path: AudioPath, temporary: Path, sample_rate: int, channels: int) -> Iterator[soundfile.SoundFile]:
    """Yield a FLAC file of 16 bits, written to `temporary`; messages name `path`."""
    with open(temporary, "wb+") as raw:
        sink = _Sink(raw)
        try:
            with soundfile.SoundFile(sink, "w", sample_rate, channels, "PCM_16", format="FLAC") as file:  # type: ignore[arg-type]
                yield file
        except soundfile.LibsndfileError as error:
            if sink.error is None:
                raise UserError(
                    f"{path}: flac holds no {channels} channel(s) at {sample_rate} Hz ({error.error_string}); write wav"
                ) from error
        if sink.error is not None:
            raise sink.error


class _Sink:
    """A file that libsndfile writes to; it keeps the error, which libsndfile would not tell."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None
        self.seek, self.tell, self.read, self.flush = file.seek, file.tell, file.read, file.flush

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            return 0


def read_or_raise(
    file: OpenFile, path: AudioPath, count: int, dtype: SampleType, start: int = 0, position: int = 0
) -> np.ndarray:
    """Return the samples from `start` on, (count, C); with start 0, from the current position, which is `position`."""
    try:
        if start:
            file.seek(start)
        frames = file.read(count, dtype=dtype, always_2d=True)
    except soundfile.LibsndfileError as error:
        raise UserError(
            f"{path}: damaged or truncated ({str(error.error_string).rstrip('.')}); get the file again"
        ) from error
    if len(frames) < count:
        end = max(start, position) + len(frames)
        raise UserError(f"{path}: damaged or truncated (ends after sample {end} of {file.frames}); get the file again")
    return frames
