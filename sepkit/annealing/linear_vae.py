"""Latent dimensions of a linear variational auto-encoder that are alive, under two ways of warming up.

Data of d independent coordinates, variance lambda_i each, are decoded as x = W z + noise of variance v, and encoded as
q(z | x) = N(V x, D). At W = V = 0 the latent is dead: its posterior is its prior, its rate 0. It is alive if that point
is no minimum of the loss.

- KL warm-up weighs the rate with beta: a latent lives if lambda > beta v. Warm-up from 0 starts with all alive.
- Tempering weighs log p(x, z) with beta and leaves the entropy of q unchanged: a latent lives if lambda > v / beta.
  Latents come to life one by one as beta rises, the largest variance first.

Source: the Hessians of both losses at zero.
"""

from __future__ import annotations

from typing import Literal

from sepkit.errors import UserError

Kind = Literal["kl", "tempered"]


def alive(variance: float, noise_variance: float, beta: float, kind: Kind) -> bool:
    """Whether a latent is alive.

    Args:
        variance: lambda, of the data along it.
        noise_variance: v, of the decoder.
        beta: weight of the rate ("kl") or of log p(x, z) ("tempered").
        kind: of the warm-up.
    """
    return variance > noise_variance * (beta if kind == "kl" else 1 / beta)


def threshold_beta(variance: float, noise_variance: float, kind: Kind) -> float:
    """Return the beta at which the latent dies ("kl", lambda / v) or comes to life ("tempered", v / lambda).

    Args:
        variance: lambda, of the data along the latent.
        noise_variance: v, of the decoder.
        kind: of the warm-up.

    Raises:
        UserError: a variance that is not positive.
    """
    for name, value in (("data variance", variance), ("noise variance", noise_variance)):
        if not 0 < value < float("inf"):
            raise UserError(f"{name}: found {value:g}, expected a positive number")
    return variance / noise_variance if kind == "kl" else noise_variance / variance
