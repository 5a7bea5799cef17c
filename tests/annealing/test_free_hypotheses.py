"""Units of temperature and free hypotheses, against closed forms."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from sepkit.annealing import free_hypotheses as annealed
from sepkit.annealing.free_hypotheses import (
    anneal_points,
    anneal_sources,
    si_sdr_critical_temperature_db,
    softmin_entropy,
    source_correlations,
    spread_db,
)
from sepkit.annealing.groups import Groups
from sepkit.annealing.points import three_gaussians


def _orthogonal(levels_db: list[float], num_samples: int = 4000) -> torch.Tensor:
    """Make (1, m, T) sines of whole numbers of periods: zero mean, orthogonal, at the given levels."""
    t = torch.arange(num_samples, dtype=torch.float64) / num_samples
    rows = [10 ** (level / 20) * torch.sin(2 * math.pi * (j + 3) * t) for j, level in enumerate(levels_db)]
    return torch.stack(rows).unsqueeze(0)


@pytest.mark.parametrize("gap_db", [0.0, 2.5, 5.0])
def test_the_spread_of_two_sources_is_their_level_gap(gap_db: float) -> None:
    assert spread_db(_orthogonal([gap_db, 0.0])).item() == pytest.approx(gap_db, abs=1e-5)


def test_the_spread_of_three_equal_sources() -> None:
    assert spread_db(_orthogonal([0.0, 0.0, 0.0])).item() == pytest.approx(10 * math.log10(2), abs=1e-5)


def test_spread_passes_over_inactive_sources_and_padding() -> None:
    sources = _orthogonal([2.5, 0.0, 0.0]).repeat(2, 1, 1)
    sources[0, 2] = torch.nan
    active = torch.tensor([[True, True, False], [True, False, False]])
    padded = torch.nn.functional.pad(sources, (0, 500), value=7.0)
    spread = spread_db(padded, active, torch.tensor([4000, 4000]))
    assert spread[0].item() == pytest.approx(2.5, abs=1e-5)
    assert spread[1].isnan()
    with pytest.raises(ValueError, match="active of shape"):
        spread_db(sources, active[:1])


# ---------------------------------------------------------------------------------------------------------- entropies


def test_equal_costs_have_the_entropy_log_n() -> None:
    entropy = softmin_entropy(torch.full((2, 5, 3), -7.0), 0.01)
    assert entropy.shape == (2, 3)
    assert entropy.numpy() == pytest.approx(math.log(5), abs=1e-12)


def test_the_entropy_of_two_hypotheses_is_the_binary_one() -> None:
    gap, temperature = 4.0, 3.0
    share = 1 / (1 + math.exp(-gap / temperature))
    expected = -share * math.log(share) - (1 - share) * math.log(1 - share)
    entropy = softmin_entropy(torch.tensor([[[1.0], [1.0 + gap]]]), temperature)
    assert entropy.item() == pytest.approx(expected, abs=1e-7)


def test_the_entropy_rises_with_the_temperature_from_zero_to_log_n() -> None:
    cost = 10 * torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    means = [softmin_entropy(cost, t).mean().item() for t in np.geomspace(1e-3, 1e5, 60)]
    assert np.all(np.diff(means) >= 0)
    assert means[0] < 1e-3 and means[-1] == pytest.approx(math.log(3), abs=1e-6)


# -------------------------------------------------------------------------------------------------------------- points


def test_two_points_split_at_twice_their_variance() -> None:
    # Points at +-a: covariance a^2, T_c = 2 a^2.
    result = anneal_points(torch.tensor([[-1.5, 0.0], [1.5, 0.0]]), 2)
    assert result.critical_temperature == pytest.approx(4.5)
    (split,) = result.splits
    assert (split.groups_before, split.groups_after) == (1, 2)
    assert split.temperature == pytest.approx(4.5, rel=0.02)
    assert split.predicted_temperature == pytest.approx(4.5, rel=1e-3)


def test_far_points_end_as_one_hypothesis_each() -> None:
    points = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    result = anneal_points(points, 3)
    assert result.groups[0] == 1 and result.groups[-1] == 3
    assert result.groups == sorted(result.groups)
    assert result.temperatures == sorted(result.temperatures, reverse=True)


def test_a_gaussian_splits_at_twice_its_largest_variance() -> None:
    normal = torch.randn(400, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    points = normal * torch.tensor([0.3, 2.0, 0.5]) + 100
    # An oracle of its own: NumPy's covariance and eigenvalues.
    critical = 2 * np.linalg.eigvalsh(np.cov(points.numpy().T, bias=True))[-1]
    result = anneal_points(points, 2)
    assert result.critical_temperature == pytest.approx(critical)
    assert result.splits[0].temperature == pytest.approx(critical, rel=0.02)
    # Above the split the hypotheses are at the mean, and below it on the longest axis.
    assert result.hypotheses[0].numpy() == pytest.approx(points.mean(0).expand(2, 3).numpy(), abs=0.02)
    parted = (result.hypotheses[-1][0] - result.hypotheses[-1][1]).abs()
    assert parted.argmax() == 1


def test_points_without_spread_are_refused() -> None:
    with pytest.raises(ValueError, match="two that differ"):
        anneal_points(torch.ones(5, 2), 2)


def _accounted(result: annealed.PointAnnealing) -> list[int]:
    """Return the numbers of groups from the first temperature to the last, computed from splits and merges."""
    changes = sorted([*result.splits, *result.merges], key=lambda change: -change.temperature)
    assert all(before.groups_after == after.groups_before for before, after in pairwise(changes))
    return [1, *(change.groups_after for change in changes)]


def test_the_three_gaussians_of_the_paper() -> None:
    result = anneal_points(three_gaussians(1500), 6)
    # 2 lambda_max = 2 (2/9 + 0.01); each Gaussian by itself 2 sigma^2 = 0.02.
    assert result.splits[0].temperature == pytest.approx(0.4644, rel=0.1)
    # Before the Gaussians themselves split there is a place for each. More than one hypothesis may leave the middle of
    # two Gaussians at once. Others stay there and join them later, which is reported as a merge.
    counts = _accounted(result)
    above = [change for change in [*result.splits, *result.merges] if change.temperature > 0.1]
    assert counts[: len(above) + 1][-1] == 3 and counts[:2] == [1, 2] and counts[-1] == 6
    below = [split for split in result.splits if split.temperature < 0.1]
    assert below and all(split.temperature == pytest.approx(0.02, rel=0.1) for split in below)
    # Groups are counted after settling, so theory is met to a percent or two.
    ratios = [split.temperature / split.predicted_temperature for split in result.splits]
    assert ratios == pytest.approx([1.0] * len(ratios), abs=0.02)


def test_every_change_of_the_number_of_groups_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge is reported too: here hypotheses 2 and 3 meet again at a temperature below 1."""
    places = torch.tensor([[0.0], [10.0], [20.0]], dtype=torch.float64)

    def settle(points, groups, temperature, generator):
        count = 1 if temperature > 4 else 2 if temperature < 1 else 3
        return Groups(places[:count], torch.arange(3).clamp_max(count - 1))

    monkeypatch.setattr(annealed, "settle_groups", settle)
    monkeypatch.setattr(Groups, "unstable", lambda *_: torch.tensor([False]))
    result = anneal_points(torch.tensor([[-1.5], [1.5]]), 4, end_ratio=0.1)
    assert [(merge.groups_before, merge.groups_after) for merge in result.merges] == [(3, 2)]
    assert result.merges[0].temperature == pytest.approx(1, rel=0.12)
    assert _accounted(result) == [1, 3, 2]


