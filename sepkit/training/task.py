"""The Lightning task: what one training step and one validation step are.

Optimisation is manual, so that every rank agrees on a bad loss before the backward pass, and a skipped step is skipped
everywhere. All randomness of a step follows from (seed, batches seen, rank): a resumed run needs no random state.
"""

from __future__ import annotations

import hashlib
import math
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from sepkit.config import TrainConfig
from sepkit.data.dataset import EpochSampler, MixtureDataset, collate
from sepkit.errors import UserError
from sepkit.files import atomic_output
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.scoring import calibrate_threshold, distinct_hypotheses
from sepkit.objectives import Latents
from sepkit.objectives.objective import SAME_SI_SDR_DB, Objective, ObjectiveResult, build_objective, hard_si_sdr_db
from sepkit.training.checkpointing import checkpoint_blocks
from sepkit.types import Batch, Separation

__all__ = ["Position", "SeparationTask", "TrainingDiverged", "latents_of", "matmul_precision"]

MAX_SAVED_BAD_BATCHES = 100

T = TypeVar("T")


class TrainingDiverged(RuntimeError):
    """Too many steps in a row had a non-finite loss or gradient."""


@dataclass
class Position:
    """Where a run stands; what exact resume needs beside weights and optimiser.

    Args:
        epoch: epochs begun before this one.
        batches_done: batches of this epoch already used.
        batches_per_epoch: batches in an epoch when this was saved.
        batches: batches used since the beginning.
        attempts: optimiser steps tried, skipped ones included.
        steps: optimiser steps taken; schedules advance with these.
        bad_in_a_row: steps skipped since the last one taken.
        sums: sums over this epoch's utterances, for its means.
        spread: of the training data in the cost's unit, where temperatures are multiples of it.
    """

    epoch: int = 0
    batches_done: int = 0
    batches_per_epoch: int = 0
    batches: int = 0
    attempts: int = 0
    steps: int = 0
    bad_in_a_row: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    spread: float = 1.0

    def enter_epoch(self) -> None:
        """Go to the next epoch if this one is complete."""
        if self.batches_per_epoch and self.batches_done >= self.batches_per_epoch:
            self.epoch, self.batches_done, self.sums = self.epoch + 1, 0, {}


