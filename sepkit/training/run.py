"""`train` turns a configuration into a trained model, and can be resumed at any point."""

from __future__ import annotations

import copy
import logging
import re
import sys
import tempfile
import threading
import traceback
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sepkit import files
from sepkit.choices import from_dict, to_dict
from sepkit.config import TaskConfig, TrainerConfig
from sepkit.errors import UserError, exhausted, one_line
from sepkit.files import file_digest, file_text, read_yaml, write_text
from sepkit.models import load_checkpoint
from sepkit.models.runtime import has_bfloat16, has_bfloat16_recurrence
from sepkit.parallel import available_processes
from sepkit.registry import registered
from sepkit.training import separation as _default_task  # noqa: F401
from sepkit.training.callbacks import (
    LAST_IS_BEST,
    BestModel,
    DurableStates,
    ExactResume,
    MetricsLog,
    RateSchedule,
    resume_file,
)
from sepkit.training.task import Task, matmul_precision
from sepkit.training.task_definition import Position, is_first_process, say

# Settings that may differ between the command that began a run and the one that resumes it. Others would be ignored,
# since model and optimizer are restored, or would change the experiment.
CHANGEABLE = frozenset(
    {
        "trainer.max_epochs",
        "trainer.max_minutes",
        "trainer.halve_patience",
        "trainer.early_stop_patience",
        "trainer.validate_every_epochs",
        "trainer.compile",
        "trainer.gradient_checkpointing",
        "trainer.accelerator",
        "trainer.devices",
        "trainer.num_nodes",
        "trainer.checkpoint_every_steps",
        "trainer.max_bad_steps",
        "data.train",
        "data.dev",
        "data.batch_size",
        "data.workers",
    }
)

_DIGEST = re.compile(r"^# SHA-256 of data\.(train|dev) when training began: ([0-9a-f]{64})$", re.MULTILINE)


def train(config: TaskConfig, out: Path | str, *, limit_batches: int | None = None) -> Path:
    """Train as `config` says and return the folder of the best model (EXP/model); another call resumes.

    Writes into the experiment folder: `config.yaml`, `model` (best validation score), `last_model`, `resume` (state of
    the run), `metrics.jsonl`, `tensorboard`, and `bad_batches` if there were any.

    Args:
        config: the configuration of a task; its class must be registered (`sepkit.studies.import_task`).
        limit_batches: at most this many batches in an epoch and in a validation, for trials.

    Raises:
        TrainingDiverged: too many steps in a row had a non-finite loss or gradient.
    """
    out = Path(out)
    config.check()
    _check_device(config.trainer)
    state = resume_file(out)
    resuming = state.is_file()
    if resuming:
        _check_same_run(config, out)
    task = task_type(config)(config, out, resuming)
    _check_devices(config, task)
    _check_batch_norm(config.trainer, task.model)
    _check_precision(config.trainer, task.model)
    with locked(out):
        _fit(config, task, out, limit_batches, resuming)
    return out / "model"


def _fit(config: TaskConfig, task: Task, out: Path, limit_batches: int | None, resuming: bool) -> None:
    state = resume_file(out)
    if is_first_process() and state.is_file() != resuming:
        raise UserError(f"{out}: another process began to train in this folder; run the same command again to go on")
    if is_first_process():
        if resuming:
            warn_of_changed_manifests(config, out)
        write_config(config, out)
    say(_describe(config, task))
    if resuming:
        say(f"resuming from {state}")
    with _quiet_lightning(), _quiet_tensorboard(), _one_line_from_workers(), _products(config.trainer):
        trainer = _make_trainer(config, out, task, limit_batches)
        if config.trainer.compile:
            task.model.compile()
        trainer.fit(task, ckpt_path=str(state) if resuming else None, weights_only=True)


def task_type(config: TaskConfig) -> type[Task]:
    """Return the class that is registered for a configuration; raise UserError if there is none."""
    return registered(config)


