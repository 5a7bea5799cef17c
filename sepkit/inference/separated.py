"""The result of separating one recording."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

__all__ = ["Separated"]


@dataclass
class Separated:
    """What a model makes of one recording. Arrays are numpy arrays, or CPU tensors if the recording was a tensor.

    Args:
        estimates: (k, T) float32, at the rate and level of the recording: one per kept hypothesis, in their order.
        gains: (k,) what the model's own estimates were multiplied by.
        scores: (n,) log-odds that each hypothesis is a speaker; None for a model without scoring head.
        predicted_si_sdr_db: (n,) SI-SDR that the model expects of each hypothesis, if `sepkit calibrate` gave it a
            predictor. NaN for a silent estimate, and for all if the recording is silent or shorter than half a second.
            See `sepkit.inference.quality`.
        predicted_interval_db: (n, 2) ends of the interval that should hold 90 % of them.
        baseline_si_sdr_db: (n,) prediction from the mixture's level and statistics alone, to compare with.
        kept: (k,) int64, numbers of the hypotheses that were kept, from 0.
        is_speaker: (n,) bool, those that "auto" keeps, whatever was kept; None without scores.
        rates: nats, for a model with variational latents: see `rates_of`; None for others.
        spread: (k, T) standard deviation of every sample of the estimates over samples of the latents, at the rate and
            level of the recording, if it was asked for; zeros for a deterministic model.
        sample_rate: Hz, of the estimates and of the recording.
    """

    estimates: Any
    gains: Any
    scores: Any = None
    predicted_si_sdr_db: Any = None
    predicted_interval_db: Any = None
    baseline_si_sdr_db: Any = None
    kept: Any = None
    is_speaker: Any = None
    rates: dict[str, float] | None = None
    spread: Any = None
    sample_rate: int = 0

    def as_tensors(self) -> Separated:
        """Return the same with tensors in place of arrays."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **{name: torch.as_tensor(value) for name, value in arrays.items()})
