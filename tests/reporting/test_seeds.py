"""Tables over seeds against statistics worked out by hand, and the figures beside them."""

import json
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.evaluation.run_folder import load_run
from sepkit.reporting.curve_figures import score_boxes, scores_by_temperature
from sepkit.reporting.seeds import temperature_series

SCORES = {"pit_seed0": [4.0, 6.0], "pit_seed1": [6.0, 8.0], "mcl_seed0": [1.0, 3.0], "mcl_n3_seed0": [5.0, 5.5]}


def make_run(
    folder: Path, scores: list[float], seed: int, *, collapse: float | None = None, learning_rate: float = 1e-3
) -> str:
    """An experiment folder with a configuration, a log of three epochs, and one evaluation of two mixtures."""
    evaluation = folder / "evaluation" / "test"
    evaluation.mkdir(parents=True)
    summary: dict = {"n_utterances": len(scores), "manifest": ["test.jsonl"], "metrics": {}}
    for name, shift in (("si_sdr_db", 0.0), ("mcl_si_sdr_db", 1.0)):
        summary["metrics"][name] = {"mean": float(np.mean(scores)) + shift, "n": len(scores), "ci95": [0, 1]}
    if collapse is not None:
        summary["matching"] = {"collapse_rate": collapse}
    (evaluation / "summary.json").write_text(json.dumps(summary))
    rows = "".join(f"test.jsonl,m{i},{score},{score + 1}\n" for i, score in enumerate(scores))
    (evaluation / "utterances.csv").write_text("manifest,id,si_sdr_db,mcl_si_sdr_db\n" + rows)
    (folder / "config.yaml").write_text(f"trainer: {{seed: {seed}, learning_rate: {learning_rate}}}\n")
    epochs = [{"epoch": e, "step": e, "temperature": 5.0 * 0.1**e, "dev_mcl_si_sdr_db": float(e)} for e in range(3)]
    records = [{"kind": "epoch", **epoch} for epoch in epochs]
    records[1]["dev_mcl_si_sdr_db"] = None
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [make_run(tmp_path / name, scores, int(name[-1])) for name, scores in SCORES.items()]


