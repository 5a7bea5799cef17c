"""Digits of which a part is missing or under noise: several experts restore them, beside independent networks."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from sepkit.cells import cell_seed, run_cells
from sepkit.corpora.images import MNIST_SIZE, read_mnist
from sepkit.errors import UserError
from sepkit.objectives.assignment import MCL
from sepkit.studies.quantization.config import DigitsConfig, settings
from sepkit.studies.quantization.experts import (
    class_probabilities,
    expert_to_split,
    jitter,
    seeded,
    split_classes,
    winner_losses,
)

TASKS = ("upper", "window", "noise")
"""Upper rows missing; a square at a random place missing; Gaussian noise."""

# Images by whose distortion the expert to split is chosen.
_PROBE = 1024
# Steps that each point of the loss's curve is the mean of.
_STEPS_A_RECORD = 10
_BATCH = 500
# Channels of a group of group norm.
_GROUP = 8
Spoil = Callable[[Tensor, torch.Generator], Tensor]


def spoil(task: str, config: DigitsConfig) -> Spoil:
    """Return the function that spoils images (B, 1, 28, 28), with a generator for what is random in it.

    Pixels that are missing are 0.
    """
    if task == "upper":
        return lambda images, _: torch.cat(
            [torch.zeros_like(images[:, :, : config.masked_rows]), images[:, :, config.masked_rows :]], 2
        )
    if task == "window":
        return lambda images, generator: _without_window(images, config.window, generator)
    if task == "noise":
        return lambda images, generator: images + config.noise * torch.randn(images.shape, generator=generator)
    raise UserError(f"tasks: found {task!r}, expected {', '.join(TASKS)}")


def _without_window(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    places = torch.randint(MNIST_SIZE - side + 1, (2, len(images), 1), generator=generator)
    inside = (torch.arange(MNIST_SIZE) >= places) & (torch.arange(MNIST_SIZE) < places + side)
    return images.where(~(inside[0][:, :, None] & inside[1][:, None])[:, None], 0.0)


class RestoringExpert(nn.Sequential):
    """An image of pixels in (0, 1), (B, 1, 28, 28), from a spoiled one.

    Two convolutions, the first with stride 2, two of the bottleneck, a transposed one, and a sigmoid. The bottleneck's
    are dilated by 2 and 4, so that a pixel depends on 33 x 33 others, nearly all of the image: without dilation it is
    17 x 17, and where more is missing an expert can only paint one gray. Group norm sees one image; batch norm would
    see those that an expert has won.

    Source: CCLVQ paper, appendix B.1, where widths, strides and dilations are not given.
    """

    def __init__(self, channels: Sequence[int] = (32, 64)) -> None:
        first, inner = channels
        super().__init__(
            _layer(nn.Conv2d(1, first, 3, stride=2, padding=1, bias=False), first),
            _layer(nn.Conv2d(first, inner, 3, padding=1, bias=False), inner),
            _layer(nn.Conv2d(inner, inner, 3, padding=2, dilation=2, bias=False), inner),
            _layer(nn.Conv2d(inner, inner, 3, padding=4, dilation=4, bias=False), inner),
            _layer(nn.ConvTranspose2d(inner, first, 2, stride=2, bias=False), first),
            nn.Conv2d(first, 1, 3, padding=1),
            nn.Sigmoid(),
        )
        # A third less time on processors with so few channels.
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


class ResNet9(nn.Module):
    """Logits (B, n) of images (B, 1, 28, 28): eight convolutions in three stages, the last two residual.

    Source: CCLVQ paper, appendix B.1, where the widths are not given.
    """

    def __init__(self, classes: int, channels: Sequence[int] = (16, 32, 64)) -> None:
        super().__init__()
        first, second, third = channels
        self.stem = nn.Sequential(_convolution(1, first), nn.MaxPool2d(2))
        self.second = nn.Sequential(_convolution(first, second), nn.MaxPool2d(2))
        self.second_residual = nn.Sequential(_convolution(second, second), _convolution(second, second))
        self.third = _convolution(second, third)
        self.third_residual = nn.Sequential(_convolution(third, third), _convolution(third, third))
        self.last = nn.Linear(third, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        x = self.second(self.stem(images))
        x = x + self.second_residual(x)
        x = self.third(x)
        x = x + self.third_residual(x)
        return self.last(x.amax((2, 3)))


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return _layer(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), outputs)


def _layer(convolution: nn.Module, channels: int) -> nn.Sequential:
    return nn.Sequential(convolution, nn.GroupNorm(max(1, channels // _GROUP), channels), nn.ReLU())


class DigitExperts:
    """n experts, grown from one, and a classifier that says which of them will be nearest."""

    def __init__(self, config: DigitsConfig, experts: int, seed: int) -> None:
        self.config, self.count = config, experts
        self.networks = [
            seeded(cell_seed(seed, f"expert {place}"), lambda: RestoringExpert(config.channels))
            for place in range(experts)
        ]
        self.classifier = seeded(cell_seed(seed, "classifier"), lambda: ResNet9(experts, config.classifier_channels))
        self.steps, (self.classifier_steps,) = (
            [torch.optim.Adam(network.parameters(), lr=config.learning_rate, fused=True) for network in networks]
            for networks in (self.networks, [self.classifier])
        )
        self.awake = torch.arange(experts)[None] == 0
        self.losses: list[float] = []
        self.generator = torch.Generator().manual_seed(cell_seed(seed, "noise and jitter"))

    @torch.no_grad()
    def restore(self, spoiled: Tensor) -> Tensor:
        """Return the images of all experts, (B, n, 784), for spoiled ones (B, 1, 28, 28); zeros of those that sleep."""
        images = spoiled.new_zeros(len(spoiled), self.count, MNIST_SIZE**2)
        for place, network in enumerate(self.networks):
            if self.awake[0, place]:
                images[:, place] = network(spoiled).flatten(1)
        return images

    def cost(self, spoiled: Tensor, images: Tensor) -> Tensor:
        """Return the squared distances of restored from true images, both (B, 1, 28, 28), over all pixels, (B, n)."""
        return (self.restore(spoiled) - images.flatten(1).unsqueeze(1)).square().sum(2)

    def step(self, spoiled: Tensor, images: Tensor) -> float:
        """Train the nearest expert on each image, and the classifier on which that is; return the mean squared
        distance, over all pixels, of the nearest."""
        if int(self.awake.sum()) > 1:
            winners = self._classify(spoiled, images)
        else:
            winners = torch.zeros(len(images), dtype=torch.long)
        total = 0.0
        for place, (network, optimizer) in enumerate(zip(self.networks, self.steps, strict=True)):
            own = winners == place
            # Without images Adam's momentum would go on.
            if not bool(own.any()):
                continue
            optimizer.zero_grad()
            loss = (network(spoiled[own]) - images[own]).square().mean((1, 2, 3)).sum()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        return total * MNIST_SIZE**2 / len(images)

    def _classify(self, spoiled: Tensor, images: Tensor) -> Tensor:
        """Return who wins, (B,), after a step of the classifier towards it."""
        cost, logits = self.cost(spoiled, images), self.classifier(spoiled)
        losses = winner_losses(cost[None], logits[None], MCL(), awake=self.awake)
        self.classifier_steps.zero_grad()
        losses.classifiers.sum().backward()
        self.classifier_steps.step()
        return losses.winners[0]

    def grow(self, spoiled: Tensor, images: Tensor) -> None:
        """Wake one more expert, a copy of the one with the largest share on these images."""
        cost = torch.cat([self.cost(*pair) for pair in zip(spoiled.split(_BATCH), images.split(_BATCH), strict=True)])
        source = int(expert_to_split(cost[None], self.awake))
        target = int(self.awake.sum())
        self.networks[target].load_state_dict(self.networks[source].state_dict())
        self.steps[target].load_state_dict(copy.deepcopy(self.steps[source].state_dict()))
        own = (parameter.data[None] for parameter in self.networks[target].parameters())
        jitter(own, torch.tensor([0]), self.config.jitter, self.generator)
        last = self.classifier.last
        with_moments = [
            [p.data, *(m for m in self.classifier_steps.state.get(p, {}).values() if m.shape == p.shape)]
            for p in (last.weight, last.bias)
        ]
        tensors = [tensor.reshape(1, self.count, -1).mT for of in with_moments for tensor in of]
        split_classes(tensors, last.bias.data[None, None], torch.tensor([0]), source, target)
        self.awake[0, target] = True

    @torch.no_grad()
    def probabilities(self, spoiled: Tensor) -> Tensor:
        """Return the classifier's distribution over the experts, (B, n), for spoiled images (B, 1, 28, 28)."""
        return class_probabilities(self.classifier(spoiled)[None], self.awake)[0]


