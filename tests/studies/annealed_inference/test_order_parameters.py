"""The two forces against adaptive quadrature and their limits, and the flow of the order parameters."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit

from sepkit.schedules import Constant, InverseTemperature
from sepkit.studies.annealed_inference import order_parameters as op

RADIUS, HEAVY = 3.0, 0.8
SIGMAS = (0.3, 1.0, 2.0, 7.0, 30.0, 100.0)


def _normal(x):
    return math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _adaptive(function, points):
    """Integrate over the line, given the places where the integrand changes."""
    inner = sorted(p for p in points if -12 < p < 12)
    edges = [-12.0, *inner, 12.0]
    return sum(quad(function, a, b, epsabs=1e-12, limit=400)[0] for a, b in itertools.pairwise(edges))


def _repulsion_integral(s, sigma):
    """Eq. C.19."""
    ratio = RADIUS / sigma
    return _adaptive(lambda x: expit(ratio * math.sqrt(2 * (1 - s)) * x + ratio**2 * (s - 1)) ** 2 * _normal(x), [0])


def _pull_integrals(m, sigma):
    """Eq. C.19 and its derivative, cut where the integrand steps."""
    offset = RADIUS**2 * (m + op.bias(RADIUS, HEAVY))
    zero, width = -offset / (RADIUS * sigma), 20 / (RADIUS * sigma)
    points = [zero - width, zero, zero + width]
    value = _adaptive(lambda x: -math.tanh(offset + RADIUS * sigma * x) * _normal(x), points)
    slope = _adaptive(lambda x: -(RADIUS**2) * (1 - math.tanh(offset + RADIUS * sigma * x) ** 2) * _normal(x), points)
    return value, slope


@pytest.mark.parametrize("sigma", SIGMAS)
def test_repulsion_is_its_integral(sigma):
    """f and df/dv are within 1e-5 of adaptive quadrature of eq. C.19."""
    for s in (-1.0, -0.4, 0.0, 0.7, 0.99):
        assert float(op.repulsion(s, RADIUS, sigma)) == pytest.approx(_repulsion_integral(s, sigma), abs=1e-5)
    ratio = 2 * (RADIUS / sigma) ** 2
    for s in (-0.9, 0.0, 0.9):
        above, below = (_repulsion_integral(s + step, sigma) for step in (1e-4, -1e-4))
        slope = -ratio * float(op._repulsion_of_variance(ratio * (1 - s))[1])
        assert slope == pytest.approx((above - below) / 2e-4, abs=1e-5)


@pytest.mark.parametrize("sigma", [0.2, *SIGMAS])
def test_pull_is_its_integral(sigma):
    """g and dg/dm are within 1e-5 of adaptive quadrature, also where its integrand is a step or a narrow Gaussian."""
    for m in (-1.0, -op.bias(RADIUS, HEAVY), -0.02, 0.0, 0.5, 1.0):
        value, slope = _pull_integrals(m, sigma)
        assert float(op.pull(m, RADIUS, sigma, HEAVY)) == pytest.approx(value, abs=1e-5)
        assert float(op.pull_slope(m, RADIUS, sigma, HEAVY)) == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize(("steps", "lag"), [(500, 1.219), (250, 1.5585)])
def test_variances_lag(steps, lag):
    """They reach 1 / (1 - 2 (1 - rate^(-1/2)) / eta) while beta grows, 1.219 in the paper's own setting, and then 1."""
    betas = [InverseTemperature(1 / 90, steps)(t) for t in range(2 * steps)]
    integrated = op.variance_lags(betas, 0.05, "integrated")
    stationary = 1 / (1 - 2 * (1 - 90 ** (-1 / (2 * steps))) / 0.05)
    assert stationary == pytest.approx(lag, abs=5e-4)
    assert integrated[0] == 1 and integrated[steps - 1] == pytest.approx(stationary, rel=1e-3)
    assert integrated[-1] == pytest.approx(1, abs=1e-3)
    assert (op.variance_lags(betas, 0.05) == 1).all()