def _uses_gpu(trainer: TrainerConfig) -> bool:
    return trainer.accelerator != "cpu" and (torch.cuda.is_available() or torch.backends.mps.is_available())


def _check_device(trainer: TrainerConfig) -> None:
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    if trainer.accelerator == "gpu" and not has_gpu:
        raise UserError("trainer.accelerator: found gpu, but torch sees none here; use cpu or auto")
    if trainer.precision == "16-mixed" and (trainer.accelerator == "cpu" or not has_gpu):
        raise UserError("trainer.precision: 16-mixed needs a GPU; on CPUs use bf16-mixed or 32-true")
    gpus = torch.cuda.device_count()
    if trainer.accelerator != "cpu" and 0 < gpus < trainer.devices:
        raise UserError(f"trainer.devices: found {trainer.devices}, but there are {gpus} GPUs here")


def _precision(trainer: TrainerConfig) -> Any:
    """Return the requested precision; for `auto`, the best one on this machine."""
    if trainer.precision != "auto":
        return trainer.precision
    if trainer.accelerator != "cpu" and torch.cuda.is_available():
        # Older GPUs emulate bfloat16, more slowly than they compute in float32.
        computes = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        computes = trainer.accelerator != "gpu" and has_bfloat16()
    return "bf16-mixed" if computes else "32-true"


def _check_precision(trainer: TrainerConfig, model: torch.nn.Module) -> None:
    on_cpu = trainer.accelerator == "cpu" or not torch.cuda.is_available()
    if trainer.precision != "bf16-mixed" or not on_cpu or has_bfloat16_recurrence():
        return
    # Other layers are emulated; recurrent ones fail in the middle of a step.
    if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        raise UserError(
            "trainer.precision: found bf16-mixed, but this processor has no recurrent layers in bfloat16; "
            "use auto or 32-true"
        )


def _check_devices(config: TaskConfig, task: Task) -> None:
    world = config.trainer.devices * config.trainer.num_nodes
    if len(task.train_data) < world:
        found = f"{len(task.train_data)} training {task.examples} for {world} devices"
        raise UserError(f"trainer.devices: found {found}, expected at least one of each")


def _check_batch_norm(trainer: TrainerConfig, model: torch.nn.Module) -> None:
    has_batch_norm = any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in model.modules())
    if trainer.devices * trainer.num_nodes == 1 or not has_batch_norm:
        return
    if not trainer.sync_batchnorm:
        raise UserError(
            "model: batch normalization over several devices would see each device's part of the batch alone; "
            "set trainer.sync_batchnorm to true, or use another norm"
        )
    if not torch.cuda.is_available():
        raise UserError("trainer.sync_batchnorm: torch synchronizes batch normalization on GPUs only; use another norm")


def _products(trainer: TrainerConfig) -> AbstractContextManager[None]:
    # On a CPU "high" may mean something else.
    on_gpu = trainer.accelerator != "cpu" and torch.cuda.is_available()
    return matmul_precision("high" if trainer.tf32 and on_gpu else "highest")


def _check_same_run(config: TaskConfig, out: Path) -> None:
    check_state(resume_file(out))
    file = out / "config.yaml"
    before, now = _flatten(to_dict(read_first_config(out))), _flatten(to_dict(config))
    changed = [key for key in now | before if before.get(key) != now.get(key)]
    for key in changed:
        if key not in CHANGEABLE:
            raise UserError(
                f"{file}: {key} was {before.get(key)} when this training began, now {now.get(key)}; resume with the "
                f"same value, or take a new --out (--init-from {out / 'last_model'} starts from its weights)"
            )
    _check_position(saved_position(resume_file(out)), config, out)


