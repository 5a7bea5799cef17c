"""Calibration: how well a model predicts the quality of its own output, as predicted against measured SI-SDR."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sepkit.errors import UserError
from sepkit.evaluation.labels import BOUNDS, PREDICTED
from sepkit.evaluation.results import Row, speakers_of
from sepkit.evaluation.statistics import Speakers, has_interval, resample_weights

COVERAGES_PERCENT = tuple(range(10, 101, 10))
"""Shares of the output that are kept, those with the best predictions first."""

_RESAMPLES = 2000


@dataclass
class Predictions:
    """N sources, or N mixtures, with both a predicted and a measured SI-SDR.

    Args:
        predicted: (N,) dB, by the model.
        measured: (N,) dB.
        low, high: (N,) dB, the ends of the interval; None without, as for mixtures.
        group: (N,) int from 0, the mixture of each.
        speakers: Speakers of the mixtures, which the bootstrap draws.
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
        spearman: rank correlation.
        spearman_ci95: the ends of its 95 % confidence interval, over resamples in which it is defined; None as in
            `Summary`.
        rmse_db: root of the mean squared difference, dB.
    """

    spearman: float | None
    spearman_ci95: list[float] | None
    rmse_db: float


def summarize_calibration(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the section "calibration" of summary.json.

    "sources" has a prediction for each source that speaks and its matched estimate; "mixtures" has the means of these.
    Both hold `Agreement` of the "model", the `interval_coverage` of sources,
    and "risk_coverage", see `risk_coverage`. Confidence intervals are percentiles of the bootstrap of
    `resample_weights`, because sources of one mixture, and mixtures of one speaker, are alike. "by_manifest" has
    all of it for each of several manifests.

    Raises:
        UserError: the rows have no predictions.
    """
    done = [row for row in rows if "reason" not in row]
    summary = _summary(done)
    if not summary:
        raise UserError(
            "calibration: found no predicted SI-SDR of any source that speaks, expected a model that predicts it; fit "
            "the predictor on dev mixtures: sepkit calibrate MODEL --manifest dev.jsonl"
        )
    manifests = list(dict.fromkeys(row["manifest"] for row in done))
    if len(manifests) > 1:
        parts = ((name, [row for row in done if row["manifest"] == name]) for name in manifests)
        summary["by_manifest"] = [{"manifest": name} | found for name, part in parts if (found := _summary(part))]
    return summary


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the sections of rows; nothing without predictions."""
    of_sources, missing = _predictions_of(rows)
    if of_sources is None:
        return {}
    return {
        "n_without_prediction": missing,
        "sources": _summary_of(of_sources),
        "mixtures": _summary_of(_by_mixture(of_sources)),
    }


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
        speakers: Speakers of the mixtures; None: unknown, see `resample_weights`.
        seed: Seed of the bootstrap.
    """
    x, y = np.asarray(predicted, np.float64), np.asarray(measured, np.float64)
    groups = np.arange(len(x)) if group is None else np.asarray(group)

    spearman = float(rank_correlations(x, y, np.ones((1, len(x))))[0])
    count, interval = int(groups.max()) + 1, None
    if has_interval(count, speakers):
        pieces = resample_weights(count, speakers, _RESAMPLES, seed)
        resampled = np.concatenate([rank_correlations(x, y, drawn[:, groups]) for drawn in pieces])
        known = resampled[np.isfinite(resampled)]
        interval = np.percentile(known, [2.5, 97.5]).tolist() if len(known) else None
    return Agreement(
        spearman=spearman if math.isfinite(spearman) else None,
        spearman_ci95=interval,
        rmse_db=float(np.sqrt(np.mean((x - y) ** 2))),
    )


def rank_correlations(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return (R,) Spearman's correlation of resamples that hold point i counts[r, i] times.

    It is NaN where one side has no two different values. Equal values share the mean of their ranks.
    """
    share = counts / counts.sum(axis=1, keepdims=True)
    a, b = (ranks - (share * ranks).sum(axis=1, keepdims=True) for ranks in (_ranks(x, counts), _ranks(y, counts)))
    squares = (share * a**2).sum(axis=1) * (share * b**2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (share * a * b).sum(axis=1) / np.sqrt(squares)
    return np.where(squares > 1e-20, np.clip(found, -1, 1), np.nan)


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


def _predictions_of(rows: Sequence[Row]) -> tuple[Predictions | None, int]:
    """Return predictions of the sources, and how many measured sources lack one that others have."""
    columns = ("si_sdr_db", PREDICTED, *BOUNDS)
    of_sources: list[tuple[float, ...]] = []
    groups: list[int] = []
    for place, row in enumerate(rows):
        values: Mapping[str, list[float]] = row["scores"]["values"]
        found = [values.get(column, [math.nan] * row["sources"]) for column in columns]
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


def _ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return (R, N) the mean rank of each value in each resample."""
    of_value = np.unique(values, return_inverse=True)[1]
    together = np.zeros((len(counts), of_value.max() + 1))
    np.add.at(together.T, of_value, counts.T)
    last = np.cumsum(together, axis=1)
    return (last - (together - 1) / 2)[:, of_value]
