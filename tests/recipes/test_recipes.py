"""Every recipe runs from its first stage to its last; the same command again does nothing; a killed one continues."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from sepkit.data.manifest import read_manifest

TINY = Path(__file__).with_name("tiny.yaml")
RECIPES = ("mini", "folder", "enhancement")


@pytest.fixture
def command(repository: Path, speech: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """recipe, further options -> the command that runs it at tiny size below tmp_path."""

    def make(recipe: str, *options: str) -> list[str]:
        own = {
            "mini": [
                "--prepare-options",
                "--train-voices 4 --train-sentences 1 --heldout-sentences 1 --train-mixtures 8 --dev-mixtures 4 "
                "--test-mixtures 6 --segment-seconds 1",
            ],
            "folder": [
                "--speech", str(speech), "--groups", "A=a.* B=b.*",
                "--prepare-options", "--train-mixtures 12 --dev-mixtures 4 --test-mixtures 1 --segment-seconds 1",
            ],
            "enhancement": [
                "--speech", str(speech), "--noise", str(speech), "--hypotheses", "1",
                "--prepare-options", "--train-mixtures 8 --dev-mixtures 4 --test-mixtures 1 --segment-seconds 1",
            ],
        }[recipe]  # fmt: skip
        places = ["--conf", str(TINY), "--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp")]
        return [str(repository / "egs" / recipe / "run.sh"), *own, *places, *options]

    return make


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_runs_from_first_to_last_stage(recipe, command, tmp_path, run) -> None:
    assert re.findall(r"^stage (\d)", run(command(recipe)), re.MULTILINE) == ["1", "2", "3", "4", "5"]
    sets = {"mini": ["test"], "folder": ["test_A", "test_B"], "enhancement": ["test"]}[recipe]
    speakers = 1 if recipe == "enhancement" else 2
    for name in sets:
        summary = json.loads((tmp_path / "exp" / "evaluation" / name / "summary.json").read_text())
        assert summary["n_utterances"] == len(read_manifest(tmp_path / "data" / f"{name}.jsonl"))
        assert summary["n_skipped"] == 0 and np.isfinite(summary["metrics"]["si_sdri_db"]["mean"])
        examples = tmp_path / "exp" / "examples" / name
        estimates = list((examples / "estimates").rglob(f"*_s{speakers}.wav"))
        assert len(estimates) == len(list((examples / "mix").glob("*.wav"))) > 0
    report = (tmp_path / "exp" / "report.html").read_text(encoding="utf-8")
    # The worst, the middle and the best of the six of one recipe, and the only one of the others.
    shown = 3 if recipe == "mini" else 1
    assert report.count("<audio") == shown * (1 + 2 * speakers) * len(sets) and 'id="training"' in report
    assert_speakers_are_disjoint(tmp_path / "data", sets)


@pytest.mark.parametrize(("recipe", "assignment"), [("mini", "sinkhorn"), ("folder", "amcl")])
def test_matching_is_an_option(recipe, assignment, command, tmp_path, run) -> None:
    """Three hypotheses for two speakers, matched as asked for."""
    run(command(recipe, "--stop-stage", "2", "--assignment", assignment, "--hypotheses", "3"))
    config = yaml.safe_load((tmp_path / "exp" / "config.yaml").read_text())
    assert config["objective"]["assignment"]["name"] == assignment
    assert config["model"]["hypotheses"] == 3


@pytest.fixture
def matching(repository: Path, speech: Path, tmp_path: Path) -> list[str]:
    """The command that compares two matchings over two seeds at tiny size below tmp_path."""
    return [
        str(repository / "egs" / "matching" / "run.sh"), "--speech", str(speech), "--conf", str(TINY),
        "--prepare-options", "--train-mixtures 12 --dev-mixtures 4 --test-mixtures 3 --segment-seconds 1",
        "--methods", "pit mcl", "--seeds", "0 1", "--temperatures", "5", "--hypotheses", "3",
        "--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp"),
    ]  # fmt: skip


@pytest.mark.slow
def test_comparison_of_matchings(matching: list[str], tmp_path: Path, run: Callable[..., str]) -> None:
    assert re.findall(r"^stage (\d)", run(matching), re.MULTILINE) == ["1", "2", "3", "4", "5"]
    exp = tmp_path / "exp"
    runs = {f"{name}_seed{seed}" for name in ("pit", "mcl", "amcl_t5", "mcl_n3", "amcl_n3") for seed in (0, 1)}
    assert {path.name for path in exp.iterdir() if path.is_dir()} == runs
    for name in runs:
        config = yaml.safe_load((exp / name / "config.yaml").read_text())
        assert config["objective"]["assignment"]["name"] == name.split("_")[0]
        assert config["model"]["hypotheses"] == (3 if "_n3_" in name else 2)
        assert config["trainer"]["seed"] == int(name[-1])
        summary = json.loads((exp / name / "evaluation" / "test" / "summary.json").read_text())
        assert summary["n_utterances"] == 3 and "mcl_si_sdr_db" in summary["metrics"]
    table = (exp / "table.md").read_text()
    assert re.search(r"^\| pit \| 2 \|", table, re.MULTILINE) and re.search(r"^\| mcl \| 2 \|", table, re.MULTILINE)
    for figure in ("phase_transition_temperature.png", "hypotheses_boxes.png"):
        assert (exp / figure).stat().st_size > 10_000
    assert "<audio" in (exp / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_more_speakers_are_compared_and_finished_runs_are_kept(matching, repository, tmp_path, run) -> None:
    options = dict(zip(matching[1::2], matching[2::2], strict=True))
    kept = {name: options[name] for name in ("--speech", "--conf", "--data", "--prepare-options")}
    kept |= {"--exp": str(tmp_path / "exp"), "--runs": str(tmp_path / "runs"), "--counts": "3"}
    kept |= {"--methods": "amcl_exponential", "--seeds": "0 1", "--hypotheses": "4"}
    command = [str(repository / "egs" / "matching" / "more.sh"), *(word for pair in kept.items() for word in pair)]
    run(command)
    kinds = ("n3_amcl_exponential", "n4_mcl", "n4_amcl")
    names = {f"m3_{kind}_seed{seed}.json" for kind in kinds for seed in (0, 1)}
    assert {path.name for path in (tmp_path / "runs").glob("*.json")} == names
    assert "| 3, 4 | amcl - mcl | 2 |" in (tmp_path / "runs" / "RUNS.md").read_text()
    shutil.rmtree(tmp_path / "exp")
    run(command)
    assert not (tmp_path / "exp").exists()


@pytest.mark.slow
def test_counting_is_compared_with_a_told_number(matching, repository, speech, tmp_path, run) -> None:
    options = dict(zip(matching[1::2], matching[2::2], strict=True))
    kept = {name: options[name] for name in ("--speech", "--data")}
    kept |= {"--noise": str(speech), "--exp": str(tmp_path / "exp"), "--runs": str(tmp_path / "runs")}
    few = "--train-mixtures 20 --dev-mixtures 10 --test-mixtures 10"
    kept |= {"--prepare-options": f"--speakers 1 2 3 {few} --segment-seconds 1", "--groups": "all=.*"}
    short = "--data.mixtures_per_epoch 8 --data.segment_seconds 1 --trainer.max_epochs 1"
    kept |= {"--methods": "mcl told2", "--extra": short}
    table = run([str(repository / "egs" / "counting" / "run.sh"), *(word for pair in kept.items() for word in pair)])
    assert "| told2_seed0, test_all | 2 | 1.00 |" in table and "| mcl_seed0, test_all | 3 |" in table
    assert "scoring: null" in (tmp_path / "exp" / "told2_seed0" / "config.yaml").read_text()


def assert_speakers_are_disjoint(data: Path, test_sets: list[str]) -> None:
    """No speaker, and no file, of a test set is in the training or validation manifest, and so on."""
    seen: dict[str, set[str]] = {}
    for split in ("train", "dev", *test_sets):
        sources = [(entry, source) for entry in read_manifest(data / f"{split}.jsonl") for source in entry.sources]
        seen[split] = {s.speaker for _, s in sources} | {str(entry.resolve(s.path)) for entry, s in sources}
    for split in seen:
        for other in ("train", "dev"):
            assert split == other or not seen[split] & seen[other]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_second_run_does_nothing_again(recipe, command, second_run_keeps) -> None:
    second_run_keeps(command(recipe))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("stage", [1, 2, 3, 4, 5])
def test_killed_stage_continues(recipe, stage, command, tmp_path, run, kill) -> None:
    if stage > 1:
        run(command(recipe, "--stop-stage", str(stage - 1)))
    # Long enough for the commands to have begun their work, in some stages too long: then nothing is left to continue.
    kill(command(recipe, "--stage", str(stage), "--stop-stage", str(stage)), 4)
    run(command(recipe, "--stage", str(stage)))
    for summary in (tmp_path / "exp" / "evaluation").rglob("summary.json"):
        assert json.loads(summary.read_text())["n_skipped"] == 0
    assert not [path for path in tmp_path.rglob(".*") if path.is_file() and path.suffix == ".tmp"]


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("egs/*/run.sh")), ids=lambda p: p.parent.name)
def test_help_tells_the_options_and_no_others(path: Path, run: Callable[..., str]) -> None:
    own, _ = path.read_text().split(". ../utils/recipe.sh\n")
    (groups,) = re.findall(r'/utils/options\.sh"(.*)$', own, re.MULTILINE)
    files = [path.parents[1] / "utils" / "options" / f"{group}.sh" for group in groups.split()]
    declared = {
        name.replace("_", "-") for part in (own, *(file.read_text() for file in files))
        for name in re.findall(r"^([a-z_0-9]+)=", part, re.MULTILINE)
    }  # fmt: skip
    assert sorted(re.findall(r"^--([a-z0-9-]+)", run([str(path), "--help"]), re.MULTILINE)) == sorted(declared)


def test_real_speech_has_no_test_speaker_in_training(data_folder: Path, tmp_path: Path) -> None:
    from sepkit.corpora.folder import prepare_folder
    from sepkit.corpora.options import FolderOptions

    groups = (r"librispeech=\d{1,4}", r"speechocean762=9\d{4}")
    speech_folder = data_folder / "speech_mini" / "wav8k"
    counts = {"train_mixtures": 500, "dev_mixtures": 20, "test_mixtures": 50}
    prepare_folder(FolderOptions(speech=speech_folder, out=tmp_path, groups=groups, **counts))
    assert_speakers_are_disjoint(tmp_path, ["test_librispeech", "test_speechocean762"])
    train = read_manifest(tmp_path / "train.jsonl")
    assert all("/train/" in str(entry.resolve(source.path)) for entry in train for source in entry.sources)
