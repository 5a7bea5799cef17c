"""Mixtures of experts where the truth is known: three sines, and RealNVPs on modes in the plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from sepkit.cells import cell_seed, run_cells
from sepkit.errors import UserError
from sepkit.models.stacked import RealNVP, StackedLinear
from sepkit.objectives.assignment import MCL, AnnealedMCL
from sepkit.schedules import TruncatedExponential
from sepkit.studies.quantization.config import FlowsConfig, SinesConfig, settings
from sepkit.studies.quantization.experts import (
    RowAdam,
    class_probabilities,
    expert_to_split,
    jitter,
    seeded,
    split_classes,
    winner_losses,
)
from sepkit.studies.quantization.laws import MODE_DEVIATION, Sines, mode_centers, sample_modes
from sepkit.studies.quantization.measures import FLOOR_OFF_MODES, mode_coverage, squared_wasserstein

KINDS = ("plain", "noisy", "split", "annealed")
"""Ways of training the experts on sines."""

# For the figures: inputs on a grid, and test points.
_GRID, _SHOWN = 101, 1000
# Share of the samples of the majority mode of each expert from which on all modes count as found.
_FOUND = 0.95


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
        predictions = self.experts(inputs).view(self.runs, self.config.experts, -1)
        return (predictions - y.unsqueeze(1)).square().transpose(1, 2)

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
    for name, known in (("kinds", KINDS), ("targets", ("raw", "standardized"))):
        for value in getattr(config, name):
            if value not in known:
                raise UserError(f"{name}: found {value!r}, expected {', '.join(known)}")
    shared = settings(config, "kinds", "targets")
    cells = {
        f"sines_{kind}_{target}": {"kind": kind, "target": target, "config": shared}
        for target in config.targets
        for kind in config.kinds
    }
    compute = lambda kind, target, **_: train_sines(config, kind, target == "standardized")  # noqa: E731
    rows = list(run_cells(cells, compute, folder / "cells", config.seed).values())
    return {"least_distortion": Sines().deviation ** 2, "rows": rows}


def train_sines(config: SinesConfig, kind: str, standardize: bool) -> dict[str, Any]:
    """Train all runs of one kind, and return measures of them on fresh samples."""
    law = Sines()
    drawn = [law.sample(config.examples, generator) for generator in _generators(config, "training", config.seeds)]
    x, y = torch.stack([part[0] for part in drawn]), torch.stack([part[1] for part in drawn])
    mean, deviation = y.mean(1), y.std(1, correction=0)
    # Raw targets are as they come, not even centered.
    scale, shift = (deviation, mean) if standardize else (torch.ones_like(mean), torch.zeros_like(mean))
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
    cost = runs.cost(everywhere, scaled).where(runs.awake[:, None], torch.inf)
    nearest = cost.min(2)
    probabilities = class_probabilities(runs.classifiers(everywhere.unsqueeze(-1)), runs.awake)
    truth = law.probabilities(x)
    purity, distances, modes = [], [], []
    for winners, classes in zip(nearest.indices, probabilities, strict=True):
        counts = torch.zeros(config.experts, truth.shape[1])
        counts.index_put_((winners, mode), torch.ones(len(mode)), accumulate=True)
        purity.append(float(counts.amax(1).sum()) / len(mode))
        modes.append(counts.argmax(1))
        # Mass of each mode: that of the experts whose samples are mostly its own.
        masses = torch.zeros_like(truth).index_add_(1, counts.argmax(1), classes)
        distances.append(float(((masses - truth).abs().sum(-1) / 2).mean()))
    return {
        "purity": purity,
        "merged": sum(value < _FOUND for value in purity),
        "distortion": (nearest.values.mean(1) * scale.square()).tolist(),
        "total_variation": distances,
        "shown": _shown_sines(runs, law, (x, y), modes[0], float(shift[0]), float(scale[0])),
        "idle": [[k for k in range(config.experts) if not bool((w == k).any())] for w in nearest.indices],
    }


def _shown_sines(
    runs: ExpertRuns, law: Sines, points: tuple[Tensor, Tensor], modes: Tensor, shift: float, scale: float
) -> dict[str, Any]:
    """What figures show of the first run: points, and over a grid the predictions and weights of its experts, each with
    the mode that most of its samples are of, and the probabilities of the modes."""
    grid = torch.linspace(float(points[0].min()), float(points[0].max()), _GRID)
    inputs = grid[:, None].expand(runs.runs * runs.config.experts, -1, -1)
    predictions = runs.experts(inputs).view(runs.runs, runs.config.experts, -1)[0] * scale + shift
    weights = class_probabilities(runs.classifiers(grid[:, None].expand(runs.runs, -1, -1)), runs.awake)[0]
    curves = {"predictions": predictions, "weights": weights.mT, "truth": law.probabilities(grid).mT}
    rows = {name: [[round(v, 4) for v in row] for row in values.tolist()] for name, values in curves.items()}
    shown = [[round(v, 3) for v in part[:_SHOWN].tolist()] for part in points]
    return rows | {"x": [round(v, 4) for v in grid.tolist()], "points": shown, "modes": modes.tolist()}


# -------------------------------------------------------------------------------------------------------------- flows


def flows(config: FlowsConfig, folder: Path) -> dict[str, Any]:
    """Return share of samples off every mode, modes hit, transport and likelihood, per target and number of experts."""
    for target in config.targets:
        mode_centers(target)
    shared = settings(config, "targets", "experts")
    cells = {
        f"flows_{target}_{count}": {"target": target, "experts": count, "config": shared}
        for target in config.targets
        for count in config.experts
    }
    compute = lambda target, experts, **_: train_flows(config, target, experts)  # noqa: E731
    rows = run_cells(cells, compute, folder / "cells", config.seed)
    return {
        "floor_off_modes": FLOOR_OFF_MODES,
        "floors_wasserstein": {target: _wasserstein_floor(config, target) for target in config.targets},
        "rows": list(rows.values()),
    }


def train_flows(config: FlowsConfig, target: str, experts: int) -> dict[str, Any]:
    """Train the mixtures of all seeds as one stack, and return measures of samples of them.

    A sample is assigned to the expert of highest likelihood, which alone is trained on it; weights of the mixture are
    shares of the assignments in the last tenth of training.
    """
    centers = mode_centers(target)
    seeds = [cell_seed(config.seed, f"flows {place}") for place in range(config.seeds)]
    # Every flow starts from the seed of its run and its number, whatever the number of experts.
    build = lambda: RealNVP(2, config.couplings, config.hidden, 1, normalize=False)  # noqa: E731
    parts = [seeded(seed + expert, build).state_dict() for seed in seeds for expert in range(experts)]
    flow = RealNVP(2, config.couplings, config.hidden, config.seeds * experts, normalize=False)
    learned = {name for name, _ in flow.named_parameters()}  # masks are common to all
    flow.load_state_dict({n: torch.cat([part[n] for part in parts]) if n in learned else parts[0][n] for n in parts[0]})
    optimizer = RowAdam(flow.parameters(), config.learning_rate)
    draws = [torch.Generator().manual_seed(seed) for seed in seeds]
    counted = torch.zeros(config.seeds, experts)
    assignment = MCL()
    for number in tqdm(range(config.steps), desc=f"{experts} flows", unit="step", disable=None, leave=False):
        x = torch.stack([sample_modes(centers, config.batch_size, g) for g in draws])
        with torch.no_grad():
            cost = -_log_likelihoods(flow, x, experts)  # (R, B, n)
        weights = assignment.weights(cost.flatten(0, 1).unsqueeze(-1)).view_as(cost)
        wins = weights.sum(1)
        if number >= int(0.9 * config.steps):
            counted += wins
        own, counts = _own_samples(x, weights)
        optimizer.zero_grad()
        # The mean over its own samples: an expert's step does not depend on how many the others have.
        (-flow.log_prob(own) * counts).sum().backward()
        optimizer.step((wins > 0).flatten())
    return _measure_flows(flow, counted / counted.sum(1, keepdim=True), centers, config) | {"steps": config.steps}


def _own_samples(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The samples that each expert won, (R n, M, 2), padded, and 1 / (their number), or 0 for padding, (R n, M)."""
    won = weights.transpose(1, 2).bool()  # (R, n, B)
    longest = max(1, int(won.sum(2).max()))
    # A stable sort by "not won" puts the samples that were won first.
    places = torch.argsort((~won).byte(), dim=2, stable=True)[..., :longest]
    counted = won.gather(2, places)
    own = x.unsqueeze(1).expand(-1, won.shape[1], -1, -1).gather(2, places.unsqueeze(-1).expand(-1, -1, -1, 2))
    share = counted / counted.sum(2, keepdim=True).clamp_min(1)
    return own.flatten(0, 1), share.flatten(0, 1)


