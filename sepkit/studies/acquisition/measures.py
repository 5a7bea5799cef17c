"""Measures of estimates and of stopping: information curves, the areas below them, offsets of stopping."""

from __future__ import annotations

import numpy as np


def rmse(estimate: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return the root mean squared error over all D dimensions, (B,), in the unit of the data: thesis, eq. 4.

    Args:
        estimate: (B, D).
        reference: (B, D).
    """
    return np.sqrt(np.square(estimate - reference).mean(-1))


def area(curves: np.ndarray) -> np.ndarray:
    """Return (B,) area below information curves: the sum of the error after 1, 2 ... M measurements.

    Args:
        curves: (B, M + 1) errors after 0, 1 ... M measurements; the error before the first does not count.

    Source: thesis, eq. 6, whose sum is over m, not over the dimensions as printed.
    """
    return curves[..., 1:].sum(-1)


def stopping_index(errors: np.ndarray, threshold: float) -> np.ndarray:
    """Return (B,) the first number of measurements, 1 or more, with an error below the threshold; M if there is none.

    With true errors it is the oracle's index, with predicted ones that of a rule.

    Args:
        errors: (B, M + 1) after 0, 1 ... M measurements.
        threshold: in the unit of the errors.
    """
    below = errors[:, 1:] < threshold
    return np.where(below.any(1), below.argmax(1) + 1, errors.shape[1] - 1)


def mean_offset(stops: np.ndarray, oracle: np.ndarray) -> float:
    """Return O, the mean of |s - s_hat| over sequences: thesis, eq. 7.

    Args:
        stops: s_hat, (N,).
        oracle: s, (N,).
    """
    return float(np.abs(stops - oracle).mean())
