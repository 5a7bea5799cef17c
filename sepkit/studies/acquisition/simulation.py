"""Whole sessions on data with known values: the order of measurements, and the error of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sepkit.errors import UserError
from sepkit.studies.acquisition.acquisition import REWARDS, Reward, acquisition_value, next_dimension, rewards
from sepkit.studies.acquisition.audiogram import Audiograms
from sepkit.studies.acquisition.measures import rmse
from sepkit.studies.acquisition.predictive import Prediction, TrainedVAE

Strategy = Literal["largest_variance", "mean_variance", "information_gain", "random", "single_best"]
"""Ways to choose the next dimension: by a reward, in a random order for each datum, or in one order for all."""

STRATEGIES: tuple[str, ...] = (*REWARDS, "random", "single_best")

# Most decoded values held at once.
_CHUNK_VALUES = 2_000_000


@dataclass
class Sessions:
    """N sessions of M measurements each; errors and beliefs after 0, 1 ... M of them.

    Args:
        strategy: the way to choose the next dimension.
        reference: of the errors.
        orders: (N, M) places of the dimensions in the order of their measurement.
        rmse: (N, M + 1) of the estimates, in the unit of the data.
        rmse_measured: (N, M + 1) the same against the data as measured.
        nll: (N, M + 1) negative log density of the reference, nats.
        acquisition: (N, M + 1) mean predictive variance.
        partial_elbo: (N, M + 1) of the observed values, nats.
    """

    strategy: str
    reference: Literal["noise-free", "measured"]
    orders: np.ndarray
    rmse: np.ndarray
    rmse_measured: np.ndarray
    nll: np.ndarray
    acquisition: np.ndarray
    partial_elbo: np.ndarray


def play(
    vae: TrainedVAE,
    data: Audiograms,
    strategy: str,
    draws: np.ndarray,
    order: Sequence[int] | None = None,
    seed: int = 0,
) -> Sessions:
    """Return sessions with each datum, from nothing measured to everything.

    Args:
        vae: the model.
        data: complete ones.
        strategy: one of `STRATEGIES`.
        draws: samples of z, see `latent_draws`.
        order: places of the dimensions, for "single_best".
        seed: of the orders, for "random".

    Raises:
        UserError: data with missing values, or an unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise UserError(f"strategy: found {strategy!r}, expected one of {', '.join(STRATEGIES)}")
    if not data.complete.all():
        raise UserError("sessions need complete audiograms; leave the others out")
    reference = data.values if data.truth is None else data.truth
    orders: np.ndarray | None = None
    if strategy == "random":
        orders = random_orders(vae, len(data), seed)
    elif strategy == "single_best":
        if order is None:
            raise UserError("single_best: found no order; give the validation data that it is found on")
        orders = np.tile(np.asarray(order), (len(data), 1))
    size = max(1, _CHUNK_VALUES // (len(draws) * len(vae.names)))
    parts = [
        _play_some(vae, data.values[rows], reference[rows], strategy, draws, None if orders is None else orders[rows])
        for rows in (slice(start, start + size) for start in range(0, len(data), size))
    ]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Sessions(strategy, "measured" if data.truth is None else "noise-free", *columns)


def _play_some(
    vae: TrainedVAE,
    values: np.ndarray,
    reference: np.ndarray,
    strategy: str,
    draws: np.ndarray,
    orders: np.ndarray | None,
) -> tuple[np.ndarray, ...]:
    count, steps = len(values), len(vae.measurable)
    observed = np.ones(values.shape, bool)
    observed[:, vae.measurable] = False
    chosen = np.empty((count, steps), int)
    beliefs: list[tuple[np.ndarray, ...]] = []
    for step in range(steps + 1):
        prediction = vae.predict(values, observed, draws)
        beliefs.append(_beliefs(vae, prediction, values, reference))
        if step == steps:
            break
        if orders is None:
            kind: Reward = strategy  # type: ignore[assignment]
            chosen[:, step] = next_dimension(rewards(vae, prediction, kind))
        else:
            chosen[:, step] = orders[:, step]
        observed = observed.copy()
        observed[np.arange(count), chosen[:, step]] = True
    return chosen, *(np.stack(column, axis=1) for column in zip(*beliefs, strict=True))


def _beliefs(
    vae: TrainedVAE, prediction: Prediction, values: np.ndarray, reference: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return errors against reference and data, negative log density, acquisition value and partial ELBO."""
    return (
        rmse(prediction.estimate, reference),
        rmse(prediction.estimate, values),
        prediction.nll(reference),
        acquisition_value(vae, prediction),
        prediction.partial_elbo,
    )


def random_orders(vae: TrainedVAE, count: int, seed: int) -> np.ndarray:
    """Return places of the measurable dimensions, in a different order for each datum, (count, M).

    Args:
        vae: the model.
        count: of data.
        seed: of the orders.
    """
    numbers = np.random.default_rng([seed, 0]).random((count, len(vae.measurable)))
    return vae.measurable[numbers.argsort(axis=1)]


def greedy_order(vae: TrainedVAE, data: Audiograms, draws: np.ndarray) -> list[int]:
    """Return the single order that lowers the mean error most at each step: places of the M measurable dimensions.

    Args:
        vae: the model.
        data: complete, and not used for tests later.
        draws: (S, L), samples of z.
    """
    reference = data.values if data.truth is None else data.truth
    observed = np.ones(data.values.shape, bool)
    observed[:, vae.measurable] = False
    order: list[int] = []
    while len(order) < len(vae.measurable):
        errors: dict[int, float] = {}
        for place in (int(p) for p in vae.measurable if p not in order):
            trial = observed.copy()
            trial[:, place] = True
            errors[place] = float(rmse(vae.predict(data.values, trial, draws).estimate, reference).mean())
        order.append(min(errors, key=lambda place: errors[place]))
        observed[:, order[-1]] = True
    return order
