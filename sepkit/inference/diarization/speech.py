"""Turns in which somebody speaks: where something is heard, and where an encoder hears speech in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sepkit.data import audio
from sepkit.data.activity import FRAME_SECONDS, ActivityMeter
from sepkit.inference.diarization.encoders import Encoder

# Frames that are heard at once, and before and after them what they are heard with.
_FRAMES, _CONTEXT_FRAMES = 150, 12
# Probability of speech above which somebody speaks.
_LEAST_PROBABILITY = 0.5


class SpeechMeter:
    """Turns of estimates that come in blocks: no sound without speech, such as noise, is a turn.

    Args:
        count: k, how many estimates.
        sample_rate: theirs, Hz.
        encoder: decides what is speech, if it tells it; else all sound counts.
    """

    def __init__(self, count: int, sample_rate: int, encoder: Encoder | None) -> None:
        self._energy, self._rate = ActivityMeter(count, sample_rate), sample_rate
        self._detector = encoder if encoder is not None and encoder.tells_speech else None
        # Zeros before the beginning.
        self._held = np.zeros((count, self._samples(_CONTEXT_FRAMES)), np.float32)
        self._taken = 0
        self._speech: list[np.ndarray] = []

    def _samples(self, frames: int) -> int:
        return round(frames * FRAME_SECONDS * self._rate)

    def add(self, block: np.ndarray) -> None:
        """Take the next samples (k, t) of all k estimates."""
        self._energy.add(block)
        if self._detector is None:
            return
        self._held = np.concatenate([self._held, block.astype(np.float32)], axis=1)
        whole, step = self._samples(_FRAMES + 2 * _CONTEXT_FRAMES), self._samples(_FRAMES)
        while self._held.shape[1] >= whole:
            self._listen(self._held[:, :whole])
            self._held = self._held[:, step:]

    def _listen(self, samples: np.ndarray) -> None:
        assert self._detector is not None
        resampled = audio.resample(samples, self._rate, self._detector.sample_rate)
        found = self._detector.speech(resampled)[:, _CONTEXT_FRAMES : _CONTEXT_FRAMES + _FRAMES]
        self._speech.append(found > _LEAST_PROBABILITY)

    def shares_db(self, spans: Sequence[tuple[int, float, float]]) -> np.ndarray:
        """Return the energy of estimates over that of all together, see `ActivityMeter.shares_db`."""
        return self._energy.shares_db(spans)

    def segments(self) -> list[list[tuple[float, float]]]:
        """Return beginnings and lengths, seconds, of the turns in each estimate, after the last block."""
        if self._detector is None:
            return self._energy.segments()
        missing = self._samples(_FRAMES + 2 * _CONTEXT_FRAMES) - self._held.shape[1]
        self._listen(np.pad(self._held, ((0, 0), (0, max(0, missing)))))
        return self._energy.segments(np.concatenate(self._speech, axis=1))
