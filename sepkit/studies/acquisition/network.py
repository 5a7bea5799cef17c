"""The partial VAE as functions of its weights; the same code serves torch tensors (training) and NumPy arrays (use).

Importing torch takes seconds, which is too long for a command that answers with one number. All arrays begin with an
axis of S models: the weights of S models are stacked, and data shared by all have length 1 there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Weights = Mapping[str, Any]
"""Name -> array: `embedding.values` (S, D, E), `embedding.bias` (S, D, 1), and `weight` (S, in, out) and `bias`
(S, 1, out) of `shared`, `encoder.0`, `encoder.1` ... and `decoder.0`, `decoder.1` ..."""


def encode(weights: Weights, x: Any, observed: Any, xp: Any) -> tuple[Any, Any]:
    """Return raw means and raw deviations of the posterior of z given the observed values, (S, B, L) each.

    h = sum over observed d of relu(W [x_d, x_d e_d, b_d] + c); the encoder's layers map h to both. The first layer is
    linear in x_d for a given d, so its two coefficients are computed once per dimension, not per datum. The sum of
    rectified values is never negative, so the source's rectification after it is left out.

    Args:
        weights: of S models.
        x: (S or 1, B, D) standardized values; at unobserved places any finite number, which has no effect.
        observed: (S or 1, B, D), 1 where a value is observed and 0 elsewhere.
        xp: the module of the arrays, torch or numpy.

    Source: Ma et al., "EDDI: Efficient Dynamic Discovery of High-Value Information with Partial VAE", 2019, eq. 9.
    """
    shared, embedding = weights["shared.weight"], weights["embedding.values"]
    slope = shared[:, :1] + embedding @ shared[:, 1:-1]
    offset = weights["embedding.bias"] @ shared[:, -1:] + weights["shared.bias"]
    hidden = _relu((x * observed)[..., None] * slope[:, None] + offset[:, None], xp)
    summed = (hidden * observed[..., None]).sum(-2)
    raw = layers(weights, "encoder", summed, xp)
    half = raw.shape[-1] // 2
    return raw[..., :half], raw[..., half:]


def decode(weights: Weights, z: Any, noise: Any, xp: Any) -> tuple[Any, Any]:
    """Return means and deviations of p(x_d | z), standardized, (S, B, D) each; no deviation is below `noise`.

    Args:
        weights: of S models.
        z: (S or 1, B, L).
        noise: (S or 1, 1, D), the deviation of one measurement, standardized.
        xp: torch or numpy.
    """
    raw = layers(weights, "decoder", z, xp)
    half = raw.shape[-1] // 2
    return raw[..., :half], noise + softplus(raw[..., half:], xp)


def layers(weights: Weights, name: str, values: Any, xp: Any) -> Any:
    """Return values after the fully connected layers NAME.0, NAME.1 ... with rectified values between them.

    Args:
        weights: by name, as in the model's state.
        name: NAME.
        values: (S, B, in).
        xp: torch or numpy.
    """
    place = 0
    while f"{name}.{place}.weight" in weights:
        if place:
            values = _relu(values, xp)
        values = values @ weights[f"{name}.{place}.weight"] + weights[f"{name}.{place}.bias"]
        place += 1
    return values


def softplus(values: Any, xp: Any) -> Any:
    """Return log(1 + exp(values)), without overflow.

    Args:
        values: of any shape.
        xp: torch or numpy.
    """
    return xp.logaddexp(values, xp.zeros_like(values))


def _relu(values: Any, xp: Any) -> Any:
    # The gradient of torch.clip takes several times as long as relu's.
    return xp.relu(values) if hasattr(xp, "relu") else xp.maximum(values, 0)
