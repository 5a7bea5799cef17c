"""Train encoders of voices: momentum contrast (MoCo), a mixture of contrastive experts (MiCE), or known speakers."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.linalg import orthogonal_procrustes
from torch import Tensor
from torch.nn import functional

from sepkit.data import audio
from sepkit.data.activity import FRAME_SECONDS
from sepkit.errors import Bounds, UserError
from sepkit.evaluation.clusters import clustering_scores
from sepkit.inference.diarization.clustering import mean_directions, spherical_k_means
from sepkit.inference.diarization.encoders import load_encoder
from sepkit.models import load_checkpoint
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.registry import register
from sepkit.studies.speaker_clustering.config import SpeakerClusteringConfig
from sepkit.studies.speaker_clustering.data import SpeechSegments, Views, speakers_of
from sepkit.studies.speaker_clustering.losses import (
    ContrastiveQueue,
    KnownSpeakers,
    PrototypeSums,
    info_nce,
    max_mahalanobis_centers,
    mixture_loss,
    teacher_targets,
)
from sepkit.training.task import Task
from sepkit.training.task_definition import Monitor, log
from sepkit.types import Losses

# Seed of the views of validation, the same for all trainings.
_DEV_SEED = 2**31
_SMOKE_SECONDS = 1.0
_VIEWS_OF_EACH = 4
# Views with less speech do not teach who speaks.
_LEAST_SPEECH_SECONDS = 0.3


@register(SpeakerClusteringConfig)
class SpeakerClusteringTask(Task):
    """Trains the student of a student-teacher pair to distinguish an instance from those in a queue.

    The teacher is the exponential moving average of the student's weights. It normalizes with the statistics of its
    batch. The queue is written after each step, and validation leaves it as it is.
    """

    model_type = SpeakerEncoder
    examples = "stretches"

    def __init__(self, config: SpeakerClusteringConfig, out: Path, resuming: bool = False) -> None:
        super().__init__(config, out, resuming)
        objective, model = config.objective, config.model
        self.model.prototypes_follow_gradient(objective.prototype_gradient)
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)
        heads = 1 if model.one_head else model.experts
        length = min(objective.queue, len(self.train_data))
        if length < objective.queue:
            log(f"objective.queue: found {objective.queue}, shortened to the {length} segments that there are")
        self.queue = ContrastiveQueue(length, heads, model.dimensions, config.trainer.seed)
        self.sums = PrototypeSums(model.experts, model.dimensions)
        self._pending: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self.known: KnownSpeakers | None = None
        if config.loss == "speakers":
            speakers = speakers_of(self.train_data.segments)
            if speakers is None:
                raise UserError(f"{config.data.train}: segments without a speaker; loss speakers needs one for each")
            self.known = KnownSpeakers(speakers, model.dimensions)
            if config.data.teacher is not None and not resuming:
                teacher = load_encoder(config.data.teacher, config.data.teacher_features)
                waveforms = self.train_data.waveforms
                self.known.take_targets(teacher_targets(teacher, waveforms, model.sample_rate, model.dimensions))

    # ----------------------------------------------------------------------------------------------- data and model

    def make_data_sets(self) -> tuple[SpeechSegments, SpeechSegments | None]:
        """Return training segments with a view for each encoder, and labeled validation segments with one view."""
        data, rate = self.config.data, self.config.model.sample_rate
        seed, with_speech = self.config.trainer.seed, self.config.model.speech
        views, speeds = self.config.views, data.speeds
        train = SpeechSegments(data.train, data, rate, views, seed, data.separated, with_speech, speeds)
        if len(train) < 2:
            raise UserError(f"{data.train}: found one segment, expected at least 2 to tell apart")
        if data.dev is None:
            return train, None
        dev = SpeechSegments(data.dev, data, rate, 2, _DEV_SEED)
        if speakers_of(dev.segments) is None:
            raise UserError(f"{data.dev}: segments without a speaker, expected one for each; leave data.dev out")
        return train, dev

    def begin(self) -> None:
        """Take the weights to start from, and put a fixed gate's prototypes at their places."""
        super().begin()
        if self.config.model.gate == "fixed":
            self.model.centers.copy_(max_mahalanobis_centers(self.config.model.experts, self.config.model.dimensions))
        if self.config.objective.start_from_clusters:
            start_from_clusters(self.model, self.config.init_from, self.train_data, self.config.trainer.seed)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer, which moves the centers of speakers, too."""
        optimizer = super().configure_optimizers()
        if self.known is not None:
            optimizer.add_param_group({"params": [self.known.centers]})
        return optimizer

    @staticmethod
    def collate(items: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, int]]) -> Views:
        """Return the batch of some items."""
        waveforms, masks, heard, instances = zip(*items, strict=True)
        arrays = [torch.from_numpy(np.stack(values)) for values in (waveforms, masks, heard)]
        return Views(arrays[0], arrays[1], arrays[2], torch.tensor(instances))

    # ----------------------------------------------------------------------------------------------------- objective

    def before_step(self) -> None:
        """Forget embeddings of a window of batches that was rejected."""
        if self.position.batches_done % self.config.trainer.accumulate_batches == 0:
            self._pending = []

    def losses(self, model: Any, batch: Views) -> Losses:
        """Return InfoNCE, minus the evidence lower bound of the mixture, or the losses of known speakers, nats."""
        if self.known is not None:
            return self._losses_of_known(model, batch, self.known)
        objective, views = self.config.objective, range(self.config.views)
        spectra = [masked(model.log_mel(batch.waveforms[:, view]), batch.masks[:, view]) for view in views]
        student = model.expert_embeddings(model.features(spectra[0]))
        with torch.no_grad():
            self.teacher.train()
            teacher = self.teacher.expert_embeddings(self.teacher.features(spectra[1]))
        if self.config.loss == "moco":
            self._pending.append((teacher, batch.instances, None))
            return Losses(info_nce(student, teacher, self.queue, batch.instances, objective.temperature))
        gate = None if model.gate is None else model.gate_embedding(model.features(spectra[2]))
        temperatures, places = (objective.temperature, objective.gate_temperature), model.unit_centers()
        mixture = mixture_loss(
            student, teacher, self.queue, batch.instances, temperatures, gate, places, model.unit_prototypes()
        )
        posterior = mixture.posterior.detach()
        self._pending.append((teacher, batch.instances, posterior))
        statistics = {
            "gate_entropy_nats": -(mixture.log_gate.exp() * mixture.log_gate).sum(-1).detach(),
            "posterior_entropy_nats": -torch.xlogy(posterior, posterior).sum(-1),
        }
        return Losses(mixture.loss, statistics=statistics)

    def _losses_of_known(self, model: Any, batch: Views, known: KnownSpeakers) -> Losses:
        """All but the trunk is computed outside autocast."""
        length = batch.waveforms.shape[-1]
        if (shortest := self.config.data.views.shortest_seconds) is not None:
            length = int(torch.randint(round(shortest * model.sample_rate), length + 1, ()))
        with torch.autocast(self.device.type, enabled=False):
            spectra = masked(model.log_mel(batch.waveforms[:, 0, :length]), batch.masks[:, 0])
        hidden = model.trunk(spectra).float()
        with torch.autocast(self.device.type, enabled=False):
            heard = batch.heard[:, 0, : hidden.shape[-1]].to(hidden)
            terms = known.terms(model.expert_embeddings(model.pool(hidden))[:, 0], batch.instances)
            spoken = (FRAME_SECONDS * heard.sum(-1) >= _LEAST_SPEECH_SECONDS).to(hidden)
            terms = {name: spoken * term for name, term in terms.items()}
            loss = known.loss(terms)
            if model.speech is not None:
                logits = model.speech(hidden)[:, 0]
                terms["speech"] = functional.binary_cross_entropy_with_logits(logits, heard, reduction="none").mean(-1)
                loss = loss + terms["speech"]
        return Losses(loss, terms)

    def after_step(self, means: Mapping[str, float]) -> None:
        """Move the teacher towards the student, and write the queue."""
        with torch.no_grad():
            decay = self.config.objective.teacher_decay
            followers, leaders = list(self.teacher.parameters()), list(self.model.parameters())
            for follower, leader in zip(followers, leaders, strict=True):
                follower.lerp_(leader, 1 - decay)
        for embeddings, instances, posterior in self._pending:
            self.queue.add(embeddings, instances)
            if posterior is not None:
                self.sums.add(embeddings, posterior)
        self._pending = []

    def after_epoch(self, means: Mapping[str, float]) -> list[str]:
        """Set the prototypes of experts to the mean directions of their members (equation 13)."""
        if self.model.prototypes is not None and self.config.objective.analytical_update:
            self.sums.update(self.model.prototypes)
        else:
            self.sums.sums.zero_()
        return []

    # ---------------------------------------------------------------------------------------------------- validation

    def scores(self, model: Any, batch: Views) -> list[dict[str, Any]]:
        """Return the embedding of each segment's first view, and the number of the segment."""
        rows = zip(batch.instances.tolist(), model(batch.waveforms[:, 0]).tolist(), strict=True)
        return [{"instance": instance, "embedding": embedding} for instance, embedding in rows]

    def summarize(self, rows: list[dict[str, Any]]) -> dict[str, float]:
        """Return how well k-means on the embeddings finds the speakers of the dev set, their number known."""
        assert self.dev_data is not None
        speakers = speakers_of(self.dev_data.segments)
        assert speakers is not None
        labels = [speakers[row["instance"]] for row in rows]
        embeddings = np.array([row["embedding"] for row in rows], np.float64)
        if not np.isfinite(embeddings).all():
            return {"dev_nmi": 0.0, "dev_acc": 0.0, "dev_ari": 0.0}
        found = spherical_k_means(embeddings, len(set(labels)), seed=0)
        scores = clustering_scores(labels, found.labels.tolist())
        return {f"dev_{name}": scores[name] for name in ("nmi", "acc", "ari")}

    def choose_monitor(self) -> Monitor | None:
        """Choose the NMI of dev's speakers."""
        super().choose_monitor()
        return Monitor("dev_nmi", larger_is_better=True)

    @classmethod
    def shrink(cls, config: Any, folder: Path) -> Any:
        """Cut batch and queue; without training data, make a few segments of noise."""
        config = super().shrink(config, folder)
        config.data.batch_size = 2
        config.objective.queue = min(config.objective.queue, 4)
        if config.data.train is None:
            generator, rate = np.random.default_rng(0), config.model.sample_rate
            for name in ("0/0", "0/1", "1/0", "1/1"):
                noise = np.float32(0.1) * generator.standard_normal(round(_SMOKE_SECONDS * rate), np.float32)
                audio.write(folder / "voices" / f"{name}.wav", noise, rate)
            config.data.train = config.data.dev = str(folder / "voices")
        return config

    @classmethod
    def try_out(cls, model: Any) -> None:
        """Raise RuntimeError if a reloaded encoder gives no embeddings of unit length."""
        with torch.inference_mode():
            embeddings = model(torch.randn(2, model.sample_rate))
        if not torch.allclose(embeddings.norm(dim=-1), torch.ones(2), atol=1e-4):
            raise RuntimeError("the saved encoder gives embeddings that are not of unit length")


