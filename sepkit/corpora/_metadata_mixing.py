"""Make mixtures from LibriMix's and VCTK-2mix's tables: the official tree of wavs, or manifests that describe the same.

The order of operations is that of the published scripts. The noise is first cut to the longest source. Each recording
is multiplied by its gain in float32, resampled with `scipy.signal.resample_poly`, cut to the shortest ("min", noise
included) or padded with zeros to the longest ("max"), and summed. The sum is written as PCM16, rounded downwards and
saturating beyond full scale. LibriMix extends shorter noise (which stays float64); VCTK-2mix does not, so shorter noise
ends before the mixture ("max") or cuts it ("min").
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.corpora._metadata_tables import Recipe
from sepkit.corpora._mixtures import manifest_path
from sepkit.corpora._recordings import SPLITS, report_skipped
from sepkit.corpora._verify import check_whole, verify
from sepkit.corpora.options import Mode
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, write_manifest
from sepkit.data.mixing import check_librimix_extends, extend_librimix
from sepkit.errors import UserError
from sepkit.files import check_writable, journal_line, journal_rows, write_csv, write_text
from sepkit.parallel import Failed, for_each

SOURCE_RATE = 16000
"""Sample rate of what the mixtures are made of, Hz."""

# Kind of mixture -> (task, suffix of the manifest's name).
_KINDS = {"mix_clean": ("sep_clean", ""), "mix_both": ("sep_noisy", "_noisy"), "mix_single": ("enh_single", "_single")}
_EPSILON = 1e-10
_WAV_HEADER_BYTES = 44


@dataclass(frozen=True)
class Layout:
    """Where recordings come from, how they are mixed, and where the result goes: `tree` is the first folder of the tree
    of wavs, `speech` and `noise` the bases of the paths in tables. `extend_noise` extends noise that is shorter than
    the longest source, as LibriMix does."""

    corpus: str
    tree: str
    speech: Path
    noise: Path
    out: Path
    sample_rate: int
    mode: Mode
    extend_noise: bool

    @property
    def root(self) -> Path:
        """Folder of the parts of the written corpus."""
        return self.out / self.tree / f"wav{self.sample_rate // 1000}k" / self.mode


@dataclass(frozen=True)
class Part:
    """A table of the corpus, "train-100" for example, with the number of lines that it should have. Mixtures whose
    speakers and sexes `speakers_of` lacks are told by their paths."""

    name: str
    split: str
    recipes: Sequence[Recipe]
    expected: int
    speakers_of: Mapping[str, Sequence[tuple[str, str | None]]]


def prepare_parts(
    parts: Sequence[Part], layout: Layout, skipped: dict[str, str], write: bool, processes: int | None
) -> Path:
    """Write the manifests; return their folder.

    These are `train.jsonl`, `dev.jsonl`, `test.jsonl`, and for each also `_noisy.jsonl` and `_single.jsonl` (the first
    speaker with noise). Parts of one split have manifests of their own as well.
    """
    made = {part.name: (_write_part if write else _measure_part)(part, layout, skipped, processes) for part in parts}
    failure = "" if any(made.values()) else f"{layout.speech}: none of the mixtures can be made"
    report_skipped(layout.out, skipped, failure)
    for split in SPLITS:
        for kind, (_, suffix) in _KINDS.items():
            of_split = [part for part in parts if part.split == split and made[part.name]]
            entries = {part.name: _entries(part, made[part.name], layout, kind, write) for part in of_split}
            if entries:
                named = entries if len(entries) > 1 else {}
                together = [entry for members in entries.values() for entry in members]
                for name, members in (named | {split: together}).items():
                    write_manifest(layout.out / f"{name}{suffix}.jsonl", members)
    named = {part.name if part.name.startswith(part.split) else f"{part.split}-{part.name}": part for part in parts}
    verify(
        layout.out,
        {name: _entries(part, made[part.name], layout, "mix_both", write) for name, part in named.items()},
        {name: part.expected for name, part in named.items()},
        processes=1,  # a second's work
    )
    return layout.out


def render(recipe: Recipe, layout: Layout) -> list[np.ndarray]:
    """Return the sources and, last, the noise of a mixture at its rate, length and level; float32 but extended
    noise."""
    paths = [layout.speech / path for path in recipe.sources]
    waveforms = [_read(path) for path in paths]
    noise_path = layout.noise / recipe.noise
    available = _header(noise_path).num_samples
    longest = max(len(waveform) for waveform in waveforms)
    noise = audio.read(noise_path, 0, min(available, longest), channel=0)
    if layout.extend_noise and available < longest:
        with _naming(noise_path):
            noise = extend_librimix(noise, longest, SOURCE_RATE)
    scaled = [w * g for w, g in zip([*waveforms, noise], [*recipe.gains, recipe.noise_gain], strict=True)]
    resampled = [audio.resample(waveform, SOURCE_RATE, layout.sample_rate, "scipy_poly") for waveform in scaled]
    lengths = [len(waveform) for waveform in resampled]
    if layout.mode == "min":
        return [waveform[: min(lengths)] for waveform in resampled]
    return [np.pad(waveform, (0, max(lengths) - len(waveform))) for waveform in resampled]


_Made = dict[str, Any]
"""Facts about a mixture: its length; of a described one also the lengths of its longest source and of its noise at
16 kHz; of a written one the ratios of each part to the rest, dB, in each kind of mixture."""


def _measure_part(part: Part, layout: Layout, skipped: dict[str, str], processes: int | None) -> dict[str, _Made]:
    made: dict[str, _Made] = {}
    work = partial(_measure, layout=layout)
    for recipe, result in for_each(work, part.recipes, processes, f"{part.name}: looking", "mixture"):
        if isinstance(result, Failed):
            skipped[f"{part.name}/{recipe.id}"] = result.reason
        else:
            made[recipe.id] = result
    return made


def _measure(recipe: Recipe, layout: Layout) -> _Made:
    lengths = [_header(layout.speech / path).num_samples for path in recipe.sources]
    noise_path = layout.noise / recipe.noise
    available = _header(noise_path).num_samples
    longest = max(lengths)
    fitted = min(available, longest)
    if layout.extend_noise and available < longest:
        with _naming(noise_path):
            check_librimix_extends(available, SOURCE_RATE)
        fitted = longest
    resampled = [
        audio.resampled_length(length, SOURCE_RATE, layout.sample_rate, "scipy_poly") for length in (*lengths, fitted)
    ]
    num_samples = min(resampled) if layout.mode == "min" else max(resampled)
    return {"num_samples": num_samples, "longest": longest, "noise_samples": available}


def _write_part(part: Part, layout: Layout, skipped: dict[str, str], processes: int | None) -> dict[str, _Made]:
    folder, tables = layout.root / part.name, layout.root / "metadata"
    folders = [folder / name for name in _subfolders(part)]
    for path in (tables, *folders):
        check_writable(path)
    journal = tables / f".{part.name}.journal.jsonl"
    recorded = _read_journal(journal)
    made = {
        recipe.id: known
        for recipe in part.recipes
        if (known := recorded.get(recipe.id)) is not None
        and known["recipe"] == _fingerprint(recipe, layout)
        and _is_there(recipe.id, known["num_samples"], folders)
    }
    missing = [recipe for recipe in part.recipes if recipe.id not in made]
    if missing:
        # First drop lines that no longer hold, so that a later run does not trust half of a new mixture.
        write_text(journal, "".join(journal_line({"id": name, **known}) for name, known in made.items()))
        work = partial(_write_one, layout=layout, folder=folder)
        with open(journal, "a", encoding="utf-8", errors="backslashreplace") as file:
            for recipe, result in for_each(work, missing, processes, part.name, "mixture"):
                if isinstance(result, Failed):
                    skipped[f"{part.name}/{recipe.id}"] = result.reason
                    continue
                made[recipe.id] = result
                file.write(journal_line({"id": recipe.id, **result}))
                file.flush()
    made = {recipe.id: made[recipe.id] for recipe in part.recipes if recipe.id in made}
    for kind in _KINDS:
        _write_tables(part, made, layout, kind)
    return made


def _write_one(recipe: Recipe, layout: Layout, folder: Path) -> _Made:
    *sources, noise = render(recipe, layout)
    parts = {f"s{number}": source for number, source in enumerate(sources, start=1)} | {"noise": noise}
    ratios: dict[str, list[float]] = {}
    for kind, mixed in _mixed_parts(sources, noise).items():
        mixture = np.zeros_like(sources[0])
        for waveform in mixed:
            mixture += waveform
        ratios[kind] = [_ratio_db(waveform, mixture - waveform) for waveform in mixed]
        parts[kind] = mixture
    for name, waveform in parts.items():
        audio.write(folder / name / f"{recipe.id}.wav", waveform, layout.sample_rate, "PCM_16", "floor")
    return {"recipe": _fingerprint(recipe, layout), "num_samples": len(noise), "snr_db": ratios}


def _mixed_parts(sources: Sequence[np.ndarray], noise: np.ndarray) -> dict[str, list[np.ndarray]]:
    return {"mix_clean": [*sources], "mix_both": [*sources, noise], "mix_single": [sources[0], noise]}


def _ratio_db(part: np.ndarray, rest: np.ndarray) -> float:
    powers = [float(np.mean(waveform**2)) for waveform in (part, rest)]
    return float(10 * np.log10(powers[0] / (powers[1] + _EPSILON) + _EPSILON))


def _subfolders(part: Part) -> list[str]:
    speakers = len(part.recipes[0].sources) if part.recipes else 0
    return [*(f"s{number}" for number in range(1, speakers + 1)), "noise", *_KINDS]


def _is_there(name: str, num_samples: int, folders: Iterable[Path]) -> bool:
    size = _WAV_HEADER_BYTES + 2 * num_samples
    try:
        return all(os.stat(folder / f"{name}.wav").st_size == size for folder in folders)
    except OSError:
        return False


def _fingerprint(recipe: Recipe, layout: Layout) -> str:
    recording = [recipe.sources, recipe.gains, recipe.noise, recipe.noise_gain]
    # "cut": the first version did not cut the noise of VCTK-2mix and noted false; its files are made again.
    text = json.dumps([recording, layout.sample_rate, layout.mode, layout.extend_noise or "cut"])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_journal(path: Path) -> dict[str, _Made]:
    recorded: dict[str, _Made] = {}
    if path.is_file():
        for known in journal_rows(path):
            recorded[known.pop("id")] = {name: known[name] for name in ("recipe", "num_samples", "snr_db")}
    return recorded


def _write_tables(part: Part, made: Mapping[str, _Made], layout: Layout, kind: str) -> None:
    """Write `mixture_PART_KIND.csv` and `metrics_PART_KIND.csv` with the official columns and absolute paths."""
    folder, tables = Path(os.path.abspath(layout.root / part.name)), layout.root / "metadata"
    names = [name for name in _subfolders(part) if name[0] == "s"]
    names = names[:1] if kind == "mix_single" else names
    columns = [f"source_{name[1:]}" for name in names]
    if kind != "mix_clean":
        names, columns = [*names, "noise"], [*columns, "noise"]
    write_csv(
        tables / f"mixture_{part.name}_{kind}.csv",
        ["mixture_ID", "mixture_path", *(f"{column}_path" for column in columns), "length"],
        [
            [name, *(str(folder / directory / f"{name}.wav") for directory in (kind, *names)), known["num_samples"]]
            for name, known in made.items()
        ],
    )
    write_csv(
        tables / f"metrics_{part.name}_{kind}.csv",
        ["mixture_ID", *(f"{column}_SNR" for column in columns)],
        [[name, *known["snr_db"][kind]] for name, known in made.items()],
    )


def _entries(part: Part, made: Mapping[str, _Made], layout: Layout, kind: str, written: bool) -> list[MixtureEntry]:
    return [
        _entry(recipe, made[recipe.id], part, layout, kind, written) for recipe in part.recipes if recipe.id in made
    ]


def _entry(recipe: Recipe, known: _Made, part: Part, layout: Layout, kind: str, written: bool) -> MixtureEntry:
    speakers = part.speakers_of.get(recipe.id) or [(speaker_of(path), None) for path in recipe.sources]
    mixture = None
    if written:
        names = (kind, *(f"s{number}" for number in range(1, len(speakers) + 1)), "noise")
        files = (layout.root / part.name / name / f"{recipe.id}.wav" for name in names)
        mixture, *paths, noise_path = (manifest_path(file, layout.out) for file in files)
        sources = [SourceEntry(path, *speaker) for path, speaker in zip(paths, speakers, strict=True)]
        noise = NoiseEntry(noise_path)
    else:
        sources = [
            SourceEntry(manifest_path(layout.speech / path, layout.out), *speaker, gain=gain)
            for path, gain, speaker in zip(recipe.sources, recipe.gains, speakers, strict=True)
        ]
        is_extended = layout.extend_noise and known["noise_samples"] < known["longest"]
        noise = NoiseEntry(
            manifest_path(layout.noise / recipe.noise, layout.out),
            gain=recipe.noise_gain,
            extend="librimix" if is_extended else None,
            file_samples=known["longest"],
            channel=0,
        )
    return MixtureEntry(
        id=recipe.id,
        sample_rate=layout.sample_rate,
        num_samples=known["num_samples"],
        sources=sources[:1] if kind == "mix_single" else sources,
        mode=layout.mode,
        mixture=mixture,
        resampler="scipy_poly",
        corpus=layout.corpus,
        task=_KINDS[kind][0],
        noise=None if kind == "mix_clean" else noise,
        folder=layout.out,
    )


def speaker_of(path: str) -> str:
    """Return the speaker of "train-clean-100/103/1240/103-1240-0000.flac" or "wav16_cut/p225_001.wav"."""
    folders = Path(path).parts[:-1]
    return folders[1] if len(folders) > 1 else re.split(r"[-_]", Path(path).stem)[0]


def _header(path: Path, look_at_end: bool = True) -> audio.AudioInfo:
    header = check_whole(path) if look_at_end else audio.info(path)
    if header.sample_rate != SOURCE_RATE:
        raise UserError(
            f"{path}: {header.sample_rate} Hz, expected {SOURCE_RATE}; it is not the corpus's own recording"
        )
    return header


def _read(path: Path) -> np.ndarray:
    # Reading the header of a FLAC file reaches its end in any case.
    _header(path, look_at_end=path.suffix.lower() == ".wav")
    return audio.read(path, channel=0)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let a user's mistake in the block name the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
