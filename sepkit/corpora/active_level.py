"""The active speech level of ITU-T P.56: the loudness of speech without its pauses.

`sepkit.signals.active_level` serves mixtures of our own; this one follows the standard, as WSJ0-mix does.

Source: ITU-T Recommendation P.56 (12/2011), method B: time constant 30 ms, hangover 0.2 s, margin 15.9 dB.
"""

import math

import numpy as np

_TIME_CONSTANT_SECONDS = 0.03
_HANGOVER_SECONDS = 0.2
_MARGIN_DB = 15.9
# Thresholds are a factor of 2 in power apart, from the largest envelope down. P.56 allows wider steps; the published
# tables of WSJ0-mix were measured with these, and they make the interpolation exact to 0.01 dB.
_THRESHOLDS = 20
_HIGH_PASS_HZ = 200.0
_HIGH_PASS_RIPPLE_DB = 0.25
_HIGH_PASS_STOP_DB = 50.0
_HIGH_PASS_ORDER = 5


def active_speech_level(waveform: np.ndarray, sample_rate: int, high_pass: bool = True) -> float:
    """Return the mean power of speech while it is active, relative to full scale 1.0; 0 for silence.

    The envelope is the rectified signal through two exponential averages of 30 ms. For each threshold c the activity
    a(c) is the number of samples where the envelope reaches c or did so in the last 0.2 s, and A(c) = sum x^2 / a(c).
    The level is A(c) at the threshold that lies 15.9 dB below it, interpolated in dB.

    Args:
        high_pass: measure above 200 Hz only, as the tables of WSJ0-mix do (default filter of VOICEBOX's `activlev`: a
            Chebyshev filter of type 2 and order 5, -0.25 dB at 200 Hz, stop band -50 dB). False: plain P.56. Above
            14 kHz sample rate P.56 also limits the band to 5.5 kHz, which is not done here; use 8 kHz.

    Source: ITU-T P.56, section 7 and Annex B.
    """
    from scipy.ndimage import maximum_filter1d
    from scipy.signal import lfilter, sosfilt

    samples = np.asarray(waveform, dtype=np.float64)
    if high_pass and samples.size:
        samples = sosfilt(_high_pass(sample_rate), samples)
    energy = float(np.square(samples).sum())
    if energy == 0:
        return 0.0
    pole = math.exp(-1 / (sample_rate * _TIME_CONSTANT_SECONDS))
    envelope = lfilter([(1 - pole) ** 2], [1, -2 * pole, pole**2], np.abs(samples))
    hangover = math.ceil(_HANGOVER_SECONDS * sample_rate)
    # A sample stays active for `hangover` more: take the largest envelope of this sample and those before it.
    power = np.square(maximum_filter1d(envelope, hangover + 1, mode="constant", origin=hangover // 2))
    top = int(np.frexp(power.max())[1])
    # frexp gives exponent 0 for 0, which would be a level.
    exponents = np.where(power > 0, np.frexp(power)[1], top - _THRESHOLDS)
    below_top = np.minimum(top - exponents, _THRESHOLDS - 1)
    # activity[k]: samples whose held envelope has at least the power 2^(top - 1 - k).
    activity = np.cumsum(np.bincount(below_top, minlength=_THRESHOLDS))
    level_db = 10 * np.log10(energy / activity)
    threshold_db = 10 * math.log10(2) * (top - 1 - np.arange(_THRESHOLDS))
    return float(10 ** (_crossing(level_db, level_db - threshold_db - _MARGIN_DB) / 10))


def _crossing(level_db: np.ndarray, excess_db: np.ndarray) -> float:
    """Return the level where the excess over threshold and margin turns positive; else the outermost level."""
    rising = np.flatnonzero((excess_db[:-1] < 0) & (excess_db[1:] >= 0))
    if rising.size == 0:
        return float(level_db[-1] if excess_db[-1] <= 0 else level_db[0])
    below = int(rising[0])
    part = excess_db[below] / (excess_db[below] - excess_db[below + 1])
    return float(level_db[below] + part * (level_db[below + 1] - level_db[below]))


def _high_pass(sample_rate: int) -> np.ndarray:
    """Return second-order sections of the high-pass filter.

    Its stop band ends where 1 / (1 + T_n(x)^2 / stop) has the wanted ripple at 200 Hz, x the ratio of the two edges.
    """
    from scipy.signal import cheby2

    stop, ripple = 10 ** (_HIGH_PASS_STOP_DB / 10) - 1, 10 ** (_HIGH_PASS_RIPPLE_DB / 10) - 1
    ratio = math.cosh(math.acosh(math.sqrt(stop / ripple)) / _HIGH_PASS_ORDER)
    edge = math.atan(math.tan(math.pi * _HIGH_PASS_HZ / sample_rate) / ratio) * sample_rate / math.pi
    return np.asarray(cheby2(_HIGH_PASS_ORDER, _HIGH_PASS_STOP_DB, edge, "highpass", fs=sample_rate, output="sos"))