def masked(spectra: Tensor, masks: Tensor) -> Tensor:
    """Return log mel spectra (B, bands, F) with a part of the bands and of the frames set to 0, which is their mean.

    Args:
        spectra: (B, bands, F) log mel spectra.
        masks: (B, 4) begin and length over frames, and over bands, as shares.
    """
    for axis in (2, 1):
        size = spectra.shape[axis]
        places = (torch.arange(size, device=spectra.device) + 0.5) / size
        begin, length = masks[:, 4 - 2 * axis, None], masks[:, 5 - 2 * axis, None]
        hidden = (places >= begin) & (places < begin + length)
        spectra = spectra.masked_fill(hidden.unsqueeze(3 - axis), 0.0)
    return spectra


@torch.no_grad()
def start_from_clusters(model: SpeakerEncoder, source: str | Path, data: SpeechSegments, seed: int) -> None:
    """Set heads, prototypes and gate of MiCE so that its clusters are those of k-means with another encoder.

    Every head is the other encoder's. Prototypes are the mean directions of clusters in what the head gives. The gate's
    head is the encoder's, minus its mean output, rotated so that cluster k lies as near omega_k as a rotation can bring
    it (orthogonal Procrustes): centers of the gate add up to zero, but all embeddings have much in common.

    Args:
        model: Model to start.
        source: Folder of the other encoder.
        data: Segments to cluster.
        seed: Seed of k-means.

    Raises:
        UserError: an encoder with several heads or other sizes, or more experts than segments.
    """
    other, clusters = load_checkpoint(source, of=SpeakerEncoder), model.config.experts
    alike = other.heads.weight.shape == (model.config.dimensions, model.heads.weight.shape[1])
    if other.config.experts != 1 or other.config.dimensions != model.config.dimensions or not alike:
        raise UserError(
            f"{source}: expected an encoder with one head, the same trunk and model.dimensions "
            f"{model.config.dimensions}, such as MoCo's"
        )
    Bounds(le=len(data), note=", one for each segment").check("model.experts", clusters)
    outputs = head_outputs(other, data)
    directions = functional.normalize(outputs, dim=-1).double().numpy()
    labels = spherical_k_means(directions, clusters, seed).labels
    centers = torch.from_numpy(mean_directions(directions, labels, directions[:clusters])).float()
    heads = 1 if model.config.one_head else clusters
    model.heads.weight.copy_(other.heads.weight.repeat(heads, 1))
    model.heads.bias.copy_(other.heads.bias.repeat(heads))
    if model.prototypes is not None:
        model.prototypes.copy_(centers)
    targets = model.unit_centers()
    if model.gate is not None and targets is not None:
        mean = outputs.mean(0)
        places = [outputs[labels == k].mean(0) - mean if (labels == k).any() else centers[k] for k in range(clusters)]
        rotation, _ = orthogonal_procrustes(functional.normalize(torch.stack(places), dim=-1), targets.numpy())
        rotation = torch.from_numpy(rotation).float()
        model.gate.weight.copy_(rotation.T @ other.heads.weight)
        model.gate.bias.copy_(rotation.T @ (other.heads.bias - mean))


def head_outputs(encoder: SpeakerEncoder, data: SpeechSegments) -> Tensor:
    """Return mean outputs of an encoder's head over some crops of each segment as it is, (N, D).

    Args:
        encoder: Encoder with one head.
        data: N segments.
    """
    length, outputs = round(data.config.views.crop_seconds * data.sample_rate), []
    for waveform in data.waveforms:
        starts = np.linspace(0, max(0, len(waveform) - length), _VIEWS_OF_EACH).astype(int)
        crops = np.stack([np.resize(waveform[start : start + length], length) for start in starts])
        waveforms = torch.from_numpy(crops.astype(np.float32) / 32767)
        outputs.append(encoder.heads(encoder.features(encoder.log_mel(waveforms))).mean(0))
    return torch.stack(outputs)
