"""Transmission channels: the band limits, codecs and clipping that recordings have passed through, and how microphones
and rooms color them."""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sepkit.config import DynamicMixingConfig

# Shares among the mixtures that pass through a channel. Telephones cut both ends of the band; recorders only one.
_HIGHPASS_SHARE, _LOWPASS_SHARE = 0.85, 0.6
# Peaks are this far below full scale when they are coded, dB: line levels differ, and the error of G.711 is relative.
_HEADROOM_DB = (0.0, 30.0)
# Share of the samples that mild clipping limits.
_CLIPPED_SHARE = (0.0005, 0.02)
# Of a random coloring.
_COSINES = 4


@dataclass(frozen=True)
class _Codec:
    """A codec of libsndfile: its container, its sample format, and its compression level from 0 to 1, if it has one."""

    container: str
    subtype: str
    compression: float | None = None
    rates: tuple[int, ...] | None = None


CODECS: dict[str, _Codec] = {
    "mu_law": _Codec("WAV", "ULAW"),
    "a_law": _Codec("WAV", "ALAW"),
    "gsm": _Codec("WAV", "GSM610", rates=(8000,)),
    "mp3": _Codec("MP3", "MPEG_LAYER_III", 0.99, (8000, 16000, 22050, 24000, 32000, 44100, 48000)),
    "opus": _Codec("OGG", "OPUS", 0.9, (8000, 12000, 16000, 24000, 48000)),
    "opus_low": _Codec("OGG", "OPUS", 1.0, (8000, 12000, 16000, 24000, 48000)),
}
"""Codecs by name: those of telephone lines and of files of low bit rate."""
_CODEC_WEIGHTS = {"mu_law": 6.0, "a_law": 2.0, "gsm": 2.0, "mp3": 1.5, "opus": 1.0, "opus_low": 1.0}


def band_gains(
    num_samples: int, sample_rate: int, highpass: tuple[float, float] | None, lowpass: tuple[float, float] | None
) -> np.ndarray:
    """Return the gains of a band limit for the bins of `rfft`, (num_samples // 2 + 1,) float64.

        |H(f)| = (1 + (f_h / f)^(2 p_h))^(-1/2) (1 + (f / f_l)^(2 p_l))^(-1/2)

    Each factor is the magnitude of an analog Butterworth filter of order p; the phase is zero.

    Args:
        num_samples: Length of the transformed signal, samples.
        sample_rate: Sampling rate, Hz.
        highpass: Cutoff frequency f_h, Hz, and order p_h; None: no high-pass filter.
        lowpass: Cutoff frequency f_l, Hz, and order p_l; None: no low-pass filter.
    """
    frequencies = np.fft.rfftfreq(num_samples, 1 / sample_rate)
    gains = np.ones_like(frequencies)
    # High orders overflow to infinity, which is a gain of 0.
    with np.errstate(divide="ignore", over="ignore"):
        if highpass is not None:
            gains /= np.sqrt(1 + (highpass[0] / frequencies) ** (2 * highpass[1]))
        if lowpass is not None:
            gains /= np.sqrt(1 + (frequencies / lowpass[0]) ** (2 * lowpass[1]))
    return gains


