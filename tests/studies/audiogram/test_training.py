"""Training of stacks, and use of trained models: exact resume, files, tables."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.choices import to_dict
from sepkit.cli.main import main
from sepkit.files import read_json, write_yaml
from sepkit.models import load_checkpoint
from sepkit.studies.audiogram.config import AudiogramOptions, AudiogramTaskConfig, PartialVAEConfig, StackConfig
from sepkit.studies.audiogram.data import prepare_audiograms
from sepkit.studies.audiogram.task import AudiogramTask, PartialVAE
from sepkit.training.run import train
from tests.complaint import complaint


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_audiograms(AudiogramOptions(out=tmp_path_factory.mktemp("data"), examples=128, seed=2))


@pytest.fixture(scope="module")
def config(data: Path) -> Callable[..., AudiogramTaskConfig]:
    def make(epochs: int = 2, **trainer: object) -> AudiogramTaskConfig:
        made = AudiogramTaskConfig(PartialVAEConfig(latent=2, embedding=3, features=6, hidden=[8]))
        made.data.train, made.data.dev, made.data.batch_size = str(data / "train.csv"), str(data / "dev.csv"), 32
        made.trainer.max_epochs, made.trainer.accelerator, made.trainer.gradient_clip_norm = epochs, "cpu", 0.0
        made.trainer.learning_rate = 1e-2
        for name, value in trainer.items():
            setattr(made.trainer, name, value)
        return made

    return make


@pytest.fixture(scope="module")
def stack(config: Callable[..., AudiogramTaskConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = config()
    made.stack = StackConfig([3, 4])
    folder = tmp_path_factory.mktemp("stack")
    train(made, folder)
    return folder


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder, of=PartialVAE).state_dict()


def _epochs(folder: Path, name: str) -> list[float]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record[name] for record in records if record.get("kind") == "epoch"]


def test_a_model_of_a_stack_is_the_one_trained_alone(config, stack, tmp_path) -> None:
    together = _weights(stack / "last_model")
    assert torch.isfinite(together["low_elbo"]).all()
    shared = list(together["shared.weight"])
    assert all(not torch.equal(a, b) for k, a in enumerate(shared) for b in shared[:k])
    alone = config()
    alone.trainer.seed = 4
    train(alone, tmp_path)
    for name, tensor in _weights(tmp_path / "last_model").items():
        torch.testing.assert_close(together[name][1:], tensor, rtol=1e-4, atol=1e-4, equal_nan=True)
    mine, expected = _epochs(stack, "train_rate_nats_1"), _epochs(tmp_path, "train_rate_nats")
    assert mine == pytest.approx(expected, rel=1e-3) and len(mine) == 2


def test_two_epochs_and_two_more_are_four(config: Callable[..., AudiogramTaskConfig], tmp_path: Path) -> None:
    for folder, all_epochs in (("resumed", (2, 4)), ("whole", (4,))):
        for epochs in all_epochs:
            made = config(epochs)
            made.stack = StackConfig([0, 1])
            train(made, tmp_path / folder)
    resumed, whole = (_weights(tmp_path / name / "last_model") for name in ("resumed", "whole"))
    assert all(torch.equal(tensor, whole[name]) for name, tensor in resumed.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: setattr(c.data, "train", None), "data.train: no file given"),
        (lambda c: setattr(c.data.missingness, "nothing_observed", 0.95), "data.missingness"),
        (lambda c: setattr(c.stack, "seeds", [1, 1]), "stack.seeds: expected different ones"),
        (lambda c: setattr(c.stack, "seeds", [2**63]), "stack.seeds: found 9223372036854775808"),
    ],
)
def test_bad_configurations_are_refused(config, change, message) -> None:
    made = config()
    change(made)
    complaint(lambda: made.check(), message)


def test_incomplete_data_are_learned_from_and_data_that_do_not_vary_refused(config, data, tmp_path) -> None:
    head, *rows = [line.split(",") for line in (data / "train.csv").read_text().splitlines()]
    made = config(1)
    made.data.train = str(tmp_path / "train.csv")

    def write(changed: list[list[str]]) -> None:
        (tmp_path / "train.csv").write_text("".join(",".join(row) + "\n" for row in [head, *changed]))

    write([[*row[:4], "40", *row[5:]] for row in rows])
    complaint(lambda: AudiogramTask(made, tmp_path), f"{head[4]} is the same for all")
    write([[cell if place != 1 + k % 30 else "" for place, cell in enumerate(row)] for k, row in enumerate(rows)])
    task = AudiogramTask(made, tmp_path)
    values, observed = zip(*(task.train_data[0, place] for place in range(len(task.train_data))), strict=True)
    assert np.isnan(values).any() and not np.isnan(np.array(values)[np.array(observed)]).any()
    train(made, tmp_path / "exp")
    assert torch.isfinite(_weights(tmp_path / "exp")["shared.weight"]).all()


def test_from_training_to_tables(data: Path, tmp_path: Path) -> None:
    """Every command of the study, one after the other, as the recipe calls them."""

    def run(*words: object) -> None:
        assert main([str(word) for word in words]) == 0

    small = ["--model.latent", "2", "--model.features", "6", "--model.embedding", "3", "--model.hidden", "[8]"]
    small += ["--trainer.max_epochs", "2", "--trainer.validate_every_epochs", "2", "--data.batch_size", "32"]
    train = ["train", "--config", "audiogram", "--data.train", data / "train.csv", "--data.dev", data / "dev.csv"]
    files = ["--manifest", data / "test.csv", "--dev", data / "dev.csv"]
    sessions = tmp_path / "sessions"
    simulate = ["audiogram", "simulate", *files, "--samples", "6"]
    run(*train, *small, "--stack.seeds", "[0, 1]", "--out", tmp_path / "seeds")
    run(*simulate, "--model", tmp_path / "seeds", "--out", sessions)
    file = sessions / "seed_1" / "simulation.json"
    summary, made = read_json(file), file.stat().st_mtime_ns
    assert summary["reference"] == "noise-free" and summary["data"] == 16 and summary["asked"]["training_seed"] == 1
    strategies = summary["strategies"]
    assert len(strategies["random"]["rmse_db"]) == 15 and len(summary["single_best_order"]) == 14
    assert summary["stopping"]["5"]["oracle"]["offset"] == 0 and "medical" in summary["notice"]
    # With everything measured, only measurement noise remains, whatever the strategy.
    assert strategies["random"]["rmse_db"][14] == strategies["single_best"]["rmse_db"][14]
    assert np.mean(strategies["random"]["areas_db"]) == pytest.approx(strategies["random"]["area_rmse_db"], rel=1e-4)
    run(*simulate, "--model", tmp_path / "seeds", "--out", sessions)
    assert file.stat().st_mtime_ns == made
    run("audiogram", "tables", sessions, "--out", tmp_path / "t.md")
    assert "paired over data" in (tmp_path / "t.md").read_text()
    assert main(["audiogram", "next", "--model", str(tmp_path / "seeds")]) == 2
    for change in ("{}", "[]", "7", json.dumps(summary | {"strategies": {"random": {"rmse_db": "x"}}})):
        file.write_text(change)
        assert main(["audiogram", "tables", str(sessions), "--out", str(tmp_path / "t.md")]) == 2


def test_simulation_leaves_bad_rows_out_and_refuses_what_it_cannot_do(stack: Path, data: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    lines = (data / "test.csv").read_text().splitlines()
    test.write_text("\n".join([*lines, lines[1], lines[2].replace(lines[2].split(",")[2], "loud", 1)]) + "\n")
    simulate = ["audiogram", "simulate", "--manifest", str(test), "--out", str(tmp_path / "x"), "--model", str(stack)]
    assert main([*simulate, "--strategies", "largest_variance", "--samples", "6"]) == 2
    assert read_json(tmp_path / "x" / "seed_3" / "simulation.json")["data"] == len(lines) - 1
    for words in (["--strategies", "luck"], ["--strategies", "single_best"], ["--first", "0"], ["--stop-at-db", "0"]):
        assert main([*simulate, *words]) == 2
    assert main(["audiogram", "tables", str(tmp_path / "absent"), "--out", str(tmp_path / "t.md")]) == 2
    write_yaml(stack / "config.yaml", to_dict(AudiogramTaskConfig()))
    assert main(simulate) == 2
