"""Profiles of voices: numbers that identify the speaker of each estimate in a part of a recording.

Two traits of a voice are measured in frames where one estimate is much stronger than the others: cepstra (the shape of
the voice's spectrum) and pitch. A speaker's profile is the mean of a trait over the chunks assigned to them; near
chunks count more than far ones. An estimate's mean of a trait is modeled as Gaussian about that of its speaker. Its
covariance is that of frames inside chunks over the number of independent frames, plus some drift of the voice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sepkit.inference.diarization.spectra import cosine_transform
from sepkit.signals import mel_bands

MEMORY_SECONDS = 600.0
"""A chunk counts 1/e in the profile of speakers so far away in time."""

_FRAME_SECONDS, _HOP_SECONDS, _PITCH_FRAME_SECONDS = 0.032, 0.016, 0.064
_BANDS, _CEPSTRA = 24, 16
_LOWEST_HZ = 80.0
_PITCH_RANGE_HZ = (70.0, 350.0)
# Frames count if an estimate has this share of all estimates' energy, and this share of the recording's mean power.
_DOMINANT_SHARE, _LOUD_RATIO = 0.8, 10**-1.5
# Limit of the autocorrelation: voiced speech is above, most of the rest below.
_VOICED = 0.55


@dataclass(frozen=True)
class Trait:
    """Reliability of a trait's mean over frames.

    Args:
        per_second: independent observations in a second of frames; neighboring frames are similar.
        drift: variance of a chunk's mean about the speaker's, for any length, in units of that inside chunks.
        spread: precision, in the same units, of the mean over all speakers as a guess for one.
    """

    name: str
    per_second: float
    drift: float
    spread: float


TRAITS = (Trait("cepstra", 7.0, 0.12, 4.0), Trait("pitch", 7.0, 0.1, 0.4))
"""Measured on clean speech (utterances of one speaker against each other, speakers against each other), with twice the
drift: estimates hold something of the others too. Their exact values matter little as long as they are not
overconfident."""


@dataclass
class TraitStatistics:
    """A trait in one chunk.

    Args:
        seconds: (n,) of frames that count, of each estimate.
        means: (n, D) over them; zeros if there are none.
        scatter: (D, D) sum over frames of the products of deviations from the means, all estimates together.
        frames: total number.
    """

    seconds: np.ndarray
    means: np.ndarray
    scatter: np.ndarray
    frames: int


def measure_voices(estimates: np.ndarray, sample_rate: int, mean_power: float) -> dict[str, TraitStatistics]:
    """Return the traits of the voices in one chunk, by name.

    Args:
        estimates: (n, T).
        mean_power: Mean power of the sum of estimates over the recording so far; much weaker frames are no speech.
    """
    frame, hop = round(_FRAME_SECONDS * sample_rate), round(_HOP_SECONDS * sample_rate)
    long = max(frame, round(_PITCH_FRAME_SECONDS * sample_rate))
    if estimates.shape[-1] < long:
        estimates = np.pad(estimates, ((0, 0), (0, long - estimates.shape[-1])))
    # Long frames are centered on short ones.
    inside = (long - frame) // 2
    long_frames = np.lib.stride_tricks.sliding_window_view(estimates, long, axis=1)[:, ::hop]
    frames = long_frames[..., inside : inside + frame]
    energies = np.einsum("nft,nft->nf", frames, frames, dtype=np.float64)
    counts = (energies > _DOMINANT_SHARE * energies.sum(0)) & (energies > _LOUD_RATIO * mean_power * frame)
    cepstra, pitches = [], []
    for of_one, of_one_long, count in zip(frames, long_frames, counts, strict=True):
        cepstra.append(_cepstra(of_one[count], sample_rate))
        pitches.append(_log_pitch(of_one_long[count], sample_rate))
    return {"cepstra": _summarize(cepstra, _CEPSTRA), "pitch": _summarize(pitches, 1)}


def _summarize(values: Sequence[np.ndarray], dimensions: int) -> TraitStatistics:
    """Summarize (F, D) of each estimate."""
    means = np.stack([rows.mean(0) if len(rows) else np.zeros(dimensions) for rows in values])
    deviations = np.concatenate([rows - mean for rows, mean in zip(values, means, strict=True)])
    seconds = _HOP_SECONDS * np.array([len(rows) for rows in values], np.float64)
    return TraitStatistics(seconds, means, deviations.T @ deviations, len(deviations))


def _cepstra(frames: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return (F, D) mel cepstra without the first, which is the level."""
    window, bands, cosines = _cepstral_analysis(frames.shape[-1], sample_rate)
    spectra = np.fft.rfft(frames * window, axis=-1)
    powers = (np.square(spectra.real) + np.square(spectra.imag)) @ bands.T
    if not len(powers):
        return np.zeros((0, _CEPSTRA))
    # Bands 50 dB below a frame's strongest contain remainders of other voices.
    return np.log(np.maximum(powers, 1e-5 * powers.max(-1, keepdims=True) + np.finfo(np.float64).tiny)) @ cosines.T


