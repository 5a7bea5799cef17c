"""The closed forms of the probability of collapse against roots, grids and quadrature."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
from scipy.special import lambertw

from sepkit.schedules import InverseTemperature
from sepkit.studies.annealed_inference import planning
from sepkit.studies.annealed_inference.order_parameters import bias, random_starts

SETTING = {"dimension": 512, "radius": 3.0, "heavy_weight": 0.8}


def test_alpha_is_where_the_sum_of_overlaps_loses_its_stability():
    """.5863 for R = 3, w* = .8, and .58343 for R to infinity, where the weights no longer matter."""
    assert planning.stability_alpha(3.0, 0.8) == pytest.approx(0.5863, abs=1e-4)
    assert planning.stability_alpha(1000.0, 0.7) == pytest.approx(0.58343, abs=1e-4)


@pytest.mark.parametrize("radius", [2.0, 3.0, 10.0])
def test_optimal_start_is_the_maximum_over_a_grid(radius):
    """Both Lambert forms agree with the maximum of I on a fine grid; .0051011 for R = 3."""
    best = planning.optimal_initial_beta(radius, planning.PAPER_ALPHA)
    z = -math.sqrt(planning.PAPER_ALPHA) / (math.e * radius)
    w = float(lambertw(z, -1).real)
    assert best == pytest.approx(math.exp(2 + 2 * w), rel=1e-12)
    grid = best * np.exp(np.linspace(-0.02, 0.02, 4001))
    values = [planning.growth_exponent(b, 500, 0.05, radius, planning.PAPER_ALPHA) for b in grid]
    # I is flat at its maximum: the vertex of a parabola through the grid is far more precise than its largest value.
    a, b, _ = np.polyfit(np.log(grid / best), values, 2)
    assert a < 0 and best * math.exp(-b / (2 * a)) == pytest.approx(best, abs=1e-6)
    if radius == 3:
        assert best == pytest.approx(0.0051011, abs=1e-7)
        assert planning.growth_exponent(best, 500, 0.05, radius, planning.PAPER_ALPHA) == pytest.approx(2.137, abs=1e-3)


def test_probability_is_the_paper_s():
    """p = erf(sqrt(d) epsilon e^-I) to 1e-10, in flow time: .248 for beta_i = 1/90, t0 = 500, and not 3e-18."""
    growth = planning.growth_exponent(1 / 90, 500, 0.05, 3.0, planning.PAPER_ALPHA)
    by_hand = math.sqrt(2 / math.pi) * 25 / math.log(90) * (math.sqrt(0.608) - math.sqrt(9 / 90))
    assert growth == pytest.approx(by_hand, abs=1e-12)
    p = planning.collapse_probability(growth, **SETTING)
    epsilon = math.log(4) / 18
    assert p == pytest.approx(math.erf(math.sqrt(512) * epsilon * math.exp(-by_hand)), abs=1e-10)
    assert p == pytest.approx(0.248, abs=5e-4)
    # Eq. D.10, the Gaussian integral that this is.
    x = np.linspace(-1, 1, 200_001) * 2 * epsilon * math.exp(-by_hand)
    density = math.sqrt(512 / (4 * math.pi)) * np.exp(-512 * x**2 / 4)
    assert p == pytest.approx(float(np.trapezoid(density, x)), abs=1e-10)
    without_eta = planning.growth_exponent(1 / 90, 500, 1.0, 3.0, planning.PAPER_ALPHA)
    assert planning.collapse_probability(without_eta, **SETTING) < 1e-16
    repelled = planning.growth_exponent(1 / 90, 500, 0.05, 3.0, planning.stability_alpha(3.0, 0.8))
    assert planning.collapse_probability(repelled, **SETTING, repelled=True) == pytest.approx(0.188, abs=5e-4)


def test_least_probability_is_at_the_optimum():
    """p over beta_i has its minimum within a factor of 2 of beta_i*."""
    betas = np.geomspace(1e-5, 0.06, 400)
    exponents = [planning.growth_exponent(beta, 300, 0.05, 3.0, planning.PAPER_ALPHA) for beta in betas]
    p = [planning.collapse_probability(exponent, **SETTING) for exponent in exponents]
    assert 0.5 < betas[int(np.argmin(p))] / planning.optimal_initial_beta(3.0, planning.PAPER_ALPHA) < 2


def test_hot_starts_depend_on_the_rate_alone():
    """I approaches the asymptote of its rate as beta_i falls at a fixed rate."""
    rate = 1.01
    limit = planning.growth_by_rate(rate, 0.05, planning.PAPER_ALPHA)
    gaps = []
    for beta in (1e-2, 1e-4, 1e-8):
        steps = math.log(1 / beta) / math.log(rate)
        gaps.append(1 - planning.growth_exponent(beta, steps, 0.05, 3.0, planning.PAPER_ALPHA) / limit)
    assert gaps == pytest.approx([3 * b**0.5 / planning.PAPER_ALPHA**0.5 for b in (1e-2, 1e-4, 1e-8)])


def test_growth_by_quadrature():
    """The closed form equals the integral of eq. 3.7 up to the end of the hot phase, found on the schedule itself."""
    alpha, eta, radius, beta, t0 = 0.6, 0.05, 3.0, 0.01, 400.0
    schedule = InverseTemperature(beta, t0)
    end = scipy.optimize.brentq(lambda t: schedule(t) - alpha / radius**2, 0, t0)
    integral, _ = scipy.integrate.quad(lambda t: eta * math.sqrt(radius**2 * schedule(t) / (2 * math.pi)), 0, end)
    assert planning.growth_exponent(beta, t0, eta, radius, alpha) == pytest.approx(integral, abs=1e-8)


def test_starts_alone():
    """The probability that both means start on one side: .92, as counted over random directions."""
    p = planning.start_probability(**SETTING)
    assert p == pytest.approx(0.922, abs=1e-3)
    start = random_starts(100_000, 512, seed=4)
    epsilon = bias(3.0, 0.8)
    counted = ((start.m1 > -epsilon) == (start.m2 > -epsilon)).mean()
    assert counted == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / 100_000))
    assert planning.start_probability(3, 0.1, 0.99) == 1.0


def test_no_bias_and_no_hot_phase():
    """w* = .5 never collapses by this mechanism; above alpha / R^2 nothing grows."""
    assert planning.collapse_probability(1.0, 512, 3.0, 0.5) == 0
    assert planning.growth_exponent(0.07, 500, 0.05, 3.0, planning.PAPER_ALPHA) == 0


@pytest.mark.parametrize("repelled", [False, True])
def test_steps_for_a_probability_are_the_inverse(repelled):
    """The t0 that is found gives the requested probability."""
    t0 = planning.steps_for_probability(0.1, 0.005, 0.05, 512, 3.0, 0.8, planning.PAPER_ALPHA, repelled=repelled)
    growth = planning.growth_exponent(0.005, t0, 0.05, 3.0, planning.PAPER_ALPHA)
    assert planning.collapse_probability(growth, **SETTING, repelled=repelled) == pytest.approx(0.1, abs=1e-10)
    assert planning.steps_for_probability(0.999, 0.005, 0.05, 512, 3.0, 0.8, planning.PAPER_ALPHA) == 0
    assert planning.steps_for_probability(0.1, 0.08, 0.05, 512, 3.0, 0.8, planning.PAPER_ALPHA) == math.inf