def cells(text: str, group: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {group} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_mean_and_sample_deviation_over_seeds(tmp_path: Path, runs: list[str], capsys) -> None:
    out = tmp_path / "table.md"
    assert main(["summarize", *runs, "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    text = out.read_text()
    # Means of the runs are 5 and 7: mean 6, sample deviation sqrt 2; utterances do not enter.
    assert cells(text, "pit") == ["pit", "2", "6.00 ± 1.41", "7.00 ± 1.41", "1 (7.00)", "0 (5.00)"]
    assert cells(text, "mcl") == ["mcl", "1", "2.00", "3.00", "", ""]
    assert "SI-SDR [dB]" in text and "MCL SI-SDR [dB]" in text
    assert "collapsed" not in text and "differ" not in text


def test_the_collapse_rate_is_a_column_where_it_was_measured(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / f"mcl_seed{i}", [1.0, 2.0], i, collapse=rate) for i, rate in enumerate((0.0, 0.5))]
    main(["summarize", *folders, "--metric", "mcl_si_sdr_db", "--out", str(tmp_path / "t.md")])
    text = (tmp_path / "t.md").read_text()
    assert "collapsed hypotheses [%]" in text
    assert cells(text, "mcl")[3] == "25.0 ± 35.4"


def test_runs_that_differ_in_more_than_the_seed_are_told(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / f"a_seed{i}", [1.0], i, learning_rate=rate) for i, rate in enumerate((1e-3, 1e-4))]
    folders.append(make_run(tmp_path / "again" / "a_seed1", [1.0], 1))
    main(["summarize", *folders, "--out", str(tmp_path / "t.md")])
    text = (tmp_path / "t.md").read_text()
    assert "differ in more than the seed: trainer.learning_rate" in text
    assert "seed 1 stands for more than one run" in text


def test_figures_are_written_beside_the_table(tmp_path: Path, runs: list[str]) -> None:
    out = tmp_path / "t.md"
    assert main(["summarize", *runs, "--figure", "boxes", "temperature", "--out", str(out)]) == 0
    for kind in ("boxes", "temperature"):
        assert (tmp_path / f"t_{kind}.png").read_bytes().startswith(b"\x89PNG")
        assert f"(t_{kind}.png)" in out.read_text()


def test_boxes_have_the_quartiles_of_all_utterances() -> None:
    scores = np.append(np.random.default_rng(0).normal(size=99), [np.nan, 50.0])
    axes = score_boxes({"a": scores}, "SI-SDR [dB]").axes[0]
    known = scores[np.isfinite(scores)]
    quartiles = np.quantile(known, [0.25, 0.5, 0.75])
    box = axes.patches[0].get_path().vertices[:, 1]
    assert box.min() == pytest.approx(quartiles[0]) and box.max() == pytest.approx(quartiles[2])
    heights = [np.asarray(line.get_ydata()) for line in axes.lines]
    assert any(len(y) == 2 and y == pytest.approx(quartiles[1]) for y in heights)  # the median
    assert any(len(y) == 1 and y[0] == pytest.approx(known.mean()) for y in heights)  # the mean
    # A whisker ends at the last score within 1.5 times the box.
    reach = quartiles[2] + 1.5 * (quartiles[2] - quartiles[0])
    assert any(y.max() == known[known <= reach].max() for y in heights if len(y) == 2)


def test_temperatures_fall_from_left_to_right(runs: list[str]) -> None:
    series = temperature_series([load_run(folder) for folder in runs[:1]])
    temperatures, scores = series["pit_seed0"]
    # The epoch that was not validated has no point.
    assert temperatures == pytest.approx([5.0, 0.05]) and scores == pytest.approx([0.0, -2.0])
    axes = scores_by_temperature({**series, "ended": ([1.0, 0.0], [1.0, 2.0])}).axes[0]
    assert axes.get_xscale() == "log" and axes.xaxis_inverted()
    assert len(axes.lines[1].get_xdata()) == 1
    assert axes.lines[0].get_linestyle() != axes.lines[1].get_linestyle()


@pytest.mark.parametrize(("options", "words"), [(["--metric", "pesq"], "--metric"), (["--figure", "violin"], "violin")])
def test_mistakes_exit_with_2_and_one_line(tmp_path: Path, runs: list[str], refused, options, words) -> None:
    assert words in refused(["summarize", *runs, *options, "--out", tmp_path / "t.md"])
    assert not (tmp_path / "t.md").exists()


def test_runs_without_what_was_asked_for(tmp_path: Path, refused) -> None:
    folder = tmp_path / "pit_seed0"
    make_run(folder, [1.0], 0)
    (folder / "metrics.jsonl").write_text('{"kind": "epoch", "epoch": 1, "step": 1, "dev_mcl_si_sdr_db": 1.0}\n')
    command = ["summarize", folder, "--out", tmp_path / "t.md"]
    assert "no temperature" in refused([*command, "--figure", "temperature"])
    for name in ("summary.json", "utterances.csv"):
        (folder / "evaluation" / "test" / name).unlink()
    assert "no evaluation" in refused(command)


def make_sets(folder: Path, scores: dict[str, tuple[float, float]]) -> str:
    """An experiment measured on several sets: name -> means of SI-SDR improvement and log evidence."""
    for name, (improvement, evidence) in scores.items():
        evaluation = folder / "evaluation" / name
        evaluation.mkdir(parents=True)
        means = {"si_sdr_db": 1.0, "si_sdri_db": improvement, "blr_nats_per_sample": evidence}
        metrics = {name: {"mean": mean, "n": 3, "ci95": [0, 1]} for name, mean in means.items()}
        (evaluation / "summary.json").write_text(json.dumps({"n_utterances": 3, "metrics": metrics}))
        (evaluation / "utterances.csv").write_text("manifest,id\n")
    return str(folder)


@pytest.fixture
def generalization(tmp_path: Path) -> list[str]:
    """Two methods, two and one seeds, noisy and clean, seen and unseen."""
    scores = {
        "det_seed0": ((10.0, 0.5), (6.0, 0.3), (12.0, 0.7), (7.0, 0.4)),
        "det_seed1": ((12.0, 0.5), (7.0, 0.2), (14.0, 0.7), (8.0, 0.4)),
        "vi_seed0": ((-1.0, 0.6), (-2.0, 0.5), (13.0, 0.8), (10.0, 0.6)),
    }
    sets = ("seen_noisy", "new_noisy", "seen_clean", "new_clean")
    return [make_sets(tmp_path / name, dict(zip(sets, of_run, strict=True))) for name, of_run in scores.items()]


def test_drops_are_of_each_run_and_then_over_seeds(tmp_path: Path, generalization: list[str]) -> None:
    pairs = ["seen_noisy=new_noisy", "seen_clean=new_clean"]
    main(["summarize", *generalization, "--reference-set", *pairs, "--out", str(tmp_path / "t.md")])
    text = (tmp_path / "t.md").read_text()
    improvement, evidence = (part for part in text.split("### ")[1:3])
    assert improvement.startswith("SI-SDR improvement") and evidence.startswith("log evidence [nats per sample]")
    heads = " | ".join(f"seen_{task} | new_{task} | drop seen_{task} to new_{task}" for task in ("noisy", "clean"))
    assert heads in improvement
    # Drops of 4 and 5 from 10 and 12: 4.5 +- 1 / sqrt 2, and 4.5 of 11.
    noisy = ["11.00 ± 1.41", "6.50 ± 0.71", "4.50 ± 0.71 (41 %)"]
    clean = ["13.00 ± 1.41", "7.50 ± 0.71", "5.50 ± 0.71 (42 %)"]
    assert cells(improvement, "det") == ["det", "2", *noisy, *clean]
    # The share of a score below zero means nothing.
    assert cells(improvement, "vi")[2:5] == ["-1.00", "-2.00", "1.00"]
    assert cells(evidence, "det")[2:5] == ["0.500 ± 0.000", "0.250 ± 0.071", "0.250 ± 0.071"]
    assert "### new_clean" in text


def test_only_the_sets_asked_for(tmp_path: Path, generalization: list[str]) -> None:
    main(["summarize", *generalization, "--test-set", "new_noisy", "--out", str(tmp_path / "t.md")])
    assert cells((tmp_path / "t.md").read_text(), "det")[3] == "6.50 ± 0.71"


@pytest.mark.parametrize(
    "more", [["--reference-set", "seen_noisy"], ["--reference-set", "seen_noisy=absent"], ["--test-set", "x"]]
)
def test_sets_that_are_not_there(tmp_path: Path, generalization: list[str], refused, more: list[str]) -> None:
    error = refused(["summarize", *generalization, *more, "--out", tmp_path / "t.md"])
    assert more[0] in error and "seen_clean" in error
