"""Contrastive losses against their definitions, and against each other where they meet."""

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from sepkit.studies.speaker_clustering import losses
from tests.complaint import complaint

B, K, D, NU = 6, 4, 8, 11


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1)


def queue_of(embeddings: torch.Tensor, instances: list[int]) -> losses.ContrastiveQueue:
    queue = losses.ContrastiveQueue(*embeddings.shape).double()
    queue.add(embeddings, torch.tensor(instances))
    return queue


@pytest.fixture
def parts() -> dict[str, torch.Tensor]:
    names = {"student": (B, K, D), "teacher": (B, K, D), "queue": (NU, K, D), "gate": (B, D), "prototypes": (K, D)}
    made = {name: unit(*shape, seed=seed) for seed, (name, shape) in enumerate(names.items())}
    return made | {"centers": losses.max_mahalanobis_centers(K, D).double()}


def mice(parts: dict[str, torch.Tensor], tau: float = 0.3, kappa: float = 0.5):
    queue = queue_of(parts["queue"], list(range(100, 100 + NU)))
    rest = (parts[name] for name in ("gate", "centers", "prototypes"))
    return losses.mixture_loss(parts["student"], parts["teacher"], queue, torch.arange(B), (tau, kappa), *rest)


@pytest.mark.parametrize(("clusters", "dimensions"), [(1, 3), (2, 1), (3, 8), (10, 128), (9, 8)])
def test_centers_are_as_far_apart_as_possible(clusters: int, dimensions: int) -> None:
    gram = losses.max_mahalanobis_centers(clusters, dimensions).double()
    gram = gram @ gram.T
    expected = torch.full((clusters, clusters), -1 / max(1, clusters - 1), dtype=torch.float64)
    expected.fill_diagonal_(1.0)
    torch.testing.assert_close(gram, expected, atol=1e-6, rtol=0)


def test_more_centers_than_there_can_be_are_refused() -> None:
    complaint(lambda: losses.max_mahalanobis_centers(D + 2, D), "expected 1 to 9")


def test_loss_is_the_evidence_bound_at_its_own_posterior(parts: dict[str, torch.Tensor]) -> None:
    """Every factor is computed from the paper's equations 4 to 11, one instance and expert at a time."""
    tau, kappa = 0.3, 0.5
    found = mice(parts, tau, kappa)
    for n in range(B):
        gate = torch.stack([torch.exp(parts["centers"][k] @ parts["gate"][n] / kappa) for k in range(K)])
        gate = gate / gate.sum()
        experts = []
        for k in range(K):
            query = parts["student"][n, k] + parts["prototypes"][k]
            own = torch.exp(parts["teacher"][n, k] @ query / tau)
            others = sum(torch.exp(parts["queue"][i, k] @ query / tau) for i in range(NU))
            experts.append(own / (own + others))
        expert = torch.stack(experts)
        q = gate * expert / (gate * expert).sum()
        bound = (q * (gate.log() + expert.log() - q.log())).sum()
        assert float(found.loss[n]) == pytest.approx(-float(bound), abs=1e-6)
        torch.testing.assert_close(found.posterior[n].double(), q, atol=1e-6, rtol=0)


def test_a_uniform_gate_and_one_head_are_info_nce(parts: dict[str, torch.Tensor]) -> None:
    student, teacher, queued = (parts[name][:, :1] for name in ("student", "teacher", "queue"))
    queue, instances = queue_of(queued, list(range(100, 100 + NU))), torch.arange(B)
    of_moco = losses.info_nce(student, teacher, queue, instances, 0.3)
    logits = torch.cat([(student * teacher).sum(-1), student[:, 0] @ queued[:, 0].T], dim=1) / 0.3
    oracle = cross_entropy(logits, torch.zeros(B, dtype=torch.long), reduction="none")
    torch.testing.assert_close(of_moco.double(), oracle, atol=1e-6, rtol=0)
    experts = [tensor.expand(-1, K, -1) for tensor in (student, teacher)]
    many = queue_of(queued.expand(-1, K, -1), list(range(100, 100 + NU)))
    found = losses.mixture_loss(*experts, many, instances, (0.3, 1.0), None, parts["centers"])
    torch.testing.assert_close(found.loss.double(), oracle, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.posterior, torch.full((B, K), 1 / K), atol=1e-6, rtol=0)


