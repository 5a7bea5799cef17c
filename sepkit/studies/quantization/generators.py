"""Several generators under one hinge discriminator: modes, precision and recall for more and more of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from sepkit.cells import cell_seed, run_cells
from sepkit.corpora.images import MNIST_SIZE, read_mnist
from sepkit.errors import UserError
from sepkit.models.stacked import StackedModules
from sepkit.objectives.assignment import MCL
from sepkit.studies.quantization.config import GeneratorsConfig
from sepkit.studies.quantization.data import FLOOR_OFF_MODES, mode_centers, mode_coverage, sample_modes
from sepkit.studies.quantization.experts import RowAdam, winner_losses
from sepkit.studies.quantization.image_networks import ImageDiscriminator, ImageGenerator
from sepkit.studies.quantization.measures import precision_recall

Draw = Callable[[int, torch.Generator], Tensor]
"""(count, generator) -> real samples (N, ...)."""


class GeneratorRuns:
    """R runs of n generators, a discriminator and a classifier each, trained as one stack.

    Args:
        config: the experiment.
        target: what is learned.
        generators: n.
        seeds: one a run; what a run starts from depends on its own alone.
    """

    def __init__(self, config: GeneratorsConfig, target: str, generators: int, seeds: list[int]) -> None:
        self.config, self.runs, self.count = config, len(seeds), generators
        make, judge = _networks(config, target)
        latent = lambda outputs: _perceptron([config.latent, *config.hidden, outputs])  # noqa: E731
        self.generators = _stack(make, [cell_seed(seed, f"generator {k}") for seed in seeds for k in range(generators)])
        self.discriminators = _stack(judge, [cell_seed(seed, "discriminator") for seed in seeds])
        self.classifiers = _stack(lambda: latent(generators), [cell_seed(seed, "classifier") for seed in seeds])
        for stack in (self.generators, self.discriminators, self.classifiers):
            stack.to(config.device)
        betas = (config.first_decay, 0.999)
        self.generator_steps = RowAdam(self.generators.parameters(), config.learning_rate, betas)
        self.discriminator_steps = RowAdam(self.discriminators.parameters(), config.learning_rate, betas)
        self.classifier_steps = RowAdam(self.classifiers.parameters(), config.learning_rate)
        self.learned = torch.zeros(self.runs, generators)
        """Latents that each generator has learned from."""

    @property
    def going(self) -> Tensor:
        """(R,) bool, runs in which a generator has not had all of its batches."""
        return (self.learned < self.config.steps * self.config.batch_size).any(1)

    def make(self, latents: Tensor) -> Tensor:
        """What all generators make, (R, n, B, ...).

        Args:
            latents: (R, B, d).
        """
        made = self.generators(latents.repeat_interleave(self.count, 0))
        return made.unflatten(0, (self.runs, self.count))

    def judge(self, latents: Tensor, real: Tensor, rows: Tensor) -> None:
        """One step of the discriminators of some runs: the hinge loss of real samples and of those of all generators.

        Args:
            latents: (R, B, d).
            real: (R, B, ...).
            rows: (R,) bool.
        """
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

        Args:
            latents: (R, B, d).
            rows: (R,) bool, which runs.
        """
        made = self.make(latents)
        cost = -self.discriminators(made.flatten(1, 2)).view(self.runs, self.count, -1).transpose(1, 2)
        losses = winner_losses(cost, self.classifiers(latents), MCL(), reduction="mean")
        self.generator_steps.zero_grad()
        self.classifier_steps.zero_grad()
        (losses.experts.sum() + losses.classifiers.sum()).backward()
        # Gradients that reached the discriminators are dropped by the next step of theirs.
        self.generator_steps.step((losses.active & rows[:, None].to(losses.active.device)).flatten())
        self.classifier_steps.step(rows)
        wins = nn.functional.one_hot(losses.winners.cpu(), self.count).sum(1)
        self.learned += wins * rows[:, None]

    @torch.no_grad()
    def sample(self, run: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return samples of a run, (N, ...), and the numbers of the generators that made them, (N,).

        Args:
            run: its number.
            count: N.
            generator: of the draws.
        """
        latents = torch.randn(count, self.config.latent, generator=generator)
        everywhere = latents.expand(self.runs, -1, -1).to(self.config.device)
        made = self.make(everywhere)[run].cpu()
        if self.config.choice == "uniform":
            chances = torch.ones(count, self.count)
        else:
            chances = self.classifiers(everywhere)[run].softmax(1).cpu()
        chosen = torch.multinomial(chances, 1, generator=generator)[:, 0]
        return made[chosen, torch.arange(count)], chosen


def _stack(build: Callable[[], nn.Module], seeds: list[int]) -> StackedModules:
    networks = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.manual_seed(seed)
            networks.append(build())
    return StackedModules(networks)


def _perceptron(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _networks(config: GeneratorsConfig, target: str) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
    """Return what makes a generator, and a discriminator."""
    if target == "digits":
        return (
            lambda: ImageGenerator(config.latent, config.channels),
            lambda: ImageDiscriminator(config.channels[::-1]),
        )
    return (
        lambda: _perceptron([config.latent, *config.hidden, 2]),
        lambda: _perceptron([2, *config.hidden, 1]),
    )


def generators(config: GeneratorsConfig, folder: Path, images: Path | None = None) -> dict[str, Any]:
    """For each target: modes, precision, recall and entropy for each number of generators, and of independent ones.

    Trainings are cells below the folder: the same call again continues.

    Args:
        config: the experiment.
        folder: of the cells.
        images: binarized MNIST, for the target "digits".

    Returns:
        The table.

    Raises:
        UserError: an unknown target, or digits without images.
    """
    for target in config.targets:
        if target == "digits" and images is None:
            raise UserError("--images: nothing given, expected binarized MNIST for the target digits")
        if target != "digits":
            mode_centers(target)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device: found cuda, but torch sees no such device here; use cpu")
    shared = {k: v for k, v in asdict(config).items() if k not in ("targets", "generators", "independent")}
    cells: dict[str, dict[str, Any]] = {}
    for target in config.targets:
        for count in config.generators:
            cells[f"generators_{target}_{count}"] = {"target": target, "generators": count, "config": shared}
        if config.independent:
            own = {"target": target, "independent": config.independent, "config": shared}
            cells[f"generators_{target}_independent"] = own

    def compute(target: str, generators: int = 1, independent: int = 1, **_: Any) -> dict[str, Any]:
        return train_generators(config, target, generators, independent, images)

    rows = run_cells(cells, compute, folder / "cells", config.seed)
    return {"floor_off_modes": FLOOR_OFF_MODES, "rows": list(rows.values())}


def train_generators(
    config: GeneratorsConfig, target: str, generators: int, independent: int = 1, images: Path | None = None
) -> dict[str, Any]:
    """Train the generators of all seeds, and measure samples of them.

    Args:
        config: the experiment.
        target: "ring", "grid" or "digits".
        generators: n.
        independent: trainings whose samples are put together in equal parts.
        images: binarized MNIST.

    Returns:
        By seed: `precision`, `recall`, `entropy` (of the shares of samples, over its maximum), `updates` (batches that
        each generator has learned from), `steps` (of the discriminator); in the plane `off_modes` and `modes_hit`.
    """
    draw = _real(config, target, images)
    names = [f"generators {place}" for place in range(config.seeds * independent)]
    seeds = [cell_seed(config.seed, name) for name in names]
    runs = GeneratorRuns(config, target, generators, seeds)
    sources = [torch.Generator().manual_seed(cell_seed(seed, "training")) for seed in seeds]
    steps = torch.zeros(len(seeds), dtype=torch.int64)
    limit = math.ceil(config.most_steps * generators * config.steps)
    for _ in tqdm(range(limit), desc=f"{generators} generators", unit="step", disable=None, leave=False):
        rows = runs.going
        if not bool(rows.any()):
            break
        for _ in range(config.discriminator_steps):
            runs.judge(_latents(config, sources), _batch(config, draw, sources), rows)
        runs.learn(_latents(config, sources), rows)
        steps += rows
    measured = [
        _measure(config, target, draw, runs, list(range(place * independent, (place + 1) * independent)))
        for place in range(config.seeds)
    ]
    found: dict[str, Any] = {name: [one[name] for one in measured] for name in measured[0]}
    updates = (runs.learned / config.batch_size).view(config.seeds, -1)
    return found | {
        "updates": [[round(value, 1) for value in row] for row in updates.tolist()],
        "steps": steps.view(config.seeds, -1).tolist(),
    }


def _latents(config: GeneratorsConfig, sources: list[torch.Generator]) -> Tensor:
    drawn = [torch.randn(config.batch_size, config.latent, generator=source) for source in sources]
    return torch.stack(drawn).to(config.device)


def _batch(config: GeneratorsConfig, draw: Draw, sources: list[torch.Generator]) -> Tensor:
    return torch.stack([draw(config.batch_size, source) for source in sources]).to(config.device)


def _real(config: GeneratorsConfig, target: str, images: Path | None) -> Draw:
    if target != "digits":
        centers = mode_centers(target)
        return lambda count, generator: sample_modes(centers, config.deviation, count, generator)
    assert images is not None
    # Between -1 and 1, as the generators end in tanh.
    known = 2 * torch.from_numpy(read_mnist(images)["train"]).float().unsqueeze(1) - 1
    return lambda count, generator: known[torch.randint(len(known), (count,), generator=generator)]


def _measure(
    config: GeneratorsConfig, target: str, draw: Draw, runs: GeneratorRuns, parts: list[int]
) -> dict[str, Any]:
    """Measure samples of some runs, in equal parts."""
    generator = torch.Generator().manual_seed(cell_seed(config.seed, f"samples {parts[0]}"))
    drawn = [runs.sample(run, -(-config.samples // len(parts)), generator) for run in parts]
    samples = torch.cat([part for part, _ in drawn])
    makers = torch.cat([place * runs.count + chosen for place, (_, chosen) in enumerate(drawn)])
    shares = torch.bincount(makers, minlength=len(parts) * runs.count).double() / len(makers)
    count = config.manifold_samples
    some = samples[torch.randperm(len(samples), generator=generator)[:count]].flatten(1)
    precision, recall = precision_recall(draw(count, generator).flatten(1), some, config.neighbors)
    # At most 1, but for rounding.
    entropy = min(1.0, float(torch.special.entr(shares).sum()) / math.log(len(shares))) if len(shares) > 1 else 1.0
    found = {"precision": precision, "recall": recall, "entropy": entropy}
    if target == "digits":
        shown = samples[torch.randperm(len(samples), generator=generator)[:64]]
        pixels = (127.5 * (shown + 1)).round().byte().reshape(-1, MNIST_SIZE**2)
        return found | {"examples": pixels.tolist()}
    off, hit = mode_coverage(samples, mode_centers(target), config.deviation)
    return found | {"off_modes": off, "modes_hit": hit}
