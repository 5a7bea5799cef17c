"""Separate experts with a classifier (CCLVQ), and three of them on three sines.

In a winner step experts without samples do not move.
R runs with n experts each are one stack of R n networks; rows of parameters are ordered run by run. Experts may sleep:
they have no part in anything until a split wakes them. A split copies the expert with the largest share
(`RowAdam.copy_rows`) and divides its class; before the jitter it changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from sepkit.cells import cell_seed, run_cells
from sepkit.models.stacked import StackedLinear
from sepkit.objectives.assignment import AnnealedMCL, Assignment
from sepkit.objectives.scoring import score_loss
from sepkit.reporting.figures import COLORS, panels
from sepkit.schedules import TruncatedExponential
from sepkit.studies.quantization.config import SinesConfig, settings

# For the figures: inputs on a grid, and test points.
_GRID, _SHOWN = 101, 1000
# Share of the samples of the majority mode of each expert from which on all modes count as found.
_FOUND = 0.95
# Of a sleeping expert: finite, so that its product with a share of zero is zero.
_NO_LOGIT = -1e9
# Of Adam.
_BETAS, _EPS = (0.9, 0.999), 1e-8


class RowAdam:
    """Adam on stacked parameters, row by row: networks without samples keep weights, moments and number of steps.

    Adam with a zero gradient would move them on by their momentum.
    """

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        self.parameters, self.learning_rate = list(parameters), learning_rate
        self.first = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.second = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = torch.zeros(len(self.parameters[0]), dtype=torch.float64)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rows: Tensor) -> None:
        """Take one step of the networks in `rows`, (S,) bool; the others stay as they are, bit for bit."""
        self.steps += rows
        decays = [1 - beta ** self.steps.clamp_min(1) for beta in _BETAS]
        for parameter, first, second in zip(self.parameters, self.first, self.second, strict=True):
            assert parameter.grad is not None
            shape = (-1, *[1] * (parameter.ndim - 1))
            moving = rows.view(shape)
            one, two = (decay.view(shape).to(parameter) for decay in decays)
            new_first = first.lerp(parameter.grad, 1 - _BETAS[0])
            new_second = _BETAS[1] * second + (1 - _BETAS[1]) * parameter.grad.square()
            change = self.learning_rate * (new_first / one) / (new_second.sqrt() / two.sqrt() + _EPS)
            first.copy_(new_first.where(moving, first))
            second.copy_(new_second.where(moving, second))
            parameter.copy_((parameter - change).where(moving, parameter))

    @torch.no_grad()
    def copy_rows(self, source: Tensor, target: Tensor) -> None:
        """Give the networks `target`, (K,) indices, the parameters, moments and steps of the networks `source`."""
        for tensor in (*self.parameters, *self.first, *self.second, self.steps):
            tensor[target] = tensor[source]


@dataclass(frozen=True)
class WinnerLosses:
    """Losses of a step of experts and classifiers.

    Args:
        experts: (R, B) losses of the experts; their gradient reaches winners alone if the assignment is hard.
        classifiers: (R,) mean cross-entropy of the assignments.
        active: (R, n) bool, experts with samples.
        winners: (R, B) indices.
    """

    experts: Tensor
    classifiers: Tensor
    active: Tensor
    winners: Tensor


def winner_losses(
    cost: Tensor,
    logits: Tensor,
    assignment: Assignment,
    *,
    awake: Tensor | None = None,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> WinnerLosses:
    """Return the losses of Algorithm 1 for cost and logits (R, B, n): who wins is decided with noise, what winning
    costs is without.

    Args:
        assignment: MCL for the paper's rule.
        awake: (R, n) bool; None: all experts. Noise is in units of the run's median winner cost.

    Source: CCLVQ paper, algorithm 1 and appendix B.3.
    """
    runs, batch, n = cost.shape
    if awake is None:
        awake = torch.ones(runs, n, dtype=torch.bool)
    judged = cost.detach()
    if noise:
        unit = judged.where(awake[:, None], torch.inf).amin(2).median(1).values
        drawn = torch.randn(judged.shape, generator=generator, dtype=cost.dtype)
        judged = judged + (noise * unit)[:, None, None] * drawn
    judged = judged.where(awake[:, None], torch.inf).reshape(runs * batch, n, 1)
    weights = assignment.weights(judged)
    matched = assignment.value(cost.reshape(runs * batch, n, 1), weights).view(runs, batch)
    logits = logits.where(awake[:, None], _NO_LOGIT).reshape(runs * batch, n)
    scored = score_loss(logits, judged, kind="cross_entropy").view(runs, batch)
    return WinnerLosses(
        matched, scored.mean(1), (weights.view(runs, batch, n) > 0).any(1), judged.view(runs, batch, n).argmin(2)
    )


def class_probabilities(logits: Tensor, awake: Tensor) -> Tensor:
    """Return the classifier's distribution over the experts that are awake, (R, n) bool, of logits (R, B, n)."""
    return logits.where(awake[:, None], _NO_LOGIT).softmax(-1)


