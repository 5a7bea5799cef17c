"""Whole sessions on data with known values: the order of measurements, the error of the rest, and where to stop.

A stopping rule predicts the error of an estimate from the model's own statistics: the number of measured
dimensions, the mean predictive variance (of what is unseen), and the partial ELBO (of what is seen). It is fitted on
validation sessions by ridge regression and kept beside the model. The baseline only uses the number of measurements,
so it stops all sessions at the same one.

Source: thesis, part A, section 3.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.choices import to_dict
from sepkit.errors import UserError
from sepkit.files import read_json, write_json, write_yaml
from sepkit.studies.audiogram.data import NOT_A_MEDICAL_DEVICE, Audiograms, read_audiograms
from sepkit.studies.audiogram.model import (
    BASELINE,
    FEATURES,
    STOPPING,
    StoppingRule,
    TrainedVAE,
    latent_draws,
    load_model,
    load_stack,
    seeds_of,
)

STRATEGIES = ("largest_variance", "random", "single_best")
"""Ways to choose the next dimension: that of the largest predictive variance, in a random order for each datum, or in
one order for all."""

SIMULATION = "simulation.json"

# Most decoded values held at once.
_CHUNK_VALUES = 2_000_000
_ORDER_SAMPLES, _ORDER_DATA = 16, 256


@dataclass
class Sessions:
    """N sessions of M measurements each; errors and beliefs after 0, 1 ... M of them, (N, M + 1) each.

    Args:
        reference: Reference of the errors: the noise-free or the measured audiogram.
        orders: (N, M) places of the dimensions in the order of their measurement.
        rmse: Root mean squared error of the estimates over all dimensions, in the unit of the data: thesis, eq. 4.
        posterior_rmse: The same error of the posterior mean of the noise-free values.
        features: Features of stopping rules, by name.
    """

    reference: str
    orders: np.ndarray
    rmse: np.ndarray
    posterior_rmse: np.ndarray
    features: dict[str, np.ndarray]


def rmse(estimate: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return the root mean squared error over the last axis."""
    return np.sqrt(np.square(estimate - reference).mean(-1))


def area(curves: np.ndarray) -> np.ndarray:
    """Return (B,) area below (B, M + 1) information curves: the sum of the error after 1, 2 ... M measurements.

    Source: thesis, eq. 6, whose sum is over m, not over the dimensions as printed.
    """
    return curves[..., 1:].sum(-1)


