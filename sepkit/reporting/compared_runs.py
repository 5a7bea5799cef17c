"""What runs scored on the same mixtures, brought together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sepkit.evaluation.labels import NO_SCORES
from sepkit.evaluation.run_folder import EvaluationFolder, Run

# What a report leads with: the first of these that was measured.
_LEADING = ("si_sdri_db", "si_sdr_db", "sdri_db", "sdr_db")


@dataclass
class TestSet:
    """The evaluations of one manifest.

    Args:
        name: of the manifest, without its ending.
        evaluations: run -> its evaluation.
    """

    __test__ = False  # for pytest, which takes the name for a test's

    name: str
    evaluations: dict[str, EvaluationFolder]

    @property
    def first(self) -> EvaluationFolder:
        """That of the run named first."""
        return next(iter(self.evaluations.values()))

    @property
    def metrics(self) -> list[str]:
        """Everything that a run was measured by, the leading metric first."""
        names = list(dict.fromkeys(name for evaluation in self.evaluations.values() for name in evaluation.metrics))
        return sorted(names, key=lambda name: name != self.leading)

    @property
    def leading(self) -> str | None:
        """The metric to lead with; None where nothing was scored."""
        return leading_metric([name for evaluation in self.evaluations.values() for name in evaluation.metrics])

    def best(self, metric: str) -> float | None:
        """The best mean of several runs; None for a single one, and for what is no score."""
        if metric in NO_SCORES:
            return None
        scores = [evaluation.summary["metrics"].get(metric, {}).get("mean") for evaluation in self.evaluations.values()]
        known = [score for score in scores if score is not None]
        return max(known, key=lambda score: better(metric) * score) if len(known) > 1 else None

    def properties(self) -> dict[str, list[str | float | None]]:
        """Column -> (N,) values in the order of the first run's utterances, of every property that a run knows."""
        found: dict[str, list[str | float | None]] = {}
        order = self.first.keys()
        for evaluation in self.evaluations.values():
            keys = evaluation.keys()
            for column, values in evaluation.properties().items():
                value_by_key = dict(zip(keys, values, strict=True))
                found.setdefault(column, [value_by_key.get(key) for key in order])
        return found

    def aligned(self, metric: str) -> dict[str, np.ndarray]:
        """Run -> (N,) scores in the order of the first run's utterances, NaN for those that a run has not."""
        keys = self.first.keys()
        aligned = {}
        for run, evaluation in self.evaluations.items():
            score_by_key = dict(zip(evaluation.keys(), evaluation.scores(metric), strict=True))
            aligned[run] = np.array([score_by_key.get(key, np.nan) for key in keys], dtype=np.float64)
        return aligned


def test_sets_of(runs: Sequence[Run]) -> list[TestSet]:
    """Evaluations of manifests of one name together; those that name none go by their folder's name.

    Args:
        runs: with different names.
    """
    sets: dict[tuple[str, str], TestSet] = {}
    for run in runs:
        taken: set[str] = set()
        for part in (part for evaluation in run.evaluations for part in evaluation.parts()):
            manifest = Path(part.manifests[0]).stem if part.manifests else part.name
            # The same manifest measured twice in one run, with other options say: told apart by the folder.
            key = (manifest, part.folder.name if manifest in taken else "")
            taken.add(manifest)
            name = f"{manifest} ({key[1]})" if key[1] else manifest
            sets.setdefault(key, TestSet(name, {})).evaluations[run.name] = part
    return list(sets.values())


test_sets_of.__test__ = False  # type: ignore[attr-defined]


def name_apart(runs: Sequence[Run]) -> Mapping[int, str]:
    """Position -> name, all different: where two runs share one, with as many parent folders as it takes, or a number.

    Args:
        runs: in order.
    """
    names = [run.name for run in runs]
    for depth in range(2, 6):
        if len(set(names)) == len(names):
            break
        deeper = ["/".join(run.folder.resolve().parts[-depth:]) for run in runs]
        names = [long if names.count(name) > 1 else name for name, long in zip(names, deeper, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} ({place + 1})" for place, name in enumerate(names)]
    return dict(enumerate(names))


def leading_metric(names: Sequence[str]) -> str | None:
    """Of metrics, the one to lead with; None where there is none."""
    return next((name for name in (*_LEADING, *names) if name in names), None)


_SMALLER_IS_BETTER = frozenset({"nll", "loss", "error", "rmse", "elbo", "distortion", "stopping"})
"""Words in the names of metrics; minus an evidence lower bound is called `negative_elbo`."""


def better(metric: str) -> int:
    """1 if larger is better, -1 if smaller is: for metrics that are named after a loss or an error."""
    return -1 if _SMALLER_IS_BETTER.intersection(metric.split("_")) else 1


def digits_of(metric: str) -> int:
    """How many digits after the point a score is shown with."""
    return 2 if metric.endswith("_db") or metric.startswith("pesq") else 3