def expert_to_split(cost: Tensor, awake: Tensor) -> Tensor:
    """Return the expert of each run with the largest share of the distortion, (R,), for cost (R, N, n) of fixed
    samples.

    Source: CCLVQ paper, section 4.1.
    """
    nearest = cost.where(awake[:, None], torch.inf).min(2)
    shares = torch.zeros(cost.shape[0], cost.shape[2], dtype=cost.dtype)
    return shares.scatter_add_(1, nearest.indices, nearest.values).where(awake, -1.0).argmax(1)


@torch.no_grad()
def jitter(parameters: Iterable[Tensor], rows: Tensor, size: float, generator: torch.Generator) -> None:
    """Push networks by normal noise of `size` times the RMS of each of their tensors.

    Parameters are (S, ...), rows (K,) indices of networks. The RMS is that of one network's tensor; its deviation would
    be undefined for a bias of one element. A size of 0.01 keeps what they predict nearly as it was.
    """
    for parameter in parameters:
        chosen = parameter[rows]
        rms = chosen.flatten(1).square().mean(1).sqrt().view(-1, *[1] * (chosen.ndim - 1))
        noise = torch.randn(chosen.shape, generator=generator, dtype=chosen.dtype)
        parameter[rows] = chosen + size * rms * noise


@torch.no_grad()
def split_classes(
    tensors: Sequence[Tensor], biases: Tensor, runs: Tensor, source: Tensor | int, target: Tensor | int
) -> None:
    """Divide the mass of class `source` equally between it and class `target`, in each of some runs.

    Tensors (R, ..., n) are weights, biases (also given alone, (R, 1, n)) and their moments; runs and classes have (K,)
    indices. Weights are copied with their moments, and log 2 is taken off both biases.
    """
    for tensor in tensors:
        tensor[runs, :, target] = tensor[runs, :, source]
    biases[runs, 0, source] -= math.log(2)
    biases[runs, 0, target] -= math.log(2)


# --------------------------------------------------------------------------------------------------------------- sines


