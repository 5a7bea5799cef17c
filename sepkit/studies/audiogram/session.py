"""A session with one person: what is measured, what that says about the rest, what to measure next, when to stop.

Nothing here imports torch: an answer takes milliseconds, and the command starts in well under a second.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.choices import from_dict
from sepkit.errors import UserError
from sepkit.files import read_yaml
from sepkit.studies.audiogram.config import AGE, KIND, DimensionConfig, PartialVAEConfig, threshold_name
from sepkit.studies.audiogram.data import NOT_A_MEDICAL_DEVICE, check_value, named_values
from sepkit.studies.audiogram.network import SAMPLES, Prediction, TrainedVAE, latent_draws
from sepkit.studies.audiogram.stopping import StoppingRule, features_of, fingerprint, read_stopping

DEFAULT_STOP_DB = 5.0
_DESCRIPTION, _WEIGHTS = "model.yaml", "model.safetensors"
_EXPECTED = "expected a partial VAE of audiograms that `sepkit train --config audiogram` wrote (EXP/model)"


def load_model(model: str | os.PathLike[str]) -> AudiogramModel:
    """Return the model in a folder, EXP or EXP/model that `sepkit train` wrote, with its calibration beside it."""
    folder = _find(Path(model))
    vae = load_vae(folder)
    return AudiogramModel(vae, folder, read_stopping(folder, fingerprint(vae)))


def load_vae(folder: Path) -> TrainedVAE:
    """Return the partial VAE in a model's folder, without torch; raise UserError as `load_model` does."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    description = read_yaml(folder / _DESCRIPTION)
    if not isinstance(description, dict) or description.get("kind") != KIND:
        raise UserError(f"{folder}: found another kind of model; {_EXPECTED}")
    config = from_dict(PartialVAEConfig, description.get("model"), "model")
    config.check()
    if config.models != 1:
        raise UserError(f"{folder}: found a stack of {config.models} models, expected one; name a folder beside it")
    try:
        vae = TrainedVAE.from_arrays(config, load_file(folder / _WEIGHTS))
        # Weights that do not fit their description fail at the first question, and damaged ones overflow.
        with np.errstate(all="ignore"):
            found = vae.predict(np.zeros((1, len(vae.names))), vae.nothing_measured(1), latent_draws(config.latent))
            if not np.isfinite([found.estimate, found.variance]).all():
                raise ValueError("what it predicts is not finite")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{folder / _WEIGHTS}: damaged, or of other dimensions than {_DESCRIPTION} says ({reason}); get it again"
        ) from error
    return vae


def _find(path: Path) -> Path:
    folders = [path, path / "model"] if path.is_dir() else [path.parent] if path.is_file() else []
    for folder in folders:
        if (folder / _DESCRIPTION).is_file() and (folder / _WEIGHTS).is_file():
            return folder
    raise UserError(f"{path}: no model there; {_EXPECTED}")


@dataclass(frozen=True)
class AudiogramModel:
    """A trained partial VAE, ready for sessions; without `stopping` it is not calibrated."""

    vae: TrainedVAE
    folder: Path
    stopping: StoppingRule | None = None

    @cached_property
    def draws(self) -> np.ndarray:
        """Samples of z for all answers."""
        return latent_draws(self.vae.config.latent, max(SAMPLES, 4 * self.vae.config.latent))

    def session(self, age: float | None = None) -> Session:
        """Return a session with nothing measured; an unknown age is marginalized."""
        return Session(self, age)


