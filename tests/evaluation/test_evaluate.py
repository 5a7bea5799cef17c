"""Evaluation over manifests: the figures, skipped mixtures, and continuing after an interruption."""

import csv
import itertools
import json
import math
import re
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry
from sepkit.errors import UserError
from sepkit.evaluation import evaluate as evaluating
from sepkit.evaluation import metrics, scoring
from sepkit.evaluation.evaluate import EvaluationOptions, System, evaluate, load_systems
from sepkit.evaluation.run_folder import load_evaluation
from sepkit.evaluation.scoring import Hypotheses
from sepkit.evaluation.statistics import summarize
from sepkit.reporting.report import write_report
from sepkit.reporting.text import evaluation_lines
from tests.complaint import complaint

SI_SDR = EvaluationOptions(["si_sdr"])


def _rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "utterances.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def test_figures_are_those_of_the_metrics(corpus: Any, tmp_path: Path) -> None:
    result = evaluate(System(corpus.separator(), model="known"), corpus.manifest, tmp_path / "out")
    rows = _rows(tmp_path / "out")
    assert [row["id"] for row in rows] == list(corpus.sources)
    assert result == _summary(tmp_path / "out")
    expected = []
    for row, sources in zip(rows, corpus.sources.values(), strict=True):
        mixture = sources.sum(0)
        estimates = sources + 0.1 * mixture
        assert row["assignment"] == "2 1"
        assert float(row["si_sdr_db"]) == pytest.approx(metrics.si_sdr_db(estimates, sources).mean(), abs=1e-3)
        improvement = metrics.si_sdri_db(estimates, sources, mixture)
        assert float(row["si_sdri_db_s2"]) == pytest.approx(improvement[1], abs=1e-3)
        assert float(row["sdr_db"]) == pytest.approx(metrics.sdr_db(estimates, sources).mean(), abs=1e-3)
        sdri = metrics.sdr_db(estimates, sources) - metrics.sdr_db(mixture[None], sources)
        assert float(row["sdri_db"]) == pytest.approx(sdri.mean(), abs=1e-3)
        expected.append(float(row["si_sdr_db"]))
    scores = result["metrics"]["si_sdr_db"]
    assert scores["mean"] == pytest.approx(np.mean(expected)) and scores["n"] == 5
    assert scores["std"] == pytest.approx(np.std(expected, ddof=1))
    assert scores["median"] == pytest.approx(np.median(expected))
    assert scores["ci95"][0] <= scores["mean"] <= scores["ci95"][1]


def test_summary_has_the_keys_that_readers_rely_on(corpus: Any, tmp_path: Path) -> None:
    summary = evaluate(System(corpus.separator(), model="known"), corpus.manifest, tmp_path / "out")
    counts, run = "n_utterances n_skipped skipped metrics", "model manifest sample_rate real_time_factor wall_seconds"
    assert {*counts.split(), *run.split(), "version", "commit", "hardware"} <= set(summary)
    columns = ["si_sdr_db", "si_sdri_db", "mcl_si_sdr_db", "sdr_db", "sdri_db", "stoi", "pesq"]
    assert list(summary["metrics"]) == columns
    assert (summary["n_utterances"], summary["n_skipped"], summary["skipped"]) == (5, 0, [])
    assert summary["model"] == "known" and summary["sample_rate"] == 8000 and summary["real_time_factor"] > 0


def test_surplus_hypotheses_go_free(corpus: Any, tmp_path: Path) -> None:
    two = evaluate(corpus.separator(), corpus.manifest, tmp_path / "two")
    four = evaluate(corpus.separator(extra_hypotheses=2), corpus.manifest, tmp_path / "four")
    assert four["metrics"] == two["metrics"]
    assert {row["assignment"] for row in _rows(tmp_path / "four")} == {"4 3"}


def test_a_silent_source_is_left_out_and_counted(corpus: Any, tmp_path: Path) -> None:
    audio.write(corpus.folder / corpus.entries[1].sources[0].path, np.zeros(4000, dtype=np.float32), 8000)
    corpus.sources["mix1"][0] = 0
    summary = evaluate(corpus.separator(), corpus.manifest, tmp_path / "out")
    row = _rows(tmp_path / "out")[1]
    assert summary["n_silent_sources"] == 1 and summary["n_utterances"] == 5
    assert row["silent_sources"] == "1" and row["si_sdr_db_s1"] == "" and row["assignment"].startswith("-")
    assert row["si_sdr_db"] == row["si_sdr_db_s2"]


