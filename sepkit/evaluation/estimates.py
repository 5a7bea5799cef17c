"""Find and read estimates that any program wrote as files, by the identifier of their mixture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry
from sepkit.errors import UserError

_ENDINGS = (".wav", ".flac")


def find_estimates(folder: Path, entry: MixtureEntry) -> list[Path]:
    """Return the files with the estimates of a mixture, s1 first.

    They are `folder/NAME_s1.wav, NAME_s2.wav ...` as `sepkit separate` writes them, `folder/s1/NAME.wav, s2/NAME.wav
    ...`, or either with .flac; NAME is the entry's id or the name of its recorded mixture.

    Raises:
        UserError: there are none.
    """
    names = [entry.id] + ([Path(entry.mixture).stem] if entry.mixture else [])
    for name in names:
        for ending in _ENDINGS:
            for before, after in ((f"{name}_s", ending), ("s", f"/{name}{ending}")):
                if found := _numbered(folder, before, after):
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


def _numbered(folder: Path, before: str, after: str) -> list[Path]:
    """The files BEFORE1AFTER, BEFORE2AFTER ... in a folder; the parts may hold any character."""
    found: list[Path] = []
    while (path := folder / f"{before}{len(found) + 1}{after}").is_file():
        found.append(path)
    return found
