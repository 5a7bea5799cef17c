"""A corpus that is mixed already: a folder of mixtures and one folder a source, with equal file names.

What it is: mix/, s1/, s2/ ... as WSJ0-mix, WHAM, LibriMix and most new test sets come; what one evaluates on.
Traps: files are paired by their path below the folders, without the ending. A file without a partner, or whose partner
has another rate or length, is left out and listed. Speakers are not known: the manifest does not serve for dynamic
mixing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sepkit.corpora._mixtures import manifest_path
from sepkit.corpora._recordings import check_writable, find_audio_files, write_skipped
from sepkit.corpora.options import MixedOptions
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, write_manifest
from sepkit.errors import UserError

__all__ = ["prepare_mixed"]


def prepare_mixed(options: MixedOptions) -> Path:
    """The manifest written, `out/test.jsonl`: recorded mixtures with their references, at the rate most of them have.

    Raises:
        UserError: a folder that is not there or empty, or no mixture that has all its partners.
    """
    out, mixture, folders = Path(options.out), Path(options.mixture), [Path(source) for source in options.sources]
    noise = None if options.noise is None else Path(options.noise)
    if not folders:
        raise UserError("--sources: found none, expected a folder for each speaker")
    check_writable(out)
    mixtures = _by_name(mixture)
    partners = {folder: _by_name(folder) for folder in [*folders, *([noise] if noise else [])]}
    left_out: dict[str, str] = {}
    entries: list[MixtureEntry] = []
    for name, path in mixtures.items():
        try:
            entries.append(_entry(name, path, folders, partners, noise, out))
        except UserError as error:
            left_out[str(path)] = str(error)
    left_out |= _without_mixture(mixtures, partners, mixture)
    listed = write_skipped(out, left_out)
    if not entries:
        raise UserError(f"{mixture}: none of its {len(mixtures)} mixtures can be used: {next(iter(left_out.values()))}")
    rates = Counter(entry.sample_rate for entry in entries)
    sample_rate = max(rates, key=lambda rate: (rates[rate], rate))
    entries = [entry if entry.sample_rate == sample_rate else _at_rate(entry, sample_rate) for entry in entries]
    if listed is not None:
        first = next(iter(left_out.values()))
        print(f"warning: {len(left_out)} file(s) left out, listed in {listed}; the first: {first}", file=sys.stderr)
    hours = sum(entry.duration_seconds for entry in entries) / 3600
    print(f"test.jsonl: {len(entries)} mixtures of {len(folders)} at {sample_rate} Hz, {hours:.2f} h")
    return write_manifest(out / "test.jsonl", entries)


def _by_name(folder: Path) -> dict[str, Path]:
    """Path below the folder, without the ending -> file.

    Raises:
        UserError: no such folder, no audio files in it, or two files that differ only in their endings.
    """
    files: dict[str, Path] = {}
    for path in find_audio_files(folder):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in files:
            raise UserError(f"{path}: {files[name].name} has the same name; expected one file of a name")
        files[name] = path
    return files


def _without_mixture(mixtures: dict[str, Path], partners: dict[Path, dict[str, Path]], mixture: Path) -> dict[str, str]:
    return {
        str(path): f"{path}: has no mixture of that name in {mixture}"
        for files in partners.values()
        for name, path in files.items()
        if name not in mixtures
    }


def _entry(
    name: str,
    path: Path,
    folders: Sequence[Path],
    partners: dict[Path, dict[str, Path]],
    noise: Path | None,
    out: Path,
) -> MixtureEntry:
    header = audio.info(path)
    paths: dict[Path, str] = {}
    for folder, files in partners.items():
        if name not in files:
            raise UserError(f"{path}: has no partner of that name in {folder}")
        other = audio.info(files[name])
        if (other.sample_rate, other.num_samples) != (header.sample_rate, header.num_samples):
            raise UserError(
                f"{files[name]}: {other.num_samples} samples at {other.sample_rate} Hz, but its mixture {path} has "
                f"{header.num_samples} at {header.sample_rate} Hz"
            )
        paths[folder] = manifest_path(files[name], out)
    return MixtureEntry(
        id=name,
        sample_rate=header.sample_rate,
        num_samples=header.num_samples,
        mixture=manifest_path(path, out),
        corpus="mixed",
        task="sep_clean" if noise is None else "sep_noisy",
        sources=[SourceEntry(paths[folder]) for folder in folders],
        noise=None if noise is None else NoiseEntry(paths[noise]),
    )


def _at_rate(entry: MixtureEntry, sample_rate: int) -> MixtureEntry:
    entry.num_samples = audio.resampled_length(entry.num_samples, entry.sample_rate, sample_rate, entry.resampler)
    entry.sample_rate = sample_rate
    return entry