class SeparationTask(LightningModule):
    """A model, its objective and its data, as Lightning's Trainer runs them.

    Args:
        model: what is trained.
        config: objective, data and optimisation.
        train_data: training mixtures.
        dev_data: validation mixtures; None: no validation.
        out: folder of the experiment, for bad batches.
    """

    def __init__(
        self,
        model: EncoderMaskerDecoder,
        config: TrainConfig,
        train_data: MixtureDataset,
        dev_data: MixtureDataset | None,
        out: Path,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.config = config
        self.train_data = train_data
        self.dev_data = dev_data
        self.out = out
        self.position = Position()
        self.validation: dict[str, float] = {}
        self.validated_epoch: int | None = None
        self.last: dict[str, Any] = {}
        self.stop_wanted = False
        self.stopping = False
        self._objective: Objective | None = None
        self._sampler: EpochSampler | None = None
        self._window_is_bad = False
        self._scores: dict[str, dict[str, float]] = {}
        self._speakers: dict[str, tuple[list[float], int]] = {}
        self._statistics: frozenset[str] = frozenset()
        self._window_sums: dict[str, float] = {}
        self._objective_state: dict[str, Any] | None = None

    # ------------------------------------------------------------------------------------------------------- the data

    def train_dataloader(self) -> DataLoader[Any]:
        """Loader of this rank's batches, from the saved position on."""
        self._sampler = self._make_sampler(self.train_data, shuffle=True)
        self._sampler.load_state_dict({"epoch": self.position.epoch, "batches_done": self.position.batches_done})
        return self._make_loader(self.train_data, self._sampler)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Loader of this rank's validation batches."""
        if self.dev_data is None:
            return []
        return self._make_loader(self.dev_data, self._make_sampler(self.dev_data, shuffle=False))

    def _make_sampler(self, data: MixtureDataset, shuffle: bool) -> EpochSampler:
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

    def _make_loader(self, data: MixtureDataset, sampler: EpochSampler) -> DataLoader[Any]:
        workers = self.config.data.workers
        return DataLoader(
            data,
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_leave_interrupts_to_parent,
        )

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """The batch on the device, copied while the host goes on."""
        return batch.to(device, non_blocking=True)

    # ------------------------------------------------------------------------------------------------------- training

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, in one fused kernel."""
        trainer = self.config.trainer
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        return torch.optim.Adam(parameters, lr=trainer.learning_rate, weight_decay=trainer.weight_decay, fused=True)

    def on_fit_start(self) -> None:
        """Prepares the blocks, now that the device is known."""
        if self.config.trainer.gradient_checkpointing:
            with self.trainer.precision_plugin.forward_context():
                checkpoint_blocks(self.model)

    def on_train_start(self) -> None:
        """Builds the objective, now that the model's stored deviation is known."""
        saved, found = self.position.batches_per_epoch, int(self.trainer.num_training_batches)
        if self.position.batches_done and saved != found:
            raise UserError(
                f"{self.out}: an epoch had {saved} batches when this training stopped, now {found}; "
                "resume with the same training manifest, batch size and number of devices, or take a new --out"
            )
        self.position.batches_per_epoch = found
        self._objective = build_objective(
            self.config.objective,
            float(self.model.signal_std),
            self.position.spread,
            scored=self.model.scoring_head is not None,
            latents=latents_of(self.model),
        )
        if self._objective_state is not None:
            self._objective.load_state_dict(self._objective_state)

    def on_train_epoch_start(self) -> None:
        """Moves on to the next epoch's order."""
        self.position.enter_epoch()
        assert self._sampler is not None
        self._sampler.set_epoch(self.position.epoch)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One batch: forward, agreement on the loss, backward, and at the end of a window the optimiser's step."""
        position, accumulate = self.position, self.config.trainer.accumulate_batches
        first = position.batches_done % accumulate == 0
        last = (position.batches_done + 1) % accumulate == 0 or position.batches_done + 1 == position.batches_per_epoch
        if first:
            self._window_is_bad = False
            self._window_sums = {}
        window = min(accumulate, position.batches_per_epoch - position.batches_done // accumulate * accumulate)

        self._seed_step()
        progress = position.steps / math.ceil(position.batches_per_epoch / accumulate)
        self.objective.set_progress(position.epoch if self.config.objective.schedule_by == "epoch" else progress)
        separation = self.model(batch.mixture, **self.objective.inputs(batch))
        result = self.evaluate_objective(batch, separation)
        self.last = {"batch": batch, "estimates": separation.estimates.detach(), "losses": result.loss.detach()}

        utterances = self._agree(batch, result)
        if utterances == 0:
            self._reject(batch, result.loss)
        elif not self._window_is_bad:
            self._backward(result.loss, separation, self.trainer.world_size / (utterances * window), sync=last)
        position.batches_done += 1
        position.batches += 1
        if last:
            self._step(batch, result.loss)

    def _seed_step(self) -> None:
        seed = _step_seed(self.config.trainer.seed, self.position.batches, self.global_rank)
        if self.device.type == "cpu":
            # torch.manual_seed would also note the seed, with a traceback, for every GPU that may yet wake up.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    @property
    def objective(self) -> Objective:
        """What is minimised."""
        assert self._objective is not None
        return self._objective

    def evaluate_objective(self, batch: Batch, separation: Separation) -> ObjectiveResult:
        """The objective in at least float32, outside autocast."""
        # Costs are differences of large numbers; TF32 has three digits.
        with torch.autocast(self.device.type, enabled=False), matmul_precision("highest"):
            if separation.estimates.dtype in (torch.float16, torch.bfloat16):
                separation.estimates = separation.estimates.float()
            return self.objective(batch, separation)

    def _agree(self, batch: Batch, result: ObjectiveResult) -> int:
        """Utterances in the batches of all ranks; 0 if the loss of any rank is not finite.

        One sum over ranks tells all: a single non-finite value makes it non-finite everywhere.
        """
        named = {"loss": result.loss} | result.terms | result.statistics
        names = ["utterances", "with_sources", *named]
        loss = result.loss.detach()
        counts = [loss.new_tensor(len(loss)), batch.active.any(1).sum().to(loss)]
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

    def _backward(self, losses: Tensor, separation: Separation, scale: float, sync: bool) -> None:
        loss = losses.sum() * scale
        if not loss.requires_grad:
            # No utterance has an active source; the other ranks still wait for this one's gradients.
            loss = loss + 0.0 * separation.estimates.sum()
        strategy = self.trainer.strategy
        unsynced = strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) and not sync else nullcontext()
        with unsynced:
            self.manual_backward(loss)

    def _step(self, batch: Batch, losses: Tensor) -> None:
        position, trainer = self.position, self.config.trainer
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        position.attempts += 1
        if not self._window_is_bad:
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            scale = 1.0
            if scaler is not None:
                # Fused Adam leaves unscaling to itself unless it was done before, as clipping needs.
                scale = scaler.get_scale()
                scaler.unscale_(optimizer.optimizer)
            limit = trainer.gradient_clip_norm if trainer.gradient_clip_norm > 0 else math.inf
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
            self.last["gradient_norm"] = norm
            finite = math.isfinite(norm.item())
            if finite or scaler is not None:
                optimizer.step()
            # An overflow while the scaler still has room to shrink is its search for a scale, not a bad step.
            if not finite and scale <= 1.0:
                self._reject(batch, losses, everywhere=True)
            position.steps += finite
            if finite:
                self.objective.after_step(self.means(self._window_sums))
        optimizer.zero_grad(set_to_none=True)
        position.bad_in_a_row = position.bad_in_a_row + 1 if self._window_is_bad else 0
        if position.bad_in_a_row >= trainer.max_bad_steps:
            raise TrainingDiverged(
                f"{position.bad_in_a_row} steps in a row had a non-finite loss or gradient (epoch {position.epoch}); "
                f"the batches are in {self.out / 'bad_batches'}; lower trainer.learning_rate or use another precision"
            )

    def _reject(self, batch: Batch, losses: Tensor, everywhere: bool = False) -> None:
        """Mark the step as skipped; the ranks that caused it save their batch."""
        self._window_is_bad = True
        if everywhere or not bool(torch.isfinite(losses).all()):
            self._save_bad_batch(batch, losses.detach())

    def _save_bad_batch(self, batch: Batch, losses: Tensor) -> None:
        folder, position = self.out / "bad_batches", self.position
        if len(list(folder.glob("*.pt"))) >= MAX_SAVED_BAD_BATCHES:
            return
        content = asdict(batch.to("cpu")) | {
            "losses": losses.cpu(),
            "epoch": position.epoch,
            "batch": position.batches_done,
            "step": position.attempts,
        }
        name = f"epoch_{position.epoch:04d}_batch_{position.batches_done:06d}_rank_{self.global_rank}.pt"
        with atomic_output(folder / name) as temporary:
            torch.save(content, temporary)

    def epoch_means(self) -> dict[str, float]:
        """Means over the utterances of this epoch so far, on all ranks: the loss, its terms and its statistics.

        Statistics are means over the utterances that have an active source. `collapse_rate` is the share of hypotheses
        that were the best for no source at all.
        """
        return self.means(self.position.sums)

    def means(self, sums: dict[str, float]) -> dict[str, float]:
        """The means that belong to sums over utterances, in the manner of `Position.sums`."""
        sums = dict(sums)
        count, with_sources = sums.pop("utterances", 0.0), sums.pop("with_sources", 0.0)
        if not count:
            return {}
        counts = {name: with_sources if name in self._statistics else count for name in sums}
        means = {name: value / counts[name] for name, value in sums.items() if counts[name]}
        return means | _collapse_rate(means)

    # ----------------------------------------------------------------------------------------------------- validation

    def on_validation_epoch_start(self) -> None:
        """Forgets the scores of the last validation."""
        self._scores, self._speakers = {}, {}
        self.validated_epoch = self.position.epoch

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Scores of the utterances of a batch, by name: each counts once, on however many ranks it stood."""
        separation = self.model(batch.mixture, **self.objective.inputs(batch))
        result = self.evaluate_objective(batch, separation)
        matched = self.si_sdr_db(separation.estimates, batch)
        before = self.si_sdr_db(batch.mixture.unsqueeze(1), batch)["mcl_si_sdr_db"]
        columns = {"loss": result.loss} | matched | result.statistics
        if len(result.terms) > 1:
            columns |= result.terms
        if "si_sdr_db" in matched:
            # One speaker alone is the mixture: there is nothing to improve, and tens of dB to lose.
            alone = (batch.active.sum(1) == 1) & (before > SAME_SI_SDR_DB)
            columns["si_sdri_db"] = (matched["si_sdr_db"] - before).where(~alone, math.nan)
        rows = torch.stack([value.to(result.loss) for value in columns.values()], dim=1).tolist()
        for name, row in zip(batch.ids, rows, strict=True):
            self._scores[name] = dict(zip(columns, row, strict=True))
        if separation.scores is not None:
            self._note_speakers(batch, separation.scores.float(), separation.estimates)

    def _note_speakers(self, batch: Batch, scores: Tensor, estimates: Tensor) -> None:
        """What the threshold is to be found from: the scores of distinct hypotheses, and how many speak."""
        distinct = distinct_hypotheses(scores, estimates, batch.lengths).tolist()
        counts = batch.active.sum(1).tolist()
        for name, row, is_distinct, count in zip(batch.ids, scores.tolist(), distinct, counts, strict=True):
            self._speakers[name] = [s for s, counted in zip(row, is_distinct, strict=True) if counted], count

    def si_sdr_db(self, estimates: Tensor, batch: Batch) -> dict[str, Tensor]:
        """SI-SDR of each utterance, (B,) dB, mean over active sources, NaN without any, outside autocast.

        "mcl_si_sdr_db": each source with its best hypothesis. "si_sdr_db": hard one-to-one matching (PIT); absent where
        there are fewer hypotheses than sources.
        """
        with torch.autocast(self.device.type, enabled=False), torch.no_grad():
            return hard_si_sdr_db(estimates, batch.sources, batch.active, batch.lengths)

    def on_validation_epoch_end(self) -> None:
        """Means over all ranks; utterances without an active source do not count, but for the number of speakers."""
        scores, speakers = self._of_all_ranks(self._scores), self._of_all_ranks(self._speakers)
        rows = [scores[name] for name in sorted(scores) if not math.isnan(scores[name]["mcl_si_sdr_db"])]
        names = set.intersection(*(set(row) for row in rows)) if rows else set()
        columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ()) if name in names}
        if "si_sdri_db" in columns:
            columns["si_sdri_db"] = [value for value in columns["si_sdri_db"] if not math.isnan(value)]
        means = {f"dev_{name}": _mean(values) for name, values in columns.items() if values}
        self.validation = means | _collapse_rate(means, "dev_") | _calibrate(speakers)

    def _of_all_ranks(self, mine: dict[str, T]) -> dict[str, T]:
        """The entries of all ranks."""
        if self.trainer.world_size == 1:
            return mine
        gathered: list[Any] = [None] * self.trainer.world_size
        torch.distributed.all_gather_object(gathered, mine)
        return {name: value for part in gathered for name, value in part.items()}

    # -------------------------------------------------------------------------------------------------------- resuming

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the position, and what the objective remembers, to Lightning's checkpoint."""
        checkpoint["position"] = asdict(self.position)
        checkpoint["objective"] = self.objective.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes back to the saved position."""
        self.position = Position(**checkpoint["position"])
        self.position.enter_epoch()
        self._objective_state = checkpoint.get("objective")


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Products of float32 matrices as torch.set_float32_matmul_precision has them; afterwards as before."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def latents_of(model: EncoderMaskerDecoder) -> Latents:
    """What an objective needs to know of the model's latents."""
    return Latents(
        encoding=model.encoding_family.variational,
        masks=model.mask_family.variational,
        frames_for=model.frames_for,
        adaptive=model.encoding_prior is not None and model.encoding_prior.needs_sources,
    )


def _collapse_rate(means: dict[str, float], prefix: str = "") -> dict[str, float]:
    """The share of hypotheses whose usage is zero, where usage is known."""
    usage = [value for name, value in means.items() if name.startswith(f"{prefix}usage_")]
    return {f"{prefix}collapse_rate": sum(value == 0 for value in usage) / len(usage)} if usage else {}


def _calibrate(speakers: dict[str, tuple[list[float], int]]) -> dict[str, float]:
    """The threshold that counts speakers best, and how often it is right; nothing for a model without scores."""
    if not speakers:
        return {}
    scores, counts = zip(*speakers.values(), strict=True)
    threshold, accuracy = calibrate_threshold(scores, counts)
    return {"score_threshold": threshold, "dev_speaker_count_accuracy": accuracy}


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def _step_seed(seed: int, step: int, rank: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _leave_interrupts_to_parent(worker: int) -> None:
    # Ctrl-C reaches every process of the terminal; a worker that died of it would take the step being saved with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