def play(vae: TrainedVAE, data: Audiograms, draws: np.ndarray, orders: np.ndarray | None = None) -> Sessions:
    """Return sessions with each datum, from nothing measured to everything.

    Args:
        vae: The model.
        data: N complete data.
        draws: (S, L) standard normal numbers, see `latent_draws`.
        orders: (N, M) places of the dimensions in the order of their measurement; None: always the dimension with the
            largest predictive variance.
    """
    size = max(1, _CHUNK_VALUES // (len(draws) * len(vae.names)))
    parts = [
        _play_some(vae, data.values[rows], data.reference[rows], draws, None if orders is None else orders[rows])
        for rows in (slice(start, start + size) for start in range(0, len(data), size))
    ]
    orders, errors, posterior, *columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    features = {str(name): column for name, column in zip(FEATURES, columns, strict=True)}
    return Sessions("measured" if data.truth is None else "noise-free", orders, errors, posterior, features)


def _play_some(
    vae: TrainedVAE, values: np.ndarray, reference: np.ndarray, draws: np.ndarray, orders: np.ndarray | None
) -> tuple[np.ndarray, ...]:
    count, steps = len(values), len(vae.measurable)
    observed = vae.nothing_measured(count)
    chosen = np.empty((count, steps), int)
    beliefs: list[tuple[np.ndarray, ...]] = []
    for step in range(steps + 1):
        prediction = vae.predict(values, observed, draws)
        errors = (rmse(estimate, reference) for estimate in (prediction.estimate, prediction.posterior_mean))
        beliefs.append((*errors, *vae.features(prediction).values()))
        if step < steps:
            chosen[:, step] = vae.next_dimension(prediction) if orders is None else orders[:, step]
            observed = observed.copy()
            observed[np.arange(count), chosen[:, step]] = True
    return chosen, *(np.stack(column, axis=1) for column in zip(*beliefs, strict=True))


def random_orders(vae: TrainedVAE, count: int, seed: int) -> np.ndarray:
    """Return places of the measurable dimensions, in a different order for each datum, (count, M)."""
    return vae.measurable[np.random.default_rng([seed, 0]).random((count, len(vae.measurable))).argsort(axis=1)]


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


# ------------------------------------------------------------------------------------------------------------ stopping


def fit_stopping(sessions: Sessions, names: Sequence[str] = FEATURES) -> StoppingRule:
    """Return the rule that predicts the errors of validation sessions best, from one measurement on.

    Args:
        sessions: Validation sessions.
        names: Features that the rule may use.
    """
    from sepkit.inference.quality.regression import FARTHEST, fit_ridge

    count, columns = sessions.rmse.shape
    table = {name: sessions.features[name][:, 1:].ravel() for name in names}
    groups = np.repeat(np.arange(count), columns - 1)
    fitted, _ = fit_ridge(table, sessions.rmse[:, 1:].ravel().astype(float), groups)
    shared = ("features", "means", "scales", "coefficients", "intercept", "ridge", "error_db", "correlation")
    own = {name: getattr(fitted, name) for name in shared}
    return StoppingRule(**own, limit=FARTHEST, reference=sessions.reference, sessions=count)


def calibrate(model: str | Path, manifest: str | Path, first: int | None = None) -> tuple[StoppingRule, Path]:
    """Fit a model's stopping rule on sessions with audiograms; return it, and its path beside the model.

    Errors are measured against the noise-free values if these are known, else against the data.

    Args:
        model: EXP or EXP/model.
        manifest: CSV file of audiograms that the model was not trained on.
        first: Number of audiograms, from the beginning; None: all.
    """
    loaded = load_model(model)
    data = read_audiograms(manifest, loaded.vae.config.dimensions).complete_ones(first)
    rule = fit_stopping(play(loaded.vae, data, loaded.vae.draws))
    rule.manifest, rule.weights = str(manifest), loaded.vae.fingerprint
    return rule, write_yaml(loaded.folder / STOPPING, to_dict(rule))


def stopping_index(errors: np.ndarray, threshold: float) -> np.ndarray:
    """Return (B,) the first number of measurements, 1 or more, with an error below the threshold; M if there is none.

    Args:
        errors: (B, M + 1) errors, dB: with true ones the result is the oracle's, with predicted ones a rule's.
        threshold: Error that is good enough, dB.
    """
    below = errors[:, 1:] < threshold
    return np.where(below.any(1), below.argmax(1) + 1, errors.shape[1] - 1)


def best_index(errors: np.ndarray, threshold: float) -> int:
    """Return the single number of measurements with the least mean offset from the oracle's, for (N, M + 1) errors."""
    oracle = stopping_index(errors, threshold)
    return min(range(1, errors.shape[1]), key=lambda index: np.abs(oracle - index).mean())


def stopping_scores(errors: np.ndarray, stops: np.ndarray, threshold: float) -> dict[str, float]:
    """Return the offset O, thesis eq. 7, the mean stopping index, and the mean error there, dB.

    Args:
        errors: (N, M + 1) true errors of sessions, dB.
        stops: (N,) stopping indices.
        threshold: Error that is good enough, dB.
    """
    return {
        "offset": float(np.abs(stops - stopping_index(errors, threshold)).mean()),
        "index": float(stops.mean()),
        "error_db": float(errors[np.arange(len(stops)), stops].mean()),
    }


# ------------------------------------------------------------------------------------------------------------- command


@dataclass(frozen=True)
class Settings:
    """How sessions are played, as `sepkit audiogram simulate` describes its options."""

    strategies: Sequence[str]
    thresholds_db: Sequence[float] = (5.0, 6.0, 7.0)
    samples: int = 64
    first: int | None = None
    seed: int = 0


def simulate(
    model: str | Path, files: Mapping[str, str | None], out: str | Path, settings: Settings
) -> tuple[list[Path], list[str]]:
    """Write the results of a model to OUT, or of a stack to OUT/NAME; return folders, and lines about unusable rows.

    A folder that is complete already, with the same settings, is left as it is.

    Args:
        model: EXP or EXP/model.
        files: CSV files of audiograms: "manifest" to play, and "dev" for the single best order and the stopping rules;
            None: not given.
        out: Folder of the results.
        settings: Settings of the sessions.
    """
    if "single_best" in settings.strategies and files["dev"] is None:
        raise UserError("--dev: not given, expected validation data, on which the single best order is found")
    home, vaes = load_stack(model)
    seeds = seeds_of(home)
    if len(seeds) != len(vaes):
        raise UserError(f"{home}: found {len(vaes)} models, but the configuration beside it is of {len(seeds)}")
    refused: list[str] = []
    dimensions = vaes[0].config.dimensions
    data = {name: read_audiograms(file, dimensions, refused) for name, file in files.items() if file is not None}
    shared = {"model": str(model), **files, **to_dict(settings)}
    folders = []
    for vae, seed in zip(vaes, seeds, strict=True):
        folders.append(Path(out) / f"seed_{seed}" if len(vaes) > 1 else Path(out))
        file = folders[-1] / SIMULATION
        asked = shared | {"training_seed": seed}
        done = read_json(file, "delete it") if file.is_file() else None
        if isinstance(done, dict) and done.get("asked") == asked:
            continue
        write_json(file, play_strategies(vae, data["manifest"], data.get("dev"), settings) | {"asked": asked})
    return folders, refused


def play_strategies(vae: TrainedVAE, data: Audiograms, dev: Audiograms | None, settings: Settings) -> dict[str, Any]:
    """Return results of whole sessions by each strategy, and where rules stop those of the first one.

    Args:
        vae: The model.
        data: Data to play; incomplete ones are left out.
        dev: Validation data, for the single best order and the rules; None: the oracle alone stops.
        settings: Settings of the sessions.
    """
    data, draws = data.complete_ones(settings.first), latent_draws(vae.config.latent, settings.samples)
    order: list[int] = []
    if dev is not None:
        dev = dev.complete_ones(settings.first)
        if "single_best" in settings.strategies:
            order = greedy_order(
                vae, dev[np.arange(min(_ORDER_DATA, len(dev)))], latent_draws(vae.config.latent, _ORDER_SAMPLES)
            )

    def sessions(name: str, some: Audiograms) -> Sessions:
        if name == "random":
            return play(vae, some, draws, random_orders(vae, len(some), settings.seed))
        return play(vae, some, draws, None if name == "largest_variance" else np.tile(order, (len(some), 1)))

    played = {name: sessions(name, data) for name in settings.strategies}
    first = settings.strategies[0]
    validation = None if dev is None else sessions(first, dev)
    return {
        "notice": NOT_A_MEDICAL_DEVICE,
        "data": len(data),
        "reference": played[first].reference,
        "strategies": {
            name: {
                "rmse_db": found.rmse.mean(0).round(5).tolist(),
                "posterior_rmse_db": found.posterior_rmse.mean(0).round(5).tolist(),
                "area_rmse_db": float(area(found.rmse).mean()),
                "areas_db": area(found.rmse).round(4).tolist(),
            }
            for name, found in played.items()
        },
        "single_best_order": [vae.names[place] for place in order],
        "stopping": {
            f"{threshold:g}": {name: stopping_scores(played[first].rmse, at, threshold) for name, at in stops.items()}
            for threshold, stops in stops_of(played[first], validation, settings.thresholds_db).items()
        },
    }


def stops_of(
    sessions: Sessions, validation: Sessions | None, thresholds_db: Sequence[float]
) -> dict[float, dict[str, np.ndarray]]:
    """Return threshold -> rule -> where it stops each session, (N,).

    Args:
        sessions: N sessions.
        validation: Sessions that rules are fitted on; None: the oracle alone.
        thresholds_db: Errors that are good enough, dB.
    """
    errors = {"oracle": sessions.rmse}
    if validation is not None:
        for name, features in (("ridge", FEATURES), ("number", BASELINE)):
            errors[name] = fit_stopping(validation, features).predict(sessions.features)
    found = {}
    for threshold in thresholds_db:
        found[threshold] = {name: stopping_index(values, threshold) for name, values in errors.items()}
        if validation is not None:
            found[threshold]["best_index"] = np.full(len(sessions.rmse), best_index(validation.rmse, threshold))
    return found
