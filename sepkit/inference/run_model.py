"""One call of a model: estimates, scores and rates as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sepkit.errors import UserError
from sepkit.inference.uncertainty import mixture_elbo, rates_of
from sepkit.models import EncoderMaskerDecoder
from sepkit.types import Separation


@dataclass
class ModelOutput:
    """What a model makes of a batch of mixtures.

    Args:
        estimates: (B, n, T) float32, finite.
        scores: (B, n) float32 log-odds, where the model has a scoring head.
        rates: nats, of the batch's mean, where its latents are variational; see `rates_of`, and `mixture_elbo`.
        separation: with latents, where it was asked for, or where estimates are not all there is to know.
    """

    estimates: np.ndarray
    scores: np.ndarray | None
    rates: dict[str, float] | None
    separation: Separation | None


def run_model(
    model: EncoderMaskerDecoder, mixtures: Tensor, keep_separation: bool = False, evidence: bool = False
) -> ModelOutput:
    """Return the output of a model in evaluation mode.

    If only estimates are needed, masks are computed tile by tile and never held in full.

    Args:
        model: or an exported one.
        mixtures: (B, T), on the device of the model.
        keep_separation: whether the separation itself is wanted.
        evidence: whether the rates include the bound on the evidence of the mixtures, which costs one more decoding.

    Raises:
        UserError: estimates that are not finite.
    """
    separation = scores = rates = None
    with torch.inference_mode():
        if not keep_separation and isinstance(model, EncoderMaskerDecoder) and model.makes_only_estimates:
            estimates = model.estimates(mixtures)
        else:
            separation = model(mixtures)
            estimates, rates = separation.estimates, rates_of(separation)
            if evidence and rates is not None and isinstance(model, EncoderMaskerDecoder):
                bound = mixture_elbo(model, mixtures, separation, samples=1)
                rates |= {} if bound is None else {"mixture_elbo_nats_per_sample": float(bound.mean())}
            scores = None if separation.scores is None else separation.scores.float().cpu().numpy()
    on_cpu = estimates.float().cpu().numpy()
    check_finite(on_cpu)
    return ModelOutput(on_cpu, scores, rates, separation)


def check_finite(waveforms: np.ndarray) -> None:
    """Raise UserError unless all samples are finite."""
    if not np.isfinite(waveforms).all():
        raise UserError(
            "model: its estimates are not finite numbers; its weights are broken, or the recording is louder than "
            "float32 can hold"
        )
