"""Indicators of a separation's quality without references: Monte Carlo spread, features of estimates and mixtures.

Features are numbers for every hypothesis of one recording. Those in `BASELINE_FEATURES` depend on the mixture alone. A
model adds the features that it has: a deterministic one has no rates, no spread and no bound on the mixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sepkit.errors import UserError
from sepkit.models import EncoderMaskerDecoder
from sepkit.objectives.assignment import PIT
from sepkit.objectives.costs import pairwise_blr_nll, pairwise_neg_si_sdr
from sepkit.objectives.products import inner_products
from sepkit.objectives.rates import alive_share, elementwise_rate
from sepkit.types import Separation

BASELINE_FEATURES = (
    "level_dbfs",
    "crest_factor_db",
    "spectral_flatness_db",
    "spectral_centroid_hz",
    "zero_crossing_rate",
    "log_kurtosis",
    "level_deviation_db",
    "log_duration_seconds",
)
"""Features of the mixture that need no model, see `mixture_features`."""

SHORTEST_SECONDS = 0.5
"""Shorter recordings have no features: a statistic of a few frames tells nothing."""

LONGEST_SECONDS = 30.0
"""Features of a longer recording come from evenly spaced excerpts of this total length."""

EXCERPT_SECONDS = 5.0

# Ratios are limited to this range, dB; beyond it they measure float32 and the edges of windows.
_LEAST_DB, _MOST_DB = -60.0, 60.0
_FRAME_SECONDS = 0.032
# More samples of latents than this are certainly a typing error.
_MOST_SAMPLES = 10_000
# Seconds of mixture in one pass of the network: a batch of short ones costs little more than one of them.
_SECONDS_AT_ONCE = 16.0


# --------------------------------------------------------------------------------------------------------- Monte Carlo


class RunningMoments:
    """Mean and deviation, elementwise, of tensors that come one by one, float64; holds two tensors in memory.

    Source: Welford, "Note on a method for calculating corrected sums of squares and products", 1962.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = self._squares = torch.zeros((), dtype=torch.float64)

    def add(self, value: Tensor) -> None:
        """Add a tensor.

        Args:
            value: of the shape of those before.
        """
        value = value.detach().double()
        self.count += 1
        if self.count == 1:
            self._mean, self._squares = value.clone(), torch.zeros_like(value)
            return
        difference = value - self._mean
        self._mean += difference / self.count
        self._squares += difference * (value - self._mean)

    @property
    def mean(self) -> Tensor:
        """Return the mean of the tensors added."""
        return self._mean

    @property
    def deviation(self) -> Tensor:
        """Standard deviation, from squares over the count less one; zeros for fewer than two."""
        return (self._squares / max(1, self.count - 1)).clamp_min(0).sqrt()


@dataclass(frozen=True)
class MonteCarlo:
    """Mean and spread of separations with sampled latents.

    Args:
        estimates: (B, n, T) float64, mean over the samples.
        spread: (B, n, T) float64, standard deviation over the samples, of each sample of the waveforms; zero for a
            model whose latents are points.
        samples: number of separations.
        log_evidence: (B,) nats, mean over the samples of the log likelihood of the mixture given the decoded encoding,
            where encodings are variational: the first half of the evidence lower bound of the mixture.
    """

    estimates: Tensor
    spread: Tensor
    samples: int
    log_evidence: Tensor | None = None


def is_variational(model: EncoderMaskerDecoder) -> bool:
    """Whether any of a model's latents is variational.

    Args:
        model: any separator.
    """
    return model.variational


def check_samples(samples: int) -> None:
    """Raise UserError unless the number of samples is at least 2 (one has no deviation) and plausible.

    Args:
        samples: how many are asked for.
    """
    if isinstance(samples, bool) or not 2 <= samples <= _MOST_SAMPLES:
        raise UserError(f"samples: found {samples}, expected 2 to {_MOST_SAMPLES}; 8 is usual")


