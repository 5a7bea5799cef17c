"""Training of stacks, and use of trained models: exact resume, files, tables, the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.cli.main import main
from sepkit.errors import UserError
from sepkit.files import read_json, read_yaml
from sepkit.models import load_checkpoint
from sepkit.studies.audiogram.config import AudiogramOptions, AudiogramTaskConfig, PartialVAEConfig
from sepkit.studies.audiogram.model import PartialVAE
from sepkit.studies.audiogram.prepare import prepare_audiograms
from sepkit.studies.audiogram.sweep import members_of, train_stacks
from sepkit.studies.audiogram.task import AudiogramTask
from sepkit.training.run import train


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
def stacks(config: Callable[..., AudiogramTaskConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rates with two seeds each."""
    return train_stacks(config(), tmp_path_factory.mktemp("stacks"), [3, 4], [0.01, 2.0])


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder, of=PartialVAE).state_dict()


def _assert_same(first: Path, second: Path, tolerance: float) -> None:
    one, other = _weights(first), _weights(second)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=tolerance, atol=tolerance, equal_nan=True)


def _epochs(folder: Path, name: str) -> list[float]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record[name] for record in records if record.get("kind") == "epoch"]


def test_a_model_of_a_stack_is_the_one_trained_alone(
    config: Callable[..., AudiogramTaskConfig], stacks: Path, tmp_path: Path
) -> None:
    names = sorted(path.name for path in stacks.iterdir() if path.name != "stacks")
    assert names == ["rate_0.01_seed_3", "rate_0.01_seed_4", "rate_2_seed_3", "rate_2_seed_4"]
    weights = [_weights(stacks / name / "model") for name in names]
    assert all(torch.isfinite(state["low_elbo"]).all() for state in weights)
    shared = [state["shared.weight"] for state in weights]
    assert all(not torch.equal(a, b) for k, a in enumerate(shared) for b in shared[:k])
    folder = stacks / "rate_2_seed_4"
    settings = read_yaml(folder / "config.yaml")
    assert settings["task"] == "audiogram" and settings["trainer"]["seed"] == 4
    assert settings["objective"]["steering"]["total"] == 2.0 and settings["model"]["models"] == 1
    alone = config()
    alone.trainer.seed = 4
    alone.objective.steering = alone.steered_to(2.0)
    train(alone, tmp_path)
    _assert_same(folder / "last_model", tmp_path / "last_model", 1e-4)
    mine, expected = (_epochs(place, "train_rate_nats") for place in (folder, tmp_path))
    assert mine == pytest.approx(expected, rel=1e-3) and len(mine) == 2


def test_two_epochs_and_two_more_are_four(config: Callable[..., AudiogramTaskConfig], tmp_path: Path) -> None:
    for folder, all_epochs in (("resumed", (2, 4)), ("whole", (4,))):
        for epochs in all_epochs:
            made = config(epochs)
            made.objective.steering = made.steered_to(1.0)
            made.lower_after = 1.0
            train(made, tmp_path / folder)
    _assert_same(tmp_path / "resumed" / "last_model", tmp_path / "whole" / "last_model", 0)


def test_rates_approach_their_targets_and_the_learning_rate_is_lowered_once(
    config: Callable[..., AudiogramTaskConfig], tmp_path: Path
) -> None:
    made = config(60, validate_every_epochs=60)
    made.objective.steering = made.steered_to(1.5)
    made.objective.steering.change = 0.05
    made.lower_after, made.lower_to = 0.9, 0.25
    train(made, tmp_path)
    assert _epochs(tmp_path, "train_rate_nats")[-1] == pytest.approx(1.5, rel=0.15)
    assert _epochs(tmp_path, "learning_rate") == pytest.approx([0.01] * 54 + [0.0025] * 6)


def test_members_of_a_sweep() -> None:
    assert [m.name for m in members_of([1, 2], None)] == ["seed_1", "seed_2"]
    assert [m.name for m in members_of([0], [0.125, 2.0])] == ["rate_0.125", "rate_2"]
    assert [m[:2] for m in members_of([0, 1], [1.0, 3.0])] == [(0, 1.0), (0, 3.0), (1, 1.0), (1, 3.0)]
    for seeds, rates in (([1, 1], None), ([0], [1.0, 1.0]), ([-1], None), ([0], [0.0])):
        with pytest.raises(UserError, match=r"--seeds|--target-rates"):
            members_of(seeds, rates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: setattr(c.data, "train", None), "data.train: no file given"),
        (lambda c: setattr(c, "lower_to", 0.0), "lower_to: found 0"),
        (lambda c: setattr(c.data.missingness, "nothing_observed", 0.95), "data.missingness"),
        (lambda c: setattr(c.stack, "seeds", [1, 2]), "stack.seeds: found 2"),
        (lambda c: setattr(c.objective, "steering", c.steered_to(-1.0)), "expected more than 0"),
        (lambda c: setattr(c.objective, "steering", replace(c.steered_to(1.0), total=None)), "found none"),
    ],
)
def test_bad_configurations_are_refused(
    config: Callable[..., AudiogramTaskConfig], change: Callable[[AudiogramTaskConfig], None], message: str, tmp_path
) -> None:
    made = config()
    change(made)
    with pytest.raises(UserError, match=message):
        made.check()
        AudiogramTask(made, tmp_path)


