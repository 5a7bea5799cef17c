"""Evaluate models on known data and write files: whole sessions, information curves, stopping, rate and distortion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.choices import from_dict
from sepkit.errors import UserError
from sepkit.files import read_json, read_yaml, write_csv, write_json
from sepkit.studies.audiogram.config import MissingnessConfig
from sepkit.studies.audiogram.data import NOT_A_MEDICAL_DEVICE, Audiograms, observed_in, read_audiograms
from sepkit.studies.audiogram.network import TrainedVAE, latent_draws
from sepkit.studies.audiogram.session import AudiogramModel, load_model
from sepkit.studies.audiogram.simulation import STRATEGIES, Sessions, area, greedy_order, play
from sepkit.studies.audiogram.stopping import (
    BASELINE,
    FEATURES,
    StoppingRule,
    best_index,
    fingerprint,
    fit_stopping,
    stopping_index,
    stopping_scores,
    write_stopping,
)

SIMULATION = "simulation.json"
AUDIOGRAMS = "audiograms.csv"
"""File of sessions to draw: id, ear, frequency_hz, measured, reference_db, estimate_db, deviation_db."""

_ORDER_SAMPLES, _ORDER_DATA = 16, 256
_RATE_SAMPLES, _RATE_CHUNK = 16, 1024
# Masks per test datum. With one mask each, a rate of half a nat on 512 data has a deviation of 4.5 % over draws.
_MASK_DRAWS = 16
_SHOWN_SESSIONS = 4


def calibrate(model: str | Path, manifest: str | Path, first: int | None = None) -> tuple[StoppingRule, Path]:
    """Fit a model's stopping rule on sessions with audiograms; return it, and its path beside the model.

    Errors are measured against the noise-free values if these are known, else against the data. Arguments are those of
    the command.
    """
    loaded = load_model(model)
    data = read_audiograms(manifest, loaded.vae.config.dimensions).complete_ones(first)
    sessions = play(loaded.vae, data, loaded.draws)
    rule = _fit(sessions, FEATURES)
    rule.manifest, rule.weights = str(manifest), fingerprint(loaded.vae)
    return rule, write_stopping(rule, loaded.folder)


def _fit(sessions: Sessions, names: Sequence[str]) -> StoppingRule:
    return fit_stopping(sessions.features, sessions.rmse, sessions.reference, names)


def fit_rules(validation: Sessions) -> dict[str, StoppingRule]:
    """Return the rules that are compared: with all features, and with the number of measurements alone."""
    return {"ridge": _fit(validation, FEATURES), "number": _fit(validation, BASELINE)}


@dataclass(frozen=True)
class Settings:
    """How sessions are played, as `sepkit audiogram simulate` describes its options."""

    strategies: Sequence[str]
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
    """The results of one model's sessions with one set of data; `stops` are stopping indices of the first strategy's
    sessions at the first threshold, by rule."""

    summary: dict[str, Any]
    sessions: dict[str, Sessions]
    stops: dict[str, np.ndarray]
    data: Audiograms


def simulate(model: AudiogramModel, data: Audiograms, settings: Settings, dev: Audiograms | None = None) -> Simulation:
    """Return whole sessions by each strategy, and where rules stop those of the first one. The single best order and
    the compared rules come from complete validation data; without them only the model's rule is shown."""
    settings.check()
    vae, latent = model.vae, model.vae.config.latent
    draws = latent_draws(latent, settings.samples)
    order: list[int] = []
    if "single_best" in settings.strategies:
        if dev is None:
            raise UserError("--dev: not given, expected validation data, on which the single best order is found")
        order = greedy_order(vae, dev[np.arange(min(_ORDER_DATA, len(dev)))], latent_draws(latent, _ORDER_SAMPLES))
    sessions = {name: play(vae, data, draws, name, order, settings.seed) for name in settings.strategies}
    first = sessions[settings.strategies[0]]
    validation = None if dev is None else play(vae, dev, draws, settings.strategies[0], order, settings.seed)
    scores, stops = _stopping(model, first, validation, settings.thresholds_db)
    summary = {
        "notice": NOT_A_MEDICAL_DEVICE,
        "data": len(data),
        "reference": first.reference,
        "latent": latent,
        "strategies": {name: _curves(played) for name, played in sessions.items()},
        "single_best_order": [vae.names[place] for place in order],
        "stopping": scores,
    }
    return Simulation(summary, sessions, stops, data)


