"""Train encoders of voices: momentum contrast (MoCo), a mixture of contrastive experts (MiCE), or known speakers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sepkit.data import audio
from sepkit.data.activity import FRAME_SECONDS
from sepkit.errors import UserError
from sepkit.evaluation.clusters import clustering_scores
from sepkit.inference.diarization.clustering import mean_directions, spherical_k_means
from sepkit.inference.diarization.encoders import load_encoder
from sepkit.models import load_checkpoint
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.registry import register
from sepkit.studies.speaker_clustering.config import SpeakerClusteringConfig
from sepkit.studies.speaker_clustering.contrastive import (
    ContrastiveQueue,
    InfoNCE,
    MixtureOfContrastiveExperts,
    PrototypeSums,
    max_mahalanobis_centers,
)
from sepkit.studies.speaker_clustering.data import Stretches, Views, speakers_of
from sepkit.studies.speaker_clustering.supervised import KnownSpeakers, teacher_targets
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
    """Trains the student of a student-teacher pair to tell an instance from those in a queue.

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
            log(f"objective.queue: found {objective.queue}, shortened to the {length} stretches that there are")
        self.queue = ContrastiveQueue(length, heads, model.dimensions, config.trainer.seed)
        self.sums = PrototypeSums(model.experts, model.dimensions)
        self._pending: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._info_nce = InfoNCE(objective.temperature)
        self.known: KnownSpeakers | None = None
        if config.loss == "speakers":
            speakers = speakers_of(self.train_data.segments)
            if speakers is None:
                raise UserError(f"{config.data.train}: stretches without a speaker; loss speakers needs one for each")
            self.known = KnownSpeakers(speakers, model.dimensions)
            if config.data.teacher is not None and not resuming:
                teacher = load_encoder(config.data.teacher, config.data.teacher_features)
                waveforms = self.train_data.waveforms
                self.known.take_targets(teacher_targets(teacher, waveforms, model.sample_rate, model.dimensions))
        self._mixture = MixtureOfContrastiveExperts(objective.temperature, objective.gate_temperature)

    # ----------------------------------------------------------------------------------------------- data and model

    def make_data_sets(self) -> tuple[Stretches, Stretches | None]:
        """Return training stretches with a view for each encoder, and labeled validation stretches with one view."""
        data, rate = self.config.data, self.config.model.sample_rate
        seed, with_speech = self.config.trainer.seed, self.config.model.speech
        train = Stretches(data.train, data, rate, self.config.views, seed, data.separated, with_speech, data.speeds)
        if len(train) < 2:
            raise UserError(f"{data.train}: found one stretch, expected at least 2 to tell apart")
        if data.dev is None:
            return train, None
        dev = Stretches(data.dev, data, rate, 2, _DEV_SEED)
        if speakers_of(dev.segments) is None:
            raise UserError(f"{data.dev}: stretches without a speaker, expected one for each; leave data.dev out")
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
        spectra = [masked(model.log_mel(batch.waveforms[:, view]), batch.masks[:, view]) for view in range(2)]
        student = model.expert_embeddings(model.features(spectra[0]))
        with torch.no_grad():
            self.teacher.train()
            teacher = self.teacher.expert_embeddings(self.teacher.features(spectra[1]))
        if self.config.loss == "moco":
            self._pending.append((teacher, batch.instances, None))
            return Losses(self._info_nce(student, teacher, self.queue, batch.instances))
        gate = None
        if model.gate is not None:
            gate = model.gate_embedding(model.features(masked(model.log_mel(batch.waveforms[:, 2]), batch.masks[:, 2])))
        mixture = self._mixture(
            student, teacher, self.queue, batch.instances, gate, model.unit_centers(), model.unit_prototypes()
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
            least = round(shortest * model.sample_rate)
            length = int(torch.randint(least, length + 1, ()))
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
        """Return the embedding of each stretch's first view, and the number of the stretch."""
        embeddings = model(batch.waveforms[:, 0])
        rows = zip(batch.instances.tolist(), embeddings.tolist(), strict=True)
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
        """Cut batch and queue; without training data, make a few stretches of noise."""
        config = super().shrink(config, folder)
        config.data.batch_size = 2
        config.objective.queue = min(config.objective.queue, 4)
        if config.data.train is None:
            generator = np.random.default_rng(0)
            rate = config.model.sample_rate
            for speaker in range(2):
                for take in range(2):
                    noise = np.float32(0.1) * generator.standard_normal(round(_SMOKE_SECONDS * rate), np.float32)
                    audio.write(folder / "voices" / f"{speaker}" / f"{take}.wav", noise, rate)
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
    """Return log mel spectra (B, bands, F) with a part of the bands and of the frames set to 0, which is their mean."""
    for axis, size in ((0, spectra.shape[2]), (1, spectra.shape[1])):
        places = (torch.arange(size, device=spectra.device) + 0.5) / size
        begin, length = masks[:, 2 * axis, None], masks[:, 2 * axis + 1, None]
        hidden = (places >= begin) & (places < begin + length)
        spectra = spectra.masked_fill(hidden[:, None, :] if axis == 0 else hidden[:, :, None], 0.0)
    return spectra


@torch.no_grad()
def start_from_clusters(model: SpeakerEncoder, source: str | Path, stretches: Stretches, seed: int) -> None:
    """Set heads, prototypes and gate of MiCE so that its clusters are those of k-means with another encoder.

    Clusters are of embeddings. If the other encoder has a projection, they are projected ones, which tell speakers
    better; the trained model has none, as its embeddings move away from those that the projection was fitted to. Every
    head is the other encoder's. Prototypes are the mean directions of clusters in what the head gives. The gate's head
    is the encoder's, minus its mean output, rotated so that cluster k lies as near omega_k as a rotation can bring it
    (orthogonal Procrustes): centers of the gate add up to zero, but all embeddings have much in common.
    """
    other = load_checkpoint(source, of=SpeakerEncoder)
    if other.config.experts != 1 or other.heads.weight.shape[1:] != model.heads.weight.shape[1:]:
        raise UserError(f"{source}: expected an encoder with one head and the same trunk, such as MoCo's")
    if other.config.dimensions != model.config.dimensions:
        found, wanted = other.config.dimensions, model.config.dimensions
        raise UserError(f"{source}: found embeddings of {found} dimensions, expected {wanted}, as model.dimensions")
    outputs, embeddings = head_outputs(other, stretches)
    clusters = model.config.experts
    if clusters > len(outputs):
        raise UserError(f"model.experts: found {clusters} for {len(outputs)} stretches, expected at most as many")
    found = spherical_k_means(embeddings.double().numpy(), clusters, seed)
    directions = functional.normalize(outputs, dim=-1).double().numpy()
    centers = torch.from_numpy(mean_directions(directions, found.labels, directions[:clusters])).float()
    heads = 1 if model.config.one_head else clusters
    model.heads.weight.copy_(other.heads.weight.repeat(heads, 1))
    model.heads.bias.copy_(other.heads.bias.repeat(heads))
    if model.prototypes is not None:
        model.prototypes.copy_(centers)
    gate_centers = model.unit_centers()
    if model.gate is not None and gate_centers is not None:
        labels, mean = torch.from_numpy(found.labels), outputs.mean(0)
        places = [outputs[labels == k].mean(0) - mean if (labels == k).any() else centers[k] for k in range(clusters)]
        rotation = procrustes(functional.normalize(torch.stack(places), dim=-1), gate_centers)
        model.gate.weight.copy_(rotation.T @ other.heads.weight)
        model.gate.bias.copy_(rotation.T @ (other.heads.bias - mean))


def head_outputs(encoder: SpeakerEncoder, stretches: Stretches) -> tuple[Tensor, Tensor]:
    """Return mean outputs of an encoder's head, and embeddings, over some crops of each stretch as it is, (N, D)
    each."""
    length = round(stretches.config.views.crop_seconds * stretches.sample_rate)
    outputs, embeddings = [], []
    for waveform in stretches.waveforms:
        starts = np.linspace(0, max(0, len(waveform) - length), _VIEWS_OF_EACH).astype(int)
        crops = [np.resize(waveform[start : start + length], length) for start in starts]
        waveforms = torch.from_numpy(np.stack(crops).astype(np.float32) / 32767)
        spectra = encoder.log_mel(waveforms)
        features = encoder.features(spectra)
        outputs.append(encoder.heads(features).mean(0))
        embeddings.append(encoder.project(encoder.embed_features(features), spectra).mean(0))
    means = torch.stack(outputs)
    return means, torch.stack(embeddings) if encoder.projection is not None else functional.normalize(means, dim=-1)


def procrustes(points: Tensor, targets: Tensor) -> Tensor:
    """Return the orthogonal R that minimizes |points R - targets|, (D, D), for points (K, D)."""
    left, _, right = torch.linalg.svd(points.T @ targets)
    return left @ right
