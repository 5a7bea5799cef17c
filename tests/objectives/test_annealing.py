"""Units of temperature and free hypotheses, against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from sepkit.objectives.annealing import spread_db


def _orthogonal(levels_db: list[float], num_samples: int = 4000) -> torch.Tensor:
    """(1, m, T) sines of whole numbers of periods: without mean, orthogonal, at the given levels."""
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
