"""The interface of runners: mixtures in, estimates and the model's statistics out, all as arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from sepkit.errors import UserError
from sepkit.inference.runners.level import BlockRunner, ModelLevel

if TYPE_CHECKING:
    from sepkit.models import EncoderMaskerDecoder

AGREEMENT = "agreement_db"
"""Feature: SI-SDR of an estimate in the other views of the recording to that in the first, mean over views."""


@dataclass
class ModelOutput:
    """The output of a model for a batch of mixtures.

    Args:
        estimates: (B, n, T) float32, finite.
        scores: (B, n) float32 log-odds that each is a speaker, where the model has scores.
        features: Statistics of the latents for each estimate, (B, n) float64 each, if requested: `mask_spread_db`,
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


@runtime_checkable
class Runner(Protocol):
    """A model that can be run: the only view that the rest of inference has of a model.

    A runner is not changed after it is made. `with_speakers` and `with_depth` return another runner of the same weights
    that estimates a fixed number of speakers, or computes with another number of steps; the runner itself where that
    changes nothing.

    Attributes:
        sample_rate: Sampling rate of the model, Hz.
        hypotheses: Number of estimates per mixture, n.
        info: Data saved beside the weights.
        signal_std: Deviation of the training mixtures.
        level: Brings mixtures to the level of the model, and estimates back.
        kind: "graph" or "torch".
        device: Device of the model: cpu, cuda:0 ...
        scored: Whether estimates have scores.
        score_loss: Loss that scores were trained with; None without scores.
        counts_speakers: Whether the model counts speakers; with `with_speakers` it no longer does.
        variational: Whether latents have a distribution.
        has_rates: Whether latents have priors, and so rates.
        views: Number of views of a recording that estimates are means over, see `ViewsRunner`; 1: the recording alone.
        depth: Number of steps of a model of continuous depth; None for other models.
        trained_steps: Number of steps that a model of continuous depth was trained with.
        small_steps: Whether the model computes in steps too small to be shared by threads.
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
    views: int
    depth: int | None
    trained_steps: int | None
    small_steps: bool

    @property
    def model(self) -> EncoderMaskerDecoder | None:
        """The model in torch; None for a graph."""
        ...

    def run(
        self, mixtures: np.ndarray, features: bool = False, rates: bool = False, evidence: bool = False
    ) -> ModelOutput:
        """Return the output for mixtures (B, T) of any level and mean, computing what is asked for and no more.

        The model gets mixtures of zero mean and its own level; estimates come back at the level of the mixtures.

        Args:
            evidence: Whether rates include the bound on the evidence of the mixtures, if the runner supports it.

        Raises:
            UserError: estimates that are not finite.
        """
        ...

    def with_speakers(self, n: int) -> Runner:
        """Return a runner that separates n speakers: a model that counts estimates n, any other runs as before.

        Args:
            n: Number of speakers, from 1 to `hypotheses`.

        Raises:
            UserError: a graph of a model that counts, whose number of speakers cannot be fixed.
        """
        ...

    def with_depth(self, n: int) -> Runner:
        """Return a runner of the same model that computes in n steps.

        Args:
            n: Number of steps; more steps take longer.

        Raises:
            UserError: a model of fixed depth, or a graph, which has one depth.
        """
        ...

    def stream(self) -> BlockRunner:
        """Return a recording's way through the model, block by block; the model has to be causal."""
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
