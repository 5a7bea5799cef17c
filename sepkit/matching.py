"""The best one-to-one assignment of a matrix of costs, in numpy: for matrices of a few hundred rows."""

import numpy as np
from numpy.typing import ArrayLike


def linear_sum_assignment(cost: ArrayLike, maximize: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (k,), ascending, and their columns (k,), whose entries have the least sum; k is the smaller side.

    Each row and each column occurs at most once. Of two free columns that cost a row the same, it takes the first.

    >>> linear_sum_assignment([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0]])
    (array([0, 1]), array([1, 0]))

    Args:
        cost: (rows, columns), finite.
        maximize: whether the sum is to be the greatest instead.

    Raises:
        ValueError: not a matrix, or entries that are not finite.

    Source: the method of shortest augmenting paths, D. F. Crouse, "On implementing 2D rectangular assignment
    algorithms", IEEE Transactions on Aerospace and Electronic Systems 52(4), 2016, section II.
    """
    matrix = np.asarray(cost, np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise ValueError(f"expected a matrix of finite costs, found an array of shape {matrix.shape}")
    matrix = -matrix if maximize else matrix
    if matrix.shape[0] <= matrix.shape[1]:
        return np.arange(len(matrix)), _columns_of_rows(matrix)
    rows = _columns_of_rows(matrix.T)
    order = np.argsort(rows)
    return rows[order], order


def _columns_of_rows(cost: np.ndarray) -> np.ndarray:
    """Return the column (n,) of each row of a cost (n, m), n <= m."""
    n, m = cost.shape
    column_of, row_of = np.full(n, -1), np.full(m, -1)
    # Reduced costs `cost - row_price - column_price` are never negative, and zero where a row has its column.
    row_price, column_price = np.zeros(n), np.zeros(m)
    for start in range(n):
        distance, before, visited = np.full(m, np.inf), np.full(m, -1), np.zeros(m, bool)
        row, length = start, 0.0
        while True:
            through = length + cost[row] - row_price[row] - column_price
            nearer = ~visited & (through < distance)
            distance[nearer], before[nearer] = through[nearer], row
            waiting = np.where(visited, np.inf, distance)
            length = waiting.min()
            nearest = np.flatnonzero(waiting == length)
            free = nearest[row_of[nearest] < 0]
            if free.size:
                break
            visited[nearest[0]] = True
            row = row_of[nearest[0]]
        row_price[start] += length
        row_price[row_of[visited]] += length - distance[visited]
        column_price[visited] -= length - distance[visited]
        column, row = free[0], -1
        while row != start:
            row = before[column]
            row_of[column] = row
            column, column_of[row] = column_of[row], column
    return column_of
