"""Evaluate models on known data and write files: whole sessions, information curves, stopping, rate and distortion."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.errors import UserError
from sepkit.files import atomic_output, read_json, read_yaml, write_json
from sepkit.studies.acquisition.audiogram import NOT_A_MEDICAL_DEVICE, Audiograms
from sepkit.studies.acquisition.calibration import complete_data, read_for
from sepkit.studies.acquisition.config import MissingnessConfig
from sepkit.studies.acquisition.masks import observed_in
from sepkit.studies.acquisition.measures import area, stopping_index
from sepkit.studies.acquisition.predictive import TrainedVAE, latent_draws
from sepkit.studies.acquisition.session import AudiogramModel, load_audiogram_model
from sepkit.studies.acquisition.simulation import STRATEGIES, Sessions, greedy_order, play
from sepkit.studies.acquisition.stopping import (
    FEATURES,
    best_index,
    features_of,
    fit_stopping,
    stopping_scores,
)

SIMULATION = "simulation.json"
_FORMAT = 1
_ORDER_SAMPLES = 16
_ORDER_DATA = 256
# Masks per test datum. With one mask each, a rate of half a nat on 512 data has a deviation of 4.5 % over draws.
_MASK_DRAWS = 16
_SHOWN_SESSIONS = 4
_BASELINE = ("measurements",)


@dataclass(frozen=True)
class Settings:
    """How sessions are played.

    Args:
        strategies: ways to choose the next dimension.
        thresholds_db: errors that are good enough, dB.
        samples: of z.
        first: number of data, from the beginning of each file; None: all complete ones.
        seed: of random orders and masks.
    """

    strategies: Sequence[str] = ("largest_variance", "single_best", "random")
    thresholds_db: Sequence[float] = (5.0, 6.0, 7.0)
    samples: int = 64
    first: int | None = None
    seed: int = 0

    def check(self) -> None:
        """Raise UserError for impossible settings."""
        unknown = [name for name in self.strategies if name not in STRATEGIES]
        if unknown or not self.strategies:
            raise UserError(f"--strategies: found {', '.join(unknown) or 'none'}, expected of {', '.join(STRATEGIES)}")
        if not all(0 < threshold < np.inf for threshold in self.thresholds_db):
            raise UserError("--stop-at-db: expected numbers above 0")
        if self.first is not None and self.first < 1:
            raise UserError(f"--first: found {self.first}, expected 1 or more")
        if self.samples < 2:
            raise UserError(f"--samples: found {self.samples}, expected 2 or more")


@dataclass
class Simulation:
    """The results of one model's sessions with one set of data.

    Args:
        summary: plain data, as in simulation.json.
        sessions: by strategy.
        stops: stopping index of each session of the first strategy at the first threshold, by rule.
        data: those used.
    """

    summary: dict[str, Any]
    sessions: dict[str, Sessions]
    stops: dict[str, np.ndarray]
    data: Audiograms


def simulate(model: AudiogramModel, data: Audiograms, settings: Settings, dev: Audiograms | None = None) -> Simulation:
    """Return whole sessions by each strategy, and where rules stop those of the first one.

    Args:
        model: chooses and estimates.
        data: complete ones that the model was not trained on.
        settings: how sessions are played.
        dev: complete validation data, for the single best order and for the rules of stopping that are compared; None:
            only the rule beside the model.

    Raises:
        UserError: settings that are not possible, or "single_best" without validation data.
    """
    settings.check()
    vae = model.vae
    draws = latent_draws(_even(settings.samples, vae.config.latent), vae.config.latent)
    order: list[int] | None = None
    if "single_best" in settings.strategies:
        if dev is None:
            raise UserError("--dev: not given, expected validation data, on which the single best order is found")
        few = latent_draws(_even(_ORDER_SAMPLES, vae.config.latent), vae.config.latent)
        order = greedy_order(vae, dev[np.arange(min(_ORDER_DATA, len(dev)))], few)
    sessions = {name: play(vae, data, name, draws, order, settings.seed) for name in settings.strategies}
    first = sessions[settings.strategies[0]]
    validation = None if dev is None else play(vae, dev, settings.strategies[0], draws, order, settings.seed)
    stopping, stops = _stopping(model, first, validation, settings.thresholds_db)
    summary = {
        "format": _FORMAT,
        "notice": NOT_A_MEDICAL_DEVICE,
        "data": len(data),
        "reference": first.reference,
        "latent": vae.config.latent,
        "samples": settings.samples,
        "strategies": {name: _curves(played) for name, played in sessions.items()},
        "single_best_order": None if order is None else [vae.names[place] for place in order],
        "stopping": stopping,
    }
    return Simulation(summary, sessions, stops, data)


def _even(samples: int, latent: int) -> int:
    return max(samples + samples % 2, 2 * latent + 2)


def _curves(sessions: Sessions) -> dict[str, Any]:
    """Return information curves and the areas below them, means and standard deviations over the data."""
    curves = {"rmse_db": sessions.rmse, "rmse_measured_db": sessions.rmse_measured, "nll_nats": sessions.nll}
    found: dict[str, Any] = {}
    for name, values in curves.items():
        areas = area(values)
        found[name] = _rounded(values.mean(0))
        found[f"{name}_std"] = _rounded(values.std(0))
        found[f"area_{name}"] = float(areas.mean())
        found[f"area_{name}_std"] = float(areas.std())
    return found


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 5) for value in values]


def _stopping(
    model: AudiogramModel, sessions: Sessions, validation: Sessions | None, thresholds: Sequence[float]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return scores of each rule at each threshold, and where the rules stop at the first threshold."""
    rules = {}
    if validation is not None:
        rules = {"ridge": fit_stopping(validation, FEATURES), "number": fit_stopping(validation, _BASELINE)}
    elif model.stopping is not None:
        rules = {"ridge": model.stopping}
    predicted = {name: rule.predict(features_of(sessions)) for name, rule in rules.items()}
    scores: dict[str, Any] = {}
    stops: dict[str, np.ndarray] = {}
    for threshold in thresholds:
        found = {name: stopping_index(values, threshold) for name, values in predicted.items()}
        found["oracle"] = stopping_index(sessions.rmse, threshold)
        if validation is not None:
            found["best_index"] = np.full(len(sessions.rmse), best_index(validation, threshold))
        scores[f"{threshold:g}"] = {
            name: stopping_scores(sessions, indices, threshold, predicted.get(name)) for name, indices in found.items()
        }
        stops = stops or found
    for name, values in predicted.items():
        measured = values[:, 1:].ravel()
        correlation = np.corrcoef(measured, sessions.rmse[:, 1:].ravel())[0, 1] if np.ptp(measured) > 0 else None
        scores.setdefault("correlation", {})[name] = None if correlation is None else float(correlation)
    return scores, stops


