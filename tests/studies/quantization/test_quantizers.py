"""Points for a distribution: closed forms of optimal quantizers, POT, critical temperatures, and stacks of networks."""

import math

import numpy as np
import ot
import pytest
import scipy.optimize
import torch
from scipy.stats import norm

from sepkit.objectives.assignment import MCL, AnnealedMCL, RelaxedWTA
from sepkit.studies.quantization import quantizers
from sepkit.studies.quantization.gaussians import ThreeGaussians
from tests.complaint import complaint

UNIFORM = ((torch.arange(100_001, dtype=torch.float64) + 0.5) / 100_001)[:, None]
NORMAL = torch.from_numpy(norm.ppf(UNIFORM.numpy()))
ANNEALING = {"temperature": 0.5, "decay": 0.95, "epochs": 1000, "floor": 5e-4, "epsilon": 0.5}


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Optimal quantizers: N(0, 1), n = 2: +- sqrt(2 / pi), distortion 1 - 2 / pi; U(0, 1): (2 i - 1) / 2 n, 1 / 12 n^2.
@pytest.mark.parametrize(
    ("points", "optimal", "least"),
    [(NORMAL, [-math.sqrt(2 / math.pi), math.sqrt(2 / math.pi)], 1 - 2 / math.pi),
     (UNIFORM, [0.1, 0.3, 0.5, 0.7, 0.9], 1 / 300)],
)  # fmt: skip
def test_optimal_quantizers(points: torch.Tensor, optimal: list[float], least: float) -> None:
    """LBG and Lloyd's algorithm find them; competitive learning comes within 1 % of the distortion."""
    count = len(optimal)
    first = points[np.linspace(10, 70_000, count).astype(int)]
    for found in (quantizers.lbg(points, count), quantizers.lloyd(points, first)):
        assert found.sort(0).values.flatten().tolist() == pytest.approx(optimal, abs=1e-4)
        assert quantizers.distortion(points, found) == pytest.approx(least, rel=1e-3)
    learned = quantizers.clvq(points, count, steps=50_000)
    assert 0.999 * least < quantizers.distortion(points, learned) < 1.01 * least
    assert voronoi_weights(points, learned).tolist() == pytest.approx([1 / count] * count, abs=0.03)


