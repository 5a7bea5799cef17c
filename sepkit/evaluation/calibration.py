"""Calibration: how well a model predicts the quality of its own output, as predicted against measured SI-SDR."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sepkit.errors import UserError
from sepkit.evaluation.labels import BOUNDS, PREDICTED
from sepkit.evaluation.results import Row, speakers_of
from sepkit.evaluation.statistics import Speakers, has_interval, resample_weights
from sepkit.files import write_csv

COVERAGES_PERCENT = tuple(range(10, 101, 10))
"""Shares of the output that are kept, the best first by what is predicted."""

_RESAMPLES = 2000
# Least number of predictions per point of the calibration curve, and largest number of points.
_LEAST_IN_BIN, _MOST_BINS = 10, 10


@dataclass
class Predictions:
    """N sources, or N mixtures, with both a predicted and a measured SI-SDR.

    Args:
        predicted: (N,) dB, by the model.
        measured: (N,) dB.
        low, high: (N,) dB, the ends of the interval; None without, as for mixtures.
        group: (N,) int from 0, the mixture of each.
        speakers: of the mixtures, which the bootstrap draws.
    """

    predicted: np.ndarray
    measured: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    group: np.ndarray
    speakers: Speakers


@dataclass
class Agreement:
    """Agreement of predictions with measurements; a number is None where it is not defined.

    Args:
        spearman, pearson: rank and linear correlation; each `..._ci95` has the ends of a 95 % confidence interval, None
            as in `Summary`.
        bias_db: mean of predicted minus measured.
        gain_at_50_db: mean SI-SDR of the half with the best predictions, minus that of all.
    """

    spearman: float | None
    spearman_ci95: list[float] | None
    pearson: float | None
    pearson_ci95: list[float] | None
    rmse_db: float
    bias_db: float
    gain_at_50_db: float
    gain_at_50_ci95: list[float] | None


def write_calibration(folder: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the section "calibration" of summary.json, and write the curves to `folder`.

    "sources" has a prediction for each source that speaks and its matched estimate; "mixtures" has the means of these.
    Both hold `Agreement` of the "model", the `interval_coverage` of sources,
    and "risk_coverage", see `risk_coverage`. Confidence intervals are percentiles of the bootstrap of
    `resample_weights`, because sources of one mixture, and mixtures of one speaker, are alike. "by_voices" has the
    intervals of mixtures of one sex ("like") and of two ("unlike"), where manifests state sexes. "by_manifest" has
    all of it for each of several manifests.

    calibration.csv is mean measurement over mean prediction of sources. risk_coverage.csv is the mean SI-SDR of the
    outputs kept over their share, ordered by the model, and by SI-SDR itself ("best possible").

    Raises:
        UserError: the rows have no predictions.
    """
    done = [row for row in rows if "reason" not in row]
    summary, of_sources = _summary(done), _predictions_of(done)[0]
    if of_sources is None:
        raise UserError(
            "calibration: found no predicted SI-SDR of any source that speaks, expected a model that predicts it; fit "
            "the predictor on dev mixtures: sepkit calibrate MODEL --manifest dev.jsonl"
        )
    manifests = list(dict.fromkeys(row["manifest"] for row in done))
    if len(manifests) > 1:
        parts = ((name, [row for row in done if row["manifest"] == name]) for name in manifests)
        summary["by_manifest"] = [{"manifest": name} | found for name, part in parts if (found := _summary(part))]
    _write_curves(folder, of_sources)
    return summary


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return all sections of rows, those for which there is what they need; nothing without predictions."""
    of_sources, missing = _predictions_of(rows)
    if of_sources is None:
        return {}
    found: dict[str, Any] = {
        "n_without_prediction": missing,
        "sources": _summary_of(of_sources),
        "mixtures": _summary_of(_by_mixture(of_sources)),
    }
    like = {pair: _are_like(pair) for pair in {row["mixture"].get("sex_pair") for row in rows}}
    by_voices = {}
    for name, alike in (("like", True), ("unlike", False)):
        part, _ = _predictions_of([row for row in rows if like[row["mixture"].get("sex_pair")] is alike])
        if part is not None and part.low is not None and part.high is not None:
            by_voices[name] = {"n": len(part.measured)} | interval_coverage(part.measured, part.low, part.high)
    if by_voices:
        found["by_voices"] = by_voices
    return found


def _are_like(sex_pair: str | None) -> bool | None:
    """Return whether the voices of a mixture are of one sex; None if that is not known, or for one voice."""
    sexes = (sex_pair or "").split("-")
    return None if len(sexes) < 2 else len(set(sexes)) == 1


def agreement(
    predicted: ArrayLike,
    measured: ArrayLike,
    group: ArrayLike | None = None,
    speakers: Speakers | None = None,
    seed: int = 0,
) -> Agreement:
    """Return how well predictions agree with measurements, dB.

    Args:
        predicted, measured: (N,) dB, N at least 1.
        group: (N,) int from 0, the mixture of each; None: each is one.
        speakers: of the mixtures; None: not known, see `resample_weights`.
        seed: of the bootstrap.
    """
    x, y = np.asarray(predicted, np.float64), np.asarray(measured, np.float64)
    groups = np.arange(len(x)) if group is None else np.asarray(group)

    def measures(counts: np.ndarray) -> np.ndarray:
        return np.stack([*weighted_correlations(x, y, counts), _gains(x, y, counts)])

    spearman, pearson, gain = measures(np.ones((1, len(x))))[:, 0]
    count = int(groups.max()) + 1
    resampled = np.full((3, 1), np.nan)
    if has_interval(count, speakers):
        pieces = resample_weights(count, speakers, _RESAMPLES, seed)
        resampled = np.concatenate([measures(drawn[:, groups]) for drawn in pieces], axis=1)
    return Agreement(
        spearman=float(spearman) if math.isfinite(spearman) else None,
        spearman_ci95=_interval(resampled[0]),
        pearson=float(pearson) if math.isfinite(pearson) else None,
        pearson_ci95=_interval(resampled[1]),
        rmse_db=float(np.sqrt(np.mean((x - y) ** 2))),
        bias_db=float(np.mean(x - y)),
        gain_at_50_db=float(gain),
        gain_at_50_ci95=_interval(resampled[2]),
    )


def weighted_correlations(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (R,) Spearman's and (R,) Pearson's correlation of resamples that hold point i counts[r, i] times.

    They are NaN where one side has no two different values. Equal values share the mean of their ranks.
    """
    return _pearson(_ranks(x, counts), _ranks(y, counts), counts), _pearson(x[None], y[None], counts)


