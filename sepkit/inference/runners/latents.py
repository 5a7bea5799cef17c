"""What latents tell about a separation without references: Monte Carlo spread, rates, and the bound on the mixture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from sepkit.inference.options import check_samples
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.runtime import widest
from sepkit.objectives.costs import pairwise_blr_nll
from sepkit.objectives.rates import alive_share, elementwise_rate
from sepkit.types import Separation

# Seconds of mixture in one pass of the network: a batch of short ones costs little more than one of them.
_SECONDS_AT_ONCE = 16.0


# --------------------------------------------------------------------------------------------------------- Monte Carlo


class RunningDeviation:
    """Standard deviation, elementwise, of tensors that come one by one, float64; holds two tensors in memory.

    Source: Welford, "Note on a method for calculating corrected sums of squares and products", 1962.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = self._squares = torch.zeros((), dtype=torch.float64)

    def add(self, value: Tensor) -> None:
        """Add a tensor of the shape of those before."""
        value = value.detach().to(widest(value))
        self.count += 1
        if self.count == 1:
            self._mean, self._squares = value.clone(), torch.zeros_like(value)
            return
        difference = value - self._mean
        self._mean += difference / self.count
        self._squares += difference * (value - self._mean)

    @property
    def value(self) -> Tensor:
        """From squares over the count less one; zeros for fewer than two."""
        return (self._squares / max(1, self.count - 1)).clamp_min(0).sqrt()


def spread_of(
    model: EncoderMaskerDecoder,
    mixture: Tensor,
    samples: int = 8,
    seed: int = 0,
    through: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the deviation of separations with latents sampled from their posteriors, (B, n, T) float64; else zeros.

    Nothing is matched, because a model keeps the order of its hypotheses between samples unless it is unsure of it. If
    it swaps them, the spread is large, as it should be.

    The same seed gives the same numbers for the same batch. Short recordings are separated several samples at once and
    long ones one at a time, so memory stays that of about 16 s.

    Args:
        mixture: (B, T), without padding, on the device of the model.
        through: applied to the estimates (B, n, T) of every sample first, such as a resampling, whose effect on a
            deviation does not follow from the deviation alone.

    Source: thesis, eq. 3 and 4: z ~ q(z | x), M ~ q(M | z).
    """
    check_samples(samples)
    deviation = RunningDeviation()
    for estimates in _draw(model, mixture, samples if model.variational else 1, seed):
        deviation.add(estimates if through is None else through(estimates))
    return deviation.value


def _draw(model: EncoderMaskerDecoder, mixture: Tensor, samples: int, seed: int) -> Iterator[Tensor]:
    """Yield estimates (B, n, T) of every sample of the latents."""
    generator = torch.Generator(mixture.device).manual_seed(seed)
    at_once = max(1, round(_SECONDS_AT_ONCE * model.sample_rate) // mixture.numel())
    for start in range(0, samples, at_once):
        copies = min(at_once, samples - start)
        with torch.inference_mode():
            drawn = model(mixture.repeat(copies, 1), generator=generator, sample=True)
        yield from drawn.estimates.unflatten(0, (copies, -1))


@torch.no_grad()  # A rate without a closed form is estimated from the same samples at every call, see elementwise_rate.
def rates_of(separation: Separation) -> dict[str, float] | None:
    """Return how many nats the posteriors of an utterance are from their priors; None for deterministic latents.

    `encoding_rate_nats_per_frame` and `mask_rate_nats_per_frame` (of all hypotheses together), as far as they exist;
    `rate_nats_per_dimension`, their sum over the number of latent values of a frame; and the shares of dimensions that
    are alive, `encoding_alive_share` ... (see `sepkit.objectives.rates.alive_share`). They are means over a batch.

    Args:
        separation: of a batch without padding.
    """
    extras = separation.extras
    posteriors = {"encoding": separation.encoding, "mask": separation.masks}
    rates: dict[str, float] = {}
    shares: dict[str, float] = {}
    dimensions = 0
    of_latents = {
        what: elementwise_rate(posterior, extras[f"{what}_prior"], extras.get(f"{what}_sample"))
        for what, posterior in posteriors.items()
        if f"{what}_prior" in extras
    }
    for what, rate in of_latents.items():
        frames = torch.full((len(rate),), rate.shape[-1], device=rate.device)
        rates[f"{what}_rate_nats_per_frame"] = float(rate.to(widest(rate)).sum() / (rate.shape[0] * rate.shape[-1]))
        shares[f"{what}_alive_share"] = float(alive_share(rate, frames).to(widest(rate)).mean())
        dimensions += rate.shape[1:].numel() // rate.shape[-1]
    return rates | {"rate_nats_per_dimension": math.fsum(rates.values()) / dimensions} | shares if rates else None


@torch.no_grad()
def mixture_elbo(model: EncoderMaskerDecoder, mixture: Tensor, separation: Separation, seed: int = 0) -> Tensor | None:
    """Return (B,) evidence lower bounds of mixtures, nats per sample; None if encodings have no posterior and prior.

    (E_q log p(x | z) - R_z) / T, with p(x | z) the Bayesian linear regression of the mixture on the signal decoded from
    z ~ q(z | x) without masks. The expectation is over one sample, which has little variance, as an utterance has many
    values. The bound is meaningful only if training has reconstructed mixtures (objective.autoencoding.mixtures),
    because otherwise no decoder has learned to.

    Args:
        mixture: (B, T), without padding.

    Source: thesis, appendix B, section 4.3 and figure 3.
    """
    extras = separation.extras
    if "encoding_prior" not in extras or not model.encoding_family.variational:
        return None
    sample = separation.encoding.sample(torch.Generator(mixture.device).manual_seed(seed))
    scaled = (model.decode(sample.unsqueeze(1), mixture.shape[-1]) + model.signal_mean) / float(model.signal_std)
    evidence = -pairwise_blr_nll(scaled, mixture[:, None] / float(model.signal_std))[:, 0, 0]
    rate = elementwise_rate(separation.encoding, extras["encoding_prior"], extras.get("encoding_sample"))
    return (evidence.to(widest(evidence)) - rate.to(widest(rate)).flatten(1).sum(1)) / mixture.shape[-1]
