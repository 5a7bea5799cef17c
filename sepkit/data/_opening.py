"""Open audio files by their content, and report those that cannot be read.

libsndfile decodes most, and ffmpeg what libsndfile refuses or would not read to the end.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import soundfile

from sepkit.data._ffmpeg import FFmpegFile, has_ffmpeg
from sepkit.data.headers import SMALLEST_UNKNOWN_SIZE, decoder_of, read_wav_header
from sepkit.errors import UserError, exhausted
from sepkit.limits import CHANNELS, RECORDING_SECONDS, SAMPLE_RATES

AudioPath = str | os.PathLike[str]
Source = AudioPath | io.BytesIO

# libsndfile reports this length for a stream whose header does not give one.
_UNKNOWN_LENGTH = 2**62
_BLOCK_FRAMES = 1 << 16
# Decoded before a position that is sought, so that what follows is exact: mp3 frames take bits of up to 30 frames
# before them, and Opus forgets its state within a second.
_LEAD_FRAMES = {"MP3": 30 * 1152, "OPUS": 48000}
# An mp3 is decoded from its beginning up to here: libmpg123 may print errors of the frames that a seek leads to.
_NEAR_FRAMES = {"MP3": 1 << 20}
# The last page of Vorbis, of at most 255 packets of 1024 samples, begins where libsndfile takes it to begin only if
# none of its samples are cut off; so it is not sought in.
_TAIL_FRAMES = {"VORBIS": 255 * 1024}
# Names of libsndfile by coding and bits.
_WAV_SUBTYPES = {
    (1, 8): "PCM_U8", (1, 16): "PCM_16", (1, 24): "PCM_24", (1, 32): "PCM_32", (3, 32): "FLOAT", (3, 64): "DOUBLE",
    (6, 8): "ALAW", (7, 8): "ULAW",
}  # fmt: skip
# libsndfile cannot seek in these, or fails.
_UNSEEKABLE = ("GSM610", "G721", "G723", "NMS_ADPCM", "DWVW", "DPCM_")


class SoundFile(soundfile.SoundFile):
    """A file that libsndfile decodes, read forward from where it is."""

    def __init__(self, file: str | bytes | IO[bytes], **layout: Any) -> None:
        self._samples = file if isinstance(file, _Samples) else None
        super().__init__(file, **layout)  # type: ignore[arg-type]
        self.stated_frames = None if self.frames >= _UNKNOWN_LENGTH else self.frames
        """Length that the header gives; None if it gives none."""

    def seekable(self) -> bool:
        """Return False: python-soundfile seeks after every read otherwise, which spoils the next frames of an mp3."""
        return False

    def approach(self, position: int) -> int:
        """Go to a sample from which decoding up to the one that is wanted is exact, and return its number."""
        near = position < _NEAR_FRAMES.get(self.format, 0)
        if near or self.stated_frames is None or self.subtype.startswith(_UNSEEKABLE):
            return 0
        lead = _LEAD_FRAMES.get(self.subtype, _LEAD_FRAMES.get(self.format, 0))
        reached = min(position - lead, self.stated_frames - _TAIL_FRAMES.get(self.subtype, 0))
        return self.seek(reached) if reached > 0 else 0

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._samples is not None:
            self._samples.close()


class _Samples(io.FileIO):
    """The bytes of a file from some position on."""

    def __init__(self, path: AudioPath, begin: int) -> None:
        super().__init__(path)
        self._begin = begin
        self.seek(0)

    def seek(self, offset: int, whence: int = 0) -> int:
        return super().seek(offset if whence else offset + self._begin, whence) - self._begin

    def tell(self) -> int:
        return super().tell() - self._begin


class AudioFile:
    """An audio file that is open, decoded forward from where it is.

    Args:
        decoder: Decoder of the file.
        name: Name of the file, for messages.

    Attributes:
        num_samples: Length that the header gives; None if it gives none.
        subtype: libsndfile's name of the sample format, or "FFMPEG".

    Raises:
        UserError: The file is empty, or its header exceeds `sepkit.limits`.
    """

    def __init__(self, decoder: SoundFile | FFmpegFile, name: str) -> None:
        self._decoder, self.name, self._position = decoder, name, 0
        self.sample_rate, self.channels, self.subtype = decoder.samplerate, decoder.channels, decoder.subtype
        self.num_samples = decoder.stated_frames
        low, high = SAMPLE_RATES
        if not low <= self.sample_rate <= high:
            raise UserError(
                f"{name}: its header states {self.sample_rate} Hz, expected {low} to {high} Hz; correct the header, or "
                "resample the file"
            )
        if self.channels > CHANNELS:
            raise UserError(f"{name}: has {self.channels} channels, expected at most {CHANNELS}; split the file")
        if self.num_samples is not None:
            self._check_length(self.num_samples)

    def _check_length(self, num_samples: int) -> None:
        if num_samples == 0:
            raise UserError(f"{self.name}: contains no samples; leave out the file")
        if num_samples > RECORDING_SECONDS * self.sample_rate:
            raise UserError(
                f"{self.name}: has {num_samples / self.sample_rate / 3600:.0f} hours, expected at most "
                f"{RECORDING_SECONDS // 3600}; cut the file"
            )

    def read(self, count: int, start: int = 0) -> np.ndarray:
        """Return the next samples, (count, C) float32; where the header gives no length, there may be fewer.

        Args:
            count: Number of samples.
            start: First sample, of a file that was just opened.
        """
        try:
            if start > self._position:
                self._position = self._decoder.approach(start)
            while self._position < start and (
                skipped := len(self._decoder.read(min(_BLOCK_FRAMES, start - self._position), "float32"))
            ):
                self._position += skipped
            frames = self._decoder.read(count, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise UserError(
                f"{self.name}: damaged or truncated ({error.error_string.rstrip('.')}); get the file again"
            ) from error
        self._position += len(frames)
        if len(frames) < count and self.num_samples is not None:
            raise UserError(
                f"{self.name}: damaged or truncated (ends after sample {self._position} of {self.num_samples}); "
                "get the file again"
            )
        return frames

    def blocks(self, size: int | None = None, start: int = 0, stop: int | None = None) -> Iterator[np.ndarray]:
        """Yield the samples `start` to `stop`, or all, of a file that was just opened in blocks (T, C) float32.

        Args:
            size: Length of the blocks; None: any.
            start: First sample.
            stop: Sample after the last; None: to the end.
        """
        size, position, end = size or _BLOCK_FRAMES, start, self.num_samples if stop is None else stop
        while end is None or position < end:
            if not len(frames := self.read(size if end is None else min(size, end - position), start)):
                break
            position += len(frames)
            self._check_length(position)
            yield frames
        self._check_length(position)

    def everything(self) -> np.ndarray:
        """Return all samples of a file that was just opened, (T, C) float32."""
        blocks = list(self.blocks(self.num_samples))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def check_channel(self, channel: int | None) -> None:
        """Raise UserError if the file has no such channel."""
        if channel is not None and not 0 <= channel < self.channels:
            raise UserError(
                f"{self.name}: has {self.channels} channel(s), numbered from 0; channel {channel} was asked for"
            )

    def check_finite(self, waveform: np.ndarray) -> None:
        """Raise UserError if a sample is NaN or infinite."""
        if not np.isfinite(waveform).all():
            raise UserError(
                f"{self.name}: contains samples that are not finite numbers (NaN or infinity); repair or leave out the "
                "file"
            )


@contextmanager
def open_audio(source: Source) -> Iterator[AudioFile]:
    """Open a file, or the content of one, with the decoder that its first bytes ask for."""
    try:
        decoder = _open(source)
    except (soundfile.LibsndfileError, TypeError, ValueError, OSError) as error:
        if exhausted(error):
            raise
        raise _unreadable(source, error) from error
    with decoder:
        yield AudioFile(decoder, _name_of(source))


def _name_of(source: Source) -> str:
    """Return what messages call a file: its path, or "bytes"."""
    return "bytes" if isinstance(source, io.BytesIO) else os.fspath(source)


def identity(path: AudioPath) -> tuple[str, int, int]:
    """Return path, time of change and size, by which results about a file are kept."""
    status = os.stat(path)
    return os.fspath(path), status.st_mtime_ns, status.st_size


def _open(source: Source) -> SoundFile | FFmpegFile:
    if isinstance(source, io.BytesIO):
        decoder = decoder_of(source, _name_of(source))
        source.seek(0)
    else:
        _check_is_file(source)
        decoder = _decoder_of(*identity(source))
    in_parts = decoder == "ffmpeg, in parts"
    reason = "its header does not state the length of all its parts" if in_parts else "not a format of libsndfile"
    if decoder.startswith("libsndfile"):
        try:
            file = SoundFile(source if isinstance(source, io.BytesIO) else _for_libsndfile(source))
            if file.format in ("WAV", "WAVEX", "RF64"):
                file = _to_the_end(file, source)
            elif file.format == "AU" and not file.frames and has_ffmpeg():
                file = None
            if file is not None and (decoder == "libsndfile, mp3" or not file.subtype.startswith("MPEG")):
                return file
            in_parts = True
        except soundfile.LibsndfileError:
            # Fails with the reason, which libsndfile keeps to itself, if no file at all can be opened.
            os.close(os.open(os.devnull, os.O_RDONLY))
    if not has_ffmpeg():
        raise ValueError(f"{reason}, and the program ffmpeg, which reads more, is not installed")
    return FFmpegFile(source, _name_of(source), in_parts)


@lru_cache(maxsize=4096)
def _decoder_of(path: str, mtime_ns: int, size: int) -> str:
    with open(path, "rb", buffering=0) as file:
        return decoder_of(file, path)


def _to_the_end(file: SoundFile, source: Source) -> SoundFile | None:
    """Return a wav as it is, or read up to its end if its header was written before its length was known; None if only
    ffmpeg can do so."""
    size = len(source.getbuffer()) if isinstance(source, io.BytesIO) else os.path.getsize(source)
    is_gsm = file.subtype == "GSM610"
    if file.frames and size <= SMALLEST_UNKNOWN_SIZE and not is_gsm:
        return file
    with io.BytesIO(source.getvalue()) if isinstance(source, io.BytesIO) else open(source, "rb") as raw:
        riff_bytes = int.from_bytes(raw.read(8)[4:], "little")
        raw.seek(0)
        try:
            header = read_wav_header(raw, name=_name_of(source))
        except UserError:
            return file
        begin = raw.tell()
        if is_gsm:
            # libsndfile counts the byte that pads an odd number of blocks as one more.
            file.stated_frames = min(header.size_bytes or 0, size - begin) // 65 * 320
        if header.size_bytes is not None or riff_bytes + 8 == size or begin == size:
            return file
        subtype = _WAV_SUBTYPES.get((header.tag, header.bits))
        if subtype is None:
            return None
        samples = io.BytesIO(raw.read()) if isinstance(source, io.BytesIO) else _Samples(source, begin)
    file.close()
    layout = {"samplerate": header.sample_rate, "channels": header.channels, "subtype": subtype}
    return SoundFile(samples, **layout, format="RAW", endian="LITTLE")


def _for_libsndfile(path: AudioPath) -> str | bytes:
    """Return a path as bytes, because names need not be UTF-8, except on Windows, where they are text."""
    return os.fspath(path) if sys.platform == "win32" else os.fsencode(path)


def _check_is_file(path: AudioPath) -> None:
    """Raise UserError for a pipe, socket or device, which reading might wait for without end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # whoever opens it says that there is no such file
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path}: is a pipe, socket or device, expected a file; save its sound to a file first")


