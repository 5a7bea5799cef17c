"""Units of temperature and free hypotheses, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sepkit.annealing.free_hypotheses import (
    anneal_sources,
    si_sdr_critical_temperature_db,
    softmin_entropy,
    source_correlations,
    spread_db,
)


def _orthogonal(levels_db: list[float], num_samples: int = 4000) -> torch.Tensor:
    """Make (1, m, T) sines of whole numbers of periods: zero mean, orthogonal, at the given levels."""
    t = torch.arange(num_samples, dtype=torch.float64) / num_samples
    rows = [10 ** (level / 20) * torch.sin(2 * math.pi * (j + 3) * t) for j, level in enumerate(levels_db)]
    return torch.stack(rows).unsqueeze(0)


@pytest.mark.parametrize(
    ("levels_db", "expected"),
    [([0.0, 0.0], 0.0), ([2.5, 0.0], 2.5), ([5.0, 0.0], 5.0), ([0.0] * 3, 10 * math.log10(2))],
)
def test_the_spread_of_two_sources_is_their_level_gap(levels_db: list[float], expected: float) -> None:
    assert spread_db(_orthogonal(levels_db)).item() == pytest.approx(expected, abs=1e-5)


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


def test_the_entropy_of_two_hypotheses_is_the_binary_one() -> None:
    for gap, temperature in ((4.0, 3.0), (0.0, 0.01)):
        share = 1 / (1 + math.exp(-gap / temperature))
        expected = -share * math.log(share) - (1 - share) * math.log(1 - share)
        entropy = softmin_entropy(torch.tensor([[[1.0], [1.0 + gap]]]), temperature)
        assert entropy.item() == pytest.approx(expected, abs=1e-7)


def test_the_entropy_rises_with_the_temperature_from_zero_to_log_n() -> None:
    cost = 10 * torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    means = [softmin_entropy(cost, t).mean().item() for t in np.geomspace(1e-3, 1e5, 60)]
    assert np.all(np.diff(means) >= 0)
    assert means[0] < 1e-3 and means[-1] == pytest.approx(math.log(3), abs=1e-6)


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
