"""Callbacks around the steps: resumable state, best and last models, halving, early stopping, records."""

import io
import json
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback, Trainer
from torch.optim import Optimizer
from tqdm import tqdm

from sepkit.config import TrainerConfig
from sepkit.files import atomic_output, file_text, parse_json, write_text
from sepkit.interrupts import on_stop
from sepkit.models import save_model
from sepkit.models.storage.folders import read_description
from sepkit.owned import claim
from sepkit.training.task import Task
from sepkit.training.task_definition import Monitor, log

LAST_IS_BEST = "the last model counts as the best; no halving, no early stopping"
"""Said where there is nothing to judge models by."""

SHOW_EVERY_BATCHES = 10
RECORD_EVERY_STEPS = 50


def resume_file(out: Path) -> Path:
    """Return where the state of a run is kept."""
    return out / "resume" / "last.ckpt"


class BestModel(Callback):
    """Keep the best and the last model, halve the learning rate on plateaus, and stop early.

    Every decision follows from the scores alone, in order, so a resumed run makes the same ones. An epoch that was not
    validated is not judged. Scores of another stage, such as a smaller number of hypotheses, do not count: the best
    model is one of the last stage.
    """

    def __init__(self, out: Path, config: TrainerConfig) -> None:
        self.out = out
        self.config = config
        self.best_score: float | None = None
        self.epochs_since_best = 0
        self.epochs_since_change = 0
        self.stage: int | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the best score so far, and how long ago it was."""
        names = ("best_score", "epochs_since_best", "epochs_since_change", "stage")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score, and how long ago it was."""
        vars(self).update(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Stop again if the run had stopped early."""
        if self._is_over(pl_module):
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Compare the epoch with the best one, and save the models."""
        task = pl_module
        if task.monitor is not None and task.validated_epoch != task.position.epoch:
            # An epoch that was not validated is kept if it is the last one; without any validation it is the best, too.
            if (task.position.epoch + 1 >= self.config.max_epochs or task.stopping) and trainer.is_global_zero:
                self._save(task, is_best=not (self.out / "model").exists())
            return
        if self.stage not in (None, task.stage):
            self.best_score, self.epochs_since_best, self.epochs_since_change = None, 0, 0
        self.stage = task.stage
        score = None if task.monitor is None else _score(task, task.monitor)
        unknown = score is not None and math.isnan(score) and self.best_score is None
        info: dict[str, Any] = dict(task.validation)
        if task.monitor is not None:
            info |= {"monitor": task.monitor.name, "score": score}
        if trainer.is_global_zero:
            self._save(task, score is None or unknown or self._is_best(score), **info)
        if unknown and task.monitor is not None:
            log(f"warning: data.dev: nothing in it has a {task.monitor.name}, as silence has none; {LAST_IS_BEST}")
        if score is None or unknown:
            return
        if not math.isnan(score) and (self.best_score is None or score > self.best_score):
            self.best_score, self.epochs_since_best, self.epochs_since_change = score, 0, 0
            return
        self.epochs_since_best += 1
        self.epochs_since_change += task.position.epoch >= self.config.halve_from_epoch
        decays = self.config.decay_share or self.config.decay_epochs
        if self.epochs_since_change >= self.config.halve_patience and not decays:
            self.epochs_since_change = 0
            halve(trainer.optimizers[0])
            log(f"no better score in {self.config.halve_patience} validations: learning rate halved")
        if self._is_over(task):
            trainer.should_stop = True
            log(f"no better score in {self.epochs_since_best} validations: stopping (best {self.best_score:.2f})")

    def _save(self, task: Task, is_best: bool, **info: Any) -> None:
        for name in ("last_model", *["model"] * is_best):
            head = {"epoch": task.position.epoch + 1, "step": task.position.steps}
            save_model(task.kept_model, self.out / name, head | task.scheduled | info)

    def _is_over(self, task: Task) -> bool:
        if task.more_stages or self.stage not in (None, task.stage):
            return False
        return 0 < self.config.early_stop_patience <= self.epochs_since_best

    def _is_best(self, score: float) -> bool:
        if self.best_score is None:
            return True
        # A resumed run repeats the end of its last epoch; the model saved there may be better than the restored score.
        return score >= read_description(self.out / "model")["info"].get("score", -math.inf)


class ExactResume(Callback):
    """Save the state that exact resume needs, every N steps, at the end of epochs, and when asked to stop.

    Saved states lie between steps. One that would lie at the end of an epoch waits until the epoch has been judged.
    """

    def __init__(self, out: Path, config: TrainerConfig) -> None:
        self.file = resume_file(out)
        self.config = config
        self.stopped_by: signal.Signals | None = None
        self._seconds_before = 0.0
        self._started = self._validation_began = time.monotonic()
        self._validation_seconds: float | None = None
        self._last_attempt = self._examples = self._dev_examples = 0

    @property
    def seconds(self) -> float:
        """Time spent in training, including earlier runs."""
        return self._seconds_before + time.monotonic() - self._started

    def due(self, epoch: int) -> float:
        """Return the time spent, and what is kept for a validation after this epoch, seconds.

        Kept is as long as the last validation took, or else as long as training takes for as many examples; at most
        half of the budget.
        """
        if (epoch + 1) % self.config.validate_every_epochs:
            return self.seconds
        validation = self._validation_seconds
        if validation is None:
            validation = self._dev_examples * (time.monotonic() - self._started) / max(1, self._examples)
        return self.seconds + min(validation, self._budget_seconds / 2)

    def state_dict(self) -> dict[str, Any]:
        """Return the time spent, and that of a validation."""
        return {"seconds": self.seconds, "validation_seconds": self._validation_seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting from the saved time."""
        self._seconds_before = state_dict["seconds"]
        self._validation_seconds = state_dict.get("validation_seconds")

    def on_train_start(self, trainer: Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Handle signals, from here on without losing a step."""
        self._started = time.monotonic()
        self._dev_examples = len(pl_module.dev_data or ())
        self._last_attempt = pl_module.position.attempts
        if self._seconds_before >= self._budget_seconds:
            trainer.should_stop = True
        on_stop(lambda number: self._on_signal(number, pl_module))

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if a state is due, and stop if the ranks agreed to."""
        self._examples += self.config.devices * self.config.num_nodes * pl_module.config.data.batch_size
        position = pl_module.position
        if self.due(position.epoch) >= self._budget_seconds:
            pl_module.stop_wanted = True
        between_steps = position.batches_done % self.config.accumulate_batches == 0
        if position.batches_done >= position.batches_per_epoch or not between_steps:
            return
        due = position.attempts % self.config.checkpoint_every_steps == 0 and position.attempts != self._last_attempt
        if due or pl_module.stopping:
            self._save(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Note when a validation begins."""
        self._validation_began = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Note how long it took."""
        self._validation_seconds = time.monotonic() - self._validation_began
        if self._validation_seconds > self._budget_seconds / 2:
            took = f"a validation took {self._validation_seconds:.0f} s"
            log(f"{took}, over half of trainer.max_minutes: use fewer mixtures")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Save if the epoch was judged or a state is due; an epoch that was cut short is already saved."""
        position = pl_module.position
        if position.batches_done < position.batches_per_epoch:
            return
        every = self.config.checkpoint_every_steps
        judged = pl_module.monitor is None or pl_module.validated_epoch == position.epoch
        last = position.epoch + 1 >= self.config.max_epochs
        due = position.attempts // every > self._last_attempt // every
        if judged or last or due or pl_module.stopping:
            self._save(trainer, pl_module)

    @property
    def _budget_seconds(self) -> float:
        return math.inf if self.config.max_minutes is None else 60 * self.config.max_minutes

    def _on_signal(self, number: int, task: Task) -> None:
        self.stopped_by = signal.Signals(number)
        task.stop_wanted = True

    def _save(self, trainer: Trainer, task: Task) -> None:
        """Save the state, and stop if the ranks agreed to."""
        self._last_attempt = task.position.attempts
        trainer.save_checkpoint(self.file)
        if task.stopping and self.stopped_by is not None:
            log(f"{self.stopped_by.name}: state saved; the same command again continues")
            raise SystemExit(128 + self.stopped_by)
        trainer.should_stop |= task.stopping


class DurableStates(TorchCheckpointIO):
    """Writes states beside their final name, as a whole and onto the disk, without the system's temporary folder."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a state, so that it is whole even after a power cut."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        with atomic_output(path, durable=True) as temporary:
            temporary.write_bytes(buffer.getbuffer())


class MetricsLog(Callback):
    """Write EXP/metrics.jsonl and TensorBoard's events, and show progress.

    Records are of two kinds: "step", every 50 steps, and "epoch". A resumed run first removes the records of steps that
    it will repeat.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self._bar: tqdm[Any] | None = None
        self._board: Any = None
        self._since: dict[str, float] = {}
        self._epoch_began = self._window_began = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Open the records."""
        if not trainer.is_global_zero:
            return
        attempts = pl_module.position.attempts
        self._forget_after(attempts)
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(self.out / "tensorboard"), purge_step=attempts + 1 if attempts else None)
        self._epoch_began = self._window_began = time.monotonic()
        self._since = dict(pl_module.position.sums)
        self._open_bar(pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Start the epoch's bar."""
        self._epoch_began = time.monotonic()
        self._since = {}
        if trainer.is_global_zero:
            self._open_bar(pl_module)

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show the step's progress, and record it every 50 steps."""
        if not trainer.is_global_zero:
            return
        task = pl_module
        position, accumulate = task.position, task.config.trainer.accumulate_batches
        if self._bar is not None:
            self._bar.update()
            if not self._bar.disable and position.batches % SHOW_EVERY_BATCHES == 0:
                self._bar.set_postfix_str(self._describe(task))
        if position.batches_done % accumulate == 0 and position.attempts % RECORD_EVERY_STEPS == 0:
            self._record_step(trainer, task)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Record the epoch and print its line."""
        if not trainer.is_global_zero:
            return
        task = pl_module
        seconds = time.monotonic() - self._epoch_began
        means = {f"train_{name}": value for name, value in task.epoch_means().items()} | task.scheduled
        validation = task.validation if task.validated_epoch == task.position.epoch else {}
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        if self._bar is not None:
            self._bar.close()
        self._write(task, "epoch", means | validation | {"learning_rate": rate, "seconds": seconds})
        line = f"epoch {task.position.epoch + 1}: {seconds:.0f} s, train loss {means.get('train_loss', math.nan):.3f}"
        line += "".join(f", {name} {value:.3g}" for name, value in task.scheduled.items())
        scores = task.describe(validation) if validation else ""
        log(f"{line}; {scores}" if scores else line)
        for line in task.after_epoch(task.epoch_means()):
            log(f"warning: {line}")

    def teardown(self, trainer: Trainer, pl_module: Task, stage: str) -> None:  # type: ignore[override]
        """Close bar and board, also after a failure."""
        if self._bar is not None:
            self._bar.close()
        if self._board is not None:
            self._board.close()

    def _open_bar(self, task: Task) -> None:
        position = task.position
        if self._bar is not None:
            self._bar.close()
        self._bar = tqdm(
            total=position.batches_per_epoch,
            initial=position.batches_done,
            desc=f"epoch {position.epoch + 1}",
            unit="batch",
            leave=False,
            disable=None,
        )

    def _describe(self, task: Task) -> str:
        shown = {"loss": task.epoch_means().get("loss", math.nan)} | task.recent()
        if task.monitor is not None and task.monitor.name in task.validation:
            shown[task.monitor.name] = task.validation[task.monitor.name]
        return ", ".join(f"{name} {value:.3f}" for name, value in shown.items())

    def _record_step(self, trainer: Trainer, task: Task) -> None:
        now, sums = time.monotonic(), task.position.sums
        new = {name: value - self._since.get(name, 0.0) for name, value in sums.items()}
        examples = new.get("examples", 0.0)
        values = {f"train_{name}": value for name, value in task.means(new).items()} | task.scheduled
        values |= {f"train_{name}": value for name, value in task.recent().items()}
        if task.gradient_norm is not None:
            values["gradient_norm"] = task.gradient_norm.item()
        values["learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
        values[f"{task.examples}_per_second"] = examples / max(now - self._window_began, 1e-9)
        self._since, self._window_began = dict(sums), now
        self._write(task, "step", values)

    def _write(self, task: Task, kind: str, values: dict[str, float]) -> None:
        position = task.position
        head = {"kind": kind, "epoch": position.epoch + 1, "step": position.attempts}
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        claim(self.out / "metrics.jsonl")
        with (self.out / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(head | plain) + "\n")
        for name, value in values.items():
            self._board.add_scalar(f"{kind}/{name}", value, position.attempts)

    def _forget_after(self, step: int) -> None:
        """Drop the records of steps that will be repeated, and a half-written last line."""
        file = self.out / "metrics.jsonl"
        if not file.exists():
            return
        lines = file_text(file, errors="replace").splitlines()
        write_text(file, "".join(line + "\n" for line in lines if _step_of(line) <= step))


def _step_of(line: str) -> float:
    """Return the step of a record; infinity for a line that is none."""
    try:
        step = parse_json(line)["step"]
    except (ValueError, TypeError, KeyError):
        return math.inf
    return step if isinstance(step, int | float) else math.inf


def _score(task: Task, monitor: Monitor) -> float:
    """Return the monitored score, negated if smaller is better; NaN if nothing could be scored."""
    score = task.validation.get(monitor.name, math.nan)
    return score if monitor.larger_is_better else -score


def rate_factor(config: TrainerConfig, steps: int, progress: float, epoch: int = 0) -> float:
    """Return the factor of the learning rate.

        min(1, (steps + 1) / warmup_steps) * (1 - (1 - final_rate_share) * share of the decay that has passed)
            * decay_factor ** number of decay_epochs that have passed

    The decay is a line over the last `decay_share` of the budget.

    Args:
        steps: number of steps before this one.
        progress: share of the budget that is used up.
        epoch: number of epochs before this one.
    """
    warm = min(1.0, (steps + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    for step in config.decay_epochs:
        if epoch >= step:
            warm *= config.decay_factor
    if not config.decay_share:
        return warm
    passed = max(0.0, min(1.0, 1 - (1 - progress) / config.decay_share))
    return warm * (1 - (1 - config.final_rate_share) * passed)


class RateSchedule(Callback):
    """Set the learning rate before every step.

    The budget is used up when `trainer.max_minutes` or `trainer.max_epochs` is, whichever comes first. A decay by time
    differs between runs; one by epochs does not.

    Args:
        seconds: returns the time spent, earlier runs and a validation after this epoch included.
    """

    def __init__(self, config: TrainerConfig, seconds: Callable[[int], float]) -> None:
        self.config = config
        self.seconds = seconds

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        """Set the rate for the step that this batch belongs to."""
        config, position = self.config, pl_module.position
        if not (config.warmup_steps or config.decay_share or config.decay_epochs):
            return
        progress = (position.epoch + position.batches_done / position.batches_per_epoch) / config.max_epochs
        if config.max_minutes is not None:
            progress = max(progress, self.seconds(position.epoch) / (60 * config.max_minutes))
            if trainer.world_size > 1:
                # Clocks differ between ranks, and different rates would lead to different weights.
                progress = trainer.strategy.broadcast(progress)
        set_factor(trainer.optimizers[0], rate_factor(config, position.steps, progress, position.epoch))


def set_factor(optimizer: Optimizer, factor: float) -> None:
    """Set the learning rates to a factor times their value after halvings on plateaus.

    Args:
        optimizer: its groups keep the rate after halvings as "plateau_lr".
    """
    for group in optimizer.param_groups:
        group["lr"] = factor * group.setdefault("plateau_lr", group["lr"])


def halve(optimizer: Optimizer) -> None:
    """Halve the learning rates permanently."""
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
        if "plateau_lr" in group:
            group["plateau_lr"] *= 0.5