@pytest.mark.parametrize("dimension", [3, 8, 512])
def test_random_starts_have_the_law_of_directions(dimension):
    """Moments of m1, m2, s: mean 0, variance 1 / d, uncorrelated; E m^4 = 3 / (d (d + 2)); E m1 m2 s = 1 / d^2."""
    n = 200_000
    start = op.random_starts(n, dimension, seed=1)
    values = np.stack([start.m1, start.m2, start.s])
    assert np.abs(values).max() <= 1
    bound = 6 / math.sqrt(n)
    assert np.abs(values.mean(1)).max() * math.sqrt(dimension) < bound
    assert np.cov(values) * dimension == pytest.approx(np.eye(3), abs=2 * bound)
    assert (values**4).mean(1) * dimension * (dimension + 2) == pytest.approx(np.full(3, 3), abs=12 * bound)
    # <mu1, e> <mu2, e> <mu1, mu2> has mean 1 / d^2.
    assert (start.m1 * start.m2 * start.s).mean() * dimension**2 == pytest.approx(1, abs=bound * dimension**0.5)


def _by_solver(m1, m2, s, beta, time):
    """Compute the same flow by an adaptive solver with the forces themselves."""
    from scipy.integrate import solve_ivp

    sigma = beta**-0.5

    def slope(_, y):
        m1, m2, s = y
        f = float(op.repulsion(s, RADIUS, sigma))
        g1, g2 = float(op.pull(m1, RADIUS, sigma, HEAVY)) / 2, float(op.pull(m2, RADIUS, sigma, HEAVY)) / 2
        d1, d2 = m2 - m1 * s, m1 - m2 * s
        return [-(d1 * f + (1 - m1**2) * g1), -(d2 * f + (1 - m2**2) * g2), -(2 * (1 - s**2) * f + d1 * g1 + d2 * g2)]

    return solve_ivp(slope, (0, time), [m1, m2, s], rtol=1e-6, atol=1e-8).y[:, -1]


@pytest.mark.parametrize("beta", [0.02, 1.0])
def test_flow_is_that_of_an_adaptive_solver(beta):
    """Small Euler steps with tables end where a Runge-Kutta solver with the exact forces ends."""
    starts = op.OrderParameters(np.array([0.05, -0.2]), np.array([-0.03, 0.3]), np.array([0.02, -0.5]))
    flow = op.integrate(starts, Constant(beta), steps=3000, radius=RADIUS, heavy_weight=HEAVY, step_size=1e-3)
    for k in range(2):
        expected = _by_solver(starts.m1[k], starts.m2[k], starts.s[k], beta, 3.0)
        assert [flow.end.m1[k], flow.end.m2[k], flow.end.s[k]] == pytest.approx(expected, abs=2e-3)


def test_flow_is_symmetric_and_records_the_way():
    """Exchanging components exchanges the overlaps; what is recorded begins at the start."""
    starts = op.random_starts(50, 64, seed=3)
    turned = op.OrderParameters(starts.m2, starts.m1, starts.s)
    settings = {"steps": 60, "radius": RADIUS, "heavy_weight": HEAVY, "variance": "integrated", "record_every": 20}
    one, other = (op.integrate(start, InverseTemperature(1 / 90, 40), **settings) for start in (starts, turned))
    assert one.end.m1 == pytest.approx(other.end.m2, abs=1e-12)
    assert one.steps == [0, 20, 40, 60]
    assert (one.path[0] == np.stack([starts.m1, starts.m2, starts.s])).all()
    assert (one.path[-1] == np.stack([one.end.m1, one.end.m2, one.end.s])).all()


def test_collapse_is_both_means_on_one_side():
    """The border is at -epsilon."""
    epsilon = op.bias(RADIUS, HEAVY)
    end = op.OrderParameters(np.array([1.0, 1.0, -1.0, -epsilon + 1e-3]), np.array([1.0, -1.0, -1.0, 0.5]), np.zeros(4))
    assert op.collapsed(end, RADIUS, HEAVY).tolist() == [True, False, True, True]
