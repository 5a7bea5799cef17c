"""Runs that cannot be meant are refused in one line that names the field, before anything is written."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sepkit import config as c
from sepkit.training import run
from sepkit.training.run import train
from sepkit.training.task_definition import Position
from tests.complaint import complaint
from tests.training.runs import with_data, with_model, with_objective, with_trainer

VALUES = {"trainer": {"learning_rate": 0.0, "seed": 2**63, "decay_epochs": [4, 2]}, "data": {"workers": -1}}
Change = Callable[[c.TrainConfig], c.TrainConfig]


def refused(config: c.TrainConfig, out: Path) -> str:
    message = complaint(lambda: train(config, out))
    assert not out.exists() or not list(out.rglob("*.safetensors"))
    return message


@pytest.mark.parametrize(
    ("section", "field", "value"), [(s, f, v) for s, values in VALUES.items() for f, v in values.items()]
)
def test_values_out_of_range(config: c.TrainConfig, tmp_path: Path, section: str, field: str, value: Any) -> None:
    config = replace(config, **{section: replace(getattr(config, section), **{field: value})})
    line = refused(config, tmp_path / "exp")
    assert line.startswith(f"{section}.{field}: found ") and ", expected" in line
    assert not (tmp_path / "exp").exists()


def growing(config: c.TrainConfig, **changes: Any) -> c.TrainConfig:
    growth = replace(c.GrowthConfig(epochs=[1, 2]), **changes)
    return with_objective(with_trainer(config, growth=growth, max_epochs=3), assignment=c.MCLConfig())


def assigning(config: c.TrainConfig, assignment: c.AssignmentConfig, **changes: Any) -> c.TrainConfig:
    return replace(config, objective=c.ObjectiveConfig(assignment=assignment, **changes))


RIGID = c.SepReformerConfig()
SPREAD = c.AnnealedMCLConfig(unit="spread")
BATCH_NORM = c.RecurrentConfig(hidden_size=6, norm="batch_norm")
SOFTMAX = c.DeterministicConfig(activation="softmax")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: growing(x, epochs=[]), "trainer.growth.epochs: found []"),
        (lambda x: growing(x, epochs=[2, 2]), "trainer.growth.epochs: found [2, 2]"),
        (lambda x: growing(x, epochs=[1, 3]), "trainer.growth.epochs: found 3"),
        (lambda x: growing(x, hypotheses=[4, 3]), "trainer.growth.hypotheses: found [4, 3]"),
        (lambda x: growing(x, hypotheses=[1, 3]), "a model never loses hypotheses"),
        (lambda x: growing(x, hypotheses=[3]), "trainer.growth.hypotheses: found [3]"),
        (lambda x: with_trainer(growing(x), devices=2), "trainer.growth: models grow on one device only"),
        (lambda x: with_model(growing(x), masker=RIGID), "trainer.growth: the masker SepReformerMasker cannot"),
        (lambda x: with_model(growing(x), masks=SOFTMAX), "trainer.growth: found model.masks.activation softmax"),
        (lambda x: with_objective(x, cost=c.MSEConfig(), assignment=SPREAD), "objective.assignment.unit"),
        (lambda x: assigning(x, c.AnnealedMCLConfig(temperature=c.ConstantConfig(-3.0))), "temperature.value: found"),
        (lambda x: assigning(x, c.RelaxedWTAConfig(epsilon=c.ConstantConfig(2.0))), "epsilon must be in [0, 1]"),
        (lambda x: assigning(x, c.SinkhornConfig(regularization=c.ConstantConfig(0.0))), "regularization must be"),
        (lambda x: with_model(x, hypotheses=1), "up to 2 sources, but the model makes 1 estimates"),
        (lambda x: with_trainer(with_model(assigning(x, c.MCLConfig()), hypotheses=1), monitor="pit"), "use mcl"),
        (lambda x: with_model(x, estimate_scales=True), "model.estimate_scales: objective.cost is neg_si_sdr"),
        (lambda x: with_data(x, train=None), "data.train: no manifest given"),
        (lambda x: with_data(x, train="nowhere.jsonl"), "nowhere.jsonl"),
        (lambda x: with_model(x, sample_rate=16000), "sample_rate is 8000 Hz, but the model works at 16000 Hz"),
        (lambda x: with_trainer(with_model(x, masker=BATCH_NORM), devices=2), "batch normalization over several"),
        (lambda x: with_trainer(x, accelerator="gpu"), "trainer.accelerator: found gpu"),
        (lambda x: with_trainer(x, precision="16-mixed"), "trainer.precision: 16-mixed needs a GPU"),
    ],
)
def test_what_does_not_go_together(config: c.TrainConfig, tmp_path: Path, change: Change, words: str) -> None:
    if torch.cuda.is_available() and "GPU" in words.upper():
        pytest.skip("wants a machine without CUDA")
    assert words in refused(change(config), tmp_path / "exp")


@pytest.mark.parametrize(
    "model",
    [
        {"filterbank": c.FreeFilterbankConfig(num_filters=10**5, kernel_size=10**5)},
        {"masker": c.RecurrentConfig(num_layers=90_000)},
        {"masker": c.RecurrentConfig(hidden_size=90_000)},
    ],
)
def test_models_too_large_for_any_machine(config: c.TrainConfig, tmp_path: Path, model: dict[str, Any]) -> None:
    """They are counted before they take memory."""
    line = refused(with_model(config, **model), tmp_path / "exp")
    assert line.startswith("model: ") and line.endswith("; make it smaller")


@pytest.mark.parametrize(
    ("options", "gpus", "words"),
    [
        ({}, 0, ""), ({"devices": 2}, 0, ""), ({"devices": 2}, 1, "trainer.devices: found 2, but there are 1 GPUs"),
        ({"devices": 2}, 2, ""), ({"devices": 2, "accelerator": "cpu"}, 1, ""),
        ({"accelerator": "gpu"}, 0, "trainer.accelerator: found gpu"), ({"accelerator": "gpu"}, 1, ""),
        ({"precision": "16-mixed"}, 0, "16-mixed needs a GPU"), ({"precision": "16-mixed"}, 1, ""),
        ({"precision": "16-mixed", "accelerator": "cpu"}, 1, "16-mixed needs a GPU"),
    ],
)  # fmt: skip
def test_devices_that_are_not_there(options: dict[str, Any], gpus: int, words: str, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    if not words:
        return run._check_device(c.TrainerConfig(**options))
    complaint(lambda: run._check_device(c.TrainerConfig(**options)), words)


MANY = c.TrainerConfig(
    max_epochs=3, devices=2, num_nodes=3, accumulate_batches=5, accelerator="cpu", precision="32-true"
)


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (Position(3), ""), (Position(2, 1, batch_size=12), ""), (Position(1, 2), ""),
        (Position(1, 0, batch_size=5), ""),
        (Position(3, 1), "found 3, but run has begun epoch 4; take 4 or more"), (Position(4), "has begun epoch 4"),
        (Position(1, 2, batch_size=5), "found 12 on all devices together, but run stopped .* batches of 5"),
    ],
)  # fmt: skip
def test_where_a_run_may_go_on(position: Position, words: str) -> None:
    config: Any = SimpleNamespace(trainer=MANY, data=SimpleNamespace(batch_size=2))
    if not words:
        return run._check_position(position, config, Path("run"))
    complaint(lambda: run._check_position(position, config, Path("run")), words)


@pytest.mark.parametrize(
    ("items", "devices", "layer", "words"),
    [
        (6, 2, torch.nn.Linear(1, 1), ""), (1, 1, torch.nn.BatchNorm1d(1), ""),
        (5, 2, torch.nn.Linear(1, 1), "found 5 training mixtures for 6 devices"),
        (6, 2, torch.nn.BatchNorm1d(1), "batch normalization over several devices"),
    ],
)  # fmt: skip
def test_models_and_data_of_several_devices(items: int, devices: int, layer: Any, words: str, monkeypatch) -> None:
    trainer = replace(MANY, devices=devices, num_nodes=2 * devices - 1)
    config: Any = SimpleNamespace(trainer=trainer, data=SimpleNamespace(batch_size=2))
    task: Any = SimpleNamespace(train_data=range(items), examples="mixtures", model=torch.nn.Sequential(layer))
    if words:
        complaint(lambda: run._check_model(config, task), words)
        return
    run._check_model(config, task)
    monkeypatch.setattr(run, "available_processes", lambda: 1)
    task.describe_batch, task.dev_data = lambda: "2 mixtures", None
    several, batch = ("6 devices", 60) if devices > 1 else ("1 device", 10)
    slower = ["warning: 2 devices are as many processes on 1 CPU cores, which is slower than one; leave --devices out"]
    assert run._describe(config, task).split("\n") == [
        f"2 parameters; {items} training mixtures an epoch",
        f"effective batch {batch} = 2 mixtures x {several} x 5 accumulated; precision 32-true",
        *slower * (devices > 1),
        "no data.dev: the last model counts as the best; no halving, no early stopping",
    ]
