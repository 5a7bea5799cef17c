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
            for pattern in (f"{name}_s{{}}{ending}", f"s{{}}/{name}{ending}"):
                found = _numbered(folder, pattern)
                if found:
                    return found
    raise UserError(f"{folder}: no estimates; expected {names[0]}_s1.wav or s1/{names[0]}.wav and so on")


def read_estimates(paths: list[Path], sample_rate: int) -> np.ndarray:
    """Return (n, T) float32 estimates at `sample_rate`, from one file per hypothesis.

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


def _numbered(folder: Path, pattern: str) -> list[Path]:
    found: list[Path] = []
    while (path := folder / pattern.format(len(found) + 1)).is_file():
        found.append(path)
    return found
