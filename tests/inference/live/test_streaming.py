"""Separator.streaming equals the whole recording, keeps its stated delay, and refuses unsuitable models in a line."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sepkit.config import DualPathRNNConfig
from sepkit.errors import UserError
from sepkit.inference import Separator
from sepkit.inference.live.streaming import RunningGains
from sepkit.models import build_model
from tests.complaint import complaint
from tests.tiny_models import CAUSAL

CONV_TASNET = CAUSAL.masker
DUAL_PATH = DualPathRNNConfig(6, 5, 10, 5, repeats=1, bidirectional=False, norm="channel_layer_norm")


def make(masker=CONV_TASNET, **options) -> Separator:
    torch.manual_seed(0)
    return Separator(build_model(replace(CAUSAL, masker=masker)), **options)


@pytest.fixture(scope="module")
def separator() -> Separator:
    return make()


def noise(num_samples: int, seed: int = 0) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).standard_normal(num_samples).astype(np.float32)


def run(stream, mixture: np.ndarray, size: int) -> np.ndarray:
    with stream:
        parts = [stream.push(mixture[i : i + size]) for i in range(0, len(mixture) + 1, size)]
        return np.concatenate([*parts, stream.finish()], axis=-1)


@pytest.mark.parametrize("masker", [CONV_TASNET, DUAL_PATH])
@pytest.mark.parametrize("size", [1, 7, 8, 160, 5000])
def test_equals_the_offline_estimates(masker, size):
    separator, mixture = make(masker, levels="model"), noise(700)
    expected = separator.separate(mixture, 8000).estimates
    np.testing.assert_allclose(run(separator.streaming(), mixture, size), expected, atol=1e-5 * np.abs(expected).max())


@given(
    num_samples=st.integers(0, 900), size=st.integers(1, 400), rate=st.sampled_from([8000, 16000, 44100, 7999, 11025])
)
@settings(max_examples=25, deadline=None)
def test_length_in_is_length_out_at_any_rate(separator, num_samples, size, rate):
    assert run(separator.streaming(rate), noise(num_samples), size).shape == (2, num_samples)


@pytest.mark.parametrize("levels", ["model", "mixture"])
def test_blocks_of_any_size_give_the_same_at_another_rate(separator, levels):
    mixture = noise(3000)
    expected = run(separator.streaming(16000, levels), mixture, 3000)
    assert np.abs(expected).max() > 1e-3
    for size in (1, 33, 1000):
        found = run(separator.streaming(16000, levels), mixture, size)
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_another_rate_means_the_same_sound(separator):
    """A tone at 16 kHz, halfway within its band, comes out as at 8 kHz, in time too."""
    slow, fast = (np.sin(2 * np.pi * 700 * np.arange(rate // 2) / rate).astype(np.float32) for rate in (8000, 16000))
    at_slow = run(separator.streaming(), slow, 100)
    at_fast = run(separator.streaming(16000), fast, 100)[:, ::2]
    assert np.linalg.norm((at_slow - at_fast)[:, 400:-400]) < 0.02 * np.linalg.norm(at_slow[:, 400:-400])


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 6000])
@pytest.mark.parametrize(("masker", "own_seconds"), [(CONV_TASNET, 16 / 8000), (DUAL_PATH, (9 * 8 + 16) / 8000)])
def test_latency_is_as_stated(masker, own_seconds, rate):
    """Sample by sample, the delay from a sample to its estimates reaches the stated value and never exceeds it."""
    stream, returned, waits = make(masker).streaming(rate), 0, []
    for pushed in range(1, 1500):
        for _ in range(stream.push(np.zeros(1, np.float32)).shape[-1]):
            waits.append((pushed - returned) / rate)
            returned += 1
    resampling = 20 / min(rate, 8000) + 1 / rate - 1 / 8000 if rate != 8000 else 0.0
    assert stream.latency_seconds == pytest.approx(own_seconds + resampling)
    # Rates that fit together badly seldom meet at their worst.
    assert stream.latency_seconds - (2 / rate + 1 / 8000) * (rate != 8000) <= max(waits) + 1e-9
    assert max(waits) <= stream.latency_seconds + 1e-9


@pytest.mark.parametrize("masker", [CONV_TASNET, DUAL_PATH])
def test_a_click_shows_no_later_than_stated(masker):
    separator = make(masker)
    position, size, shown = 403, 5, None
    mixture = noise(800)
    clicked = mixture.copy()
    clicked[position] += 1
    plain, other = separator.streaming(), separator.streaming()
    for start in range(0, 800, size):
        block = slice(start, start + size)
        if shown is None and np.any(plain.push(mixture[block]) != other.push(clicked[block])):
            shown = start + size
    assert shown is not None and (shown - position) / 8000 <= plain.latency_seconds + (size - 1) / 8000


def test_streams_know_nothing_of_each_other(separator):
    mixture = noise(500)
    expected = run(separator.streaming(), mixture, 100)
    separator.streaming().push(noise(300, seed=1))
    np.testing.assert_array_equal(run(separator.streaming(), mixture, 100), expected)
    first, second = separator.streaming(), separator.streaming()
    parts: list[list[np.ndarray]] = [[], []]
    for start in range(0, 500, 100):
        parts[0].append(first.push(mixture[start : start + 100]))
        parts[1].append(second.push(-mixture[start : start + 100]))
    np.testing.assert_array_equal(np.concatenate([*parts[0], first.finish()], -1), expected)


def test_tensors_come_back_as_tensors_and_channels_are_averaged(separator):
    mixture = noise(300)
    expected = run(separator.streaming(), mixture, 300)
    with separator.streaming() as stream:
        parts = [stream.push(torch.from_numpy(np.stack([mixture, mixture]))), stream.finish()]
    assert all(isinstance(part, torch.Tensor) and part.dtype == torch.float32 for part in parts)
    np.testing.assert_allclose(torch.cat(parts, -1).numpy(), expected, atol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_block_is_one_line_and_leaves_the_stream_as_it_was(separator, bad):
    mixture = noise(400)
    broken = mixture[200:300].copy()
    broken[7] = bad
    with separator.streaming() as stream:
        parts = [stream.push(mixture[:200])]
        complaint(lambda: stream.push(broken), r"^block: sample 207 of the stream is NaN or infinite, [^\n]*$")
        parts += [stream.push(mixture[200:]), stream.finish()]
    np.testing.assert_allclose(np.concatenate(parts, -1), run(separator.streaming(), mixture, 400), atol=1e-6)


def test_weights_that_are_broken_are_told():
    separator = make()
    with torch.no_grad():
        next(separator.model.parameters()).fill_(torch.nan)
    with separator.streaming() as stream, pytest.raises(UserError, match="estimates are not finite"):
        stream.push(noise(100))


def test_running_gains_are_least_squares_of_what_was_heard():
    generator = np.random.default_rng(0)
    # A constant in the mixture is nothing that anybody says.
    mixture, estimates = 3 + generator.standard_normal(60), generator.standard_normal((2, 60)).astype(np.float32)
    estimates[1, :20] = 0
    gains, parts, heard = RunningGains(2), [], 0
    for start, stop in ((0, 1), (1, 1), (1, 30), (30, 60)):
        gains.hear(mixture[heard : stop + 5])  # The mixture is ahead of the estimates.
        heard = stop + 5
        parts.append(gains.scale(estimates[:, start:stop]))
    found = np.concatenate(parts, -1)
    for t in (0, 7, 29, 30, 59):
        for estimate, scaled in zip(estimates, found, strict=True):
            past, heard = estimate[: t + 1, None].astype(np.float64), mixture[: t + 1] - mixture[: t + 1].mean()
            gain = np.linalg.lstsq(past, heard, rcond=None)[0][0] if past.any() else 0.0
            assert scaled[t] == pytest.approx(gain * estimate[t], abs=1e-6)


def test_mixture_levels_do_not_depend_on_the_models(separator):
    """Estimates 1000 times louder and of the other sign come out the same, and end at the offline gain."""
    mixture = noise(4000)
    louder = make()
    with torch.no_grad():
        next(iter(louder.model.filterbank.decoder.parameters())).mul_(-1000)
    expected = run(separator.streaming(levels="mixture"), mixture, 100)
    found = run(louder.streaming(levels="mixture"), mixture, 100)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(expected[:, -1], separator.separate(mixture, 8000).estimates[:, -1], rtol=1e-3)