def test_bad_mixtures_are_skipped_and_listed(corpus: Any, tmp_path: Path) -> None:
    (corpus.folder / corpus.entries[0].sources[0].path).unlink()
    (corpus.folder / corpus.entries[2].sources[1].path).write_bytes(b"not audio")
    unknown = MixtureEntry(id="alone", sample_rate=8000, num_samples=4000, mixture=corpus.entries[1].sources[0].path)
    corpus.entries.append(unknown)
    corpus.rewrite()
    summary = evaluate(corpus.separator(), corpus.manifest, tmp_path / "out")
    assert [skipped["id"] for skipped in summary["skipped"]] == ["mix0", "mix2", "alone"]
    assert "mix0_0.wav" in summary["skipped"][0]["reason"] and "references" in summary["skipped"][2]["reason"]
    assert [row["id"] for row in _rows(tmp_path / "out")] == ["mix1", "mix3", "mix4"]


@pytest.mark.parametrize(
    ("separate", "reason"),
    [(lambda x, rate: x[None], "1 estimates for 2 sources"), (lambda x, rate: np.stack([x, np.nan * x]), "finite")],
)
def test_estimates_that_cannot_be_scored_skip_the_mixture(corpus, tmp_path, separate, reason) -> None:
    summary = evaluate(separate, corpus.manifest, tmp_path / "out")
    assert summary["n_skipped"] == 5 and reason in summary["skipped"][0]["reason"]
    nothing = dict.fromkeys(("mean", "std", "median", "ci95", "n_speakers")) | {"n": 0}
    assert summary["metrics"]["si_sdr_db"] == nothing


def test_missing_and_unequal_files_are_skipped(corpus: Any, tmp_path: Path) -> None:
    for name, length in (("mix0_s1", 3999), ("mix0_s2", 3999), ("mix1_s1", 10), ("mix1_s2", 11)):
        audio.write(tmp_path / "estimates" / f"{name}.wav", np.ones(length, dtype=np.float32), 8000)
    skipped = evaluate(tmp_path / "estimates", corpus.manifest, tmp_path / "out")["skipped"]
    reasons = [entry["reason"] for entry in skipped]
    assert "3999" in reasons[0] and "mix1_s2.wav" in reasons[1] and "mix2_s1.wav" in reasons[2] and len(reasons) == 5


def test_the_same_call_continues_after_an_interruption(corpus: Any, tmp_path: Path) -> None:
    separator = corpus.separator()

    def interrupted(mixture: np.ndarray, sample_rate: int) -> np.ndarray:
        if separator.calls == 3:
            raise KeyboardInterrupt
        return separator(mixture, sample_rate)

    with pytest.raises(KeyboardInterrupt):
        evaluate(System(interrupted, fingerprint="a"), corpus.manifest, tmp_path / "out")
    assert not (tmp_path / "out" / "summary.json").exists()
    # A kill in the middle of a write leaves such a line.
    with (tmp_path / "out" / "journal.jsonl").open("a") as file:
        file.write('{"key": "torn')
    resumed = evaluate(System(separator, fingerprint="a"), corpus.manifest, tmp_path / "out")
    assert separator.calls == 5
    whole = evaluate(System(corpus.separator(), fingerprint="a"), corpus.manifest, tmp_path / "whole")
    assert resumed["metrics"] == whole["metrics"]
    assert (tmp_path / "out" / "utterances.csv").read_bytes() == (tmp_path / "whole" / "utterances.csv").read_bytes()
    written = (tmp_path / "out" / "journal.jsonl").read_bytes()
    evaluate(System(separator, fingerprint="a"), corpus.manifest, tmp_path / "out")
    assert separator.calls == 5 and (tmp_path / "out" / "journal.jsonl").read_bytes() == written


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (r'("si_sdr_db": \[)-?\d', r"\1"), (r'("reasons": )\{\}', r"\g<1>1"), (r'"scores"', '"score"'),
        (r'"(\w+)": ', r"'\1': "), (r".+", "[]"), (r", .digest.*", "}"),
    ],
)  # fmt: skip
def test_a_row_of_a_damaged_line_is_done_again(corpus: Any, tmp_path: Path, before: str, after: str) -> None:
    evaluate(System(corpus.separator(), fingerprint="a"), corpus.manifest, tmp_path / "out")
    journal, table = tmp_path / "out" / "journal.jsonl", tmp_path / "out" / "utterances.csv"
    whole, written = table.read_bytes(), journal.read_text()
    journal.write_text(re.sub(before, after, written, count=1))
    assert journal.read_text() != written
    separator = corpus.separator()
    evaluate(System(separator, fingerprint="a"), corpus.manifest, tmp_path / "out")
    assert separator.calls == 1 and table.read_bytes() == whole


