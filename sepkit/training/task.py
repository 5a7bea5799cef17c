"""The generic Lightning task: how to train. `separation.py` and the studies define what to train.

Optimization is manual, so that all ranks agree on a bad loss before the backward pass, and skip the same steps. All
randomness of a step follows from (seed, batches seen, rank), so a resumed run needs no random state.
"""

import hashlib
import math
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from sepkit.data.dataset import EpochSampler
from sepkit.errors import UserError
from sepkit.interrupts import ignore_terminal
from sepkit.limits import MODEL_TENSORS
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.maskers import ContinuousDepthMasker, ConvTasNetMasker
from sepkit.models.maskers.fast.recomputed import is_recomputable
from sepkit.models.storage.checkpoints import files_of
from sepkit.models.storage.layout import build_on_meta
from sepkit.registry import import_file, imported_files
from sepkit.training.task_definition import Position, TaskDefinition, TrainingDiverged, log
from sepkit.types import Losses


class Task(TaskDefinition):
    """A model, its data and its losses, as Lightning's Trainer runs them. A subclass is one choice of `task:`.

    A subclass defines the task, see `TaskDefinition`. It is registered for its configuration:
    `@register(MyTaskConfig)`.

    Args:
        resuming: whether a saved state will be loaded; otherwise the run calls `begin`.
    """

    def __init__(self, config: Any, out: Path, resuming: bool = False) -> None:
        super().__init__()
        if config.trainer.growth is not None and not self.grows:
            raise UserError(f"trainer.growth: task {config.name} has no hypotheses that could grow; leave it out")
        self.automatic_optimization = False
        self.config: Any = config
        self.out = out
        self.position = Position()
        self.validation: dict[str, float] = {}
        self.validated_epoch: int | None = None
        self.gradient_norm: Tensor | None = None
        self.stop_wanted = False
        self.stopping = False
        self._sampler: EpochSampler | None = None
        self._dev_indices: list[list[int]] = []
        self._rows: dict[int, dict[str, Any]] = {}
        self._window_is_bad = False
        self._window_sums: dict[str, float] = {}
        self._statistics: frozenset[str] = frozenset()
        self.train_data, self.dev_data = self.make_data_sets()
        torch.manual_seed(config.trainer.seed)
        # Counted before it takes memory.
        make = partial(self.model_type.from_config, config.model)
        build_on_meta(make, "model", MODEL_TENSORS, bool(files_of(config.model)), "make it smaller")
        self.model: Any = make()
        if not resuming:
            self.begin()
        self.model.train()
        self.average = None if config.trainer.ema is None else average_of(self.model, config.trainer.ema)
        self.monitor = None if self.dev_data is None else self.choose_monitor()

    @property
    def kept_model(self) -> Any:
        """Return the model that is validated and saved: the average of the weights if there is one."""
        return self.model if self.average is None else self.average.module

    # ------------------------------------------------------------------------------------------------------- the data

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of this rank's batches, from the saved position on."""
        self._sampler = self._make_sampler(self.train_data, shuffle=True)
        self._sampler.load_state_dict({"epoch": self.position.epoch, "batches_done": self.position.batches_done})
        return self._make_loader(self.train_data, self._sampler)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Return the loader of this rank's validation batches."""
        if self.dev_data is None:
            return []
        sampler = self._make_sampler(self.dev_data, shuffle=False)
        self._dev_indices = [[index for _, index in keys] for keys in sampler]
        return self._make_loader(self.dev_data, sampler)

    def _make_sampler(self, data: Any, shuffle: bool) -> EpochSampler:
        batch_size, world = self.config.data.batch_size, self.trainer.world_size
        return EpochSampler(
            len(data),
            seed=self.config.trainer.seed,
            shuffle=shuffle,
            rank=self.trainer.global_rank,
            world=world,
            batch_size=batch_size,
            drop_last=shuffle and len(data) >= batch_size * world,
        )

    def _make_loader(self, data: Any, sampler: EpochSampler) -> DataLoader[Any]:
        return DataLoader(
            _Sent(data),
            batch_sampler=sampler,
            collate_fn=self.collate,
            num_workers=self.config.data.workers,
            persistent_workers=self.config.data.workers > 0,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_begin_worker,
        )

    # ------------------------------------------------------------------------------------------------------- training

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the configured optimizer, in one fused kernel."""
        trainer = self.config.trainer
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        shared: dict[str, Any] = {"lr": trainer.learning_rate, "weight_decay": trainer.weight_decay, "fused": True}
        if trainer.optimizer == "sgd":
            return torch.optim.SGD(parameters, momentum=trainer.momentum, **shared)
        kind = torch.optim.AdamW if trainer.optimizer == "adamw" else torch.optim.Adam
        return kind(parameters, betas=trainer.betas, **shared)

    def on_fit_start(self) -> None:
        """Prepare the blocks, now that the device is known."""
        self.prepare_blocks()

    def prepare_blocks(self) -> None:
        """Make blocks keep only their inputs, if the configuration asks for it."""
        if self.config.trainer.gradient_checkpointing:
            with self.trainer.precision_plugin.forward_context():
                checkpoint_blocks(self.model)

    def on_train_start(self) -> None:
        """Check that the run continues with the same number of batches."""
        saved, found = self.position.batches_per_epoch, int(self.trainer.num_training_batches)
        if self.position.batches_done and saved != found:
            raise UserError(
                f"{self.out}: an epoch had {saved} batches when this training stopped, now {found}; "
                "resume with the same training set, batch size and number of devices, or take a new --out"
            )
        self.position.batches_per_epoch = found
        self.position.batch_size = self.config.data.batch_size * self.trainer.world_size

    def on_train_epoch_start(self) -> None:
        """Start the next epoch's order."""
        self.position.enter_epoch()
        assert self._sampler is not None
        self._sampler.set_epoch(self.position.epoch)
        self.before_epoch()

    @property
    def progress(self) -> float:
        """Epochs of steps taken, a fraction included."""
        position, accumulate = self.position, self.config.trainer.accumulate_batches
        return position.steps / math.ceil(position.batches_per_epoch / accumulate)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Process one batch: losses, agreement on them, backward, and after a window of batches a step."""
        position, accumulate = self.position, self.config.trainer.accumulate_batches
        first = position.batches_done % accumulate == 0
        last = (position.batches_done + 1) % accumulate == 0 or position.batches_done + 1 == position.batches_per_epoch
        if first:
            self._window_is_bad = False
            self._window_sums = {}
        window = min(accumulate, position.batches_per_epoch - position.batches_done // accumulate * accumulate)

        self._seed_step()
        self.before_step()
        losses = self.losses(self.model, batch)
        examples = self._agree(losses)
        if examples == 0:
            self._window_is_bad = True
        elif not self._window_is_bad:
            strategy = self.trainer.strategy
            with strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) and not last else nullcontext():
                self.manual_backward(losses.loss.sum() * (self.trainer.world_size / (examples * window)))
        position.batches_done += 1
        position.batches += 1
        if last:
            self._step()

    def _seed_step(self) -> None:
        place = f"{self.config.trainer.seed}/{self.position.batches}/{self.global_rank}"
        seed = int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "little") >> 1
        if self.device.type == "cpu":
            # torch.manual_seed would also note the seed, with a traceback, for every GPU that is not initialized yet.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _agree(self, result: Losses) -> int:
        """Return the number of examples in the batches of all ranks; 0 if the loss of any rank is not finite.

        One sum over ranks suffices, because a single non-finite value makes it non-finite everywhere.
        """
        named = {"loss": result.loss} | result.terms | result.statistics
        names = ["examples", "counted", *named]
        loss = result.loss.detach()
        examples = loss.new_tensor(len(loss))
        counts = [examples, examples if result.counted is None else result.counted.sum().to(loss)]
        sums = [*counts, *(value.detach().sum().to(loss) for value in named.values())]
        votes = torch.stack([*sums, loss.new_tensor(self.stop_wanted)])
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(votes)
        *values, stop = votes.tolist()
        self.stopping = stop > 0
        if not all(map(math.isfinite, values)):
            return 0
        self._statistics = frozenset(result.statistics)
        for name, value in zip(names, values, strict=True):
            self.position.sums[name] = self.position.sums.get(name, 0.0) + value
            self._window_sums[name] = self._window_sums.get(name, 0.0) + value
        return round(values[0])

    def _step(self) -> None:
        position, trainer = self.position, self.config.trainer
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        position.attempts += 1
        if not self._window_is_bad:
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            scale = 1.0
            if scaler is not None:
                # A fused optimizer unscales gradients itself unless that was done before, as clipping requires.
                scale = scaler.get_scale()
                scaler.unscale_(optimizer.optimizer)
            limit = trainer.gradient_clip_norm if trainer.gradient_clip_norm > 0 else math.inf
            self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
            finite = math.isfinite(self.gradient_norm.item())
            if finite or scaler is not None:
                optimizer.step()
            # While the scaler can still shrink, an overflow is part of its search for a scale, not a bad step.
            if not finite and scale <= 1.0:
                self._window_is_bad = True
            position.steps += finite
            if finite:
                if self.average is not None:
                    self.average.update_parameters(self.model)
                self.after_step(self.means(self._window_sums))
        optimizer.zero_grad(set_to_none=True)
        if self._window_is_bad:
            log(f"warning: step {position.attempts} is skipped: a loss or gradient is not finite")
        position.bad_in_a_row = position.bad_in_a_row + 1 if self._window_is_bad else 0
        if position.bad_in_a_row >= trainer.max_bad_steps:
            raise TrainingDiverged(
                f"{position.bad_in_a_row} steps in a row had a non-finite loss or gradient (epoch {position.epoch}); "
                "lower trainer.learning_rate or use another precision"
            )

    def epoch_means(self) -> dict[str, float]:
        """Return means over this epoch's examples so far, on all ranks: the loss, its terms and its statistics.

        Statistics are means over the examples that they are about (`Losses.counted`).
        """
        return self.means(self.position.sums)

    def means(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the means of sums over examples.

        Args:
            sums: Sums by name, with "examples" and "counted" among them, such as `Position.sums`.
        """
        sums = dict(sums)
        count, counted = sums.pop("examples", 0.0), sums.pop("counted", 0.0)
        if not count:
            return {}
        counts = {name: counted if name in self._statistics else count for name in sums}
        return {name: value / counts[name] for name, value in sums.items() if counts[name]}

    # ----------------------------------------------------------------------------------------------------- validation

    def on_validation_epoch_start(self) -> None:
        """Forget the scores of the last validation."""
        self._rows = {}
        self.validated_epoch = self.position.epoch

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Score a batch; an example that several ranks hold counts once."""
        self._rows |= dict(zip(self._dev_indices[batch_idx], self.scores(self.kept_model, batch), strict=True))

    def on_validation_epoch_end(self) -> None:
        """Summarize the scores of all ranks."""
        rows = self._rows
        if self.trainer.world_size > 1:
            gathered: list[Any] = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(gathered, rows)
            rows = {index: row for part in gathered for index, row in part.items()}
        self.validation = self.summarize([rows[index] for index in sorted(rows)])

    # -------------------------------------------------------------------------------------------------------- resuming

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the position to Lightning's checkpoint."""
        checkpoint["position"] = asdict(self.position)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the saved position."""
        self.position = Position(**checkpoint["position"])
        self.position.enter_epoch()


class _Sent(Dataset[Any]):
    """A data set that goes to data workers.

    Where they are started anew (Python 3.14, macOS, Windows), what they get is pickled: the user's own files have to be
    there before it, and before what makes batches of it.
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, key: Any) -> Any:
        return self._data[key]

    def __reduce__(self) -> Any:
        return _receive, (imported_files(), pickle.dumps(self._data))


