"""Metrics of an estimate against its source: numpy arrays or torch tensors in, the same kind out, computed in float64.

The order is always (estimates, sources). Both are waveforms of shape (..., T) and broadcast; the result has shape
(...), float64. Signals without samples or of different lengths raise ValueError. Metrics in dB lie within +-100: a
silent estimate scores -100, a perfect one 100. Against a silent source, or with NaN or infinity in an input, a metric
is NaN. Silent means constant. `attenuation_db` measures the estimate of a silent source.
"""

import importlib
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from sepkit.errors import UserError

if TYPE_CHECKING:
    import torch

LIMIT_DB = 100.0
FILTER_LENGTH = 512
PESQ_MODES = {8000: "nb", 16000: "wb"}
# The mappings of P.862.1 and P.862.2 give these values for the lowest raw score, -0.5.
PESQ_LOWEST = {"nb": 1.0169, "wb": 1.0428}
# The package pesq (0.0.4) has tables for 50 utterances and 1000 bad stretches of a pair, and writes beyond them: scores
# are wrong then, or the process dies. An utterance with its pause takes at least 0.388 s, and a bad stretch 0.096 s, so
# shorter pairs always fit.
PESQ_SAFE_SECONDS, PESQ_SECONDS = 18.5, 90.0
# Below 50, because the package counts up to 5 more utterances than `_utterances`.
PESQ_UTTERANCES = 40

# Rounding leaves this share of a constant signal's energy when the mean is removed.
_ROUNDING = 1e-24

# Added to the zeroth autocorrelation, relative to the energy. It keeps the system solvable for sources that their own
# shifts nearly predict (tones, short signals), and changes speech by less than 1e-6 dB up to 60 dB.
_DIAGONAL = 1e-12

# The share of an estimate's energy at which the ratio of this share to the rest is -100 dB.
_LEAST_SHARE = 1 / (1 + 10 ** (LIMIT_DB / 10))

Signal = TypeVar("Signal", "np.ndarray", "torch.Tensor")


class NoScore(Exception):
    """A metric is not defined for a pair of signals; the message says why."""


@np.errstate(divide="ignore", invalid="ignore")
def si_sdr_db(estimates: Signal, sources: Signal) -> Any:
    """Return the scale-invariant signal-to-distortion ratio, (...) dB.

    With both means removed, `10 log10(||a s||^2 / ||a s - e||^2)`, `a = <e, s> / <s, s>`.

    Args:
        estimates: Estimates e, (..., T), arrays or tensors.
        sources: References s, of the same shape.

    >>> source, noise = np.array([1.0, -1.0, 1.0, -1.0]), np.array([0.1, 0.1, -0.1, -0.1])
    >>> round(float(si_sdr_db(3 * source + 3 * noise, source)), 2)
    20.0

    Source: Le Roux et al., "SDR - half-baked or well done?", ICASSP 2019, eq. 4.
    """
    xp, (e, s) = _prepare(estimates, sources)
    e, s, silent_source, silent_estimate = _center(e, s)
    target = s * ((e * s).sum(-1) / _energy(s))[..., None]
    return _in_range(xp, 10 * xp.log10(_energy(target) / _energy(target - e)), silent_source, silent_estimate)


def si_sdri_db(estimates: Signal, sources: Signal, mixture: Signal) -> Any:
    """Return the improvement in SI-SDR over the mixture as the estimate, dB: `si_sdr_db(e, s) - si_sdr_db(x, s)`.

    Args:
        estimates: Estimates e, (..., m, T), arrays or tensors.
        sources: References s, (..., m, T).
        mixture: Mixture x, (..., T) or (..., m, T).

    >>> sources = np.array([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]])
    >>> si_sdri_db(sources + 0.1 * sources[::-1], sources, sources.sum(0)).round(2)
    array([20., 20.])
    """
    if mixture.ndim == sources.ndim - 1 and mixture.ndim > 1:
        mixture = mixture[..., None, :]
    return si_sdr_db(estimates, sources) - si_sdr_db(mixture, sources)


@np.errstate(divide="ignore", invalid="ignore")
def snr_db(estimates: Signal, sources: Signal) -> Any:
    """Return the signal-to-noise ratio, (...) dB: `10 log10(||s||^2 / ||s - e||^2)`. Level, polarity and mean count.

    A silent estimate scores 0.

    >>> source = np.array([1.0, -1.0, 1.0, -1.0])
    >>> round(float(snr_db(0.9 * source, source)), 2)
    20.0
    """
    xp, (e, s) = _prepare(estimates, sources)
    silent_source = _center(e, s)[2]
    values = (10 * xp.log10(_energy(s) / _energy(s - e))).clip(-LIMIT_DB, LIMIT_DB)
    return xp.where(silent_source, xp.nan, values)[()]


