"""Mixtures from manifest entries: sources with gains and offsets, and noise."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry
from sepkit.errors import UserError


@dataclass
class Mixed:
    """A mixture (T,) with its sources (m, T) and noise (T,), as loud as in the mixture; noise None: absent or
    unknown."""

    mixture: np.ndarray
    sources: np.ndarray
    noise: np.ndarray | None = None


def mix_entry(entry: MixtureEntry, start: int = 0, num_samples: int | None = None) -> Mixed:
    """Return the mixture that a manifest entry describes, or the part of it from `start` on.

    Without a recorded mixture it is `sum_i gain_i source_i (+ gain noise)`, summed in float32 in the entry's order.
    Only the part asked for is read. A source is silent before its `offset` and after its end. With the resampler
    "scipy_poly" gains come before resampling, so that results equal those of LibriMix's scripts in every bit.
    UserError: a recorded mixture, a source with `num_samples`, or any source of a "min" mixture at offset 0 is shorter
    than the entry says.
    """
    count = entry.num_samples - start if num_samples is None else num_samples
    if start < 0 or count < 0 or start + count > entry.num_samples:
        raise ValueError(f"samples {start} to {start + count} of {entry.id}, which has {entry.num_samples}")
    sources = np.zeros((len(entry.sources), count), dtype=np.float32)
    for row, source in zip(sources, entry.sources, strict=True):
        _add_source(row, entry, source, start)
    if entry.mixture is not None:
        mixture = audio.read(entry.resolve(entry.mixture), start, count, entry.sample_rate, entry.resampler)
        return Mixed(mixture, sources)
    mixture = sources[0].copy()
    for row in sources[1:]:
        mixture += row
    if entry.noise is None:
        return Mixed(mixture, sources)
    noise = _read_noise(entry, entry.noise, start, count)
    mixture += noise
    return Mixed(mixture, sources, noise.astype(np.float32, copy=False))


def place(waveform: np.ndarray, offset: int, num_samples: int) -> np.ndarray:
    """Return the waveform from an offset on, cut at the end, and zeros elsewhere, (num_samples,).

    Args:
        waveform: Samples, (T,).
        offset: First sample in the result.
        num_samples: Length of the result.

    >>> place(np.array([1, 2, 3]), 1, 3)
    array([0, 1, 2])
    """
    placed = np.zeros(num_samples, dtype=waveform.dtype)
    stop = min(num_samples, offset + len(waveform))
    placed[offset:stop] = waveform[: max(0, stop - offset)]
    return placed


def extend_repeat(noise: np.ndarray, num_samples: int, sample_rate: int) -> np.ndarray:
    """Return noise repeated end to end, (num_samples,)."""
    return np.resize(noise, num_samples)


def extend_librimix(noise: np.ndarray, num_samples: int, sample_rate: int) -> np.ndarray:
    """Return noise of at least 0.5 s repeated with cross-fades as in LibriMix, (num_samples,); longer noise is only
    cut.

    The last 0.5 s of the result so far and the first 0.5 s of the noise cross-fade with the halves of a Hann window of
    1 s (both halves hold its peak), until it is long enough. Sums are float64, as in the original.
    """
    if len(noise) >= num_samples:
        return noise[:num_samples]
    check_librimix_extends(len(noise), sample_rate)
    window = np.hanning(sample_rate + 1)
    rising = window[: len(window) // 2 + 1]
    fade = len(rising)
    extended = noise
    while len(extended) < num_samples:
        seam = extended[-fade:] * rising[::-1] + noise[:fade] * rising
        extended = np.concatenate([extended[:-fade], seam, noise[fade:]])
    return extended[:num_samples]


def check_librimix_extends(num_samples: int, sample_rate: int) -> None:
    """Raise UserError for noise that is too short for `extend_librimix`."""
    if num_samples <= (fade := (sample_rate + 1) // 2 + 1):
        raise UserError(f"noise of {num_samples} samples: LibriMix extends only noise over {fade} samples (0.5 s)")


EXTENSIONS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "repeat": extend_repeat,
    "librimix": extend_librimix,
}
"""Rules that `noise.extend` may name: (noise at its own rate, samples wanted, its rate) -> noise of that length."""


def _add_source(row: np.ndarray, entry: MixtureEntry, source: SourceEntry, start: int) -> None:
    """Fill `row`, which holds the mixture from `start` on, with a source's samples."""
    begin = max(start, source.offset)
    stop = start + len(row)
    must_last = entry.mode == "min" and source.offset == 0
    if source.num_samples is not None:
        stop, must_last = min(stop, source.offset + source.num_samples), True
    if stop <= begin:
        return
    samples = _read_scaled(entry, source, source.start + begin - source.offset, stop - begin, pad_end=not must_last)
    row[begin - start : stop - start] = samples