def _curves(sessions: Sessions) -> dict[str, Any]:
    curves = {"rmse_db": sessions.rmse, "rmse_measured_db": sessions.rmse_measured, "nll_nats": sessions.nll}
    means = {name: [round(float(value), 5) for value in values.mean(0)] for name, values in curves.items()}
    return means | {f"area_{name}": float(area(values).mean()) for name, values in curves.items()}


def _stopping(
    model: AudiogramModel, sessions: Sessions, validation: Sessions | None, thresholds: Sequence[float]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return scores of each rule at each threshold, and where the rules stop at the first threshold."""
    rules = {} if model.stopping is None else {"ridge": model.stopping}
    if validation is not None:
        rules = fit_rules(validation)
    predicted = {name: rule.predict(sessions.features) for name, rule in rules.items()}
    scores: dict[str, Any] = {}
    stops: dict[str, np.ndarray] = {}
    for threshold in thresholds:
        found = {name: stopping_index(values, threshold) for name, values in predicted.items()}
        found["oracle"] = stopping_index(sessions.rmse, threshold)
        if validation is not None:
            found["best_index"] = np.full(len(sessions.rmse), best_index(validation.rmse, threshold))
        scores[f"{threshold:g}"] = {
            name: stopping_scores(sessions.rmse, indices, threshold, predicted.get(name))
            for name, indices in found.items()
        }
        stops = stops or found
    return scores, stops


def rate_and_distortion(vae: TrainedVAE, values: np.ndarray, shown: np.ndarray) -> dict[str, float]:
    """Return mean rate, partial distortion and negative partial ELBO of (N, D) data with NaN, shown in part, nats."""
    observed, values = shown & ~np.isnan(values), np.nan_to_num(values)
    draws = latent_draws(vae.config.latent, _RATE_SAMPLES)
    rates, distortions = [], []
    for start in range(0, len(values), _RATE_CHUNK):
        rows = slice(start, start + _RATE_CHUNK)
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

    A folder that is complete already, with the same settings, is left as it is. Arguments are those of the command.
    """
    settings.check()
    names = [_name_of(Path(model)) for model in models]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise UserError(f"--model: found several that would be {repeated[0]} below {out}; simulate them separately")
    folders: list[Path] = []
    refused: list[str] = []
    known: dict[str, Audiograms] = {}

    def read(file: str | Path, vae: TrainedVAE) -> Audiograms:
        key = f"{file} {vae.names}"
        if key not in known:
            known[key] = read_audiograms(file, vae.config.dimensions, refused)
        return known[key]

    for path, name in zip(models, names, strict=True):
        folder = Path(out) / name if len(models) > 1 else Path(out)
        folders.append(folder)
        files = {"model": path, "manifest": manifest, "dev": dev, "training": training}
        asked = {name: None if file is None else str(file) for name, file in files.items()}
        asked |= asdict(settings) | {name: list(getattr(settings, name)) for name in ("strategies", "thresholds_db")}
        if _is_done(folder, asked):
            continue
        model, trained = load_model(path), _training_of(Path(path))
        tests = read(manifest, model.vae)
        validation = None if dev is None else read(dev, model.vae).complete_ones(settings.first)
        learned = None if training is None else read(training, model.vae)
        simulation = simulate(model, tests.complete_ones(settings.first), settings, validation)
        rates = _rates(model.vae, tests, learned, trained, settings.seed)
        simulation.summary |= {"asked": asked, "training": trained, "rate_distortion": rates}
        _write(folder, simulation, model)
    return folders, refused


def _name_of(model: Path) -> str:
    path = model.resolve()
    return path.parent.name if path.name in ("model", "last_model") else path.name


def _is_done(folder: Path, asked: Mapping[str, Any]) -> bool:
    file = folder / SIMULATION
    done = read_json(file, "delete it") if file.is_file() else None
    return isinstance(done, dict) and done.get("asked") == asked


def _training_of(model: Path) -> dict[str, Any]:
    """Return what is known of the model's training: seed, missingness, target rate and epochs."""
    for folder in (model, model.parent):
        if (folder / "config.yaml").is_file():
            config = read_yaml(folder / "config.yaml")
            data, objective, trainer = (config.get(part) or {} for part in ("data", "objective", "trainer"))
            return {
                "seed": trainer.get("seed"),
                "epochs": trainer.get("max_epochs"),
                "missingness": data.get("missingness") or {},
                "target_rate": (objective.get("steering") or {}).get("total"),
            }
    return {}


def _rates(
    vae: TrainedVAE, tests: Audiograms, learned: Audiograms | None, training: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    missing = from_dict(MissingnessConfig, training.get("missingness") or {}, "data.missingness")
    repeated = np.tile(tests.values, (_MASK_DRAWS, 1))
    fresh = observed_in(missing, len(repeated), len(vae.names), seed, 10**6)
    found: dict[str, Any] = {"test": rate_and_distortion(vae, repeated, fresh)}
    if learned is not None:
        own = observed_in(missing, len(learned), len(vae.names), training.get("seed") or 0, 0)
        found["train"] = rate_and_distortion(vae, learned.values, own)
        # Means over a few random masks vary more than over data, so the same masks are used again.
        found["test_same_masks"] = rate_and_distortion(vae, np.resize(tests.values, learned.values.shape), own)
    return found


# --------------------------------------------------------------------------------------------------------------- files


def _write(folder: Path, simulation: Simulation, model: AudiogramModel) -> None:
    _write_rows(folder / "information.csv", _information_rows(simulation))
    _write_rows(folder / "sequences.csv", _sequence_rows(simulation, model.vae.names))
    _write_rows(folder / AUDIOGRAMS, _audiogram_rows(simulation, model))
    write_json(folder / SIMULATION, simulation.summary)


def _write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    found = list(rows)
    write_csv(path, list(found[0]) if found else ["id"], [list(row.values()) for row in found])


def _information_rows(simulation: Simulation) -> Iterator[dict[str, Any]]:
    for strategy, curves in simulation.summary["strategies"].items():
        for measurements, (error, nll) in enumerate(zip(curves["rmse_db"], curves["nll_nats"], strict=True)):
            yield {"measurements": measurements, "rmse_db": error, "nll_nats": nll, "curve": strategy}


def _sequence_rows(simulation: Simulation, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for place, (strategy, sessions) in enumerate(simulation.sessions.items()):
        for row, identifier in enumerate(simulation.data.ids):
            yield {
                "id": identifier,
                "strategy": strategy,
                "order": " ".join(names[int(dimension)] for dimension in sessions.orders[row]),
                "area_rmse_db": f"{area(sessions.rmse[row]):.4f}",
                **{f"stop_{rule}": "" if place else int(stops[row]) for rule, stops in simulation.stops.items()},
                **{f"rmse_{m}_db": f"{error:.4f}" for m, error in enumerate(sessions.rmse[row])},
            }


def _audiogram_rows(simulation: Simulation, model: AudiogramModel) -> Iterator[dict[str, Any]]:
    """Yield the first sessions where their rule stops (else after five measurements), for the report to draw."""
    vae, data = model.vae, simulation.data
    sessions = next(iter(simulation.sessions.values()))
    stops = simulation.stops.get("ridge", np.full(len(data), min(5, sessions.orders.shape[1])))
    for row in range(min(_SHOWN_SESSIONS, len(data))):
        observed = vae.nothing_measured(1)
        observed[0, sessions.orders[row, : stops[row]]] = True
        prediction = vae.predict(data.values[row : row + 1], observed, model.draws)
        for place in vae.measurable:
            ear, _, frequency = vae.names[place].partition("_")
            yield {
                "id": data.ids[row],
                "ear": ear,
                "frequency_hz": frequency,
                "measured": int(observed[0, place]),
                "reference_db": f"{data.reference[row, place]:.2f}",
                "estimate_db": f"{prediction.estimate[0, place]:.2f}",
                "deviation_db": f"{prediction.deviation[0, place]:.2f}",
            }