def voronoi_weights(points: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
    """Share of the points that are nearest to each centroid."""
    return torch.bincount(torch.cdist(points, centroids).argmin(1), minlength=len(centroids)).double() / len(points)


def test_distortion_is_squared_wasserstein_with_voronoi_weights() -> None:
    """Proposition 3.1, against POT; with other weights it is more."""
    points, centroids = drawn(500, 3), drawn(7, 3, seed=1)
    cost = torch.cdist(points, centroids).square().numpy()
    transport = lambda weights: np.float64(ot.emd2(np.full(500, 1 / 500), weights, cost, numItermax=1_000_000))  # noqa: E731
    found, voronoi = quantizers.distortion(points, centroids), voronoi_weights(points, centroids)
    assert found == pytest.approx(transport((voronoi / voronoi.sum()).numpy()), abs=1e-6)
    assert found < transport(np.full(7, 1 / 7))


def test_fixed_point_of_lloyd_has_no_gradient() -> None:
    """Away from it only the winner of each point has one, 2 E[1(i wins) (a_i - Y)]; a centroid without points stays."""
    points = drawn(400, 2)
    centroids = quantizers.lloyd(points, points[:4]).requires_grad_()
    torch.cdist(points, centroids).square().amin(1).mean().backward()
    assert centroids.grad is not None and float(centroids.grad.abs().max()) < 1e-9
    assert quantizers.lloyd(points, torch.tensor([[0.0, 0.0], [99.0, 99.0]]))[1].tolist() == [99, 99]


def test_too_few_points() -> None:
    """Points that are all equal are one point."""
    same = torch.ones(10, 2)
    for quantize in (lambda: quantizers.clvq(same, 2, steps=1), lambda: quantizers.lbg(same, 2)):
        complaint(quantize, "1 distinct points, expected at least as many as there are centroids, 2")
    assert quantizers.lbg(same, 1).tolist() == [[1.0, 1.0]]


def test_mutual_information() -> None:
    """Between 0 and the smaller of log n and the entropy of the shares."""
    weights = torch.eye(4, dtype=torch.float64)[torch.arange(100) % 4]
    assert quantizers.mutual_information_bits(weights) == pytest.approx(2)
    assert quantizers.mutual_information_bits(torch.full((10, 4), 0.25, dtype=torch.float64)) == pytest.approx(0)
    soft = torch.softmax(drawn(50, 5), 1)
    entropy_bits = float(-(soft.mean(0) * soft.mean(0).log2()).sum())
    assert 0 < quantizers.mutual_information_bits(soft) <= min(math.log2(5), entropy_bits)


def free_energy(y: np.ndarray, hypotheses: np.ndarray, temperature: float) -> float:
    """From the definition."""
    distances = ((y[:, None] - hypotheses[None]) ** 2).sum(-1)
    return float(-temperature * np.mean(np.log(np.mean(np.exp(-distances / temperature), axis=1))))


def test_the_energy_is_least_and_hypotheses_are_means() -> None:
    """SciPy's BFGS on the definition agrees, from the same start."""
    y, temperature = drawn(60, 2), 0.5
    start = y[:3] + 0.1
    found = quantizers.settle_points(y, start, temperature)
    energy = lambda x: free_energy(y.numpy(), x.reshape(3, 2), temperature)  # noqa: E731
    peer = scipy.optimize.minimize(energy, start.flatten().numpy(), options={"gtol": 1e-9})
    assert free_energy(y.numpy(), found.numpy(), temperature) == pytest.approx(peer.fun, abs=1e-9)
    weights = (-torch.cdist(y, found).square() / temperature).softmax(1)
    assert found.numpy() == pytest.approx((weights.mT @ y / weights.sum(0)[:, None]).numpy(), abs=1e-5)


def test_a_gaussian_splits_along_its_longest_axis() -> None:
    """At twice the largest eigenvalue that NumPy finds."""
    y = drawn(400, 3) * torch.tensor([0.3, 2.0, 0.5]) + 100
    critical = 2 * np.linalg.eigvalsh(np.cov(y.numpy().T, bias=True))[-1]
    found = quantizers.anneal_points(y, 2)
    assert found["critical_temperature"] == pytest.approx(critical)
    assert found["splits"][0]["temperature"] == pytest.approx(critical, rel=0.02)
    places = np.array(found["places"])
    assert places[0] == pytest.approx(y.mean(0).expand(2, 3).numpy(), abs=0.02)
    assert np.abs(places[-1, 0] - places[-1, 1]).argmax() == 1


def test_groups_split_at_twice_the_variance_of_their_points() -> None:
    """Of two groups on a line, of points -1 and 1 and of points 8 and 12; a hypothesis alone does not split."""
    points = torch.tensor([[-1.0], [1.0], [8.0], [12.0]], dtype=torch.float64)
    for places, expected in (([0, 0, 10, 10], 8.0), ([10, 0, 10, 0], 8.0), ([0, 0, 10], 2.0), ([0, 10], 0.0)):
        hypotheses = torch.tensor(places, dtype=torch.float64)[:, None]
        assert quantizers.group_temperature(points, hypotheses, 1.0) == pytest.approx(expected)


def test_the_three_gaussians_of_the_paper() -> None:
    """Splits are seen where eq. 13 says: at 2 (2/9 + .01), and below 2 sigma^2 = .02 in each Gaussian."""
    found = quantizers.anneal_points(ThreeGaussians().sample(torch.ones(3000), torch.Generator().manual_seed(0)), 6)
    assert found["splits"][0]["temperature"] == pytest.approx(0.4644, rel=0.1)
    assert (found["groups"][0], found["groups"][-1]) == (1, 6) and 3 in found["groups"]
    late = [split["temperature"] for split in found["splits"] if split["groups_before"] >= 3]
    assert late == pytest.approx([0.02] * 3, rel=0.1)
    assert [split["predicted_temperature"] for split in found["splits"][-3:]] == pytest.approx([0.02] * 3, rel=0.1)
    ratios = [split["temperature"] / split["predicted_temperature"] for split in found["splits"]]
    assert ratios == pytest.approx([1.0] * len(ratios), abs=0.02)


def test_groups_are_counted_by_temperature() -> None:
    """Places nearer than .05 sqrt(T / 2) are one, and so are chains of them."""
    y = torch.tensor([[0.0, 0.0], [0.01, 0.0], [1.0, 0.0]])
    assert quantizers.count_groups(y, 0.5) == 2 and quantizers.count_groups(y, 0.01) == 3
    assert quantizers.count_groups(torch.linspace(0, 1, 50)[:, None], 2.0) == 1


def test_hand_values() -> None:
    """Squared distances 1, 4 and 9 from the target, by three kinds of matching."""
    points = torch.tensor([[[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]]], dtype=torch.float64)
    scores, target = torch.zeros(1, 1, 3, dtype=torch.float64), torch.zeros(1, 1, 2, dtype=torch.float64)
    matching, scoring, distances = quantizers.point_losses(points, scores, target, MCL())
    assert float(matching) == pytest.approx(1, abs=1e-6) and distances.flatten().tolist() == [1, 4, 9]
    assert float(scoring) == pytest.approx(math.log(2), abs=1e-6)
    relaxed = quantizers.point_losses(points, scores, target, RelaxedWTA(0.1))[0]
    assert float(relaxed) == pytest.approx(0.9 * 1 + 0.05 * (4 + 9), abs=1e-6)
    weights = [math.exp(-d / 2) for d in (1, 4, 9)]
    soft = sum(w * d for w, d in zip(weights, (1, 4, 9), strict=True)) / sum(weights)
    assert float(quantizers.point_losses(points, scores, target, AnnealedMCL(2.0))[0]) == pytest.approx(soft, abs=1e-6)
    assert quantizers.weighted_mean(points, scores)[0, 0].tolist() == pytest.approx([4 / 3, 2 / 3])


def test_methods_follow_their_schedules() -> None:
    """Temperatures and epsilon by epoch, and hard matching below the floor."""
    linear, exponential = (quantizers.build_method(f"amcl_{kind}", **ANNEALING) for kind in ("linear", "exponential"))
    relaxed = quantizers.build_method("relaxed_wta_annealed", **ANNEALING)
    for assignment in (linear, exponential, relaxed):
        assignment.set_progress(500)
    assert linear.scheduled == {"temperature": 0.25} and relaxed.scheduled == {"epsilon": 0.25}
    assert exponential.scheduled["temperature"] == pytest.approx(0.5 * 0.95**500)
    assert exponential.weights(torch.tensor([[[1.0], [1.00001]]])).flatten().tolist() == [1, 0]


@pytest.mark.parametrize("name", ["relaxed_wta_2", "relaxed_wta_x", "relaxed", "wta"])
def test_unknown_methods(name: str) -> None:
    """One line that says what there is."""
    complaint(lambda: quantizers.build_method(name, **ANNEALING), "--methods: found")
