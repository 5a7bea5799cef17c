"""Schedules: values that change with progress."""

from __future__ import annotations

from dataclasses import dataclass

from sepkit.choices import Choice


class ScheduleConfig(Choice):
    """A value as a pure function of progress t, in epochs."""


@dataclass
class ConstantConfig(ScheduleConfig, name="constant"):
    """The same value always."""

    value: float = 1.0
    """At any time."""


@dataclass
class TruncatedLinearConfig(ScheduleConfig, name="truncated_linear"):
    """initial * (1 - t / end), zero from `end` on (aMCL paper, eq. 43)."""

    initial: float = 1.0
    """Value at the start."""
    end: float = 100.0
    """Epochs."""


@dataclass
class TruncatedExponentialConfig(ScheduleConfig, name="truncated_exponential"):
    """initial * decay ** t, zero from `end` on (aMCL paper, eq. 44)."""

    initial: float = 1.0
    """Value at the start."""
    decay: float = 0.9
    """Factor per epoch."""
    end: float = float("inf")
    """Epochs; inf: never cut."""


@dataclass
class SigmoidWarmupConfig(ScheduleConfig, name="sigmoid_warmup"):
    """Rises from about 0 to `value` along a sigmoid that ends at `end`."""

    value: float = 1.0
    """Value at the end."""
    end: float = 10.0
    """Epochs."""


@dataclass
class LinearWarmupConfig(ScheduleConfig, name="linear_warmup"):
    """Rises from 0 to `value` along a line that ends at `end`."""

    value: float = 1.0
    """Value at the end."""
    end: float = 10.0
    """Epochs."""


@dataclass
class InverseTemperatureConfig(ScheduleConfig, name="inverse_temperature"):
    """min(initial ** (1 - t / end), 1)."""

    initial: float = 0.01
    """Value at the start, above 0."""
    end: float = 100.0
    """Epochs."""
