"""Recordings in every form that is taken, up to the bounds, and blocks by hand."""

import numpy as np
import pytest
import torch

from sepkit.inference.waveforms import BlockReader, as_given, checked_rate, fit_length, read_waveform
from sepkit.limits import CHANNELS
from tests.complaint import complaint

STEREO = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, -1.0]])


@pytest.mark.parametrize(
    ("given", "channel", "expected"),
    [
        (STEREO, None, [2, 2, 1]),
        (STEREO, 1, [3, 2, -1]),
        (STEREO[0], 0, [1, 2, 3]),
        ([1.0, 2.0, 3.0], None, [1, 2, 3]),
        ((1.0, 2.0, 3.0), 0, [1, 2, 3]),
        (STEREO.astype(np.float16)[:, ::2], None, [2, 1]),
        (torch.tensor(STEREO, dtype=torch.bfloat16, requires_grad=True), None, [2, 2, 1]),
        (torch.tensor(STEREO, requires_grad=True), 0, [1, 2, 3]),
        (np.ones((CHANNELS, 2)), CHANNELS - 1, [1, 1]),
        # What another channel holds does not matter.
        (np.array([[1.0, 2.0], [np.nan, 1.0]]), 0, [1, 2]),
    ],
)
def test_recordings_are_one_channel_or_the_mean_of_all(given, channel: int | None, expected: list[float]) -> None:
    samples, rate = read_waveform(given, 8000.0, channel)
    assert samples.dtype == np.float32 and samples.flags.c_contiguous and samples.tolist() == expected
    assert rate == 8000 and isinstance(rate, int)


def test_channels_that_cancel_leave_the_loudest() -> None:
    tone = np.sin(np.arange(1000.0))
    with pytest.warns(UserWarning, match="channel 1 alone is separated"):
        samples, _ = read_waveform(np.stack([-tone, 1.1 * tone]), 8000, None)
    np.testing.assert_allclose(samples, 1.1 * tone, rtol=1e-6)


def test_bounds_are_within_reach() -> None:
    assert [checked_rate(rate) for rate in (1000, 768_000.0, 16_000)] == [1000, 768_000, 16_000]
    for bad in (999, 768_001, 8000.5, True, np.nan):
        complaint(lambda bad=bad: checked_rate(bad), "^sample_rate: found .* from 1000 to 768000")
    complaint(lambda: read_waveform(STEREO, 8000, 2), "^channel: found 2, but waveform has 2, numbered from 0")
    complaint(lambda: read_waveform(STEREO[0], 8000, 1), "^channel: found 1, but waveform has 1, numbered from 0")


def test_lengths_and_blocks_by_hand() -> None:
    for length, expected in ((2, [[1, 2], [3, 2]]), (3, STEREO.tolist()), (5, [[1, 2, 3, 0, 0], [3, 2, -1, 0, 0]])):
        assert fit_length(STEREO, length).tolist() == expected
    reader = BlockReader(iter(np.split(np.arange(10, dtype=np.float32), [1, 1, 6])))
    assert [reader.take(count).tolist() for count in (0, 3, 1, 4, 2)] == [[], [0, 1, 2], [3], [4, 5, 6, 7], [8, 9]]
    assert torch.equal(as_given(STEREO), torch.from_numpy(STEREO))
