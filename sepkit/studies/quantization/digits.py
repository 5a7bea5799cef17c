"""Digits of which a part is missing or under noise: several experts restore them, beside independent networks."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from sepkit.cells import cell_seed, run_cells
from sepkit.corpora.images import MNIST_SIZE, read_mnist
from sepkit.errors import UserError
from sepkit.objectives.assignment import MCL
from sepkit.reporting.figures import COLORS, panels
from sepkit.studies.quantization.config import DigitsConfig, Task, settings
from sepkit.studies.quantization.experts import (
    class_probabilities,
    expert_to_split,
    jitter,
    seeded,
    split_classes,
    winner_losses,
)

# Images by whose distortion the expert to split is chosen.
_PROBE = 1024
# Steps that each point of the loss's curve is the mean of.
_STEPS_A_RECORD = 10
_BATCH = 500
# Channels of a group of group norm.
_GROUP = 8


def spoil(task: Task, config: DigitsConfig, images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images (B, 1, 28, 28) whose upper rows are 0, or with Gaussian noise.

    Args:
        task: Kind of damage.
        config: Number of rows, and deviation of the noise.
        images: (B, 1, 28, 28) images.
        generator: Source of the noise.
    """
    if task == "noise":
        return images + config.noise * torch.randn(images.shape, generator=generator)
    return images.masked_fill((torch.arange(MNIST_SIZE) < config.masked_rows)[:, None], 0.0)


def restoring_expert(channels: Sequence[int] = (32, 64)) -> nn.Sequential:
    """Return a network that makes an image of pixels in (0, 1), (B, 1, 28, 28), of a spoiled one.

    Two convolutions, the first with stride 2, two of the bottleneck, a transposed one, and a sigmoid. The bottleneck's
    are dilated by 2 and 4, so that a pixel depends on 33 x 33 others, nearly all of the image: without dilation it is
    17 x 17, and where more is missing an expert can only paint one gray. Group norm sees one image; batch norm would
    see those that an expert has won.

    Args:
        channels: Channels of the first convolution and of the bottleneck.

    Source: CCLVQ paper, appendix B.1, where widths, strides and dilations are not given.
    """
    first, inner = channels
    network = nn.Sequential(
        _layer(nn.Conv2d(1, first, 3, stride=2, padding=1, bias=False), first),
        *(_convolution(*pair) for pair in ((first, inner), (inner, inner, 2), (inner, inner, 4))),
        _layer(nn.ConvTranspose2d(inner, first, 2, stride=2, bias=False), first),
        nn.Conv2d(first, 1, 3, padding=1),
        nn.Sigmoid(),
    )
    # A third less time on processors with so few channels.
    return network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def resnet9(classes: int, channels: Sequence[int] = (16, 32, 64)) -> nn.Sequential:
    """Return a classifier of images (B, 1, 28, 28): eight convolutions in three stages, the last two residual.

    Args:
        classes: Number of logits.
        channels: Channels of the stages.

    Source: CCLVQ paper, appendix B.1, where the widths are not given.
    """
    first, second, third = channels
    return nn.Sequential(
        _convolution(1, first),
        nn.MaxPool2d(2),
        _convolution(first, second),
        nn.MaxPool2d(2),
        _Residual(_convolution(second, second), _convolution(second, second)),
        _convolution(second, third),
        _Residual(_convolution(third, third), _convolution(third, third)),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(third, classes),
    )


class _Residual(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


def _convolution(inputs: int, outputs: int, dilation: int = 1) -> nn.Sequential:
    return _layer(nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation, bias=False), outputs)


