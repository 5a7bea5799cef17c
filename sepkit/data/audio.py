"""Read audio files with seek and resampling, and write them.

Positions and lengths are in samples at the requested rate, after resampling, so a crop means the same whatever the
file's own rate.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import soundfile
import soxr

from sepkit.data._ffmpeg import FFMPEG_SUFFIXES, without_undecodable
from sepkit.data._opening import (
    AudioPath,
    OpenFile,
    Source,
    check_channel,
    check_finite,
    frame_blocks,
    identity,
    name_of,
    open_audio,
    read_frames,
)
from sepkit.data._writing import quantize_pcm16, write_blocks
from sepkit.errors import UserError

__all__ = [
    "AUDIO_SUFFIXES",
    "RESAMPLERS",
    "AudioInfo",
    "Resampler",
    "cancelled",
    "cancelled_note",
    "check_mean",
    "decode",
    "encode_sound",
    "find_audio_files",
    "info",
    "loudest_if_cancelled",
    "quantize_pcm16",
    "read",
    "read_blocks",
    "resample",
    "resampled_length",
    "without_undecodable",
    "write",
    "write_blocks",
]

Resampler = Literal["soxr_hq", "scipy_poly"]
RESAMPLERS: tuple[str, ...] = get_args(Resampler)

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
    """The header of an audio file; the subtype is libsndfile's name of the sample format, such as "PCM_16"."""

    sample_rate: int
    num_samples: int
    channels: int
    subtype: str

    @property
    def duration_seconds(self) -> float:
        """Length in seconds."""
        return self.num_samples / self.sample_rate


def info(path: AudioPath) -> AudioInfo:
    """Return what the header of an audio file says; if it does not give the length, the samples are counted."""
    with open_audio(path) as file:
        num_samples = _count(*identity(path)) if file.stated_frames is None else file.stated_frames
        return AudioInfo(file.samplerate, num_samples, file.channels, file.subtype)


@lru_cache(maxsize=4096)
def _count(path: str, mtime_ns: int, size: int) -> int:
    with open_audio(path) as file:
        return sum(map(len, frame_blocks(file, path, _BLOCK_SAMPLES)))


def find_audio_files(folder: Path) -> list[Path]:
    """Return all audio files below a folder, sorted by path."""
    if not folder.is_dir():
        found = "it is a file" if folder.is_file() else "no such folder"
        raise UserError(f"{folder}: {found}; expected a folder of recordings")
    # os.walk follows links to folders; Path.rglob does so only in some supported versions of Python.
    found_paths = (
        Path(root, name)
        for root, _, names in os.walk(folder, followlinks=True)
        for name in names
        if not name.startswith(".") and os.path.splitext(name)[1].lower() in AUDIO_SUFFIXES
    )
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
        num_samples: None: to the end of the file.
        channel: which channel to read, from 0; None: the mean of all channels.
        pad_end: whether to give zeros past the end of the file instead of raising.
        gain: applied before resampling.
    """
    name = os.fspath(path)
    with open_audio(path) as file:
        check_channel(file, name, channel)
        rate = sample_rate or file.samplerate
        if (start, num_samples) == (0, None):
            waveform = _scaled(_one_channel(_read_all(file, name), channel), gain)
            waveform = resample(waveform, file.samplerate, rate, resampler)
            check_finite(waveform, name)
            return waveform
        total_frames = _count(*identity(path)) if file.stated_frames is None else file.stated_frames
        total = resampled_length(total_frames, file.samplerate, rate, resampler)
        stop = total if num_samples is None else start + num_samples
        if start < 0 or stop < start:
            raise UserError(f"{path}: start {start} and num_samples {num_samples} asked for, expected both at least 0")
        if stop > total and not pad_end:
            raise UserError(
                f"{path}: holds {total} samples at {rate} Hz, but samples {start} to {stop} were asked for; "
                "the file is not the one that was described; get it again, or write the manifest again"
            )
        wanted = max(0, min(stop, total) - start)
        if wanted == 0:
            return np.zeros(stop - start, dtype=np.float32)
        first, last, skipped = start, start + wanted, 0
        if file.samplerate != rate:
            first, last, skipped = _input_window(start, wanted, file.samplerate, rate, total_frames)
        waveform = _scaled(_one_channel(read_frames(file, name, last - first, first), channel), gain)
        waveform = resample(waveform, file.samplerate, rate, resampler)[skipped : skipped + wanted]
    check_finite(waveform, name)
    return np.pad(waveform, (0, stop - start - wanted)) if stop - start > wanted else waveform


def read_blocks(
    path: AudioPath, block_samples: int, channel: int | None = None, start: int = 0, stop: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the samples `start` to `stop`, or all, of an audio file at its own rate in blocks (T,) float32; the last
    one may be shorter.

    Errors are those of `read`, raised on reaching a bad block.
    """
    name = os.fspath(path)
    with open_audio(path) as file:
        check_channel(file, name, channel)
        for frames in frame_blocks(file, name, block_samples, start, stop):
            block = _one_channel(frames, channel)
            check_finite(block, name)
            yield block


