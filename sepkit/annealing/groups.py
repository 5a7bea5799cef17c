"""Hypotheses at one place settle as one, until their group is unstable.

The second derivatives of the free energy fall into those of the groups' places and, for each group, those of the
differences within it: (1 - 2 C / T) times a mass, where C is the covariance of the points weighted by the group's
share. So a group stays together exactly while T > 2 lambda_max(C) (aMCL paper, eq. 13). To move groups rather than
hypotheses is therefore exact, and takes little time while there are few groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sepkit.annealing.settling import settle_points

# In units of the length sqrt(T / 2) that belongs to a temperature. Hypotheses nearer to each other than the first are
# one group. Each settling starts with a push of the second.
GROUP_LIMIT = 0.05
PUSH = 1e-3
# A group may split again where it has split; each round parts at least one.
_MOST_ROUNDS = 20


@dataclass(frozen=True)
class Groups:
    """Where n free hypotheses are, by group.

    Args:
        places: (G, d) of the groups.
        members: (n,) the group of each hypothesis, 0 to G - 1.
    """

    places: Tensor
    members: Tensor

    def __len__(self) -> int:
        return len(self.places)

    @property
    def hypotheses(self) -> Tensor:
        """Places of the hypotheses, (n, d)."""
        return self.places[self.members]

    @property
    def copies(self) -> Tensor:
        """Numbers of hypotheses, (G,)."""
        return self.members.bincount(minlength=len(self.places))

    def critical_temperatures(self, points: Tensor, temperature: float) -> Tensor:
        """Return (G,) temperatures below which each group splits, 2 lambda_max of eq. 13; 0 for one hypothesis alone.

        Args:
            points: (N, d).
            temperature: T at which the points are shared among the groups.
        """
        copies = self.copies
        shares = (copies.log() - torch.cdist(points, self.places).square() / temperature).softmax(1)
        found = torch.zeros(len(self), dtype=points.dtype)
        for group in (copies > 1).nonzero()[:, 0].tolist():
            difference, share = points - self.places[group], shares[:, group : group + 1]
            covariance = (share * difference).mT @ difference / share.sum()
            found[group] = 2 * torch.linalg.eigvalsh(covariance)[-1]
        return found

    def unstable(self, points: Tensor, temperature: float) -> Tensor:
        """Return (G,) which groups split at a temperature.

        Args:
            points: (N, d).
            temperature: T.
        """
        return self.critical_temperatures(points, temperature) > temperature


def settle_groups(points: Tensor, groups: Groups, temperature: float, generator: torch.Generator) -> Groups:
    """Return groups of least free energy downhill from slightly pushed ones; near ones merge, but none splits.

    Args:
        points: (N, d), float64.
        groups: where hypotheses are now.
        temperature: T, in the unit of squared distances.
        generator: of the pushes.
    """
    length, places = math.sqrt(temperature / 2), groups.places
    push = torch.randn(places.shape, generator=generator, dtype=places.dtype).to(places.device)
    settled = settle_points(points, places + PUSH * length * push, temperature, groups.copies)
    _, merged = _labels(settled, temperature)[0].unique(return_inverse=True)
    copies = groups.copies.to(places.dtype)
    total = places.new_zeros(int(merged.max()) + 1).index_add(0, merged, copies)
    sums = places.new_zeros(len(total), places.shape[1]).index_add(0, merged, settled * copies[:, None])
    return Groups(sums / total[:, None], merged[groups.members])


def part_groups(points: Tensor, groups: Groups, temperature: float, generator: torch.Generator) -> Groups:
    """Return groups of least free energy after the unstable ones have parted; their members may join others, too.

    Args:
        points: (N, d), float64.
        groups: settled at this temperature.
        temperature: T, in the unit of squared distances.
        generator: of the pushes.
    """
    for _ in range(_MOST_ROUNDS):
        unstable = groups.unstable(points, temperature)
        if not bool(unstable.any()):
            break
        parted = settle_groups(points, _apart(groups, unstable), temperature, generator)
        if torch.equal(_together(parted.members), _together(groups.members)):
            # So close below the critical temperature that the parts still count as one.
            break
        groups = parted
    return groups


def _together(members: Tensor) -> Tensor:
    return members == members[:, None]


def _apart(groups: Groups, unstable: Tensor) -> Groups:
    """Return groups in which each hypothesis of the unstable ones is its own."""
    labels = torch.where(unstable[groups.members], len(groups) + torch.arange(len(groups.members)), groups.members)
    kept, members = labels.unique(return_inverse=True)
    first = torch.stack([(members == group).nonzero()[0, 0] for group in range(len(kept))])
    return Groups(groups.hypotheses[first], members)


def group_labels(near: Tensor) -> Tensor:
    """Return (B, n) the lowest member of each hypothesis's group, which is a chain of near ones.

    Args:
        near: (B, n, n) bool, which are near each other.
    """
    n = near.shape[1]
    labels = torch.arange(n, device=near.device).expand(near.shape[0], n)
    for _ in range(n):
        labels = labels.unsqueeze(1).expand_as(near).where(near, n).amin(2)
    return labels


def count_labels(labels: Tensor) -> Tensor:
    """Return (B,) numbers of groups: one member of each is its own lowest.

    Args:
        labels: (B, n), see `group_labels`.
    """
    return (labels == torch.arange(labels.shape[1], device=labels.device)).sum(1)


def count_groups(hypotheses: Tensor, temperature: float) -> int:
    """Return the number of groups of hypotheses, as `anneal_points` counts them.

    Hypotheses nearer than 0.05 sqrt(T / 2) are one group.

    Args:
        hypotheses: (n, d).
        temperature: T, in the unit of squared distances.
    """
    return int(count_labels(_labels(hypotheses, temperature))[0])


def _labels(places: Tensor, temperature: float) -> Tensor:
    distances = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
    return group_labels((distances < GROUP_LIMIT * math.sqrt(temperature / 2)).unsqueeze(0))
