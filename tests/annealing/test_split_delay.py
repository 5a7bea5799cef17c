"""The delay of splits: Lambert's W against numerical roots, and against hypotheses that descend a gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import lambertw

from sepkit.annealing.split_delay import (
    Cooling,
    Steps,
    cooling_for_split_by_steps,
    delay_of_split,
    split_epoch,
    split_temperature,
    split_time,
    step_size_for_split,
)

CRITICAL = 0.4643


@pytest.mark.parametrize("kind", ["linear", "exponential"])
@pytest.mark.parametrize("initial", [0.3, CRITICAL, 0.6, 2.0])
@pytest.mark.parametrize("floor", [False, True])
def test_split_is_the_root(kind, initial, floor):
    """Growth at the returned temperature equals the required growth to 1e-10."""
    cooling = Cooling(kind, initial, 300.0, 0.99, floor)
    delay = 40.0
    low = 1e-12
    root = brentq(lambda t: delay_of_split(cooling, CRITICAL, t) - delay, low, min(initial, CRITICAL), xtol=1e-15)
    assert split_temperature(cooling, CRITICAL, delay) == pytest.approx(root, abs=1e-10)


def test_start_at_the_critical_temperature_has_the_short_form():
    """It is -W_0(-exp(-1 - Lambda / kappa)) or -1 / W_{-1} of the same."""
    growth, eta, epochs, decay = 5.0, 0.05, 400.0, 0.995
    delay = growth / (2 * eta)
    linear = split_temperature(Cooling("linear", CRITICAL, epochs), CRITICAL, delay)
    z = -math.exp(-1 - growth / (2 * eta * epochs))
    assert linear / CRITICAL == pytest.approx(-lambertw(z, 0).real, abs=1e-12)
    exponential = split_temperature(Cooling("exponential", CRITICAL, epochs, decay), CRITICAL, delay)
    z = -math.exp(-1 - growth * math.log(1 / decay) / (2 * eta))
    assert CRITICAL / exponential == pytest.approx(-lambertw(z, -1).real, rel=1e-12)
    hot = split_temperature(Cooling("linear", 2 * CRITICAL, epochs), CRITICAL, delay)
    assert hot < linear


def test_very_fast_cooling_splits_at_the_end():
    """Neither exp nor W overflow."""
    assert split_temperature(Cooling("linear", 1.0, 1e-3), CRITICAL, 100.0) == 0
    late = split_temperature(Cooling("exponential", 1.0, 10, 1e-6), CRITICAL, 100.0)
    assert delay_of_split(Cooling("exponential", 1.0, 10, 1e-6), CRITICAL, late) == pytest.approx(100.0)


def test_epoch_of_a_temperature():
    """It inverts the schedules."""
    assert split_epoch(Cooling("linear", 2.0, 100), 0.5) == pytest.approx(75)
    assert split_epoch(Cooling("exponential", 2.0, 100, 0.9), 2.0 * 0.9**7) == pytest.approx(7)


@pytest.mark.parametrize("kind", ["linear", "exponential"])
def test_two_hypotheses_split_where_predicted(kind):
    """Gradient descent on two free hypotheses for points on a line: within 2 % of the prediction."""
    points = np.random.default_rng(0).normal(size=200)
    points -= points.mean()
    critical, eta, small, seen = 2 * points.var(), 0.05, 1e-4, 1e-2
    cooling = Cooling(kind, 1.2 * critical, 800.0, 0.995)
    f = np.array([-small, small])
    for step in range(800):
        temperature = cooling.initial * (1 - step / 800 if kind == "linear" else 0.995**step)
        distance = (f[:, None] - points) ** 2
        weights = np.exp(-(distance - distance.min(0)) / temperature)
        weights /= weights.sum(0)
        # The loss of one hypothesis divided by its own share, 1/2.
        f = f - eta * (weights * 2 * (f[:, None] - points)).mean(1) / 0.5
        if f[1] - f[0] > 2 * seen:
            break
    delay = math.log(seen / small) / (2 * eta)
    assert temperature == pytest.approx(split_temperature(cooling, critical, delay), rel=0.02)


@pytest.mark.parametrize("cooling", [Cooling("linear", 0.6, 150), Cooling("exponential", 0.5, 1.0, 0.93)])
@pytest.mark.parametrize("floor", [False, True])
@pytest.mark.parametrize("per_epoch", [1, 7])
def test_steps_are_added_up(cooling: Cooling, floor: bool, per_epoch: int) -> None:
    """A distance that every step multiplies is as large as wanted in the epoch that is told, and not before."""
    cooling = Cooling(cooling.kind, cooling.initial, cooling.epochs, cooling.decay, floor)
    steps = Steps(0.06, math.log(120), per_epoch)
    distance, epoch = 1.0, -1
    while distance < 120:
        epoch += 1
        for _ in range(per_epoch):
            distance *= 1 + 2 * 0.06 * (CRITICAL / cooling.temperature(epoch) - 1)
            distance = max(distance, 1.0) if floor else distance
    time = split_time(cooling, CRITICAL, steps)
    assert time is not None and math.floor(time) == epoch
    # One split that is seen tells the step size, up to the epoch that it is seen in.
    fitted = step_size_for_split(cooling, CRITICAL, cooling.temperature(epoch), steps)
    again = split_time(cooling, CRITICAL, Steps(fitted, steps.growth, per_epoch))
    assert again == pytest.approx(epoch + 0.5)
    assert fitted == pytest.approx(0.06, rel=0.1)


def test_steps_agree_with_the_closed_form_where_they_are_small() -> None:
    """And are below it elsewhere: the free hypotheses of egs/quantization were seen at .134 and .0482."""
    growth, eta = math.log(120), 0.05

    def both(cooling: Cooling) -> tuple[float, float]:
        time = split_time(cooling, CRITICAL, Steps(eta, growth))
        assert time is not None
        return cooling.temperature(math.floor(time)), split_temperature(cooling, CRITICAL, growth / (2 * eta))

    for slow in (Cooling("linear", 0.6, 20_000), Cooling("exponential", 0.6, 1.0, 0.9998)):
        assert both(slow)[0] == pytest.approx(both(slow)[1], rel=5e-3)
    for seen, fast in ((0.134, Cooling("linear", 1.0, 1000)), (0.0482, Cooling("exponential", 0.6, 1.0, 0.9))):
        by_steps, closed = both(fast)
        assert by_steps == pytest.approx(seen, rel=0.02) and closed > 1.05 * seen
    # Nobody adds up that many epochs.
    for slowest in (Cooling("linear", CRITICAL, 1e8), Cooling("exponential", CRITICAL, 1.0, 1 - 1e-9)):
        assert both(slowest)[0] == pytest.approx(both(slowest)[1], rel=1e-6)
    assert split_time(Cooling("linear", 4.0, 20), CRITICAL, Steps(eta, growth)) is None


@pytest.mark.parametrize("kind", ["linear", "exponential"])
def test_cooling_for_a_wanted_split(kind) -> None:
    """It splits there, in the epoch of the wanted temperature."""
    steps = Steps(0.05, math.log(120), 3)
    found = cooling_for_split_by_steps(Cooling(kind, CRITICAL, 9.0, 0.5), CRITICAL, steps, 0.3)
    time = split_time(found, CRITICAL, steps)
    assert time is not None and found.temperature(math.floor(time)) == pytest.approx(0.3, rel=1e-9)
