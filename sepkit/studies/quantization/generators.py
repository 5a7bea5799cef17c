"""Several generators under one hinge discriminator: modes, precision and recall for more and more of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from sepkit.cells import cell_seed, run_cells
from sepkit.objectives.assignment import MCL
from sepkit.studies.quantization.config import GeneratorsConfig, settings
from sepkit.studies.quantization.experts import RowAdam, seeded, winner_losses
from sepkit.studies.quantization.laws import MODE_DEVIATION, mode_centers, sample_modes
from sepkit.studies.quantization.measures import FLOOR_OFF_MODES, mode_coverage, precision_recall


class ReLUNetworks(nn.Module):
    """S networks of ReLU layers that start as torch starts them: (S, B, widths[0]) -> (S, B, widths[-1])."""

    def __init__(self, widths: Sequence[int], seeds: Sequence[int]) -> None:
        super().__init__()
        networks = [seeded(seed, lambda: _perceptron(widths)) for seed in seeds]
        states = [dict(network.named_parameters()) for network in networks]
        self._names = list(states[0])
        self.values = nn.ParameterList(torch.stack([s[name].detach() for s in states]) for name in self._names)
        # In a tuple it is no submodule: only its layers are used, never its parameters.
        self._one = (copy.deepcopy(networks[0]),)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all networks."""
        state = dict(zip(self._names, self.values, strict=True))
        return torch.func.vmap(lambda own, x: torch.func.functional_call(self._one[0], own, (x,)))(state, x)


