"""Steps: what the gradient is, what a bad step leaves behind, precision, and the means that are recorded."""

import math
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor

from sepkit.config import ConvTasNetConfig, TrainConfig, TrainerConfig
from sepkit.data.dataset import EpochSampler, MixtureDataset, collate
from sepkit.models import build_model, load_checkpoint
from sepkit.objectives.costs import pairwise_neg_si_sdr
from sepkit.objectives.objective import Objective
from sepkit.training.run import train
from sepkit.training.separation import SeparationTask, signal_statistics
from sepkit.training.task_definition import TrainingDiverged
from sepkit.types import Batch, Losses, Separation
from tests.training.runs import assert_same_weights, epochs, plain, weights, with_data


def convolutional(config: TrainConfig) -> TrainConfig:
    """With a masker that every processor computes in bfloat16; recurrent layers need more."""
    masker = ConvTasNetConfig(bottleneck_channels=4, hidden_channels=6, skip_channels=4, blocks=2, repeats=1)
    return replace(config, model=replace(config.model, masker=masker))


def remember_gradients(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """The gradients that reach the optimizer, one mapping a step."""
    seen: list[dict[str, Tensor]] = []

    def remember(self: SeparationTask, optimizer: Any) -> None:
        seen.append({name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None})

    monkeypatch.setattr(SeparationTask, "on_before_optimizer_step", remember)
    return seen


def spoil(monkeypatch: pytest.MonkeyPatch, batches: set[int], value: float | None = math.nan) -> None:
    """Make the loss of these batches `value` in one utterance, in training; None: it stays finite, its gradient not."""
    evaluate = SeparationTask.evaluate_objective

    def spoiled(self: SeparationTask, batch: Batch, separation: Separation) -> Losses:
        result = evaluate(self, batch, separation)
        if self.model.training and self.position.batches in batches:
            if value is None:
                # The derivative of a square root at zero.
                result.loss = result.loss + (separation.estimates.sum() * 0).abs().sqrt()
            else:
                result.loss = torch.cat([result.loss[:-1], result.loss[-1:] * value])
        return result

    monkeypatch.setattr(SeparationTask, "evaluate_objective", spoiled)


def test_data_workers_get_no_model(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are started anew, as on Python 3.14, take some 250 tensors at most."""
    loaders: list[Any] = []
    make = SeparationTask._make_loader
    make_and_keep = lambda *arguments: loaders.append(make(*arguments)) or loaders[-1]  # noqa: E731
    monkeypatch.setattr(SeparationTask, "_make_loader", make_and_keep)
    train(plain(config), tmp_path, limit_batches=1)
    assert len(loaders) == 2
    for loader in loaders:
        assert len(pickle.dumps(loader.collate_fn)) < 200
        sent = pickle.loads(pickle.dumps(loader.dataset))
        assert len(sent) == len(loader.dataset)
        assert torch.equal(sent[1, 0].mixture, loader.dataset[1, 0].mixture)


# ------------------------------------------------------------------------------------------------------- the gradient


def test_first_gradient_is_that_of_the_mean_over_utterances(config, tmp_path, monkeypatch) -> None:
    config = plain(config)
    seen = remember_gradients(monkeypatch)
    train(config, tmp_path, limit_batches=1)
    data = MixtureDataset(config.data.train, segment_seconds=config.data.segment_seconds)
    batch = collate([data[key] for key in next(iter(EpochSampler(len(data), batch_size=2)))])
    torch.manual_seed(config.trainer.seed)
    model = build_model(config.model)
    model.set_signal_statistics(*signal_statistics(data))
    cost = pairwise_neg_si_sdr(model(batch.mixture).estimates, batch.sources)
    straight, crossed = cost[:, 0, 0] + cost[:, 1, 1], cost[:, 0, 1] + cost[:, 1, 0]
    (torch.minimum(straight, crossed) / 2).mean().backward()
    assert len(seen) == 1
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(seen[0][name], parameter.grad)


def test_accumulated_batches_are_one_large_batch(config, tmp_path, monkeypatch) -> None:
    """6 batches of 2 in windows of 4: one step on 8 utterances, one on the 4 left over."""
    seen = remember_gradients(monkeypatch)
    accumulated = with_data(plain(config, accumulate_batches=4, learning_rate=1e-9), batch_size=2)
    train(accumulated, tmp_path / "a", limit_batches=6)
    small = list(seen)
    seen.clear()
    train(with_data(plain(config, learning_rate=1e-9), batch_size=4), tmp_path / "b", limit_batches=3)
    assert len(small) == 2
    for name, gradient in small[0].items():
        torch.testing.assert_close(gradient, (seen[0][name] + seen[1][name]) / 2, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(small[1][name], seen[2][name], rtol=1e-4, atol=1e-5)


def test_gradient_is_clipped(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = remember_gradients(monkeypatch)
    train(plain(config, gradient_clip_norm=0.01), tmp_path, limit_batches=2)
    assert len(seen) == 2
    for gradients in seen:
        norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
        torch.testing.assert_close(norm, torch.tensor(0.01), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize(
    ("schedule_by", "expected"),
    [("step", [0.0, 0.25, 0.5, 0.5, 0.75, 1.0, 1.25, 1.5]), ("epoch", [0, 0, 0, 0, 1, 1, 1, 1])],
)
def test_schedules_advance_with_steps_taken_or_epochs(schedule_by, expected, config, tmp_path, monkeypatch) -> None:
    """A step that was skipped does not count."""
    config = replace(config, objective=replace(config.objective, schedule_by=schedule_by))
    times: list[float] = []
    monkeypatch.setattr(Objective, "set_progress", lambda self, t_epochs: times.append(t_epochs))
    spoil(monkeypatch, {2})
    train(plain(config, max_epochs=2), tmp_path, limit_batches=4)
    assert times == expected


# --------------------------------------------------------------------------------------------------------- bad steps


@pytest.mark.parametrize(
    ("value", "accumulate", "batches"), [(math.nan, 1, 3), (math.inf, 1, 3), (None, 1, 3), (math.nan, 2, 4)]
)
def test_a_bad_step_is_skipped(config, tmp_path, monkeypatch, capfd, value, accumulate, batches) -> None:
    """The weights after a bad last step, a window of one or two batches, are those of a run without it."""
    config = plain(config, accumulate_batches=accumulate)
    train(config, tmp_path / "short", limit_batches=2)
    spoil(monkeypatch, {2}, value)
    train(config, tmp_path / "bad", limit_batches=batches)
    assert_same_weights(tmp_path / "bad", tmp_path / "short")
    assert f"warning: step {batches // accumulate} is skipped" in capfd.readouterr().err
    if value is not None and accumulate == 1:
        assert epochs(tmp_path / "bad")[0]["train_loss"] == epochs(tmp_path / "short")[0]["train_loss"]


def test_divergence_ends_with_a_clear_line(config, tmp_path, monkeypatch) -> None:
    spoil(monkeypatch, {1, 3, 4, 5})
    with pytest.raises(TrainingDiverged, match=r"^3 steps in a row had a non-finite loss.*learning_rate"):
        train(plain(config, max_bad_steps=3), tmp_path)


# --------------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize(
    ("precision", "inside", "outside"),
    [
        ("32-true", torch.float32, torch.float32),
        ("64-true", torch.float64, torch.float64),
        ("bf16-mixed", torch.bfloat16, torch.float32),
    ],
)
def test_precision(config, tmp_path, monkeypatch, precision, inside, outside) -> None:
    """The model computes in the precision asked for; the cost never in less than float32."""
    dtypes: set[tuple[str, torch.dtype]] = set()
    evaluate = Objective.__call__

    def spy(self: Objective, batch: Batch, separation: Separation) -> Losses:
        dtypes.add(("cost", separation.estimates.dtype))
        dtypes.add(("product", (separation.estimates[0, :1] @ separation.estimates[0, :1].T).dtype))
        return evaluate(self, batch, separation)

    monkeypatch.setattr(Objective, "__call__", spy)
    convolution = torch.nn.Conv1d.forward

    def spy_on_model(self: torch.nn.Conv1d, x: Tensor) -> Tensor:
        y = convolution(self, x)
        dtypes.add(("model", y.dtype))
        return y

    monkeypatch.setattr(torch.nn.Conv1d, "forward", spy_on_model)
    train(convolutional(plain(config, precision=precision)), tmp_path, limit_batches=3)
    assert {dtype for what, dtype in dtypes if what == "model"} == {inside}
    assert {dtype for what, dtype in dtypes if what != "model"} == {outside}
    assert epochs(tmp_path)[0]["dev_si_sdr_db"] is not None
    assert all(p.dtype == torch.float32 for p in load_checkpoint(tmp_path / "model").parameters())


@pytest.mark.parametrize("initial_scale", [2.0**16, 2.0**120])
def test_gradient_scaler(config, tmp_path, monkeypatch, initial_scale) -> None:
    """Scaled gradients change nothing, and an overflow while the scaler looks for its scale is not a bad step.

    Lightning has float16 on GPUs only; here its plugin runs on the CPU, in bfloat16, whose products do not overflow.
    """
    trainer = lightning.pytorch.Trainer

    def with_scaler(**options: Any) -> Any:
        plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=initial_scale))
        autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16, cache_enabled=False)
        monkeypatch.setattr(plugin, "autocast_context_manager", autocast)
        return trainer(**(options | {"precision": None, "plugins": [plugin]}))

    config = convolutional(plain(config, precision="bf16-mixed", gradient_clip_norm=0.5, max_epochs=3))
    train(config, tmp_path / "plain")
    monkeypatch.setattr(lightning.pytorch, "Trainer", with_scaler)
    train(config, tmp_path / "scaled")
    state = torch.load(tmp_path / "scaled" / "resume" / "last.ckpt", weights_only=True)
    assert state["position"]["attempts"] == 21
    assert state["position"]["bad_in_a_row"] == 0
    if initial_scale == 2.0**16:
        assert state["position"]["steps"] == 21
        torch.testing.assert_close(weights(tmp_path / "scaled"), weights(tmp_path / "plain"), rtol=1e-4, atol=1e-6)
    else:
        assert 0 < state["position"]["steps"] < 21
        assert state["MixedPrecision"]["scale"] < initial_scale


# ---------------------------------------------------------------------------------------------- what is measured


def test_signal_statistics_are_those_of_the_training_mixtures(config: TrainConfig, tmp_path: Path) -> None:
    config = plain(config)
    train(config, tmp_path, limit_batches=1)
    data = MixtureDataset(config.data.train, segment_seconds=config.data.segment_seconds)
    samples = torch.cat([data[index].mixture for index in range(len(data))]).double()
    model = load_checkpoint(tmp_path / "model")
    assert model.signal_std.item() == pytest.approx(samples.std(correction=0).item(), rel=1e-6)
    assert model.signal_mean.item() == pytest.approx(samples.mean().item(), abs=1e-8)


def test_dropout_differs_between_steps_and_not_between_runs(config: TrainConfig, tmp_path: Path) -> None:
    """Latent and dropout noise follow from (seed, step, rank), whatever torch's generator did before."""
    torch.manual_seed(1)
    train(config, tmp_path / "a", limit_batches=2)
    torch.rand(17)
    train(config, tmp_path / "b", limit_batches=2)
    assert_same_weights(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("name", "kind", "own"),
    [
        ("adam", torch.optim.Adam, {"betas": (0.5, 0.6)}),
        ("adamw", torch.optim.AdamW, {"betas": (0.5, 0.6)}),
        ("sgd", torch.optim.SGD, {"momentum": 0.75}),
    ],
)
def test_the_optimizer_is_the_configured_one(name: Any, kind: type, own: dict[str, Any]) -> None:
    model = torch.nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    trainer = TrainerConfig(optimizer=name, learning_rate=0.5, weight_decay=0.25, momentum=0.75, betas=(0.5, 0.6))
    task: Any = SimpleNamespace(config=SimpleNamespace(trainer=trainer), model=model)
    optimizer = SeparationTask.configure_optimizers(task)
    assert type(optimizer) is kind and len(optimizer.param_groups[0]["params"]) == 1
    assert optimizer.param_groups[0].items() >= ({"lr": 0.5, "weight_decay": 0.25, "fused": True} | own).items()
