"""Records of training: how fast it is, by a clock that the test sets, and what a resumed run removes."""

import json
from pathlib import Path
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


@pytest.fixture
def resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A run of two devices on each of three machines, 5 of whose 120 s were spent before; it starts at 100 s."""
    now, saved = [100.0], []
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    config = SimpleNamespace(
        devices=2, num_nodes=3, max_minutes=2.0, validate_every_epochs=2, accumulate_batches=2,
        checkpoint_every_steps=5, max_epochs=9,
    )  # fmt: skip
    monkeypatch.setattr(callbacks, "on_stop", saved.append)
    state = callbacks.ExactResume(tmp_path, config)
    state.load_state_dict({"seconds": 5.0})
    task = SimpleNamespace(
        position=SimpleNamespace(epoch=1, attempts=10, batches_done=4, batches_per_epoch=8), monitor=None,
        dev_data=range(60), config=SimpleNamespace(data=SimpleNamespace(batch_size=10)), stop_wanted=False,
        stopping=False, validated_epoch=0,
    )  # fmt: skip
    trainer = SimpleNamespace(should_stop=False, save_checkpoint=saved.append)
    state.on_train_start(trainer, task)
    saved.clear()
    return SimpleNamespace(now=now, state=state, task=task, position=task.position, trainer=trainer, saved=saved)


def test_a_validation_over_half_of_the_budget_is_logged(resume: SimpleNamespace, capsys) -> None:
    for seconds, logged in ((60, 0), (61, 1)):
        resume.state.on_validation_start(resume.trainer, resume.task)
        resume.now[0] += seconds
        resume.state.on_validation_end(resume.trainer, resume.task)
        assert "".join(capsys.readouterr()).count("over half of trainer.max_minutes") == logged


def test_time_is_kept_for_a_validation(resume: SimpleNamespace) -> None:
    """Before the first one as long as so many examples take in training, afterwards as it took; at most 60 s."""
    state, task = resume.state, resume.task
    for seconds, due, wanted in ((102.0, 9.0, False), (140.0, 65.0, False), (169.0, 97.0, False), (192.0, 120.0, True)):
        resume.now[0] = seconds
        state.on_train_batch_end(resume.trainer, task, None, None, 0)
        assert (state.seconds, state.due(1), task.stop_wanted) == (seconds - 95, pytest.approx(due), wanted)
    state.on_validation_start(resume.trainer, task)
    resume.now[0] = 202.0
    state.on_validation_end(resume.trainer, task)
    assert state.state_dict() == {"seconds": 107.0, "validation_seconds": 10.0}
    assert (state.due(1), state.due(2)) == (117.0, 107.0)
    state.load_state_dict({"seconds": 1.0, "validation_seconds": 61.0})
    assert state.due(1) == 103.0 + 60.0
    # An epoch without a validation may take all of the time.
    task.stop_wanted, resume.position.epoch = False, 2
    for seconds, wanted in ((218.9, False), (219.0, True)):
        resume.now[0] = seconds
        state.on_train_batch_end(resume.trainer, task, None, None, 0)
        assert task.stop_wanted == wanted


@pytest.mark.parametrize(
    ("changes", "within", "at_end"),
    [
        ({"attempts": 15}, True, False), ({"attempts": 16}, False, False),
        ({"attempts": 15, "batches_done": 5}, False, False), ({}, False, False), ({"batches_done": 8}, False, False),
        ({"batches_done": 8, "attempts": 14}, False, False), ({"batches_done": 8, "attempts": 16}, False, True),
        ({"batches_done": 8, "validated_epoch": 1}, False, True), ({"batches_done": 8, "monitor": None}, False, True),
        ({"batches_done": 8, "epoch": 8}, False, True), ({"batches_done": 8, "epoch": 7}, False, False),
        ({"stopping": True}, True, False), ({"stopping": True, "batches_done": 8}, False, True),
    ],
)  # fmt: skip
def test_when_the_state_is_saved(resume: SimpleNamespace, changes: dict, within: bool, at_end: bool) -> None:
    """Every fifth step between windows of two batches; at the end of an epoch that was judged, or late."""
    resume.task.monitor = "score"
    for name, value in changes.items():
        setattr(resume.task if hasattr(resume.task, name) else resume.position, name, value)
    resume.state.on_train_batch_end(resume.trainer, resume.task, None, None, 0)
    assert len(resume.saved) == within
    resume.state.on_train_epoch_end(resume.trainer, resume.task)
    assert len(resume.saved) == within + at_end
    assert resume.trainer.should_stop == resume.task.stopping
    # It is not saved twice.
    resume.task.stopping = False
    resume.state.on_train_batch_end(resume.trainer, resume.task, None, None, 0)
    assert len(resume.saved) == within + at_end


@pytest.mark.parametrize(("spent", "stops"), [(119.9, False), (120.0, True)])
def test_a_budget_that_is_spent_ends_the_run_before_it_starts(resume: SimpleNamespace, spent: float, stops: bool):
    resume.state.load_state_dict({"seconds": spent})
    resume.state.on_train_start(resume.trainer, resume.task)
    assert resume.trainer.should_stop == stops