def _check_position(position: Position, config: TaskConfig, out: Path) -> None:
    """Check that a run can go on from a position."""
    begun, most = position.epoch + (position.batches_done > 0), config.trainer.max_epochs
    if begun > most:
        raise UserError(f"trainer.max_epochs: found {most}, but {out} has begun epoch {begun}; take {begun} or more")
    size = config.data.batch_size * config.trainer.devices * config.trainer.num_nodes
    if position.batches_done and position.batch_size not in (0, size):
        raise UserError(
            f"data.batch_size: found {size} on all devices together, but {out} stopped within an epoch of batches of "
            f"{position.batch_size}; resume with the same size and number of devices until the epoch ends"
        )


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """While the block runs, no other process of this machine trains in the folder; ranks of one run share it."""
    if not is_first_process():
        yield
        return
    from filelock import Timeout

    try:
        with files.locked(resume_file(out).with_name(".lock"), timeout=0):
            yield
    except Timeout as error:
        raise UserError(
            f"{out}: another process trains in this folder; wait until it ends, or give another --out"
        ) from error
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UserError(f"{out}: cannot be written to ({error.strerror}); give an output folder that can") from error


def write_config(config: TaskConfig, out: Path) -> None:
    """Write `config.yaml`; the digests of the manifests that the run began with stand in it as comments."""
    import yaml

    file = out / "config.yaml"
    began = _digests(file) if resume_file(out).is_file() else {}
    lines = [
        f"# SHA-256 of data.{name} when training began: {digest}\n"
        for name, digest in (_digests_now(config) | began).items()
    ]
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    write_text(file, text + "".join(lines))


def read_first_config(out: Path) -> TaskConfig:
    """Return the configuration that the run in a folder began with."""
    file = out / "config.yaml"
    remedy = f"get it back, or take a new --out (--init-from {out / 'last_model'} starts from its weights)"
    data = read_yaml(file, remedy)
    try:
        # What a later sepkit has added stands at its default in older runs.
        return from_dict(TaskConfig, data)
    except UserError as error:
        raise UserError(f"{file}: {error}; {remedy}") from error


def warn_of_changed_manifests(config: TaskConfig, out: Path) -> None:
    """Say if a manifest is not the one that the run began with: from here on epochs are others."""
    began = _digests(out / "config.yaml")
    for name, digest in _digests_now(config).items():
        if began.get(name, digest) != digest:
            say(
                f"warning: data.{name}: {getattr(config.data, name)} has other mixtures than when this training began; "
                "put the old one back for the same run, or take a new --out"
            )


def check_state(file: Path) -> None:
    """Check that a state of a run is whole, before it is loaded."""
    try:
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip()
        reason = f"{broken} in it is" if broken else ""
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
        reason = one_line(str(error))
    if reason:
        raise UserError(f"{file}: damaged ({reason}), expected the state of a run; remove it to begin anew")


def saved_position(file: Path) -> Position:
    """Return the position that a state of a run was saved at; the next epoch's beginning, if its epoch is complete."""
    position = Position(**torch.load(file, map_location="cpu", mmap=True, weights_only=True)["position"])
    position.enter_epoch()
    return position


def _digests_now(config: TaskConfig) -> dict[str, str]:
    paths = {name: getattr(config.data, name, None) for name in ("train", "dev")}
    return {name: file_digest(path) for name, path in paths.items() if path and Path(path).is_file()}


def _digests(file: Path) -> dict[str, str]:
    try:
        return dict(_DIGEST.findall(file_text(file)))
    except (OSError, ValueError):
        return {}


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    return {key: value for name, part in tree.items() for key, value in _flatten(part, f"{prefix}{name}.").items()}