def band_limit(waveforms: np.ndarray, gains: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return waveforms (..., T) filtered by the same gains, float32.

    Args:
        waveforms: Signals, (..., T).
        gains: Gains for the bins of an `rfft` of so many samples, as `band_gains` returns them.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    # Zeros behind the end, so that the tail of the response does not wrap around onto the beginning.
    size = int(next_fast_len(waveforms.shape[-1] + 1024, real=True) or 0)
    spectra = np.asarray(rfft(waveforms, size)) * gains(size).astype(np.float32)
    return np.asarray(irfft(spectra, size))[..., : waveforms.shape[-1]].astype(np.float32)


def encode_and_decode(
    waveform: np.ndarray, sample_rate: int, codec: str, compression: float | None = None
) -> np.ndarray:
    """Return a waveform (T,) of at most full scale after encoding and decoding, (T,) float32.

    Args:
        waveform: Samples in [-1, 1], (T,).
        sample_rate: Sampling rate, Hz; see `codecs_at`.
        codec: Name in `CODECS`.
        compression: Level from 0 (least) to 1, of mp3 and Opus; None: the codec's own.
    """
    import soundfile

    chosen, coded = CODECS[codec], io.BytesIO()
    soundfile.write(
        coded,
        waveform,
        sample_rate,
        format=chosen.container,
        subtype=chosen.subtype,
        compression_level=chosen.compression if compression is None else compression,
    )
    coded.seek(0)
    decoded = soundfile.read(coded, dtype="float32")[0][: len(waveform)]
    return np.pad(decoded, (0, len(waveform) - len(decoded)))


def codecs_at(sample_rate: int) -> list[str]:
    """Return the names of the codecs that work at a sampling rate, Hz."""
    return [name for name, codec in CODECS.items() if codec.rates is None or sample_rate in codec.rates]


class RandomChannel:
    """A random channel, drawn once, for the sources and the noise of a mixture alike.

    Band limits belong to the targets, since they cannot be undone. What a codec or clipping adds belongs to the noise.

    Args:
        config: Ranges and shares, see `DynamicMixingConfig`.
        sample_rate: Sampling rate, Hz.
        generator: Source of randomness.
    """

    def __init__(self, config: DynamicMixingConfig, sample_rate: int, generator: np.random.Generator) -> None:
        def draw(share: float, cutoff_hz: tuple[float, float]) -> tuple[float, float] | None:
            order = float(np.exp(generator.uniform(*np.log(config.filter_order))))
            cutoff = float(generator.uniform(*cutoff_hz))
            return (cutoff, order) if generator.random() < share else None

        self.sample_rate = sample_rate
        self.highpass = draw(_HIGHPASS_SHARE, config.highpass_hz)
        self.lowpass = draw(_LOWPASS_SHARE, config.lowpass_hz)
        names = codecs_at(sample_rate)
        weights = np.array([_CODEC_WEIGHTS[name] for name in names])
        codec = names[generator.choice(len(names), p=weights / weights.sum())]
        self.codec = codec if generator.random() < config.codec_probability else None
        self.headroom_db = float(generator.uniform(*_HEADROOM_DB))
        clipped = float(np.exp(generator.uniform(*np.log(_CLIPPED_SHARE))))
        self.clipped_share = clipped if generator.random() < config.clipping_probability else 0.0

    def limit_band(self, waveforms: np.ndarray) -> np.ndarray:
        """Return waveforms (..., T) with the band limits of the channel, float32."""
        if self.highpass is None and self.lowpass is None:
            return waveforms
        return band_limit(waveforms, lambda size: band_gains(size, self.sample_rate, self.highpass, self.lowpass))

    def distort(self, mixture: np.ndarray) -> np.ndarray:
        """Return a mixture (T,) after clipping and the codec, at its own level, float32."""
        if self.clipped_share:
            limit = np.quantile(np.abs(mixture), 1 - self.clipped_share)
            mixture = np.clip(mixture, -limit, limit)
        peak = float(np.abs(mixture).max(initial=0.0))
        if self.codec is None or peak == 0:
            return mixture
        scale = np.float32(10 ** (-self.headroom_db / 20) / peak)
        return encode_and_decode(mixture * scale, self.sample_rate, self.codec) / scale


def color(size: int, deviation_nepers: float, generator: np.random.Generator) -> np.ndarray:
    """Return (size // 2 + 1,) float32 gains over frequency: a smooth tilt, exp of a sum of four cosines of this
    deviation."""
    weights = (deviation_nepers * generator.standard_normal(_COSINES)).astype(np.float32)
    return np.exp(weights @ _cosines(size))


def colored(waveform: np.ndarray, deviation_db: float, generator: np.random.Generator) -> np.ndarray:
    """Return a waveform (T,) through a random coloring, float32, with the energy that it had."""
    from scipy.fft import irfft, next_fast_len, rfft

    size = int(next_fast_len(2 * len(waveform), real=True) or 0)
    gains = color(size, deviation_db * math.log(10) / 20, generator)
    result = np.asarray(irfft(np.asarray(rfft(waveform, size)) * gains, size))[: len(waveform)]
    energy = float(np.square(result, dtype=np.float64).sum())
    if energy == 0:
        return waveform
    return (result * np.sqrt(float(np.square(waveform, dtype=np.float64).sum()) / energy)).astype(np.float32)


@lru_cache(maxsize=8)
def _cosines(size: int) -> np.ndarray:
    return np.cos(np.outer(np.arange(1, _COSINES + 1), np.linspace(0, np.pi, size // 2 + 1))).astype(np.float32)
