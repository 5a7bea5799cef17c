"""How far below the critical temperature a split of hypotheses is seen: step by step, and in closed form.

Around the merged state two hypotheses part along the top eigenvector at the rate 2 eta (T_c / T - 1) per step, with eta
the step on one hypothesis. The split is seen once their distance has grown by the factor e^Lambda. Below T_c this takes
time, and a start above T_c delays it further, because differences shrink there.

Linear cooling, T0 (1 - t / E), reaches it where (E / T0) (T_c ln(T0 / T) - (T0 - T)) = Lambda / (2 eta). Exponential
cooling, T0 rho^t, reaches it where (T_c (1 / T - 1 / T0) - ln(T0 / T)) / ln(1 / rho) has that value. Both have
solutions in Lambert's W.

The closed forms take steps to be small. A gradient step multiplies distances by 1 + 2 eta (T_c / T - 1), whose
logarithm is less than the rate above as soon as T is well below T_c. Splits that are seen late, after fast cooling or a
hot start, are therefore seen later than the closed form says, by 5 to 9 % where distances grow by a fifth and more in
one step. `split_time` adds up the logarithms instead.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Literal

from scipy.optimize import root_scalar
from scipy.special import lambertw

# Longer schedules are so slow that the closed form holds.
_MOST_EPOCHS = 100_000
_LARGEST_STEP = 1e6


@dataclass(frozen=True)
class Cooling:
    """A schedule of temperatures.

    Args:
        kind: "linear", T0 (1 - t / epochs), or "exponential", T0 decay^t.
        initial: T0, in the unit of the critical temperature.
        epochs: E.
        decay: of a temperature in one epoch, for exponential cooling.
        floor: whether noise keeps differences from shrinking above T_c, so that growth counts from T_c.
    """

    kind: Literal["linear", "exponential"]
    initial: float
    epochs: float
    decay: float = 0.9
    floor: bool = False

    def _first(self, critical: float) -> float:
        """Return the temperature from which growth counts."""
        return min(self.initial, critical) if self.floor else self.initial

    def temperature(self, epoch: float) -> float:
        """Return the temperature at this epoch.

        Args:
            epoch: 0 at the start.
        """
        if self.kind == "linear":
            return self.initial * (1 - epoch / self.epochs)
        return self.initial * self.decay**epoch

    @property
    def _speed(self) -> float:
        """Return the speed of cooling: -dT/dt in units of T0, or -d ln T / dt."""
        return self.initial / self.epochs if self.kind == "linear" else math.log(1 / self.decay)


def delay_of_split(cooling: Cooling, critical: float, seen: float) -> float:
    """Return Lambda / (2 eta) in epochs, a property of network and optimizer, from a split that was seen.

    Args:
        cooling: of the observed run.
        critical: T_c, critical temperature.
        seen: temperature at which the split was seen, below T_c.
    """
    first = cooling._first(critical)
    if cooling.kind == "linear":
        return (critical * math.log(first / seen) - (first - seen)) / cooling._speed
    return (critical * (1 / seen - 1 / first) - math.log(first / seen)) / cooling._speed


def split_temperature(cooling: Cooling, critical: float, delay: float) -> float:
    """Return the temperature at which the split is seen; 0 if only at the very end of linear cooling.

    Started at T_c it is -W_0(-exp(-1 - Lambda / kappa)) T_c, kappa = 2 eta E, for linear cooling, and
    -T_c / W_{-1}(-exp(-1 - Lambda / kappa)), kappa = 2 eta / ln(1 / rho), for exponential cooling.

    Args:
        cooling: of the run to predict.
        critical: T_c, critical temperature.
        delay: Lambda / (2 eta), in epochs.
    """
    first = cooling._first(critical)
    if cooling.kind == "linear":  # y - ln y = constant, y = T / T_c below 1
        ratio = first / critical
        return critical * _lower_root(ratio - math.log(ratio) + delay * cooling._speed / critical)
    ratio = critical / first  # the same for y = T_c / T above 1
    return critical / _upper_root(ratio - math.log(ratio) + delay * cooling._speed)


def cooling_for_split(cooling: Cooling, critical: float, delay: float, wanted: float) -> Cooling:
    """The schedule of the same kind and start whose split is seen at a wanted temperature: how slowly to cool.

    The inverse of `split_temperature`: the delay is proportional to 1 / speed of cooling.

    Args:
        cooling: gives kind, initial temperature and floor; its epochs or decay are replaced.
        critical: T_c, critical temperature.
        delay: Lambda / (2 eta), epochs.
        wanted: temperature below T_c and below the initial one.

    Raises:
        ValueError: a wanted temperature that no speed of cooling leads to.
    """
    at_its_speed = delay_of_split(cooling, critical, wanted)
    if not at_its_speed > 0:
        raise ValueError(f"no cooling from {cooling.initial:g} splits hypotheses at {wanted:g}")
    speed = cooling._speed * at_its_speed / delay
    if cooling.kind == "linear":
        return replace(cooling, epochs=cooling.initial / speed)
    return replace(cooling, decay=math.exp(-speed))


@dataclass(frozen=True)
class Steps:
    """What the growth of differences depends on, beside temperatures.

    Args:
        step_size: eta, of one hypothesis.
        growth: Lambda, logarithm of the factor by which differences must grow until a split is seen.
        per_epoch: steps in an epoch, within which the temperature does not change.
    """

    step_size: float
    growth: float
    per_epoch: int = 1

    def of_epoch(self, critical: float, temperature: float) -> float:
        """Return the growth in one epoch, the sum of ln |1 + 2 eta (T_c / T - 1)| over its steps.

        Args:
            critical: T_c.
            temperature: T.
        """
        factor = abs(1 + 2 * self.step_size * (critical / temperature - 1))
        return self.per_epoch * math.log(max(factor, sys.float_info.min))


def split_time(cooling: Cooling, critical: float, steps: Steps) -> float | None:
    """Return when the split is seen, by adding up what each step does.

    Args:
        cooling: the schedule, constant within an epoch.
        critical: T_c.
        steps: of the training.

    Returns:
        Epochs since the start; the split is seen at the temperature of the epoch that this lies in. None if linear
        cooling ends before.
    """
    total, epoch = 0.0, 0
    while cooling.kind == "exponential" or epoch < cooling.epochs:
        if epoch >= _MOST_EPOCHS:
            # So slow that every step is small.
            found = split_temperature(cooling, critical, steps.growth / (2 * steps.step_size * steps.per_epoch))
            return split_epoch(cooling, found) if found > 0 else None
        growth = steps.of_epoch(critical, max(cooling.temperature(epoch), sys.float_info.min))
        if growth > 0 and total + growth >= steps.growth:
            return epoch + (steps.growth - total) / growth
        total += growth
        if cooling.floor:
            total = max(total, 0.0)
        epoch += 1
    return None


def step_size_for_split(cooling: Cooling, critical: float, seen: float, steps: Steps) -> float:
    """Return the step size with which the split is seen at a temperature: the inverse of `split_time`.

    Args:
        cooling: of the run in which it was seen.
        critical: T_c.
        seen: temperature, below T_c and below the initial one.
        steps: of the training; its step size is not used.

    Returns:
        eta, with which differences have grown enough in the middle of the epoch of this temperature.

    Raises:
        ValueError: no step size leads there.
    """
    middle = split_epoch(cooling, seen) + 0.5

    def missing(step_size: float) -> float:
        return steps.growth - _growth_until(cooling, critical, replace(steps, step_size=step_size), middle)

    high = 1e-9
    while missing(high) > 0:
        high *= 1.5
        if high > _LARGEST_STEP:
            raise ValueError(f"no step size splits hypotheses at {seen:g}")
    return root_scalar(missing, bracket=(high / 1.5, high)).root if high > 1e-9 else high


def _growth_until(cooling: Cooling, critical: float, steps: Steps, end: float) -> float:
    """Return the growth in this number of epochs, of which the last may be a part."""
    if end > _MOST_EPOCHS:
        at = min(cooling.temperature(end), critical)
        return 2 * steps.step_size * steps.per_epoch * delay_of_split(cooling, critical, at)
    total = 0.0
    for epoch in range(math.ceil(end)):
        growth = steps.of_epoch(critical, max(cooling.temperature(epoch), sys.float_info.min))
        total += growth * min(1.0, end - epoch)
        if cooling.floor:
            total = max(total, 0.0)
    return total


def cooling_for_split_by_steps(cooling: Cooling, critical: float, steps: Steps, wanted: float) -> Cooling:
    """The schedule of `cooling_for_split`, with what each step does added up.

    It has the wanted temperature at the start of an epoch, the one in which the split is seen.

    Args:
        cooling: gives kind, initial temperature and floor; its epochs or decay are replaced.
        critical: T_c.
        steps: of the training.
        wanted: temperature below T_c and below the initial one.

    Returns:
        The schedule.

    Raises:
        ValueError: a wanted temperature that no speed of cooling leads to.
    """
    delay = steps.growth / (2 * steps.step_size * steps.per_epoch)
    by_closed_form = cooling_for_split(cooling, critical, delay, wanted)
    guess = split_epoch(by_closed_form, wanted)
    if guess > _MOST_EPOCHS / 4:
        return by_closed_form

    def reaching(epoch: int) -> Cooling:
        """The schedule with the wanted temperature at this epoch."""
        if cooling.kind == "linear":
            return replace(cooling, epochs=epoch / (1 - wanted / cooling.initial))
        return replace(cooling, decay=(wanted / cooling.initial) ** (1 / epoch))

    def enough(epoch: int) -> bool:
        return _growth_until(reaching(epoch), critical, steps, epoch + 1) >= steps.growth

    # The first epoch by the end of which differences have grown enough; they had not at its start.
    low, high = 0, max(1, math.ceil(guess))
    while not enough(high):
        low, high = high, 2 * high
        if high > _MOST_EPOCHS:
            raise ValueError(f"no cooling from {cooling.initial:g} splits hypotheses at {wanted:g}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return reaching(high)


def split_epoch(cooling: Cooling, temperature: float) -> float:
    """Return the epoch at which a schedule has a temperature.

    Args:
        cooling: the schedule.
        temperature: in its unit, at most T0.
    """
    if cooling.kind == "linear":
        return cooling.epochs * (1 - temperature / cooling.initial)
    return math.log(cooling.initial / temperature) / cooling._speed


def _lower_root(constant: float) -> float:
    """Return y <= 1 with y - ln y = constant >= 1."""
    return max(0.0, -float(lambertw(-math.exp(-constant), 0).real))


def _upper_root(constant: float) -> float:
    """Return y >= 1 with y - ln y = constant >= 1."""
    if constant < 600:
        return -float(lambertw(-math.exp(-constant), -1).real)
    root = constant  # beyond the range of exp, where the fixed point converges at once
    for _ in range(20):
        root = constant + math.log(root)
    return root
