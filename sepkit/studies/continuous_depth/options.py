"""The options of `sepkit prepare images`; this module imports neither numpy nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sepkit.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ImagesOptions:
    """Write images as train.npz, dev.npz and test.npz: solutions of a Poisson equation, or binarized MNIST of yours.

    Args:
        kind: poisson: noisy solutions of the Poisson equation, made here; mnist: binarized MNIST, from --source
        out: folder of the files
        source: of mnist: an .npz file with packed bits or images by split (train, valid, test), or a folder of text
            files (binarized_mnist_train.amat ...)
        images: of poisson: number of images, of which 80 % are for training, 10 % for dev and 10 % for test
        size: of poisson: height and width, pixels
        noise: of poisson: standard deviation of the noise, before scaling
        grid: of poisson: cells: pixels are centers of cells; edges: the first and last pixels are on the boundary
        scaling: of poisson: deviation: divide by the standard deviation of all pixels; none: leave values as they are
        seed: of poisson

    Raises:
        UserError: numbers out of range, or no source of mnist.
    """

    kind: Literal["poisson", "mnist"]
    out: Path
    source: Path | None = None
    images: int = 1024
    size: int = 16
    noise: float = 5e-3
    grid: Literal["cells", "edges"] = "cells"
    scaling: Literal["deviation", "none"] = "deviation"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind == "mnist" and self.source is None:
            raise UserError("--source: nothing given, expected the file or folder of binarized MNIST")
        for name, least in (("images", 10), ("size", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise UserError(f"--{name}: found {getattr(self, name)}, expected at least {least}")
        if not self.noise > 0:
            raise UserError(f"--noise: found {self.noise}, expected more than 0")
