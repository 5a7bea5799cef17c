"""Features of a separation that its latents give in closed form; with the waveforms, they predict its quality."""

import torch
from torch import Tensor

from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.runtime import widest
from sepkit.types import Density, Latent, Separation

# A ratio of energies is limited to this range, dB; beyond it float32 is measured.
_LEAST_DB, _MOST_DB = -60.0, 60.0


def latent_features(model: EncoderMaskerDecoder, separation: Separation, estimated: bool = True) -> dict[str, Tensor]:
    """Return (B, n) float32 of every feature that a separation has by its latents; none for a deterministic model.

    * `mask_spread_db`: expected energy of what the width of the masks' posterior adds to the estimate, over the
      estimate's, see `EncoderMaskerDecoder.uncertainty_energy`.
    * `encoding_rate_nats_per_frame`, the same for all hypotheses; `mask_rate_nats_per_frame` of the hypothesis itself.

    Args:
        separation: Separation by this model, without sampling.
        estimated: whether a rate without a closed form is estimated, from one sample, which is always the same.

    Source: thesis, appendix A section 4.4 (features of a linear model).
    """
    features: dict[str, Tensor] = {}
    if model.mask_family.variational:
        wide = widest(separation.estimates)
        spread = model.uncertainty_energy(separation).to(wide)
        ratio = spread.clamp_min(0.0) / separation.estimates.to(wide).square().sum(-1)
        features["mask_spread_db"] = (10 * ratio.log10()).clamp(_LEAST_DB, _MOST_DB)
    for name, rate in _rates_of_frames(separation, estimated).items():
        features[f"{name}_rate_nats_per_frame"] = rate.mean(-1)
    return {name: values.float() for name, values in features.items()}


def latent_sums(model: EncoderMaskerDecoder, separation: Separation) -> dict[str, Tensor]:
    """Return (B, n) float32 of what features in closed form follow from.

    They are sums over frames, so that those of parts of a recording add up: `mask_spread_energy` (in the
    mixture's units), `encoding_rate_nats` and `mask_rate_nats`.

    Args:
        model: Model that made the separation.
        separation: Separation, with nothing sampled.
    """
    sums: dict[str, Tensor] = {}
    if model.mask_family.variational:
        sums["mask_spread_energy"] = model.uncertainty_energy(separation)
    for name, rate in _rates_of_frames(separation, estimated=False).items():
        sums[f"{name}_rate_nats"] = rate.sum(-1)
    return {name: values.float() for name, values in sums.items()}


def _rates_of_frames(separation: Separation, estimated: bool) -> dict[str, Tensor]:
    """Return the rates that a separation has, (B, n, F) nats, as precise as the device computes."""
    extras = separation.extras
    rates = {
        "encoding": _rate(separation.encoding, extras.get("encoding_prior"), estimated),
        "mask": _rate(separation.masks, extras.get("mask_prior"), estimated),
    }
    of_frames: dict[str, Tensor] = {}
    for name, rate in rates.items():
        if rate is not None:
            # Over the dimensions first: float32 holds their sum, and float64 is slow where it is everywhere.
            summed = rate.sum(-2).to(widest(rate))
            sizes = (-1, separation.estimates.shape[1], -1)
            of_frames[name] = summed if name == "mask" else summed.unsqueeze(1).expand(*sizes)
    return of_frames


def _rate(posterior: Latent, prior: Density | None, estimated: bool) -> Tensor | None:
    """Return the KL divergence of every element from its prior in nats, or its estimate from a sample, if wanted."""
    if prior is None:
        return None
    try:
        return posterior.kl(prior)
    except TypeError:
        if not estimated:
            return None
        sample = posterior.sample(torch.Generator(posterior.mean.device).manual_seed(0))
        return posterior.log_prob(sample) - prior.log_prob(sample)
