"""Write mixtures of a manifest as wavs, in the layout that `sepkit.corpora.mixed` reads: mix/, s1/ ..., noise/."""

import os
from pathlib import Path

from sepkit.choices import check_bounds
from sepkit.corpora.options import WavsOptions
from sepkit.data import audio
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError


def write_wavs(options: WavsOptions) -> Path:
    """Write out/mix/ID.wav and, for each source, out/s1/ID.wav ...; keep what exists; return the folder."""
    from tqdm import tqdm

    check_bounds(options)
    out = Path(options.out)
    for entry in tqdm(read_manifest(options.manifest)[: options.first], desc="writing", disable=None):
        sources = [f"s{i}" for i, _ in enumerate(entry.sources, start=1)]
        names = [*sources, *(["noise"] if entry.noise else []), "mix"]
        paths = {name: _path(out / name, entry.id) for name in names}
        # The mixture is written last, so its presence means that the sources exist.
        if all(path.is_file() for path in paths.values()):
            continue
        mixed = mix_entry(entry)
        waveforms = dict(zip(sources, mixed.sources, strict=True)) | {"noise": mixed.noise, "mix": mixed.mixture}
        for name, path in paths.items():
            if (waveform := waveforms[name]) is not None:
                audio.write(path, waveform, entry.sample_rate)
    return out


def _path(folder: Path, identifier: str) -> Path:
    path = folder / f"{identifier}.wav"
    if not os.path.abspath(path).startswith(os.path.abspath(folder) + os.sep):
        raise UserError(f"mixture {identifier!r}: its id leads out of {folder}; expected a plain name")
    return path
