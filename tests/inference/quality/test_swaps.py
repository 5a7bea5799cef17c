"""Estimates that change speakers midway, by voices that are made of pulses."""

from __future__ import annotations

import numpy as np
import pytest

from sepkit.inference.quality.single_speaker import default_encoder
from sepkit.inference.quality.swaps import changes_speakers
from tests.inference.quality.test_single_speaker import HIGH, LOW, RATE, voice

MIDDLE = voice(8, 160.0, 1100.0, seed=3)


def told(*estimates: np.ndarray) -> bool:
    return changes_speakers(default_encoder(), np.stack(estimates).astype(np.float32), RATE)


def joined(first: np.ndarray, then: np.ndarray, share: float = 0.5) -> np.ndarray:
    return np.where(np.arange(len(first)) < share * len(first), first, then)


@pytest.mark.parametrize("share", [0.35, 0.5, 0.65])
def test_estimates_that_exchange_speakers_are_noticed(share):
    assert not told(LOW, HIGH)
    assert told(joined(LOW, HIGH, share), joined(HIGH, LOW, share))
    # Levels do not matter, nor does the order of the estimates.
    assert told(1e-3 * joined(HIGH, LOW, share), joined(LOW, HIGH, share))
    # Two of three exchange, or all three do.
    assert not told(LOW, HIGH, MIDDLE)
    assert told(joined(LOW, HIGH, share), joined(HIGH, LOW, share), MIDDLE)
    assert told(joined(LOW, HIGH, share), joined(HIGH, MIDDLE, share), joined(MIDDLE, LOW, share))


def test_what_is_heard_before_or_after_alone_tells_nothing():
    silence = np.zeros_like(LOW)
    assert not told(joined(LOW, silence), joined(silence, LOW)) and not told(joined(LOW, HIGH), silence)
    assert not told(silence, silence) and not told(LOW) and not told(LOW[:100], HIGH[:100])
    # Its embeddings are not finite.
    beyond = LOW + 3e37 * (np.arange(len(LOW)) == 100)
    assert not told(beyond, HIGH)