class TanhNetworks(nn.Module):
    """S networks of one tanh layer: (S or 1, B, inputs) -> (S, B, outputs)."""

    def __init__(self, inputs: int, hidden: int, outputs: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.first = StackedLinear(inputs, hidden, generators)
        self.last = StackedLinear(hidden, outputs, generators)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all networks."""
        return self.last(self.first(x).tanh())


class ExpertRuns:
    """R runs of n experts and a classifier each, trained as one stack."""

    def __init__(self, config: SinesConfig, kind: str, variance: Tensor) -> None:
        self.config, self.variance = config, variance
        self.runs, n = len(variance), config.experts
        self.experts = TanhNetworks(1, config.hidden, 1, _generators(config, "experts", self.runs * n))
        self.classifiers = TanhNetworks(1, config.hidden, n, _generators(config, "classifiers", self.runs))
        self.expert_steps = RowAdam(self.experts.parameters(), config.learning_rate)
        self.classifier_steps = RowAdam(self.classifiers.parameters(), config.learning_rate)
        self.awake = torch.ones(self.runs, n, dtype=torch.bool)
        if kind == "split":
            self.awake[:, 1:] = False
        free = config.free_share * config.steps
        # Costs are divided by the variance, so that one temperature serves all runs.
        cooling = TruncatedExponential(config.initial_temperature, config.end_ratio ** (1 / free), free)
        self.assignment = AnnealedMCL(cooling if kind == "annealed" else 0.0, floor=1e-4, unit="cost")
        self.noise = config.noise if kind == "noisy" else 0.0
        self.generator = torch.Generator().manual_seed(cell_seed(config.seed, "noise and jitter"))

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the squared errors of all experts, (R, B, n), for inputs and targets (R, B)."""
        inputs = x.unsqueeze(-1).repeat_interleave(self.config.experts, 0)
        return (self.experts(inputs).view(self.runs, self.config.experts, -1) - y.unsqueeze(1)).square().transpose(1, 2)

    def step(self, number: int, x: Tensor, y: Tensor) -> None:
        """Take step `number`, which the temperature follows, on inputs and targets (R, B)."""
        self.assignment.set_progress(number)
        variance = self.variance[:, None, None]
        losses = winner_losses(
            self.cost(x, y) / variance,
            self.classifiers(x.unsqueeze(-1)),
            self.assignment,
            awake=self.awake,
            noise=self.noise if number < self.config.free_share * self.config.steps else 0.0,
            generator=self.generator,
        )
        self.expert_steps.zero_grad()
        self.classifier_steps.zero_grad()
        ((losses.experts.sum(1) * self.variance).sum() + losses.classifiers.sum()).backward()
        self.expert_steps.step(losses.active.flatten())
        self.classifier_steps.step(torch.ones(self.runs, dtype=torch.bool))

    @torch.no_grad()
    def grow(self, x: Tensor, y: Tensor) -> None:
        """Wake one more expert in every run: a copy of the one with the largest share on these samples, (R, N)."""
        runs = torch.arange(self.runs)
        source = expert_to_split(self.cost(x, y), self.awake)
        target = self.awake.sum(1)
        rows = self.config.experts * runs
        self.expert_steps.copy_rows(rows + source, rows + target)
        jitter(self.expert_steps.parameters, rows + target, self.config.jitter, self.generator)
        last, steps = self.classifiers.last, self.classifier_steps
        own = [place for place, p in enumerate(steps.parameters) if p is last.weight or p is last.bias]
        tensors = [of[place] for place in own for of in (steps.parameters, steps.first, steps.second)]
        split_classes(tensors, last.bias, runs, source, target)
        self.awake[runs, target] = True


def _generators(config: SinesConfig, name: str, count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(cell_seed(config.seed, f"{name} {place}")) for place in range(count)]


def sines(config: SinesConfig, folder: Path) -> dict[str, Any]:
    """Return how often each kind merges modes, distortions, and the classifier's distance from the truth."""
    shared = settings(config, "kinds", "targets")
    cells = {
        f"sines_{kind}_{target}": {"kind": kind, "target": target, "config": shared}
        for target, kind in product(config.targets, config.kinds)
    }
    rows = run_cells(cells, lambda kind, target, **_: train_sines(config, kind, target), folder / "cells", config.seed)
    return {"least_distortion": Sines().deviation ** 2, "rows": list(rows.values())}


def train_sines(config: SinesConfig, kind: str, target: str) -> dict[str, Any]:
    """Train all runs of one kind, and return measures of them on fresh samples."""
    law = Sines()
    drawn = [law.sample(config.examples, generator) for generator in _generators(config, "training", config.seeds)]
    x, y = torch.stack([part[0] for part in drawn]), torch.stack([part[1] for part in drawn])
    mean, deviation = y.mean(1), y.std(1, correction=0)
    # Raw targets are as they come, not even centered.
    scale, shift = (deviation, mean) if target == "standardized" else (torch.ones_like(mean), torch.zeros_like(mean))
    y = (y - shift[:, None]) / scale[:, None]
    runs = ExpertRuns(config, kind, y.var(1, correction=0))
    orders = _generators(config, "batches", config.seeds)
    phase = config.growth_share * config.steps / max(1, config.experts - 1)
    splits = {math.ceil(phase * (k + 1)) for k in range(config.experts - 1)} if kind == "split" else set()
    for number in tqdm(range(config.steps), desc=kind, unit="step", disable=None, leave=False):
        if number in splits:
            runs.grow(x, y)
        chosen = torch.stack([torch.randint(config.examples, (config.batch_size,), generator=g) for g in orders])
        runs.step(number, x.gather(1, chosen), y.gather(1, chosen))
    return _measure_sines(runs, law, config, shift, scale)


@torch.no_grad()
def _measure_sines(runs: ExpertRuns, law: Sines, config: SinesConfig, shift: Tensor, scale: Tensor) -> dict[str, Any]:
    x, y, mode = law.sample(config.test_examples, torch.Generator().manual_seed(cell_seed(config.seed, "test")))
    scaled = (y - shift[:, None]) / scale[:, None]
    everywhere = x.expand(runs.runs, -1)
    nearest = runs.cost(everywhere, scaled).where(runs.awake[:, None], torch.inf).min(2)
    probabilities = class_probabilities(runs.classifiers(everywhere.unsqueeze(-1)), runs.awake)
    truth = law.probabilities(x)
    purity, distances, modes = [], [], []
    for winners, classes in zip(nearest.indices, probabilities, strict=True):
        counts = torch.bincount(3 * winners + mode, minlength=3 * config.experts).view(-1, 3)
        purity.append(float(counts.amax(1).sum()) / len(mode))
        modes.append(counts.argmax(1))
        # Mass of each mode: that of the experts whose samples are mostly its own.
        masses = torch.zeros_like(truth).index_add_(1, modes[-1], classes)
        distances.append(float(((masses - truth).abs().sum(-1) / 2).mean()))
    shown = {"points": [part[:_SHOWN].numpy().round(3).tolist() for part in (x, y)], "modes": modes[0].tolist()}
    return {
        "purity": purity,
        "merged": sum(value < _FOUND for value in purity),
        "distortion": (nearest.values.mean(1) * scale.square()).tolist(),
        "total_variation": distances,
        "shown": shown | _shown_sines(runs, law, x, float(shift[0]), float(scale[0])),
    }


def _shown_sines(runs: ExpertRuns, law: Sines, x: Tensor, shift: float, scale: float) -> dict[str, Any]:
    """Figure data of the first run: over a grid the predictions and weights of its experts, and the probabilities
    of the modes."""
    grid = torch.linspace(float(x.min()), float(x.max()), _GRID)
    inputs = grid[:, None].expand(runs.runs * runs.config.experts, -1, -1)
    predictions = runs.experts(inputs).view(runs.runs, runs.config.experts, -1)[0] * scale + shift
    weights = class_probabilities(runs.classifiers(inputs[: runs.runs]), runs.awake)[0]
    curves = {"x": grid, "predictions": predictions, "weights": weights.mT, "truth": law.probabilities(grid).mT}
    return {name: values.numpy().round(4).tolist() for name, values in curves.items()}


@dataclass(frozen=True)
class Sines:
    """x is normal, I given x is 1, 2 or 3 with probabilities softmax(a_i x), y = sin(2 I x) + 10 I + noise.

    Source: CCLVQ paper, section 5.1.
    """

    deviation: float = 0.3
    slopes: tuple[float, ...] = (-1.0, 0.0, 1.0)

    def probabilities(self, x: Tensor) -> Tensor:
        """Return the distribution of the mode I given x (...), (..., 3)."""
        return (x.unsqueeze(-1) * torch.tensor(self.slopes, dtype=x.dtype)).softmax(-1)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs (N,), targets (N,) and the index of the mode of each, 0, 1 or 2."""
        x = torch.randn(count, generator=generator)
        mode = torch.multinomial(self.probabilities(x), 1, generator=generator)[:, 0]
        number = mode + 1
        noise = self.deviation * torch.randn(count, generator=generator)
        return x, (2 * number * x).sin() + 10 * number + noise, mode


def sines_figures(table: Mapping[str, Any]) -> dict[str, Figure]:
    """Return figures 2 and 3 of the CCLVQ paper, a panel for each way of training, raw or standardized targets: points
    with what every expert predicts, and the experts' weights beside the probabilities of the modes.

    Args:
        table: Result of `sines`.
    """
    found = {}
    for target in dict.fromkeys(row["target"] for row in table["rows"]):
        rows = [row for row in table["rows"] if row["target"] == target]
        found[f"figure_2_points_{target}"] = points = panels("x", ["y"] * len(rows))
        found[f"figure_3_weights_{target}"] = weights = panels("x", ["weight of the expert"] * len(rows))
        for above, below, row in zip(points.axes, weights.axes, rows, strict=True):
            shown, x = row["shown"], row["shown"]["x"]
            above.scatter(*shown["points"], s=4, color="0.7", linewidths=0)
            for place, mode in enumerate(shown["modes"]):
                above.plot(x, shown["predictions"][place], ".", color=COLORS[mode], markersize=3)
                below.plot(x, shown["weights"][place], color=COLORS[mode], linewidth=1.4)
            for mode, values in enumerate(shown["truth"]):
                below.plot(x, values, color=COLORS[mode], linewidth=1.2, linestyle="--")
            above.set_title(f"{row['kind']}, distortion {row['distortion'][0]:.2f}", fontsize=10)
            below.set_title(f"{row['kind']}; dashed: probability of the mode", fontsize=10)
            below.set_ylim(0, 1)
    return found
