"""Group the scores of several runs on the same mixtures."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.evaluation.labels import NO_SCORES
from sepkit.evaluation.run_folder import EvaluationFolder, Run, TrainingLog
from sepkit.evaluation.statistics import paired_difference

# The leading metric of a report is the first of these that was measured.
_LEADING = ("si_sdri_db", "si_sdr_db", "sdri_db", "sdr_db")


@dataclass
class ComparedRuns:
    """The evaluations of one manifest.

    Args:
        name: Name of the manifest, without its extension.
        evaluations: run -> its evaluation.
    """

    name: str
    evaluations: dict[str, EvaluationFolder]

    @property
    def first(self) -> EvaluationFolder:
        """The evaluation of the run named first."""
        return next(iter(self.evaluations.values()))

    @property
    def metrics(self) -> list[str]:
        """All metrics of the runs, the leading one first."""
        names = list(dict.fromkeys(name for evaluation in self.evaluations.values() for name in evaluation.metrics))
        return sorted(names, key=lambda name: name != self.leading)

    @property
    def leading(self) -> str | None:
        """The leading metric; None if nothing was scored."""
        return leading_metric([name for evaluation in self.evaluations.values() for name in evaluation.metrics])

    def best(self, metric: str) -> str | None:
        """Return the run that is better than every other one: the interval of each paired difference leaves out 0.

        None: a single run, no such run, or a metric that is no score.
        """
        scores = {run: better(metric) * values for run, values in self.aligned(metric).items()}
        scores = {run: values for run, values in scores.items() if np.isfinite(values).any()}
        if metric in NO_SCORES or len(scores) < 2:
            return None
        first = max(scores, key=lambda run: np.nanmean(scores[run]))
        others = (values for run, values in scores.items() if run != first)
        differences = (paired_difference(scores[first], values, self.first.speakers()) for values in others)
        return first if all(found.ci95 and found.ci95[0] > 0 for found in differences) else None

    def aligned(self, metric: str) -> dict[str, np.ndarray]:
        """Return run -> scores in the order of the first run's utterances, (N,), NaN for those that a run lacks."""
        keys = self.first.keys()
        aligned = {}
        for run, evaluation in self.evaluations.items():
            score_by_key = dict(zip(evaluation.keys(), evaluation.scores(metric), strict=True))
            aligned[run] = np.array([score_by_key.get(key, np.nan) for key in keys], dtype=np.float64)
        return aligned


_OF_MATCHING = re.compile(r"(train_|dev_)?(mcl_.*|usage_\d+|hard_cost)(_s\d+)?")


def drop_missing_metrics(runs: Sequence[Run]) -> list[Run]:
    """Return runs; if all were trained with PIT, without what hypotheses win beyond their permutation.

    Such scores and training curves mean nothing then; files keep them. A run whose configuration is not known may have
    them.
    """
    if any(run.settings.get("objective.assignment.name") != "pit" for run in runs):
        return list(runs)
    return [_without_matching(run) for run in runs]


def _without_matching(run: Run) -> Run:
    def kept(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if not _OF_MATCHING.fullmatch(name)}

    evaluations = []
    for evaluation in run.evaluations:
        summary = evaluation.summary | {"metrics": kept(evaluation.summary.get("metrics", {}))}
        if matching := summary.get("matching"):
            summary["matching"] = {name: matching[name] for name in ("speaker_count",) if name in matching}
        evaluations.append(replace(evaluation, summary=summary, rows=[kept(row) for row in evaluation.rows]))
    log = run.log and TrainingLog([kept(record) for record in run.log.records])
    return replace(run, evaluations=evaluations, log=log)


def compared_runs(runs: Sequence[Run]) -> list[ComparedRuns]:
    """Return the evaluations of runs in groups, by the name of their manifest, or else of their folder."""
    sets: dict[tuple[str, str], ComparedRuns] = {}
    for run in runs:
        taken: set[str] = set()
        for part in (part for evaluation in run.evaluations for part in evaluation.parts()):
            manifest = Path(part.manifests[0]).stem if part.manifests else part.name
            # If one run evaluated a manifest twice, for example with other options, the folder is added to the key.
            key = (manifest, part.folder.name if manifest in taken else "")
            taken.add(manifest)
            name = f"{manifest} ({key[1]})" if key[1] else manifest
            sets.setdefault(key, ComparedRuns(name, {})).evaluations[run.name] = part
    return list(sets.values())


def unique_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of runs, all different: equal names get as many parent folders as needed, or a number."""
    names = [run.name for run in runs]
    for depth in range(2, 6):
        if len(set(names)) == len(names):
            break
        deeper = ["/".join(run.folder.resolve().parts[-depth:]) for run in runs]
        names = [long if names.count(name) > 1 else name for name, long in zip(names, deeper, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} ({place})" for place, name in enumerate(names, start=1)]
    return names


def leading_metric(names: Sequence[str]) -> str | None:
    """Return the metric to lead with; None if there is none."""
    return next((name for name in (*_LEADING, *names) if name in names), None)


_SMALLER_IS_BETTER = frozenset({"nll", "loss", "error", "rmse", "elbo", "distortion", "stopping"})
"""Words in the names of metrics; minus an evidence lower bound is called `negative_elbo`."""


def better(metric: str) -> int:
    """Return 1 if larger is better, -1 if smaller is, as for metrics named after a loss or an error."""
    return -1 if _SMALLER_IS_BETTER.intersection(metric.split("_")) else 1


def digits_of(metric: str) -> int:
    """Return the number of digits after the point of a score."""
    return 2 if metric.endswith("_db") or metric.startswith("pesq") else 3
