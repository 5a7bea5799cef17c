"""What every runner does: mixtures in, estimates and what the model tells of them out, all as arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from sepkit.errors import UserError
from sepkit.inference.runners.level import BlockRunner, ModelLevel

AGREEMENT = "agreement_db"
"""Feature: SI-SDR of an estimate in the other views of the recording to that in the first, mean over views."""


@dataclass
class ModelOutput:
    """The output of a model for a batch of mixtures.

    Args:
        estimates: (B, n, T) float32, finite.
        scores: (B, n) float32 log-odds that each is a speaker, where the model has scores.
        features: (B, n) float64 each, what the latents tell of each estimate, if asked for: `mask_spread_db`,
            `encoding_rate_nats_per_frame` and `mask_rate_nats_per_frame`, those that the model has; see
            `sepkit.models.features`.
        rates: nats, of the batch's mean, if they were asked for and the latents are variational.
    """

    estimates: np.ndarray
    scores: np.ndarray | None = None
    features: dict[str, np.ndarray] = field(default_factory=dict)
    rates: dict[str, float] | None = None

    def of(self, place: int) -> ModelOutput:
        """Return what belongs to one mixture, as a batch of one; rates are those of the batch."""
        only = slice(place, place + 1)
        features = {name: values[only] for name, values in self.features.items()}
        return ModelOutput(
            self.estimates[only], None if self.scores is None else self.scores[only], features, self.rates
        )


class Runner(Protocol):
    """A model that can be run.

    Attributes:
        sample_rate: Hz.
        hypotheses: n.
        info: what was saved beside the weights.
        signal_std: deviation of the training mixtures.
        level: brings mixtures to the level of the model, and back.
        kind: graph or torch.
        device: where it computes: cpu, cuda:0 ...
        scored: whether estimates have scores.
        score_loss: what scores are trained by; None without scores.
        counts_speakers: whether the model counts speakers, and makes no more estimates than it counts or is told.
        variational: whether latents have a distribution that can be sampled.
        has_rates: whether latents have priors, and so rates.
        depth_steps: steps of a model of continuous depth; None for other models.
        trained_steps: those that it was trained with.
        small_steps: whether it computes in steps too small to be shared by threads.
    """

    sample_rate: int
    hypotheses: int
    info: Mapping[str, Any]
    signal_std: float
    level: ModelLevel
    kind: Literal["graph", "torch"]
    device: str
    scored: bool
    score_loss: str | None
    counts_speakers: bool
    variational: bool
    has_rates: bool
    depth_steps: int | None
    trained_steps: int | None
    small_steps: bool

    def run(
        self, mixtures: np.ndarray, features: bool = False, rates: bool = False, evidence: bool = False
    ) -> ModelOutput:
        """Return the output for mixtures (B, T) of any level and mean, computing what is asked for and no more.

        The model gets mixtures of zero mean and its own level; estimates come back at the level of the mixtures.

        Args:
            evidence: whether rates include the bound on the evidence of the mixtures, where the runner can tell it.

        Raises:
            UserError: estimates that are not finite.
        """
        ...

    def told(self, speakers: int) -> Runner:
        """Return a runner of the same model with this many estimates, for a model that counts speakers.

        Raises:
            UserError: the runner cannot tell the model.
        """
        ...

    def stream(self) -> BlockRunner:
        """Return a recording's way through the model, block by block; the model has to be causal."""
        ...

    def spread(self, mixture: np.ndarray, samples: int, seed: int, rate: int, num_samples: int) -> np.ndarray:
        """Return the deviation of estimates over samples of the latents, (n, num_samples) float32 at a rate in Hz."""
        ...

    def batch_size(self, seconds: float) -> int:
        """Return how many mixtures of a length go through the model at once."""
        ...

    def fingerprint(self) -> str:
        """Return a digest of the weights."""
        ...


def check_finite(waveforms: np.ndarray) -> None:
    """Raise UserError unless all samples are finite."""
    if not np.isfinite(waveforms).all():
        raise UserError(
            "model: its estimates are not finite numbers; its weights are broken, or the recording is louder than "
            "float32 can hold"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that a device, or the machine, has too little memory for this recording."""
    # torch.OutOfMemoryError by its name, and what torch raises where the CPU's memory ends: torch need not be there.
    named = type(error).__name__ == "OutOfMemoryError"
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and (named or "can't allocate memory" in str(error))
    )


class Batches:
    """Runs a model on mixtures of equal length, at most `size` at once.

    If a batch does not fit into memory, it says so in one line, and goes on with half as many from there on.

    Attributes:
        size: mixtures at once; at least 1.
    """

    def __init__(self, runner: Runner, size: int) -> None:
        self.runner, self.size = runner, size

    def outputs(self, mixtures: np.ndarray, rates: bool = False) -> list[ModelOutput]:
        """Return what the model gives for each mixture of (B, T), as batches of one; rates are means over a batch.

        Raises:
            UserError: estimates that are not finite.
            RuntimeError: a single mixture does not fit into memory.
        """
        results: list[ModelOutput] = []
        while len(results) < len(mixtures):
            part = mixtures[len(results) : len(results) + self.size]
            try:
                output = self.runner.run(part, rates=rates)
            except (RuntimeError, MemoryError) as error:
                if len(part) == 1 or not is_out_of_memory(error):
                    raise
                self.size = len(part) // 2
                print(
                    f"sepkit: {len(part)} mixtures at once do not fit into memory; continuing with {self.size}",
                    file=sys.stderr,
                )
                continue
            results += [output.of(place) for place in range(len(part))]
        return results
