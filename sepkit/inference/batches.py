"""Several mixtures of equal length in one call of a model: how many, and what comes of each."""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from sepkit.inference.reports import is_out_of_memory
from sepkit.inference.run_model import ModelOutput, run_model
from sepkit.models import EncoderMaskerDecoder

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
        model: on `device`.
        device: where it computes.
        seconds: length of a mixture; on a CPU a batch has at most 40 s.
    """
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

    Args:
        model: in evaluation mode.
        size: see `batch_size`.
    """

    def __init__(self, model: EncoderMaskerDecoder, size: int) -> None:
        self.model, self.size = model, size

    def outputs(self, mixtures: Tensor, rates: bool = False) -> list[ModelOutput]:
        """Return what the model gives for each mixture, as batches of one; rates are means over a batch.

        Args:
            mixtures: (B, T), on the device of the model.
            rates: whether the rates of a variational model are wanted.

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
