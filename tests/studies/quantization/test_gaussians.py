"""Three Gaussians: critical temperatures, splits ordered by input, and the command at a tiny size."""

import math

import numpy as np
import pytest
import torch

from sepkit.objectives.assignment import MCL
from sepkit.studies.quantization.config import FreeConfig, GaussiansConfig
from sepkit.studies.quantization.gaussians import ThreeGaussians, _Watch, gaussian_rates


def test_critical_temperatures() -> None:
    """.46444 at rest, .02 + .4444 x^2 when moving; a sample has the covariance and the entropy."""
    assert ThreeGaussians().critical_temperature() == pytest.approx(0.464444, abs=1e-4)
    for x in (0.0, 0.3, 0.6, 1.0):
        assert ThreeGaussians(moving=True).critical_temperature(x) == pytest.approx(0.02 + 4 / 9 * x * x, abs=1e-9)
    for law, x in ((ThreeGaussians(), 0.5), (ThreeGaussians(moving=True), 0.5)):
        points = law.sample(torch.full((50_000,), x), torch.Generator().manual_seed(0)).double()
        torch.testing.assert_close(points.T.cov(correction=0), law.covariance(x), rtol=0, atol=5e-3)
    # The three hardly overlap: entropy of one, and of which one.
    expected = math.log(3) + math.log(2 * math.pi * math.e * 0.01)
    assert ThreeGaussians().entropy_nats(count=50_000) == pytest.approx(expected, abs=0.02)


def test_phases_are_before_between_and_after_the_partings() -> None:
    """Of four inputs that part at records 2, 3, 6 and 11 of 15, of the first network."""
    law, config = ThreeGaussians(moving=True), GaussiansConfig(probes=[1.0, 0.9, 0.6, 0.3])
    watch = _Watch(law, config)
    parted = [2, 3, 6, 11]
    for record in range(15):
        watch.points.append(torch.full((4, 1, 2), float(record)))
        watch.records["temperatures"].append(1 - record / 15)
        shares = [[1.0 if record < at else 0.4, 0.1] for at in parted]
        plateaus = [float(law.covariance(x).trace()) for x in config.probes]
        of = [[share * plateau for share in pair] for pair, plateau in zip(shares, plateaus, strict=True)]
        watch.records["distortions"].append(of)
    found = watch.phases(law)["phases"]
    assert [at[0][0][0] for at in found["hypotheses"]] == [1, 4, 8, 14]
    assert found["temperatures"] == pytest.approx([1 - record / 15 for record in (1, 4, 8, 14)])
    assert np.shape(found["targets"]) == (4, config.probe_points, 2)
    watch.records["distortions"][-1][3] = [plateaus[3], plateaus[3]]
    assert watch.phases(law) == {}


def test_groups_are_hypotheses_within_a_deviation_of_each_other() -> None:
    """At both inputs two of four, one that chains to them, and one apart; of the second network all in one place."""
    watch = _Watch(ThreeGaussians(moving=True), GaussiansConfig(probes=[0.5, 1.0], probe_points=5))
    places = torch.tensor([[0.0, 0.0], [0.09, 0.0], [0.18, 0.0], [0.0, 0.11]]).expand(2, 4, 2)
    points = torch.stack([places, torch.zeros(2, 4, 2)])
    watch.record(lambda inputs: (points, None), MCL())  # type: ignore[arg-type]
    assert watch.records["groups"] == [[[2, 1], [2, 1]]]


def test_gaussian_rate_and_distortion() -> None:
    """25 hypotheses for N(0, 1): soft distortion T / 2 within .01, rate within .02 bit of the bound."""
    rows = gaussian_rates(FreeConfig(points=2000))
    assert [row["temperature"] for row in rows] == [1.3, 0.9, 0.7, 0.5, 0.35]
    for row in rows:
        assert row["distortion"] == pytest.approx(row["temperature"] / 2, abs=0.01)
        assert row["bits"] == pytest.approx(0.5 * math.log2(2 / row["temperature"]), abs=0.02)
        assert row["hard_distortion"] < row["distortion"]
