"""Measure whether speakers stay apart in long recordings: how often estimates swap, and what that costs.

The recording is cut into chunks. For each chunk the oracle is the assignment of estimates to sources with the highest
mean SI-SDR. Speakers have swapped where a chunk's oracle differs from that of the previous chunk that counts. A chunk
counts if all sources speak and its separation is good enough for the assignment to be meaningful; the number of other
chunks is reported.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from sepkit.evaluation.estimates import find_estimates
from sepkit.files import atomic_output, write_json
from sepkit.objectives.costs import pairwise_neg_si_sdr

LEAST_SI_SDRI_DB = 3.0
"""Chunks whose oracle SI-SDRi is below are not separated: their assignment says nothing."""

# A source speaks in frames less than this far below its mean power, and in chunks with this much of such frames.
_FRAME_SECONDS, _BELOW_MEAN_DB, _SPEAKS_SECONDS = 0.02, 20.0, 1.0


@dataclass(frozen=True)
class ChunkScore:
    """One chunk in which all sources speak.

    Args:
        start_seconds: where it begins.
        assignment: the estimate of each source, from 0, by the oracle.
        si_sdri_db: by estimate, then source.
        oracle_si_sdri_db: mean over sources with that assignment.
    """

    start_seconds: float
    assignment: tuple[int, ...]
    si_sdri_db: tuple[tuple[float, ...], ...]
    oracle_si_sdri_db: float

    def with_assignment(self, assignment: tuple[int, ...]) -> float:
        """Return the mean SI-SDRi, dB, over sources with another assignment.

        Args:
            assignment: the estimate of each source.
        """
        return float(np.mean([self.si_sdri_db[estimate][source] for source, estimate in enumerate(assignment)]))


def measure_continuity(
    manifest: str | os.PathLike[str],
    estimates: str | os.PathLike[str],
    out: str | os.PathLike[str],
    chunk_seconds: float = 5.0,
) -> dict[str, Any]:
    """Measure every mixture; return and write `out/continuity.json`: `summarize_chunks` of each mixture and of all.

    `out/continuity.csv` has every chunk. Memory holds one chunk at a time.

    Args:
        manifest: of long mixtures with sources, as `sepkit prepare conversation` writes it.
        estimates: folder of estimates, see `find_estimates`.
        out: folder of the results.
        chunk_seconds: length of a chunk.

    Raises:
        UserError: a bad manifest, estimates that are missing or of another length, or a folder that cannot be written
            to.
    """
    if not 2 * _SPEAKS_SECONDS <= chunk_seconds <= 600:
        raise UserError(f"continuity: found {chunk_seconds} s, expected {2 * _SPEAKS_SECONDS:g} to 600")
    out, folder = Path(out), Path(estimates)
    scored: dict[str, list[ChunkScore]] = {}
    mixtures = []
    for entry in read_manifest(manifest):
        if len(entry.sources) < 2:
            raise UserError(f"{manifest}: mixture {entry.id} has {len(entry.sources)} sources, expected at least 2")
        scored[entry.id] = score_chunks(entry, find_estimates(folder, entry), chunk_seconds)
        minutes = entry.duration_seconds / 60
        mixtures.append({"id": entry.id} | summarize_chunks(scored[entry.id], minutes))
    result = {"manifest": str(manifest), "estimates": str(estimates), "chunk_seconds": chunk_seconds}
    result |= {"mixtures": mixtures}
    with atomic_output(out / "continuity.csv") as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *ChunkScore.__dataclass_fields__])
        for name, chunks in scored.items():
            writer.writerows([name, *asdict(chunk).values()] for chunk in chunks)
    write_json(out / "continuity.json", result)
    return result


def score_chunks(entry: MixtureEntry, paths: list[Path], chunk_seconds: float) -> list[ChunkScore]:
    """Return the chunks of a mixture in which all sources speak.

    A shorter remainder at the end is no chunk.

    Args:
        entry: the mixture and its sources.
        paths: of the estimates, at least as many as sources.
        chunk_seconds: length of a chunk.

    Raises:
        UserError: too few estimates, some of another rate or length, or files that cannot be read.
    """
    if len(paths) < len(entry.sources):
        raise UserError(f"{entry.id}: found {len(paths)} estimates of {len(entry.sources)} sources; expected as many")
    for path in paths:
        header = audio.info(path)
        if (header.sample_rate, header.num_samples) != (entry.sample_rate, entry.num_samples):
            raise UserError(
                f"{path}: {header.num_samples} samples at {header.sample_rate} Hz, expected {entry.num_samples} at "
                f"{entry.sample_rate} Hz as the mixture has"
            )
    from scipy.optimize import linear_sum_assignment

    size = round(chunk_seconds * entry.sample_rate)
    starts = range(0, entry.num_samples - size + 1, size)
    energy = sum(np.square(mix_entry(entry, start, size).sources, dtype=np.float64).sum(1) for start in starts)
    powers = np.asarray(energy) / max(1, len(starts) * size)
    chunks = []
    for start in starts:
        mixed = mix_entry(entry, start, size)
        if not _speak(mixed.sources, powers, entry.sample_rate).all():
            continue
        heard = np.stack([audio.read(path, start, size) for path in paths])
        sources = torch.from_numpy(mixed.sources)[None].double()
        of_estimates = -pairwise_neg_si_sdr(torch.from_numpy(heard)[None].double(), sources)[0].numpy()
        of_mixture = -pairwise_neg_si_sdr(torch.from_numpy(mixed.mixture)[None, None].double(), sources)[0].numpy()
        improvement = of_estimates - of_mixture
        assignment = tuple(linear_sum_assignment(improvement.T, maximize=True)[1].tolist())
        table = tuple(tuple(row) for row in improvement.tolist())
        oracle = float(improvement[list(assignment), range(len(assignment))].mean())
        chunks.append(ChunkScore(start / entry.sample_rate, assignment, table, oracle))
    return chunks


def summarize_chunks(chunks: list[ChunkScore], minutes: float) -> dict[str, Any]:
    """Return the numbers of one recording.

    * `n_chunks`: chunks in which all sources speak; `n_excluded`: those of them with an oracle SI-SDRi below 3 dB.
    * `changes`, `changes_per_minute`: changes of the oracle from each other chunk to the next one.
    * `minority_share`: share of these chunks whose assignment is not the usual one.
    * `oracle_si_sdri_db`, `fixed_si_sdri_db`: mean over all `n_chunks`, with the assignment that is best for each, and
      with the usual one for all. None without chunks.

    Args:
        chunks: in their order.
        minutes: length of the recording.
    """
    counted = [chunk for chunk in chunks if chunk.oracle_si_sdri_db >= LEAST_SI_SDRI_DB]
    changes = sum(a.assignment != b.assignment for a, b in pairwise(counted))
    usual = Counter(chunk.assignment for chunk in counted or chunks).most_common(1)
    return {
        "minutes": minutes,
        "n_chunks": len(chunks),
        "n_excluded": len(chunks) - len(counted),
        "changes": changes,
        "changes_per_minute": changes / minutes,
        "minority_share": 1 - usual[0][1] / len(counted) if counted else None,
        "oracle_si_sdri_db": float(np.mean([chunk.oracle_si_sdri_db for chunk in chunks])) if chunks else None,
        "fixed_si_sdri_db": float(np.mean([c.with_assignment(usual[0][0]) for c in chunks])) if chunks else None,
    }


def _speak(sources: np.ndarray, powers: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return (m,) whether each source speaks in a chunk (m, T)."""
    frame = max(1, round(_FRAME_SECONDS * sample_rate))
    inside = sources.shape[1] // frame * frame
    of_frames = np.square(sources[:, :inside], dtype=np.float64).reshape(len(sources), -1, frame).mean(-1)
    speaks = of_frames > powers[:, None] * 10 ** (-_BELOW_MEAN_DB / 10)
    return (speaks & (of_frames > 0)).sum(1) * frame / sample_rate >= _SPEAKS_SECONDS
