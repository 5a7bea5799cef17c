"""How far below the critical temperature a split of hypotheses is seen, in closed form.

Around the merged state two hypotheses part along the top eigenvector at the rate 2 eta (T_c / T - 1) per step, with eta
the step on one hypothesis. The split is seen once their distance has grown by the factor e^Lambda. Below T_c this takes
time, and a start above T_c delays it further, because differences shrink there.

Linear cooling, T0 (1 - t / E), reaches it where (E / T0) (T_c ln(T0 / T) - (T0 - T)) = Lambda / (2 eta). Exponential
cooling, T0 rho^t, reaches it where (T_c (1 / T - 1 / T0) - ln(T0 / T)) / ln(1 / rho) has that value. Both have
solutions in Lambert's W.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from scipy.special import lambertw


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