def _log_likelihoods(flow: RealNVP, x: Tensor, experts: int) -> Tensor:
    """(R, B, n) of points (R, B, 2) under every expert of their run."""
    found = flow.log_prob(x.repeat_interleave(experts, 0))
    return found.view(len(x), experts, -1).transpose(1, 2)


@torch.no_grad()
def _measure_flows(flow: RealNVP, weights: Tensor, centers: Tensor, config: FlowsConfig) -> dict[str, Any]:
    runs, experts = weights.shape
    generator = torch.Generator().manual_seed(cell_seed(config.seed, "samples"))
    drawn, _ = flow.sample(config.samples, generator)
    drawn = drawn.view(runs, experts, config.samples, 2)
    truth = sample_modes(centers, config.samples, generator)
    log_likelihoods = _log_likelihoods(flow, truth.expand(runs, -1, -1), experts)
    mixture = (log_likelihoods + weights.clamp_min(1e-12).log()[:, None]).logsumexp(2)
    found: dict[str, list[float]] = {"off_modes": [], "modes_hit": [], "squared_wasserstein": []}
    for run in range(runs):
        chosen = torch.multinomial(weights[run], config.samples, replacement=True, generator=generator)
        samples = drawn[run, chosen, torch.arange(config.samples)]
        off, hit = mode_coverage(samples, centers, MODE_DEVIATION)
        found["off_modes"].append(off)
        found["modes_hit"].append(hit)
        count = config.transport_samples
        found["squared_wasserstein"].append(squared_wasserstein(samples[:count], truth[:count]))
    return found | {
        "nll_nats": (-mixture.mean(1)).tolist(),
        "weights": [[round(value, 4) for value in row] for row in weights.tolist()],
    }


def _wasserstein_floor(config: FlowsConfig, target: str) -> float:
    """The same between two samples of the truth."""
    generator = torch.Generator().manual_seed(cell_seed(config.seed, f"floor {target}"))
    parts = [sample_modes(mode_centers(target), config.transport_samples, generator) for _ in range(2)]
    return squared_wasserstein(*parts)
