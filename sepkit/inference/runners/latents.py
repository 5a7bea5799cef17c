"""Statistics of latents that need no references: rates, and the bound on the mixture."""

import math

import torch
from torch import Tensor

from sepkit.models import EncoderMaskerDecoder
from sepkit.models.runtime import widest
from sepkit.objectives.costs import pairwise_blr_nll
from sepkit.objectives.rates import alive_share, elementwise_rate
from sepkit.types import Separation


@torch.no_grad()  # A rate without a closed form is estimated from the same samples at every call, see elementwise_rate.
def rates_of(separation: Separation) -> dict[str, float] | None:
    """Return how many nats the posteriors of an utterance are from their priors; None for deterministic latents.

    `encoding_rate_nats_per_frame` and `mask_rate_nats_per_frame` (of all hypotheses together), as far as they exist;
    `rate_nats_per_dimension`, their sum over the number of latent values of a frame; and the shares of dimensions that
    are alive, `encoding_alive_share` ... (see `sepkit.objectives.rates.alive_share`). They are means over a batch.

    Args:
        separation: Separation of a batch without padding.
    """
    extras, dimensions = separation.extras, 0
    rates: dict[str, float] = {}
    shares: dict[str, float] = {}
    for what, posterior in {"encoding": separation.encoding, "mask": separation.masks}.items():
        if f"{what}_prior" not in extras:
            continue
        rate = elementwise_rate(posterior, extras[f"{what}_prior"], extras.get(f"{what}_sample"))
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
