"""Schedules: values that change with progress."""

from dataclasses import dataclass
from typing import Annotated

from sepkit.choices import Choice
from sepkit.errors import Bounds
from sepkit.numbers import NotNegative, Positive


class ScheduleConfig(Choice):
    """A value as a pure function of progress t, in epochs."""


@dataclass
class ConstantConfig(ScheduleConfig, name="constant"):
    """The same value always.

    Args:
        value: Value at any time.
    """

    value: NotNegative = 1.0


@dataclass
class TruncatedLinearConfig(ScheduleConfig, name="truncated_linear"):
    """initial * (1 - t / end), zero from `end` on (aMCL paper, eq. 43).

    Args:
        initial: Value at the start.
        end: Epochs.
    """

    initial: NotNegative = 1.0
    end: Positive = 100.0


@dataclass
class TruncatedExponentialConfig(ScheduleConfig, name="truncated_exponential"):
    """initial * decay ** t, zero from `end` on (aMCL paper, eq. 44).

    Args:
        initial: Value at the start.
        decay: Factor per epoch.
        end: Epochs; inf: never cut.
    """

    initial: NotNegative = 1.0
    decay: Annotated[float, Bounds(gt=0, le=1)] = 0.9
    end: Annotated[float, Bounds(gt=0)] = float("inf")


@dataclass
class SigmoidWarmupConfig(ScheduleConfig, name="sigmoid_warmup"):
    """Rises from about 0 to `value` along a sigmoid that ends at `end`.

    Args:
        value: Value at the end.
        end: Epochs.
    """

    value: NotNegative = 1.0
    end: Positive = 10.0


@dataclass
class LinearWarmupConfig(ScheduleConfig, name="linear_warmup"):
    """Rises from 0 to `value` along a line that ends at `end`.

    Args:
        value: Value at the end.
        end: Epochs.
    """

    value: NotNegative = 1.0
    end: Positive = 10.0


@dataclass
class InverseTemperatureConfig(ScheduleConfig, name="inverse_temperature"):
    """min(initial ** (1 - t / end), 1).

    Args:
        initial: Value at the start, above 0.
        end: Epochs.
    """

    initial: Positive = 0.01
    end: Positive = 100.0
