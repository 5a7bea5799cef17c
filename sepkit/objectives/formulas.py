"""Formulas shared by training and evaluation, for torch tensors and arrays alike, without importing torch."""

import math
from collections.abc import Callable
from typing import Any

SAME_SI_SDR_DB = 50.0
"""A mixture in which one speaks, with an SI-SDR above this, is its source: improvement over it means nothing."""


def blr_nll(
    cross: Any,
    estimate_energy: Any,
    source_energy: Any,
    num_samples: Any,
    log: Callable[[Any], Any],
    lgamma: Callable[[Any], Any],
    a0: float = 1.0,
    b0: float = 1e-3,
    mu0: float = 0.0,
    lambda0: float = 1e-6,
) -> Any:
    """Return the negative log evidence, nats, of the regression that `likelihoods.pairwise_blr_nll` describes.

    Args:
        cross: <e, s>, of any shape.
        estimate_energy: <e, e>.
        source_energy: <s, s>.
        num_samples: T.
        log: the natural logarithm of such arrays.
        lgamma: log Gamma of what `num_samples` is.
    """
    precision = estimate_energy + lambda0
    gain = (lambda0 * mu0 + cross) / precision
    residual = source_energy + lambda0 * mu0**2 - precision * gain * gain
    shape = a0 + num_samples / 2
    scale = b0 + residual.clip(0) / 2
    return (
        num_samples / 2 * math.log(2 * math.pi)
        + log(precision / lambda0) / 2
        - a0 * math.log(b0)
        + shape * log(scale)
        - lgamma(shape)
        + math.lgamma(a0)
    )
