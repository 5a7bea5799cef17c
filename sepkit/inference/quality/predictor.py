"""What a model predicts of its own output without references, fitted by `sepkit calibrate` and stored with the model.

A ridge regression of SI-SDR on the features of a separation, and a rule that detects single speakers. A model
without a predictor of its own is judged by how far two views of a recording agree, see `generic_predictor`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import yaml

from sepkit.choices import from_dict, to_dict
from sepkit.errors import UserError, shown
from sepkit.files import parse_json, read_yaml, write_text
from sepkit.inference.quality.regression import COVERAGE, FARTHEST, RidgeRegression, fit_ridge
from sepkit.inference.quality.single_speaker import SingleSpeakerDetector
from sepkit.inference.runners.base import AGREEMENT, Runner
from sepkit.version import __version__

QUALITY = "quality.yaml"
FORMAT = 4
FEATURES_VERSION = 6
"""Goes up when a feature changes its meaning: coefficients of another version would multiply something else."""

ANY_MODEL = Path(__file__).with_name("any_model.yaml")
"""The predictor for models without their own."""

_AGAIN = "run `sepkit calibrate` again, or delete the file"


@dataclass
class QualityPredictor:
    """Content of a model's `quality.yaml`.

    Args:
        weights: fingerprint of the model it was fitted for.
        manifest: Manifest of the mixtures.
        examples: number of estimates of sources in the mixtures.
        coverage: share of examples that the intervals should contain, of mixtures like those and of harder ones.
        model: Regression of SI-SDR on all features of the separation.
        views: number of views of a recording that the model has by default, and had when this was fitted.
        depth_steps: number of steps of a model of continuous depth that it was fitted with; None for other models.
        single_speaker: Rule that distinguishes recordings of one speaker from those of several; None: no safe rule.
        of_any_model: Whether it uses the agreement of views only, and was not fitted for this model.
        sepkit: version that wrote it.
    """

    weights: str
    hypotheses: int
    manifest: str
    mixtures: int
    examples: int
    coverage: float
    model: RidgeRegression
    views: int = 1
    depth_steps: int | None = None
    single_speaker: SingleSpeakerDetector | None = None
    of_any_model: bool = False
    sepkit: str = __version__
    format: int = FORMAT
    features_version: int = FEATURES_VERSION

    def predict(self, features: Mapping[str, np.ndarray] | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected SI-SDR, (n,) dB, and the ends of its interval, (n, 2) dB, float32.

        Everything is NaN without features (silence, or too short), or in one view if several are needed.

        Args:
            features: Features of the estimates by name, (n,) each; None: there are none.

        Raises:
            UserError: a feature is missing.
        """
        if not self._has_views(features):
            nothing = np.full(self.hypotheses, np.nan, np.float32)
            return nothing, np.stack([nothing, nothing], axis=1)
        predicted = self.model.predict(features)
        return predicted.astype(np.float32), self.model.interval(predicted, features).astype(np.float32)

    def _has_views(self, features: Mapping[str, np.ndarray] | None) -> TypeGuard[Mapping[str, np.ndarray]]:
        return features is not None and (AGREEMENT in features or AGREEMENT not in self.model.features)

    def out_of_domain(self, features: Mapping[str, np.ndarray] | None) -> bool | None:
        """Return whether a recording or its estimates are unlike all that the prediction was fitted on.

        They are if a feature is farther than four deviations from its mean; the length and products of features do not
        count. None without a prediction.

        Args:
            features: Features of the estimates by name, (n,) each; None: there are none.
        """
        if not self._has_views(features):
            return None
        far = [
            np.abs((np.asarray(features[name]) - mean) / scale) > FARTHEST
            for name, mean, scale in zip(self.model.features, self.model.means, self.model.scales, strict=True)
            if name != "log_duration_seconds" and "*" not in name
        ]
        return bool(np.any(far))

    def fits_depth(self, steps: int | None) -> bool:
        """Return whether it was fitted for a model that computes in this number of steps.

        Args:
            steps: Number of steps of a model of continuous depth; None: a model of fixed depth.
        """
        return self.depth_steps in (None, steps)

    def digest(self) -> str:
        """Return a hexadecimal digest of everything, which identifies this predictor."""
        return hashlib.blake2b(json.dumps(to_dict(self), sort_keys=True).encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=8)
def generic_predictor(hypotheses: int) -> QualityPredictor:
    """Return the predictor for a model that was never calibrated; it asks for two views.

    A model that has learned nothing agrees with itself, too, so how alike its estimates are counts beside that, and how
    much their level varies: one voice pauses, two seldom do at once. The regression was fitted on the estimates
    of five models on 117 dev mixtures, clean and noisy, and its interval on those of models that it was not fitted on.

    Args:
        hypotheses: Number of the model's estimates.
    """
    return replace(from_dict(QualityPredictor, read_yaml(ANY_MODEL, "install sepkit again")), hypotheses=hypotheses)


