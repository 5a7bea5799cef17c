"""Scores of clusters and of turns against scikit-learn, brute force and a count on a fine grid."""

from itertools import permutations

import numpy as np
import pytest
from sklearn import metrics

from sepkit.data.segments import Segment, write_segments
from sepkit.errors import UserError
from sepkit.evaluation import clusters as scoring
from sepkit.evaluation.diarization import diarization_errors
from tests.complaint import complaint

CASES = [np.random.default_rng(seed).integers(0, k, (2, 40)) for seed, k in enumerate((2, 3, 4, 6, 1))]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scores_equal_those_of_scikit_learn(case: np.ndarray) -> None:
    labels, clusters = case.tolist()
    found = scoring.normalized_mutual_information(labels, clusters)
    assert found == pytest.approx(metrics.normalized_mutual_info_score(labels, clusters), abs=1e-12)
    found = scoring.adjusted_rand_index(labels, clusters)
    assert found == pytest.approx(metrics.adjusted_rand_score(labels, clusters), abs=1e-12)
    table = metrics.cluster.contingency_matrix(labels, clusters)
    assert scoring.purity(labels, clusters) == pytest.approx(table.max(0).sum() / table.sum())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_accuracy_equals_the_best_of_all_namings(case: np.ndarray) -> None:
    labels, clusters = case
    names = sorted({*labels.tolist(), *clusters.tolist()})
    namings = [dict(zip(names, p, strict=True)) for p in permutations(names)]
    best = max(np.mean(labels == [naming[c] for c in clusters.tolist()]) for naming in namings)
    assert scoring.clustering_accuracy(labels.tolist(), clusters.tolist()) == pytest.approx(best)


def test_names_do_not_matter_and_counts_are_told() -> None:
    scores = scoring.clustering_scores(["a", "a", "b"], [7, 7, 3])
    assert scores == {"nmi": 1.0, "acc": 1.0, "ari": 1.0, "purity": 1.0, "count_error": 0.0}
    assert scoring.clustering_scores(["a", "a"], [0, 1])["count_error"] == 1


def test_error_rate_at_its_ends() -> None:
    turns = {"a": [(0.0, 2.0)], "b": [(1.0, 2.0)]}
    assert diarization_errors(turns, {"x": turns["b"], "y": turns["a"]}).rate == 0
    assert diarization_errors(turns, {}).rate == pytest.approx(1.0)
    nobody = diarization_errors({}, {"x": [(0.0, 1.0)]})
    assert nobody.false_alarm == pytest.approx(1.0) and np.isinf(nobody.rate)
    assert (diarization_errors(turns, turns) + diarization_errors(turns, {})).rate == pytest.approx(0.5)


def test_table_of_clusters(tmp_path):
    turns = [("a_s1", 0.0, 1), ("a_s2", 1.0, 2), ("a_s1", 2.0, 1), ("b", 0.0, 2)]
    rows = [Segment(f"in/{name}.wav", start, 1.0, f"speaker_{who}", 0.9) for name, start, who in turns]
    table = write_segments(tmp_path / "segments.csv", rows)
    truth = [("in/a_s1.wav", "x"), ("in/a_s2.flac", "y"), ("absent.wav", "z")]
    named = [Segment(path, speaker=who) for path, who in truth]
    known = scoring.read_reference(write_segments(tmp_path / "truth.csv", named))
    scores = scoring.score_clusters(table, known)
    assert (scores["nmi"], scores["n_segments"], scores["n_without_label"]) == (1.0, 3, 1)
    assert scores["unknown_paths"] == ["absent"]
    # One segment of four has another speaker.
    turns = [("in/a", 0.0, 1.0, "x"), ("in/a", 1.0, 1.0, "y"), ("in/a", 2.0, 1.0, "y"), ("in/b", 0.0, 1.5, "y")]
    known = scoring.read_reference(write_segments(tmp_path / "turns.csv", [Segment(*turn) for turn in turns]))
    assert scoring.score_clusters(table, known)["acc"] == 0.75


def test_one_line_for_what_cannot_be_measured(tmp_path):
    table = write_segments(tmp_path / "segments.csv", [Segment("in/b.wav", 0.0, 1.0, "speaker_1")])
    complaint(lambda: scoring.score_clusters(table, {"elsewhere": []}), "names none of the recordings")
    with pytest.raises(UserError, match=r"in/b\.wav has no speaker"):
        scoring.read_reference(write_segments(tmp_path / "nobody.csv", [Segment("in/b.wav")]))
    complaint(lambda: scoring.read_reference(tmp_path / "truth.rttm"), "is for sepkit evaluate --meeting")


@pytest.mark.parametrize(
    ("path", "known", "name"),
    [
        ("in/a_s1.wav", "in/a_s1 a_s1 in/a a", "in/a_s1"), ("in/a_s1.wav", "a_s1 in/a a", "a_s1"),
        ("in/a_s1.wav", "a in/a", "in/a"), ("in/a_s12.wav", "a", "a"), ("in/a_sx.wav", "in/a", "in/a_sx"),
        ("in/as1.wav", "in/a", "in/as1"), ("in/b.flac", "b", "b"), ("..", "", ".."),
    ],
)  # fmt: skip
def test_recordings_have_their_whole_names_or_those_of_their_estimates(path: str, known: str, name: str) -> None:
    assert scoring._recording_of(Segment(path), dict.fromkeys(known.split())) == name


@pytest.mark.parametrize(
    ("start", "length", "speaker"),
    [(0.5, 1.2, "y"), (0.5, 2.0, "x"), (0.0, 3.0, "x"), (3.0, 1.0, None), (1.0, 1.0, "y")],
)
def test_a_segment_is_of_who_speaks_longest_in_it(start: float, length: float, speaker: str | None) -> None:
    rows = [Segment("a", start, 1.0, who) for start, who in ((0.0, "x"), (1.0, "y"), (2.0, "x"))]
    rows.append(Segment("a", 0.0, 9.0))
    assert scoring._speaker_of(Segment("a", start, length), rows) == speaker


@pytest.mark.parametrize(("labels", "found"), [([1], [1, 2]), ([], [])])
def test_as_many_labels_as_clusters_and_at_least_one(labels: list[int], found: list[int]) -> None:
    with pytest.raises(ValueError, match=f"found {len(labels)} labels and {len(found)} clusters"):
        scoring.contingency(labels, found)
