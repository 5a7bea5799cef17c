"""Undoing swaps: each speaker is a tone, and the stub encoder identifies a tone by its frequency."""

import tracemalloc

import numpy as np
import pytest

from sepkit.inference.diarization import swaps
from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.swaps import Orders, find_orders

RATE = 1000
TONES = 100 * np.arange(1, 6)


class Tones:
    """An encoder whose embeddings are the powers of five tones, and what all voices have in common."""

    sample_rate, embedding_size, common = RATE, len(TONES), 0.0

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        waves = np.exp(2j * np.pi * np.outer(np.arange(waveforms.shape[1]), TONES) / RATE)
        powers = np.square(np.abs(waveforms @ waves))
        return unit_rows(powers + self.common * powers.max(1, keepdims=True)).astype(np.float32)


def voices(count: int, seconds: float = 20.3) -> np.ndarray:
    """Tones (count, T) that take turns of 1.5 s over each other, pause around 8.1 s, and end within a hop."""
    times = np.arange(round(seconds * RATE)) / RATE
    turns = (times // 1.5) % count == np.arange(count)[:, None]
    heard = np.where(turns, 1.0, 0.3) * (np.abs(times - 8.1) > 0.05)
    return (heard * np.sin(2 * np.pi * np.outer(TONES[:count], times))).astype(np.float32)


def orders_of(estimates: np.ndarray) -> Orders | None:
    def read(start: int, stop: int) -> np.ndarray:
        assert 0 <= start < stop <= estimates.shape[1]
        return estimates[:, start:stop]

    return find_orders(Tones(), read, estimates.shape[1], RATE)


def test_orders_fade_and_keep_the_sum_in_any_blocks() -> None:
    estimates = np.stack([np.arange(12), np.full(12, 100)]).astype(np.float32)
    orders = Orders(np.array([4, 9]), np.array([[0, 1], [1, 0], [0, 1]]), 4)
    arranged = orders.arrange(estimates)
    other = np.array([0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25, 0])
    np.testing.assert_allclose(arranged[0], (1 - other) * estimates[0] + other * 100)
    np.testing.assert_allclose(arranged.sum(0), estimates.sum(0))
    blocks = [orders.arrange(estimates[:, start : start + 5], start) for start in range(0, 12, 5)]
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1), arranged)
    np.testing.assert_array_equal(Orders(np.array([], int), np.array([[1, 0]]), 4).arrange(estimates), estimates[::-1])
    # Memory does not grow with the number of orders.
    tracemalloc.start()
    Orders(np.arange(1, 200) * 500, np.tile([[0, 1], [1, 0]], (100, 1)), 20).arrange(np.ones((2, 100_000), np.float32))
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


@pytest.mark.parametrize("order", [(1, 0), (1, 2, 0), (3, 0, 1, 2)])
@pytest.mark.parametrize("at_once", [60, 7, 1])
def test_swaps_are_undone_where_it_is_quiet(order: tuple[int, ...], at_once: int, monkeypatch) -> None:
    monkeypatch.setattr(swaps, "_AT_ONCE", at_once)
    speakers, swapped = voices(len(order)), voices(len(order))
    swapped[:, :8100] = swapped[list(order), :8100]
    found = orders_of(swapped)
    assert found is not None and len(found.edges) == 1 and 8050 <= found.edges[0] <= 8150
    # Most of the recording keeps its order.
    np.testing.assert_allclose(found.arrange(swapped), speakers, atol=1e-6)


def test_estimates_stay_where_no_swap_is_sure(monkeypatch) -> None:
    def swapped(count: int, stop: int, start: int = 0) -> np.ndarray:
        estimates = voices(count)
        estimates[:, start:stop] = estimates[::-1, start:stop]
        return estimates

    weaker = np.array([[1], [10 ** (-14 / 20)]], np.float32)
    assert all(orders_of(one) is not None for one in (swapped(2, 8100), swapped(2, 8100) * weaker, swapped(4, 8100)))
    assert orders_of(swapped(2, 13500, 12000)) is not None
    # Too short, much weaker, too many.
    unsure = [swapped(2, 12300, 12000), swapped(2, 8100) * weaker**1.2, swapped(5, 8100)]
    for estimates in (*unsure, voices(2), voices(1), np.zeros((2, 9000), np.float32), voices(2)[:, :1]):
        assert orders_of(estimates) is None
    # Two speakers with a cosine of 0.29, and of 0.51, who may be one.
    for common, is_found in ((0.15, True), (0.3, False)):
        monkeypatch.setattr(Tones, "common", common)
        assert (orders_of(swapped(2, 8100)) is not None) == is_found