# A resampled crop that stops more than this many samples, at either rate, before the noise ends does not depend on it.
_END_SAMPLES = 512


def _read_noise(entry: MixtureEntry, noise: NoiseEntry, start: int, count: int) -> np.ndarray:
    """Return the noise from `start` on, (count,): float64 if it was extended, so that the sum is rounded only once."""
    if noise.extend is not None and noise.extend not in EXTENSIONS:
        raise UserError(
            f"mixture {entry.id!r}: noise.extend is {noise.extend!r}, expected one of {', '.join(EXTENSIONS)}, or null"
        )
    path, begin = entry.resolve(noise.path), noise.start + start
    if (noise.extend is None and noise.file_samples is None) or _ends_later(entry, noise, begin + count):
        return _read_scaled(entry, noise, begin, count, pad_end=True)
    native_rate = audio.info(path).sample_rate
    wanted = noise.file_samples or _extended_length(entry, noise, native_rate)
    whole = audio.read(path, 0, min(wanted, audio.info(path).num_samples), channel=noise.channel)
    gain_first = entry.resampler == "scipy_poly"
    if noise.extend is not None and len(whole) < wanted:
        whole = EXTENSIONS[noise.extend](whole, wanted, native_rate)
    if gain_first:
        whole = whole * noise.gain
    fitted = audio.resample(whole, native_rate, entry.sample_rate, entry.resampler)[begin : begin + count]
    return place(fitted if gain_first else fitted * noise.gain, 0, count)


def _ends_later(entry: MixtureEntry, noise: NoiseEntry, stop: int) -> bool:
    """Whether the noise's end is so far behind sample `stop` that the samples before do not depend on it."""
    if noise.file_samples is None or noise.extend is not None:
        return False
    header = audio.info(entry.resolve(noise.path))
    end = min(noise.file_samples, header.num_samples) * entry.sample_rate // header.sample_rate
    return stop + _END_SAMPLES * max(1, entry.sample_rate // header.sample_rate) < end


def _read_scaled(
    entry: MixtureEntry, part: SourceEntry | NoiseEntry, begin: int, count: int, pad_end: bool
) -> np.ndarray:
    gain_first = entry.resampler == "scipy_poly"
    path, gain = entry.resolve(part.path), part.gain if gain_first else 1.0
    samples = audio.read(path, begin, count, entry.sample_rate, entry.resampler, part.channel, pad_end, gain)
    return samples if gain_first else samples * np.float32(part.gain)


def _extended_length(entry: MixtureEntry, noise: NoiseEntry, native_rate: int) -> int:
    """Return the length, at `native_rate`, that noise is extended to: the longest source, as in LibriMix, if enough."""
    headers = [audio.info(entry.resolve(source.path)) for source in entry.sources]
    longest = max(audio.resampled_length(h.num_samples, h.sample_rate, native_rate, entry.resampler) for h in headers)
    needed = noise.start + entry.num_samples
    if audio.resampled_length(longest, native_rate, entry.sample_rate, entry.resampler) >= needed:
        return longest
    return -(-needed * native_rate // entry.sample_rate)
