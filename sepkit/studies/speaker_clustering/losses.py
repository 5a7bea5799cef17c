"""Losses of encoders of voices: InfoNCE, a mixture of contrastive experts (MiCE), and known speakers.

All embeddings have unit length. Contrastive losses contrast an instance with those of a queue: teacher embeddings of
earlier batches.

Source: Tsai, Li and Zhu, "MiCE: Mixture of Contrastive Experts for Unsupervised Image Clustering", ICLR 2021.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.diarization.encoders import Encoder

# Of the classifier: cosines are multiplied by the scale, after the margin is taken off that of the own speaker.
_SCALE, _MARGIN = 20.0, 0.15
_TEACHER_WEIGHT = 10.0
_TEACHER_SECONDS = 1.6

NOBODY = -1
"""Instance number of a queue's first, random embeddings."""


def max_mahalanobis_centers(clusters: int, dimensions: int) -> Tensor:
    """Return (K, D) unit vectors, K <= D + 1, as far from each other as possible: w_i . w_j = -1 / (K - 1).

    Source: MiCE paper, appendix B, algorithm 2 (Pang et al. 2018).
    """
    if not 1 <= clusters <= dimensions + 1:
        raise UserError(
            f"{clusters} clusters in {dimensions} dimensions: expected 1 to {dimensions + 1}; raise the dimensions of "
            "the embedding or ask for fewer speakers"
        )
    centers = torch.zeros(clusters, dimensions, dtype=torch.float64)
    centers[0, 0] = 1.0
    for i in range(1, clusters):
        for j in range(i):
            centers[i, j] = -(1 / (clusters - 1) + centers[i] @ centers[j]) / centers[j, j]
        # The last of D + 1 centers has no axis of its own: what is left of its length is round-off.
        if i < dimensions:
            centers[i, i] = (1 - centers[i] @ centers[i]).abs().sqrt()
    return centers.float()


class ContrastiveQueue(nn.Module):
    """Teacher embeddings (K, D) of the last `length` instances, written as a ring; a part of the state of a training.

    It begins with random embeddings of nearly unit length, U(-s, s) with s = (D / 3) ** -0.5.
    """

    embeddings: Tensor
    instances: Tensor
    position: Tensor

    def __init__(self, length: int, experts: int, dimensions: int, seed: int = 0) -> None:
        super().__init__()
        if length < 1:
            raise UserError(f"queue: found a length of {length}, expected 1 or more")
        generator = torch.Generator().manual_seed(seed)
        bound = (dimensions / 3) ** -0.5
        first = bound * (2 * torch.rand(length, experts, dimensions, generator=generator) - 1)
        self.register_buffer("embeddings", first)
        self.register_buffer("instances", torch.full((length,), NOBODY))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def __len__(self) -> int:
        return len(self.instances)

    @torch.no_grad()
    def add(self, embeddings: Tensor, instances: Tensor) -> None:
        """Write the teacher's embeddings (B, K, D) of numbered instances over the oldest ones."""
        count = min(len(instances), len(self))
        places = (int(self.position) + torch.arange(count, device=self.instances.device)) % len(self)
        self.embeddings[places] = embeddings[-count:].detach().to(self.embeddings)
        self.instances[places] = instances[-count:].to(self.instances)
        self.position.copy_((self.position + count) % len(self))

    def own(self, instances: Tensor) -> Tensor:
        """Return which embeddings of the queue are of the same instance, and so are no negatives, (B, nu) bool."""
        return instances[:, None] == self.instances[None, :]