def decode(source: Source) -> tuple[np.ndarray, int]:
    """Return the samples (C, T) float32 of an audio file, or of the content of one, and its rate in Hz."""
    with open_audio(source) as file:
        return _read_all(file, name_of(source)).T, file.samplerate


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
    with open_audio(path) as file:
        blocks = frame_blocks(file, os.fspath(path), _BLOCK_SAMPLES)
        return loudest_if_cancelled(blocks) if file.channels > 1 else None


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


def resample(waveform: np.ndarray, from_rate: int, to_rate: int, resampler: str = "soxr_hq") -> np.ndarray:
    """Return a waveform at another rate, of the same dtype and `resampled_length` samples.

    Args:
        resampler: "soxr_hq" (linear phase, pass band to 91 % of the lower Nyquist frequency) or "scipy_poly"
            (`scipy.signal.resample_poly` with its Kaiser window, as in the LibriMix and WSJ0-mix scripts).
    """
    length = resampled_length(waveform.shape[-1], from_rate, to_rate, resampler)
    if from_rate == to_rate:
        return waveform
    if length == 0:
        return np.zeros((*waveform.shape[:-1], 0), dtype=waveform.dtype)
    if resampler == "scipy_poly":
        from scipy.signal import resample_poly

        taps = _poly_filter(to_rate, from_rate, waveform.dtype.name)
        return resample_poly(waveform, to_rate, from_rate, axis=-1, window=taps).astype(waveform.dtype, copy=False)
    rows = [_resample_row(row, from_rate, to_rate, length) for row in waveform.reshape(-1, waveform.shape[-1])]
    return np.stack(rows).reshape(*waveform.shape[:-1], length)


def _resample_row(row: np.ndarray, from_rate: int, to_rate: int, length: int) -> np.ndarray:
    resampled = soxr.resample(row, from_rate, to_rate, quality="HQ")
    if len(resampled) < length:
        # Where the length falls between two samples, soxr's own arithmetic may round it down.
        resampled = soxr.resample(np.pad(row, (0, 1)), from_rate, to_rate, quality="HQ")
    return resampled[:length]


def resampled_length(num_samples: int, from_rate: int, to_rate: int, resampler: str = "soxr_hq") -> int:
    """Return the length after `resample`: rounded half up for "soxr_hq", up for "scipy_poly"."""
    if resampler not in RESAMPLERS:
        raise UserError(f"resampler: found {resampler!r}, expected one of {', '.join(RESAMPLERS)}")
    if resampler == "scipy_poly":
        return -(-num_samples * to_rate // from_rate)
    return (2 * num_samples * to_rate + from_rate) // (2 * from_rate)


def write(
    path: AudioPath,
    waveform: np.ndarray,
    sample_rate: int,
    subtype: Literal["FLOAT", "PCM_16"] = "FLOAT",
    rounding: Literal["floor", "nearest"] = "nearest",
) -> Path:
    """Write an audio file atomically and return its path. The same samples always give the same bytes.

    Args:
        path: its ending chooses the format (".wav", or ".flac" for PCM_16). The folder is made if it is missing.
        waveform: (T,) or (C, T).
        subtype: "FLOAT" keeps float32 values, also beyond +-1; "PCM_16" quantizes and saturates.
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


def _read_all(file: OpenFile, name: str) -> np.ndarray:
    blocks = list(frame_blocks(file, name, file.stated_frames or _BLOCK_SAMPLES))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _one_channel(frames: np.ndarray, channel: int | None) -> np.ndarray:
    if channel is None and frames.shape[1] > 1:
        return frames.mean(axis=1)
    return np.ascontiguousarray(frames[:, channel or 0])


@lru_cache(maxsize=64)
def _poly_filter(to_rate: int, from_rate: int, dtype: str) -> np.ndarray:
    """Return the filter of `scipy.signal.resample_poly`, which would design it in every call, a fifth of its time."""
    max_rate = max(to_rate, from_rate) // gcd(to_rate, from_rate)
    taps = np.sinc(np.arange(-10 * max_rate, 10 * max_rate + 1) / max_rate) * np.kaiser(20 * max_rate + 1, 5.0)
    return (taps / taps.sum()).astype(dtype)


def _scaled(waveform: np.ndarray, gain: float) -> np.ndarray:
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
