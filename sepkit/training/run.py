"""`train` turns a configuration into a trained model, and can be resumed at any point."""

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
from sepkit.training import callbacks
from sepkit.training import separation as _default_task  # noqa: F401
from sepkit.training.task import Task, matmul_precision
from sepkit.training.task_definition import Position, is_first_process, log

# Settings that may differ between the command that began a run and the one that resumes it. Others would be ignored,
# since model and optimizer are restored, or would change the experiment.
CHANGEABLE = {
    "trainer.max_epochs", "trainer.max_minutes", "trainer.halve_patience", "trainer.halve_from_epoch",
    "trainer.early_stop_patience", "trainer.validate_every_epochs", "trainer.compile", "trainer.devices",
    "trainer.gradient_checkpointing", "trainer.accelerator", "trainer.num_nodes", "trainer.checkpoint_every_steps",
    "trainer.max_bad_steps",
    "data.train", "data.dev", "data.batch_size", "data.workers",
}  # fmt: skip

_DIGEST = re.compile(r"^# SHA-256 of data\.(train|dev) when training began: ([0-9a-f]{64})$", re.MULTILINE)


def train(config: TaskConfig, out: Path | str, *, limit_batches: int | None = None) -> Path:
    """Train as `config` says and return the folder of the best model (EXP/model); another call resumes.

    Writes into the experiment folder: `config.yaml`, `model` (best validation score), `last_model`, `resume` (state of
    the run), `metrics.jsonl`, `tensorboard`.

    Args:
        config: Configuration of a task; its class must be registered (`sepkit.studies.import_task`).
        out: Experiment folder, made if absent.
        limit_batches: Largest number of batches in an epoch and in a validation, for trials; None: all.

    Raises:
        TrainingDiverged: too many steps in a row had a non-finite loss or gradient.
    """
    out, options = Path(out), config.trainer
    config.check()
    _check_device(options)
    state = callbacks.resume_file(out)
    resuming = state.is_file()
    if resuming:
        _check_same_run(config, out)
    task = registered(config)(config, out, resuming)
    _check_model(config, task)
    with locked(out):
        if is_first_process():
            if state.is_file() != resuming:
                raise UserError(f"{out}: another process began to train here; run the same command again to go on")
            _write_config(config, out, resuming)
        log(_describe(config, task))
        if resuming:
            log(f"resuming from {state}")
        with _quiet(), _one_line_from_workers(), _products(options):
            trainer = _make_trainer(config, out, task, limit_batches)
            if options.compile:
                task.model.compile()
            trainer.fit(task, ckpt_path=str(state) if resuming else None, weights_only=True)
    return out / "model"


def _check_device(trainer: TrainerConfig) -> None:
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    if trainer.accelerator == "gpu" and not has_gpu:
        raise UserError("trainer.accelerator: found gpu, but torch sees none here; use cpu or auto")
    if trainer.precision == "16-mixed" and (trainer.accelerator == "cpu" or not has_gpu):
        raise UserError("trainer.precision: 16-mixed needs a GPU; on CPUs use bf16-mixed or 32-true")
    gpus = torch.cuda.device_count()
    if trainer.accelerator != "cpu" and 0 < gpus < trainer.devices:
        raise UserError(f"trainer.devices: found {trainer.devices}, but there are {gpus} GPUs here")


def _on_cuda(trainer: TrainerConfig) -> bool:
    return trainer.accelerator != "cpu" and torch.cuda.is_available()


def _precision(trainer: TrainerConfig) -> Any:
    """Return the requested precision; for `auto`, the best one on this machine."""
    if trainer.precision != "auto":
        return trainer.precision
    if _on_cuda(trainer):
        # Older GPUs emulate bfloat16, more slowly than they compute in float32.
        computes = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        computes = trainer.accelerator != "gpu" and has_bfloat16()
    return "bf16-mixed" if computes else "32-true"


def _check_model(config: TaskConfig, task: Task) -> None:
    """Raise UserError if the model or the data do not fit the devices and the precision."""
    trainer, modules = config.trainer, list(task.model.modules())
    world = trainer.devices * trainer.num_nodes
    if len(task.train_data) < world:
        found = f"{len(task.train_data)} training {task.examples} for {world} devices"
        raise UserError(f"trainer.devices: found {found}, expected at least one of each")
    if world > 1 and any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in modules):
        raise UserError(
            "model: batch normalization over several devices would see each device's part of the batch alone; use "
            "another norm"
        )
    # Other layers are emulated; recurrent ones fail in the middle of a step.
    lacks_recurrence = not _on_cuda(trainer) and not has_bfloat16_recurrence()
    is_recurrent = any(isinstance(module, torch.nn.RNNBase) for module in modules)
    if trainer.precision == "bf16-mixed" and is_recurrent and lacks_recurrence:
        raise UserError(
            "trainer.precision: found bf16-mixed, but this processor has no recurrent layers in bfloat16; "
            "use auto or 32-true"
        )


def _products(trainer: TrainerConfig) -> AbstractContextManager[None]:
    # On a CPU "high" may mean something else.
    return matmul_precision("high" if trainer.tf32 and _on_cuda(trainer) else "highest")