def rate_and_distortion(
    vae: TrainedVAE, values: np.ndarray, observed: np.ndarray, samples: int = 16
) -> dict[str, float]:
    """Return mean rate, partial distortion and negative partial ELBO of partly observed data, nats.

    Args:
        vae: the model.
        values: (N, D).
        observed: (N, D) bool.
        samples: of z for each datum; rounded up to an even number above twice the latents.
    """
    draws = latent_draws(_even(samples, vae.config.latent), vae.config.latent)
    rates, distortions = [], []
    for start in range(0, len(values), 1024):
        rows = slice(start, start + 1024)
        prediction = vae.predict(values[rows], observed[rows], draws)
        rates.append(prediction.rate)
        distortions.append(prediction.distortion)
    rate, distortion = float(np.concatenate(rates).mean()), float(np.concatenate(distortions).mean())
    return {"rate_nats": rate, "distortion_nats": distortion, "negative_elbo_nats": rate + distortion}


# ---------------------------------------------------------------------------------------------------------- many models


def simulate_all(
    models: Sequence[str | Path],
    manifest: str | Path,
    out: str | Path,
    settings: Settings,
    dev: str | Path | None = None,
    training: str | Path | None = None,
) -> tuple[list[Path], list[str]]:
    """Write the results of each model to OUT, or several to OUT/NAME; return folders, and lines about refused rows.

    A folder that is complete already, with the same settings, is left as it is.

    Args:
        models: folders that `sepkit train` wrote.
        manifest: test data (CSV).
        out: see above.
        settings: how sessions are played.
        dev: validation data; None: none.
        training: the training data, for the distortion there; None: not measured.

    Raises:
        UserError: no such model or file, data of other dimensions, or two models of one name.
    """
    settings.check()
    names = [_name_of(Path(model)) for model in models]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise UserError(f"--model: found several that would be {repeated[0]} below {out}; simulate them separately")
    folders: list[Path] = []
    refused: list[str] = []
    read: dict[tuple[str, str], Audiograms] = {}
    for model_path, name in zip(models, names, strict=True):
        folder = Path(out) / name if len(models) > 1 else Path(out)
        folders.append(folder)
        asked = _asked(model_path, manifest, settings, dev, training)
        if _is_done(folder, asked):
            continue
        model = load_audiogram_model(model_path)
        key = ",".join(model.vae.names)
        for what, file in (("test", manifest), ("dev", dev), ("training", training)):
            if file is not None and (what, key) not in read:
                read[what, key] = read_for(model.vae, file, refused)
        tests = complete_data(read["test", key], settings.first)
        validation = None if dev is None else complete_data(read["dev", key], settings.first)
        simulation = simulate(model, tests, settings, validation)
        simulation.summary |= {"asked": asked, "training": _training_of(Path(model_path))}
        simulation.summary["rate_distortion"] = _rates(model.vae, simulation, read, key, settings)
        write_simulation(folder, simulation, model)
    return folders, refused