def interval_coverage(measured: ArrayLike, low: ArrayLike, high: ArrayLike) -> dict[str, float]:
    """Return the share of measurements (N,) inside their intervals, and the mean width of these, dB."""
    y, a, b = (np.asarray(values, np.float64) for values in (measured, low, high))
    return {"coverage": float(np.mean((a <= y) & (y <= b))), "mean_width_db": float(np.mean(b - a))}


def risk_coverage(order_by: ArrayLike, measured: ArrayLike, percents: Sequence[float] = COVERAGES_PERCENT) -> list:
    """Return the mean of the part kept for each share: the first ceil(percent / 100 * N).

    Args:
        order_by: (N,), the largest is kept first; of equal ones, the earlier.
        percents: shares, each above 0 and at most 100.

    Source: El-Yaniv & Wiener, "On the foundations of noise-free selective classification", JMLR 11, 2010 (the
        trade-off of risk and coverage).
    """
    ordered = np.asarray(measured, np.float64)[np.argsort(-np.asarray(order_by, np.float64), kind="stable")]
    means = np.cumsum(ordered) / np.arange(1, len(ordered) + 1)
    # Rounded first, because 0.1 * 30 is a little more than 3.
    return [float(means[math.ceil(round(percent * len(ordered), 6) / 100) - 1]) for percent in percents]


