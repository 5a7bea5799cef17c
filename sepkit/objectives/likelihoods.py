"""Pairwise costs that are minus the log of a normalized density of the source given the estimate, in nats.

Conventions are those of `costs`. Values are nats for the whole utterance; divide by T for nats per sample.
"""

import math

import torch
from torch import Tensor

from sepkit.objectives.formulas import blr_nll
from sepkit.objectives.inner_products import as_inputs, error_energy, float64_device, inner_products


def pairwise_blr_nll(
    estimates: Tensor,
    sources: Tensor,
    a0: float = 1.0,
    b0: float = 1e-3,
    mu0: float = 0.0,
    lambda0: float = 1e-6,
    lengths: Tensor | None = None,
    active: Tensor | None = None,
) -> Tensor:
    """Return the negative log evidence of the Bayesian linear regression of every source on every estimate, nats.

    The source is gain * estimate + white noise; gain ~ N(mu0, variance / lambda0) and the noise's variance
    ~ InverseGamma(a0, b0) are integrated out, so the cost hardly depends on the estimate's level. With
    lambda_T = <e, e> + lambda0, mu_T = (lambda0 mu0 + <e, s>) / lambda_T, a_T = a0 + T/2 and
    b_T = b0 + (<s, s> + lambda0 mu0^2 - lambda_T mu_T^2) / 2:

    T/2 log(2 pi) + 1/2 log(lambda_T / lambda0) - a0 log b0 + a_T log b_T - log Gamma(a_T) + log Gamma(a0)

    It is the negative log density of a multivariate Student t, finite for silence on either side. b0 is an absolute
    power: standardize both signals by the training deviation first.

    Args:
        estimates: Estimated waveforms, (B, n, T).
        sources: Source waveforms, (B, m, T).
        lengths: Samples of each utterance that count, (B,); None: all T.
        active: Which sources are active, (B, m) bool; None: all.
        a0: shape of the prior of the noise variance, > 0.
        b0: scale of the prior of the noise variance, > 0.
        mu0: prior mean of the gain.
        lambda0: prior precision of the gain relative to the noise's, > 0.

    Raises:
        ValueError: shapes that do not fit together, or a0, b0 or lambda0 not positive.

    Source: thesis, appendix H, eq. 52, 53 and 55.

    >>> import torch
    >>> source = torch.randn(1, 1, 8000, generator=torch.Generator().manual_seed(0))
    >>> noise = torch.randn(1, 1, 8000, generator=torch.Generator().manual_seed(1))
    >>> bool(pairwise_blr_nll(3 * source + noise, source) < pairwise_blr_nll(source + noise, source))
    True
    """
    for name, value in (("a0", a0), ("b0", b0), ("lambda0", lambda0)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, found {value}")
    products = inner_products(estimates, sources, lengths, active=active)
    nll = blr_nll(
        products.cross,
        products.estimate_energy,
        products.source_energy,
        products.num_samples,
        torch.log,
        torch.lgamma,
        a0,
        b0,
        mu0,
        lambda0,
    )
    return as_inputs(nll, estimates, sources)


def pairwise_cauchy_nll(
    estimates: Tensor,
    sources: Tensor,
    scale: float | Tensor = 1.0,
    lengths: Tensor | None = None,
    active: Tensor | None = None,
) -> Tensor:
    """Return the negative log density of every source under a multivariate Cauchy around every estimate, nats.

    log Gamma(1/2) - log Gamma(h) + T/2 log(pi) + sum_t log(scale_t) + h log(1 + sum_t ((s_t - e_t) / scale_t)^2)

    with h = (1 + T) / 2,     which is eq. 70 with the scale matrix diag(scale^2).

    Args:
        estimates: Estimated waveforms, (B, n, T).
        sources: Source waveforms, (B, m, T).
        lengths: Samples of each utterance that count, (B,); None: all T.
        active: Which sources are active, (B, m) bool; None: all.
        scale: deviation, > 0: one number (else ValueError), or one per sample of each estimate, (B, n, T) (else NaN).

    Source: thesis, appendix I, eq. 70.
    """
    if isinstance(scale, Tensor) and scale.ndim > 0:
        return _cauchy_nll_with_scales(estimates, sources, scale, lengths, active)
    scale = float(scale)
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale must be positive and finite, found {scale}")
    products = inner_products(estimates, sources, lengths, active=active)
    log_determinant = products.num_samples * math.log(scale)
    nll = _cauchy_nll(error_energy(products) / scale**2, log_determinant, products.num_samples)
    return as_inputs(nll, estimates, sources)


def _cauchy_nll_with_scales(
    estimates: Tensor, sources: Tensor, scale: Tensor, lengths: Tensor | None, active: Tensor | None
) -> Tensor:
    if scale.shape != estimates.shape:
        raise ValueError(
            f"scale must be a number or of the estimates' shape {tuple(estimates.shape)}, found {tuple(scale.shape)}"
        )
    device = float64_device(estimates.device)
    location, source, deviation = (signal.to(device).double() for signal in (estimates, sources, scale))
    num_samples = location.new_full((location.shape[0], 1, 1), location.shape[-1])
    if lengths is not None:
        inside = (torch.arange(location.shape[-1], device=device) < lengths.to(device)[:, None])[:, None]
        location, source = location.where(inside, 0.0), source.where(inside, 0.0)
        deviation = deviation.where(inside, 1.0)
        num_samples = lengths.to(device, torch.float64)[:, None, None]
    weight = deviation.pow(-2)
    weighted_location = weight * location
    distance = (
        (weighted_location * location).sum(-1, keepdim=True)
        - 2 * weighted_location @ source.mT
        + weight @ source.square().mT
    ).clamp_min(0)
    if active is not None:
        distance = distance.where(active.to(device).unsqueeze(1), 1.0)
    return as_inputs(_cauchy_nll(distance, deviation.log().sum(-1, keepdim=True), num_samples), estimates, sources)


def _cauchy_nll(distance: Tensor, log_determinant: Tensor, num_samples: Tensor) -> Tensor:
    half = (1 + num_samples) / 2
    return (
        math.lgamma(0.5)
        - torch.lgamma(half)
        + num_samples / 2 * math.log(math.pi)
        + log_determinant
        + half * torch.log1p(distance)
    )
