"""`sepkit evaluate` on the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sepkit.cli.main import main
from sepkit.config import ModelConfig
from sepkit.data import audio


@pytest.fixture
def model(tmp_path: Path, tiny_model_config: ModelConfig) -> str:
    from sepkit.models import build_model, save_model

    return str(save_model(build_model(tiny_model_config), tmp_path / "model", {}))


def read_summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def test_a_model_is_measured(corpus: Any, tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", "--model", model, "--manifest", str(corpus.manifest), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[-1] == str(tmp_path / "out") and lines[1].startswith("SI-SDR [dB] ")
    summary = read_summary(tmp_path / "out")
    assert summary["n_utterances"] == 5 and summary["model"] == model


def test_skipped_mixtures_make_exit_code_1(corpus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "estimates"
    for k in (1, 2):
        audio.write(folder / f"mix0_s{k}.wav", corpus.sources["mix0"][k - 1], 8000)
    places = ["--estimates", str(folder), "--manifest", str(corpus.manifest), "--out", str(tmp_path / "o")]
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", *places])
    assert stop.value.code == 1
    captured = capsys.readouterr()
    assert captured.out.strip().split("\n")[-1] == str(tmp_path / "o")
    assert "4 of 5 mixtures were skipped" in captured.err


def test_the_model_that_ships_is_measured_and_predicts_where_that_was_asked_for(corpus, tmp_path, capsys) -> None:
    line = ["evaluate", "--manifest", str(corpus.manifest), "--device", "cpu", "--out"]
    for name, more, predicts in (("short", ["--metrics", "si_sdr"], False), ("usual", [], True)):
        assert main([*line, str(tmp_path / name), *more]) == 0
        summary = read_summary(tmp_path / name)
        # SI-SDR is predicted only of two speakers, and these mixtures of noise may be taken for one.
        assert summary["model"] == "boxed_8k" and ("predicted_si_sdr_db" in summary["metrics"]) == predicts
        printed = capsys.readouterr().out.strip().split("\n")
        # It prints a table of what was asked for, and below it only the folder.
        asked = ["SI-SDR [dB]", "SI-SDR improvement [dB]"] if name == "short" else None
        assert asked is None or [row.split("  ")[0] for row in printed[1:-1]] == asked


@pytest.mark.parametrize(
    "more",
    [
        ["--model", "m", "--estimates", "e"], ["--calibration", "--estimates", "e"],
        ["--count-speakers", "--estimates", "e"], ["--model", "nowhere"],
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_line_and_exit_code_2(corpus, tmp_path, refused, more) -> None:
    assert refused(["evaluate", "--manifest", corpus.manifest, "--out", tmp_path / "out", *more])


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_disappears_is_a_failure(again, corpus, tmp_path, capsys, monkeypatch) -> None:
    """Also where all rows were there before."""
    from sepkit.evaluation import evaluate as module

    for name, sources in corpus.sources.items():
        for k in (1, 2):
            audio.write(tmp_path / "estimates" / f"{name}_s{k}.wav", sources[k - 1] + 0.1 * sources.sum(0), 8000)
    places = ["--manifest", str(corpus.manifest), "--estimates", str(tmp_path / "estimates")]
    line = ["evaluate", *places, "--out", str(tmp_path / "out"), "--metrics", "si_sdr"]
    if again:
        assert main(line) == 0
    real = module._Job.run

    def run(job: Any, utterances: Any) -> Any:
        yield from real(job, utterances)
        shutil.rmtree(tmp_path / "out")

    monkeypatch.setattr(module._Job, "run", run)
    capsys.readouterr()
    assert main(line) == 1
    told = capsys.readouterr()
    assert told.out == "" and "rows that were just written are gone" in told.err and told.err.count("\n") == 1
    assert not (tmp_path / "out" / "summary.json").exists()
    monkeypatch.undo()
    assert main(line) == 0


def test_a_corpus_of_wavs_gives_the_figures_of_mixing_on_the_fly(corpus: Any, tmp_path: Path, model: str) -> None:
    wavs = tmp_path / "wavs"
    assert main(["prepare", "wavs", "--manifest", str(corpus.manifest), "--out", str(wavs)]) == 0
    sources = [str(wavs / "s1"), str(wavs / "s2")]
    mixed = ["--mixture", str(wavs / "mix"), "--sources", *sources, "--out", str(tmp_path / "mixed")]
    assert main(["prepare", "mixed", *mixed]) == 0
    summaries = []
    for name, manifest in (("fly", corpus.manifest), ("files", tmp_path / "mixed" / "test.jsonl")):
        out = tmp_path / name
        assert main(["evaluate", "--model", model, "--manifest", str(manifest), "--out", str(out)]) == 0
        summaries.append(read_summary(out))
    fly, files = summaries
    assert fly["n_utterances"] == files["n_utterances"] == 5
    for metric, scores in fly["metrics"].items():
        assert files["metrics"][metric]["mean"] == pytest.approx(scores["mean"], abs=0.01)


def test_manifests_apart_are_what_they_are_alone(make_corpus, tmp_path, model, capsys, refused) -> None:
    """One process writes a folder for each; a bad mixture of one does not stop the other."""
    manifests = []
    for name in ("test_noisy", "test_clean"):
        manifest = make_corpus(tmp_path / name, count=2).manifest
        manifests.append(str(manifest.rename(manifest.with_name(f"{name}.jsonl"))))
    (tmp_path / "test_noisy" / json.loads(Path(manifests[0]).read_text().split("\n")[0])["sources"][0]["path"]).unlink()
    command = ["evaluate", "--model", model, "--metrics", "si_sdr", "--manifest"]
    with pytest.raises(SystemExit) as stop:
        main([*command, *manifests, "--separate-reports", "--out", str(tmp_path / "out")])
    assert stop.value.code == 1
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[-1] == str(tmp_path / "out") and [line[:-1] for line in lines if line[:-1] in manifests] == manifests
    assert main([*command, manifests[1], "--out", str(tmp_path / "alone")]) == 0
    error = refused([*command, manifests[1], manifests[1], "--separate-reports", "--out", tmp_path / "twice"])
    assert f"--manifest {manifests[1]}: another is called" in error
    apart, alone = (tmp_path / folder / "utterances.csv" for folder in ("out/test_clean", "alone"))
    assert apart.read_text() == alone.read_text()
    assert read_summary(tmp_path / "out" / "test_noisy")["n_skipped"] == 1