def digits(config: DigitsConfig, images: Path, folder: Path) -> dict[str, Any]:
    """Return distortions on unseen digits by task and number of experts, and those of independent networks."""
    for task in config.tasks:
        spoil(task, config)
    for name, count in (("channels", 2), ("classifier_channels", 3)):
        if len(getattr(config, name)) != count:
            raise UserError(f"{name}: found {getattr(config, name)}, expected {count} numbers")
    if max(config.masked_rows, config.window) > MNIST_SIZE:
        raise UserError(f"masked_rows, window: found more than {MNIST_SIZE}, expected a part of the image")
    sets = read_mnist(images)
    train, test = (
        _some(torch.from_numpy(sets[name]), count, config.seed)
        for name, count in (("train", config.examples), ("test", config.test_examples))
    )
    if len(train) < config.batch_size:
        raise UserError(
            f"{images}: found {len(train)} training images, expected a batch of {config.batch_size} or more"
        )
    shared = settings(config, "tasks", "experts", "independent", "seeds")
    shared["checksum"] = zlib.crc32(sets["train"].tobytes())
    cells = {}
    for task in config.tasks:
        for run in range(config.seeds):
            for count in config.experts:
                cells[f"digits_{task}_{count}_{run}"] = {"task": task, "experts": count, "run": run, "config": shared}
            if config.independent:
                own = {"task": task, "independent": config.independent, "run": run, "config": shared}
                cells[f"digits_{task}_independent_{run}"] = own

    def compute(task: str, run: int, experts: int = 0, independent: int = 0, **_: Any) -> dict[str, Any]:
        if independent:
            return train_independent(config, task, independent, run, train, test)
        return train_digits(config, task, experts, run, train, test)

    rows = run_cells(cells, compute, folder / "cells", config.seed)
    return {"pixels": MNIST_SIZE**2, "test_examples": len(test), "rows": list(rows.values())}


