"""Measure whether speakers stay apart in a long recording: how often estimates swap, and what that costs.

The recording is cut into chunks. For each chunk the oracle is the assignment of estimates to sources with the highest
mean SI-SDR. Speakers have swapped where a chunk's oracle differs from that of the previous chunk that counts. A chunk
counts if all sources speak and its separation is good enough for the assignment to be meaningful.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from sepkit.evaluation.metrics import si_sdr_db
from sepkit.matching import linear_sum_assignment

CHUNK_SECONDS = 5.0
LEAST_SI_SDRI_DB = 3.0
"""Chunks whose oracle SI-SDRi is below are not separated: their assignment says nothing."""

# A source speaks in frames less than this far below its mean power, and in chunks with this much of such frames.
_FRAME_SECONDS, _BELOW_MEAN_DB, _SPEAKS_SECONDS = 0.02, 20.0, 1.0


def continuity(
    estimates: np.ndarray, sources: np.ndarray, mixture: np.ndarray, sample_rate: int
) -> tuple[float, float, float, float, float]:
    """Return how well the estimates (n, T), n >= m, keep the sources (m, T) of a recording apart.

    * the number of chunks that count: all sources speak, and the oracle SI-SDRi is 3 dB or more;
    * changes of the oracle between them, per minute of the recording;
    * the share of them whose assignment is not the usual one, NaN without any;
    * mean SI-SDRi, dB, over all chunks in which all sources speak, with the assignment that is best for each, and with
      the usual one for all; NaN without any.

    Chunks are 5 s long; a shorter remainder at the end is no chunk.
    """
    size = round(CHUNK_SECONDS * sample_rate)
    starts = range(0, sources.shape[1] - size + 1, size)
    energies = [np.square(sources[:, start : start + size], dtype=np.float64).sum(1) for start in starts]
    powers = np.sum(energies, axis=0) / max(1, len(starts) * size)
    tables, assignments = [], []
    for part in (slice(start, start + size) for start in starts):
        if len(sources) < 2 or len(estimates) < len(sources) or not _speak(sources[:, part], powers, sample_rate).all():
            continue
        table = si_sdr_db(estimates[:, None, part], sources[:, part]) - si_sdr_db(mixture[part], sources[:, part])
        tables.append(table)
        assignments.append(tuple(linear_sum_assignment(table.T, maximize=True)[1].tolist()))
    best = [_mean(table, assignment) for table, assignment in zip(tables, assignments, strict=True)]
    counted = [assignment for assignment, score in zip(assignments, best, strict=True) if score >= LEAST_SI_SDRI_DB]
    changes = sum(one != other for one, other in pairwise(counted))
    usual, times = Counter(counted or assignments).most_common(1)[0] if assignments else ((), 0)
    return (
        float(len(counted)),
        changes / (sources.shape[1] / sample_rate / 60),
        1 - times / len(counted) if counted else np.nan,
        float(np.mean(best)) if best else np.nan,
        float(np.mean([_mean(table, usual) for table in tables])) if tables else np.nan,
    )


def _mean(table: np.ndarray, assignment: tuple[int, ...]) -> float:
    """Return the mean over sources of (n, m) scores, with the estimate of each source."""
    return float(table[list(assignment), range(len(assignment))].mean())


def _speak(sources: np.ndarray, powers: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return (m,) whether each source speaks in a chunk (m, T)."""
    frame = max(1, round(_FRAME_SECONDS * sample_rate))
    inside = sources.shape[1] // frame * frame
    of_frames = np.square(sources[:, :inside], dtype=np.float64).reshape(len(sources), -1, frame).mean(-1)
    speaks = of_frames > powers[:, None] * 10 ** (-_BELOW_MEAN_DB / 10)
    return (speaks & (of_frames > 0)).sum(1) * frame / sample_rate >= _SPEAKS_SECONDS