def calibration_bins(predicted: ArrayLike, measured: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return ((R,) mean prediction, (R,) mean measurement) of parts of equal size, ordered by prediction.

    There are at most 10 parts, and fewer if a part would have fewer than 10 members.
    """
    x, y = np.asarray(predicted, np.float64), np.asarray(measured, np.float64)
    order = np.argsort(x, kind="stable")
    parts = np.array_split(order, min(_MOST_BINS, max(1, len(x) // _LEAST_IN_BIN)))
    return np.array([x[part].mean() for part in parts]), np.array([y[part].mean() for part in parts])


def _predictions_of(rows: Sequence[Row]) -> tuple[Predictions | None, int]:
    """Return predictions of the sources, and how many measured sources lack one that others have."""
    columns = ("si_sdr_db", PREDICTED, *BOUNDS)
    of_sources: list[tuple[float, ...]] = []
    groups: list[int] = []
    for place, row in enumerate(rows):
        values: Mapping[str, list[float]] = row["scores"]["values"]
        empty = [math.nan] * row["sources"]
        found = [values.get(column, empty) for column in columns]
        measured = [source for source in zip(*found, strict=True) if not math.isnan(source[0])]
        of_sources += measured
        groups += [place] * len(measured)
    table = np.array(of_sources, np.float64).reshape(-1, len(columns))
    told = np.isfinite(table)
    present: np.ndarray = np.asarray(told.any(axis=0))
    whole = told[:, present].all(axis=1)
    if not present[:2].all() or not whole.any():
        return None, len(table)
    measured, predicted, *others = table[whole].T
    low, high = (values if there else None for values, there in zip(others, present[2:], strict=True))
    kept, group = np.unique(np.array(groups)[whole], return_inverse=True)
    speakers = speakers_of([rows[place] for place in kept])
    return Predictions(predicted, measured, low, high, group, speakers), int(np.sum(~whole))


def _by_mixture(of_sources: Predictions) -> Predictions:
    count = np.bincount(of_sources.group)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(of_sources.group, values) / count

    means = mean(of_sources.predicted), mean(of_sources.measured)
    return Predictions(*means, None, None, np.arange(len(count)), of_sources.speakers)


def _summary_of(known: Predictions) -> dict[str, Any]:
    model = asdict(agreement(known.predicted, known.measured, known.group, known.speakers))
    found: dict[str, Any] = {"n": len(known.measured), "model": model}
    if known.low is not None and known.high is not None:
        found["interval"] = interval_coverage(known.measured, known.low, known.high)
    found["risk_coverage"] = {
        "percent": list(COVERAGES_PERCENT),
        "model_db": risk_coverage(known.predicted, known.measured),
        "best_possible_db": risk_coverage(known.measured, known.measured),
    }
    return found


def _write_curves(folder: Path, of_sources: Predictions) -> None:
    bins = zip(*calibration_bins(of_sources.predicted, of_sources.measured), strict=True)
    points = ([repr(float(x)), repr(float(y)), "model"] for x, y in bins)
    write_csv(folder / "calibration.csv", ["predicted_si_sdr_db", "measured_si_sdr_db", "curve"], points)
    coverage: list[list[Any]] = []
    for curve, order in (("model", "predicted"), ("best possible", "measured")):
        parts = (of_sources, _by_mixture(of_sources))
        means = [risk_coverage(getattr(part, order), part.measured) for part in parts]
        coverage += [[*point, curve] for point in zip(COVERAGES_PERCENT, *means, strict=True)]
    columns = ["coverage_percent", "si_sdr_of_sources_db", "si_sdr_of_mixtures_db", "curve"]
    write_csv(folder / "risk_coverage.csv", columns, coverage)


def _ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return (R, N) the mean rank of each value in each resample."""
    of_value = np.unique(values, return_inverse=True)[1]
    together = np.zeros((len(counts), of_value.max() + 1))
    np.add.at(together.T, of_value, counts.T)
    last = np.cumsum(together, axis=1)
    return (last - (together - 1) / 2)[:, of_value]


def _pearson(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    share = counts / counts.sum(axis=1, keepdims=True)
    x, y = (values - (share * values).sum(axis=1, keepdims=True) for values in (x, y))
    squares = (share * x**2).sum(axis=1) * (share * y**2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (share * x * y).sum(axis=1) / np.sqrt(squares)
    return np.where(squares > 1e-20, np.clip(found, -1, 1), np.nan)


def _gains(order_by: np.ndarray, measured: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return (R,) the mean of the half of each resample that is first in order, minus the mean of all of it."""
    order = np.argsort(-order_by, kind="stable")
    ordered, values = counts[:, order], measured[order]
    kept = np.ceil(ordered.sum(axis=1, keepdims=True) / 2)
    before = np.cumsum(ordered, axis=1) - ordered
    in_half = np.clip(kept - before, 0, ordered)
    return (in_half @ values) / kept[:, 0] - (ordered @ values) / ordered.sum(axis=1)


def _interval(values: np.ndarray) -> list[float] | None:
    """Return the middle 95 % of the resamples in which the number is defined."""
    known = values[np.isfinite(values)]
    return [float(end) for end in np.percentile(known, [2.5, 97.5])] if len(known) else None
