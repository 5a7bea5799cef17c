"""Free hypotheses against theory: the rate-distortion function of a Gaussian, and where splits are seen."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sepkit.annealing.planning import Cooling
from sepkit.errors import UserError
from sepkit.studies.quantization.config import FreeConfig
from sepkit.studies.quantization.free import delayed_split, free, gaussian_rates


def test_gaussian_rate_and_distortion() -> None:
    """25 hypotheses for N(0, 1): soft distortion T / 2 within .01, rate within .02 bit of the bound."""
    rows = gaussian_rates(FreeConfig(points=2000))
    assert [row["temperature"] for row in rows] == [1.3, 0.9, 0.7, 0.5, 0.35]
    for row in rows:
        assert row["distortion"] == pytest.approx(row["temperature"] / 2, abs=0.01)
        assert row["bits"] == pytest.approx(0.5 * math.log2(2 / row["temperature"]), abs=0.02)
        assert row["hard_distortion"] < row["distortion"]


SCHEDULES = [Cooling("linear", t, e) for t, e in FreeConfig().linear]
SCHEDULES += [Cooling("exponential", t, math.inf, d) for t, d in FreeConfig().exponential]


@pytest.mark.parametrize("cooling", SCHEDULES, ids=str)
def test_delay_of_splits(cooling: Cooling) -> None:
    """Mean of five seeds within 1 % of the sum over steps; of the closed form within 5 %, where steps are small."""
    found = delayed_split(FreeConfig(split_points=200), cooling)
    assert found["mean_seen"] == pytest.approx(found["mean_predicted_by_steps"], rel=0.01)
    assert found["mean_seen"] < 0.9 * found["critical"]
    fast = cooling.kind == "exponential" and cooling.decay == 0.9
    hot = cooling.kind == "linear" and cooling.initial == 1.0
    within = 0.1 if fast or hot else 0.05
    assert found["mean_seen"] == pytest.approx(found["mean_predicted"], rel=within)
    assert found["mean_seen"] <= found["mean_predicted"]


@pytest.mark.parametrize(
    ("kind", "schedule"),
    [("linear", [0.6]), ("linear", [0.0, 5.0]), ("exponential", [0.6, 1.0]), ("linear", [0.6, 0.0])],
)
def test_a_schedule_is_two_numbers(kind: str, schedule: list[float], tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=rf"free\.{kind}: found \[.*\], expected an initial temperature above 0 and the"
    ):
        free(FreeConfig(**{kind: [schedule]}), tmp_path)
    assert not list(tmp_path.iterdir())
