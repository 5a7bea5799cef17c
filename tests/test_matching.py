"""The assignment of least cost: scipy is the oracle."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment as oracle

from sepkit.matching import linear_sum_assignment


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("kind", ["normal", "few_values", "decibels"])
def test_sums_are_those_of_scipy(kind, maximize):
    generator = np.random.default_rng(0)
    for shape in [(1, 1), (2, 2), (2, 5), (5, 2), (6, 6), (7, 30), (40, 40)] * 10:
        cost = {
            "normal": lambda shape: generator.normal(size=shape),
            "few_values": lambda shape: generator.integers(0, 3, shape),
            "decibels": lambda shape: 1e6 * generator.normal(size=shape) ** 7,
        }[kind](shape)
        rows, columns = linear_sum_assignment(cost, maximize)
        expected_rows, expected_columns = oracle(cost, maximize)
        np.testing.assert_array_equal(np.sort(rows), rows)
        assert len(set(rows)) == len(set(columns)) == len(rows) == min(shape)
        assert cost[rows, columns].sum() == pytest.approx(cost[expected_rows, expected_columns].sum(), rel=1e-12)
        if kind != "few_values":
            np.testing.assert_array_equal(rows, expected_rows)
            np.testing.assert_array_equal(columns, expected_columns)


def test_equal_costs_keep_the_order():
    for shape in [(3, 3), (2, 4), (4, 2)]:
        np.testing.assert_array_equal(linear_sum_assignment(np.ones(shape)), [range(min(shape))] * 2)


def test_no_rows_and_no_columns_have_no_pairs():
    assert [part.size for part in linear_sum_assignment(np.zeros((0, 3)))] == [0, 0]
    assert [part.size for part in linear_sum_assignment(np.zeros((3, 0)))] == [0, 0]


@pytest.mark.parametrize("cost", [[1.0, 2.0], [[np.nan, 1.0]], [[np.inf, 1.0]]])
def test_what_is_no_matrix_of_finite_costs_is_refused(cost):
    with pytest.raises(ValueError, match="matrix of finite costs"):
        linear_sum_assignment(cost)