@np.errstate(divide="ignore", invalid="ignore")
def sdr_db(estimates: Signal, sources: Signal) -> Any:
    """Return the signal-to-distortion ratio of BSS Eval version 3, dB: any filter of 512 taps on the source is allowed.

    `10 log10(||p||^2 / ||p - e||^2)` where p is the projection of the estimate on the source's 512 shifts.

    Args:
        estimates: Estimates e, (..., T). Several estimates of one source, (A, ..., T), take little longer than one.
        sources: References, (..., T).

    >>> source = np.random.default_rng(0).standard_normal(8000)
    >>> delayed = np.pad(source, (3, 0))[:8000]
    >>> bool(sdr_db(delayed, source) > 30), bool(si_sdr_db(delayed, source) < 0)
    (True, True)

    Source: Vincent, Gribonval, Fevotte, IEEE TASLP 14(4), 2006; computed by fast_bss_eval (Scheibler, ICASSP 2022).
    """
    xp, (e, s) = _prepare(estimates, sources)
    silent_source, silent_estimate = _center(e, s)[2:]
    # numpy's, because torch's own loads sympy, which takes seconds in every process.
    shape = np.broadcast_shapes(e.shape, s.shape)
    finite = _finite(xp, e) & _finite(xp, s)
    # One linear system per source (R) serves all the estimates (A) that are broadcast over it.
    references = xp.broadcast_to(s, shape[-s.ndim :])
    rows = math.prod(references.shape[:-1])
    pairs = xp.swapaxes(xp.broadcast_to(e, shape).reshape(-1, rows, shape[-1]), 0, 1)
    negative = _bss_eval(xp).sdr_loss(
        xp.nan_to_num(pairs, nan=0.0, posinf=0.0, neginf=0.0),
        xp.nan_to_num(references.reshape(rows, 1, shape[-1]), nan=0.0, posinf=0.0, neginf=0.0),
        filter_length=FILTER_LENGTH,
        clamp_db=LIMIT_DB,
        load_diag=_DIAGONAL,
        pairwise=True,
    )
    values = xp.where(finite, -negative.squeeze(-2).T.reshape(shape[:-1]), xp.nan)
    return _in_range(xp, values, silent_source, silent_estimate)


@np.errstate(divide="ignore", invalid="ignore")
def bss_eval_db(estimates: Signal, sources: Signal) -> tuple[Any, Any, Any]:
    """Return SDR, SIR (interference) and SAR (artifacts) of BSS Eval version 3, (..., m) dB each.

    Interference is what the other m - 1 sources explain. All are NaN if any source of the mixture is silent or anything
    is not finite.

    Args:
        estimates: (..., m, T), in the order of the sources.
        sources: (..., m, T).

    Source: Vincent, Gribonval, Fevotte, IEEE TASLP 14(4), 2006; computed by fast_bss_eval (Scheibler, ICASSP 2022).
    """
    xp, (e, s) = _prepare(estimates, sources)
    if e.shape != s.shape or e.ndim < 2:
        raise ValueError(f"signals of {tuple(e.shape)} and {tuple(s.shape)}, expected equal shapes (sources, samples)")
    silent_source, silent_estimate = _center(e, s)[2:]
    usable = (_finite(xp, e) & _finite(xp, s) & ~silent_source).all(-1)
    values = xp.stack([xp.full_like(e[..., 0], xp.nan)] * 3)
    if usable.any():
        # Squared cosines between every estimate and what one source explains, and what all explain; only those of an
        # estimate with its own source count (numpy 2 fails at the function for these alone).
        of_one, of_all = (
            xp.diagonal(cosines, 0, -2, -1)
            for cosines in _bss_eval(xp).square_cosine_metrics(
                s[usable], e[usable], filter_length=FILTER_LENGTH, load_diag=_DIAGONAL
            )
        )
        shares = xp.stack([of_one, of_one / of_all, of_all]).clip(_LEAST_SHARE, 1 - _LEAST_SHARE)
        values[:, usable] = 10 * xp.log10(shares / (1 - shares))
    values = xp.where(silent_estimate & usable[..., None], -LIMIT_DB, values)
    return values[0], values[1], values[2]


