"""A manifest's mixtures and sources as audio files, for listening, and for programs that read mix/, s1/, s2/.

Size: (m + 1) float32 wav files a mixture, 4 bytes a sample. The files hold exactly what the dataset hands to a model:
`sepkit prepare mixed` reads them back to equal scores.
"""

from __future__ import annotations

from pathlib import Path

from tqdm import tqdm

from sepkit.data import audio
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry

__all__ = ["write_wavs"]


def write_wavs(manifest: Path | str, out: Path | str, first: int | None = None) -> Path:
    """The folder `out`, with mix/ID.wav, s1/ID.wav, s2/ID.wav ... and, where there is noise, noise/ID.wav.

    Mixtures whose files are all there are left alone, so a stopped run goes on where it was.

    Args:
        manifest: what to write.
        out: folder; made if absent.
        first: only the first so many mixtures; None: all.

    Raises:
        UserError: an unreadable manifest or recording, or a folder that cannot be written to.
    """
    out = Path(out)
    for entry in tqdm(read_manifest(manifest)[:first], desc="mixtures", disable=None):
        names = ["mix", *(f"s{i + 1}" for i in range(len(entry.sources)))]
        names += ["noise"] if entry.noise is not None and entry.mixture is None else []
        paths = [out / name / f"{entry.id}.wav" for name in names]
        if all(path.exists() for path in paths):
            continue
        mixed = mix_entry(entry)
        waveforms = [mixed.mixture, *mixed.sources, *([] if mixed.noise is None else [mixed.noise])]
        for path, waveform in zip(paths, waveforms, strict=True):
            audio.write(path, waveform, entry.sample_rate)
    return out