def _unreadable(source: Source, error: Exception) -> UserError:
    reason = str(getattr(error, "error_string", error)).rstrip(".")
    path = None if isinstance(source, io.BytesIO) else source
    if path is not None and not os.path.exists(path):
        return UserError(f"{path}: no such file; check the path")
    if path is not None and os.path.isdir(path):
        reason = "it is a folder"
    elif path is not None and not os.path.getsize(path):
        reason = "it is empty"
    elif path is not None and _is_shortened_sphere(path):
        return UserError(
            f"{path}: is a NIST sphere file compressed with shorten, which sepkit does not read; "
            f"convert it with: sph2pipe -p -f wav {path} {Path(path).with_suffix('.wav')}"
        )
    name = _name_of(source)
    line = (
        f"{name}: cannot be read as audio ({reason}); expected wav, flac, mp3 or another format of libsndfile or ffmpeg"
    )
    if name.endswith(".jsonl"):
        return UserError(f"{line}; did you mean `sepkit evaluate --manifest {name}`?")
    # No `ffmpeg -i`: that would follow the paths and addresses of a playlist.
    return UserError(f"{line}; {'' if has_ffmpeg() else 'install ffmpeg, '}get the file again, or save it as wav")


def _is_shortened_sphere(path: AudioPath) -> bool:
    try:
        with open(path, "rb") as file:
            header = file.read(1024)
    except OSError:
        return False
    return header.startswith(b"NIST_1A") and b"shorten" in header
