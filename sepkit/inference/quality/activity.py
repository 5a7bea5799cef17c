"""Outputs nobody speaks in: the level below which an estimate of a model without scores is no speaker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EMPTY_DB = -30.0
"""An estimate this far below the strongest is empty: all that was said is in others, however many speak."""

LEAST_RIGHT = 0.9
"""A threshold is kept only if it counts at least this share right, mean over the numbers of speakers."""

HIGHEST_DB = -15.0
"""No threshold is higher: an estimate above is a speaker, however quiet."""

LOWEST_DB = -80.0
"""Levels of estimates are raised to this one."""

LEAST_OF_EACH = 10
"""Fit only with at least this many recordings of each number of speakers."""


@dataclass
class ActivityThreshold:
    """Counts speakers by the levels of the estimates relative to the strongest.

    Args:
        threshold_db: an estimate below is an output nobody speaks in.
        right: share of recordings counted right, by number of speakers.
        recordings: number of recordings, by number of speakers.
    """

    threshold_db: float
    right: dict[str, float]
    recordings: dict[str, int]

    def is_speaker(self, energies: np.ndarray) -> np.ndarray:
        """Return (n,) bool, the estimates somebody speaks in, by the energies of the model's own estimates."""
        return levels_db(energies) > self.threshold_db


def levels_db(energies: np.ndarray) -> np.ndarray:
    """Return (n,) levels of a model's own estimates relative to the strongest, dB, at least `LOWEST_DB`."""
    energies = np.asarray(energies, np.float64)
    strongest = energies.max(initial=0.0)
    if strongest <= 0:
        return np.full(len(energies), LOWEST_DB)
    return 10 * np.log10(np.maximum(energies / strongest, 10 ** (LOWEST_DB / 10)))


def fit_activity(levels: Sequence[np.ndarray], speakers: Sequence[int]) -> ActivityThreshold | None:
    """Return the threshold that counts speakers best, or None if the model does not tell their number.

    It has the largest share of right counts, mean over the numbers of speakers. Of several, the middle of the widest
    range is taken. There is none if a number of speakers has fewer than `LEAST_OF_EACH` recordings, if there is only
    one number, or if fewer than `LEAST_RIGHT` are right: a model that was never trained on one speaker alone
    distributes the voice over all estimates.

    Args:
        levels: (n,) of each recording, see `levels_db`.
        speakers: in each.
    """
    numbers = sorted(set(speakers))
    counts = {number: sum(one == number for one in speakers) for number in numbers}
    if len(numbers) < 2 or min(counts.values()) < LEAST_OF_EACH:
        return None
    ordered = [np.append(-np.sort(-np.asarray(one)), -np.inf) for one in levels]
    # All m estimates of m speakers have to be above, and the others at the threshold or below.
    lows = np.array([one[number] for one, number in zip(ordered, speakers, strict=True)])
    highs = np.array([one[number - 1] for one, number in zip(ordered, speakers, strict=True)])
    edges = np.unique(np.concatenate([lows, highs, [HIGHEST_DB]]))
    edges = edges[np.isfinite(edges) & (edges <= HIGHEST_DB)]
    candidates = np.append((edges[:-1] + edges[1:]) / 2, HIGHEST_DB)
    widths = np.append(np.diff(edges), 0.0)
    right = (lows[:, None] <= candidates) & (candidates < highs[:, None])
    of_number = np.array([right[np.array(speakers) == number].mean(0) for number in numbers])
    share = of_number.mean(0)
    best = max(range(len(candidates)), key=lambda place: (share[place], widths[place]))
    if share[best] < LEAST_RIGHT:
        return None
    shares = {str(number): float(of_number[row, best]) for row, number in enumerate(numbers)}
    return ActivityThreshold(float(candidates[best]), shares, {str(number): counts[number] for number in numbers})