def test_prototypes_are_one_step_of_spherical_k_means() -> None:
    """With one head and uniform parts the posterior follows the nearest prototype, and equation 13 is the mean."""
    points, prototypes = unit(20, D, seed=5), unit(3, D, seed=6)
    nearest = (points @ prototypes.T).argmax(-1)
    expected = torch.stack([normalize(points[nearest == k].sum(0), dim=0) for k in range(3)])
    sums, found = losses.PrototypeSums(3, D).double(), prototypes.clone()
    likeness = (points @ prototypes.T).softmax(-1)
    sums.add(points[:7, None], likeness[:7])
    sums.add(points[7:, None], likeness[7:])
    sums.update(found)
    torch.testing.assert_close(found, expected)
    assert not sums.sums.any()


def test_an_empty_cluster_keeps_its_prototype() -> None:
    prototypes, sums = unit(2, D).float(), losses.PrototypeSums(2, D)
    before = prototypes.clone()
    sums.add(unit(3, 1, D, seed=1).float(), torch.tensor([[0.9, 0.1]] * 3))
    sums.update(prototypes)
    assert torch.equal(prototypes[1], before[1]) and not torch.equal(prototypes[0], before[0])


def test_queue_is_a_ring() -> None:
    queue, batches = losses.ContrastiveQueue(5, 1, D), unit(6, 1, D).float().split(2)
    assert queue.embeddings.norm(dim=-1).mean() == pytest.approx(1.0, abs=0.15)
    for number, batch in enumerate(batches):
        queue.add(batch, torch.tensor([2 * number, 2 * number + 1]))
        assert int(queue.position) == 2 * (number + 1) % 5
    assert queue.instances.tolist() == [5, 1, 2, 3, 4]
    torch.testing.assert_close(queue.embeddings[0], batches[2][1])
    torch.testing.assert_close(queue.embeddings[4], batches[2][0])


def test_queue_smaller_than_a_batch_keeps_the_last() -> None:
    queue = losses.ContrastiveQueue(2, 1, D)
    queue.add(unit(5, 1, D).float(), torch.arange(5))
    assert sorted(queue.instances.tolist()) == [3, 4]


def test_own_instance_is_no_negative(parts: dict[str, torch.Tensor]) -> None:
    """With the own older embedding in the queue, the loss is that of a queue without it."""
    one = {name: tensor[:, :1] if tensor.ndim == 3 else tensor for name, tensor in parts.items()}
    full = queue_of(one["queue"], [0, *range(100, 99 + NU)])
    rest = queue_of(one["queue"][1:], list(range(100, 99 + NU)))
    found, without = (losses.info_nce(one["student"], one["teacher"], q, torch.arange(B), 0.3) for q in (full, rest))
    torch.testing.assert_close(found[0], without[0])
    assert found[1] > without[1]


def test_relabeling_experts_relabels_the_posterior(parts: dict[str, torch.Tensor]) -> None:
    order = torch.tensor([2, 0, 3, 1])
    moved = {name: tensor if name == "gate" else tensor[..., order, :] for name, tensor in parts.items()}
    before, after = mice(parts), mice(moved)
    torch.testing.assert_close(after.posterior, before.posterior[:, order])
    torch.testing.assert_close(after.loss, before.loss)


def test_gradient_is_that_of_the_exact_posterior(parts: dict[str, torch.Tensor]) -> None:
    """d loss / d theta = -sum_k q_k d log(pi_k phi_k) / d theta, with q held."""
    student = parts["student"].clone().requires_grad_()
    found = mice(parts | {"student": student})
    (whole,) = torch.autograd.grad(found.loss.sum(), student, retain_graph=True)
    held = -(found.posterior.detach() * (found.log_gate + found.log_experts)).sum()
    (by_parts,) = torch.autograd.grad(held, student)
    torch.testing.assert_close(whole, by_parts)