def test_processes_give_the_same_rows(corpus: Any, tmp_path: Path) -> None:
    (corpus.folder / corpus.entries[2].sources[1].path).write_bytes(b"not audio")
    for processes in (0, 1):
        evaluate(corpus.separator(), corpus.manifest, tmp_path / str(processes), EvaluationOptions(processes=processes))
    assert (tmp_path / "0" / "utterances.csv").read_bytes() == (tmp_path / "1" / "utterances.csv").read_bytes()
    assert _summary(tmp_path / "1")["n_skipped"] == 1


def test_another_model_or_another_recording_is_evaluated_anew(corpus: Any, tmp_path: Path) -> None:
    separator = corpus.separator()
    evaluate(System(separator, fingerprint="a"), corpus.manifest, tmp_path / "out")
    evaluate(System(separator, fingerprint="b"), corpus.manifest, tmp_path / "out")
    assert separator.calls == 10
    changed = corpus.folder / corpus.entries[0].sources[0].path
    audio.write(changed, 0.5 * audio.read(changed), 8000)
    evaluate(System(separator, fingerprint="b"), corpus.manifest, tmp_path / "out")
    assert separator.calls == 11


@pytest.mark.parametrize("layout", ["{name}_s{k}.wav", "s{k}/{name}.flac"])
def test_estimates_in_files_score_as_the_separator_that_made_them(corpus: Any, tmp_path: Path, layout: str) -> None:
    separator = corpus.separator()
    subtype = "FLOAT" if layout.endswith("wav") else "PCM_16"
    for name, sources in corpus.sources.items():
        for k, estimate in enumerate(separator(sources.sum(0), 8000), start=1):
            audio.write(tmp_path / "estimates" / layout.format(name=name, k=k), 0.1 * estimate, 8000, subtype=subtype)
    of_files = evaluate(tmp_path / "estimates", corpus.manifest, tmp_path / "files")
    of_model = evaluate(separator, corpus.manifest, tmp_path / "model")
    assert of_files["n_utterances"] == 5 and of_files["real_time_factor"] is None
    for name, scores in of_model["metrics"].items():
        assert of_files["metrics"][name]["mean"] == pytest.approx(scores["mean"], abs=0.01)


def test_a_users_mistakes(corpus: Any, tmp_path: Path) -> None:
    separator = corpus.separator()
    with pytest.raises(UserError, match="si_sdr, sdr, snr"):
        evaluate(separator, corpus.manifest, tmp_path / "out", EvaluationOptions(["snrr"]))
    complaint(lambda: evaluate(separator, [tmp_path / "none.jsonl"], tmp_path / "out"), "no such file")
    with pytest.raises(UserError, match="no such folder"):
        evaluate(System(estimates=tmp_path / "none"), corpus.manifest, tmp_path / "out")
    (tmp_path / "file").touch()
    complaint(lambda: evaluate(separator, corpus.manifest, tmp_path / "file" / "out"), "cannot be written to")
    complaint(lambda: evaluate("no-such-model", corpus.manifest, tmp_path / "out"), "no such file or folder")
    complaint(lambda: evaluate(separator, [], tmp_path / "out"), "manifests: found none")
    negative = EvaluationOptions(processes=-1)
    complaint(lambda: evaluate(separator, corpus.manifest, tmp_path / "out", negative), "processes: found -1")
    for options in ({"depth_steps": [2, 4]}, {"views": 2}, {"whole_seconds": 0}):
        with pytest.raises(UserError, match="given by its name"):
            evaluate(separator, corpus.manifest, tmp_path / "out", EvaluationOptions(**options))
    assert separator.calls == 0


