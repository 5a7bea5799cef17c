"""Records of training: how fast it is, by a clock that the test sets, and what a resumed run removes."""

import json
from types import SimpleNamespace

import pytest
from torch.utils import tensorboard

from sepkit.training import callbacks


@pytest.mark.parametrize(("attempts", "purged"), [(0, None), (50, 51)])
def test_mixtures_are_counted_between_records_and_later_events_are_removed(tmp_path, monkeypatch, attempts, purged):
    now, purge_steps = [10.0], []

    def board(folder: str, purge_step: int | None) -> SimpleNamespace:
        purge_steps.append(purge_step)
        return SimpleNamespace(add_scalar=lambda *values: None, close=lambda: None)

    monkeypatch.setattr(tensorboard, "SummaryWriter", board)
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    counts = {"attempts": attempts, "batches": 0, "batches_done": 0, "batches_per_epoch": 400, "epoch": 1}
    position = SimpleNamespace(sums={"examples": 100.0}, **counts)
    task = SimpleNamespace(
        position=position, scheduled={"temperature": 2.0}, gradient_norm=None, examples="mixtures", recent=dict,
        means=lambda sums: {"loss": sums["loss"] / sums["examples"]}, monitor=None, validation={},
        epoch_means=dict, config=SimpleNamespace(trainer=SimpleNamespace(accumulate_batches=1)),
    )  # fmt: skip
    trainer = SimpleNamespace(is_global_zero=True, optimizers=[SimpleNamespace(param_groups=[{"lr": 0.5}])])
    log = callbacks.MetricsLog(tmp_path)
    log.on_train_start(trainer, task)
    assert purge_steps == [purged]
    steps = ((14.0, 100, 300.0, 900.0), (15.0, 101, 304.0, 901.0), (19.0, 150, 400.0, 1e3))
    for seconds, step, examples, loss in steps:
        now[0], position.attempts, position.sums = seconds, step, {"examples": examples, "loss": loss}
        log.on_train_batch_end(trainer, task, None, None, 0)
    log.teardown(trainer, task, "fit")
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first == {
        "kind": "step", "epoch": 2, "step": 100, "train_loss": 4.5, "temperature": 2.0, "learning_rate": 0.5,
        "mixtures_per_second": 50.0,
    }  # fmt: skip
    assert (second["step"], second["train_loss"], second["mixtures_per_second"]) == (150, 1.0, 20.0)
