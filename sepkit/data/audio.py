"""Read audio files with seek and resampling, and write them.

Positions and lengths are in samples at the requested rate, after resampling, so a crop means the same whatever the
file's own rate.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from math import gcd
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import soundfile

from sepkit.data._ffmpeg import FFMPEG_SUFFIXES, without_undecodable
from sepkit.data._opening import AudioFile, AudioPath, Source, identity, open_audio
from sepkit.data.headers import wav_header
from sepkit.data.resampling import RESAMPLERS, Resampler, resample, resampled_length
from sepkit.errors import UserError
from sepkit.files import atomic_output

__all__ = ["RESAMPLERS", "Resampler", "resample", "resampled_length", "without_undecodable"]

Subtype = Literal["FLOAT", "PCM_16"]
Rounding = Literal["floor", "nearest"]

AUDIO_SUFFIXES = FFMPEG_SUFFIXES | {
    ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".w64", ".rf64", ".sph"
}  # fmt: skip
"""File name endings, in lower case, of the formats that can be read: by libsndfile, or by ffmpeg if it is installed."""

# Both resamplers' filters end within this many samples of the slower of the two rates.
_CONTEXT_SAMPLES = 256
_BLOCK_SAMPLES = 1 << 16
# Share of the power of unrelated channels that is left where channels cancel, and of direct current that is rounding.
_CANCELLED, _ROUNDING = 0.2, 1e-5
# Samples per block of libFLAC at its default strength.
_FLAC_BLOCK = 4096


@dataclass(frozen=True)
class AudioInfo:
    """The header of an audio file.

    Args:
        sample_rate: Sampling rate, Hz.
        num_samples: Number of samples per channel.
        channels: Number of channels.
        subtype: libsndfile's name of the sample format, such as "PCM_16".
    """

    sample_rate: int
    num_samples: int
    channels: int
    subtype: str

    @property
    def duration_seconds(self) -> float:
        """Length in seconds."""
        return self.num_samples / self.sample_rate


def info(path: AudioPath) -> AudioInfo:
    """Return sampling rate, length, channels and sample format of an audio file.

    The header is read; samples are counted only if the header does not state the length.

    Args:
        path: Path of the file.

    Raises:
        UserError: a file that is absent, is not audio, contains no samples, or whose header is beyond `sepkit.limits`.
    """
    with open_audio(path) as file:
        return AudioInfo(file.sample_rate, _length(file, path), file.channels, file.subtype)


def _length(file: AudioFile, path: AudioPath) -> int:
    return _count(*identity(path)) if file.num_samples is None else file.num_samples


@lru_cache(maxsize=4096)
def _count(path: str, mtime_ns: int, size: int) -> int:
    with open_audio(path, whole=True) as file:
        return sum(map(len, file.blocks()))


def find_audio_files(folder: Path, without: Path | None = None) -> list[Path]:
    """Return all audio files below a folder, sorted by path; hidden files and folders are left out.

    Args:
        folder: Path of the folder; links to folders are followed, unless they lead back to a folder that contains them.
        without: Real path of a folder whose files are left out.

    Raises:
        UserError: No such folder, or no audio files in it.
    """
    if not folder.is_dir():
        found = "it is a file" if folder.is_file() else "no such folder"
        raise UserError(f"{folder}: {found}; expected a folder of audio files")
    found_paths = []
    # os.walk follows links to folders; Path.rglob does so only in some supported versions of Python.
    for root, folders, names in os.walk(folder, followlinks=True):
        visible = [name for name in folders if not name.startswith(".")]
        closed = {str(without)}
        if any(os.path.islink(os.path.join(root, name)) for name in visible):
            closed.update(os.path.realpath(path) for path in (root, *Path(os.path.abspath(root)).parents))
        folders[:] = [name for name in visible if os.path.realpath(os.path.join(root, name)) not in closed]
        shown = (name for name in names if not name.startswith("."))
        found_paths += [Path(root, name) for name in shown if os.path.splitext(name)[1].lower() in AUDIO_SUFFIXES]
    paths = sorted(without_undecodable(found_paths), key=lambda path: path.relative_to(folder).as_posix())
    if not paths:
        suffixes = ", ".join(sorted(AUDIO_SUFFIXES))
        raise UserError(f"{folder}: no audio files in it or below; expected files ending in {suffixes}")
    return paths


def read(
    path: AudioPath,
    start: int = 0,
    num_samples: int | None = None,
    sample_rate: int | None = None,
    resampler: str = "soxr_hq",
    channel: int | None = None,
    pad_end: bool = False,
    gain: float = 1.0,
) -> np.ndarray:
    """Return the samples `start` to `start + num_samples` of an audio file, (T,) float32.

    Only that part is read, with as much context as the resampler needs. The result equals the same crop of the whole
    resampled file: exactly if nothing is resampled and for "scipy_poly", within 1e-6 of full scale for "soxr_hq" and
    for mp3. Samples outside the part are not checked. A wav whose data end early is as long as its data, whatever its
    header says; only a manifest or a partner file shows that something is missing.

    Args:
        path: Path of the file.
        start: First sample, at `sample_rate`.
        num_samples: Number of samples, at `sample_rate`; None: to the end of the file.
        sample_rate: Sampling rate of the result, Hz; None: the file's own.
        resampler: "soxr_hq" or "scipy_poly", see `resample`.
        channel: Channel to read, from 0; None: the mean of all channels.
        pad_end: Whether to give zeros past the end of the file instead of raising.
        gain: Factor, applied before resampling.

    Raises:
        UserError: A file that cannot be read, is damaged, or is too short; no such channel; or
            samples in the part that are not finite.
    """
    with open_audio(path, whole=(start, num_samples) == (0, None)) as file:
        file.check_channel(channel)
        rate = sample_rate or file.sample_rate
        if (start, num_samples) == (0, None):
            waveform = _one_channel(file.everything(), channel, gain)
            waveform = resample(waveform, file.sample_rate, rate, resampler)
            file.check_finite(waveform)
            return waveform
        total_frames = _length(file, path)
        total = resampled_length(total_frames, file.sample_rate, rate, resampler)
        stop = total if num_samples is None else start + num_samples
        if start < 0 or stop < start:
            raise UserError(f"{path}: start {start} and num_samples {num_samples} asked for, expected both at least 0")
        if stop > total and not pad_end:
            raise UserError(
                f"{path}: contains {total} samples at {rate} Hz, but samples {start} to {stop} were asked for; "
                "the file is not the one that was described; get it again, or write the manifest again"
            )
        wanted = max(0, min(stop, total) - start)
        if wanted == 0:
            return np.zeros(stop - start, dtype=np.float32)
        first, last, skipped = start, start + wanted, 0
        if file.sample_rate != rate:
            first, last, skipped = _input_window(start, wanted, file.sample_rate, rate, total_frames)
        waveform = _one_channel(file.read(last - first, first), channel, gain)
        waveform = resample(waveform, file.sample_rate, rate, resampler)[skipped : skipped + wanted]
        file.check_finite(waveform)
    return np.pad(waveform, (0, stop - start - wanted)) if stop - start > wanted else waveform


def read_blocks(
    path: AudioPath, block_samples: int, channel: int | None = None, start: int = 0, stop: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the samples `start` to `stop`, or all, of an audio file at its own rate in blocks (T,) float32; the last
    one may be shorter.

    Args:
        path: Path of the file.
        block_samples: Length of a block, samples.
        channel: Channel to read, from 0; None: the mean of all channels.
        start: First sample, at the file's own rate.
        stop: Sample after the last; None: to the end.

    Raises:
        UserError: As `read`, on reaching a bad block.
    """
    with open_audio(path, whole=(start, stop) == (0, None)) as file:
        file.check_channel(channel)
        for frames in file.blocks(block_samples, start, stop):
            block = _one_channel(frames, channel)
            file.check_finite(block)
            yield block


