"""Scores of clusters and of turns against scikit-learn, brute force and a count on a fine grid."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics

from sepkit.data.segments import Segment, write_segments
from sepkit.errors import UserError
from sepkit.evaluation.clusters import (
    adjusted_rand_index,
    clustering_accuracy,
    clustering_scores,
    normalized_mutual_information,
    purity,
    read_reference,
    score_clusters,
)
from sepkit.evaluation.diarization import diarization_errors, read_rttm

CASES = [np.random.default_rng(seed).integers(0, k, (2, 40)) for seed, k in enumerate((2, 3, 4, 6, 1))]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scores_equal_those_of_scikit_learn(case: np.ndarray) -> None:
    labels, clusters = case.tolist()
    found = normalized_mutual_information(labels, clusters)
    assert found == pytest.approx(metrics.normalized_mutual_info_score(labels, clusters), abs=1e-12)
    found = adjusted_rand_index(labels, clusters)
    assert found == pytest.approx(metrics.adjusted_rand_score(labels, clusters), abs=1e-12)
    table = metrics.cluster.contingency_matrix(labels, clusters)
    assert purity(labels, clusters) == pytest.approx(table.max(0).sum() / table.sum())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_accuracy_equals_the_best_of_all_namings(case: np.ndarray) -> None:
    labels, clusters = case
    names = sorted({*labels.tolist(), *clusters.tolist()})
    best = max(
        np.mean(labels == np.array([dict(zip(names, p, strict=True))[c] for c in clusters.tolist()]))
        for p in permutations(names)
    )
    assert clustering_accuracy(labels.tolist(), clusters.tolist()) == pytest.approx(best)


def test_names_do_not_matter_and_counts_are_told() -> None:
    scores = clustering_scores(["a", "a", "b"], [7, 7, 3])
    assert scores == {"nmi": 1.0, "acc": 1.0, "ari": 1.0, "purity": 1.0, "count_error": 0.0}
    assert clustering_scores(["a", "a"], [0, 1])["count_error"] == 1


def on_a_grid(reference: dict, hypothesis: dict, collar: float, step: float = 0.01) -> float:
    """The error rate by counting points of a grid, with all namings tried."""
    times = np.arange(0.5 * step, 20, step)
    ends = [e for own in reference.values() for s, d in own for e in (s, s + d)]
    near = np.zeros(len(times), bool)
    for end in ends:
        near |= np.abs(times - end) < collar
    times = times[~near]

    def active(turns: dict) -> np.ndarray:
        return np.array([[any(s <= t < s + d for s, d in own) for t in times] for own in turns.values()])

    true, found = active(reference), active(hypothesis)
    extra = np.zeros((max(0, len(true) - len(found)), len(times)), bool)
    found = np.concatenate([found, extra])
    correct = max((true & found[list(p)][: len(true)]).sum() for p in permutations(range(len(found)), len(true)))
    return (np.maximum(true.sum(0), found.sum(0)).sum() - correct) / true.sum()


@pytest.mark.parametrize("collar", [0.0, 0.25])
@pytest.mark.parametrize("seed", range(4))
def test_error_rate_equals_a_count_on_a_grid(seed: int, collar: float) -> None:
    generator = np.random.default_rng(seed)

    def turns(speakers: int) -> dict[str, list[tuple[float, float]]]:
        draw = lambda: [(round(generator.uniform(0, 16), 2), round(generator.uniform(0.6, 4), 2)) for _ in range(3)]  # noqa: E731
        return {f"p{k}": draw() for k in range(speakers)}

    reference, hypothesis = turns(2), turns(3 if seed % 2 else 2)
    found = diarization_errors(reference, hypothesis, collar)
    assert found.rate == pytest.approx(on_a_grid(reference, hypothesis, collar), abs=2e-3)


def test_error_rate_at_its_ends() -> None:
    turns = {"a": [(0.0, 2.0)], "b": [(1.0, 2.0)]}
    assert diarization_errors(turns, {"x": turns["b"], "y": turns["a"]}).rate == 0
    assert diarization_errors(turns, {}).rate == pytest.approx(1.0)
    nobody = diarization_errors({}, {"x": [(0.0, 1.0)]})
    assert nobody.false_alarm == pytest.approx(1.0) and np.isinf(nobody.rate)
    both = diarization_errors(turns, turns) + diarization_errors(turns, {})
    assert both.rate == pytest.approx(0.5)


def test_rttm_is_read_and_a_broken_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.rttm"
    file.write_text("; note\nSPEAKER talk 1 0.5 1.25 <NA> <NA> anna <NA> <NA>\n")
    assert read_rttm(file) == {"talk": {"anna": [(0.5, 1.25)]}}
    file.write_text("SPEAKER talk 1 x 1.25 <NA> <NA> anna <NA> <NA>\n")
    with pytest.raises(UserError, match=r"a\.rttm: line 1"):
        read_rttm(file)


def test_table_of_clusters(tmp_path):
    rows = [
        Segment("in/a_s1.wav", 0.0, 1.0, "speaker_1", 0.9),
        Segment("in/a_s2.wav", 1.0, 1.0, "speaker_2", 0.9),
        Segment("in/a_s1.wav", 2.0, 1.0, "speaker_1", 0.9),
        Segment("in/b.wav", 0.0, 1.0, "speaker_2", 0.9),
    ]
    table = write_segments(tmp_path / "segments.csv", rows)
    truth = [("in/a_s1.wav", "x"), ("in/a_s2.flac", "y"), ("absent.wav", "z")]
    known = read_reference(write_segments(tmp_path / "truth.csv", [Segment(path, speaker=who) for path, who in truth]))
    scores = score_clusters(table, known)
    assert (scores["nmi"], scores["n_segments"], scores["n_without_label"]) == (1.0, 3, 1)
    assert scores["unknown_paths"] == ["absent"]
    # One segment of four has another speaker.
    turns = [("in/a", 0.0, 1.0, "x"), ("in/a", 1.0, 1.0, "y"), ("in/a", 2.0, 1.0, "y"), ("in/b", 0.0, 1.5, "y")]
    known = read_reference(write_segments(tmp_path / "turns.csv", [Segment(*turn) for turn in turns]))
    assert score_clusters(table, known)["acc"] == 0.75


def test_one_line_for_what_cannot_be_measured(tmp_path):
    table = write_segments(tmp_path / "segments.csv", [Segment("in/b.wav", 0.0, 1.0, "speaker_1")])
    with pytest.raises(UserError, match="names none of the recordings"):
        score_clusters(table, {"elsewhere": []})
    with pytest.raises(UserError, match=r"in/b\.wav has no speaker"):
        read_reference(write_segments(tmp_path / "nobody.csv", [Segment("in/b.wav")]))
    with pytest.raises(UserError, match="is for sepkit evaluate --meeting"):
        read_reference(tmp_path / "truth.rttm")
