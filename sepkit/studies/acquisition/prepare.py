"""Write audiograms as train.csv, dev.csv and test.csv: synthetic ones, those of NHANES, and the user's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sepkit.errors import UserError
from sepkit.files import write_text
from sepkit.studies.acquisition.audiogram import Audiograms, read_audiograms, write_audiograms
from sepkit.studies.acquisition.nhanes import read_nhanes
from sepkit.studies.acquisition.options import AudiogramOptions, NHANESOptions
from sepkit.studies.acquisition.synthetic import synthetic_audiograms

SPLITS = ("train", "dev", "test")
_DEV_SHARE = _TEST_SHARE = 0.125
_SHOWN_LINES = 20


def prepare_audiograms(options: AudiogramOptions) -> Path:
    """Write synthetic audiograms, or the user's own, and return their folder.

    Synthetic ones have their noise-free truth beside them (train_truth.csv ...), and archetypes.csv. Unusable rows of a
    user's file are left out, listed in refused.txt, and reported as a mistake after all others are written.

    Args:
        options: how audiograms are made, or where they are.

    Raises:
        UserError: numbers out of their range, a file that cannot be used, rows that were left out, or a folder that
            cannot be written to.
    """
    folder = Path(options.out)
    if options.csv is not None:
        return _prepare_own(folder, options.csv, options.seed)
    data, corners = synthetic_audiograms(
        options.examples, options.archetypes, options.spread_db, options.noise_db, options.corruption, options.seed
    )
    names = [f"archetype_{place}" for place in range(len(corners))]
    write_audiograms(folder / "archetypes.csv", Audiograms(data.names, names, corners))
    return _write_splits(folder, data, options.seed)


def prepare_nhanes(options: NHANESOptions) -> Path:
    """Write the people of NHANES who have an age and all thresholds, print a report, and return the folder.

    Args:
        options: where the files of the survey are.

    Raises:
        UserError: see `read_nhanes`, or a folder that cannot be written to.
    """
    data, report = read_nhanes(options.audiometry, options.demographics, options.keep_incomplete)
    print("\n".join(report.lines))
    return _write_splits(Path(options.out), data, options.seed)


def _prepare_own(folder: Path, file: Path, seed: int) -> Path:
    refused: list[str] = []
    data = read_audiograms(file, refused=refused)
    unknown = set(data.splits) - {*SPLITS, ""}
    if unknown:
        raise UserError(f"{file}: found split {min(unknown)!r}, expected {', '.join(SPLITS)} or nothing")
    say_notes(data.notes)
    _write_splits(folder, data, seed)
    if refused:
        for line in refused[:_SHOWN_LINES]:
            print(line, file=sys.stderr)
        listed = write_text(folder / "refused.txt", "".join(f"{line}\n" for line in refused))
        raise UserError(
            f"{file}: {len(refused)} rows are left out, see {listed}; the other {len(data)} are in {folder}"
        )
    return folder


def say_notes(notes: Sequence[str]) -> None:
    """Print notes about accepted values on standard error.

    Args:
        notes: a line each.
    """
    for note in notes[:_SHOWN_LINES]:
        print(note, file=sys.stderr)
    if len(notes) > _SHOWN_LINES:
        print(f"({len(notes) - _SHOWN_LINES} more notes like these)", file=sys.stderr)


def _write_splits(folder: Path, data: Audiograms, seed: int) -> Path:
    """Write one file per split; return the folder. Data without a split are divided by the seed, in any order."""
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