@lru_cache(maxsize=8)
def _cepstral_analysis(frame: int, sample_rate: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return window (T,), triangular mel bands (bands, bins) and cosines (D, bands)."""
    bands = mel_bands(frame, sample_rate, _BANDS, _LOWEST_HZ)
    return np.hanning(frame + 2)[1:-1], bands, cosine_transform(_BANDS, _CEPSTRA)


def _log_pitch(frames: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return (V, 1) natural logarithm of the pitch, Hz, of the frames that are voiced.

    Source: Boersma, "Accurate short-term analysis of the fundamental frequency", 1993 (autocorrelation over that of the
    window).
    """
    if not len(frames):
        return np.zeros((0, 1))
    window, shortest, of_window, preference = _pitch_analysis(frames.shape[-1], sample_rate)
    own = _autocorrelation((frames - frames.mean(-1, keepdims=True)) * window, len(of_window) + shortest)
    with np.errstate(divide="ignore", invalid="ignore"):
        normalized = own[:, shortest:] / (own[:, :1] * of_window)
    candidates = np.nan_to_num(normalized)
    best = (candidates - preference).argmax(-1)
    voiced = candidates[np.arange(len(candidates)), best] > _VOICED
    return np.log(sample_rate / (shortest + best[voiced]))[:, None]


@lru_cache(maxsize=8)
def _pitch_analysis(length: int, sample_rate: int) -> tuple[np.ndarray, int, np.ndarray, np.ndarray]:
    """Return window (T,), the shortest lag, and for each lag from it on the window's autocorrelation over that at lag 0
    and what is taken off a candidate."""
    window = np.hanning(length + 2)[1:-1].astype(np.float32)
    shortest, longest = (int(sample_rate / hz) for hz in reversed(_PITCH_RANGE_HZ))
    lags = np.arange(shortest, min(longest, length - 1) + 1)
    of_window = _autocorrelation(window, int(lags[-1]) + 1)
    # Twice the period fits as well as once, so shorter periods are preferred.
    return window, shortest, of_window[shortest:] / of_window[0], (0.1 * np.log2(lags / lags[0])).astype(np.float32)


def _autocorrelation(signals: np.ndarray, lags: int) -> np.ndarray:
    """Return the products of signals (..., T) with themselves, moved by 0, 1, ... samples, (..., lags)."""
    # Of this many samples, products around the end do not reach the lags. Multiples of 128 are fast.
    size = -(-(signals.shape[-1] + lags - 1) // 128) * 128
    spectra = np.fft.rfft(signals, size)
    return np.fft.irfft(np.square(spectra.real) + np.square(spectra.imag), size)[..., :lags]


# ------------------------------------------------------------------------------------------------------------ profiles


_State = tuple[np.ndarray, np.ndarray]


class Profiles:
    """The evidence of the voices of a recording's chunks, for any assignment of estimates to speakers.

    Args:
        chunks: results of `measure_voices`.
        hop_seconds: Time from one chunk's beginning to the next, seconds.
    """

    def __init__(self, chunks: Sequence[Mapping[str, TraitStatistics]], hop_seconds: float) -> None:
        self._keep = float(np.exp(-hop_seconds / MEMORY_SECONDS))
        self._traits = [
            found for trait in TRAITS if (found := _standardize([c[trait.name] for c in chunks], trait)) is not None
        ]
        self._speakers = len(chunks[0][TRAITS[0].name].seconds) if chunks else 0

    def running(self) -> RunningProfiles:
        """Return profiles without any chunk yet, for going through the recording."""
        return RunningProfiles(self._traits, self._speakers, self._keep)

    def log_likelihoods(self, orders: np.ndarray) -> np.ndarray:
        """Return (K, n, n) nats, [k, i, j] of estimate i of chunk k being speaker j, profiled by all other chunks.

        Args:
            orders: (K, n), [k, j] which estimate of chunk k is speaker j.
        """
        before, after = self.running(), self.running()
        ahead: list[list[_State]] = []
        for k in range(len(orders) - 1, -1, -1):
            ahead.append(after.states)
            after.add(k, orders[k])
        evidence = np.zeros((len(orders), self._speakers, self._speakers))
        for k, later in enumerate(reversed(ahead)):
            evidence[k] = before.log_likelihood(k, later)
            before.add(k, orders[k])
        return evidence


class RunningProfiles:
    """Profiles of the speakers of the chunks that were added, the last one counting most; see `Profiles`.

    Args:
        keep: share of all precision that is left after each chunk is added.
    """

    def __init__(self, traits: Sequence[_Standardized], speakers: int, keep: float) -> None:
        self._traits, self._keep, self._speakers = traits, keep, speakers
        self.states: list[_State] = [
            (np.zeros(speakers), np.zeros((speakers, trait.means.shape[-1]))) for trait in traits
        ]
        """Of each trait: precision (n,), and precision times mean (n, D), of each speaker."""

    def add(self, chunk: int, order: np.ndarray) -> None:
        """Add a chunk, whose estimate `order[j]` is speaker j."""
        states = []
        for trait, (precision, weighted) in zip(self._traits, self.states, strict=True):
            own = trait.precisions[chunk][order]
            states.append(
                (self._keep * (precision + own), self._keep * (weighted + own[:, None] * trait.means[chunk][order]))
            )
        self.states = states

    def log_likelihood(self, chunk: int, others: Sequence[_State] | None = None) -> np.ndarray:
        """Return (n, n) nats, [i, j] of estimate i of a chunk being speaker j; up to a constant for each i.

        `others` are further states that count.
        """
        evidence = np.zeros((self._speakers, self._speakers))
        for number, trait in enumerate(self._traits):
            precision, weighted = self.states[number]
            if others is not None:
                precision, weighted = precision + others[number][0], weighted + others[number][1]
            own = trait.precisions[chunk]
            heard = own > 0
            known = precision + trait.spread
            variance = 1 / own[heard][:, None] + 1 / known
            differences = trait.means[chunk][heard][:, None] - (weighted / known[:, None])
            squares = np.square(differences).sum(-1)
            evidence[heard] -= 0.5 * (squares / variance + differences.shape[-1] * np.log(variance))
        return evidence


@dataclass(frozen=True)
class _Standardized:
    """Means (K, n, D) in units of frames' deviations inside chunks, and their precisions (K, n): 0 where unknown."""

    means: np.ndarray
    precisions: np.ndarray
    spread: float


def _standardize(chunks: Sequence[TraitStatistics], trait: Trait) -> _Standardized | None:
    """Return None if too few frames count to estimate their variance."""
    frames = sum(chunk.frames for chunk in chunks)
    if not chunks or frames < 10 * chunks[0].means.shape[-1]:
        return None
    scatter = np.stack([chunk.scatter for chunk in chunks]).sum(0) / frames
    dimensions = len(scatter)
    scatter = scatter + (1e-3 * np.trace(scatter) / dimensions + 1e-9) * np.eye(dimensions)
    seconds = np.stack([chunk.seconds for chunk in chunks])
    means = np.stack([chunk.means for chunk in chunks])
    center = (seconds[..., None] * means).sum((0, 1)) / seconds.sum()
    whitened = np.linalg.solve(np.linalg.cholesky(scatter), (means - center).reshape(-1, dimensions).T).T
    with np.errstate(divide="ignore"):
        precisions = 1 / (1 / (trait.per_second * seconds) + trait.drift)
    return _Standardized(whitened.reshape(means.shape), precisions, trait.spread)
