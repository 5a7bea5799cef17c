"""The scores of one utterance: hypotheses matched to sources one to one, then every metric for every source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sepkit.errors import UserError
from sepkit.evaluation import metrics
from sepkit.objectives.assignment import PIT

__all__ = ["COLUMNS", "UtteranceScores", "check_metrics", "score_utterance"]

COLUMNS = {
    "si_sdr": ("si_sdr_db", "si_sdri_db", "mcl_si_sdr_db"),
    "sdr": ("sdr_db", "sdri_db"),
    "stoi": ("stoi",),
    "pesq": ("pesq",),
}
"""Metric that can be asked for -> the columns that it fills."""


@dataclass
class UtteranceScores:
    """What an utterance scored.

    Args:
        assignment: the hypothesis of each source, -1 for a silent one.
        values: column -> one number a source, NaN for a silent one.
    """

    assignment: list[int]
    values: dict[str, list[float]]

    @property
    def silent_sources(self) -> int:
        """How many sources are silent: no metric is defined for them."""
        return self.assignment.count(-1)

    def mean(self, column: str) -> float:
        """The mean over sources that are not silent and have a score; NaN where there is none."""
        values = np.array(self.values[column])
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else float("nan")


def check_metrics(names: Sequence[str], sample_rates: Sequence[int]) -> None:
    """Nothing, where all metrics can be computed.

    Args:
        names: of metrics.
        sample_rates: Hz, of the utterances.

    Raises:
        UserError: an unknown metric, a package that is not installed, or a rate that PESQ does not know.
    """
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names:
        raise UserError(
            f"metrics: found {', '.join(unknown) or 'nothing'}, expected one or more of {', '.join(COLUMNS)}"
        )
    if "pesq" in names:
        for rate in sample_rates:
            if rate not in metrics.PESQ_MODES:
                raise UserError(
                    f"metrics: pesq is defined at 8000 and 16000 Hz, the manifest has {rate} Hz; leave it out"
                )
            metrics.pesq(np.zeros(1), np.zeros(1), rate)


def score_utterance(
    estimates: np.ndarray, sources: np.ndarray, mixture: np.ndarray, sample_rate: int, names: Sequence[str]
) -> UtteranceScores:
    """The scores of an utterance.

    Hypotheses and sources are matched one to one by the largest mean SI-SDR, whatever the metric; surplus hypotheses
    go free. `mcl_si_sdr_db` is the exception: each source's best hypothesis, so that several may share one.

    Args:
        estimates: (n, T).
        sources: (m, T).
        mixture: (T,), what improvements are over.
        sample_rate: Hz.
        names: metrics, keys of `COLUMNS`.

    Raises:
        UserError: estimates that do not fit the sources, are not finite, or are fewer than the sources that speak.
    """
    if estimates.shape[-1] != sources.shape[-1]:
        raise UserError(
            f"the estimates hold {estimates.shape[-1]} samples, the references {sources.shape[-1]}; "
            "expected equal lengths"
        )
    if not np.isfinite(estimates).all():
        raise UserError("the estimates hold samples that are not finite numbers")
    table = metrics.si_sdr_db(estimates[:, None], sources[None])
    active = ~np.isnan(table).all(axis=0)
    if active.sum() > len(estimates):
        raise UserError(f"there are {len(estimates)} estimates for {active.sum()} sources; expected at least as many")
    assignment = PIT().matches(torch.from_numpy(-table)[None], torch.from_numpy(active)[None])[0].tolist()
    speaking = np.flatnonzero(active)
    matched = estimates[[assignment[j] for j in speaking]]
    values = {}
    for name in names:
        columns = _MEASURES[name](matched, sources[speaking], mixture, sample_rate)
        if name == "si_sdr":
            columns = (*columns, table[:, speaking].max(axis=0))
        for column, scores in zip(COLUMNS[name], columns, strict=True):
            of_all = np.full(len(sources), np.nan)
            of_all[speaking] = scores
            values[column] = of_all.tolist()
    return UtteranceScores(assignment, values)


def _with_improvement(
    metric: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Callable[[np.ndarray, np.ndarray, np.ndarray, int], tuple[np.ndarray, ...]]:
    def measure(matched: np.ndarray, sources: np.ndarray, mixture: np.ndarray, rate: int) -> tuple[np.ndarray, ...]:
        scores = metric(matched, sources)
        return scores, scores - metric(mixture[None], sources)

    return measure


_MEASURES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, int], tuple[np.ndarray, ...]]] = {
    "si_sdr": _with_improvement(metrics.si_sdr_db),
    "sdr": _with_improvement(metrics.sdr_db),
    "stoi": lambda matched, sources, mixture, rate: (metrics.stoi(matched, sources, rate),),
    "pesq": lambda matched, sources, mixture, rate: (metrics.pesq(matched, sources, rate),),
}
