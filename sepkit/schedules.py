"""Values as pure functions of progress t, in epochs (fractions allowed): temperatures, epsilon, weights, warm-ups."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sepkit.config import (
    ConstantConfig,
    InverseTemperatureConfig,
    LinearWarmupConfig,
    SigmoidWarmupConfig,
    TruncatedExponentialConfig,
    TruncatedLinearConfig,
)
from sepkit.registry import register

# The logistic function is cut here on either side, 0.25 % from its limits.
_SIGMOID_REACH = 6.0


@runtime_checkable
class Schedule(Protocol):
    """A value that depends on progress alone."""

    def __call__(self, t: float) -> float:
        """Return the value after t epochs, with fractions."""
        ...


@register(ConstantConfig)
@dataclass(frozen=True)
class Constant:
    """A constant value.

    Args:
        value: Value at every time.
    """

    value: float = 1.0

    def __call__(self, t: float) -> float:
        """Return the value."""
        return self.value


@register(TruncatedLinearConfig)
@dataclass(frozen=True)
class TruncatedLinear:
    """initial * (1 - t / end) before `end`, zero from there on.

    Args:
        initial: Value at t = 0.
        end: Epoch from which the value is zero.

    Source: aMCL paper, eq. 43.

    >>> schedule = TruncatedLinear(initial=0.1, end=100)
    >>> schedule(0), schedule(50), schedule(100)
    (0.1, 0.05, 0.0)
    """

    initial: float = 1.0
    end: float = 100.0

    def __call__(self, t: float) -> float:
        """Return the value."""
        return self.initial * (1 - t / self.end) if t < self.end else 0.0


@register(TruncatedExponentialConfig)
@dataclass(frozen=True)
class TruncatedExponential:
    """initial * decay ** t before `end`, zero from there on.

    Args:
        initial: Value at t = 0.
        decay: Factor per epoch.
        end: Epoch from which the value is zero; inf: never.

    Source: aMCL paper, eq. 44.
    """

    initial: float = 1.0
    decay: float = 0.9
    end: float = math.inf

    def __call__(self, t: float) -> float:
        """Return the value."""
        return self.initial * self.decay**t if t < self.end else 0.0


@register(SigmoidWarmupConfig)
@dataclass(frozen=True)
class SigmoidWarmup:
    """A logistic rise from zero at t = 0 over value / 2 at end / 2 to exactly `value` from `end` on.

    value * (s(x) - s(-6)) / (s(6) - s(-6)), x = 6 (2 t / end - 1), s the logistic function.

    Args:
        value: Final value.
        end: Epoch from which the value is final.
    """

    value: float = 1.0
    end: float = 10.0

    def __call__(self, t: float) -> float:
        """Return the value."""
        if t >= self.end:
            return self.value
        foot = _logistic(-_SIGMOID_REACH)
        height = _logistic(_SIGMOID_REACH * (2 * t / self.end - 1))
        return self.value * (height - foot) / (1 - 2 * foot)


@register(LinearWarmupConfig)
@dataclass(frozen=True)
class LinearWarmup:
    """value * t / end before `end`, `value` from there on.

    Args:
        value: Final value.
        end: Epoch from which the value is final.
    """

    value: float = 1.0
    end: float = 10.0

    def __call__(self, t: float) -> float:
        """Return the value."""
        return self.value * t / self.end if t < self.end else self.value


@register(InverseTemperatureConfig)
@dataclass(frozen=True)
class InverseTemperature:
    """min(initial ** (1 - t / end), 1): from `initial` geometrically to 1 at `end`, 1 from there on.

    Args:
        initial: Inverse temperature at t = 0, in (0, 1].
        end: Epoch from which the inverse temperature is 1.

    Source: annealed VI paper, eq. 2.4.
    """

    initial: float = 0.01
    end: float = 100.0

    def __call__(self, t: float) -> float:
        """Return the value."""
        return min(self.initial ** (1 - t / self.end), 1.0) if t < self.end else 1.0


@dataclass(frozen=True)
class Scaled:
    """A multiple of another schedule, for units that are measured before training."""

    schedule: Schedule
    factor: float

    def __call__(self, t: float) -> float:
        """Return the value."""
        return self.factor * self.schedule(t)


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))
