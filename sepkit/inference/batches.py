"""Several mixtures of equal length in one call of a model: how many, and what comes of each."""

from __future__ import annotations

import dataclasses
import math
import sys

import torch
from torch import Tensor

from sepkit.inference.reports import is_out_of_memory
from sepkit.inference.run_model import ModelOutput, run_model
from sepkit.inference.uncertainty import rates_of
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.int8_masker import Int8Masker
from sepkit.types import Separation

# An accelerator separates this many chunks nearly as fast as one.
_ON_ACCELERATOR = 8
# The step of a recurrent network reads all its weights, for one mixture as for four. On one core of an AMD Zen 3 a
# mixture of 5 s takes an LSTM (3 layers of 208 cells) 71 ms alone, 64 ms in pairs, 43 ms in fours, 42 ms in eights; a
# gated recurrence takes 38, 34, 31 and 33 ms. Other maskers have matrix products that are large enough alone.
_RECURRENT_ON_CPU = 4
_SECONDS_ON_CPU = 40.0


def batch_size(model: EncoderMaskerDecoder, device: torch.device, seconds: float) -> int:
    """Return how many mixtures a model separates at once.

    Args:
        model: on `device`. One in 8 bits has scales that depend on the batch: it takes one mixture at a time.
        device: where it computes.
        seconds: length of a mixture; on a CPU a batch has at most 40 s.
    """
    masker = getattr(model, "masker", None)
    if isinstance(masker, Int8Masker):
        return 1
    if device.type != "cpu":
        return _ON_ACCELERATOR
    if not getattr(masker, "small_steps", False):
        return 1
    return max(1, min(_RECURRENT_ON_CPU, math.floor(_SECONDS_ON_CPU / max(seconds, 1e-3))))


class Batches:
    """Runs a model on mixtures of equal length, at most `size` at once.

    If a batch does not fit into memory, it says so in one line, and goes on with half as many from there on.

    Attributes:
        size: mixtures at once; at least 1.

    Args:
        model: in evaluation mode.
        size: see `batch_size`.
    """

    def __init__(self, model: EncoderMaskerDecoder, size: int) -> None:
        self.model, self.size = model, size

    def outputs(self, mixtures: Tensor, keep_separation: bool = False, rates: bool = False) -> list[ModelOutput]:
        """Return what the model gives for each mixture, as batches of one.

        Args:
            mixtures: (B, T), on the device of the model.
            keep_separation: whether the separations themselves are wanted.
            rates: whether the rates of a variational model are wanted.

        Raises:
            UserError: estimates that are not finite.
            RuntimeError: a single mixture does not fit into memory.
        """
        results: list[ModelOutput] = []
        while len(results) < len(mixtures):
            part = mixtures[len(results) : len(results) + self.size]
            if len(part) == 1:
                results.append(run_model(self.model, part, keep_separation, rates))
                continue
            latents = keep_separation or (rates and getattr(self.model, "variational", False))
            try:
                output = run_model(self.model, part, latents)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self.size = len(part) // 2
                print(
                    f"sepkit: {len(part)} mixtures at once do not fit into memory; continuing with {self.size}",
                    file=sys.stderr,
                )
                continue
            results += [_example(output, index, rates) for index in range(len(part))]
        return results


def _example(output: ModelOutput, index: int, rates: bool) -> ModelOutput:
    """Return the output for one mixture of a batch, as a batch of one."""
    only = slice(index, index + 1)
    separation = None if output.separation is None else _separation_of(output.separation, index)
    return ModelOutput(
        output.estimates[only],
        None if output.scores is None else output.scores[only],
        rates_of(separation) if rates and separation is not None else None,
        separation,
    )


def _separation_of(separation: Separation, index: int) -> Separation:
    """Return the part of a separation that belongs to one mixture. Priors are those of all."""
    batch = len(separation.estimates)

    def only(value: object) -> object:
        if isinstance(value, Tensor):
            return value[index : index + 1]
        return value

    found = {field.name: only(getattr(separation, field.name)) for field in dataclasses.fields(separation)}
    for name in ("encoding", "masks"):
        posterior = getattr(separation, name)
        # Parameters broadcast with each other.
        parts = {
            field.name: value[index : index + 1]
            for field in dataclasses.fields(posterior)
            if isinstance(value := getattr(posterior, field.name), Tensor)
            and value.dim() == len(posterior.shape)
            and len(value) == batch
        }
        found[name] = dataclasses.replace(posterior, **parts)
    return Separation(**found)  # type: ignore[arg-type]
