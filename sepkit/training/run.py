"""`train`: from a configuration to a trained model, resumable at any point."""

from __future__ import annotations

import logging
import math
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

from sepkit.annealing.free_hypotheses import spread_db
from sepkit.config import (
    AnnealedMCLConfig,
    CauchyConfig,
    NegSISDRConfig,
    PITConfig,
    SinkhornConfig,
    TrainConfig,
    TrainerConfig,
    from_dict,
    to_dict,
)
from sepkit.data.dataset import MixtureDataset
from sepkit.errors import UserError
from sepkit.files import write_yaml
from sepkit.models import EncoderMaskerDecoder, build_model, load_weights_into
from sepkit.registry import build
from sepkit.training.callbacks import MONITORS, Keeper, Recorder, Resume, resume_file, say
from sepkit.training.task import SeparationTask, matmul_precision

__all__ = ["is_first_process", "signal_statistics", "train"]

STATISTICS_MIXTURES = 256

# What may differ between the command that began a run and the one that resumes it. All else would be ignored (the
# optimiser's state and the model are restored) or would make another experiment of it.
CHANGEABLE = frozenset(
    {
        "trainer.max_epochs",
        "trainer.max_minutes",
        "trainer.halve_patience",
        "trainer.early_stop_patience",
        "trainer.validate_every_epochs",
        "trainer.keep_every_epochs",
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


def train(config: TrainConfig, out: Path | str, *, limit_batches: int | None = None) -> Path:
    """Folder of the best model (EXP/model), trained as `config` says; run again, it goes on where it stopped.

    Writes into the experiment folder: `config.yaml`, `model` (best validation score), `last_model`, `resume` (state of
    the run), `metrics.jsonl`, `tensorboard`, and `bad_batches` if there were any.

    Args:
        config: everything.
        out: folder of the experiment (EXP); made if absent.
        limit_batches: at most this many batches in an epoch and in a validation, to try things out.

    Raises:
        UserError: a configuration, manifest or folder that training cannot start with, or a configuration other than
            the one that the run in `out` began with.
        TrainingDiverged: too many steps in a row had a non-finite loss or gradient.
    """
    out = Path(out)
    _check(config)
    state = resume_file(out)
    resuming = state.is_file()
    if resuming:
        _check_same_run(config, out)
    task = _make_task(config, out, fresh=not resuming)
    if is_first_process():
        write_yaml(out / "config.yaml", to_dict(config))
        state.parent.mkdir(parents=True, exist_ok=True)
        say(_describe(config, task))
        if resuming:
            say(f"resuming from {state}")
    with _quiet_lightning(), _one_line_from_workers(), _products(config.trainer):
        trainer = _make_trainer(config, out, task, limit_batches)
        if config.trainer.compile:
            task.model.compile()
        trainer.fit(task, ckpt_path=str(state) if resuming else None, weights_only=True)
    return out / "model"


def signal_statistics(data: MixtureDataset, count: int = STATISTICS_MIXTURES) -> tuple[float, float]:
    """Mean and deviation of the samples of (up to `count`) training mixtures, spread over the whole set.

    Raises:
        UserError: the mixtures are silent.
    """
    samples, total, squares = 0, 0.0, 0.0
    for index in _spread_out(len(data), count):
        mixture = data[0, index].mixture.double()
        samples += mixture.numel()
        total += mixture.sum().item()
        squares += mixture.square().sum().item()
    mean = total / samples
    std = math.sqrt(max(0.0, squares / samples - mean * mean))
    if std < 1e-8:
        raise UserError(f"{data.manifest.path}: its mixtures are silent; training needs recordings that are not")
    return mean, std


# ------------------------------------------------------------------------------------------------------------- checks


def _check(config: TrainConfig) -> None:
    least = {
        "data.batch_size": 1,
        "data.workers": 0,
        "trainer.max_epochs": 1,
        "trainer.gradient_clip_norm": 0,
        "trainer.halve_patience": 1,
        "trainer.early_stop_patience": 0,
        "trainer.validate_every_epochs": 1,
        "trainer.keep_every_epochs": 0,
        "trainer.devices": 1,
        "trainer.num_nodes": 1,
        "trainer.accumulate_batches": 1,
        "trainer.checkpoint_every_steps": 1,
        "trainer.max_bad_steps": 1,
    }
    for key, bound in least.items():
        section, name = key.split(".")
        value = getattr(getattr(config, section), name)
        if value < bound:
            raise UserError(f"{key}: found {value}, expected at least {bound}")
    for key, value in (
        ("data.segment_seconds", config.data.segment_seconds),
        ("trainer.learning_rate", config.trainer.learning_rate),
        ("trainer.max_minutes", config.trainer.max_minutes),
    ):
        if value is not None and not value > 0:
            raise UserError(f"{key}: found {value}, expected more than 0")
    if not config.objective.scoring.weight >= 0:
        raise UserError(f"objective.scoring.weight: found {config.objective.scoring.weight}, expected 0 or more")
    if config.model.estimate_scales and not isinstance(config.objective.cost, CauchyConfig):
        raise UserError(
            f"model.estimate_scales: objective.cost is {config.objective.cost.name}, which takes no scales; "
            "use cauchy_nll"
        )
    try:
        build(config.objective.assignment)
    except ValueError as error:
        raise UserError(f"objective.assignment: {error}") from error
    if config.data.train is None:
        raise UserError("data.train: no manifest given, expected the train.jsonl that `sepkit prepare` wrote")
    _check_device(config.trainer)


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
    """What `auto` comes to on this machine; else what was asked for."""
    if trainer.precision != "auto":
        return trainer.precision
    # Older GPUs emulate bfloat16, more slowly than they compute in float32.
    on_gpu = trainer.accelerator != "cpu" and torch.cuda.is_available()
    return "bf16-mixed" if on_gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"


def _products(trainer: TrainerConfig) -> AbstractContextManager[None]:
    # To a CPU "high" may mean other things.
    on_gpu = trainer.accelerator != "cpu" and torch.cuda.is_available()
    return matmul_precision("high" if trainer.tf32 and on_gpu else "highest")


def _check_same_run(config: TrainConfig, out: Path) -> None:
    if not zipfile.is_zipfile(resume_file(out)):
        raise UserError(f"{resume_file(out)}: damaged, expected the state of a run; remove it to begin anew")
    file = out / "config.yaml"
    # What a later sepkit has added stands at its default in older runs.
    began = from_dict(TrainConfig, yaml.safe_load(file.read_text(encoding="utf-8")))
    before, now = _flatten(to_dict(began)), _flatten(to_dict(config))
    changed = [key for key in now | before if before.get(key) != now.get(key)]
    for key in changed:
        if key not in CHANGEABLE:
            raise UserError(
                f"{file}: {key} was {before.get(key)} when this training began, now {now.get(key)}; resume with the "
                f"same value, or take a new --out (--init-from {out / 'last_model'} starts from its weights)"
            )


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    return {key: value for name, part in tree.items() for key, value in _flatten(part, f"{prefix}{name}.").items()}


def _check_sources(data: MixtureDataset, config: TrainConfig) -> None:
    hypotheses = config.model.hypotheses
    if data.num_sources > hypotheses and _is_one_to_one(config):
        raise UserError(
            f"{data.manifest.path}: mixtures have up to {data.num_sources} sources, but the model makes {hypotheses} "
            f"estimates; set model.hypotheses to {data.num_sources} or more, or choose an assignment of the MCL family"
        )
    if data.num_sources == 0:
        raise UserError(f"{data.manifest.path}: its mixtures have no sources; training and validation need references")


def _is_one_to_one(config: TrainConfig) -> bool:
    return isinstance(config.objective.assignment, PITConfig | SinkhornConfig)


def _monitor(config: TrainConfig, task: SeparationTask) -> str | None:
    """Name of the score that picks the best model; None without validation."""
    if task.dev_data is None:
        return None
    chosen, hypotheses = config.trainer.monitor, config.model.hypotheses
    if chosen == "auto":
        one_to_one = _is_one_to_one(config) or task.train_data.num_sources == hypotheses
        chosen = "pit" if one_to_one else "mcl"
    if chosen == "pit" and task.dev_data.num_sources > hypotheses:
        raise UserError(
            f"trainer.monitor: pit matches one to one, but {config.data.dev} has up to {task.dev_data.num_sources} "
            f"sources for {hypotheses} hypotheses; use mcl"
        )
    return MONITORS[chosen]


def _measure_spread(config: TrainConfig, data: MixtureDataset) -> float:
    """The unit of temperatures: mean spread of (up to 256) training mixtures, dB; 1 where temperatures have their own.

    Raises:
        UserError: a cost that is not in dB, or mixtures of one source only.
    """
    assignment, cost = config.objective.assignment, config.objective.cost
    if not isinstance(assignment, AnnealedMCLConfig) or assignment.unit == "cost":
        return 1.0
    if not isinstance(cost, NegSISDRConfig):
        raise UserError(
            f"objective.assignment.unit: the spread is measured in dB of SI-SDR, but objective.cost is {cost.name}; "
            "give the temperature in the cost's unit (unit: cost)"
        )
    examples = (data[0, index] for index in _spread_out(len(data)))
    spreads = [spread_db(example.sources[None], example.active[None]).item() for example in examples]
    spreads = [spread for spread in spreads if not math.isnan(spread)]
    if not spreads:
        raise UserError(
            f"{data.manifest.path}: no mixture has two sources, so that they have no spread; use unit: cost"
        )
    return math.fsum(spreads) / len(spreads)


def _spread_out(length: int, count: int = STATISTICS_MIXTURES) -> list[int]:
    """Up to `count` indices all over a data set."""
    return sorted({i * length // count for i in range(count)}) if length > count else list(range(length))


def _check_batch_norm(config: TrainConfig, model: EncoderMaskerDecoder) -> None:
    trainer = config.trainer
    has_batch_norm = any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in model.modules())
    if trainer.devices * trainer.num_nodes == 1 or not has_batch_norm:
        return
    if not trainer.sync_batchnorm:
        raise UserError(
            "model: batch normalisation over several devices would see each device's part of the batch alone; "
            "set trainer.sync_batchnorm to true, or use another norm"
        )
    if not torch.cuda.is_available():
        raise UserError("trainer.sync_batchnorm: torch synchronises batch normalisation on GPUs only; use another norm")


# ------------------------------------------------------------------------------------------------------ what is needed


def _make_task(config: TrainConfig, out: Path, fresh: bool) -> SeparationTask:
    data, rate = config.data, config.model.sample_rate
    assert data.train is not None
    train_data = MixtureDataset(
        data.train,
        segment_seconds=data.segment_seconds,
        seed=config.trainer.seed,
        dynamic_mixing=data.dynamic_mixing,
        mixtures_per_epoch=data.mixtures_per_epoch,
        sample_rate=rate,
    )
    dev_data = None
    if data.dev is not None:
        dev_data = MixtureDataset(data.dev, segment_seconds=data.segment_seconds, random_crop=False, sample_rate=rate)
    for part in (train_data, dev_data):
        if part is not None:
            _check_sources(part, config)
    world = config.trainer.devices * config.trainer.num_nodes
    if len(train_data) < world:
        raise UserError(f"{data.train}: {len(train_data)} mixtures for {world} devices; expected one each at least")
    torch.manual_seed(config.trainer.seed)
    model = build_model(config.model)
    _check_batch_norm(config, model)
    if fresh:
        _initialise(config, model, train_data)
    task = SeparationTask(model.train(), config, train_data, dev_data, out)
    if fresh:
        task.position.spread = _measure_spread(config, train_data)
    return task


def _initialise(config: TrainConfig, model: EncoderMaskerDecoder, data: MixtureDataset) -> None:
    if config.init_from is not None:
        report = load_weights_into(model, config.init_from)
        if is_first_process():
            say(str(report))
        if "signal_std" in report.loaded:
            return
    model.set_signal_statistics(*signal_statistics(data))


def _make_trainer(config: TrainConfig, out: Path, task: SeparationTask, limit_batches: int | None) -> Any:
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import DDPStrategy

    options = config.trainer
    several = options.devices * options.num_nodes > 1
    resume = Resume(out, options)
    # Buffers are equal on all ranks by construction; broadcasting them would tie ranks together in validation.
    strategy = DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True) if several else "auto"
    return Trainer(
        default_root_dir=out,
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=strategy,
        # Requeueing is left to the recipe: the same command again resumes.
        plugins=[SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else None,
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
        callbacks=[Recorder(out), Keeper(out, options, _monitor(config, task)), resume],
    )


def _describe(config: TrainConfig, task: SeparationTask) -> str:
    data, trainer = config.data, config.trainer
    world = trainer.devices * trainer.num_nodes
    batch = data.batch_size * world * trainer.accumulate_batches
    parameters = sum(p.numel() for p in task.model.parameters())
    devices = f"{world} device{'s' * (world > 1)}"
    lines = [
        f"{parameters:,} parameters; {len(task.train_data)} training mixtures an epoch",
        f"effective batch {batch} = {data.batch_size} mixtures of {data.segment_seconds:g} s"
        f" x {devices} x {trainer.accumulate_batches} accumulated; precision {_precision(trainer)}",
    ]
    if task.dev_data is None:
        lines.append("no data.dev: the last model counts as the best; no halving, no early stopping")
    return "\n".join(lines)


def is_first_process() -> bool:
    """Whether this is the process that speaks for all ranks."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Lightning without its notices and tips; its errors stay."""
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
def _one_line_from_workers() -> Iterator[None]:
    """A user's mistake found by a data worker arrives wrapped in that worker's traceback; this takes it out again."""
    try:
        yield
    except UserError as error:
        lines = re.findall(r"UserError: (.*)", str(error))
        raise UserError(lines[-1] if lines else str(error)) from None
