"""Features of a separation that its latents tell in closed form: what predicts the quality, beside the waveforms."""

from __future__ import annotations

import torch
from torch import Tensor

from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.runtime import is_tracing, widest
from sepkit.types import Density, Latent, Separation

# A ratio of energies is limited to this range, dB; beyond it float32 is measured.
_LEAST_DB, _MOST_DB = -60.0, 60.0


def latent_features(model: EncoderMaskerDecoder, separation: Separation) -> dict[str, Tensor]:
    """Return (B, n) float32 of every feature that a separation has by its latents; none for a deterministic model.

    * `mask_spread_db`: expected energy of what the width of the masks' posterior adds to the estimate, over the
      estimate's, see `EncoderMaskerDecoder.uncertainty_energy`.
    * `encoding_rate_nats_per_frame`, the same for all hypotheses; `mask_rate_nats_per_frame` of the hypothesis itself;
      `path_rate_nats_per_frame`, the same for all.

    A rate without a closed form is estimated from one sample, always the same; a graph does not have it.

    Args:
        separation: of this model, with nothing sampled.

    Source: thesis, appendix A section 4.4 (features of a linear model).
    """
    estimates, extras = separation.estimates, separation.extras
    features: dict[str, Tensor] = {}
    if model.mask_family.variational:
        wide = widest(estimates)
        spread = model.uncertainty_energy(separation).to(wide)
        ratio = spread.clamp_min(0.0) / estimates.to(wide).square().sum(-1)
        features["mask_spread_db"] = (10 * ratio.log10()).clamp(_LEAST_DB, _MOST_DB)
    rates = {
        "encoding": _rate(separation.encoding, extras.get("encoding_prior")),
        "mask": _rate(separation.masks, extras.get("mask_prior")),
        "path": extras.get("path_rate"),
    }
    for name, rate in rates.items():
        if rate is not None:
            # Over the dimensions first: float32 holds their sum, and float64 is slow where it is everywhere.
            of_frames = rate.sum(-2).to(widest(rate))
            per_frame = of_frames.mean(-1)
            of_each = per_frame if name == "mask" else per_frame.unsqueeze(-1).expand(estimates.shape[:2])
            features[f"{name}_rate_nats_per_frame"] = of_each
    return {name: values.float() for name, values in features.items()}


def _rate(posterior: Latent, prior: Density | None) -> Tensor | None:
    """Return the KL divergence of every element from its prior in nats, or its estimate from a sample."""
    if prior is None:
        return None
    try:
        return posterior.kl(prior)
    except TypeError:
        if is_tracing():
            return None
        sample = posterior.sample(torch.Generator(posterior.mean.device).manual_seed(0))
        return posterior.log_prob(sample) - prior.log_prob(sample)
