"""Points to anneal on: three Gaussians, or a file of numbers."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sepkit.errors import UserError


def three_gaussians(count: int = 3000, seed: int = 0) -> Tensor:
    """Return (count, 2) points of three Gaussians at (-0.5, -0.5), (0, 0.5), (0.5, -0.5), deviation 0.1, equally often.

    Their covariance has the largest eigenvalue 2/9 + 0.01, so free hypotheses split at 0.464.

    Args:
        count: how many points.
        seed: of the noise.

    Source: aMCL paper, appendix C, data of figure 1.
    """
    generator = torch.Generator().manual_seed(seed)
    means = torch.tensor([[-0.5, -0.5], [0.0, 0.5], [0.5, -0.5]], dtype=torch.float64)
    noise = 0.1 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return means[torch.arange(count) % 3] + noise


def read_points(path: str | os.PathLike[str]) -> Tensor:
    """Return points (N, d) of a file.

    Args:
        path: .npy, or .csv with one point per line and at most one line of names above.

    Raises:
        UserError: no such file, another format, or not numbers in rows of one length.
    """
    path = Path(path)
    try:
        if path.suffix == ".npy":
            points = np.load(path, allow_pickle=False)
        elif path.suffix == ".csv":
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            named = bool(lines) and not _is_numbers(lines[0])
            points = np.array([[float(cell) for cell in line.split(",")] for line in lines[named:]])
        else:
            raise UserError(
                f"{path}: found {path.suffix or 'no ending'}, expected a .npy or .csv file of points (N, d)"
            )
        points = np.asarray(points, dtype=np.float64)
    except (OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: cannot be read as points ({reason}); expected numbers in rows of one length"
        ) from error
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or len(points) < 2 or not np.isfinite(points).all() or not (points != points[0]).any():
        raise UserError(
            f"{path}: found an array of shape {points.shape}, expected (N, d), finite, with two points that differ"
        )
    return torch.from_numpy(points)


def _is_numbers(line: str) -> bool:
    try:
        return all(math.isfinite(float(cell)) for cell in line.split(","))
    except ValueError:
        return False
