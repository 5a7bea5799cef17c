"""Scores of examples: a row for each, and means that do not depend on their order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def rows_of(columns: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return a row for each example; columns are (B,) each, by name; they move to the host together."""
    first = next(iter(columns.values()))
    values = torch.stack([column.to(first) for column in columns.values()], dim=1).tolist()
    return [dict(zip(columns, row, strict=True)) for row in values]


def mean(values: Iterable[float]) -> float:
    """Return the mean of one or more values, independent of their order."""
    values = list(values)
    return math.fsum(values) / len(values)