def test_what_was_skipped_is_tried_again(corpus: Any, tmp_path: Path) -> None:
    path = corpus.folder / corpus.entries[1].sources[0].path
    path.unlink()
    assert evaluate(corpus.separator(), corpus.manifest, tmp_path / "out")["n_skipped"] == 1
    audio.write(path, corpus.sources["mix1"][0], 8000)
    separator = corpus.separator()
    assert evaluate(separator, corpus.manifest, tmp_path / "out")["n_skipped"] == 0
    assert separator.calls == 1


def test_manifests_side_by_side_with_the_drop_from_the_first(corpus: Any, make_corpus: Any, tmp_path: Path) -> None:
    unseen = make_corpus(tmp_path / "unseen", count=3, seed=1)
    separators = [corpus.separator(0.1), unseen.separator(0.3)]

    def separate(mixture: np.ndarray, rate: int) -> np.ndarray:
        known = any(np.allclose(s.sum(0), mixture, atol=1e-5) for s in corpus.sources.values())
        return separators[0 if known else 1](mixture, rate)

    manifests = [corpus.manifest, unseen.manifest]
    summary = evaluate(separate, manifests, tmp_path / "out", EvaluationOptions(["si_sdr", "stoi"]))
    first, second = summary["by_manifest"]
    assert [part["manifest"] for part in (first, second)] == [str(path) for path in manifests]
    assert (first["n_utterances"], second["n_utterances"], summary["n_utterances"]) == (5, 3, 8)
    before, after = first["metrics"]["si_sdr_db"], second["metrics"]["si_sdr_db"]
    assert after["drop_db"] == pytest.approx(before["mean"] - after["mean"]) and after["drop_db"] > 0
    assert "drop_db" not in before and "drop" in second["metrics"]["stoi"]
    alone = evaluate(separate, [unseen.manifest], tmp_path / "alone", SI_SDR)
    expected = alone["metrics"]["si_sdr_db"]
    assert all(after[name] == expected[name] for name in ("mean", "ci95", "n"))


def test_kinds_of_mixtures_have_columns_and_figures(tmp_path: Path, make_corpus: Any) -> None:
    corpus = make_corpus(tmp_path / "corpus", count=24)
    for number, entry in enumerate(corpus.entries):
        entry.sources[0].sex, entry.sources[1].sex = "M", "FM"[number % 2]
    corpus.rewrite()
    summary = evaluate(corpus.separator(), corpus.manifest, tmp_path / "o", SI_SDR)
    rows = _rows(tmp_path / "o")
    assert {row["sex_pair"] for row in rows} == {"F-M", "M-M"}
    for row, sources in zip(rows, corpus.sources.values(), strict=True):
        energies = np.square(sources.astype(float)).sum(1)
        assert float(row["level_difference_db"]) == pytest.approx(abs(10 * np.log10(energies[0] / energies[1])))
        expected = metrics.si_sdr_db(sources.sum(0)[None], sources).mean()
        assert float(row["input_si_sdr_db"]) == pytest.approx(expected, abs=1e-3)
        assert float(row["duration_seconds"]) == 0.5 and 0.5 < float(row["overlap_ratio"]) <= 1
    of_men = [float(row["si_sdr_db"]) for row in rows if row["sex_pair"] == "M-M"]
    group = summary["by"]["sex_pair"]["M-M"]["si_sdr_db"]
    assert group["mean"] == pytest.approx(np.mean(of_men)) and group["n"] == 12
    assert group["ci95"][0] < group["mean"] < group["ci95"][1]
    # Halves, but for mixtures between the median and the round number that stands for it.
    halves = [half["si_sdr_db"]["n"] for half in summary["by"]["level_difference_db"].values()]
    assert sum(halves) == 24 and min(halves) >= 8
    assert "duration_seconds" not in summary["by"]