def _name_of(model: Path) -> str:
    path = model.resolve()
    return path.parent.name if path.name in ("model", "last_model") else path.name


def _asked(model: str | Path, manifest: str | Path, settings: Settings, *more: str | Path | None) -> dict[str, Any]:
    return {
        "model": str(model),
        "manifest": str(manifest),
        "dev": None if more[0] is None else str(more[0]),
        "training": None if more[1] is None else str(more[1]),
        "strategies": list(settings.strategies),
        "thresholds_db": list(settings.thresholds_db),
        "samples": settings.samples,
        "first": settings.first,
        "seed": settings.seed,
    }


def _is_done(folder: Path, asked: Mapping[str, Any]) -> bool:
    file = folder / SIMULATION
    return file.is_file() and read_json(file).get("asked") == asked


def _training_of(model: Path) -> dict[str, Any]:
    """Return what is known of the model's training: seed, missingness, target rate and epochs."""
    for folder in (model, model.parent):
        if (folder / "config.yaml").is_file():
            config = read_yaml(folder / "config.yaml")
            data, objective, trainer = (config.get(part) or {} for part in ("data", "objective", "trainer"))
            missingness = data.get("missingness") or {}
            steering = objective.get("steering") or {}
            return {
                "seed": trainer.get("seed"),
                "epochs": trainer.get("max_epochs"),
                "missingness": missingness,
                "target_rate": steering.get("total"),
            }
    return {}