def log_expert(
    student: Tensor, teacher: Tensor, queue: Tensor, own: Tensor, temperature: float, prototypes: Tensor | None = None
) -> Tensor:
    """Return (B, K) log phi_k, the log probability of the own instance among it and the queue, under each expert.

        phi_k = Phi_k(v) / (Phi_k(v) + sum_i Phi_k(q_i)),   Phi_k(v) = exp(v_k . (f_k + mu_k) / tau)

    Source: MiCE paper, equations 6 and 9.
    """
    query = student if prototypes is None else student + prototypes
    positive = (teacher * query).sum(-1)
    negatives = torch.einsum("bkd,nkd->bkn", query, queue).masked_fill(own[:, None], -torch.inf)
    logits = torch.cat([positive[..., None], negatives], dim=-1).float() / temperature
    return logits[..., 0] - logits.logsumexp(-1)


def info_nce(
    student: Tensor, teacher: Tensor, queue: ContrastiveQueue, instances: Tensor, temperature: float
) -> Tensor:
    """Return minus the log probability of the own instance among it and the queue (MoCo), (B,) nats.

    Args:
        student: (B, 1, D) embeddings.
        teacher: (B, 1, D) embeddings of other views of the same instances.
        queue: Embeddings of earlier instances; those of the same instance are no negatives.
        instances: (B,) numbers of the instances.
        temperature: Temperature tau.

    Source: He et al., "Momentum contrast for unsupervised visual representation learning", CVPR 2020.
    """
    return -log_expert(student, teacher, queue.embeddings, queue.own(instances), temperature)[:, 0]


@dataclass
class MixtureLoss:
    """The value of a mixture of contrastive experts.

    Args:
        loss: (B,) -log sum_k pi_k phi_k, nats.
        log_gate: (B, K) log pi_k.
        log_experts: (B, K) log phi_k.
    """

    loss: Tensor
    log_gate: Tensor
    log_experts: Tensor

    @property
    def posterior(self) -> Tensor:
        """(B, K) q_k = pi_k phi_k / sum_j pi_j phi_j (equation 10)."""
        return (self.log_gate + self.log_experts).softmax(-1)


def mixture_loss(
    student: Tensor,
    teacher: Tensor,
    queue: ContrastiveQueue,
    instances: Tensor,
    temperatures: tuple[float, float],
    gate: Tensor | None = None,
    centers: Tensor | None = None,
    prototypes: Tensor | None = None,
) -> MixtureLoss:
    """Return the loss of MiCE: minus its evidence lower bound, which at its own posterior is -log sum_k pi_k phi_k.

        pi_k = softmax_k(omega_k . g / kappa)

    The gap of the bound is the divergence of q from the exact posterior of the approximated model, which is 0.

    Args:
        student: (B, K, D) embeddings, or (B, 1, D) for one head that all experts share.
        teacher: Embeddings of other views of the same instances, of the same shape.
        queue: Embeddings of earlier instances.
        instances: (B,) numbers of the instances.
        temperatures: Temperatures tau of the experts, and kappa of the gate.
        gate: (B, D) embeddings g of the gate; None: the gate is uniform.
        centers: (K, D) centers omega of the gate; None: the gate is uniform.
        prototypes: (K, D) prototypes mu of the experts; None: none.

    Source: MiCE paper, equations 4 to 11.
    """
    tau, kappa = temperatures
    log_experts = log_expert(student, teacher, queue.embeddings, queue.own(instances), tau, prototypes)
    log_gate = torch.full_like(log_experts, -math.log(log_experts.shape[-1]))
    if gate is not None and centers is not None:
        log_gate = ((gate @ centers.T).float() / kappa).log_softmax(-1)
    log_experts, log_gate = torch.broadcast_tensors(log_experts, log_gate)
    return MixtureLoss(-(log_gate + log_experts).logsumexp(-1), log_gate, log_experts)


