"""Find and read estimates that any program wrote as files, by the identifier of their mixture."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry
from sepkit.errors import UserError

_ENDINGS = (".wav", ".flac")

Listed = dict[Path, dict[str, list[Path]]]
"""Folder -> its files by name, the ending in lower case."""


def find_estimates(folder: Path, entry: MixtureEntry, listed: Listed | None = None) -> list[Path]:
    """Return the files with the estimates of a mixture, s1 first.

    They are `folder/NAME_s1.wav, NAME_s2.wav ...` as `sepkit separate` writes them, `folder/s1/NAME.wav, s2/NAME.wav
    ...`, or either with .flac, endings in upper or lower case; NAME is the entry's id or the name of its recorded
    mixture.

    Args:
        folder: of all estimates.
        entry: line of the manifest.
        listed: folders that were listed before, which are not listed again; None: none.

    Raises:
        UserError: there are none, or two files differ by the case of their ending alone.
    """
    listed = {} if listed is None else listed
    names = [entry.id] + ([Path(entry.mixture).stem] if entry.mixture else [])
    for name in names:
        for ending in _ENDINGS:
            for before, after in ((f"{name}_s", ending), ("s", f"/{name}{ending}")):
                if found := _numbered(folder, before, after, listed):
                    return found
    raise UserError(f"{folder}: no estimates; expected {names[0]}_s1.wav or s1/{names[0]}.wav and so on")


def read_estimates(paths: list[Path], sample_rate: int) -> np.ndarray:
    """Return estimates from one file per hypothesis, (n, T) float32.

    Args:
        paths: of the files, s1 first.
        sample_rate: Hz of the result.

    Raises:
        UserError: a file that cannot be read, or files of different lengths.
    """
    waveforms = [audio.read(path, sample_rate=sample_rate) for path in paths]
    for path, waveform in zip(paths, waveforms, strict=True):
        if len(waveform) != len(waveforms[0]):
            raise UserError(
                f"{path}: holds {len(waveform)} samples, {paths[0].name} {len(waveforms[0])}; expected equal lengths"
            )
    return np.stack(waveforms)


def _numbered(folder: Path, before: str, after: str, listed: Listed) -> list[Path]:
    """The files BEFORE1AFTER, BEFORE2AFTER ... in a folder; the parts may hold any character."""
    found: list[Path] = []
    while files := _files(path := folder / f"{before}{len(found) + 1}{after}", listed):
        if len(files) > 1:
            names = " and ".join(file.name for file in files)
            raise UserError(f"{path.parent}: found {names}, which differ by case alone; remove all but one")
        found += files
    return found


def _files(path: Path, listed: Listed) -> list[Path]:
    """Return the files of a name, whatever the case of their ending."""
    if path.parent not in listed:
        by_name = listed[path.parent] = {}
        for file in sorted(path.parent.iterdir()) if path.parent.is_dir() else ():
            stem, ending = os.path.splitext(file.name)
            by_name.setdefault(stem + ending.lower(), []).append(file)
    return [file for file in listed[path.parent].get(path.name, ()) if file.is_file()]
