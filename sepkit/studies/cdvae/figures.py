"""Figures of a model: what it makes of images, what it makes up, and what its processes do over depth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from sepkit.reporting.figures import save_figure
from sepkit.studies.cdvae.data import ImageSet
from sepkit.studies.cdvae.model import ImageVAE, Noise, Source
from sepkit.studies.cdvae.processes import LevelProcess, level_processes

_COLUMNS = 12
_ROWS: tuple[tuple[str, Source | None, bool], ...] = (
    ("images", None, False),
    ("reconstructions", "posterior", False),
    ("samples of the likelihood given the image's latents", "posterior", True),
    ("only the first state from the image", "top", False),
    ("samples of the prior", "prior", False),
)
# Values of the state that are drawn: those with the largest path rate.
_VALUES = 8


@torch.inference_mode()
def write_sheet(model: ImageVAE, images: ImageSet, path: Path, seed: int = 0) -> Path:
    """Write rows of images, reconstructions, images that share their first state, and prior samples; return the path.

    Where it is known what images are without noise, that comes first. Images shown are evenly spaced, since sets may be
    sorted.

    Source: thesis, part C, figures 6 and 8.
    """
    places = np.unique(np.linspace(0, len(images) - 1, _COLUMNS).round().astype(int))
    shown = torch.from_numpy(images.images[places, None])
    rows: list[tuple[str, torch.Tensor]] = []
    if images.solutions is not None:
        rows.append(("solutions without noise", torch.from_numpy(images.solutions[:_COLUMNS, None])))
    for name, source, drawn in _ROWS:
        noise = Noise(torch.Generator().manual_seed(seed))
        row = shown if source is None else model.sample(shown, len(shown), source, noise, drawn)
        rows.append((name, row))
    figure = Figure(figsize=(_COLUMNS * 0.8, len(rows) * 1.05), layout=ConstrainedLayoutEngine(h_pad=0.1))
    grid = figure.subplots(len(rows), len(shown), squeeze=False)
    low, high = float(shown.min()), float(shown.max())
    for axes_of_row, (name, row) in zip(grid, rows, strict=True):
        # Names are wider than an image, and must not push the next one away.
        axes_of_row[0].text(0, 1.05, name, fontsize=8, transform=axes_of_row[0].transAxes).set_in_layout(False)
        for axes in axes_of_row:
            axes.set_axis_off()
        for axes, image in zip(axes_of_row, row[:, 0].numpy(), strict=False):
            axes.imshow(image, cmap="gray", vmin=low, vmax=high)
    return save_figure(figure, path)


def write_processes(model: ImageVAE, images: ImageSet, path: Path, seed: int = 0, steps: int = 50) -> Path:
    """Write what the processes of the first image do over the depth of each level; return the path.

    A column is a level. Its rows: values of the state; both drifts; diffusion; path rate, at each depth
    and from the beginning to there (dashed), sum over all values. The values drawn are those with the largest rates.

    Source: thesis, part C, figure 7.
    """
    noise = Noise(torch.Generator().manual_seed(seed))
    levels = level_processes(model, torch.from_numpy(images.images[:1, None]), noise, steps)
    figure = Figure(figsize=(3.2 * len(levels), 8.0), layout="constrained")
    grid = figure.subplots(5, len(levels), squeeze=False, sharex=True)
    for column, level in enumerate(levels):
        _draw_level(list(grid[:, column]), level)
        grid[0, column].set_title(f"level {column + 1}: {level.path_rate_nats:.2f} nats", fontsize=9)
        grid[-1, column].set_xlabel("depth s")
    for axes, name in zip(
        grid[:, 0], ("state", "posterior drift", "prior drift", "diffusion", "path rate"), strict=True
    ):
        axes.set_ylabel(name)
    return save_figure(figure, path)


def _draw_level(rows: Sequence[Axes], level: LevelProcess) -> None:
    chosen = level.rate.mean(0).topk(min(_VALUES, level.rate.shape[1])).indices
    before = level.depths[:-1]
    rows[0].plot(level.depths, level.states[:, chosen], color="black", linewidth=0.7)
    rows[1].plot(before, level.posterior_drift[:, chosen], color="tab:red", linewidth=0.7)
    rows[2].plot(before, level.prior_drift[:, chosen], color="tab:green", linewidth=0.7)
    rows[3].plot(before, level.diffusion, color="tab:blue")
    rows[3].set_ylim(bottom=0)
    rate = level.rate.sum(1)
    rows[4].plot(before, rate, color="tab:purple")
    rows[4].plot(level.depths[1:], (rate * level.depths.diff()).cumsum(0), color="tab:purple", linestyle="--")