def _some(images: Tensor, count: int, seed: int) -> Tensor:
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(cell_seed(seed, "images")))
    return images[order[:count]].float().unsqueeze(1)


def _train(
    config: DigitsConfig, task: str, experts: DigitExperts, images: Tensor, seed: int, name: str
) -> DigitExperts:
    spoiling = spoil(task, config)
    generator = torch.Generator().manual_seed(cell_seed(seed, "batches"))
    splits = _splits(config, experts.count)
    probe = images[:_PROBE]
    for number in tqdm(range(config.steps), desc=f"{task} {name}", unit="step", disable=None, leave=False):
        for _ in range(splits.count(number)):
            experts.grow(spoiling(probe, generator), probe)
        chosen = images[torch.randint(len(images), (config.batch_size,), generator=generator)]
        experts.losses.append(experts.step(spoiling(chosen, generator), chosen))
    return experts


def _splits(config: DigitsConfig, experts: int) -> list[int]:
    ends = config.growth_start, config.growth_share
    shares = [ends[0] + (ends[1] - ends[0]) * k / max(1, experts - 2) for k in range(experts - 1)]
    return [math.ceil(share * config.steps) for share in shares]


def train_digits(
    config: DigitsConfig, task: str, experts: int, run: int, train: Tensor, test: Tensor
) -> dict[str, Any]:
    """Train n experts and their classifier in run number `run`, and measure them on unseen digits.

    Returns:
        Distances are squared, over all pixels, means over images: `distortion` of the nearest expert, `drawn` of one
        drawn from the classifier, `likeliest` of its likeliest, `mean` of the mean over its distribution.
    """
    seed = cell_seed(config.seed, f"digits {run}")
    trained = _train(config, task, DigitExperts(config, experts, seed), train, seed, f"n = {experts}")
    records = len(trained.losses) // _STEPS_A_RECORD
    losses = torch.tensor(trained.losses[: records * _STEPS_A_RECORD]).view(records, -1).mean(1)
    curve = {"losses": [round(loss, 3) for loss in losses.tolist()], "steps_a_record": _STEPS_A_RECORD}
    return curve | {"splits": _splits(config, experts)} | _measure(trained, task, test, config)