def fit_quality(
    features: Mapping[str, np.ndarray],
    targets: np.ndarray,
    mixtures: np.ndarray | Sequence[int],
    kinds: np.ndarray | Sequence[str] | None = None,
    interval_only: np.ndarray | None = None,
    **described: Any,
) -> QualityPredictor:
    """Return a predictor of SI-SDR.

    Args:
        features: Features of the N examples by name, (N,) each; examples with one that is not finite are left out.
        targets: SI-SDR, (N,) dB.
        mixtures: Number of the mixture of each example, (N,).
        kinds: Kind of situation of each example, (N,); None: all are of one kind.
        interval_only: (N,) bool, examples of harder kinds, each a mixture of its own, that only the interval is fitted
            on; None: there are none.
        **described: manifest of `QualityPredictor`, and its fields of `runner_fields`.

    Raises:
        UserError: too few examples, or all alike.
    """
    table = {name: np.asarray(values, np.float64) for name, values in features.items()}
    targets, mixtures, count = np.asarray(targets, np.float64), np.asarray(mixtures), len(targets)
    only = np.zeros(count, bool) if interval_only is None else interval_only
    fitted = np.isfinite(np.stack([targets, *table.values()])).all(0) & ~only
    model, left_out = fit_ridge({name: own[fitted] for name, own in table.items()}, targets[fitted], mixtures[fitted])
    # Predictions by fits without the mixture in question; the fit has none of the harder examples.
    predicted = np.full(count, np.nan)
    predicted[fitted] = left_out
    predicted[only] = model.predict({name: values[only] for name, values in table.items()})
    known = np.isfinite(targets - predicted)
    groups = np.where(only, mixtures.max() + 1 + np.arange(count), mixtures)
    model.fit_interval(
        (targets - predicted)[known],
        {name: table[name][known] for name in model.features},
        groups[known],
        np.zeros(count)[known] if kinds is None else np.asarray(kinds)[known],
    )
    described |= {"mixtures": len(np.unique(mixtures[fitted])), "examples": int(fitted.sum())}
    return QualityPredictor(**described, coverage=COVERAGE, model=model)


def runner_fields(runner: Runner) -> dict[str, Any]:
    """Return the fields of `QualityPredictor` that name the model it is fitted for.

    Args:
        runner: Runs the model.
    """
    return {
        "weights": runner.fingerprint(),
        "hypotheses": runner.hypotheses,
        "depth_steps": runner.depth,
        "views": runner.views,
    }


# --------------------------------------------------------------------------------------------------------------- files


def write_quality(predictor: QualityPredictor, folder: Path) -> Path:
    """Write the predictor to a model's folder; return its path.

    Args:
        predictor: Predictor of the model.
        folder: Folder of the model.
    """
    # JSON has no tuples, so none becomes a tag in the YAML.
    plain = parse_json(json.dumps(to_dict(predictor)))
    return write_text(folder / QUALITY, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def read_quality(folder: Path, weights: str, hypotheses: int) -> QualityPredictor | None:
    """Read the predictor in a model's folder; return None if there is none.

    Args:
        folder: Folder of the model.
        weights: Fingerprint of the model that it must be for.
        hypotheses: Number of estimates of that model.

    Raises:
        UserError: a file that is damaged, of another version, or for another model.
    """
    path = folder / QUALITY
    if not path.is_file():
        return None
    data = read_yaml(path, _AGAIN)
    for field, expected in {"format": FORMAT, "features_version": FEATURES_VERSION}.items():
        found = data.get(field) if isinstance(data, dict) else None
        if found != expected:
            raise UserError(f"{path}: found {field} {shown(found)}, expected {expected}; {_AGAIN}")
    try:
        predictor = from_dict(QualityPredictor, data)
        single = predictor.single_speaker
        for model in filter(None, (predictor.model, single and single.one, single and single.noise)):
            model.check()
    except UserError as error:
        raise UserError(f"{path}: {error}; {_AGAIN}") from error
    except TypeError as error:
        raise UserError(f"{path}: a field is missing ({error}); {_AGAIN}") from error
    if predictor.hypotheses != hypotheses or predictor.weights != weights:
        what = f"{predictor.hypotheses} hypotheses" if predictor.hypotheses != hypotheses else "other weights"
        raise UserError(f"{path}: was fitted for a model with {what} than the one beside it; {_AGAIN}")
    return predictor
