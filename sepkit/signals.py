"""Shared measurements of signals in NumPy: SI-SDR of all pairs, mel bands, and speech activity by energy.

Costs that need a gradient (`sepkit.objectives.costs`) and the metric for evaluation, which also takes tensors
(`sepkit.evaluation.metrics`), have their own definitions of SI-SDR.
"""

import numpy as np

# Ratios are limited to this range, dB; beyond it they measure float32 and the edges of windows.
LEAST_DB, MOST_DB = -60.0, 60.0

_FRAME_SECONDS = 0.032


def ratio_db(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return 10 log10(part / whole) of energies, limited to -60 to 60 dB.

    Args:
        part: Energies; negative ones, which are rounding errors, count as 0.
        whole: Energies, of a shape that broadcasts with `part`.

    >>> ratio_db(np.array([1.0, 0.0, 1.0]), np.array([10.0, 1.0, 0.0]))
    array([-10., -60.,  60.])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(10 * np.log10(np.maximum(part, 0) / whole), LEAST_DB, MOST_DB)


def si_sdr_of_cosines_db(squared: np.ndarray) -> np.ndarray:
    """Return the SI-SDR of signals by their squared cosines, 10 log10(c^2 / (1 - c^2)), limited to -60 to 60 dB.

    Args:
        squared: Squared cosines, 0 to 1, between estimates and sources; with their means removed: squared correlations.

    >>> float(si_sdr_of_cosines_db(np.array(0.5)))
    0.0
    """
    return ratio_db(squared, 1 - squared)


def pairwise_si_sdr_db(estimates: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Return the SI-SDR of every estimate to every source, (n, m), limited to -60 to 60 dB.

    Means are removed. A constant estimate or source scores -60.

    Args:
        estimates: Signals, (n, T).
        sources: Signals, (m, T).

    >>> sources = np.array([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]])
    >>> pairwise_si_sdr_db(sources + 0.1 * sources[::-1], sources).round(1)
    array([[ 20., -20.],
           [-20.,  20.]])

    Source: Le Roux et al., "SDR - half-baked or well done?", ICASSP 2019, eq. 4.
    """
    a, b = (x.astype(np.float64) - x.mean(-1, keepdims=True, dtype=np.float64) for x in (estimates, sources))
    energies = np.outer(np.square(a).sum(-1), np.square(b).sum(-1))
    squared = np.divide(np.square(a @ b.T), energies, out=np.zeros_like(energies), where=energies > 0)
    return si_sdr_of_cosines_db(squared)


def triangular_bands(edges: np.ndarray, bins: np.ndarray) -> np.ndarray:
    """Return weights of the bins of a spectrum, (B, K): triangles from each edge to the next but one, 1 between.

    Args:
        edges: Ascending positions on any scale, (B + 2,).
        bins: Positions of the bins on the same scale, (K,).

    >>> triangular_bands(np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.5, 1.0, 1.5, 2.0]))
    array([[0. , 0.5, 1. , 0.5, 0. ]])
    """
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    return np.clip(np.minimum(rising, falling), 0, None)


def hz_to_mel(hz: np.ndarray | float) -> np.ndarray:
    """Return frequencies on the mel scale, 2595 log10(1 + f / 700).

    Args:
        hz: Frequencies, Hz.

    >>> round(float(hz_to_mel(1000.0)))
    1000

    Source: O'Shaughnessy, "Speech communication: human and machine", 1987; HTK and Kaldi.
    """
    return 2595 * np.log10(1 + np.asarray(hz) / 700)


def mel_bands(
    frame: int,
    sample_rate: int,
    bands: int,
    lowest_hz: float,
    highest_hz: float | None = None,
    nearest_weight: float = 1e-3,
) -> np.ndarray:
    """Return weights of the bins of a spectrum, (bands, frame // 2 + 1): triangles on the mel scale.

    Args:
        frame: Length of the Fourier transform, samples.
        sample_rate: Sampling rate, Hz.
        bands: Number of bands.
        lowest_hz: Beginning of the first band, Hz.
        highest_hz: End of the last band, Hz; None: 95 % of the Nyquist frequency.
        nearest_weight: Added weight of the bin nearest to a band's center: narrow bands may lie between two bins.
    """
    highest_hz = 0.475 * sample_rate if highest_hz is None else highest_hz
    edges = np.linspace(hz_to_mel(lowest_hz), hz_to_mel(highest_hz), bands + 2)
    bins = hz_to_mel(np.fft.rfftfreq(frame, 1 / sample_rate))
    weights = triangular_bands(edges, bins)
    weights[np.arange(bands), np.abs(bins - edges[1:-1, None]).argmin(-1)] += nearest_weight
    return weights


def frame_powers(waveforms: np.ndarray, frame: int) -> np.ndarray:
    """Return the mean squares of whole frames that do not overlap, (..., T // frame) float64.

    Args:
        waveforms: Signals, (..., T).
        frame: Length of a frame, samples, at least 1.

    >>> frame_powers(np.array([1.0, -1.0, 2.0, 2.0, 9.0]), 2)
    array([1., 4.])
    """
    count = waveforms.shape[-1] // frame
    frames = waveforms[..., : count * frame].astype(np.float64).reshape(*waveforms.shape[:-1], count, frame)
    return np.einsum("...ft,...ft->...f", frames, frames) / frame


def active_frames(powers: np.ndarray, below_db: float, percentile: float = 100) -> np.ndarray:
    """Return in which frames there is speech, by their energy, (..., F) bool; digital silence never is.

    Args:
        powers: Powers or energies of the frames of one signal each, (..., F), float32 or float64.
        below_db: Frames further below the loud ones are pauses, dB.
        percentile: Percentile of the levels that counts as loud, 100 for the loudest frame; less where a click must
            not decide.

    >>> active_frames(np.array([0.0, 1e-5, 0.1, 1.0]), below_db=40.0)
    array([False, False,  True,  True])
    """
    if not powers.size:
        return np.zeros(powers.shape, bool)
    levels = 10 * np.log10(np.maximum(powers, np.finfo(powers.dtype).tiny))
    loud = np.percentile(levels, percentile, axis=-1, keepdims=True)
    return (levels > loud - below_db) & (powers > 0)


def active_level(waveform: np.ndarray, sample_rate: int) -> float:
    """Return the root mean square of a recording during speech; 0 for silence.

    It is taken over the frames of 32 ms within 40 dB of the loudest frame; others are pauses. That is far down, so that
    the level of clean speech contains its quiet sounds too.

    Args:
        waveform: Samples, (T,).
        sample_rate: Sampling rate, Hz.

    >>> active_level(np.array([0.5, -0.5]), 8000)
    0.5
    """
    if waveform.size == 0:
        return 0.0
    powers = frame_powers(waveform, min(len(waveform), max(1, round(_FRAME_SECONDS * sample_rate))))
    active = active_frames(powers, below_db=40.0)
    return float(np.sqrt(powers[active].mean())) if active.any() else 0.0