def _check_same_run(config: TaskConfig, out: Path) -> None:
    """Raise UserError if the run in a folder cannot go on with a configuration."""
    file, state = out / "config.yaml", callbacks.resume_file(out)
    try:
        with zipfile.ZipFile(state) as archive:
            broken = archive.testzip()
        reason = f"{broken} in it is" if broken else ""
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError) as error:
        reason = one_line(str(error))
    if reason:
        raise UserError(f"{state}: damaged ({reason}), expected the state of a run; remove it to begin anew")
    remedy = f"get it back, or take a new --out (--init-from {out / 'last_model'} starts from its weights)"
    data = read_yaml(file, remedy)
    try:
        # Options added by a later sepkit have their defaults in older runs.
        first = from_dict(TaskConfig, data)
    except UserError as error:
        raise UserError(f"{file}: {error}; {remedy}") from error
    before, now = _flatten(to_dict(first)), _flatten(to_dict(config))
    for key in now | before:
        if before.get(key) != now.get(key) and key not in CHANGEABLE:
            raise UserError(
                f"{file}: {key} was {before.get(key)} when this training began, now {now.get(key)}; resume with the "
                f"same value, or take a new --out (--init-from {out / 'last_model'} starts from its weights)"
            )
    position = Position(**torch.load(state, map_location="cpu", mmap=True, weights_only=True)["position"])
    position.enter_epoch()
    _check_position(position, config, out)


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
        with files.locked(callbacks.resume_file(out).with_name(".lock"), timeout=0):
            yield
    except Timeout as error:
        raise UserError(f"{out}: another process trains here; wait until it ends, or give another --out") from error
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UserError(f"{out}: cannot be written to ({error.strerror}); give an output folder that can") from error


def _write_config(config: TaskConfig, out: Path, resuming: bool) -> None:
    """Write `config.yaml`, with the digests of the manifests that the run began with as comments.

    Warn of a manifest that has changed since then: from here on epochs are others.
    """
    import yaml

    file = out / "config.yaml"
    began = dict(_DIGEST.findall(file_text(file))) if resuming else {}
    paths = {name: getattr(config.data, name, None) for name in ("train", "dev")}
    now = {name: file_digest(path) for name, path in paths.items() if path and Path(path).is_file()}
    for name, digest in now.items():
        if began.get(name, digest) != digest:
            log(
                f"warning: data.{name}: {paths[name]} has other mixtures than when this training began; "
                "put the old one back for the same run, or take a new --out"
            )
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    lines = [f"# SHA-256 of data.{name} when training began: {digest}\n" for name, digest in (now | began).items()]
    write_text(file, text + "".join(lines))


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
    resume = callbacks.ExactResume(out, options)
    rates = callbacks.RateSchedule(options, resume.due)
    slurm = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
    # Buffers are equal on all ranks by construction; broadcasting them would make ranks wait in validation.
    strategy = DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True) if several else "auto"
    return Trainer(
        default_root_dir=out,
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=strategy,
        # Requeueing is left to the recipe: the same command again resumes.
        plugins=[callbacks.DurableStates(), *slurm],
        precision=_precision(options),
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
        callbacks=[rates, callbacks.MetricsLog(out), callbacks.BestModel(out, options), resume],
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
    uses_gpu = _on_cuda(trainer) or (trainer.accelerator != "cpu" and torch.backends.mps.is_available())
    if not uses_gpu and trainer.devices > cores:
        lines.append(
            f"warning: {trainer.devices} devices are as many processes on {cores} CPU cores, which is slower than one; "
            "leave --devices out"
        )
    if task.dev_data is None:
        lines.append(f"no data.dev: {callbacks.LAST_IS_BEST}")
    return "\n".join(lines)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide notices of Lightning, not its errors, and the traceback of TensorBoard's thread, on a full disk for example:
    its next call raises the same here."""
    names = ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    loggers = [logging.getLogger(name) for name in names]
    levels, excepthook = [logger.level for logger in loggers], threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not type(arguments.thread).__module__.startswith("tensorboard."):
            excepthook(arguments)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.utils\.data.*")
        try:
            threading.excepthook = hook
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            threading.excepthook = excepthook
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def _one_line_from_workers() -> Iterator[None]:
    """Unwrap a user's mistake found by a data worker from that worker's traceback, and say why workers cannot go on."""
    try:
        yield
    except UserError as error:
        lines = re.findall(r"UserError: (.*)", str(error))
        raise UserError(lines[-1] if lines else str(error)) from None
    except RuntimeError as error:
        causes = list(_chain(error))
        reason = next((cause for cause in causes if isinstance(cause, OSError) and exhausted(cause)), None)
        if reason is None and "DataLoader worker" not in str(error):
            raise
        # Half of a loader complains when it is deleted, which is here.
        before, sys.unraisablehook = sys.unraisablehook, lambda _: None
        for cause in causes:
            traceback.clear_frames(cause.__traceback__)
        sys.unraisablehook = before
        raise reason or UserError(
            "data.workers: a data worker ended without a word, for want of memory or of open files (`ulimit -n`, "
            "`ulimit -v`); take fewer workers, or raise the limit"
        ) from None


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
    task = registered(config)
    with tempfile.TemporaryDirectory(prefix="sepkit-smoke-") as folder:
        small = task.shrink(copy.deepcopy(config), Path(folder))
        small.data.workers = 0
        first = 1 if small.trainer.growth is None else 2
        for epochs in (first, first + 1):
            small.trainer = replace(small.trainer, max_epochs=epochs, max_minutes=None, devices=1, num_nodes=1)
            model = train(small, Path(folder, "exp"), limit_batches=STEPS * small.trainer.accumulate_batches)
        task.try_out(load_checkpoint(model, of=task.model_type))
    masker = getattr(config.model, "masker", None)
    name = config.name if masker is None else masker.name
    return f"passed: {STEPS} steps, a validation, a save, a resume and a load ({name})"