def monte_carlo(
    model: EncoderMaskerDecoder,
    mixture: Tensor,
    samples: int = 8,
    seed: int = 0,
    through: Callable[[Tensor], Tensor] | None = None,
) -> MonteCarlo:
    """Return mean and spread of separations with latents sampled from their posteriors.

    Nothing is matched, because a model keeps the order of its hypotheses between samples unless it is unsure of it. If
    it swaps them, the spread is large, as it should be.

    The same seed gives the same numbers for the same batch. Short recordings are separated several samples at once and
    long ones one at a time, so memory stays that of about 16 s.

    Args:
        model: on the device of `mixture`, in evaluation mode.
        mixture: (B, T), without padding.
        samples: number of separations; a deterministic model needs only one.
        seed: of the latents.
        through: applied to the estimates (B, n, T) of every sample first, such as a resampling, whose effect on a
            deviation does not follow from the deviation alone.

    Raises:
        UserError: see `check_samples`.

    Source: thesis, eq. 3 and 4: z ~ q(z | x), M ~ q(M | z).
    """
    check_samples(samples)
    moments, evidence = RunningMoments(), RunningMoments()
    for estimates, reconstructions in _draw(model, mixture, samples if is_variational(model) else 1, seed):
        moments.add(estimates if through is None else through(estimates))
        if reconstructions is not None:
            evidence.add(_log_evidence(reconstructions, mixture, float(model.signal_std)))
    return MonteCarlo(moments.mean, moments.deviation, samples, log_evidence=evidence.mean if evidence.count else None)