class PrototypeSums(nn.Module):
    """Sums of an epoch's teacher embeddings over the members of each cluster, for the analytical update."""

    sums: Tensor

    def __init__(self, clusters: int, dimensions: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(clusters, dimensions))

    @torch.no_grad()
    def add(self, teacher: Tensor, posterior: Tensor) -> None:
        """Add teacher embeddings (B, K or 1, D), each to the cluster that its posterior (B, K) is largest for."""
        members = functional.one_hot(posterior.argmax(-1), posterior.shape[-1]).to(teacher)
        self.sums += (members[..., None] * teacher).sum(0)

    @torch.no_grad()
    def update(self, prototypes: Tensor) -> None:
        """Set prototypes to sums_k / |sums_k| (equation 13) and begin anew; empty clusters keep theirs."""
        lengths = self.sums.norm(dim=-1, keepdim=True)
        prototypes.copy_(torch.where(lengths > 0, self.sums / lengths.clamp_min(1e-12), prototypes))
        self.sums.zero_()


class KnownSpeakers(nn.Module):
    """Labels of training segments: numbers of speakers (N,) and targets (N, D), unit vectors or zeros.

    Args:
        speakers: Speaker of each segment.
        dimensions: D, of an embedding.
    """

    numbers: Tensor
    targets: Tensor

    def __init__(self, speakers: Sequence[str], dimensions: int) -> None:
        super().__init__()
        numbers = {name: number for number, name in enumerate(sorted(set(speakers)))}
        self.register_buffer("numbers", torch.tensor([numbers[name] for name in speakers]), persistent=False)
        self.register_buffer("targets", torch.zeros(len(speakers), dimensions))
        self.centers = nn.Parameter(functional.normalize(torch.randn(len(numbers), dimensions), dim=-1))

    @torch.no_grad()
    def take_targets(self, targets: Tensor) -> None:
        """Take a teacher's embeddings of the stretches, (N, D), and begin with speakers at their means."""
        self.targets.copy_(targets)
        sums = torch.zeros_like(self.centers).index_add_(0, self.numbers, targets)
        self.centers.copy_(functional.normalize(sums, dim=-1))

    def terms(self, embeddings: Tensor, instances: Tensor) -> dict[str, Tensor]:
        """Return the losses of embeddings (B, D) of numbered stretches, (B,) each.

        speakers: cross-entropy of a classifier by cosines with a margin; teacher: 1 - cosine to the target.

        Source: Wang et al., "Additive margin softmax for face verification", 2018; Hinton et al., "Distilling the
        knowledge in a neural network", 2015.
        """
        numbers = self.numbers[instances]
        cosines = embeddings @ functional.normalize(self.centers, dim=-1).T
        margins = _MARGIN * functional.one_hot(numbers, len(self.centers))
        classified = functional.cross_entropy(_SCALE * (cosines - margins), numbers, reduction="none")
        return {"speakers": classified, "teacher": 1 - (embeddings * self.targets[instances]).sum(-1)}

    def loss(self, terms: dict[str, Tensor]) -> Tensor:
        """Return the weighted sum of the losses, (B,)."""
        return terms["speakers"] + (_TEACHER_WEIGHT * terms["teacher"] if bool(self.targets.any()) else 0.0)


def teacher_targets(teacher: Encoder, waveforms: Sequence[np.ndarray], sample_rate: int, dimensions: int) -> Tensor:
    """Return a teacher's embeddings of stretches, 16-bit integers, (N, D) unit vectors.

    Embeddings of all have much in common, and lie in fewer directions than they have numbers. Targets are the D
    principal components of the means over windows of 1.6 s, around the mean of all stretches.
    """
    rows = []
    for waveform in waveforms:
        samples = audio.resample(waveform.astype(np.float32) / 32767, sample_rate, teacher.sample_rate)
        length = round(_TEACHER_SECONDS * teacher.sample_rate)
        samples = np.resize(samples, max(length, len(samples)))
        starts = np.linspace(0, len(samples) - length, -(-len(samples) // length)).astype(int)
        rows.append(teacher.embed(np.stack([samples[start : start + length] for start in starts])).mean(0))
    values = np.array(rows, np.float64)
    centered = values - values.mean(0)
    axes = np.linalg.eigh(centered.T @ centered)[1][:, ::-1][:, :dimensions]
    return functional.normalize(torch.from_numpy(centered @ axes).float(), dim=-1)