def test_a_paired_comparison_with_another_run(corpus: Any, make_corpus: Any, tmp_path: Path) -> None:
    worse = evaluate(corpus.separator(0.3), corpus.manifest, tmp_path / "worse")
    compare = EvaluationOptions(compare=str(tmp_path / "worse"))
    better = evaluate(corpus.separator(0.1), corpus.manifest, tmp_path / "better", compare)
    difference = better["comparison"]["metrics"]["si_sdr_db"]
    means = [run["metrics"]["si_sdr_db"]["mean"] for run in (better, worse)]
    assert difference["mean"] == pytest.approx(means[0] - means[1]) and difference["n"] == 5
    assert difference["ci95"][0] > 0 and difference["share_better"] == 1.0
    other = make_corpus(tmp_path / "other", count=2, prefix="elsewhere")
    complaint(lambda: evaluate(other.separator(), [other.manifest], tmp_path / "o", compare), "in common")


def test_intervals_draw_the_speakers_that_the_manifest_names(corpus: Any, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in corpus.manifest.read_text().splitlines()]
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "c")]
    for line, names in zip(lines, pairs, strict=True):
        for source, name in zip(line["sources"], names, strict=True):
            source["speaker"] = name
    named, unnamed = corpus.manifest.with_name("named.jsonl"), corpus.manifest.with_name("unnamed.jsonl")
    named.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lines[0]["sources"][0]["speaker"] = ""
    unnamed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "out"
    found, rows = evaluate(corpus.separator(), [named], out, SI_SDR), _rows(out)
    assert [(row["speaker_s1"], row["speaker_s2"]) for row in rows] == pairs and found["interval_unit"] == "speaker"
    scores = [float(row["si_sdr_db"]) for row in rows]
    # The column is written to the last digit.
    assert found["metrics"]["si_sdr_db"] == asdict(summarize(scores, pairs)) | {"n_speakers": 4}
    # The rows are those of before: only the names changed, of which one is not known.
    again = evaluate(corpus.separator(0.2), [unnamed], tmp_path / "o", EvaluationOptions(["si_sdr"], compare=str(out)))
    comparison = again["comparison"]
    assert again["interval_unit"] == "mixture" == comparison["interval_unit"]
    assert again["metrics"]["si_sdr_db"]["n_speakers"] is None is comparison["metrics"]["si_sdr_db"]["n_speakers"]
    assert load_evaluation(out).speakers() == [list(names) for names in pairs]
    assert not any(name.startswith("speaker_s") for name in load_evaluation(out).properties())


def test_mixtures_are_separated_as_a_whole_if_asked() -> None:
    usual, whole = (load_systems("boxed_8k", replace(SI_SDR, whole_seconds=value))[0] for value in (None, math.inf))
    assert usual.separator.whole_seconds == 30 and whole.separator.whole_seconds == math.inf
    assert usual.fingerprint != whole.fingerprint


def test_speakers_are_counted_where_the_model_gives_scores(corpus: Any, tmp_path: Path) -> None:
    separator = corpus.separator()

    def separate(mixture: np.ndarray, rate: int) -> Any:
        scores = np.array([1.0, 1.0 if separator.calls % 2 else -1.0])
        return Hypotheses(separator(mixture, rate), scores > 0, np.array([1.0, 0.0]))

    found = evaluate(separate, corpus.manifest, tmp_path / "out", SI_SDR)["metrics"]
    assert found["speaker_count_accuracy"]["mean"] == pytest.approx(2 / 5)
    # All weight is on the first hypothesis.
    assert found["weighted_si_sdr_db"]["mean"] == pytest.approx(found["drawn_si_sdr_db"]["mean"], abs=1e-3)


class Speakers:
    """Answers with both sources, reversed, a third of the mixture's shape, and one more; keeps those it is told to."""

    def __init__(self, corpus: Any, kept: list[list[bool] | None]) -> None:
        self.separator, self.kept = corpus.separator(), kept

    def __call__(self, mixture: np.ndarray, rate: int) -> Any:
        estimates = self.separator(mixture, rate)
        noise = np.random.default_rng(0).standard_normal((2, estimates.shape[1]))
        kept = self.kept[self.separator.calls - 1]
        return Hypotheses(np.concatenate([estimates, noise]), None if kept is None else np.array(kept))


KEPT = [[index < count for index in range(4)] for count in (2, 1, 3, 0, 4)]


def counted(accuracy: float, over: float, under: float, missing: int, **confusion: int) -> dict[str, Any]:
    """What the summary has of five mixtures in each of which two speak."""
    rates = {"accuracy": accuracy, "over_separation_rate": over, "under_separation_rate": under}
    named = {name.strip("_").replace("_", " "): number for name, number in confusion.items()}
    return {"n": 5, "n_without_number": missing, **rates, "confusion": {"2": named}}