def _make_trainer(config: TaskConfig, out: Path, task: Task, limit_batches: int | None) -> Any:
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import DDPStrategy

    options = config.trainer
    several = options.devices * options.num_nodes > 1
    resume = ExactResume(out, options)
    # Buffers are equal on all ranks by construction; broadcasting them would make ranks wait in validation.
    strategy = DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True) if several else "auto"
    return Trainer(
        default_root_dir=out,
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=strategy,
        # Requeueing is left to the recipe: the same command again resumes.
        plugins=[DurableStates(), *([SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else [])],
        precision=_precision(options),
        sync_batchnorm=options.sync_batchnorm,
        max_epochs=options.max_epochs,
        check_val_every_n_epoch=options.validate_every_epochs,
        limit_train_batches=limit_batches,
        limit_val_batches=0 if task.dev_data is None else limit_batches,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[RateSchedule(options, lambda: resume.seconds), MetricsLog(out), BestModel(out, options), resume],
    )


def _describe(config: TaskConfig, task: Task) -> str:
    trainer = config.trainer
    world = trainer.devices * trainer.num_nodes
    batch = config.data.batch_size * world * trainer.accumulate_batches
    parameters = sum(p.numel() for p in task.model.parameters())
    devices = f"{world} device{'s' * (world > 1)}"
    lines = [
        f"{parameters:,} parameters; {len(task.train_data)} training {task.examples} an epoch",
        f"effective batch {batch} = {task.describe_batch()} x {devices} x {trainer.accumulate_batches} accumulated;"
        f" precision {_precision(trainer)}",
    ]
    cores = available_processes()
    if not _uses_gpu(trainer) and trainer.devices > cores:
        lines.append(
            f"warning: {trainer.devices} devices are as many processes on {cores} CPU cores, which is slower than one; "
            "leave --devices out"
        )
    if task.dev_data is None:
        lines.append(f"no data.dev: {LAST_IS_BEST}")
    return "\n".join(lines)


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Hide Lightning's notices and tips; show its errors."""
    names = ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.utils\.data.*")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def _quiet_tensorboard() -> Iterator[None]:
    """Hide the traceback of TensorBoard's thread, a full disk for example: its next call raises the same here."""
    before = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not type(arguments.thread).__module__.startswith("tensorboard."):
            before(arguments)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


@contextmanager
def _one_line_from_workers() -> Iterator[None]:
    """Unwrap a user's mistake found by a data worker from that worker's traceback, and say why workers cannot go on."""
    try:
        yield
    except UserError as error:
        lines = re.findall(r"UserError: (.*)", str(error))
        raise UserError(lines[-1] if lines else str(error)) from None
    except RuntimeError as error:
        if (reason := _without_workers(error)) is None:
            raise
        # Half of a loader complains when it is deleted, which is here.
        before, sys.unraisablehook = sys.unraisablehook, lambda _: None
        for one in _chain(error):
            traceback.clear_frames(one.__traceback__)
        sys.unraisablehook = before
        raise reason from None


def _without_workers(error: BaseException) -> Exception | None:
    """Return what to raise for an error that data workers end of; None for another."""
    for one in _chain(error):
        if isinstance(one, OSError) and exhausted(one):
            return one
    if "DataLoader worker" in str(error):
        return UserError(
            "data.workers: a data worker ended without a word, for want of memory or of open files (`ulimit -n`, "
            "`ulimit -v`); take fewer workers, or raise the limit"
        )
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


STEPS = 2


def smoke(config: TaskConfig) -> str:
    """Try a configuration and return a line that says what passed.

    It runs two training steps, a validation, a save, a resume of the same again, and a load. Batches are cut to 2
    examples on one device; model, objective, optimizer and precision are the configuration's own. Without `data.train`
    a separator gets a small set of tones. Everything is written to a temporary folder.

    Raises:
        RuntimeError: the saved model does not work.
    """
    task = task_type(config)
    with tempfile.TemporaryDirectory(prefix="sepkit-smoke-") as folder:
        small = task.shrink(copy.deepcopy(config), Path(folder))
        small.data.workers = 0
        own = dict(max_minutes=None, devices=1, num_nodes=1, sync_batchnorm=False)
        limit = STEPS * small.trainer.accumulate_batches
        first = 1 if small.trainer.growth is None else 2
        for epochs in (first, first + 1):
            small.trainer = replace(small.trainer, max_epochs=epochs, **own)
            model = train(small, Path(folder, "exp"), limit_batches=limit)
        task.try_out(load_checkpoint(model, of=task.model_type))
    masker = getattr(config.model, "masker", None)
    name = config.name if masker is None else masker.name
    return f"passed: {STEPS} steps, a validation, a save, a resume and a load ({name})"