def decode(source: Source) -> tuple[np.ndarray, int]:
    """Return the samples (C, T) float32 of an audio file, or of the content of one, and its rate in Hz.

    Args:
        source: Path of the file, or its bytes.

    Raises:
        UserError: As `read`; samples that are not finite are returned.
    """
    with open_audio(source, whole=True) as file:
        return file.everything().T, file.sample_rate


def loudest_if_cancelled(blocks: Iterable[np.ndarray]) -> int | None:
    """Return the loudest channel of a recording if its channels cancel in their mean, else None.

    They cancel if one is inverted, by a wrong cable or plug. Their mean then has less than a fifth of the power that
    unrelated channels would leave, for two channels 10 dB less than each; that of microphones apart never has. Direct
    current does not count.

    Args:
        blocks: the samples (T, C), from beginning to end.
    """
    count, sums, products = 0, np.zeros(1), np.zeros((1, 1))
    for frames in blocks:
        for begin in range(0, len(frames), _BLOCK_SAMPLES):
            # Products of matrices of few rows are fast, while sums along columns are not.
            part = frames[begin : begin + _BLOCK_SAMPLES]
            count += len(part)
            sums = sums + np.ones(len(part), part.dtype) @ part
            products = products + part.T @ part
    covariance = products - np.outer(sums, sums) / max(count, 1)
    power, left = np.trace(covariance), covariance.sum() / len(covariance)
    if power > _ROUNDING * np.trace(products) and left < _CANCELLED * power / len(covariance):
        return int(np.argmax(np.diag(covariance)))
    return None


