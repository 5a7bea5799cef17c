"""Contrastive losses over instances: InfoNCE, and a mixture of contrastive experts (MiCE).

All embeddings have unit length. An instance is told from those of a queue: teacher embeddings of earlier batches.

Source: Tsai, Li and Zhu, "MiCE: Mixture of Contrastive Experts for Unsupervised Image Clustering", ICLR 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from sepkit.errors import UserError

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


@dataclass(frozen=True)
class InfoNCE:
    """Minus the log probability of the own instance among it and the queue (MoCo), (B,) nats.

    Source: He et al., "Momentum contrast for unsupervised visual representation learning", CVPR 2020.
    """

    temperature: float

    def __call__(self, student: Tensor, teacher: Tensor, queue: ContrastiveQueue, instances: Tensor) -> Tensor:
        """Return the loss of each instance, (B,), for embeddings (B, 1, D); those of the same instance are no
        negatives."""
        return -log_expert(student, teacher, queue.embeddings, queue.own(instances), self.temperature)[:, 0]


@dataclass
class MixtureLoss:
    """The value of a mixture of contrastive experts: the loss (B,) -log sum_k pi_k phi_k, nats, log pi_k and log phi_k
    (B, K)."""

    loss: Tensor
    log_gate: Tensor
    log_experts: Tensor

    @property
    def posterior(self) -> Tensor:
        """(B, K) q_k = pi_k phi_k / sum_j pi_j phi_j (equation 10)."""
        return (self.log_gate + self.log_experts).softmax(-1)


@dataclass(frozen=True)
class MixtureOfContrastiveExperts:
    """The loss of MiCE: minus its evidence lower bound, which at its own posterior is -log sum_k pi_k phi_k.

        pi_k = softmax_k(omega_k . g / kappa)

    The gap of the bound is the divergence of q from the exact posterior of the approximated model, which is 0.

    Source: MiCE paper, equations 4 to 11.
    """

    temperature: float
    gate_temperature: float = 1.0

    def __call__(
        self,
        student: Tensor,
        teacher: Tensor,
        queue: ContrastiveQueue,
        instances: Tensor,
        gate: Tensor | None,
        centers: Tensor | None,
        prototypes: Tensor | None,
    ) -> MixtureLoss:
        """Return loss, gate and experts for embeddings (B, K, D), or (B, 1, D) for one head that all experts share."""
        own = queue.own(instances)
        log_experts = log_expert(student, teacher, queue.embeddings, own, self.temperature, prototypes)
        return mix(log_experts, gate_of(gate, centers, self.gate_temperature))


def gate_of(gate: Tensor | None, centers: Tensor | None, temperature: float) -> Tensor | None:
    """Return log pi_k, (B, K), for embeddings (B, D) and centers (K, D); None for a uniform gate."""
    if gate is None or centers is None or math.isinf(temperature):
        return None
    return ((gate @ centers.T).float() / temperature).log_softmax(-1)


def mix(log_experts: Tensor, log_gate: Tensor | None) -> MixtureLoss:
    """Return the loss of a mixture of experts (B, K), with its parts; without a gate it is uniform."""
    uniform = torch.full_like(log_experts, -math.log(log_experts.shape[-1]))
    log_experts, gate = torch.broadcast_tensors(log_experts, uniform if log_gate is None else log_gate)
    return MixtureLoss(-(gate + log_experts).logsumexp(-1), gate, log_experts)


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