def _perceptron(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class GeneratorRuns:
    """R runs of n generators, a discriminator and a classifier each, trained as one stack; each depends on its own
    seed."""

    def __init__(self, config: GeneratorsConfig, count: int, seeds: list[int]) -> None:
        self.config, self.runs, self.count = config, len(seeds), count
        made = [cell_seed(seed, f"generator {k}") for seed in seeds for k in range(count)]
        self.generators = ReLUNetworks([config.latent, *config.hidden, 2], made)
        self.discriminators = ReLUNetworks([2, *config.hidden, 1], [cell_seed(seed, "discriminator") for seed in seeds])
        self.classifiers = ReLUNetworks(
            [config.latent, *config.hidden, count], [cell_seed(seed, "classifier") for seed in seeds]
        )
        betas = (config.first_decay, 0.999)
        self.generator_steps = RowAdam(self.generators.parameters(), config.learning_rate, betas)
        self.discriminator_steps = RowAdam(self.discriminators.parameters(), config.learning_rate, betas)
        self.classifier_steps = RowAdam(self.classifiers.parameters(), config.learning_rate)
        self.learned = torch.zeros(self.runs, count)  # latents that each generator has learned from

    @property
    def going(self) -> Tensor:
        """Return, (R,) bool, runs in which a generator has not had all of its batches."""
        return (self.learned < self.config.steps * self.config.batch_size).any(1)

    def make(self, latents: Tensor) -> Tensor:
        """Return what all generators make of latents (R, B, d), (R, n, B, 2)."""
        made = self.generators(latents.repeat_interleave(self.count, 0))
        return made.unflatten(0, (self.runs, self.count))

    def judge(self, latents: Tensor, real: Tensor, rows: Tensor) -> None:
        """Take a step of some discriminators: the hinge loss of real samples (R, B, 2) and those of all generators."""
        with torch.no_grad():
            made = self.make(latents).flatten(1, 2)
        believed = self.discriminators(torch.cat([real, made], 1)).squeeze(-1)
        count = real.shape[1]
        loss = (1 - believed[:, :count]).relu().mean(1) + (1 + believed[:, count:]).relu().mean(1)
        self.discriminator_steps.zero_grad()
        loss.sum().backward()
        self.discriminator_steps.step(rows)

    def learn(self, latents: Tensor, rows: Tensor) -> None:
        """Take one step of generators and classifiers of some runs.

        Each latent trains the generator that the discriminator believes most, and no other.
        """
        made = self.make(latents)
        cost = -self.discriminators(made.flatten(1, 2)).view(self.runs, self.count, -1).transpose(1, 2)
        losses = winner_losses(cost, self.classifiers(latents), MCL())
        self.generator_steps.zero_grad()
        self.classifier_steps.zero_grad()
        (losses.experts.mean(1).sum() + losses.classifiers.sum()).backward()
        # Gradients that reached the discriminators are dropped by the next step of theirs.
        self.generator_steps.step((losses.active & rows[:, None]).flatten())
        self.classifier_steps.step(rows)
        wins = nn.functional.one_hot(losses.winners, self.count).sum(1)
        self.learned += wins * rows[:, None]

    @torch.no_grad()
    def sample(self, run: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return N samples of a run, (N, 2), and the numbers of the generators that made them, (N,).

        Which one makes a sample is drawn from the classifier's distribution given the latent.
        """
        everywhere = torch.randn(count, self.config.latent, generator=generator).expand(self.runs, -1, -1)
        made = self.make(everywhere)[run]
        chances = self.classifiers(everywhere)[run].softmax(1)
        chosen = torch.multinomial(chances, 1, generator=generator)[:, 0]
        return made[chosen, torch.arange(count)], chosen


def generators(config: GeneratorsConfig, folder: Path) -> dict[str, Any]:
    """Return modes, precision, recall and entropy by target and number of generators, and of independent ones.

    Trainings are cells below the folder: the same call again continues.
    """
    shared = settings(config, "targets", "generators", "independent")
    cells: dict[str, dict[str, Any]] = {}
    for target in config.targets:
        mode_centers(target)
        for count in config.generators:
            cells[f"generators_{target}_{count}"] = {"target": target, "generators": count, "config": shared}
        if config.independent:
            own = {"target": target, "independent": config.independent, "config": shared}
            cells[f"generators_{target}_independent"] = own

    def compute(target: str, generators: int = 1, independent: int = 1, **_: Any) -> dict[str, Any]:
        return train_generators(config, target, generators, independent)

    rows = run_cells(cells, compute, folder / "cells", config.seed)
    return {"floor_off_modes": FLOOR_OFF_MODES, "rows": list(rows.values())}


def train_generators(config: GeneratorsConfig, target: str, generators: int, independent: int = 1) -> dict[str, Any]:
    """Train the generators of all seeds, and measure samples of them.

    Args:
        independent: trainings whose samples are put together in equal parts.

    Returns:
        By seed: `precision`, `recall`, `entropy` (of the shares of samples, over its maximum), `off_modes`,
        `modes_hit`, `updates` (batches that each generator has learned from), `steps` (of the discriminator).
    """
    centers = mode_centers(target)
    seeds = [cell_seed(config.seed, f"generators {place}") for place in range(config.seeds * independent)]
    runs = GeneratorRuns(config, generators, seeds)
    sources = [torch.Generator().manual_seed(cell_seed(seed, "training")) for seed in seeds]
    latents = lambda: torch.stack([torch.randn(config.batch_size, config.latent, generator=s) for s in sources])  # noqa: E731
    real = lambda: torch.stack([sample_modes(centers, config.batch_size, source) for source in sources])  # noqa: E731
    steps = torch.zeros(len(seeds), dtype=torch.int64)
    limit = math.ceil(config.most_steps * generators * config.steps)
    for _ in tqdm(range(limit), desc=f"{generators} generators", unit="step", disable=None, leave=False):
        rows = runs.going
        if not bool(rows.any()):
            break
        for _ in range(config.discriminator_steps):
            runs.judge(latents(), real(), rows)
        runs.learn(latents(), rows)
        steps += rows
    measured = [
        _measure(config, centers, runs, list(range(place * independent, (place + 1) * independent)))
        for place in range(config.seeds)
    ]
    updates = (runs.learned / config.batch_size).view(config.seeds, -1)
    return {name: [one[name] for one in measured] for name in measured[0]} | {
        "updates": [[round(value, 1) for value in row] for row in updates.tolist()],
        "steps": steps.view(config.seeds, -1).tolist(),
    }


def _measure(config: GeneratorsConfig, centers: Tensor, runs: GeneratorRuns, parts: list[int]) -> dict[str, float]:
    generator = torch.Generator().manual_seed(cell_seed(config.seed, f"samples {parts[0]}"))
    drawn = [runs.sample(run, -(-config.samples // len(parts)), generator) for run in parts]
    samples = torch.cat([part for part, _ in drawn])
    makers = torch.cat([place * runs.count + chosen for place, (_, chosen) in enumerate(drawn)])
    shares = torch.bincount(makers, minlength=len(parts) * runs.count).double() / len(makers)
    count = config.manifold_samples
    some = samples[torch.randperm(len(samples), generator=generator)[:count]]
    precision, recall = precision_recall(sample_modes(centers, count, generator), some)
    # At most 1, but for rounding.
    entropy = min(1.0, float(torch.special.entr(shares).sum()) / math.log(len(shares))) if len(shares) > 1 else 1.0
    off, hit = mode_coverage(samples, centers, MODE_DEVIATION)
    return {"precision": precision, "recall": recall, "entropy": entropy, "off_modes": off, "modes_hit": hit}