def cancelled(path: AudioPath) -> int | None:
    """Return the loudest channel of an audio file if its channels cancel in their mean, else None; all is read."""
    with open_audio(path, whole=True) as file:
        return loudest_if_cancelled(file.blocks()) if file.channels > 1 else None


def cancelled_note(channel: int) -> str:
    """Return the line for a recording of which this channel is taken, because all together cancel."""
    return f"the channels cancel in their mean (one is inverted), so channel {channel} alone is separated"


def check_mean(path: AudioPath) -> None:
    """Raise UserError if the channels of an audio file cancel in their mean; a file of several is read to its end."""
    if (loudest := cancelled(path)) is not None:
        raise UserError(
            f"{path}: its channels cancel in their mean, because one is inverted; take one of them: ffmpeg -i FILE -af "
            f"'pan=mono|c0=c{loudest}' MONO.wav"
        )


def write(
    path: AudioPath, waveform: np.ndarray, sample_rate: int, subtype: Subtype = "FLOAT", rounding: Rounding = "nearest"
) -> Path:
    """Write an audio file atomically and return its path. The same samples always give the same bytes.

    Args:
        path: Path of the file; its ending chooses the format (".wav", or ".flac" for PCM_16). The folder is made if it
            is missing.
        waveform: Samples, (T,) or (C, T), full scale 1.
        sample_rate: Sampling rate, Hz.
        subtype: "FLOAT" keeps float32 values, also beyond +-1; "PCM_16" quantizes and saturates.
        rounding: Rounding of "PCM_16", see `quantize_pcm16`.

    Raises:
        UserError: A folder that cannot be written to, or a recording that the format cannot hold.
        ValueError: Samples that are not finite, or a format that cannot hold the subtype.
    """
    waveform = np.asarray(waveform)
    if waveform.ndim not in (1, 2):
        raise ValueError(f"{path}: waveform of shape {waveform.shape}, expected (T,) or (C, T)")
    channels, num_samples = np.atleast_2d(waveform).shape
    with write_blocks(path, sample_rate, num_samples, subtype, channels, rounding) as writer:
        writer.write(waveform)
    return Path(path)


def encode_sound(waveform: np.ndarray, sample_rate: int) -> tuple[bytes, str]:
    """Return a 16-bit file in memory that every browser plays, and its media type.

    The file is FLAC, about half the size of wav, or wav for less than two blocks of FLAC. The waveform is (T,) or (C,
    T); values beyond full scale saturate.
    """
    waveform = np.asarray(waveform)
    if waveform.size == 0 or not np.isfinite(waveform).all():
        raise ValueError(f"waveform of shape {waveform.shape}: expected finite samples, at least one")
    # Chromium cannot play a FLAC that is a single block.
    kind = "wav" if waveform.shape[-1] < 2 * _FLAC_BLOCK else "flac"
    buffer = io.BytesIO()
    soundfile.write(buffer, quantize_pcm16(waveform).T, sample_rate, subtype="PCM_16", format=kind.upper())
    return buffer.getvalue(), f"audio/{kind}"


@dataclass
class BlockWriter:
    """An open audio file whose length is known; see `write_blocks`.

    Args:
        put: appends samples, (t,) or (t, C).
        missing: Number of samples still to come.
    """

    path: Path
    put: Callable[[np.ndarray], object]
    missing: int
    subtype: Subtype
    rounding: Rounding

    def write(self, block: np.ndarray) -> None:
        """Append samples (T,) or (C, T), full scale 1. ValueError: some are not finite, or more than were announced."""
        if not np.isfinite(block).all():
            raise ValueError(f"{self.path}: samples that are not finite numbers are not written")
        self.missing -= block.shape[-1]
        if self.missing < 0:
            raise ValueError(f"{self.path}: {-self.missing} samples more than were announced")
        self.put((block.astype("<f4") if self.subtype == "FLOAT" else quantize_pcm16(block, self.rounding)).T)


