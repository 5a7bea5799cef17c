"""The schedules under the name by which objectives know them; they are defined in `sepkit.schedules`."""

from sepkit.schedules import (
    Constant,
    InverseTemperature,
    LinearWarmup,
    Scaled,
    Schedule,
    SigmoidWarmup,
    TruncatedExponential,
    TruncatedLinear,
)

__all__ = [
    "Constant",
    "InverseTemperature",
    "LinearWarmup",
    "Scaled",
    "Schedule",
    "SigmoidWarmup",
    "TruncatedExponential",
    "TruncatedLinear",
]
