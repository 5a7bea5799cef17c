"""Fit what predicts SI-SDR for models without calibration, from two views of each mixture.

    python -m tools.agreement MODEL ... --manifest DEV.jsonl [--test TEST.jsonl ...] [--write]

Each model separates all mixtures in two views. The regression is fitted on the estimates of all models; its interval is
made of the errors for each model by a fit without it, so that it holds for models that are not among them. On test
manifests each model is predicted without itself, too. With --write the file that ships with sepkit is replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from scipy.stats import rankdata, spearmanr
from tqdm import tqdm

from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from sepkit.files import write_text
from sepkit.inference.calibration import measure_sources
from sepkit.inference.loading import load_model
from sepkit.inference.quality.by_agreement import ANY_MODEL, FEATURES
from sepkit.inference.quality.features import BASELINE_FEATURES
from sepkit.inference.quality.predictor import QualityPredictor, predictor_text
from sepkit.inference.quality.regression import COVERAGE, RidgeRegression, fit_ridge
from sepkit.inference.runners.base import Runner
from sepkit.inference.runners.views import ViewsRunner
from sepkit.inference.separator import Separator


@dataclass
class Examples:
    """What one model makes of the sources of one manifest: features, SI-SDR and its improvement, and mixture, (N,)."""

    features: dict[str, np.ndarray]
    si_sdr_db: np.ndarray
    improvement_db: np.ndarray
    mixture: np.ndarray


def collect(model: str, manifest: Path) -> Examples:
    """Return the examples of a model on a manifest, in two views; mixtures that are too short are left out."""
    runner = ViewsRunner(load_model(model, views=1, predict=False).runner, 2)
    separator = Separator(cast(Runner, runner), views=1)
    parts = []
    for number, entry in enumerate(tqdm(list(read_manifest(manifest)), desc=f"{model} {manifest.stem}", disable=None)):
        try:
            found = measure_sources(separator, mix_entry(entry), entry.sample_rate)
        except UserError as error:
            print(f"{entry.id}: {error}", file=sys.stderr)
            continue
        mixture = np.full(len(found.matches), number)
        parts.append((found.matched_features(), found.si_sdr_db, found.improvement_db, mixture))
    features = {name: np.concatenate([part[0][name] for part in parts]) for name in parts[0][0]}
    return Examples(features, *(np.concatenate([part[place] for part in parts]) for place in (1, 2, 3)))


def fit(examples: Sequence[Examples], names: Sequence[str]) -> RidgeRegression:
    """Return the regression of SI-SDR on the named features of all models together."""
    features = {name: np.concatenate([one.features[name] for one in examples]) for name in names}
    targets = np.concatenate([one.si_sdr_db for one in examples])
    usable = np.isfinite(np.stack([targets, *features.values()])).all(0)
    # The same mixture of several models is left out together.
    mixtures = np.concatenate([one.mixture for one in examples])
    of_usable = {name: values[usable] for name, values in features.items()}
    return fit_ridge(of_usable, targets[usable], mixtures[usable]).regression


def scores(predicted: np.ndarray, interval: np.ndarray, examples: Examples) -> str:
    """Return rank correlation by mixture, error, coverage, and area under the curve for "worse than the mixture"."""
    known = np.isfinite(predicted)
    of_mixture = [np.flatnonzero((examples.mixture == number) & known) for number in np.unique(examples.mixture)]
    of_mixture = [places for places in of_mixture if len(places)]
    means = [np.array([values[places].mean() for places in of_mixture]) for values in (predicted, examples.si_sdr_db)]
    worse = np.array([examples.improvement_db[places].mean() < 0 for places in of_mixture])
    error = float(np.sqrt(np.mean(np.square(predicted - examples.si_sdr_db)[known])))
    inside = float(np.mean(((interval[:, 0] <= examples.si_sdr_db) & (examples.si_sdr_db <= interval[:, 1]))[known]))
    ranks = rankdata(-means[0])
    area = (ranks[worse].mean() - (worse.sum() + 1) / 2) / (~worse).sum() if 0 < worse.sum() < len(worse) else np.nan
    return (
        f"SI-SDR {examples.si_sdr_db.mean():5.2f} dB, rank {spearmanr(*means)[0]:.3f}, error {error:.2f} dB, "
        f"inside {100 * inside:.0f} %, AUC {area:.3f} ({worse.sum()} of {len(worse)} worse)"
    )


def main(arguments: list[str] | None = None) -> int:
    """Fit, report, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--manifest", type=Path, required=True, help="mixtures to fit on")
    parser.add_argument("--test", type=Path, nargs="*", default=[], help="mixtures to report on")
    parser.add_argument("--write", action="store_true", help="replace what ships")
    given = parser.parse_args(arguments)
    dev = {model: collect(model, given.manifest) for model in given.models}
    without = {model: fit([one for name, one in dev.items() if name != model], FEATURES) for model in dev}
    errors = np.concatenate([one.si_sdr_db - without[model].predict(one.features) for model, one in dev.items()])
    low, high = np.nanquantile(errors, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], method="weibull")
    fitted = fit(list(dev.values()), FEATURES)
    fitted.interval_db, fitted.error_db = (float(low), float(high)), float(np.sqrt(np.nanmean(np.square(errors))))
    print(f"error for a model that was left out {fitted.error_db:.2f} dB, interval {low:.1f} to {high:.1f} dB")
    for manifest in (given.manifest, *given.test):
        for model in dev:
            examples = dev[model] if manifest == given.manifest else collect(model, manifest)
            without[model].interval_db = fitted.interval_db
            predicted = without[model].predict(examples.features)
            print(f"{manifest.stem} {model}: {scores(predicted, without[model].interval(predicted, None), examples)}")
    if given.write:
        about = f"{', '.join(Path(model).name for model in dev)} on {given.manifest.name}"
        baseline = fit(list(dev.values()), BASELINE_FEATURES)
        predictor = QualityPredictor(
            weights="any model",
            hypotheses=2,
            manifest=about,
            mixtures=0,
            examples=len(errors),
            coverage=COVERAGE,
            model=fitted,
            baseline=baseline,
            views=2,
            of_any_model=True,
        )
        print(write_text(ANY_MODEL, predictor_text(predictor)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
