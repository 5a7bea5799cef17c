"""Speech activity: turns of estimates, from their energy or from probabilities."""

import math
import re
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from sepkit.errors import UserError
from sepkit.signals import active_frames

FRAME_SECONDS = 0.02
"""Length of a frame of activity."""

# An estimate is active unless it is this far below its own loud frames, or this far below all estimates together there.
# Estimates contain remainders of other speakers, more than 30 dB below their own speech, which are not turns.
_BELOW_OWN_DB, _BELOW_ALL_DB = 30.0, 13.0
_LOUD_PERCENTILE = 95
# Shorter pauses do not end a turn; shorter turns are clicks.
_SHORTEST_PAUSE_SECONDS, _SHORTEST_TURN_SECONDS = 0.3, 0.2
# With a speech detector, means over this many seconds decide, from this probability on, in frames that are not further
# below the mean energy of speech than this.
_MEAN_SECONDS, _LEAST_PROBABILITY, _BELOW_SPEECH_DB = 1.0, 0.5, 30.0
# With probabilities that estimates are active. Chosen on dev meetings.
_ACTIVE_PROBABILITY = 0.65
# Of times in milliseconds.
_ROUNDING = 1e-3


class ActivityMeter:
    """Energies of estimates that come in blocks: four bytes for each 20 ms and estimate are kept."""

    def __init__(self, count: int, sample_rate: int) -> None:
        self._frame = max(1, round(FRAME_SECONDS * sample_rate))
        self._rate = sample_rate
        self._seconds = self._frame / sample_rate
        self._count = count
        self._rest = np.zeros((count, 0), np.float32)
        self._energies: list[np.ndarray] = []
        self.peak = 0.0

    def add(self, block: np.ndarray) -> None:
        """Take the next samples (k, t) of all k estimates."""
        self.peak = max(self.peak, float(np.abs(block).max(initial=0.0)))
        samples = np.concatenate([self._rest, block], axis=1)
        whole = samples.shape[1] // self._frame * self._frame
        frames = samples[:, :whole].reshape(self._count, whole // self._frame, self._frame)
        self._energies.append(np.einsum("nft,nft->nf", frames, frames))
        self._rest = samples[:, whole:]

    def segments(
        self, speech: np.ndarray | None = None, active: np.ndarray | None = None
    ) -> list[list[tuple[float, float]]]:
        """Return beginnings and lengths, seconds, of the turns in which each estimate is active.

        Args:
            speech: Probabilities of speech by 20 ms, (k, F); quiet speech does not count. None: all sound counts.
            active: Probabilities that the estimates are active by 20 ms, (k, F), in place of `speech` and energies.
        """
        if not self._count:
            return []
        energies = self._all_energies()
        if speech is None and active is None:
            heard = active_frames(energies, _BELOW_OWN_DB, _LOUD_PERCENTILE)
            heard &= energies > 10 ** (-_BELOW_ALL_DB / 10) * energies.sum(0)
            return [self._turns(row) for row in heard]
        places = ((np.arange(energies.shape[1]) + 0.5) * self._seconds / FRAME_SECONDS).astype(int)
        if active is not None:
            active = active[:, np.minimum(places, active.shape[1] - 1)]
            # Speech that is divided between estimates is active in one of them.
            likeliest = (active == active.max(0)) & (active.sum(0) > _ACTIVE_PROBABILITY)
            return [self._turns(row) for row in likeliest | (active > _ACTIVE_PROBABILITY)]
        reach = round(_MEAN_SECONDS / 2 / self._seconds)
        near = _means(energies, reach)
        spoken = _means(speech[:, np.minimum(places, speech.shape[1] - 1)], reach) > _LEAST_PROBABILITY
        level = near[spoken].mean() if spoken.any() else 0.0
        return [self._turns(row) for row in spoken & (energies > 10 ** (-_BELOW_SPEECH_DB / 10) * level)]

    def _all_energies(self) -> np.ndarray:
        return np.concatenate([*self._energies, np.square(self._rest).sum(1, keepdims=True)], axis=1)

    def _turns(self, heard: np.ndarray) -> list[tuple[float, float]]:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], heard.astype(np.int8), [0]])))
        turns: list[list[int]] = []
        for start, stop in edges.reshape(-1, 2).tolist():
            if turns and (start - turns[-1][1]) * self._seconds < _SHORTEST_PAUSE_SECONDS:
                turns[-1][1] = stop
            else:
                turns.append([start, stop])
        # The last frame may be shorter than the others.
        end = ((heard.size - 1) * self._frame + self._rest.shape[1]) / self._rate
        return [
            (start * self._seconds, min(stop * self._seconds, end) - start * self._seconds)
            for start, stop in turns
            if (stop - start) * self._seconds >= _SHORTEST_TURN_SECONDS
        ]


def _means(values: np.ndarray, reach: int) -> np.ndarray:
    """Return means (k, F) of values (k, F) over `reach` frames on both sides; beyond the ends the last one repeats."""
    sums = np.cumsum(np.pad(values, ((0, 0), (reach + 1, reach)), "edge"), axis=1, dtype=np.float64)
    return (sums[:, 2 * reach + 1 :] - sums[:, : -2 * reach - 1]) / (2 * reach + 1)


def rttm_id(name: str | PurePath) -> str:
    """Return how RTTM names a recording: its path without ending, spaces and control characters as underscores."""
    return "_".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", PurePath(name).as_posix()).split())


def milliseconds(start: float, length: float) -> tuple[str, str]:
    """Return a beginning and a length in seconds as text with three digits, an infinite length as none.

    The end is rounded down, so that it is not beyond that of the recording.
    """
    begin = math.floor(1000 * start + _ROUNDING)
    if math.isinf(length):
        return f"{begin / 1000:.3f}", ""
    end = math.floor(1000 * (start + length) + _ROUNDING)
    return f"{begin / 1000:.3f}", f"{(end - begin) / 1000:.3f}"


def rttm_lines(
    name: str | PurePath, segments: Sequence[Sequence[tuple[float, float]]], speakers: Sequence[str] | None = None
) -> list[str]:
    """Return the lines of an RTTM file, in order of time, for beginnings and lengths in seconds of each speaker.

    Names have underscores in place of spaces, which RTTM parts its fields by.

    Raises:
        UserError: two speakers would have one name.

    Source: NIST, "The 2009 (RT-09) rich transcription meeting recognition evaluation plan", appendix A.
    """
    names = speakers or [f"s{k}" for k in range(1, len(segments) + 1)]
    fields = ["_".join(word.split()) for word in names]
    if len(set(fields)) < len(fields):
        raise UserError(f"{name}: found speakers {', '.join(names)}, expected names that differ by more than spaces")
    turns = sorted((start, length, k) for k, own in enumerate(segments) for start, length in own)
    return [
        "SPEAKER {} 1 {} {} <NA> <NA> {} <NA> <NA>\n".format(rttm_id(name), *milliseconds(start, length), fields[k])
        for start, length, k in turns
    ]
