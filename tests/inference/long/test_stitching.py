import numpy as np
import pytest

from sepkit.inference.long.stitching import Chunking, match_overlap


@pytest.mark.parametrize("num_samples", [1, 5, 10, 11, 14, 15, 16, 100, 101])
@pytest.mark.parametrize("chunking", [Chunking(10, 5), Chunking(10, 3), Chunking(10, 1), Chunking(7, 2)])
def test_weights_of_all_chunks_are_one_everywhere(num_samples, chunking):
    count, total, end = 1 + max(0, -(-(num_samples - chunking.chunk) // chunking.hop)), np.zeros(num_samples), 0
    for k in range(count):
        start, end = k * chunking.hop, min(num_samples, k * chunking.hop + chunking.chunk)
        assert end - start > (chunking.overlap if k else 0)
        total[start:end] += chunking.weights(end - start, first=k == 0, last=k == count - 1)
    assert end == num_samples
    np.testing.assert_allclose(total, 1, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("level", [1.0, 1e-3])
def test_estimates_in_any_order_are_matched(n, level):
    """Each estimate contains some of the others, and the quiet ones count as much as the loud ones."""
    generator = np.random.default_rng(n)
    sources = generator.normal(size=(n, 4000)) * np.logspace(0, -2, n)[:, None]
    before, after = (sources + 1e-3 * generator.normal(size=sources.shape) for _ in range(2))
    after = level * (after + 1e-3 * sources.sum(0))
    order = generator.permutation(n)
    found = match_overlap(before.astype(np.float32), after[order].astype(np.float32))
    np.testing.assert_array_equal(found, np.argsort(order))


def test_order_by_hand():
    """Estimates in no way alike change places; the sign counts, and silence keeps its place."""
    first, second, silent = np.zeros((3, 256), np.float32)
    first[::2], second[1::2] = 2**0.5, 0.5 * 2**0.5
    for after, order in (
        ([second, first], [1, 0]),
        ([-first, first + second], [1, 0]),
        ([silent, first], [1, 0]),
        ([silent, second], [0, 1]),
        ([silent, silent], [0, 1]),
    ):
        np.testing.assert_array_equal(match_overlap(np.stack([first, second]), np.stack(after)), order)
    np.testing.assert_array_equal(match_overlap(np.zeros((2, 256)), np.stack([first, second])), [0, 1])