def _draw(
    model: EncoderMaskerDecoder, mixture: Tensor, samples: int, seed: int
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield estimates (B, n, T), and the signal decoded without masks (B, T), of every sample of the latents."""
    generator = torch.Generator(mixture.device).manual_seed(seed)
    # The signal decoded without masks tells something about the mixture only if encodings have a density.
    reconstruct = model.encoding_family.variational
    at_once = max(1, round(_SECONDS_AT_ONCE * model.sample_rate) // mixture.numel())
    for start in range(0, samples, at_once):
        copies = min(at_once, samples - start)
        with torch.inference_mode():
            drawn = model(mixture.repeat(copies, 1), generator=generator, reconstruct=reconstruct, sample=True)
        estimates = drawn.estimates.unflatten(0, (copies, -1))
        for copy in range(copies):
            reconstructions = drawn.reconstructions
            yield (
                estimates[copy],
                None if reconstructions is None else reconstructions.unflatten(0, (copies, -1))[copy],
            )


def _log_evidence(reconstructions: Tensor, mixture: Tensor, signal_std: float) -> Tensor:
    """Return (B,) nats, of signals in units of the training deviation."""
    return -pairwise_blr_nll(reconstructions[:, None] / signal_std, mixture[:, None] / signal_std)[:, 0, 0]


@torch.no_grad()  # A rate without a closed form is estimated from the same samples at every call, see elementwise_rate.
def rates_of(separation: Separation) -> dict[str, float] | None:
    """Return how many nats the posteriors of an utterance are from their priors; None for deterministic latents.

    `encoding_rate_nats_per_tick`, `mask_rate_nats_per_tick` (of all hypotheses together) and `path_rate_nats_per_tick`,
    as far as they exist; `rate_nats_per_dimension`, their sum over the number of latent values of a tick; and the
    shares of dimensions that are alive, `encoding_alive_share` ... (see `sepkit.objectives.rates.alive_share`). They
    are means over a batch.

    Args:
        separation: of a batch without padding.
    """
    latents = {
        "encoding": (separation.encoding, separation.encoding_prior, separation.encoding_sample),
        "mask": (separation.masks, separation.mask_prior, separation.mask_sample),
    }
    rates: dict[str, float] = {}
    shares: dict[str, float] = {}
    dimensions = 0
    of_latents = {
        what: elementwise_rate(posterior, prior, sample)
        for what, (posterior, prior, sample) in latents.items()
        if prior is not None
    }
    if separation.path_rate is not None:
        of_latents["path"] = separation.path_rate
    for what, rate in of_latents.items():
        ticks = torch.full((len(rate),), rate.shape[-1], device=rate.device)
        rates[f"{what}_rate_nats_per_tick"] = float(rate.double().sum() / (rate.shape[0] * rate.shape[-1]))
        shares[f"{what}_alive_share"] = float(alive_share(rate, ticks).double().mean())
        dimensions += rate.shape[1:].numel() // rate.shape[-1]
    return rates | {"rate_nats_per_dimension": math.fsum(rates.values()) / dimensions} | shares if rates else None


@torch.no_grad()
def mixture_elbo(
    model: EncoderMaskerDecoder, mixture: Tensor, separation: Separation, samples: int = 8, seed: int = 0
) -> Tensor | None:
    """Return (B,) evidence lower bounds of mixtures, nats per sample; None if encodings have no posterior and prior.

    (E_q log p(x | z) - R_z) / T, with p(x | z) the Bayesian linear regression of the mixture on the signal decoded from
    z ~ q(z | x) without masks. It is meaningful only if training has reconstructed mixtures
    (objective.autoencoding.mixtures), because otherwise no decoder has learned to.

    Args:
        model: which made the separation, in evaluation mode.
        mixture: (B, T), without padding.
        separation: of it.
        samples: of the encodings, over which the expectation is a mean; one has little variance, as an utterance has
            many values.
        seed: of the samples.

    Source: thesis, appendix B, section 4.3 and figure 3.
    """
    if separation.encoding_prior is None or not model.encoding_family.variational:
        return None
    generator = torch.Generator(mixture.device).manual_seed(seed)
    evidence = RunningMoments()
    for _ in range(samples):
        decoded = model.decode(separation.encoding.sample(generator).unsqueeze(1), mixture.shape[-1]).squeeze(1)
        evidence.add(_log_evidence(decoded + model.signal_mean, mixture, float(model.signal_std)))
    rate = elementwise_rate(separation.encoding, separation.encoding_prior, separation.encoding_sample)
    return (evidence.mean - rate.double().flatten(1).sum(1)) / mixture.shape[-1]


# ------------------------------------------------------------------------------------------------------------ features


def recording_features(
    model: EncoderMaskerDecoder, mixture: Tensor, separation: Separation, samples: int = 8, seed: int = 0
) -> dict[str, np.ndarray] | None:
    """Return (n,) of every feature that the model has for a recording; None for silence or less than half a second.

    A silent hypothesis has NaN.

    Recordings of up to 30 s are used whole, with `samples` more separations. Of longer ones, six excerpts of 5 s are
    separated, the first at the beginning and the last at the end, and the features are means over those that are not
    silent. An excerpt's hypotheses are brought into the recording's order by their SI-SDR to its estimates.

    Args:
        model: on the device of `mixture`, in evaluation mode.
        mixture: (T,) at the model's rate.
        separation: of the whole, a batch of one; only its estimates are needed where the recording is long.
        samples: of the latents, where they are variational.
        seed: of the latents.

    Raises:
        UserError: see `check_samples`.
    """
    rate, num_samples = model.sample_rate, mixture.shape[-1]
    if num_samples < SHORTEST_SECONDS * rate or _is_silent(mixture):
        return None
    if num_samples <= LONGEST_SECONDS * rate:
        drawn = monte_carlo(model, mixture[None], samples, seed) if is_variational(model) else None
        return hypothesis_features(model, mixture, separation, drawn)
    excerpts = (
        (mixture[start:stop], separation.estimates[..., start:stop]) for start, stop in excerpt_spans(num_samples, rate)
    )
    return excerpt_features(model, excerpts, samples, seed)


def excerpt_spans(num_samples: int, sample_rate: int) -> list[tuple[int, int]]:
    """Return beginnings and ends of the excerpts of a recording longer than `LONGEST_SECONDS`.

    Args:
        num_samples: length of the recording.
        sample_rate: Hz.
    """
    length, count = round(EXCERPT_SECONDS * sample_rate), round(LONGEST_SECONDS / EXCERPT_SECONDS)
    starts = np.linspace(0, num_samples - length, count).round().astype(int).tolist()
    return [(start, start + length) for start in starts]


def excerpt_features(
    model: EncoderMaskerDecoder, excerpts: Iterable[tuple[Tensor, Tensor]], samples: int = 8, seed: int = 0
) -> dict[str, np.ndarray] | None:
    """Return `recording_features` of a long recording, given only its excerpts.

    Args:
        model: on the device of the excerpts, in evaluation mode.
        excerpts: of the mixture (T,) and of the recording's estimates (1, n, T), see `excerpt_spans`.
        samples: of the latents, where they are variational.
        seed: of the latents.
    """
    parts: list[dict[str, np.ndarray]] = []
    for excerpt, estimates in excerpts:
        if _is_silent(excerpt):
            continue
        with torch.inference_mode():
            own = model(excerpt[None])
        drawn = monte_carlo(model, excerpt[None], samples, seed) if is_variational(model) else None
        features = hypothesis_features(model, excerpt, own, drawn)
        order = _order_as(own.estimates, estimates)
        parts.append({name: values[order] for name, values in features.items()})
    if not parts:
        return None
    features = {name: _mean_of_finite([part[name] for part in parts]) for name in parts[0]}
    return features | {"log_duration_seconds": np.full(model.hypotheses, math.log(LONGEST_SECONDS))}


def hypothesis_features(
    model: EncoderMaskerDecoder, mixture: Tensor, separation: Separation, drawn: MonteCarlo | None = None
) -> dict[str, np.ndarray]:
    """Return (n,) float64 of every feature that a separation has, by name; NaN for silent hypotheses.

    * `spread_db`: energy of the spread over that of the mean estimate.
    * `encoding_rate_nats_per_tick`; `mask_rate_nats_per_tick` of the hypothesis itself; `path_rate_nats_per_tick`.
    * `mixture_elbo_nats_per_sample`: (log evidence of the mixture given its own reconstruction - encoding rate) / T.
    * `residual_db`: what the best sum of the estimates leaves of the mixture's energy.
    * `correlation_db`: SI-SDR to the estimate it is most like, (corr^2 / (1 - corr^2)); of two hypotheses or more.
    * `relative_level_db`: energy of the mixture's projection on the estimate over the mixture's.
    * `score`: log-odds that it is a speaker.
    * those of the mixture, the same for all hypotheses.

    Args:
        model: which made the separation.
        mixture: (T,), not silent.
        separation: a batch of one, with nothing sampled.
        drawn: separations of the same mixture with sampled latents; None for a deterministic model.

    Source: thesis, appendix A section 4.4 (features of a linear model); appendix B figure 3 and appendix D (bound).
    """
    n = separation.estimates.shape[1]
    features = _relations(separation.estimates, mixture)
    if drawn is not None:
        energies = drawn.estimates.square().sum(-1)[0].cpu().numpy()
        features["spread_db"] = _db(drawn.spread.square().sum(-1)[0].cpu().numpy(), energies)
    features |= _rates(separation, drawn, mixture.shape[-1])
    if separation.scores is not None:
        features["score"] = separation.scores[0].double().cpu().numpy()
    silent = np.ptp(separation.estimates[0].cpu().numpy(), axis=-1) == 0
    features = {name: np.where(silent, np.nan, values) for name, values in features.items()}
    of_mixture = mixture_features(mixture.cpu().numpy(), model.sample_rate)
    return features | {name: np.full(n, value) for name, value in of_mixture.items()}


def mixture_features(mixture: np.ndarray, sample_rate: int) -> dict[str, float]:
    """Return level and statistics of a waveform, by the names in `BASELINE_FEATURES`.

    * `level_dbfs`: mean power, full scale 1.0.
    * `crest_factor_db`: peak over root mean square.
    * `spectral_flatness_db`: geometric over arithmetic mean of the power spectrum (Welch, 32 ms Hann windows).
    * `spectral_centroid_hz`: mean frequency, weighted by power.
    * `zero_crossing_rate`: changes of sign a sample.
    * `log_kurtosis`: logarithm of the fourth moment over the squared second; log 3 for Gaussian noise.
    * `level_deviation_db`: standard deviation of the level of 32 ms frames, those 60 dB below the loudest raised to
      there: large where there are pauses.
    * `log_duration_seconds`: natural logarithm.

    Args:
        mixture: (T,), not silent.
        sample_rate: Hz.
    """
    mixture = mixture.astype(np.float64)
    level = float(np.mean(np.square(mixture)))
    centered = mixture - mixture.mean()
    power = float(np.mean(np.square(centered)))
    frame = min(len(centered), round(_FRAME_SECONDS * sample_rate))
    # Every window's own mean is removed, so the first bin is empty.
    spectrum = _floored(_power_spectrum(centered, frame)[1:], -120.0)
    frequencies = np.fft.rfftfreq(frame, 1 / sample_rate)[1:]
    energies = np.square(centered[: len(centered) // frame * frame].reshape(-1, frame)).mean(-1)
    levels = 10 * np.log10(_floored(energies, _LEAST_DB))
    return {
        "level_dbfs": 10 * math.log10(level),
        "crest_factor_db": 10 * math.log10(float(np.square(centered).max()) / power),
        "spectral_flatness_db": 10 * float(np.log10(spectrum).mean() - math.log10(spectrum.mean())),
        "spectral_centroid_hz": float(frequencies @ spectrum / spectrum.sum()),
        "zero_crossing_rate": float(np.mean(np.signbit(centered[1:]) != np.signbit(centered[:-1]))),
        "log_kurtosis": math.log(float(np.mean(centered**4)) / power**2),
        "level_deviation_db": float(levels.std()),
        "log_duration_seconds": math.log(len(mixture) / sample_rate),
    }


def _power_spectrum(waveform: np.ndarray, frame: int) -> np.ndarray:
    """Return Welch's estimate of the power spectrum up to a factor, from Hann windows without their means.

    `scipy.signal.welch` gives the same, but takes a third of the time of a separation: it treats windows one by one.
    """
    frames = np.lib.stride_tricks.sliding_window_view(waveform, frame)[:: frame - frame // 2]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)
    spectrum = np.square(np.abs(np.fft.rfft((frames - frames.mean(1, keepdims=True)) * window))).mean(0)
    # Of the bins that stand for a positive and a negative frequency; the one at half the rate stands for itself.
    spectrum[1 : (frame + 1) // 2] *= 2
    return spectrum


def _floored(powers: np.ndarray, least_db: float) -> np.ndarray:
    """Raise powers to at least this many dB relative to the largest; a click at the end is in no whole frame."""
    return np.maximum(powers, max(float(powers.max()) * 10 ** (least_db / 10), np.finfo(np.float64).tiny))


def _relations(estimates: Tensor, mixture: Tensor) -> dict[str, np.ndarray]:
    """Return how estimates (1, n, T) relate to each other and to the mixture (T,), independent of their levels."""
    gram = inner_products(estimates, estimates).cross[0].cpu().numpy()
    products = inner_products(estimates, mixture[None, None])
    cross = products.cross[0, :, 0].cpu().numpy()
    mixture_energy = float(products.source_energy)
    energies = np.maximum(np.diagonal(gram), np.finfo(np.float64).tiny)
    norms = np.sqrt(energies)
    best_sum = np.linalg.lstsq(gram / np.outer(norms, norms), cross / norms, rcond=1e-9)[0]
    explained = float(best_sum @ (cross / norms))
    relations = {
        "residual_db": np.full(len(cross), _db(np.array(mixture_energy - explained), np.array(mixture_energy))),
        "relative_level_db": _db(np.square(cross) / energies, np.array(mixture_energy)),
    }
    if len(cross) > 1:
        alike = np.square(gram / np.outer(norms, norms))
        np.fill_diagonal(alike, 0.0)
        nearest = alike.max(1)
        relations["correlation_db"] = _db(nearest, 1 - nearest)
    return relations


def _rates(separation: Separation, drawn: MonteCarlo | None, num_samples: int) -> dict[str, np.ndarray]:
    n = separation.estimates.shape[1]
    rates: dict[str, np.ndarray] = {}
    with torch.no_grad():
        if separation.encoding_prior is not None:
            rate = elementwise_rate(separation.encoding, separation.encoding_prior, None).double().sum().item()
            rates["encoding_rate_nats_per_tick"] = np.full(n, rate / separation.encoding.shape[-1])
            if drawn is not None and drawn.log_evidence is not None:
                rates["mixture_elbo_nats_per_sample"] = np.full(n, (drawn.log_evidence.item() - rate) / num_samples)
        if separation.mask_prior is not None:
            rate = elementwise_rate(separation.masks, separation.mask_prior, None)[0].double().sum((-2, -1))
            rates["mask_rate_nats_per_tick"] = rate.cpu().numpy() / separation.masks.shape[-1]
        if separation.path_rate is not None:
            rate = separation.path_rate.double().sum().item()
            rates["path_rate_nats_per_tick"] = np.full(n, rate / separation.path_rate.shape[-1])
    return rates


def _order_as(excerpt: Tensor, whole: Tensor) -> list[int]:
    """Return the hypothesis of an excerpt (1, n, T) that each of the recording's (1, n, T) is."""
    return PIT().matches(pairwise_neg_si_sdr(excerpt, whole))[0].tolist()


def _mean_of_finite(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return (n,) means over finite values; NaN where there are none."""
    stacked = np.stack(values)
    finite = np.isfinite(stacked)
    total, count = np.where(finite, stacked, 0.0).sum(0), finite.sum(0)
    return np.divide(total, count, out=np.full(stacked.shape[1], np.nan), where=count > 0)


def _db(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return 10 log10 of a ratio of energies, limited to -60 to 60 dB."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(10 * np.log10(np.maximum(part, 0) / whole), _LEAST_DB, _MOST_DB)


def _is_silent(waveform: Tensor) -> bool:
    return bool(waveform.max() == waveform.min())
