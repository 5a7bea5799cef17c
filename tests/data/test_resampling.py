"""Resampling block by block against scipy on the whole signal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import resample_poly

from sepkit.data.resampling import PolyphaseStream

RATES = [(16000, 8000), (8000, 16000), (44100, 8000), (8000, 44100), (48000, 8000), (8000, 48000), (11025, 8000)]
RATES += [(7999, 8000), (8000, 8000)]


@pytest.mark.parametrize(("from_rate", "to_rate"), RATES)
@given(num_samples=st.integers(1, 2000), sizes=st.lists(st.integers(0, 400), min_size=1, max_size=6))
@settings(max_examples=10, deadline=None)
def test_any_blocks_give_what_scipy_makes_of_the_whole(from_rate, to_rate, num_samples, sizes):
    signal = np.random.default_rng(num_samples).standard_normal((2, num_samples)).astype(np.float32)
    stream, position, parts = PolyphaseStream(from_rate, to_rate, 2), 0, []
    for size in [*sizes, num_samples]:
        parts.append(stream.push(signal[:, position : position + size]))
        position += size
    result = np.concatenate([*parts, stream.finish()], axis=-1)
    expected = resample_poly(signal, to_rate, from_rate, axis=-1)
    assert result.shape == expected.shape and result.dtype == np.float32
    np.testing.assert_allclose(result, expected, atol=3e-6)


def test_a_block_longer_than_is_computed_at_once():
    signal = np.random.default_rng(0).standard_normal((1, 50_000)).astype(np.float32)
    stream = PolyphaseStream(8000, 16000)
    result = np.concatenate([stream.push(signal), stream.finish()], axis=-1)
    np.testing.assert_allclose(result, resample_poly(signal, 2, 1, axis=-1), atol=3e-6)


@pytest.mark.parametrize(("from_rate", "to_rate"), [rates for rates in RATES if rates[0] != rates[1]])
def test_delay_is_as_stated(from_rate, to_rate):
    """Input by input: an output comes with the last input within its filter, ten samples of the slower rate later."""
    stream, delays, returned = PolyphaseStream(from_rate, to_rate), [], 0
    for pushed in range(600):
        for _ in range(stream.push(np.zeros((1, 1), np.float32)).shape[-1]):
            delays.append(pushed / from_rate - returned / to_rate)
            returned += 1
    assert stream.delay_seconds == pytest.approx(10 / min(from_rate, to_rate))
    assert stream.delay_seconds - 1 / from_rate < max(delays) <= stream.delay_seconds + 1e-12


def test_memory_does_not_grow():
    stream = PolyphaseStream(44100, 8000)
    for _ in range(50):
        stream.push(np.zeros((1, 1000), np.float32))
    assert stream._held.nbytes < 8000
