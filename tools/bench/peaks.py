"""Peak rates of this machine, and the needs of a model: multiply-adds, and memory that is read and written."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sepkit.models.products import linear

_MATRICES = (512, 1024, 2048)
_VECTOR_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Peaks:
    """Peak rates of this machine, at a number of threads.

    Args:
        gflops: 1e9 operations a second of a product of two float32 matrices, a multiply-add being two.
        gigabytes_per_second: read and written by a sum of two float32 vectors that no cache holds.
    """

    gflops: float
    gigabytes_per_second: float


def measure_peaks(
    threads: int, seconds: float = 2.0, matrices: Sequence[int] = _MATRICES, vector_bytes: int = _VECTOR_BYTES
) -> Peaks:
    """Return the best rates seen in some seconds.

    Args:
        threads: of torch, which stays so.
        seconds: for about this long each.
        matrices: rows and columns of the matrices whose products are tried.
        vector_bytes: of each of three vectors.
    """
    torch.set_num_threads(threads)
    x, y, z = torch.ones(3, vector_bytes // 4)
    products = []
    for size in matrices:
        a, b, c = torch.randn(3, size, size)
        with torch.no_grad():
            ways = (partial(torch.mm, a, b, out=c), partial(linear, a, b))
            products += [2e-9 * size**3 / _least_seconds(way, seconds / len(ways)) for way in ways]
    total = _least_seconds(lambda: torch.add(x, y, out=z), seconds)
    return Peaks(max(products), 3e-9 * vector_bytes / total)


def _least_seconds(function: Callable[[], Any], seconds: float) -> float:
    function()
    least, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        function()
        least = min(least, time.perf_counter() - start)
    return least


class _Traffic(TorchDispatchMode):
    """Adds up the bytes that operations read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        returns = function._schema.returns
        is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in returns)
        if not is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs or {}, result)) if isinstance(leaf, Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def bytes_moved(function: Callable[[], Any]) -> int:
    """Return the bytes that the operations of a call read and write if no cache keeps any of them."""
    with _Traffic() as traffic:
        function()
    return traffic.bytes
