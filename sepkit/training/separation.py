"""The task `separation`: from mixtures to estimates of their sources."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sepkit.config import TrainConfig
from sepkit.data import audio
from sepkit.data.dataset import Example, MixtureDataset, collate
from sepkit.data.manifest import MixtureEntry, SourceEntry, write_manifest
from sepkit.errors import UserError
from sepkit.models import EncoderMaskerDecoder
from sepkit.objectives.assignment import Assignment
from sepkit.objectives.costs import PairwiseCost
from sepkit.objectives.formulas import SAME_SI_SDR_DB
from sepkit.objectives.objective import Objective, build_objective, hard_si_sdr_db
from sepkit.registry import build, register
from sepkit.training.growth import Growth
from sepkit.training.task import Task, average_of, matmul_precision
from sepkit.training.task_definition import Monitor, log, mean, rows_of
from sepkit.types import Batch, Losses, Separation

SPLIT_MIXTURES = 64
"""Training mixtures by which the hypothesis to split is chosen."""

_SILENT_DEVIATION = 1e-7

_MONITORS = {"pit": "dev_si_sdr_db", "mcl": "dev_mcl_si_sdr_db", "loss": "dev_loss"}


@register(TrainConfig)
class SeparationTask(Task):
    """The task of separation: an encoder-masker-decoder, its objective and its mixtures.

    Args:
        resuming: whether a saved state will be loaded, so that nothing needs to be measured.
    """

    model_type = EncoderMaskerDecoder
    examples = "mixtures"
    grows = True
    config: TrainConfig
    train_data: MixtureDataset
    dev_data: MixtureDataset | None
    objective: Objective
    """The loss and its terms; built when training starts."""

    def __init__(self, config: TrainConfig, out: Path, resuming: bool = False) -> None:
        self._cost, self._assignment = _cost_and_assignment(config)
        self.data_scale = 1.0
        plan = config.trainer.growth
        self.growth = None if plan is None else Growth(plan, config.model.hypotheses, config.trainer.seed)
        super().__init__(config, out, resuming)
        if self.growth is not None:
            self.growth.check(self.model)
        self._objective_state: dict[str, Any] | None = None
        self._last: tuple[Batch, Tensor] | None = None

    # ------------------------------------------------------------------------------------------------------- the data

    def make_data_sets(self) -> tuple[MixtureDataset, MixtureDataset | None]:
        """Return segments of the manifests' mixtures; those of dev are the beginnings."""
        data = self.config.data
        assert data.train is not None
        if data.mixtures_per_epoch is not None and not data.dynamic_mixing.enabled:
            log("warning: data.mixtures_per_epoch: has no effect without --data.dynamic_mixing.enabled true")
        shared: dict[str, Any] = {
            "segment_seconds": data.segment_seconds,
            "min_seconds": data.min_seconds,
            "sample_rate": self.config.model.sample_rate,
        }
        train_data = MixtureDataset(
            data.train,
            seed=self.config.trainer.seed,
            dynamic_mixing=data.dynamic_mixing,
            mixtures_per_epoch=data.mixtures_per_epoch,
            speeds=data.speeds,
            **shared,
        )
        dev_data = None if data.dev is None else MixtureDataset(data.dev, random_crop=False, **shared)
        for part in (train_data, dev_data):
            if part is not None:
                self._check_sources(part)
        return train_data, dev_data

    @staticmethod
    def collate(items: Sequence[Example]) -> Batch:
        """Return the padded batch."""
        return collate(items)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Copy the batch to the device while the host continues."""
        return batch.to(device, non_blocking=True)

    def begin(self) -> None:
        """Measure the deviation of the training mixtures, unless it comes with the weights, and their scale."""
        report = self.load_initial_weights()
        if report is None or "signal_std" not in report.loaded:
            self.model.set_signal_statistics(*signal_statistics(self.train_data))
        self.data_scale = self._measure_data_scale()

    # ------------------------------------------------------------------------------------------------------- training

    def on_train_start(self) -> None:
        """Build the objective, now that the model's stored deviation is known."""
        super().on_train_start()
        self.objective = build_objective(self.config.objective, self.model.traits(), self.data_scale)
        if self._objective_state is not None:
            self.objective.load_state_dict(self._objective_state)

    def before_epoch(self) -> None:
        """Grow the model, if an epoch with more hypotheses begins."""
        while self.growth is not None and self.model.hypotheses < self.growth.hypotheses_at(self.position.epoch):
            optimizer = self.optimizers()
            assert not isinstance(optimizer, list)
            self._use(*self.growth.split(self.model, self.kept_model, optimizer.optimizer, self._fixed_batches()))
            self.prepare_blocks()

    def _use(self, model: EncoderMaskerDecoder, average: EncoderMaskerDecoder) -> None:
        """Train another model from here on; `average` has the averaged weights, if there are any."""
        self.model = model
        if self.average is not None:
            updates = self.average.n_averaged.clone()
            self.average = average_of(average, self.config.trainer.ema or 0.0)
            self.average.n_averaged.copy_(updates)
        if self.config.trainer.compile:
            model.compile()

    def _fixed_batches(self) -> Iterator[Batch]:
        """Yield some training mixtures, the same whenever this is called."""
        data, size = self.train_data, self.config.data.batch_size
        indices = evenly_spaced(len(data), SPLIT_MIXTURES)
        for start in range(0, len(indices), size):
            yield self.collate([data[0, index] for index in indices[start : start + size]]).to(self.device)

    @property
    def stage(self) -> int:
        """Return the number of hypotheses."""
        return self.model.hypotheses

    @property
    def more_stages(self) -> bool:
        """Return whether the number of hypotheses will grow."""
        return self.model.hypotheses < self._final_hypotheses

    @property
    def _final_hypotheses(self) -> int:
        return self.config.model.hypotheses if self.growth is None else self.growth.final

    def before_step(self) -> None:
        """Set the scheduled parameters of the objective."""
        by_epoch = self.config.objective.schedule_by == "epoch"
        self.objective.set_progress(self.position.epoch if by_epoch else self.progress)

    def losses(self, model: EncoderMaskerDecoder, batch: Batch) -> Losses:
        """Return the objective of the estimates."""
        separation = model(batch.mixture, **self.objective.inputs(batch))
        result = self.evaluate_objective(batch, separation)
        if not result.loss.requires_grad:
            # No utterance has an active source, but other ranks wait for this one's gradients.
            result.loss = result.loss + 0.0 * separation.estimates.sum()
        self._last = batch, separation.estimates.detach()
        return result

    def evaluate_objective(self, batch: Batch, separation: Separation) -> Losses:
        """Return the objective in at least float32, outside autocast."""
        # Costs are differences of large numbers, for which TF32's three digits are too few.
        with torch.autocast(self.device.type, enabled=False), matmul_precision("highest"):
            if separation.estimates.dtype in (torch.float16, torch.bfloat16):
                separation.estimates = separation.estimates.float()
            return self.objective(batch, separation)

    def after_step(self, means: Mapping[str, float]) -> None:
        """Adapt steered weights."""
        self.objective.after_step(means)

    def after_epoch(self, means: Mapping[str, float]) -> list[str]:
        """Return warnings about rates that do not reach their targets."""
        return self.objective.warnings(means, self.position.epoch + 1)

    @property
    def scheduled(self) -> dict[str, float]:
        """The scheduled parameters of the objective, and the number of hypotheses if it grows."""
        count = {} if self.config.trainer.growth is None else {"hypotheses": float(self.model.hypotheses)}
        return self.objective.scheduled | count

    def means(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return means over mixtures, and `collapse_rate`: the share of hypotheses that were best for no source."""
        means = super().means(sums)
        return means | collapse_rate(means)

    def recent(self) -> dict[str, float]:
        """Return the SI-SDR of the last training batch, dB."""
        assert self._last is not None
        batch, estimates = self._last
        scores = self.si_sdr_db(estimates, batch)
        return {"si_sdr_db": scores.get("si_sdr_db", scores["mcl_si_sdr_db"]).nanmean().item()}

    # ----------------------------------------------------------------------------------------------------- validation

    def scores(self, model: EncoderMaskerDecoder, batch: Batch) -> list[dict[str, Any]]:
        """Return loss, statistics and SI-SDR of each mixture; with scores also its speakers' and their number.

        Every mixture is separated as it is alone: norms and recurrent layers would process padding. So scores do not
        depend on the size of a batch. They are those of the first `segment_seconds` of each mixture; `sepkit evaluate`
        takes whole mixtures.
        """
        rows: dict[int, dict[str, Any]] = {}
        for places, part in batch.without_padding():
            rows |= dict(zip(places, self._scores(model, part), strict=True))
        return [rows[place] for place in sorted(rows)]

    def _scores(self, model: EncoderMaskerDecoder, batch: Batch) -> list[dict[str, Any]]:
        """Return the scores of mixtures of one length; see `scores`."""
        # Zero mean and the model's deviation, as at inference time; these batches have no padding.
        centered = batch.mixture - batch.mixture.mean(-1, keepdim=True)
        deviation = centered.std(-1, correction=0, keepdim=True).clamp_min(_SILENT_DEVIATION)
        gain = float(model.signal_std) / deviation
        batch = replace(batch, mixture=gain * centered, sources=gain.unsqueeze(-1) * batch.sources)
        separation = model(batch.mixture, **self.objective.inputs(batch))
        result = self.evaluate_objective(batch, separation)
        matched = self.si_sdr_db(separation.estimates, batch)
        before = self.si_sdr_db(batch.mixture.unsqueeze(1), batch)["mcl_si_sdr_db"]
        columns = {"loss": result.loss} | matched | result.statistics
        if len(result.terms) > 1:
            columns |= result.terms
        if "si_sdr_db" in matched:
            # A single speaker is the mixture: separation can gain nothing, and lose tens of dB.
            alone = (batch.active.sum(1) == 1) & (before > SAME_SI_SDR_DB)
            columns["si_sdri_db"] = (matched["si_sdr_db"] - before).where(~alone, math.nan)
        rows = rows_of(columns)
        if separation.scores is not None:
            speakers = distinct_scores(batch, separation.scores.float(), separation.estimates)
            rows = [row | {"speakers": found} for row, found in zip(rows, speakers, strict=True)]
        return rows

    def si_sdr_db(self, estimates: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the SI-SDR of each utterance, (B,) dB, mean over active sources, NaN without any, outside autocast.

        "mcl_si_sdr_db": each source with its best hypothesis. "si_sdr_db": hard one-to-one matching (PIT); absent where
        there are fewer hypotheses than sources.
        """
        with torch.autocast(self.device.type, enabled=False), torch.no_grad():
            return hard_si_sdr_db(estimates, batch.sources, batch.active, batch.lengths)

    def summarize(self, rows: list[dict[str, Any]]) -> dict[str, float]:
        """Return means over the mixtures with an active source, and the threshold that counts speakers best overall."""
        speakers = [row.pop("speakers") for row in rows if "speakers" in row]
        means = super().summarize([row for row in rows if not math.isnan(row["mcl_si_sdr_db"])])
        if "dev_si_sdri_db" in means:
            improvements = [row["si_sdri_db"] for row in rows if not math.isnan(row["si_sdri_db"])]
            means.pop("dev_si_sdri_db")
            means |= {"dev_si_sdri_db": mean(improvements)} if improvements else {}
        return means | collapse_rate(means, "dev_") | calibrated_threshold(speakers)

    def choose_monitor(self) -> Monitor:
        """Choose SI-SDR under the matching that the model is trained for, or the loss."""
        assert self.dev_data is not None
        chosen, hypotheses = self.config.trainer.monitor, self.config.model.hypotheses
        if chosen == "auto":
            one_to_one = self._assignment.one_to_one or self.train_data.num_sources == self._final_hypotheses
            chosen = "pit" if one_to_one else "mcl"
        if chosen == "pit" and self.dev_data.num_sources > hypotheses:
            raise UserError(
                f"trainer.monitor: pit matches one to one, but {self.config.data.dev} has up to "
                f"{self.dev_data.num_sources} sources for {hypotheses} hypotheses; use mcl"
            )
        return Monitor(_MONITORS[chosen], larger_is_better=chosen != "loss")

    def describe_batch(self) -> str:
        """Return a description of the number and length of a batch's mixtures."""
        return f"{super().describe_batch()} of {self.config.data.segment_seconds:g} s"

    def describe(self, scores: Mapping[str, float]) -> str:
        """Return a description of SI-SDR on dev."""
        parts = []
        if "dev_si_sdri_db" in scores:
            parts.append("dev SI-SDR {dev_si_sdr_db:.2f} dB (SI-SDRi {dev_si_sdri_db:.2f} dB)".format(**scores))
        if "dev_mcl_si_sdr_db" in scores and scores["dev_mcl_si_sdr_db"] != scores.get("dev_si_sdr_db"):
            parts.append("dev MCL SI-SDR {dev_mcl_si_sdr_db:.2f} dB".format(**scores))
        return "; ".join(parts)

    # ----------------------------------------------------------------------------------------------- resuming, smoke

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the data's scale, the number of hypotheses, and the objective's state."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["data_scale"] = self.data_scale
        checkpoint["hypotheses"] = self.model.hypotheses
        checkpoint["objective"] = self.objective.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the saved position, the size of a model that had grown, and the objective's state."""
        super().on_load_checkpoint(checkpoint)
        self.data_scale, self._objective_state = checkpoint["data_scale"], checkpoint["objective"]
        count = checkpoint["hypotheses"]
        if count != self.model.hypotheses:
            # Its weights are loaded after this.
            model = EncoderMaskerDecoder.from_config(replace(self.config.model, hypotheses=count))
            self._use(model.train(), model)

    @classmethod
    def shrink(cls, config: TrainConfig, folder: Path) -> TrainConfig:
        """Cut batches to two segments of 1 s; without `data.train`, write a set of tones to `folder`."""
        config = super().shrink(config, folder)
        data = config.data
        if data.train is None:
            manifest = write_synthetic_set(
                folder,
                sample_rate=config.model.sample_rate,
                sources=min(2, config.model.hypotheses),
                mixtures=2 * data.batch_size * config.trainer.accumulate_batches,
            )
            data = replace(data, train=str(manifest), dev=str(manifest), min_seconds=0.0)
        if config.trainer.growth is not None:
            # In the second epoch; `smoke` trains two, or three where a model grows.
            growth = replace(config.trainer.growth, epochs=[1], hypotheses=None)
            config = replace(config, trainer=replace(config.trainer, growth=growth))
        return replace(config, data=replace(data, segment_seconds=min(data.segment_seconds, 1.0)))

    @classmethod
    def try_out(cls, model: EncoderMaskerDecoder) -> None:
        """Separate a second of noise."""
        with torch.no_grad():
            estimates = model(torch.randn(1, model.sample_rate)).estimates
        if estimates.shape != (1, model.hypotheses, model.sample_rate) or not estimates.isfinite().all():
            raise RuntimeError(f"the saved model gives estimates of shape {tuple(estimates.shape)}, or not finite ones")

    def _measure_data_scale(self) -> float:
        """Return the scale of (up to 256) training mixtures, dB, if temperatures are multiples of it; else 1."""
        if not self._assignment.needs_data_scale:
            return 1.0
        if not self._cost.has_data_scale:
            raise UserError(
                "objective.assignment.unit: the spread is measured in dB of SI-SDR, but objective.cost is "
                f"{self.config.objective.cost.name}; give the temperature in the cost's unit (unit: cost)"
            )
        return mean_data_scale(self.train_data)

    def _check_sources(self, data: MixtureDataset) -> None:
        hypotheses = self.config.model.hypotheses
        if data.num_sources > hypotheses and self._assignment.one_to_one:
            raise UserError(
                f"{data.manifest.path}: mixtures have up to {data.num_sources} sources, but the model makes "
                f"{hypotheses} estimates; set model.hypotheses to {data.num_sources} or more, or choose an assignment "
                "of the MCL family"
            )
        if data.num_sources == 0:
            raise UserError(f"{data.manifest.path}: its mixtures have no sources, which training and validation need")


def _cost_and_assignment(config: TrainConfig) -> tuple[PairwiseCost, Assignment]:
    """Build both, and refuse combinations that do not work."""
    cost = build(config.objective.cost)
    if config.model.estimate_scales and not cost.uses_scale:
        raise UserError(
            f"model.estimate_scales: objective.cost is {config.objective.cost.name}, which takes no scales; "
            "use cauchy_nll"
        )
    try:
        return cost, build(config.objective.assignment)
    except ValueError as error:
        raise UserError(f"objective.assignment: {error}") from error


MEASURED_MIXTURES = 256


def evenly_spaced(length: int, count: int = MEASURED_MIXTURES) -> list[int]:
    """Return indices that are evenly spread over a data set."""
    return sorted({i * length // count for i in range(count)}) if length > count else list(range(length))


def signal_statistics(data: MixtureDataset, count: int = MEASURED_MIXTURES) -> tuple[float, float]:
    """Return mean and deviation of the samples of training mixtures, spread over the whole set.

    Args:
        count: Largest number of mixtures to measure.
    """
    samples, total, squares = 0, 0.0, 0.0
    for index in evenly_spaced(len(data), count):
        mixture = data[0, index].mixture.double()
        samples += mixture.numel()
        total += mixture.sum().item()
        squares += mixture.square().sum().item()
    mean = total / samples
    std = math.sqrt(max(0.0, squares / samples - mean * mean))
    if std < 1e-8:
        raise UserError(f"{data.manifest.path}: its mixtures are silent; training needs recordings that are not")
    return mean, std


def mean_data_scale(data: MixtureDataset) -> float:
    """Return the mean of `spread_db` of the sources of training mixtures, dB."""
    from sepkit.annealing.temperature import spread_db

    examples = (data[0, index] for index in evenly_spaced(len(data)))
    scales = [spread_db(example.sources[None], example.active[None]).item() for example in examples]
    scales = [scale for scale in scales if not math.isnan(scale)]
    if not scales:
        raise UserError(f"{data.manifest.path}: no mixture of two sources, whose spread is the unit; use unit: cost")
    return fmean(scales)


def collapse_rate(means: dict[str, float], prefix: str = "") -> dict[str, float]:
    """Return `collapse_rate`, the share of hypotheses whose usage is zero; nothing if usage is not known.

    Args:
        prefix: Prefix of the names, such as "dev_".
    """
    usage = [value for name, value in means.items() if name.startswith(f"{prefix}usage_")]
    return {f"{prefix}collapse_rate": sum(value == 0 for value in usage) / len(usage)} if usage else {}


def distinct_scores(batch: Batch, scores: Tensor, estimates: Tensor) -> list[tuple[list[float], int]]:
    """Return each mixture's scores of distinct hypotheses, and its number of speakers."""
    from sepkit.models.hypotheses import distinct_hypotheses

    found = []
    rows = zip(scores.float().cpu().numpy(), estimates.float().cpu().numpy(), batch.lengths.tolist(), strict=True)
    for (own, waveforms, length), count in zip(rows, batch.active.sum(1).tolist(), strict=True):
        found.append((own[distinct_hypotheses(own, waveforms[:, :length])].tolist(), count))
    return found


def calibrated_threshold(speakers: list[tuple[list[float], int]]) -> dict[str, float]:
    """Return `score_threshold`, which counts speakers best, and its share of right counts; nothing without scores."""
    if not speakers:
        return {}
    from sepkit.models.hypotheses import calibrate_threshold

    scores, counts = zip(*speakers, strict=True)
    threshold, accuracy = calibrate_threshold(scores, counts)
    return {"score_threshold": threshold, "dev_speaker_count_accuracy": accuracy}


def write_synthetic_set(folder: Path, *, sample_rate: int, sources: int, mixtures: int, seconds: float = 1.0) -> Path:
    """Write mixtures of modulated tones, the same every time, and return their manifest, `folder`/train.jsonl."""
    generator = np.random.default_rng(0)
    samples = round(seconds * sample_rate)
    time = np.arange(samples) / sample_rate
    entries = []
    for index in range(mixtures):
        parts = []
        for source in range(sources):
            carrier = np.sin(2 * np.pi * generator.uniform(100, sample_rate / 4) * time)
            envelope = 1 + np.sin(2 * np.pi * generator.uniform(1, 5) * time + generator.uniform(0, 6))
            waveform = 0.1 * envelope * (carrier + 0.1 * generator.standard_normal(samples))
            path = f"wav/{index}_{source}.wav"
            audio.write(folder / path, waveform.astype(np.float32), sample_rate)
            parts.append(SourceEntry(path, speaker=f"voice{index}-{source}", sex="FM"[index % 2]))
        entries.append(MixtureEntry(id=f"mixture{index}", sample_rate=sample_rate, num_samples=samples, sources=parts))
    manifest = folder / "train.jsonl"
    write_manifest(manifest, entries)
    return manifest
