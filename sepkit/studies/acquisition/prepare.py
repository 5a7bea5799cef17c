"""Audiograms in, train.csv, dev.csv and test.csv out: synthetic ones, those of NHANES, and one's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sepkit.errors import UserError
from sepkit.files import write_text
from sepkit.studies.acquisition.audiogram import Audiograms, read_audiograms, write_audiograms
from sepkit.studies.acquisition.nhanes import read_nhanes
from sepkit.studies.acquisition.synthetic import synthetic_audiograms

__all__ = ["SPLITS", "prepare_csv", "prepare_nhanes", "prepare_synthetic"]

SPLITS = ("train", "dev", "test")
_DEV_SHARE = _TEST_SHARE = 0.125
_SHOWN_LINES = 20


def prepare_synthetic(
    out: str | Path,
    *,
    examples: int = 4096,
    archetypes: int = 5,
    spread_db: float = 45.0,
    noise_db: float = 5.0,
    corruption: float = 0.0,
    seed: int = 0,
) -> Path:
    """The folder, with synthetic audiograms, their noise-free truth (train_truth.csv ...), and archetypes.csv.

    Raises:
        UserError: numbers out of their range, or a folder that cannot be written to.
    """
    data, corners = synthetic_audiograms(examples, archetypes, spread_db, noise_db, corruption, seed)
    folder = Path(out)
    write_audiograms(
        folder / "archetypes.csv", Audiograms(data.names, [f"archetype_{k}" for k in range(len(corners))], corners)
    )
    return _write_splits(folder, data, seed)


def prepare_nhanes(
    out: str | Path,
    audiometry: Sequence[str | Path],
    demographics: Sequence[str | Path],
    *,
    keep_incomplete: bool = False,
    seed: int = 0,
) -> Path:
    """The folder, with the people of NHANES who have an age and all thresholds; says what was found.

    Raises:
        UserError: see `read_nhanes`, or a folder that cannot be written to.
    """
    data, report = read_nhanes(audiometry, demographics, keep_incomplete)
    print("\n".join(report.lines))
    return _write_splits(Path(out), data, seed)


def prepare_csv(out: str | Path, file: str | Path, *, seed: int = 0) -> Path:
    """The folder, with the audiograms of a CSV file, in its own splits or else divided 75, 12.5 and 12.5 %.

    Rows that cannot be used are left out, listed in refused.txt, and reported as a user's mistake when all others are
    written.

    Raises:
        UserError: a file that cannot be used, or rows that were left out.
    """
    refused: list[str] = []
    data = read_audiograms(file, refused=refused)
    unknown = set(data.splits) - {*SPLITS, ""}
    if unknown:
        raise UserError(f"{file}: found split {min(unknown)!r}, expected {', '.join(SPLITS)} or nothing")
    say_notes(data.notes)
    folder = _write_splits(Path(out), data, seed)
    if refused:
        for line in refused[:_SHOWN_LINES]:
            print(line, file=sys.stderr)
        listed = write_text(folder / "refused.txt", "".join(f"{line}\n" for line in refused))
        raise UserError(
            f"{file}: {len(refused)} rows are left out, see {listed}; the other {len(data)} are in {folder}"
        )
    return folder


def say_notes(notes: Sequence[str]) -> None:
    """Notes about values that are taken, on standard error."""
    for note in notes[:_SHOWN_LINES]:
        print(note, file=sys.stderr)
    if len(notes) > _SHOWN_LINES:
        print(f"({len(notes) - _SHOWN_LINES} more notes like these)", file=sys.stderr)


def _write_splits(folder: Path, data: Audiograms, seed: int) -> Path:
    """The folder with a file a split; data without one are divided by the seed, whatever their order."""
    if not data.splits or not all(data.splits):
        data.splits = _divide(data.ids, seed, data.splits or [""] * len(data))
    counts = []
    for split in SPLITS:
        chosen = data[np.array([name == split for name in data.splits])]
        if not len(chosen):
            raise UserError(
                f"{folder}: no audiogram is left for {split} among {len(data)}; give more, or a column split"
            )
        write_audiograms(folder / f"{split}.csv", chosen)
        counts.append(f"{split} {len(chosen)} ({int(chosen.complete.sum())} complete)")
    print(f"{len(data)} audiograms: {', '.join(counts)}")
    return folder


def _divide(ids: Sequence[str], seed: int, given: Sequence[str]) -> list[str]:
    free = [place for place, split in enumerate(given) if not split]
    free.sort(key=lambda place: ids[place])
    order = np.random.default_rng(seed).permutation(len(free))
    dev, test = round(_DEV_SHARE * len(free)), round(_TEST_SHARE * len(free))
    splits = list(given)
    for rank, position in enumerate(order):
        splits[free[position]] = "dev" if rank < dev else "test" if rank < dev + test else "train"
    return splits