def test_hypotheses_and_speakers_are_counted(corpus: Any, tmp_path: Path) -> None:
    """Two speak in each of five mixtures; 2, 1, 3, 0 and 4 are found."""
    found = evaluate(Speakers(corpus, KEPT), corpus.manifest, tmp_path / "all", SI_SDR)
    speakers = counted(0.2, 0.4, 0.4, 0, _0=1, _1=1, _2=1, _3=1, _4=1)
    usage = {"n_sources": 10, "hypothesis_usage": [0.5, 0.5, 0.0, 0.0], "collapse_rate": 0.5}
    assert found["matching"] == usage | {"speaker_count": speakers}
    assert [row["speaker_count"] for row in _rows(tmp_path / "all")] == ["2", "1", "3", "0", "4"]
    assert found["metrics"]["si_sdr_db"]["n"] == 5


def test_mixtures_without_a_number_count_among_those_not_right(corpus: Any, tmp_path: Path) -> None:
    """Two speak in each of five mixtures; 2, 1 and 2 are found, and twice there is no number."""
    kept = [[True, True, False, False], [True, False, False, False], None, [True, True, False, False], None]
    found = evaluate(Speakers(corpus, kept), corpus.manifest, tmp_path, SI_SDR)
    assert found["matching"]["speaker_count"] == counted(0.4, 0.0, 0.2, 2, _0=0, _1=1, _2=2, no_number=2)
    score = found["metrics"]["speaker_count_accuracy"]
    assert (score["mean"], score["n"]) == (pytest.approx(0.4), 5)
    assert [row["speaker_count"] for row in _rows(tmp_path)] == ["2", "1", "", "2", ""]
    text = "right in 40.0 %, too many in 0.0 %, too few in 20.0 % of all 5 mixtures; no number in 2 of them"
    assert text in " ".join(evaluation_lines(found))
    assert text in write_report([tmp_path], tmp_path / "report.html").read_text()


def test_unknown_numbers_of_speakers_are_matched_as_far_as_they_go(corpus: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"metrics": ["si_sdr"], "processes": 0}
    separate = Speakers(corpus, KEPT)
    found = evaluate(separate, corpus.manifest, tmp_path / "auto", EvaluationOptions(count_speakers=True, **options))
    matching = found["matching"]
    assert (matching["missed_sources"], matching["extra_hypotheses"]) == (3, 3)
    assert matching["missed_source_rate"] == pytest.approx(0.3)
    assert found["speakers"] == "auto" and found["n_skipped"] == 0
    assert [found["metrics"][name]["n"] for name in ("si_sdr_db", "mcl_si_sdr_db")] == [4, 5]
    rows = _rows(tmp_path / "auto")
    assert rows[0]["assignment"] == "2 1" and rows[3]["assignment"] == "missed missed"
    assert sorted(rows[1]["assignment"].split()) == ["1", "missed"]
    everything = evaluate(Speakers(corpus, KEPT), corpus.manifest, tmp_path / "all", EvaluationOptions(**options))
    for name in ("hypothesis_usage", "collapse_rate", "speaker_count"):
        assert everything["matching"][name] == matching[name]
    with pytest.raises(UserError, match="--count-speakers"):
        evaluate(tmp_path, corpus.manifest, tmp_path / "files", EvaluationOptions(count_speakers=True))


def test_one_speaker_alone_has_no_improvement_and_is_counted(corpus: Any, tmp_path: Path) -> None:
    corpus.entries[0].sources = corpus.entries[0].sources[:1]
    corpus.rewrite()
    name = corpus.entries[0].id
    corpus.sources[name] = corpus.sources[name][:1]
    separator = corpus.separator(extra_hypotheses=1)

    def separate(mixture: np.ndarray, rate: int) -> np.ndarray:
        return separator(mixture, rate)

    summary = evaluate(separate, corpus.manifest, tmp_path / "out", SI_SDR)
    assert summary["n_without_improvement"] == 1 and summary["n_skipped"] == 0
    assert (summary["metrics"]["si_sdr_db"]["n"], summary["metrics"]["si_sdri_db"]["n"]) == (5, 4)
    assert {number: group["si_sdr_db"]["n"] for number, group in summary["by"]["speakers"].items()} == {"1": 1, "2": 4}
    assert summary["matching"]["n_sources"] == 9