def _receive(own_files: Sequence[str], data: bytes) -> Any:
    for file in own_files:
        import_file(file)
    return pickle.loads(data)


def _begin_worker(worker: int) -> None:
    # Signals of the terminal, and a scheduler's SIGTERM, reach every process; a worker that died would break the
    # step that is being saved. The second SIGTERM ends it: the loader sends one to workers that do not answer.
    ignore_terminal()
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))
    # A batch that cannot be sent, for want of open files, would be waited for without end.
    Queue._on_queue_feeder_error = staticmethod(lambda error, batch: os._exit(1))  # type: ignore[attr-defined]


def average_of(model: nn.Module, decay: float) -> AveragedModel:
    """Return a copy of the model whose weights follow those of `model` at each call of `update_parameters(model)`.

        average = d average + (1 - d) weights,   d = min(decay, (1 + t) / (10 + t)) at update t

    The copy is its attribute `module`. Buffers are those of the model at the last update. No gradient reaches it.

    Args:
        decay: d of a long training, 0 <= decay < 1.
    """

    def update(averages: Any, weights: Any, count: Any) -> None:
        get_ema_multi_avg_fn(decay_at(int(count), decay))(averages, weights, count)

    average = AveragedModel(model, multi_avg_fn=update)
    average.requires_grad_(False)
    return average


