"""Write mixtures of a manifest as wavs, in the layout that `sepkit.corpora.mixed` reads: mix/, s1/ ..., noise/."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import numpy as np

from sepkit.choices import check_bounds
from sepkit.corpora.options import WavsOptions
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError


def write_wavs(options: WavsOptions) -> Path:
    """Write out/mix/ID.wav and, for each source, out/s1/ID.wav ...; keep what exists; return the folder."""
    from tqdm import tqdm

    check_bounds(options)
    out = Path(options.out)
    for entry in tqdm(read_manifest(options.manifest)[: options.first], desc="writing", disable=None):
        _write_one(entry, out, options.subtype)
    return out


def _write_one(entry: MixtureEntry, out: Path, subtype: Literal["FLOAT", "PCM_16"]) -> None:
    names = [*(f"s{i}" for i, _ in enumerate(entry.sources, start=1)), *(["noise"] if entry.noise else []), "mix"]
    paths = {name: _path(out / name, entry.id) for name in names}
    # The mixture is written last, so its presence means that the sources exist.
    if all(path.is_file() for path in paths.values()):
        return
    mixed = mix_entry(entry)
    waveforms: dict[str, np.ndarray] = {f"s{i}": source for i, source in enumerate(mixed.sources, start=1)}
    waveforms["mix"] = mixed.mixture
    if mixed.noise is not None:
        waveforms["noise"] = mixed.noise
    for name, path in paths.items():
        if name in waveforms:
            audio.write(path, waveforms[name], entry.sample_rate, subtype=subtype)


def _path(folder: Path, identifier: str) -> Path:
    path = folder / f"{identifier}.wav"
    if not os.path.abspath(path).startswith(os.path.abspath(folder) + os.sep):
        raise UserError(f"mixture {identifier!r}: its id leads out of {folder}; expected a plain name")
    return path