def test_incomplete_data_are_learned_from_and_data_that_do_not_vary_refused(
    config: Callable[..., AudiogramTaskConfig], data: Path, tmp_path: Path
) -> None:
    head, *rows = [line.split(",") for line in (data / "train.csv").read_text().splitlines()]
    made = config(1)
    made.data.train = str(tmp_path / "train.csv")

    def write(changed: list[list[str]]) -> None:
        (tmp_path / "train.csv").write_text("".join(",".join(row) + "\n" for row in [head, *changed]))

    write([[*row[:4], "40", *row[5:]] for row in rows])
    with pytest.raises(UserError, match=f"{head[4]} is the same for all"):
        AudiogramTask(made, tmp_path)
    write([[cell if place != 1 + k % 30 else "" for place, cell in enumerate(row)] for k, row in enumerate(rows)])
    task = AudiogramTask(made, tmp_path)
    values, observed = zip(*(task.train_data[0, place] for place in range(len(task.train_data))), strict=True)
    assert np.isnan(values).any() and not np.isnan(np.array(values)[np.array(observed)]).any()
    train(made, tmp_path / "exp")
    assert torch.isfinite(_weights(tmp_path / "exp")["shared.weight"]).all()


def test_from_training_to_tables_and_the_report(data: Path, tmp_path: Path) -> None:
    """Every command of the study, one after the other, as the recipe calls them."""

    def run(*words: object) -> None:
        assert main([str(word) for word in words]) == 0

    small = ["--model.latent", "2", "--model.features", "6", "--model.embedding", "3", "--model.hidden", "[8]"]
    small += ["--trainer.max_epochs", "2", "--trainer.validate_every_epochs", "2", "--data.batch_size", "32"]
    train = [
        "train",
        "--config",
        "audiogram",
        "--data.train",
        data / "train.csv",
        "--data.dev",
        data / "dev.csv",
        *small,
    ]
    run(*train, "--seeds", "0", "1", "--out", tmp_path / "seeds")
    run(*train, "--target-rates", "1", "4", "--out", tmp_path / "rates")
    files = ["--manifest", data / "test.csv", "--dev", data / "dev.csv"]
    models = [tmp_path / "seeds" / f"seed_{seed}" for seed in (0, 1)]
    sessions, by_rate = tmp_path / "sessions", tmp_path / "by_rate"
    simulate = ["audiogram", "simulate", *files, "--samples", "6"]
    run(*simulate, "--model", *models, "--out", sessions)
    file = sessions / "seed_1" / "simulation.json"
    summary, made = read_json(file), file.stat().st_mtime_ns
    assert summary["reference"] == "noise-free" and summary["data"] == 16 and summary["training"]["seed"] == 1
    assert len(summary["strategies"]["random"]["rmse_db"]) == 15 and len(summary["single_best_order"]) == 14
    assert summary["strategies"]["largest_variance"]["rmse_measured_db"][14] == 0
    assert summary["stopping"]["5"]["oracle"]["offset"] == 0 and "medical" in summary["notice"]
    # With everything measured, only measurement noise remains, whatever the strategy.
    assert summary["strategies"]["random"]["rmse_db"][14] == summary["strategies"]["single_best"]["rmse_db"][14]
    run(*simulate, "--model", *models, "--out", sessions)
    assert file.stat().st_mtime_ns == made
    more = ["--training", data / "train.csv", "--strategies", "largest_variance", "--out", by_rate]
    run(*simulate, "--model", *[tmp_path / "rates" / f"rate_{rate}" for rate in (1, 4)], *more)
    for kind, folder, words in (
        ("strategies", sessions, "paired over data"),
        ("rates", by_rate, "| target | rate on test | off | off on train | distortion, train |"),
        ("gap", by_rate, "test data"),
    ):
        run("audiogram", "tables", folder, "--kind", kind, "--out", tmp_path / f"{kind}.md")
        assert words in (tmp_path / f"{kind}.md").read_text()
    figures = ["--archetypes", data / "archetypes.csv", "--out", tmp_path / "figures"]
    run("audiogram", "figures", "--model", models[0], *files, *figures)
    assert len(list((tmp_path / "figures").glob("figure_*.png"))) == 6
    run("report", models[0], sessions / "seed_0", "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Audiogram" in page and "Not a medical device" in page and "information" in page
    for change in ("{}", "[]", "7", json.dumps(summary | {"strategies": {"random": {"rmse_db": "x"}}})):
        file.write_text(change)
        for kind in ("strategies", "rates", "gap"):
            assert main(["audiogram", "tables", str(sessions), "--kind", kind, "--out", str(tmp_path / "t.md")]) == 2


def test_simulation_leaves_bad_rows_out_and_refuses_what_it_cannot_do(stacks: Path, data: Path, tmp_path: Path) -> None:
    model, test = str(stacks / "rate_0.01_seed_3"), tmp_path / "test.csv"
    lines = (data / "test.csv").read_text().splitlines()
    test.write_text("\n".join([*lines, lines[1], lines[2].replace(lines[2].split(",")[2], "loud", 1)]) + "\n")
    simulate = ["audiogram", "simulate", "--manifest", str(test), "--out", str(tmp_path / "x"), "--model", model]
    assert main([*simulate, "--strategies", "largest_variance", "--samples", "6"]) == 2
    assert read_json(tmp_path / "x" / "simulation.json")["data"] == len(lines) - 1
    for words in (["--strategies", "luck"], ["--strategies", "single_best"], ["--first", "0"], ["--stop-at-db", "0"]):
        assert main([*simulate, *words]) == 2
    assert main([*simulate, model]) == 2
    assert main(["audiogram", "tables", str(tmp_path / "absent"), "--out", str(tmp_path / "t.md")]) == 2
