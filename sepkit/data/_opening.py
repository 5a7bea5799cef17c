"""Open audio files, and report those that cannot be read."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile

from sepkit.data._ffmpeg import FFMPEG_SUFFIXES, FFmpegFile, has_ffmpeg
from sepkit.data._tar_index import Section, locate
from sepkit.errors import UserError

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
    """Open a file, or a member of a tar shard, with libsndfile, or with ffmpeg if its ending asks for it.

    Raises:
        UserError: no such file, not an audio file, no samples in it, or ffmpeg is needed and absent or fails.
    """
    with ExitStack() as stack:
        try:
            section = locate(path)
            if section is None and _is_for_ffmpeg(path):
                file: OpenFile = FFmpegFile(path)
            else:
                # libsndfile opens ordinary paths itself, which is faster than reading through Python.
                file = kind(path if section is None else stack.enter_context(io.BufferedReader(SectionReader(section))))
        except (soundfile.LibsndfileError, TypeError, OSError) as error:
            raise _unreadable(path, error) from error
        stack.enter_context(file)
        check_holds_samples(file, path)
        yield file


def _is_for_ffmpeg(path: AudioPath) -> bool:
    suffix = Path(path).suffix.lower()
    if suffix not in FFMPEG_SUFFIXES or not os.path.isfile(path):
        return False
    # libsndfile reads only some of these containers, and mistakes some AAC streams for MP3.
    if suffix == ".caf":
        with contextlib.suppress(soundfile.LibsndfileError):
            soundfile.info(path)
            return False
    if not has_ffmpeg():
        raise UserError(
            f"{path}: {suffix} needs the program ffmpeg, which is not installed; install it, or convert the file"
        )
    return True


def check_holds_samples(file: OpenFile, path: AudioPath) -> None:
    """Raise UserError if the file is empty, or its header gives no length."""
    if file.frames == 0:
        raise UserError(f"{path}: holds 0 samples; leave out the file")
    if file.frames >= _UNKNOWN_LENGTH:
        raise UserError(f"{path}: its header does not say how many samples it holds; encode it again")


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
    if locate(path) is None:
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


class SectionReader(io.RawIOBase):
    """A part of a file, readable as a file that ends with the part."""

    def __init__(self, section: Section) -> None:
        self._section = section
        self._position = 0
        self._descriptor = os.open(section.path, os.O_RDONLY)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._section.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = max(0, min(len(buffer), self._section.size - self._position))
        data = os.pread(self._descriptor, wanted, self._section.offset + self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def read_or_raise(
    file: OpenFile, path: AudioPath, count: int, dtype: SampleType, start: int = 0, position: int = 0
) -> np.ndarray:
    """Return the samples from `start` on, (count, C); with start 0, from the current position, which is `position`.

    Raises:
        UserError: the file ends early, or is damaged.
    """
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
