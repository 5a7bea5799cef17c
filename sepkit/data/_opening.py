"""Open audio files by their content, and report those that cannot be read.

libsndfile decodes most, and ffmpeg what libsndfile refuses or would not read to the end.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import soundfile

from sepkit.data._ffmpeg import FFmpegFile, has_ffmpeg
from sepkit.data.headers import (
    WAV_BEGINS,
    WAV_SUBTYPES,
    WavHeader,
    check_alone,
    check_end,
    end_of_samples,
    read_wav_header,
    skip_tags,
    states_length,
)
from sepkit.errors import UserError, exhausted
from sepkit.limits import AMPLITUDE, CHANNELS, RECORDING_SECONDS, SAMPLE_RATES

AudioPath = str | os.PathLike[str]
Source = AudioPath | io.BytesIO

# libsndfile reports this length for a stream whose header does not give one.
_UNKNOWN_LENGTH = 2**62
_BLOCK_FRAMES = 1 << 16
# Decoded before a position that is sought in what is compressed with loss, so that what follows is exact: mp3 frames
# take bits of up to 30 frames before them, Opus forgets its state within a second, and the last page of Vorbis, of at
# most 255 packets of 1024 samples, is dated from its end; libmpg123 prints errors if it begins near the first frame.
_LEAD_FRAMES = 1 << 20
# Bytes of a sample by libsndfile's name.
_WIDTHS = {name: bits // 8 for (_, bits), name in WAV_SUBTYPES.items()} | {"PCM_S8": 1}
# Of MPEG audio in a wav.
_MPEG_TAGS = (0x50, 0x55)
# libsndfile cannot seek in these, or fails.
_UNSEEKABLE = ("GSM610", "G721", "G723", "NMS_ADPCM", "DWVW", "DPCM_")


class SoundFile(soundfile.SoundFile):
    """A file that libsndfile decodes, read forward from where it is."""

    def __init__(self, file: _Part, **layout: Any) -> None:
        super().__init__(file, **layout)  # type: ignore[arg-type]
        self.stated_frames = None if self.frames >= _UNKNOWN_LENGTH else self.frames
        """Length that the header gives; None if it gives none."""

    def seekable(self) -> bool:
        """Return False: python-soundfile seeks after every read otherwise, which spoils the next frames of an mp3."""
        return False

    def approach(self, position: int) -> int:
        """Go to a sample from which decoding up to the one that is wanted is exact, and return its number."""
        if self.stated_frames is None or self.subtype.startswith(_UNSEEKABLE):
            return 0
        reached = min(position, self.stated_frames) - (0 if self.subtype in _WIDTHS else _LEAD_FRAMES)
        return self.seek(reached) if reached > 0 else 0


class _Part(io.RawIOBase):
    """A part of an open file, read as a file of its own.

    Args:
        file: The open file.
        begin: First byte of the part.
        end: Byte after the last; None: the end of the file.
        head: Bytes that replace the first ones of the part, such as a corrected header.
    """

    def __init__(self, file: IO[bytes], begin: int, end: int | None = None, head: bytes = b"") -> None:
        self._file, self._begin, self._head = file, begin, head
        self._end = file.seek(0, 2) if end is None else end
        self.seek(0)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a byte, from the beginning, from where it is, or from the end."""
        offset += (self._begin, self._file.tell(), self._end)[whence]
        # A header may state any size.
        return (self._file.seek(offset) if self._begin <= offset < 2**62 else self._file.tell()) - self._begin

    def tell(self) -> int:
        """Return the number of the next byte."""
        return self._file.tell() - self._begin

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes, and return how many there are."""
        at = self.tell()
        data = self._file.read(max(0, min(len(buffer), self._end - self._begin - at)))
        head = self._head[at : at + len(data)]
        buffer[: len(data)] = head + data[len(head) :]
        return len(data)


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
        with suppress(soundfile.LibsndfileError):
            if stop is None and self._decoder.format == "FLAC" and len(self._decoder.read(1)):
                raise UserError(
                    f"{self.name}: more sound follows the {position} samples that its header counts; correct its "
                    "header, or cut the file"
                )

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
        """Raise UserError if a sample is NaN, infinite, or too large to compute with."""
        if not np.abs(waveform).max(initial=0.0) <= AMPLITUDE:
            raise UserError(
                f"{self.name}: contains samples that are not finite or beyond {AMPLITUDE:g} (full scale is 1); "
                "repair or leave out the file"
            )


@contextmanager
def open_audio(source: Source, whole: bool = False) -> Iterator[AudioFile]:
    """Open a file, or the content of one, with the decoder that its first bytes ask for.

    Args:
        source: Path of the file, or its bytes.
        whole: Whether all samples are wanted; else what follows those that FLAC states is not looked for, because that
            reads all bytes.
    """
    with ExitStack() as stack:
        try:
            if isinstance(source, io.BytesIO):
                raw: IO[bytes] = io.BytesIO(source.getvalue())
            else:
                _check_is_file(source)
                raw = stack.enter_context(open(source, "rb", buffering=0))
            decoder = stack.enter_context(_decoder(source, raw, whole))
        except (soundfile.LibsndfileError, TypeError, ValueError, OSError) as error:
            if exhausted(error):
                raise
            raise _unreadable(source, error) from error
        yield AudioFile(decoder, _name_of(source))


def _name_of(source: Source) -> str:
    """Return what messages call a file: its path, or "bytes"."""
    return "bytes" if isinstance(source, io.BytesIO) else os.fspath(source)


def identity(path: AudioPath) -> tuple[str, int, int]:
    """Return path, time of change and size, by which results about a file are kept."""
    status = os.stat(path)
    return os.fspath(path), status.st_mtime_ns, status.st_size


def _decoder(source: Source, raw: IO[bytes], whole: bool) -> SoundFile | FFmpegFile:
    """Return what decodes a file to its end: libsndfile if it does, else ffmpeg.

    Raises:
        UserError: another recording, or more sound than the header counts, follows.
    """
    name, begin, header = _name_of(source), skip_tags(raw), None
    head = raw.read(1 << 13)
    if head.startswith(WAV_BEGINS):
        raw.seek(begin)
        with suppress(UserError):
            header = read_wav_header(raw, name)
    with suppress(soundfile.LibsndfileError):
        if file := _by_libsndfile(source, raw, begin, header, whole):
            return file
    is_mpeg = header.tag in _MPEG_TAGS if header else head[:1] == b"\xff" and sum(head[1:2]) & 6 > 0
    is_endless = head.startswith(b"caff") and b"data" + b"\xff" * 8 in head
    # An mp3 may have headers between its frames, and a CAF without a length chunks behind its sound.
    in_parts = _check_alone(source, raw, begin) or is_mpeg or is_endless
    if not has_ffmpeg():
        reason = "its header does not state the length of all its parts" if in_parts else "not a format of libsndfile"
        raise ValueError(f"{reason}, and the program ffmpeg, which reads more, is not installed")
    return FFmpegFile(source, name, in_parts)


def _by_libsndfile(
    source: Source, raw: IO[bytes], begin: int, header: WavHeader | None, whole: bool
) -> SoundFile | None:
    """Return the file opened by libsndfile, or None if libsndfile would miss some of its sound or decode other bytes
    as sound.

    For joined files, libsndfile relies on the first header. If an mp3 does not state its length, it guesses. It decodes
    the headers within a VOC file, and the chunks after the samples of a W64, as samples.
    """
    name, first, end = _name_of(source), raw.tell(), raw.seek(0, 2)
    if header:
        end = min(first + header.size_bytes, end) if header.size_bytes else end_of_samples(raw, first)
        check_end(raw, end, name)
        if not header.size_bytes and header.subtype in _WIDTHS and end > first:
            _check_alone(source, raw, first, True)
            layout = {"samplerate": header.sample_rate, "channels": header.channels, "subtype": header.subtype}
            return SoundFile(_Part(raw, first, end), **layout, format="RAW", endian="LITTLE")
    raw.seek(begin)
    if (header and header.tag in _MPEG_TAGS) or (raw.read(1) == b"\xff" and not states_length(raw, begin)):
        return None
    file = SoundFile(_Part(raw, begin))
    kind, position, width = file.format, raw.tell(), _WIDTHS.get(file.subtype)
    if header:
        if file.subtype == "GSM610":
            # libsndfile counts the byte that pads an odd number of blocks as one more.
            file.stated_frames = (end - first) // 65 * 320
        if not file.frames and end > first:
            return None
    elif kind == "W64":
        raw.seek(position - 8)
        end = min(end, position - 24 + int.from_bytes(raw.read(8), "little"))
        check_end(raw, end, name, kind)
        return SoundFile(_Part(raw, begin, end))
    elif kind == "FLAC" and whole:
        _check_alone(source, raw, begin)
        raw.seek(begin)
        head, stated = raw.read(26), file.stated_frames
        # Without its length, so that frames behind those that it states are found.
        file = SoundFile(_Part(raw, begin, head=head[:21] + bytes([head[21] & 0xF0, 0, 0, 0, 0])))
        file.stated_frames = stated
        return file
    elif kind == "AU" and (not file.frames or (width and (file.seek(0) or raw.tell() != position))):
        # libsndfile reads from the end of the header, but seeks relative to the data offset that the header states.
        return None
    elif kind == "VOC" or (kind == "OGG" and _check_alone(source, raw, begin)):
        return None
    elif width and kind != "FLAC":
        check_end(raw, position + file.frames * width * file.channels, name, kind)
    elif kind not in ("FLAC", "MP3", "OGG"):
        _check_alone(source, raw, begin)
    raw.seek(position)
    return file


def _check_alone(source: Source, raw: IO[bytes], begin: int, is_pcm: bool = False) -> bool:
    """Return `sepkit.data.headers.check_alone`, for which a file is searched once."""
    if isinstance(source, io.BytesIO):
        return check_alone(raw, begin, _name_of(source), is_pcm)
    return _check_file_alone(*identity(source), begin, is_pcm)


@lru_cache(maxsize=4096)
def _check_file_alone(path: str, mtime_ns: int, size: int, begin: int, is_pcm: bool) -> bool:
    with open(path, "rb", buffering=0) as file:
        return check_alone(file, begin, path, is_pcm)


def _check_is_file(path: AudioPath) -> None:
    """Raise UserError for a pipe, socket or device, which reading might wait for without end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # whoever opens it says that there is no such file
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path}: is a pipe, socket or device, expected a file; save its sound to a file first")


def _unreadable(source: Source, error: Exception) -> UserError:
    name, reason, head = _name_of(source), str(getattr(error, "error_string", error)).rstrip("."), b""
    if not isinstance(source, io.BytesIO):
        if not os.path.exists(source):
            return UserError(f"{name}: no such file; check the path")
        reason = "it is a folder" if os.path.isdir(source) else reason if os.path.getsize(source) else "it is empty"
        with suppress(OSError), open(source, "rb") as file:
            head = file.read(1024)
    if head.startswith(b"NIST_1A") and b"shorten" in head:
        return UserError(
            f"{name}: is a NIST sphere file compressed with shorten, which sepkit does not read; "
            f"convert it with: sph2pipe -p -f wav {name} {Path(name).with_suffix('.wav')}"
        )
    line = (
        f"{name}: cannot be read as audio ({reason}); expected wav, flac, mp3 or another format of libsndfile or ffmpeg"
    )
    if name.endswith(".jsonl"):
        return UserError(f"{line}; did you mean `sepkit evaluate --manifest {name}`?")
    # No `ffmpeg -i`: that would follow the paths and addresses of a playlist.
    return UserError(f"{line}; {'' if has_ffmpeg() else 'install ffmpeg, '}get the file again, or save it as wav")
