"""A run with any history (kills, full disks, requests to stop, settings that change) is the run without one."""

import errno
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st

from sepkit.config import TrainConfig
from sepkit.errors import UserError
from sepkit.models import load_checkpoint
from sepkit.training.run import train
from tests.disturbed import Disk
from tests.training.runs import BATCHES, assert_same_weights, run_process, train_interrupted, with_trainer

MOST_EPOCHS = 3
WRITES = 90
"""About as many writes, syncs and renames as a training has."""


def _train(config: TrainConfig, out: Path) -> None:
    try:
        train(config, out)
    except UserError:
        os._exit(2)
    except OSError:
        os._exit(1)


def _train_on_a_disk(config: TrainConfig, out: Path, n: int, number: int) -> None:
    Disk(pytest.MonkeyPatch(), out, n, number)
    _train(config, out)


class Histories(stateful.RuleBasedStateMachine):
    """Trainings in one folder, each in a process of its own.

    The class attributes are set by the test: `config`, `reference(epochs)` which returns the folder of a run that
    nothing disturbed.
    """

    config: TrainConfig
    reference: Callable[[int], Path]
    counts: dict[str, int]

    @stateful.initialize(every=st.integers(1, 4))
    def begin(self, every: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="sepkit-histories-"))
        self.out = self.home / "exp"
        self.epochs = 1
        self.now = with_trainer(self.config, max_epochs=1, checkpoint_every_steps=every)

    def teardown(self) -> None:
        if hasattr(self, "home"):
            self.finish()
            shutil.rmtree(self.home)

    def _run(self, function: Callable[..., None], *arguments: Any) -> int | None:
        type(self).counts[function.__name__] = type(self).counts.get(function.__name__, 0) + 1
        return run_process(function, self.now, self.out, *arguments)

    @stateful.rule()
    def finish(self) -> None:
        assert self._run(_train) == 0
        assert_same_weights(self.out, type(self).reference(self.epochs), "model", "last_model")

    @stateful.rule(
        at_batch=st.integers(0, MOST_EPOCHS * BATCHES),
        number=st.sampled_from([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]),
    )
    def signal_at_a_batch(self, at_batch: int, number: signal.Signals) -> None:
        code = self._run(train_interrupted, at_batch, number, _train)
        assert code in (0, -signal.SIGKILL if number == signal.SIGKILL else 128 + number)

    @stateful.rule(n=st.integers(1, WRITES), number=st.sampled_from([0, errno.ENOSPC, errno.EIO]))
    def failing_disk(self, n: int, number: int) -> None:
        assert self._run(_train_on_a_disk, n, number) in ((0, -signal.SIGKILL) if number == 0 else (0, 1, 2))

    @stateful.precondition(lambda self: self.epochs < MOST_EPOCHS)
    @stateful.rule()
    def more_epochs(self) -> None:
        self.epochs += 1
        self.now = with_trainer(self.now, max_epochs=self.epochs)

    @stateful.rule(every=st.integers(1, 9))
    def save_at_other_steps(self, every: int) -> None:
        self.now = with_trainer(self.now, checkpoint_every_steps=every)

    @stateful.rule(rate=st.sampled_from([0.5, 1e-5]))
    def another_learning_rate_is_refused(self, rate: float) -> None:
        if not (self.out / "resume" / "last.ckpt").is_file():
            return
        before = _contents(self.out)
        with pytest.raises(UserError, match=r"config\.yaml: trainer\.learning_rate was 0\.001"):
            train(with_trainer(self.now, learning_rate=rate), self.out)
        assert _contents(self.out) == before

    @stateful.invariant()
    def what_stands_is_whole(self) -> None:
        for name in ("model", "last_model"):
            # A kill during the first save leaves weights without their description, which nobody takes for a model.
            if hasattr(self, "out") and (self.out / name / "model.yaml").is_file():
                load_checkpoint(self.out / name)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_any_history(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("references")

    def reference(epochs: int) -> Path:
        out = home / str(epochs)
        if not (out / "model").exists():
            train(with_trainer(config, max_epochs=epochs), out)
        return out

    class Here(Histories):
        pass

    Here.config, Here.counts = config, {}
    Here.reference = staticmethod(reference)
    quiet = {"suppress_health_check": list(HealthCheck), "print_blob": False, "deadline": None}
    once = settings(max_examples=25, stateful_step_count=8, derandomize=True, **quiet)
    stateful.run_state_machine_as_test(Here, settings=once)
    print(Here.counts)
    assert min(Here.counts.get(name, 0) for name in ("_train", "train_interrupted", "_train_on_a_disk")) >= 10
