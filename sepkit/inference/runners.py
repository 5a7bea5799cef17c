"""How a model is run: where, in which precision, and how many mixtures at once; estimates come as arrays."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sepkit.errors import UserError
from sepkit.inference.options import Precision
from sepkit.inference.quality.uncertainty import mixture_elbo, rates_of
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.maskers import ConvTasNetMasker, DualPathRNNMasker
from sepkit.models.runtime import has_bfloat16
from sepkit.types import Separation

# An accelerator separates this many chunks nearly as fast as one.
_ON_ACCELERATOR = 8
# The step of a recurrent network reads all its weights, for one mixture as for four. On one core of an AMD Zen 3 a
# mixture of 5 s takes an LSTM (3 layers of 208 cells) 71 ms alone, 64 ms in pairs, 43 ms in fours, 42 ms in eights; a
# gated recurrence takes 38, 34, 31 and 33 ms. Other maskers have matrix products that are large enough alone.
_RECURRENT_ON_CPU = 4
_SECONDS_ON_CPU = 40.0


def device_of(name: str | torch.device) -> torch.device:
    """Return a device by its name in torch, or for "auto" an accelerator if there is one.

    Raises:
        UserError: no such device here.
    """
    if name == "auto":
        # With several accelerators, each process of torchrun has its own.
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"device: found {str(name)!r}, which is not there ({reason}); use cpu or auto") from error
    return device


def with_precision(model: EncoderMaskerDecoder, precision: Precision, device: torch.device) -> EncoderMaskerDecoder:
    """Return the model, which computes in this precision from now on.

    bfloat16 affects the recurrent networks of dual_path_rnn and the layers behind them, and the 1x1 convolutions of
    conv_tasnet. All else stays in float32.

    Args:
        model: on `device`, perhaps an exported one.
        precision: bfloat16 goes with dual_path_rnn of LSTMs and with conv_tasnet of global norms.

    Raises:
        UserError: the model or the processor cannot compute in it, or gains nothing.
    """
    masker = getattr(model, "masker", None)
    if isinstance(masker, DualPathRNNMasker | ConvTasNetMasker):
        low = precision == "bfloat16"
        if low and device.type == "cpu" and not has_bfloat16():
            raise UserError("precision: found bfloat16, which this processor does not compute in; use float32")
        if low and device.type != "cpu" and isinstance(masker, ConvTasNetMasker):
            raise UserError(
                f"precision: found bfloat16 for conv_tasnet on {device}, expected the device cpu; use float32"
            )
        masker.low_precision = low
    elif precision != "float32":
        what = type(model).__name__ if masker is None else type(masker).__name__
        raise UserError(
            f"precision: found {precision}, which {what} cannot use, only dual_path_rnn and conv_tasnet; use float32"
        )
    return model


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
        mixtures: (B, T), on the device of the model.
        evidence: whether rates include the bound on the evidence of the mixtures, which costs one more decoding.

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
    """Raise UserError unless all samples are finite."""
    if not np.isfinite(waveforms).all():
        raise UserError(
            "model: its estimates are not finite numbers; its weights are broken, or the recording is louder than "
            "float32 can hold"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that a device, or the machine, has too little memory for this recording."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # What torch raises where the CPU's memory ends.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def batch_size(model: EncoderMaskerDecoder, device: torch.device, seconds: float) -> int:
    """Return how many mixtures of a length a model separates at once; on a CPU a batch has at most 40 s."""
    if device.type != "cpu":
        return _ON_ACCELERATOR
    if not getattr(getattr(model, "masker", None), "small_steps", False):
        return 1
    return max(1, min(_RECURRENT_ON_CPU, math.floor(_SECONDS_ON_CPU / max(seconds, 1e-3))))


class Batches:
    """Runs a model on mixtures of equal length, at most `size` at once.

    If a batch does not fit into memory, it says so in one line, and goes on with half as many from there on.

    Attributes:
        size: mixtures at once; at least 1.
    """

    def __init__(self, model: EncoderMaskerDecoder, size: int) -> None:
        self.model, self.size = model, size

    def outputs(self, mixtures: Tensor, rates: bool = False) -> list[ModelOutput]:
        """Return what the model gives for each mixture, as batches of one; rates are means over a batch.

        Args:
            mixtures: (B, T), on the device of the model.

        Raises:
            UserError: estimates that are not finite.
            RuntimeError: a single mixture does not fit into memory.
        """
        results: list[ModelOutput] = []
        while len(results) < len(mixtures):
            part = mixtures[len(results) : len(results) + self.size]
            try:
                output = run_model(self.model, part, rates=rates)
            except (RuntimeError, MemoryError) as error:
                if len(part) == 1 or not is_out_of_memory(error):
                    raise
                self.size = len(part) // 2
                print(
                    f"sepkit: {len(part)} mixtures at once do not fit into memory; continuing with {self.size}",
                    file=sys.stderr,
                )
                continue
            for only in (slice(index, index + 1) for index in range(len(part))):
                scores = None if output.scores is None else output.scores[only]
                results.append(ModelOutput(output.estimates[only], scores, output.rates, None))
        return results