def _layer(convolution: nn.Module, channels: int) -> nn.Sequential:
    return nn.Sequential(convolution, nn.GroupNorm(max(1, channels // _GROUP), channels), nn.ReLU())


class DigitExperts:
    """n experts, grown from one, and a classifier that says which of them will be nearest.

    Args:
        config: Configuration of the experiment.
        experts: Number n of experts.
        seed: Seed of all weights, and of the noise at splits.
    """

    def __init__(self, config: DigitsConfig, experts: int, seed: int) -> None:
        self.config, self.count = config, experts
        self.networks = [
            seeded(cell_seed(seed, f"expert {place}"), lambda: restoring_expert(config.channels))
            for place in range(experts)
        ]
        self.classifier = seeded(cell_seed(seed, "classifier"), lambda: resnet9(experts, config.classifier_channels))
        *self.steps, self.classifier_steps = (
            torch.optim.Adam(network.parameters(), lr=config.learning_rate, fused=True)
            for network in (*self.networks, self.classifier)
        )
        self.awake = torch.arange(experts)[None] == 0
        self.generator = torch.Generator().manual_seed(cell_seed(seed, "noise and jitter"))

    @torch.no_grad()
    def restore(self, spoiled: Tensor) -> Tensor:
        """Return the images of all experts, (B, n, 784), for spoiled ones (B, 1, 28, 28); zeros of those that sleep."""
        images = spoiled.new_zeros(len(spoiled), self.count, MNIST_SIZE**2)
        for place, network in enumerate(self.networks[: int(self.awake.sum())]):
            images[:, place] = torch.cat([network(part).flatten(1) for part in spoiled.split(_BATCH)])
        return images

    def cost(self, spoiled: Tensor, images: Tensor) -> Tensor:
        """Return the squared distances of restored from true images, both (B, 1, 28, 28), over all pixels, (B, n)."""
        return (self.restore(spoiled) - images.flatten(1).unsqueeze(1)).square().sum(2)

    @torch.no_grad()
    def probabilities(self, spoiled: Tensor) -> Tensor:
        """Return the classifier's distribution over the experts, (B, n), for spoiled images (B, 1, 28, 28)."""
        logits = torch.cat([self.classifier(part) for part in spoiled.split(_BATCH)])
        return class_probabilities(logits[None], self.awake)[0]

    def step(self, spoiled: Tensor, images: Tensor) -> float:
        """Train the nearest expert on each image, and the classifier on which that is; return the mean squared
        distance, over all pixels, of the nearest."""
        winners = torch.zeros(len(images), dtype=torch.long)
        if int(self.awake.sum()) > 1:
            cost, logits = self.cost(spoiled, images), self.classifier(spoiled)
            losses = winner_losses(cost[None], logits[None], MCL(), awake=self.awake)
            winners = losses.winners[0]
            self.classifier_steps.zero_grad()
            losses.classifiers.sum().backward()
            self.classifier_steps.step()
        total = 0.0
        # Without images an expert makes no step: Adam's momentum would go on.
        for place in winners.unique().tolist():
            own = winners == place
            self.steps[place].zero_grad()
            loss = (self.networks[place](spoiled[own]) - images[own]).square().mean((1, 2, 3)).sum()
            loss.backward()
            self.steps[place].step()
            total += float(loss.detach())
        return total * MNIST_SIZE**2 / len(images)

    def grow(self, spoiled: Tensor, images: Tensor) -> None:
        """Wake one more expert, a copy of the one with the largest share on these images."""
        source = int(expert_to_split(self.cost(spoiled, images)[None], self.awake))
        target = int(self.awake.sum())
        self.networks[target].load_state_dict(self.networks[source].state_dict())
        self.steps[target].load_state_dict(copy.deepcopy(self.steps[source].state_dict()))
        own = (parameter.data[None] for parameter in self.networks[target].parameters())
        jitter(own, torch.tensor([0]), self.config.jitter, self.generator)
        tensors, last = [], self.classifier[-1]
        assert isinstance(last, nn.Linear)
        for parameter in last.parameters():
            moments = self.classifier_steps.state.get(parameter, {}).values()
            alike = [parameter.data, *(moment for moment in moments if moment.shape == parameter.shape)]
            tensors += [tensor.reshape(1, self.count, -1).mT for tensor in alike]
        split_classes(tensors, last.bias.data[None, None], torch.tensor([0]), source, target)
        self.awake[0, target] = True


def digits(config: DigitsConfig, images: Path, folder: Path) -> dict[str, Any]:
    """Return distortions on unseen digits by task and number of experts, and those of independent networks.

    Trainings are cells below the folder: the same call again continues.

    Args:
        config: Configuration of the experiment.
        images: File or folder of binarized MNIST.
        folder: Folder of the results.

    Raises:
        UserError: fewer images than a batch has.
    """
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
    for task, run in product(config.tasks, range(config.seeds)):
        own = {"task": task, "run": run, "config": shared}
        cells |= {f"digits_{task}_{count}_{run}": own | {"experts": count} for count in config.experts}
        if config.independent:
            cells[f"digits_{task}_independent_{run}"] = own | {"independent": config.independent}

    def compute(task: Task, run: int, experts: int = 0, independent: int = 0, **_: Any) -> dict[str, Any]:
        if independent:
            return train_independent(config, task, independent, run, train, test)
        return train_digits(config, task, experts, run, train, test)

    rows = run_cells(cells, compute, folder / "cells", config.seed)
    return {"pixels": MNIST_SIZE**2, "test_examples": len(test), "rows": list(rows.values())}


def _some(images: Tensor, count: int, seed: int) -> Tensor:
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(cell_seed(seed, "images")))
    return images[order[:count]].float().unsqueeze(1)


def _train(
    config: DigitsConfig, task: Task, count: int, images: Tensor, seed: int
) -> tuple[DigitExperts, list[float], list[int]]:
    """Return trained experts, the loss of each step, and the steps at which one more expert woke."""
    experts = DigitExperts(config, count, seed)
    generator = torch.Generator().manual_seed(cell_seed(seed, "batches"))
    shares = np.linspace(config.growth_start, config.growth_share, max(2, count - 1))[: count - 1]
    splits = np.ceil(shares * config.steps).astype(int).tolist()
    probe, losses = images[:_PROBE], []
    for number in tqdm(range(config.steps), desc=f"{task} n = {count}", unit="step", disable=None, leave=False):
        for _ in range(splits.count(number)):
            experts.grow(spoil(task, config, probe, generator), probe)
        chosen = images[torch.randint(len(images), (config.batch_size,), generator=generator)]
        losses.append(experts.step(spoil(task, config, chosen, generator), chosen))
    return experts, losses, splits


def train_digits(
    config: DigitsConfig, task: Task, experts: int, run: int, train: Tensor, test: Tensor
) -> dict[str, Any]:
    """Train n experts and their classifier, and measure them on unseen digits.

    Args:
        config: Configuration of the experiment.
        task: Kind of damage.
        experts: Number n of experts.
        run: Number of the run, from which its seed follows.
        train: (N, 1, 28, 28) training images.
        test: (M, 1, 28, 28) unseen images.

    Returns:
        Distances are squared, over all pixels, means over images: `distortion` of the nearest expert, `drawn` of one
        drawn from the classifier, `likeliest` of its likeliest, `mean` of the mean over its distribution. `accuracy` of
        the classifier; `losses` and `splits` over training; `examples` for figures.
    """
    trained, losses, splits = _train(config, task, experts, train, cell_seed(config.seed, f"digits {run}"))
    whole = torch.tensor(losses[: len(losses) // _STEPS_A_RECORD * _STEPS_A_RECORD])
    spoiled, truth = _spoiled(config, task, test), test.flatten(1)
    restored, weights = trained.restore(spoiled), trained.probabilities(spoiled)
    cost = trained.cost(spoiled, test)
    nearest, likeliest = cost.min(1), weights.argmax(1)
    shown = slice(config.shown)
    return {
        "losses": [round(loss, 3) for loss in whole.view(-1, _STEPS_A_RECORD).mean(1).tolist()],
        "splits": splits,
        "distortion": float(nearest.values.mean()),
        "drawn": float((weights * cost).sum(1).mean()),
        "likeliest": float(cost.gather(1, likeliest[:, None]).mean()),
        "mean": float(((weights.unsqueeze(2) * restored).sum(1) - truth).square().sum(1).mean()),
        "accuracy": float((likeliest == nearest.indices).float().mean()),
        "examples": {
            "truth": _bytes(test[shown]),
            "spoiled": _bytes(spoiled[shown]),
            "restored": _bytes(restored[shown]),
            "probabilities": [[round(p, 3) for p in row] for row in weights[shown].tolist()],
        },
    }


def _spoiled(config: DigitsConfig, task: Task, test: Tensor) -> Tensor:
    """The same damage for every training."""
    return spoil(task, config, test, torch.Generator().manual_seed(cell_seed(config.seed, "test")))


def _bytes(images: Tensor) -> list[Any]:
    return (255 * images.clamp(0, 1)).round().byte().reshape(len(images), -1, MNIST_SIZE**2).tolist()


def train_independent(
    config: DigitsConfig, task: Task, count: int, run: int, train: Tensor, test: Tensor
) -> dict[str, Any]:
    """Train networks that know nothing of each other, each on all images.

    Args:
        config: Configuration of the experiment.
        task: Kind of damage.
        count: Number of networks.
        run: Number of the run, from which their seeds follow.
        train: (N, 1, 28, 28) training images.
        test: (M, 1, 28, 28) unseen images.

    Returns:
        `distortion` of the best of them for each image, and `distortions` of each alone.
    """
    spoiled, costs = _spoiled(config, task, test), []
    for place in range(count):
        alone, _, _ = _train(config, task, 1, train, cell_seed(config.seed, f"digits {run} {place}"))
        costs.append(alone.cost(spoiled, test)[:, 0])
    table = torch.stack(costs, 1)
    return {"distortion": float(table.amin(1).mean()), "distortions": table.mean(0).tolist()}


def digits_figures(table: Mapping[str, Any]) -> dict[str, Figure]:
    """Return what the experts of the first seed make of unseen digits, one figure a task and number of experts, and
    figure 1 of the CCLVQ paper for each task, the loss while experts are added."""
    shown = [row for row in table["rows"] if "examples" in row and row["run"] == 0]
    found = {f"digits_{row['task']}_{row['experts']}": _restored(row) for row in shown}
    for task in dict.fromkeys(row["task"] for row in shown):
        found[f"figure_1_loss_{task}"] = _losses([row for row in shown if row["task"] == task])
    return found


def _losses(rows: Sequence[Mapping[str, Any]]) -> Figure:
    figure = panels("step", ["squared distance of the nearest expert"])
    axes: Axes = figure.axes[0]
    for color, row in zip(COLORS, rows, strict=False):
        steps = _STEPS_A_RECORD * (np.arange(len(row["losses"])) + 0.5)
        axes.plot(steps, row["losses"], color=color, linewidth=1.3, label=f"n = {row['experts']}")
        for split in row["splits"]:
            axes.axvline(split, color=color, linestyle=":", linewidth=1.2)
    # The first steps are far above all that follows.
    shown = np.concatenate([row["losses"][len(row["losses"]) // 20 :] for row in rows])
    axes.set_ylim(0.95 * shown.min(), 1.05 * shown.max())
    axes.set_title("dotted: one more expert", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _restored(row: Mapping[str, Any]) -> Figure:
    """Lines: truth, what the experts see, and what each makes of it, with its probability."""
    examples = row["examples"]
    images = np.concatenate([examples[name] for name in ("truth", "spoiled", "restored")], axis=1)
    count, lines, pixels = images.shape
    side = math.isqrt(pixels)
    figure = Figure(figsize=(0.8 * count + 0.8, 0.85 * lines), layout="constrained")
    axes: Axes = figure.subplots()
    sheet = images.reshape(count, lines, side, side).transpose(1, 2, 0, 3).reshape(lines * side, count * side)
    axes.imshow(sheet, cmap="gray_r", vmin=0, vmax=255)
    words = ["truth", "seen", *(f"expert {k + 1}" for k in range(lines - 2))]
    axes.set(xticks=[], yticks=side * (np.arange(lines) + 0.5), yticklabels=words)
    for (column, expert), probability in np.ndenumerate(examples["probabilities"]):
        axes.text(side * (column + 1), side * (expert + 3), f"{probability:.2f}", fontsize=7, ha="right", va="bottom")
    return figure
