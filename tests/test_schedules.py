"""Schedules against their formulas."""

import itertools
import math

import pytest

from sepkit import schedules
from sepkit.config import ScheduleConfig
from sepkit.registry import build


def test_constant():
    """Whatever t is."""
    assert [schedules.Constant(0.3)(t) for t in (0, 7.5, 1e9)] == [0.3] * 3


def test_truncated_linear():
    """Eq. 43: down to zero at `end`, zero after it."""
    schedule = schedules.TruncatedLinear(2.0, 100)
    assert [schedule(t) for t in (0, 25, 50, 100, 101, 1e6)] == pytest.approx([2, 1.5, 1, 0, 0, 0])
    assert schedules.TruncatedLinear(2.0, math.inf)(1e6) == 2.0


def test_truncated_exponential():
    """Eq. 44: cut to zero at `end`; never cut at infinity."""
    schedule = schedules.TruncatedExponential(5.0, 0.9, 100)
    assert [schedule(t) for t in (0, 1, 2.5, 99)] == pytest.approx([5.0 * 0.9**t for t in (0, 1, 2.5, 99)])
    assert schedule(100) == schedule(1000) == 0
    assert schedules.TruncatedExponential(5.0, 0.9)(200) == pytest.approx(5.0 * 0.9**200)


def test_sigmoid_warmup():
    """From zero over half the value half-way to the value, steepest in the middle, rising throughout."""
    schedule = schedules.SigmoidWarmup(4.0, 10)
    values = [schedule(t / 2) for t in range(21)]
    assert values[0] == 0 and values[10] == pytest.approx(2) and values[20] == 4 and schedule(11) == 4
    assert values[19] == pytest.approx(4, rel=0.01)
    steps = [b - a for a, b in itertools.pairwise(values)]
    assert min(steps) > 0 and max(steps) in (steps[9], steps[10])
    assert all(values[k] + values[20 - k] == pytest.approx(4) for k in range(21))


def test_inverse_temperature():
    """min(initial ** (1 - t / end), 1)."""
    schedule = schedules.InverseTemperature(1 / 90, 500)
    assert [schedule(t) for t in (0, 250, 500, 600)] == pytest.approx([1 / 90, 90**-0.5, 1, 1])
    assert schedules.InverseTemperature(3.0, 500)(0) == 1


@pytest.mark.parametrize(
    "schedule",
    [schedules.TruncatedLinear(1.0, 0), schedules.SigmoidWarmup(1.0, 0), schedules.InverseTemperature(0.1, 0)],
)
def test_an_end_at_zero_is_the_end(schedule):
    """The final value from the start."""
    assert schedule(0) == schedule(1)


def test_every_configuration_builds():
    """With the names of the contract, as pure functions."""
    for config in ScheduleConfig.choices.values():
        schedule = build(config())
        assert isinstance(schedule, schedules.Schedule)
        assert schedule(3.0) == schedule(3.0)