@contextmanager
def write_blocks(
    path: str | os.PathLike[str],
    sample_rate: int,
    num_samples: int,
    subtype: Subtype = "FLOAT",
    channels: int = 1,
    rounding: Rounding = "nearest",
) -> Iterator[BlockWriter]:
    """Open an audio file and yield its writer. The file appears when the `with` block ends without an error.

    The same samples give the same bytes as `write`, except for how FLAC is divided into frames.

    Args:
        path: Path of the file; its ending chooses the format.
        sample_rate: Sampling rate, Hz.
        num_samples: Number of samples that will be written, of each channel.
        subtype: "FLOAT" keeps float32 values, also beyond +-1; "PCM_16" quantizes and saturates.
        channels: Number of channels.
        rounding: Rounding of "PCM_16", see `quantize_pcm16`.

    Raises:
        ValueError: A format that cannot hold the subtype, or another number of samples than was announced.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if (suffix, subtype) not in {(".wav", "FLOAT"), (".wav", "PCM_16"), (".flac", "PCM_16")}:
        raise ValueError(
            f"{path}: {subtype} in {suffix or 'a file without ending'} cannot be written; use .wav, or .flac for PCM_16"
        )
    with atomic_output(path) as temporary:
        opened = _open_flac if suffix == ".flac" else _open_wav
        with opened(path, temporary, sample_rate, channels, num_samples, subtype) as put:
            writer = BlockWriter(path, put, num_samples, subtype, rounding)
            yield writer
        if writer.missing:
            raise ValueError(f"{path}: {writer.missing} samples fewer than were announced")


@contextmanager
def _open_wav(
    path: Path, temporary: Path, sample_rate: int, channels: int, num_samples: int, subtype: Subtype
) -> Iterator[Callable[[np.ndarray], object]]:
    header = wav_header(path, sample_rate, num_samples, subtype, channels)
    with open(temporary, "wb") as file:
        file.write(header)
        yield lambda samples: file.write(samples.astype("<f4" if subtype == "FLOAT" else "<i2").tobytes())


@contextmanager
def _open_flac(
    path: Path, temporary: Path, sample_rate: int, channels: int, *_: object
) -> Iterator[Callable[[np.ndarray], object]]:
    with open(temporary, "wb+") as raw:
        sink = _Sink(raw)

        def checked(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            try:
                found = call(*arguments, **options)
            except (soundfile.LibsndfileError, AssertionError) as error:
                # soundfile asserts that all samples were written.
                problem = UserError(f"{path}: flac contains no {channels} channel(s) at {sample_rate} Hz; write wav")
                raise sink.error or problem from error
            if sink.error is not None:
                raise sink.error
            return found

        file = checked(soundfile.SoundFile, sink, "w", sample_rate, channels, "PCM_16", format="FLAC")
        try:
            yield partial(checked, file.write)
        except BaseException:
            # After an error, of another file for example, this one may be without samples, and has no end.
            with suppress(soundfile.LibsndfileError, AssertionError):
                file.close()
            raise
        checked(file.close)


class _Sink:
    """A file that libsndfile writes to; it keeps the error, which libsndfile would not report."""

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


def quantize_pcm16(waveform: np.ndarray, rounding: Rounding = "nearest") -> np.ndarray:
    """Return a waveform as int16 with saturation: full scale 1.0 becomes 32767, -1.0 becomes -32768.

    Rounding by "floor" is `floor(round(2^31 x) / 2^16)`, as python-soundfile, and with it LibriMix, writes wav: this
    differs from `floor(2^15 x)` only within 2^-32 below the next value. "nearest" rounds half to even, as the WHAM and
    pywsj0-mix scripts do.

    Args:
        waveform: Samples of any shape, full scale 1.
        rounding: "floor" or "nearest".

    >>> quantize_pcm16(np.array([0.5, 1.5, -1.0]) / 32768), quantize_pcm16(np.array([2.0]))
    (array([ 0,  2, -1], dtype=int16), array([32767], dtype=int16))
    """
    if rounding == "floor":
        rounded = np.floor(np.round(waveform * np.float32(2**31)) / np.float32(2**16))
    else:
        rounded = np.round(waveform * np.float32(2**15))
    return np.clip(rounded, -32768, 32767).astype(np.int16)


def _one_channel(frames: np.ndarray, channel: int | None, gain: float = 1.0) -> np.ndarray:
    is_mean = channel is None and frames.shape[1] > 1
    waveform = frames.mean(axis=1) if is_mean else np.ascontiguousarray(frames[:, channel or 0])
    return waveform if gain == 1.0 else waveform * np.float32(gain)


def _input_window(start: int, count: int, from_rate: int, to_rate: int, frames: int) -> tuple[int, int, int]:
    """Return the first and last input that outputs `start` to `start + count` depend on, and how many to skip.

    `first` falls on an output sample, so that resampling the window keeps the phase of resampling the whole.
    """
    divisor = gcd(from_rate, to_rate)
    from_step, to_step = from_rate // divisor, to_rate // divisor
    context = -(-_CONTEXT_SAMPLES * from_rate // min(from_rate, to_rate))
    steps = max(0, (start * from_rate // to_rate - context) // from_step)
    last = min(frames, -(-(start + count) * from_rate // to_rate) + context)
    return steps * from_step, last, start - steps * to_step
