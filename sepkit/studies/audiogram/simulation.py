"""Whole sessions on data with known values: the order of measurements, and the error of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sepkit.errors import UserError
from sepkit.studies.audiogram.data import Audiograms
from sepkit.studies.audiogram.network import TrainedVAE
from sepkit.studies.audiogram.stopping import features_of

STRATEGIES = ("largest_variance", "random", "single_best")
"""Ways to choose the next dimension: that of the largest predictive variance, in a random order for each datum, or in
one order for all."""

# Most decoded values held at once.
_CHUNK_VALUES = 2_000_000


@dataclass
class Sessions:
    """N sessions of M measurements each; errors and beliefs after 0, 1 ... M of them, (N, M + 1) each.

    Args:
        orders: (N, M) places of the dimensions in the order of their measurement.
        rmse: root mean squared error of the estimates over all dimensions, in the unit of the data: thesis, eq. 4.
        rmse_measured: the same against the data as measured.
        nll: negative log density of the reference, nats.
    """

    reference: str
    orders: np.ndarray
    rmse: np.ndarray
    rmse_measured: np.ndarray
    nll: np.ndarray
    acquisition: np.ndarray
    partial_elbo: np.ndarray

    @property
    def features(self) -> dict[str, np.ndarray]:
        """By which a stopping rule predicts the error."""
        return features_of(np.arange(self.rmse.shape[1]), self.acquisition, self.partial_elbo)


def rmse(estimate: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return the root mean squared error over the last axis."""
    return np.sqrt(np.square(estimate - reference).mean(-1))


def area(curves: np.ndarray) -> np.ndarray:
    """Return (B,) area below (B, M + 1) information curves: the sum of the error after 1, 2 ... M measurements.

    Source: thesis, eq. 6, whose sum is over m, not over the dimensions as printed.
    """
    return curves[..., 1:].sum(-1)


def play(
    vae: TrainedVAE,
    data: Audiograms,
    draws: np.ndarray,
    strategy: str = "largest_variance",
    order: Sequence[int] = (),
    seed: int = 0,
) -> Sessions:
    """Return sessions with each datum, from nothing measured to everything, by one of `STRATEGIES`; `order` is for
    "single_best", `seed` for "random"."""
    if not data.complete.all():
        raise UserError("sessions need complete audiograms; leave the others out")
    orders: np.ndarray | None = None
    if strategy == "random":
        orders = random_orders(vae, len(data), seed)
    elif strategy == "single_best":
        orders = np.tile(np.asarray(order), (len(data), 1))
    size = max(1, _CHUNK_VALUES // (len(draws) * len(vae.names)))
    parts = [
        _play_some(vae, data.values[rows], data.reference[rows], draws, None if orders is None else orders[rows])
        for rows in (slice(start, start + size) for start in range(0, len(data), size))
    ]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Sessions("measured" if data.truth is None else "noise-free", *columns)


def _play_some(
    vae: TrainedVAE, values: np.ndarray, reference: np.ndarray, draws: np.ndarray, orders: np.ndarray | None
) -> tuple[np.ndarray, ...]:
    count, steps = len(values), len(vae.measurable)
    observed = vae.nothing_measured(count)
    chosen = np.empty((count, steps), int)
    beliefs: list[tuple[np.ndarray, ...]] = []
    for step in range(steps + 1):
        prediction = vae.predict(values, observed, draws)
        beliefs.append(
            (
                rmse(prediction.estimate, reference),
                rmse(prediction.estimate, values),
                prediction.nll(reference),
                vae.acquisition_value(prediction),
                prediction.partial_elbo,
            )
        )
        if step < steps:
            chosen[:, step] = vae.next_dimension(prediction) if orders is None else orders[:, step]
            observed = observed.copy()
            observed[np.arange(count), chosen[:, step]] = True
    return chosen, *(np.stack(column, axis=1) for column in zip(*beliefs, strict=True))


def random_orders(vae: TrainedVAE, count: int, seed: int) -> np.ndarray:
    """Return places of the measurable dimensions, in a different order for each datum, (count, M)."""
    numbers = np.random.default_rng([seed, 0]).random((count, len(vae.measurable)))
    return vae.measurable[numbers.argsort(axis=1)]


def greedy_order(vae: TrainedVAE, data: Audiograms, draws: np.ndarray) -> list[int]:
    """Return the single order that lowers the mean error most at each step: places of the M measurable dimensions."""
    observed = vae.nothing_measured(len(data))
    order: list[int] = []
    while len(order) < len(vae.measurable):
        errors: dict[int, float] = {}
        for place in (int(p) for p in vae.measurable if p not in order):
            trial = observed.copy()
            trial[:, place] = True
            errors[place] = float(rmse(vae.predict(data.values, trial, draws).estimate, data.reference).mean())
        order.append(min(errors, key=lambda place: errors[place]))
        observed[:, order[-1]] = True
    return order


def low_elbos(vae: TrainedVAE, values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the partial ELBO that 1 % of these data are below, by the number of observed dimensions, (D + 1,).

    For each number, random dimensions of each of (N, D) values are observed, those known from the beginning first.
    """
    numbers = np.random.default_rng([0, 1]).random(values.shape) - vae.nothing_measured(len(values))
    ranks = numbers.argsort(1).argsort(1)
    elbos = [vae.predict(values, ranks < count, draws).partial_elbo for count in range(values.shape[1] + 1)]
    return np.percentile(elbos, 1.0, axis=1)