def test_words_over_the_whole_corpus(corpus: Any, tmp_path: Path) -> None:
    for entry in corpus.entries:
        for source in entry.sources:
            source.extra["text"] = "one two three four"
    corpus.rewrite()
    command = shlex.join([sys.executable, "-c", "print('one two three')"]) + " {wav}"
    options = EvaluationOptions(["words"], asr_command=command)
    summary = evaluate(corpus.separator(), corpus.manifest, tmp_path / "out", options)
    assert summary["wer"] == {"errors": 10, "words": 40, "word_error_rate": 0.25}
    assert summary["metrics"]["word_accuracy"]["mean"] == 0.75


def test_a_metric_without_scores_is_counted_with_its_reason(corpus: Any, tmp_path: Path) -> None:
    options = EvaluationOptions(["si_sdr", "words"], asr_command="no-such-command")
    summary = evaluate(corpus.separator(), corpus.manifest, tmp_path / "out", options)
    assert summary["n_utterances"] == 5 and summary["metrics"]["word_accuracy"]["n"] == 0
    assert summary["failures"]["words"]["n"] == 5 and summary["failures"]["words"]["first"]["id"] == "mix0"
    assert "no text" in _rows(tmp_path / "out")[0]["reasons"]


def test_what_is_measured_without_being_asked_for(corpus: Any, tmp_path: Path) -> None:
    summary = evaluate(corpus.separator(), corpus.manifest, tmp_path / "out", EvaluationOptions(signal_std=0.1))
    assert summary["metrics"]["blr_nats_per_sample"]["n"] == 5 and summary["signal_std"] == 0.1


@pytest.mark.parametrize(
    ("options", "rates", "there", "metrics", "left_out"),
    [
        ({}, [8000, 16000], "fast_bss_eval pystoi pesq", "si_sdr sdr stoi pesq", {}),
        (
            {},
            [8000, 44100],
            "fast_bss_eval pesq",
            "si_sdr sdr",
            {"stoi": "needs pystoi", "pesq": "found 8000, 44100 Hz"},
        ),
        (
            {"asr_command": "cat"},
            [8000],
            "pesq",
            "si_sdr pesq words",
            dict.fromkeys(["sdr", "stoi"], "is not installed"),
        ),
        ({"metrics": ["pesq", "si_sdr", "pesq"]}, [8000], "pesq", "pesq si_sdr", {}),
    ],
)
def test_usual_metrics_are_those_that_can_be_computed(options, rates, there, metrics, left_out, monkeypatch) -> None:
    for module in (evaluating, scoring):
        monkeypatch.setattr(module, "is_installed", there.split().__contains__)
    found, reasons = evaluating._scoring_options(EvaluationOptions(**options), None, rates)
    assert found.metrics == tuple(metrics.split()) and reasons.keys() == left_out.keys()
    assert all(words in reasons[name] for name, words in left_out.items())


@pytest.mark.parametrize(
    ("mixtures", "device", "expected"),
    [(99, "cpu", 0), (100, "cpu", 4), (100, "cuda", 9), (100, None, 9), (99, None, 0)],
)
def test_processes_beside_a_model(mixtures: int, device: str, expected: int, monkeypatch) -> None:
    """Half of the processors where a model takes the others, all where it does not; none for a few mixtures."""
    monkeypatch.setattr(evaluating, "available_processes", lambda: 9)
    system = (
        System(estimates=Path()) if device is None else System(separate=lambda mixture, rate: mixture, device=device)
    )
    assert evaluating._processes(system, mixtures) == expected


def test_the_real_time_factor_is_that_of_separation_alone(corpus: Any, tmp_path: Path, monkeypatch) -> None:
    """By a clock that goes on by a second whenever it is looked at; mixtures last half a second."""
    monkeypatch.setattr(evaluating, "time", SimpleNamespace(perf_counter=itertools.count(100.0).__next__))
    summary = evaluate(corpus.separator(), corpus.manifest, tmp_path / "out", SI_SDR)
    assert summary["real_time_factor"] == 2.0