class Session:
    """The measurements of one person, and the model's answers; see `AudiogramModel.session`.

    Measuring a threshold again replaces the old value. sepkit is research software, not a medical device.
    """

    def __init__(self, model: AudiogramModel, age: float | None = None) -> None:
        self.model = model
        self.notes: list[str] = []
        self._dimensions: dict[str, DimensionConfig] = {d.name: d for d in model.vae.config.dimensions}
        self._values: dict[str, float] = {}
        self._prediction: Prediction | None = None
        if age is not None:
            if AGE not in self._dimensions:
                raise UserError(f"age: found {age:g}, but the model knows no age; leave it out")
            check_value(self._dimensions[AGE], age)
            self._values[AGE] = float(age)
        elif AGE in self._dimensions:
            self.notes.append("age: not given, marginalized")

    def measured(self, ear: str, hz: int, db: float) -> Session:
        """Return the session with the threshold of an ear at a frequency measured; a repeated one replaces the old
        one."""
        return self.measured_all({threshold_name(ear, hz): float(db)})

    def measured_all(self, measured: Mapping[str, float] | Iterable[str]) -> Session:
        """Return the session with all of these measured, by name or as words such as `right_1000=35`; all or none is
        accepted."""
        values, notes = named_values(measured, self.model.vae.config.dimensions)
        for name, value in values.items():
            if name in self._values:
                notes.append(f"{name}: measured again, {value:g} replaces {self._values[name]:g}")
        self._values |= values
        self.notes += notes
        self._prediction = None
        return self

    @property
    def count(self) -> int:
        """Number of measured thresholds."""
        return sum(not self._dimensions[name].known for name in self._values)

    def next(self) -> str | None:
        """Return the name of the threshold with the largest predictive variance; None if all are measured."""
        place = int(self.model.vae.next_dimension(self.prediction)[0])
        return None if place < 0 else self.model.vae.names[place]

    def estimate(self) -> dict[str, float]:
        """Return name -> threshold, dB HL: the measured value, or the expected one."""
        return self._thresholds(self.prediction.estimate[0])

    def deviation(self) -> dict[str, float]:
        """Return name -> standard deviation, dB: of a measurement, or of the prediction."""
        return self._thresholds(self.prediction.deviation[0])

    def expected_error_db(self) -> float | None:
        """Return the expected root mean squared error of the estimates, dB; None if the model is not calibrated."""
        if self.model.stopping is None:
            return None
        acquisition = self.model.vae.acquisition_value(self.prediction)
        features = features_of(np.array([self.count]), acquisition, self.prediction.partial_elbo)
        return float(self.model.stopping.predict(features)[0])

    def stop(self, stop_at_db: float = DEFAULT_STOP_DB) -> bool | None:
        """Return whether the estimates are good enough: all is measured, or some is and the expected error is below;
        None if the model is not calibrated and something is left to measure."""
        if self.count == len(self.model.vae.measurable):
            return True
        expected = self.expected_error_db()
        return None if expected is None else bool(self.count > 0 and expected < stop_at_db)

    def out_of_range(self) -> bool:
        """Whether the measurements are unlike the training data: 1 % of those have such a low partial ELBO."""
        limit = self.model.vae.low_elbo[len(self._values)]
        return bool(math.isfinite(limit) and self.prediction.partial_elbo[0] < limit)

    def answer(self, stop_at_db: float = DEFAULT_STOP_DB) -> dict[str, Any]:
        """Return all of this as plain data: next, estimate, deviation, expected_error_db, stop, out_of_range ..."""
        if not 0 < stop_at_db < math.inf:
            raise UserError(f"--stop-at-db: found {stop_at_db:g}, expected more than 0 dB")
        expected, notes = self.expected_error_db(), list(self.notes)
        if expected is None:
            notes.append("the model is not calibrated, so that errors are not predicted; see `sepkit calibrate`")
        if not self.count:
            notes.append("nothing is measured: estimates are those of all people of this age")
        if self.out_of_range():
            notes.append("the measurements are unlike the training data: do not rely on estimates, measure everything")
        upcoming = self.next()
        if upcoming is None:
            notes.append("everything is measured: nothing is left to choose")
        return {
            "next": upcoming,
            "estimate": {name: round(value, 2) for name, value in self.estimate().items()},
            "deviation": {name: round(value, 2) for name, value in self.deviation().items()},
            "expected_error_db": None if expected is None else round(expected, 2),
            "stop": self.stop(stop_at_db),
            "out_of_range": self.out_of_range(),
            "measured": self.count,
            "notes": notes,
            "notice": NOT_A_MEDICAL_DEVICE,
        }

    @property
    def prediction(self) -> Prediction:
        """The model's present belief."""
        if self._prediction is None:
            vae = self.model.vae
            values = np.array([[self._values.get(name, 0.0) for name in vae.names]])
            observed = np.array([[name in self._values for name in vae.names]])
            self._prediction = vae.predict(values, observed, self.model.draws)
        return self._prediction

    def _thresholds(self, row: np.ndarray) -> dict[str, float]:
        return {self.model.vae.names[place]: float(row[place]) for place in self.model.vae.measurable}