def _rates(
    vae: TrainedVAE, simulation: Simulation, read: Mapping[tuple[str, str], Audiograms], key: str, settings: Settings
) -> dict[str, Any]:
    """Measure rate and distortion on test data, and on training and test data under the training's own masks."""
    dimensions = len(vae.names)
    training = simulation.summary["training"]
    missing = MissingnessConfig(**training["missingness"]) if training.get("missingness") else MissingnessConfig()
    whole = read["test", key]
    repeated = np.tile(whole.values, (_MASK_DRAWS, 1))
    fresh = observed_in(missing, len(repeated), dimensions, settings.seed, 10**6) & ~np.isnan(repeated)
    found: dict[str, Any] = {"test": rate_and_distortion(vae, np.nan_to_num(repeated), fresh)}
    if ("training", key) in read:
        data = read["training", key]
        own = observed_in(missing, len(data), dimensions, training.get("seed") or 0, 0) & ~np.isnan(data.values)
        found["train"] = rate_and_distortion(vae, np.nan_to_num(data.values), own)
        # Means over a few random masks vary more than over data, so the same masks are used again.
        again = np.resize(whole.values, data.values.shape)
        found["test_same_masks"] = rate_and_distortion(vae, np.nan_to_num(again), own & ~np.isnan(again))
    return found


# --------------------------------------------------------------------------------------------------------------- files


def write_simulation(folder: Path, simulation: Simulation, model: AudiogramModel) -> Path:
    """Write information.csv, sequences.csv, audiograms.csv and, last of all, simulation.json; return the folder.

    Args:
        folder: made if absent.
        simulation: what is written.
        model: the one that played.
    """
    names = model.vae.names
    _write_rows(folder / "information.csv", _information_rows(simulation))
    _write_rows(folder / "sequences.csv", _sequence_rows(simulation, names))
    _write_rows(folder / "audiograms.csv", _audiogram_rows(simulation, model))
    write_json(folder / SIMULATION, simulation.summary)
    return folder


def _write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    found = list(rows)
    with atomic_output(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(found[0]) if found else ["id"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


def _information_rows(simulation: Simulation) -> Iterator[dict[str, Any]]:
    for strategy, curves in simulation.summary["strategies"].items():
        for measurements, (error, nll) in enumerate(zip(curves["rmse_db"], curves["nll_nats"], strict=True)):
            yield {"measurements": measurements, "rmse_db": error, "nll_nats": nll, "curve": strategy}


def _sequence_rows(simulation: Simulation, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for strategy, sessions in simulation.sessions.items():
        areas = area(sessions.rmse)
        is_first = sessions is next(iter(simulation.sessions.values()))
        for row, identifier in enumerate(simulation.data.ids):
            stops = {f"stop_{rule}": int(s[row]) if is_first else "" for rule, s in simulation.stops.items()}
            yield {
                "id": identifier,
                "strategy": strategy,
                "order": " ".join([names[int(place)] for place in sessions.orders[row]]),
                "area_rmse_db": f"{areas[row]:.4f}",
                **stops,
                **{f"rmse_{m}_db": f"{error:.4f}" for m, error in enumerate(sessions.rmse[row])},
            }


def _audiogram_rows(simulation: Simulation, model: AudiogramModel) -> Iterator[dict[str, Any]]:
    """Yield the first sessions where their rule stops (else after five measurements), for the report to draw."""
    vae, data = model.vae, simulation.data
    sessions = next(iter(simulation.sessions.values()))
    stops = simulation.stops.get("ridge", np.full(len(data), min(5, sessions.orders.shape[1])))
    for row in range(min(_SHOWN_SESSIONS, len(data))):
        observed = np.ones((1, len(vae.names)), bool)
        observed[:, vae.measurable] = False
        observed[0, sessions.orders[row, : stops[row]]] = True
        prediction = vae.predict(data.values[row : row + 1], observed, model.draws)
        truth = data.values if data.truth is None else data.truth
        for place in vae.measurable:
            ear, _, frequency = vae.names[place].partition("_")
            yield {
                "id": data.ids[row],
                "ear": ear,
                "frequency_hz": frequency,
                "measured": int(observed[0, place]),
                "reference_db": f"{truth[row, place]:.2f}",
                "estimate_db": f"{prediction.estimate[0, place]:.2f}",
                "deviation_db": f"{prediction.deviation[0, place]:.2f}",
            }
