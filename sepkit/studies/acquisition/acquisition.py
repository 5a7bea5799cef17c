"""Rewards of measuring each dimension next; the largest is chosen."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from sepkit.errors import UserError
from sepkit.studies.acquisition.predictive import Prediction, TrainedVAE, normal_kl

Reward = Literal["largest_variance", "mean_variance", "information_gain"]
"""largest_variance: of the predictive distribution. mean_variance: thesis, eq. 3, as it is printed, without the
variance of the means. information_gain: how far a measurement is expected to move the posterior, nats."""

REWARDS: tuple[str, ...] = get_args(Reward)

_OUTCOMES = 16
# The outcomes drawn are the same for every question.
_SEED = 0


def rewards(vae: TrainedVAE, prediction: Prediction, kind: Reward = "largest_variance") -> np.ndarray:
    """Return (B, D) rewards of measuring each dimension; -inf for those that are observed or never measured.

    Args:
        vae: the model.
        prediction: the present belief.
        kind: of reward.

    Raises:
        UserError: no such kind.
    """
    if kind == "largest_variance":
        worth = prediction.variance
    elif kind == "mean_variance":
        worth = prediction.mean_variance
    elif kind == "information_gain":
        worth = information_gain(vae, prediction)
    else:
        raise UserError(f"reward: found {kind!r}, expected one of {', '.join(REWARDS)}")
    possible = np.zeros_like(prediction.observed)
    possible[:, vae.measurable] = ~prediction.observed[:, vae.measurable]
    return np.where(possible, worth, -np.inf)


def next_dimension(worth: np.ndarray) -> np.ndarray:
    """Return places of the largest rewards, (B,); the first of equal ones.

    Args:
        worth: (B, D) rewards; -inf where nothing can be measured.
    """
    return worth.argmax(1)


def acquisition_value(vae: TrainedVAE, prediction: Prediction) -> np.ndarray:
    """Return the mean variance over all measurable dimensions, (B,): predictive, or a measurement's own if observed.

    A mean over unobserved dimensions alone would jump between measurements, and have nothing left at the end.

    Args:
        vae: the model.
        prediction: its belief about B data.
    """
    return np.square(prediction.deviation)[:, vae.measurable].mean(1)


def information_gain(vae: TrainedVAE, prediction: Prediction, outcomes: int = _OUTCOMES) -> np.ndarray:
    """Return (B, D) the mean of KL(q(z | x_O, x_d) || q(z | x_O)) over outcomes of measuring d, nats; 0 if observed.

    This is EDDI's reward with the latent variable as the target: its second term, which discounts what the target tells
    about z, is then 0.

    Args:
        vae: the model.
        prediction: the present belief.
        outcomes: number, drawn from the predictive distribution.

    Source: Ma et al. 2019, eq. 5 and 8.
    """
    samples = prediction.means.shape[1]
    chosen = np.linspace(0, samples - 1, min(outcomes, samples)).round().astype(int)
    noise = np.random.default_rng(_SEED).standard_normal((len(chosen), prediction.means.shape[2]))
    drawn = prediction.means[:, chosen] + prediction.deviations[:, chosen] * noise
    mean, deviation = prediction.posterior
    gain = np.zeros(prediction.observed.shape)
    for place in vae.measurable:
        unobserved = np.flatnonzero(~prediction.observed[:, place])
        if not len(unobserved):
            continue
        values = np.repeat(prediction.values[unobserved], len(chosen), axis=0)
        observed = np.repeat(prediction.observed[unobserved], len(chosen), axis=0)
        values[:, place], observed[:, place] = drawn[unobserved][..., place].ravel(), True
        after = vae.posterior(values, observed)
        before = [np.repeat(part[unobserved], len(chosen), axis=0) for part in (mean, deviation)]
        gain[unobserved, place] = normal_kl(after, before).reshape(len(unobserved), -1).mean(1)
    return gain
