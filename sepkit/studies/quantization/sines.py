"""Experts on a mixture of three sines: how often each way of training merges modes, and what the classifier learns."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from sepkit.cells import cell_seed, run_cells
from sepkit.errors import UserError
from sepkit.models.stacked import StackedLinear
from sepkit.objectives.assignment import AnnealedMCL
from sepkit.schedules import TruncatedExponential
from sepkit.studies.quantization.config import SinesConfig
from sepkit.studies.quantization.data import Sines
from sepkit.studies.quantization.experts import RowAdam, class_probabilities, winner_losses
from sepkit.studies.quantization.measures import total_variation
from sepkit.studies.quantization.splitting import expert_to_split, jitter_rows, split_classes

KINDS = ("plain", "noisy", "split", "annealed")

_FOUND = 0.95
"""Share of the samples of the majority mode of each expert from which on all modes count as found."""


class TanhNetworks(nn.Module):
    """S networks of one tanh layer: (S or 1, B, in) -> (S, B, out).

    Args:
        inputs: in.
        hidden: width.
        outputs: out.
        generators: one a network.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, generators: list[torch.Generator]) -> None:
        super().__init__()
        self.first = StackedLinear(inputs, hidden, generators)
        self.last = StackedLinear(hidden, outputs, generators)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all networks, (S, B, outputs).

        Args:
            x: (S or 1, B, inputs).
        """
        return self.last(self.first(x).tanh())


class ExpertRuns:
    """R runs of n experts and a classifier each, trained as one stack.

    Args:
        config: the experiment.
        kind: of `KINDS`.
        scale: deviation of the targets by which they are divided, (R,).
        variance: of the targets after that, (R,).
    """

    def __init__(self, config: SinesConfig, kind: str, scale: Tensor, variance: Tensor) -> None:
        self.config, self.kind, self.scale = config, kind, scale
        self.runs, n = len(scale), config.experts
        self.experts = TanhNetworks(1, config.hidden, 1, _generators(config, "experts", self.runs * n))
        self.classifiers = TanhNetworks(1, config.hidden, n, _generators(config, "classifiers", self.runs))
        self.expert_steps = RowAdam(self.experts.parameters(), config.learning_rate)
        self.classifier_steps = RowAdam(self.classifiers.parameters(), config.learning_rate)
        self.awake = torch.ones(self.runs, n, dtype=torch.bool)
        if kind == "split":
            self.awake[:, 1:] = False
        self.variance = variance
        free = config.free_share * config.steps
        # Costs are divided by the variance, so that one temperature serves all runs.
        cooling = TruncatedExponential(config.initial_temperature, config.end_ratio ** (1 / free), free)
        self.assignment = AnnealedMCL(cooling if kind == "annealed" else 0.0, floor=1e-4, unit="cost")
        self.noise = config.noise if kind == "noisy" else 0.0
        self.generator = torch.Generator().manual_seed(cell_seed(config.seed, "noise and jitter"))

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        """The squared errors of all experts, (R, B, n).

        Args:
            x: (R, B) inputs.
            y: (R, B) targets.
        """
        inputs = x.unsqueeze(-1).repeat_interleave(self.config.experts, 0)
        predictions = self.experts(inputs).view(self.runs, self.config.experts, -1)
        return (predictions - y.unsqueeze(1)).square().transpose(1, 2)

    def step(self, number: int, x: Tensor, y: Tensor) -> None:
        """Train experts and classifiers on a batch.

        Args:
            number: of the step, from 0 on; the temperature follows it.
            x: (R, B) inputs.
            y: (R, B) targets.
        """
        self.assignment.set_progress(number)
        variance = self.variance[:, None, None]
        losses = winner_losses(
            self.cost(x, y) / variance,
            self.classifiers(x.unsqueeze(-1)),
            self.assignment,
            awake=self.awake,
            reduction=self.config.reduction,
            noise=self.noise if number < self.config.free_share * self.config.steps else 0.0,
            generator=self.generator,
        )
        self.expert_steps.zero_grad()
        self.classifier_steps.zero_grad()
        ((losses.experts * self.variance).sum() + losses.classifiers.sum()).backward()
        self.expert_steps.step(losses.active.flatten())
        self.classifier_steps.step(torch.ones(self.runs, dtype=torch.bool))

    @torch.no_grad()
    def grow(self, x: Tensor, y: Tensor) -> None:
        """Wake one more expert in every run.

        Args:
            x: (R, N) inputs, by whose shares the expert to split is chosen.
            y: (R, N) targets.
        """
        runs = torch.arange(self.runs)
        source = expert_to_split(self.cost(x, y), self.awake, self.config.split_by)
        target = self.awake.sum(1)
        rows = self.config.experts * runs
        self.expert_steps.copy_rows(rows + source, rows + target)
        jitter_rows(self.expert_steps, rows + target, self.config.jitter, self.generator)
        last = self.classifiers.last
        split_classes(self.classifier_steps, last.weight, last.bias, runs, source, target)
        self.awake[runs, target] = True


def _generators(config: SinesConfig, name: str, count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(cell_seed(config.seed, f"{name} {place}")) for place in range(count)]


def sines(config: SinesConfig, folder: Path) -> dict[str, Any]:
    """Return purity, distortion and the classifier's distance from the truth, run by run, per kind and scale of
    targets.

    Args:
        config: the experiment.
        folder: of the cells.

    Raises:
        UserError: an unknown kind or scale.
    """
    for name, known in (("kinds", KINDS), ("targets", ("raw", "standardized"))):
        for value in getattr(config, name):
            if value not in known:
                raise UserError(f"{name}: found {value!r}, expected {', '.join(known)}")
    shared = {name: value for name, value in asdict(config).items() if name not in ("kinds", "targets")}
    cells = {
        f"sines_{kind}_{target}": {"kind": kind, "target": target, "config": shared}
        for target in config.targets
        for kind in config.kinds
    }
    compute = lambda kind, target, **_: train_sines(config, kind, target == "standardized")  # noqa: E731
    rows = list(run_cells(cells, compute, folder / "cells", config.seed).values())
    return {"least_distortion": config.deviation**2, "rows": rows}


def train_sines(config: SinesConfig, kind: str, standardize: bool) -> dict[str, Any]:
    """Train all runs of one kind, and return measures of them on fresh samples.

    Args:
        config: the experiment.
        kind: of `KINDS`.
        standardize: whether targets are divided by their deviation.
    """
    law = Sines(config.deviation)
    drawn = [law.sample(config.examples, generator) for generator in _generators(config, "training", config.seeds)]
    x, y = torch.stack([part[0] for part in drawn]), torch.stack([part[1] for part in drawn])
    mean, deviation = y.mean(1), y.std(1, correction=0)
    # Raw targets are as they come, not even centered.
    scale, shift = (deviation, mean) if standardize else (torch.ones_like(mean), torch.zeros_like(mean))
    y = (y - shift[:, None]) / scale[:, None]
    runs = ExpertRuns(config, kind, scale, y.var(1, correction=0))
    orders = _generators(config, "batches", config.seeds)
    phase = config.growth_share * config.steps / max(1, config.experts - 1)
    splits = {math.ceil(phase * (k + 1)) for k in range(config.experts - 1)} if kind == "split" else set()
    for number in tqdm(range(config.steps), desc=kind, unit="step", disable=None, leave=False):
        if number in splits:
            runs.grow(x, y)
        chosen = torch.stack([torch.randint(config.examples, (config.batch_size,), generator=g) for g in orders])
        runs.step(number, x.gather(1, chosen), y.gather(1, chosen))
    return _measure(runs, law, config, shift)


@torch.no_grad()
def _measure(runs: ExpertRuns, law: Sines, config: SinesConfig, shift: Tensor) -> dict[str, Any]:
    x, y, mode = law.sample(config.test_examples, torch.Generator().manual_seed(cell_seed(config.seed, "test")))
    scaled = (y - shift[:, None]) / runs.scale[:, None]
    everywhere = x.expand(runs.runs, -1)
    cost = runs.cost(everywhere, scaled).where(runs.awake[:, None], torch.inf)
    nearest = cost.min(2)
    probabilities = class_probabilities(runs.classifiers(everywhere.unsqueeze(-1)), runs.awake)
    truth = law.probabilities(x)
    purity, distances = [], []
    for winners, classes in zip(nearest.indices, probabilities, strict=True):
        counts = torch.zeros(config.experts, truth.shape[1])
        counts.index_put_((winners, mode), torch.ones(len(mode)), accumulate=True)
        purity.append(float(counts.amax(1).sum()) / len(mode))
        # Mass of each mode: that of the experts whose samples are mostly its own.
        masses = torch.zeros_like(truth).index_add_(1, counts.argmax(1), classes)
        distances.append(float(total_variation(masses, truth).mean()))
    return {
        "purity": purity,
        "merged": sum(value < _FOUND for value in purity),
        "distortion": (nearest.values.mean(1) * runs.scale.square()).tolist(),
        "total_variation": distances,
        "idle": [[k for k in range(config.experts) if not bool((w == k).any())] for w in nearest.indices],
    }