# ------------------------------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize(("sources", "ceiling_db"), [(2, 0.0), (2, 10.0), (3, 10.0), (4, 0.0)])
def test_uncorrelated_sources_split_where_the_free_energy_turns(sources: int, ceiling_db: float) -> None:
    result = anneal_sources(torch.eye(sources)[None], sources, ceiling_db=ceiling_db)
    expected = si_sdr_critical_temperature_db(sources, ceiling_db)
    assert result.expected_db.item() == pytest.approx(expected)
    assert result.first_split_db.item() == pytest.approx(expected, rel=0.06)
    assert result.groups[0, 0] == 1 and result.groups[-1, 0] == sources


def test_the_critical_temperature_is_that_of_a_numerical_second_derivative() -> None:
    # Two hypotheses that part by +-h from the middle between two sources, in the angle.
    reach = 1 / (1 + 10 ** (-5 / 10))

    def cost(angle: float) -> float:
        part = reach * math.cos(angle) ** 2
        return -10 * math.log10(part / (1 - part))

    def free_energy(h: float, temperature: float) -> float:
        angles = (math.pi / 4 - h, math.pi / 4 + h)
        costs = [[cost(a) for a in angles], [cost(math.pi / 2 - a) for a in angles]]
        return -temperature * sum(math.log(sum(math.exp(-c / temperature) for c in row)) for row in costs)

    critical = si_sdr_critical_temperature_db(2, 5.0)
    for temperature, sign in ((1.02 * critical, 1), (0.98 * critical, -1)):
        curvature = free_energy(1e-3, temperature) - free_energy(0.0, temperature)
        assert math.copysign(1, curvature) == sign
    assert si_sdr_critical_temperature_db(2, math.inf) == math.inf


def test_one_source_never_splits_and_inactive_ones_do_not_count() -> None:
    active = torch.tensor([[True, True, False], [True, False, False]])
    result = anneal_sources(torch.eye(3).repeat(2, 1, 1), 2, active=active)
    pair = anneal_sources(torch.eye(2)[None], 2)
    assert result.first_split_db[0] == pair.first_split_db[0]
    assert result.first_split_db[1].isnan() and result.expected_db[1].isnan()
    assert bool((result.groups[:, 1] == 1).all())


def test_correlations_are_those_of_numpy() -> None:
    waveforms = torch.randn(2, 3, 200, generator=torch.Generator().manual_seed(3)) + 0.5
    active = torch.tensor([[True, True, True], [True, False, True]])
    found = source_correlations(waveforms, active, torch.tensor([200, 150]))
    assert found[0].numpy() == pytest.approx(np.corrcoef(waveforms[0].numpy()), abs=1e-6)
    expected = np.corrcoef(waveforms[1, :, :150].numpy())
    expected[1, [0, 2]] = expected[[0, 2], 1] = 0
    assert found[1].numpy() == pytest.approx(expected, abs=1e-6)