@np.errstate(divide="ignore", invalid="ignore")
def attenuation_db(estimates: Signal, mixture: Signal) -> Any:
    """Return the level of the mixture over that of a silent source's estimate, dB: `10 log10(||x||^2 / ||e||^2)`.

    A silent estimate scores 100; a silent mixture gives NaN.

    >>> mixture = np.array([1.0, -1.0, 1.0, -1.0])
    >>> round(float(attenuation_db(0.1 * mixture, mixture)), 2)
    20.0
    """
    xp, (e, x) = _prepare(estimates, mixture)
    e, x, silent_mixture, silent_estimate = _center(e, x)
    values = (10 * xp.log10(_energy(x) / _energy(e))).clip(-LIMIT_DB, LIMIT_DB)
    return xp.where(silent_mixture, xp.nan, xp.where(silent_estimate, LIMIT_DB, values))[()]


def stoi(estimates: Signal, sources: Signal, sample_rate: int, extended: bool = False) -> Any:
    """Return the short-time objective intelligibility, about 0 to 1; NaN if the source has less than 0.4 s of speech.

    Args:
        estimates: (..., T).
        sources: (..., T).
        sample_rate: Hz.
        extended: whether to compute the variant for fluctuating maskers (Jensen & Taal 2016).

    Source: Taal et al., IEEE TASLP 19(7), 2011; computed by pystoi.
    """
    return _each_pair(lambda e, s: stoi_of_pair(e, s, sample_rate, extended), estimates, sources)


def stoi_of_pair(estimate: np.ndarray, source: np.ndarray, sample_rate: int, extended: bool = False) -> float:
    """Return `stoi` of one estimate and its source, both finite.

    Args:
        estimate: (T,).
        source: (T,), not silent.
        sample_rate: Hz.
        extended: Whether to compute ESTOI, as in `stoi`.

    Raises:
        NoScore: too little speech in the source.
    """
    from pystoi import stoi as pystoi

    with warnings.catch_warnings():
        # pystoi warns that too little speech is left and then returns 1e-5 as if it were a score.
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return float(pystoi(source, estimate, sample_rate, extended=extended))
        except (RuntimeWarning, ValueError) as error:
            raise NoScore("less than 0.4 s of speech in the source") from error


def pesq(estimates: Signal, sources: Signal, sample_rate: int) -> Any:
    """Return the perceptual evaluation of speech quality, a mean opinion score.

    A silent estimate has the lowest score. The score is NaN where PESQ finds no utterance, or less than 0.25 s.

    Args:
        estimates: (..., T) waveforms.
        sources: (..., T) waveforms.
        sample_rate: 8000 Hz for narrow band (P.862.1), or 16000 Hz for wide band (P.862.2).

    Raises:
        ValueError: another sample rate, lengths that differ, or no samples.
        UserError: the package pesq is not installed.
    """
    if sample_rate not in PESQ_MODES:
        raise ValueError(f"sample_rate: found {sample_rate} Hz, PESQ is defined at 8000 and 16000")
    try:
        import pesq as package  # noqa: F401
    except ImportError:
        raise UserError("pesq: the package is not installed; pip install 'sepkit[metrics]'") from None
    return _each_pair(lambda e, s: pesq_of_pair(e, s, sample_rate), estimates, sources)


def pesq_of_pair(estimate: np.ndarray, source: np.ndarray, sample_rate: int) -> float:
    """Return `pesq` of one estimate and its source, both finite.

    Args:
        estimate: (T,).
        source: (T,), not silent.
        sample_rate: 8000 or 16000 Hz.

    Raises:
        NoScore: PESQ finds no utterance, less than 0.25 s, or more than the package has room for.
    """
    if not estimate.any():
        return PESQ_LOWEST[PESQ_MODES[sample_rate]]
    pair = np.stack([source, estimate]).astype(np.float32)
    if pair.shape[1] <= PESQ_SAFE_SECONDS * sample_rate:
        return _pesq(pair, sample_rate)
    seconds, count = pair.shape[1] / sample_rate, _utterances(source, sample_rate)
    if seconds > PESQ_SECONDS:
        raise NoScore(f"the source lasts {seconds:.0f} s, expected at most {PESQ_SECONDS:g} s for PESQ")
    if count > PESQ_UTTERANCES:
        raise NoScore(f"the source has up to {count} utterances, expected at most {PESQ_UTTERANCES} for PESQ")
    # In a process of its own, because a crash would end this one.
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import answer_pesq as answer; "
    command = [sys.executable, "-c", f"{program}answer({sample_rate})"]
    answer = subprocess.run(command, input=pair.tobytes(), capture_output=True, check=False)
    try:
        return float(answer.stdout)
    except ValueError:
        reason = answer.stdout.decode(errors="replace").strip()
        raise NoScore(reason or f"PESQ ended its process with exit code {answer.returncode}") from None


def answer_pesq(sample_rate: int) -> None:
    """Print the PESQ of the source and the estimate that standard input holds as float32, or why there is none."""
    try:
        print(repr(_pesq(np.frombuffer(sys.stdin.buffer.read(), np.float32).reshape(2, -1), sample_rate)))
    except NoScore as error:
        print(error)


