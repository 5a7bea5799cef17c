"""Synthetic sources for controlled experiments: Gaussian pulses of sinusoids with overtones, and matching noise.

An example depends on its index and the parameters alone (thesis, appendix K.1), not on the number of examples or on
earlier ones. Parameters only rescale uniform random numbers. The same index with two parameter sets therefore gives the
same example, changed only in what those parameters control.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from sepkit.errors import UserError

NoiseKind = Literal["white", "modulated", "band"]
NOISE_KINDS: tuple[str, ...] = get_args(NoiseKind)

_MODULATION_HZ = 2.0
_BAND_FILTER_ORDER = 4
# The band-pass has settled after this many periods of its lower edge.
_RING_IN_PERIODS = 20
# At four deviations a Gaussian's spectrum, which is Gaussian too, has fallen to 3e-4.
_SPECTRAL_DEVIATIONS = 4.0
# Streams of random numbers of an index: one for the speakers, one for noise.
_SOURCE_STREAM, _NOISE_STREAM = 0, 1


@dataclass(frozen=True)
class PulseParameters:
    """Ranges of an example's sources; the defaults are the training condition. Frequency ranges are one for each
    speaker.

    The thesis gives the frequency ranges, the number of pulses, the length, and the widths U(0.05, 0.3) s (appendix M).
    It does not give the range of amplitudes. It has four overtones in appendix K.1 and five in M; the default follows
    K.1. Overtone k has 1/(k + 1) of the fundamental's amplitude, as in a sawtooth. A pulse has one phase, which is
    multiplied for each overtone as the frequency is.
    """

    pulses: int = 3
    overtones: int = 4
    amplitude_range: tuple[float, float] = (0.3, 1.0)
    sigma_range_seconds: tuple[float, float] = (0.05, 0.3)
    frequency_ranges_hz: tuple[tuple[float, float], ...] = ((300.0, 400.0), (100.0, 200.0))
    seconds: float = 3.0
    sample_rate: int = 8000

    def __post_init__(self) -> None:
        for name, least in (("pulses", 1), ("overtones", 0), ("sample_rate", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name}: found {getattr(self, name)}, expected at least {least}")
        if not (math.isfinite(self.seconds) and self.num_samples >= 1):
            raise UserError(f"seconds: found {self.seconds}, expected at least one sample at {self.sample_rate} Hz")
        if not self.frequency_ranges_hz:
            raise UserError("frequency_ranges_hz: found none, expected a range for each speaker")
        ranges = {"amplitude_range": self.amplitude_range, "sigma_range_seconds": self.sigma_range_seconds}
        ranges |= {f"frequency_ranges_hz[{i}]": found for i, found in enumerate(self.frequency_ranges_hz)}
        for name, (low, high) in ranges.items():
            if not 0 < low <= high < math.inf:
                raise UserError(f"{name}: found {low} to {high}, expected two finite numbers above 0, the lower first")
        highest = max(high for _, high in self.frequency_ranges_hz)
        if highest >= self.sample_rate / 2:
            raise UserError(
                f"frequency_ranges_hz: found {highest} Hz, expected less than half of {self.sample_rate} Hz"
            )

    @property
    def num_samples(self) -> int:
        """Length in samples."""
        return round(self.seconds * self.sample_rate)

    @property
    def band_hz(self) -> tuple[float, float]:
        """The band from the lowest fundamental to the highest overtone, at most 90 % of half the sample rate."""
        highest = (self.overtones + 1) * max(high for _, high in self.frequency_ranges_hz)
        return min(low for low, _ in self.frequency_ranges_hz), min(highest, 0.45 * self.sample_rate)

    def to_plain(self) -> dict[str, Any]:
        """The fields as JSON holds them: lists in place of tuples."""
        return {field.name: _listed(getattr(self, field.name)) for field in fields(self)}


def pulse_sources(index: int, parameters: PulseParameters | None = None) -> np.ndarray:
    """Return the sources of one example, (m, T) float32, one for each frequency range.

    Each is a sum of pulses, each with its own fundamental f, amplitude a, phase p, center c and width s:

        a exp(-(t - c)^2 / (2 s^2)) sum_k sin(k (2 pi f (t - c) + p)) / k,    k = 1 ... overtones + 1

    The center lies in the segment, so at least half of a short pulse does too. Overtones whose spectrum, broadened by
    the envelope, reaches half the sample rate are left out.

    Source: VI-EMD (thesis, appendix K.1).
    """
    parameters = parameters or PulseParameters()
    time = np.arange(parameters.num_samples) / parameters.sample_rate
    sources = np.zeros((len(parameters.frequency_ranges_hz), parameters.num_samples))
    for speaker, (source, frequency_range) in enumerate(zip(sources, parameters.frequency_ranges_hz, strict=True)):
        generator = np.random.default_rng([index, _SOURCE_STREAM, speaker])
        # Drawn row by row, so that a larger number of pulses leaves the first ones unchanged.
        for draws in generator.random((parameters.pulses, 5)):
            frequency_hz = _within(frequency_range, draws[0])
            amplitude = _within(parameters.amplitude_range, draws[1])
            phase = 2 * np.pi * draws[2]
            center = parameters.seconds * draws[3]
            sigma = _within(parameters.sigma_range_seconds, draws[4])
            breadth_hz = _SPECTRAL_DEVIATIONS / (2 * np.pi * sigma)
            harmonics = [
                k
                for k in range(1, parameters.overtones + 2)
                if k == 1 or k * frequency_hz + breadth_hz < parameters.sample_rate / 2
            ]
            # sin(k x) is the imaginary part of exp(i x)^k: one sine and cosine for all of them.
            rotation = np.exp(1j * (2 * np.pi * frequency_hz * (time - center) + phase))
            powers, tone = np.ones_like(rotation), np.zeros_like(time)
            for k in harmonics:
                powers *= rotation
                tone += powers.imag / k
            source += amplitude * np.exp(-0.5 * ((time - center) / sigma) ** 2) * tone
    return sources.astype(np.float32)


def pulse_noise(index: int, kind: NoiseKind = "white", parameters: PulseParameters | None = None) -> np.ndarray:
    """Return the noise of one example, (T,) float32, for a noise amplitude of 1.

    "white" is Gaussian with a deviation of 1. The others are made from the same white noise. "modulated" multiplies it
    by sqrt(2/3) (1 + cos(2 pi 2 Hz t + p)), p random, which keeps the mean power. "band" filters it with a Butterworth
    band-pass from the lowest fundamental to the highest overtone: the density there is that of the white noise, so the
    total power is lower. The thesis leaves both powers open. Noise is independent of the example's sources.

    Source: VI-EMD (thesis, appendices K.1 and M).
    """
    parameters = parameters or PulseParameters()
    if kind not in NOISE_KINDS:
        raise UserError(f"noise kind: found {kind!r}, expected one of {', '.join(NOISE_KINDS)}")
    generator = np.random.default_rng([index, _NOISE_STREAM])
    phase = 2 * np.pi * generator.random()
    noise = generator.standard_normal(parameters.num_samples)
    if kind == "modulated":
        time = np.arange(parameters.num_samples) / parameters.sample_rate
        noise *= np.sqrt(2 / 3) * (1 + np.cos(2 * np.pi * _MODULATION_HZ * time + phase))
    elif kind == "band":
        from scipy.signal import butter, sosfilt

        low, high = parameters.band_hz
        sections = butter(_BAND_FILTER_ORDER, (low, high), "bandpass", fs=parameters.sample_rate, output="sos")
        ring_in = math.ceil(_RING_IN_PERIODS * parameters.sample_rate / low)
        before = generator.standard_normal(ring_in)
        noise = np.asarray(sosfilt(sections, np.concatenate([before, noise])))[ring_in:]
    return noise.astype(np.float32)


def _within(bounds: tuple[float, float], draw: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * draw


def _listed(value: Any) -> Any:
    return [_listed(element) for element in value] if isinstance(value, tuple) else value
