"""Read audio files with seek and resampling, and write them.

Positions and lengths are in samples at the requested rate, after resampling, so a crop means the same whatever the
file's own rate.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
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
    ReadThrough,
    check_channel,
    check_finite,
    check_holds_samples,
    open_audio,
    read_or_raise,
    write_flac,
)
from sepkit.data.wav_header import wav_header
from sepkit.errors import UserError
from sepkit.files import atomic_output

__all__ = [
    "AUDIO_SUFFIXES",
    "RESAMPLERS",
    "AudioInfo",
    "Resampler",
    "decode",
    "encode_sound",
    "info",
    "quantize_pcm16",
    "read",
    "read_blocks",
    "resample",
    "resampled_length",
    "without_undecodable",
    "write",
]

Resampler = Literal["soxr_hq", "scipy_poly"]
RESAMPLERS: tuple[str, ...] = get_args(Resampler)

AUDIO_SUFFIXES = FFMPEG_SUFFIXES | {
    ".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".au", ".w64", ".rf64", ".sph"
}  # fmt: skip
"""File name endings, in lower case, of the formats that can be read: by libsndfile, or by ffmpeg if it is installed."""

# Both resamplers' filters end within this many samples of the slower of the two rates.
_CONTEXT_SAMPLES = 256
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
    """Return the header of an audio file; the samples are not read."""
    with open_audio(path) as file:
        return AudioInfo(file.samplerate, file.frames, file.channels, file.subtype)


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
    resampled file: exactly if nothing is resampled and for "scipy_poly", within 1e-6 of full scale for "soxr_hq".
    Samples outside the part are not checked. A wav whose data end early is as long as its data, whatever its header
    says; only a manifest or a partner file shows that something is missing.

    Args:
        num_samples: None: to the end of the file.
        channel: which channel to read, from 0; None: the mean of all channels.
        pad_end: whether to give zeros past the end of the file instead of raising.
        gain: applied before resampling.
    """
    with open_audio(path) as file:
        rate = sample_rate or file.samplerate
        total = resampled_length(file.frames, file.samplerate, rate, resampler)
        stop = total if num_samples is None else start + num_samples
        if start < 0 or stop < start:
            raise UserError(f"{path}: start {start} and num_samples {num_samples} asked for, expected both at least 0")
        if stop > total and not pad_end:
            raise UserError(
                f"{path}: holds {total} samples at {rate} Hz, but samples {start} to {stop} were asked for; "
                "the file is not the one that was described; get it again, or write the manifest again"
            )
        check_channel(file, path, channel)
        wanted = max(0, min(stop, total) - start)
        if wanted == 0:
            return np.zeros(stop - start, dtype=np.float32)
        if file.samplerate == rate:
            waveform = _scaled(_read_frames(file, path, start, wanted, channel), gain)
        else:
            first, last, skipped = _input_window(start, wanted, file.samplerate, rate, file.frames)
            waveform = _scaled(_read_frames(file, path, first, last - first, channel), gain)
            waveform = resample(waveform, file.samplerate, rate, resampler)[skipped : skipped + wanted]
    check_finite(waveform, path)
    return np.pad(waveform, (0, stop - start - wanted)) if stop - start > wanted else waveform


def read_blocks(path: AudioPath, block_samples: int, channel: int | None = None) -> Iterator[np.ndarray]:
    """Yield the samples of an audio file at its own rate in blocks (T,) float32; the last one may be shorter.

    Errors are those of `read`, raised on reaching a bad block.
    """
    with open_audio(path, ReadThrough) as file:
        check_channel(file, path, channel)
        for start in range(0, file.frames, block_samples):
            frames = read_or_raise(file, path, min(block_samples, file.frames - start), "float32", position=start)
            block = _one_channel(frames, channel)
            check_finite(block, path)
            yield block


def decode(data: bytes | io.BytesIO, channel: int | None = None) -> tuple[np.ndarray, int]:
    """Return the samples (T,) float32 of an audio file in memory, and its rate in Hz."""
    name = "bytes"
    try:
        file = soundfile.SoundFile(io.BytesIO(data) if isinstance(data, bytes) else data)
    except (soundfile.LibsndfileError, TypeError, OSError) as error:
        reason = str(getattr(error, "error_string", error)).rstrip(".")
        line = f"{name}: cannot be read as audio ({reason}); expected what a wav or flac file holds"
        raise UserError(line) from error
    with file:
        check_holds_samples(file, name)
        check_channel(file, name, channel)
        waveform = _one_channel(read_or_raise(file, name, file.frames, "float32"), channel)
        check_finite(waveform, name)
        return waveform, file.samplerate


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
    path, waveform = Path(path), np.asarray(waveform)
    suffix = path.suffix.lower()
    if (suffix, subtype) not in {(".wav", "FLOAT"), (".wav", "PCM_16"), (".flac", "PCM_16")}:
        raise ValueError(
            f"{path}: {subtype} in {suffix or 'a file without ending'} cannot be written; use .wav, or .flac for PCM_16"
        )
    if waveform.ndim not in (1, 2):
        raise ValueError(f"{path}: waveform of shape {waveform.shape}, expected (T,) or (C, T)")
    if not np.isfinite(waveform).all():
        raise ValueError(f"{path}: samples that are not finite numbers are not written")
    samples = waveform.astype(np.float32) if subtype == "FLOAT" else quantize_pcm16(waveform, rounding)
    with atomic_output(path) as temporary:
        if suffix == ".flac":
            with write_flac(path, temporary, sample_rate, len(np.atleast_2d(samples))) as file:
                file.write(samples.T)
        else:
            _write_wav(temporary, samples, sample_rate, subtype)
    return path


def _write_wav(path: Path, samples: np.ndarray, sample_rate: int, subtype: str) -> None:
    samples = np.atleast_2d(samples)
    with path.open("wb") as file:
        file.write(wav_header(path, sample_rate, samples.shape[1], subtype, len(samples)))
        file.write(samples.T.astype("<f4" if subtype == "FLOAT" else "<i2").tobytes())


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


def quantize_pcm16(waveform: np.ndarray, rounding: Literal["floor", "nearest"] = "nearest") -> np.ndarray:
    """Return a waveform as int16 with saturation: full scale 1.0 becomes 32767, -1.0 becomes -32768.

    Rounding by "floor" is `floor(round(2^31 x) / 2^16)`, as python-soundfile, and with it LibriMix, writes wav: this
    differs from `floor(2^15 x)` only within 2^-32 below the next value. "nearest" rounds half to even, as the WHAM and
    pywsj0-mix scripts do.
    """
    if rounding == "floor":
        rounded = np.floor(np.round(waveform * np.float32(2**31)) / np.float32(2**16))
    else:
        rounded = np.round(waveform * np.float32(2**15))
    return np.clip(rounded, -32768, 32767).astype(np.int16)


def _read_frames(file: OpenFile, path: AudioPath, start: int, count: int, channel: int | None) -> np.ndarray:
    return _one_channel(read_or_raise(file, path, count, "float32", start), channel)


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
