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
    """The output of a model for a batch of mixtures.

    Args:
        estimates: (B, n, T) float32, finite.
        scores: (B, n) float32 log-odds, where the model has a scoring head.
        rates: nats, of the batch's mean, if they were asked for and the latents are variational; see `rates_of`.
        separation: with latents, if it or rates were asked for, or the model has a scoring head.
    """

    estimates: np.ndarray
    scores: np.ndarray | None
    rates: dict[str, float] | None
    separation: Separation | None


def run_model(
    model: EncoderMaskerDecoder,
    mixtures: Tensor,
    keep_separation: bool = False,
    rates: bool = False,
    evidence: bool = False,
) -> ModelOutput:
    """Return the output of a model in evaluation mode, computing what is asked for and no more.

    If only estimates are needed, masks are computed tile by tile, if the masker allows it, and never held in full.

    Args:
        model: or an exported one.
        mixtures: (B, T), on the device of the model.
        keep_separation: whether the separation itself is wanted.
        rates: whether the rates of a variational model are wanted.
        evidence: whether they include the bound on the evidence of the mixtures, which costs one more decoding.

    Raises:
        UserError: estimates that are not finite.
    """
    separation = scores = found = None
    with torch.inference_mode():
        latents = keep_separation or (rates and getattr(model, "variational", False))
        if not latents and isinstance(model, EncoderMaskerDecoder) and model.scoring_head is None:
            estimates = model.estimates(mixtures)
        else:
            separation = model(mixtures)
            estimates = separation.estimates
            if rates:
                found = rates_of(separation)
            if evidence and found is not None:
                bound = mixture_elbo(model, mixtures, separation, samples=1)
                found |= {} if bound is None else {"mixture_elbo_nats_per_sample": float(bound.mean())}
            scores = None if separation.scores is None else separation.scores.float().cpu().numpy()
    on_cpu = estimates.float().cpu().numpy()
    check_finite(on_cpu)
    return ModelOutput(on_cpu, scores, found, separation)


def check_finite(waveforms: np.ndarray) -> None:
    """Raise UserError unless all samples are finite.

    Args:
        waveforms: estimates of any shape.
    """
    if not np.isfinite(waveforms).all():
        raise UserError(
            "model: its estimates are not finite numbers; its weights are broken, or the recording is louder than "
            "float32 can hold"
        )