def _measure(experts: DigitExperts, task: str, test: Tensor, config: DigitsConfig) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(cell_seed(config.seed, "test"))
    spoiled = spoil(task, config)(test, generator)
    costs, chances, means = [], [], []
    for part, images in zip(spoiled.split(_BATCH), test.split(_BATCH), strict=True):
        restored, weights = experts.restore(part), experts.probabilities(part)
        truth = images.flatten(1)
        costs.append((restored - truth.unsqueeze(1)).square().sum(2))
        chances.append(weights)
        means.append(((weights.unsqueeze(2) * restored).sum(1) - truth).square().sum(1))
    cost, weights = torch.cat(costs), torch.cat(chances)
    nearest, likeliest = cost.min(1), weights.argmax(1)
    shown = slice(config.shown)
    return {
        "distortion": float(nearest.values.mean()),
        "drawn": float((weights * cost).sum(1).mean()),
        "likeliest": float(cost.gather(1, likeliest[:, None]).mean()),
        "mean": float(torch.cat(means).mean()),
        "accuracy": float((likeliest == nearest.indices).float().mean()),
        "shares": [round(float((nearest.indices == place).float().mean()), 4) for place in range(experts.count)],
        "examples": {
            "truth": _bytes(test[shown]),
            "spoiled": _bytes(spoiled[shown]),
            "restored": _bytes(experts.restore(spoiled[shown])),
            "probabilities": [[round(p, 3) for p in row] for row in weights[shown].tolist()],
        },
    }


def _bytes(images: Tensor) -> list[Any]:
    values = (255 * images.clamp(0, 1)).round().byte()
    return values.reshape(*values.shape[:1], -1, MNIST_SIZE**2).tolist()


def train_independent(
    config: DigitsConfig, task: str, count: int, run: int, train: Tensor, test: Tensor
) -> dict[str, Any]:
    """Train networks that know nothing of each other, each on all images: the distortion of the best of them for each
    image, and those of each alone."""
    generator = torch.Generator().manual_seed(cell_seed(config.seed, "test"))
    spoiled = spoil(task, config)(test, generator)
    found = []
    for place in range(count):
        seed = cell_seed(config.seed, f"digits {run} {place}")
        alone = _train(config, task, DigitExperts(config, 1, seed), train, seed, f"alone {place + 1}")
        parts = zip(spoiled.split(_BATCH), test.split(_BATCH), strict=True)
        found.append(torch.cat([alone.cost(*part)[:, 0] for part in parts]))
    costs = torch.stack(found, 1)
    return {"distortion": float(costs.amin(1).mean()), "distortions": costs.mean(0).tolist()}