def decay_at(update: int, decay: float) -> float:
    """Return d at this update, from 1 on; it grows, so that the first weights are soon forgotten.

    Args:
        update: t, from 1 on.
        decay: the largest d.
    """
    return min(decay, (1 + update) / (10 + update))


def checkpoint_blocks(model: EncoderMaskerDecoder) -> None:
    """Make each block keep only its input for the backward pass; gradients stay the same.

    Blocks of Conv-TasNet that already do so, faster (see `recomputed`), are left alone.

    Args:
        model: has `blocks`, or a masker with `blocks`, and is on the device and in the precision of training.
    """
    masker = getattr(model, "masker", model)
    if isinstance(masker, ContinuousDepthMasker):
        masker.recompute = True
        return
    blocks = getattr(masker, "blocks", None)
    if not isinstance(blocks, nn.Module):
        raise UserError(
            "trainer.gradient_checkpointing: found true, but this masker has no blocks to compute again one by"
            " one; expected false, or one of conv_tasnet, dual_path_rnn, sudormrf, improved_sudormrf, sepformer and"
            " continuous_depth"
        )
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in blocks.modules()):
        raise UserError(
            "trainer.gradient_checkpointing: found true, but batch normalization would count every batch twice; "
            "expected false, or another norm"
        )
    if isinstance(masker, ConvTasNetMasker):
        weight = next(masker.parameters())
        x = weight.new_zeros(1, masker.bottleneck_channels, 1)
        if is_recomputable(masker, x):
            return
    for block in blocks.children():
        block.forward = _checkpointed(block.forward)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward method that the backward pass calls again."""

    def call(*inputs: Tensor | None) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False) if torch.is_grad_enabled() else forward(*inputs)

    return call


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Inside the block, multiply float32 matrices in a given precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