def _pesq(pair: np.ndarray, sample_rate: int) -> float:
    """Return the PESQ of source and estimate, (2, T) float32, in this process; NoScore: it finds none."""
    import pesq as package

    source, estimate = pair
    try:
        return float(package.pesq(sample_rate, source, estimate, PESQ_MODES[sample_rate]))
    except package.PesqError as error:
        message = error.args[0] if error.args else type(error).__name__
        raise NoScore(message.decode() if isinstance(message, bytes) else str(message)) from error


def _utterances(source: np.ndarray, sample_rate: int) -> int:
    """Return the most stretches of 0.16 s or more between pauses of 0.188 s or more that any threshold finds."""
    spectrum, hertz = np.fft.rfft(source), np.fft.rfftfreq(len(source), 1 / sample_rate)
    speech = np.fft.irfft(np.where((hertz > 300) & (hertz < 3400), spectrum, 0), len(source))
    frame = sample_rate // 250
    powers = np.square(speech[: len(speech) // frame * frame].reshape(-1, frame)).mean(1)
    most = 0
    for threshold in powers.max() * np.logspace(-4, 0, 41):
        loud = np.flatnonzero(powers >= threshold)
        lengths = [part[-1] - part[0] for part in np.split(loud, np.flatnonzero(np.diff(loud) > 47) + 1)]
        most = max(most, sum(length >= 40 for length in lengths))
    return most


def _prepare(*signals: Any) -> tuple[Any, list[Any]]:
    """Return the module (numpy or torch) that computes, and the signals as its float64 arrays."""
    # Not imported: without torch there are no tensors.
    torch = sys.modules.get("torch")
    tensors = [torch is not None and isinstance(signal, torch.Tensor) for signal in signals]
    if torch is not None and any(tensors):
        # Copied, because torch takes no arrays with negative strides or of another byte order.
        arrays = [
            (signal if is_tensor else torch.from_numpy(np.array(signal, np.float64))).double()
            for signal, is_tensor in zip(signals, tensors, strict=True)
        ]
    else:
        arrays = [np.asarray(signal, np.float64) for signal in signals]
    lengths = {array.shape[-1] if array.ndim else 0 for array in arrays}
    if len(lengths) != 1 or lengths == {0}:
        shapes = " and ".join(str(tuple(array.shape)) for array in arrays)
        raise ValueError(f"signals of shape {shapes}, expected the same number of samples, 1 or more, in the last axis")
    return (torch if any(tensors) else np), arrays


def _bss_eval(xp: Any) -> Any:
    return importlib.import_module(f"fast_bss_eval.{xp.__name__}")


def _energy(signal: Any) -> Any:
    return (signal * signal).sum(-1)


def _finite(xp: Any, signal: Any) -> Any:
    return xp.isfinite(signal).all(-1)


def _center(estimates: Any, sources: Any) -> tuple[Any, Any, Any, Any]:
    """Remove the means from both; also return which sources and which estimates are silent."""
    e, s = (signal - signal.mean(-1)[..., None] for signal in (estimates, sources))
    silent_estimate, silent_source = (
        _energy(centered) <= _ROUNDING * _energy(signal) for centered, signal in ((e, estimates), (s, sources))
    )
    return e, s, silent_source, silent_estimate


def _in_range(xp: Any, values: Any, silent_source: Any, silent_estimate: Any) -> Any:
    values = xp.where(silent_estimate, -LIMIT_DB, values.clip(-LIMIT_DB, LIMIT_DB))
    # An array of no axes becomes a number.
    return xp.where(silent_source, xp.nan, values)[()]


@np.errstate(invalid="ignore")
def _each_pair(metric: Callable[[np.ndarray, np.ndarray], float], estimates: Any, sources: Any) -> Any:
    xp, (e, s) = _prepare(estimates, sources)
    unusable = _center(e, s)[2] | ~_finite(xp, e) | ~_finite(xp, s)
    skipped, values = np.asarray(unusable.tolist()), np.full(unusable.shape, np.nan)
    pairs = np.broadcast_arrays(*(signal if xp is np else signal.detach().cpu().numpy() for signal in (e, s)))
    for place in np.ndindex(skipped.shape):
        if not skipped[place]:
            values[place] = _or_nan(metric, pairs[0][place], pairs[1][place])
    return values[()] if xp is np else xp.from_numpy(values).to(e.device)


def _or_nan(metric: Callable[[np.ndarray, np.ndarray], float], estimate: np.ndarray, source: np.ndarray) -> float:
    try:
        return metric(estimate, source)
    except NoScore:
        return float("nan")
