"""A sheet of images: what a model makes of images, and what it makes up."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure

from sepkit.files import atomic_output
from sepkit.studies.continuous_depth.data import ImageSet
from sepkit.studies.continuous_depth.model import ImageVAE, Noise, Source

_COLUMNS = 12
_ROWS: tuple[tuple[str, Source | None], ...] = (
    ("images", None),
    ("reconstructions", "posterior"),
    ("only the first state from the image", "top"),
    ("samples of the prior", "prior"),
)


@torch.inference_mode()
def write_sheet(model: ImageVAE, images: ImageSet, path: Path, seed: int = 0) -> Path:
    """Write rows of images, reconstructions, images that share their first state, and prior samples; return the path.

    Args:
        model: the one that makes them.
        images: the first of them are shown.
        path: of the PNG.
        seed: of the noise.

    Source: thesis, part C, figure 8.
    """
    shown = torch.from_numpy(images.images[:_COLUMNS, None])
    figure = Figure(figsize=(_COLUMNS * 0.8, len(_ROWS) * 1.0), layout="constrained")
    grid = figure.subplots(len(_ROWS), len(shown), squeeze=False)
    low, high = float(shown.min()), float(shown.max())
    for axes_of_row, (name, source) in zip(grid, _ROWS, strict=True):
        noise = Noise(torch.Generator().manual_seed(seed))
        row = shown if source is None else model.sample(shown, len(shown), source, noise)
        axes_of_row[0].set_title(name, fontsize=8, loc="left")
        for axes, image in zip(axes_of_row, row[:, 0].numpy(), strict=True):
            axes.imshow(image, cmap="gray", vmin=low, vmax=high)
            axes.set_axis_off()
    with atomic_output(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return path
