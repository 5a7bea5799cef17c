"""Make mixtures from LibriMix's and VCTK-2mix's tables: the official tree of wavs, or manifests that describe the same.

The order of operations is that of the published scripts. The noise is first cut to the longest source. Each recording
is multiplied by its gain in float32, resampled with `scipy.signal.resample_poly`, cut to the shortest ("min", noise
included) or padded with zeros to the longest ("max"), and summed. The sum is written as PCM16, rounded downwards and
saturating beyond full scale. LibriMix extends shorter noise (which stays float64); VCTK-2mix does not, so shorter noise
ends before the mixture ("max") or cuts it ("min").
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.corpora._mixtures import manifest_path
from sepkit.corpora._recordings import SPLITS, finite_number, report_skipped
from sepkit.corpora._verify import check_whole, verify
from sepkit.corpora.options import Mode
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, write_manifest
from sepkit.data.mixing import check_librimix_extends, extend_librimix
from sepkit.errors import UserError
from sepkit.files import check_writable, journal_line, journal_rows, read_csv, write_csv, write_text
from sepkit.parallel import Failed, for_each

SOURCE_RATE = 16000
"""Sample rate of the source recordings, Hz."""

# Kind of mixture -> (task, suffix of the manifest's name).
_KINDS = {"mix_clean": ("sep_clean", ""), "mix_both": ("sep_noisy", "_noisy"), "mix_single": ("enh_single", "_single")}
_EPSILON = 1e-10
_WAV_HEADER_BYTES = 44


@dataclass(frozen=True)
class Recipe:
    """A line of the metadata: the recipe of one mixture. Recordings are absolute or relative to the folder of the
    speech or noise; a gain is a factor."""

    id: str
    sources: tuple[str, ...]
    gains: tuple[float, ...]
    noise: str
    noise_gain: float


@dataclass(frozen=True)
class Layout:
    """Where recordings come from, how they are mixed, and where the result goes: `tree` is the first folder of the tree
    of wavs, `speech` and `noise` the bases of the paths in tables. `extend_noise` extends noise that is shorter than
    the longest source, as LibriMix does. `sexes` are speaker -> "F" or "M", where known."""

    corpus: str
    tree: str
    speech: Path
    noise: Path
    out: Path
    sample_rate: int
    mode: Mode
    extend_noise: bool
    sexes: Mapping[str, str]

    @property
    def root(self) -> Path:
        """Folder of the parts of the written corpus."""
        return self.out / self.tree / f"wav{self.sample_rate // 1000}k" / self.mode


@dataclass(frozen=True)
class Part:
    """A table of the corpus, "train-100" for example, with the number of lines that it should have."""

    name: str
    split: str
    recipes: Sequence[Recipe]
    expected: int


def prepare_parts(
    parts: Sequence[Part], layout: Layout, skipped: dict[str, str], write: bool, processes: int | None
) -> Path:
    """Write the manifests; return their folder.

    These are `train.jsonl`, `dev.jsonl`, `test.jsonl`, and for each also `_noisy.jsonl` and `_single.jsonl` (the first
    speaker with noise). Parts of one split have manifests of their own as well.
    """
    made = {part.name: _make_part(part, layout, skipped, write, processes) for part in parts}
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
    )
    return layout.out


def render(recipe: Recipe, layout: Layout) -> list[np.ndarray]:
    """Return the sources and, last, the noise of a mixture at its rate, length and level; float32 but extended
    noise."""
    waveforms = [_read(layout.speech / path) for path in recipe.sources]
    longest = max(len(waveform) for waveform in waveforms)
    available, fitted = _noise_lengths(recipe, layout, longest)
    noise = audio.read(layout.noise / recipe.noise, 0, min(available, longest), channel=0)
    if fitted > available:
        noise = extend_librimix(noise, fitted, SOURCE_RATE)
    scaled = [w * g for w, g in zip([*waveforms, noise], [*recipe.gains, recipe.noise_gain], strict=True)]
    resampled = [audio.resample(waveform, SOURCE_RATE, layout.sample_rate, "scipy_poly") for waveform in scaled]
    lengths = [len(waveform) for waveform in resampled]
    if layout.mode == "min":
        return [waveform[: min(lengths)] for waveform in resampled]
    return [np.pad(waveform, (0, max(lengths) - len(waveform))) for waveform in resampled]


_Made = dict[str, Any]
"""Facts about a mixture: its length; of a described one also the lengths of its longest source and of its noise at
16 kHz; of a written one the ratios of each part to the rest, dB, in each kind of mixture."""


def _make_part(
    part: Part, layout: Layout, skipped: dict[str, str], write: bool, processes: int | None
) -> dict[str, _Made]:
    journal = layout.root / "metadata" / f".{part.name}.journal.jsonl"
    made = _made_earlier(part, layout, journal) if write else {}
    missing = [recipe for recipe in part.recipes if recipe.id not in made]
    is_noted = write and bool(missing)
    if is_noted:
        # First drop lines that no longer hold, so that a later run does not trust half of a new mixture.
        write_text(journal, "".join(journal_line({"id": name, **known}) for name, known in made.items()))
    work = partial(_write_one if write else _measure, layout=layout, folder=layout.root / part.name)
    with open(journal, "a", encoding="utf-8", errors="backslashreplace") if is_noted else nullcontext() as file:
        description = part.name if write else f"{part.name}: looking"
        for recipe, result in for_each(work, missing, processes, description, "mixture"):
            if isinstance(result, Failed):
                skipped[f"{part.name}/{recipe.id}"] = result.reason
                continue
            made[recipe.id] = result
            if file is not None:
                file.write(journal_line({"id": recipe.id, **result}))
                file.flush()
    made = {recipe.id: made[recipe.id] for recipe in part.recipes if recipe.id in made}
    for kind in _KINDS if write else ():
        _write_tables(part, made, layout, kind)
    return made


def _made_earlier(part: Part, layout: Layout, journal: Path) -> dict[str, _Made]:
    """Return the journal's entries of mixtures that are still wanted and whose files all exist."""
    folders = [layout.root / part.name / name for name in _subfolders(part)]
    for path in (journal.parent, *folders):
        check_writable(path)
    recorded = {known.pop("id"): known for known in journal_rows(journal)} if journal.is_file() else {}
    return {
        recipe.id: known
        for recipe in part.recipes
        if (known := recorded.get(recipe.id)) is not None
        and known["recipe"] == _fingerprint(recipe, layout)
        and _is_there(recipe.id, known["num_samples"], folders)
    }


def _noise_lengths(recipe: Recipe, layout: Layout, longest: int) -> tuple[int, int]:
    """Return how many samples the noise has at 16 kHz, and how many are mixed with sources of up to `longest`."""
    path = layout.noise / recipe.noise
    available = _header(path).num_samples
    if available >= longest or not layout.extend_noise:
        return available, min(available, longest)
    try:
        check_librimix_extends(available, SOURCE_RATE)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return available, longest


def _measure(recipe: Recipe, layout: Layout, folder: Path) -> _Made:
    lengths = [_header(layout.speech / path).num_samples for path in recipe.sources]
    available, fitted = _noise_lengths(recipe, layout, max(lengths))
    resampled = [audio.resampled_length(n, SOURCE_RATE, layout.sample_rate, "scipy_poly") for n in (*lengths, fitted)]
    num_samples = min(resampled) if layout.mode == "min" else max(resampled)
    return {"num_samples": num_samples, "longest": max(lengths), "noise_samples": available}


def _write_one(recipe: Recipe, layout: Layout, folder: Path) -> _Made:
    *sources, noise = render(recipe, layout)
    parts = {f"s{number}": source for number, source in enumerate(sources, start=1)} | {"noise": noise}
    ratios: dict[str, list[float]] = {}
    mixed_parts = {"mix_clean": sources, "mix_both": [*sources, noise], "mix_single": [sources[0], noise]}
    for kind, mixed in mixed_parts.items():
        mixture = np.zeros_like(sources[0])
        for waveform in mixed:
            mixture += waveform
        ratios[kind] = [_ratio_db(waveform, mixture - waveform) for waveform in mixed]
        parts[kind] = mixture
    for name, waveform in parts.items():
        audio.write(folder / name / f"{recipe.id}.wav", waveform, layout.sample_rate, "PCM_16", "floor")
    return {"recipe": _fingerprint(recipe, layout), "num_samples": len(noise), "snr_db": ratios}


def _ratio_db(part: np.ndarray, rest: np.ndarray) -> float:
    powers = [float(np.mean(waveform**2)) for waveform in (part, rest)]
    return float(10 * np.log10(powers[0] / (powers[1] + _EPSILON) + _EPSILON))


def _subfolders(part: Part) -> list[str]:
    speakers = len(part.recipes[0].sources) if part.recipes else 0
    return [*(f"s{number}" for number in range(1, speakers + 1)), "noise", *_KINDS]


def _is_there(name: str, num_samples: int, folders: Sequence[Path]) -> bool:
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
    return [_entry(one, made[one.id], part, layout, kind, written) for one in part.recipes if one.id in made]


def _entry(recipe: Recipe, known: _Made, part: Part, layout: Layout, kind: str, written: bool) -> MixtureEntry:
    speakers = [speaker_of(path) for path in recipe.sources]
    numbers, root = range(1, len(speakers) + 1), layout.root / part.name
    wavs = {name: root / name / f"{recipe.id}.wav" for name in (kind, *(f"s{number}" for number in numbers), "noise")}
    if written:
        files, gains = [wavs[f"s{number}"] for number in numbers], [1.0 for _ in numbers]
        noise = NoiseEntry(manifest_path(wavs["noise"], layout.out))
    else:
        files, gains = [layout.speech / path for path in recipe.sources], recipe.gains
        is_extended = layout.extend_noise and known["noise_samples"] < known["longest"]
        noise = NoiseEntry(
            manifest_path(layout.noise / recipe.noise, layout.out),
            gain=recipe.noise_gain,
            extend="librimix" if is_extended else None,
            file_samples=known["longest"],
            channel=0,
        )
    sources = [
        SourceEntry(manifest_path(file, layout.out), speaker, layout.sexes.get(speaker), gain=gain)
        for file, speaker, gain in zip(files, speakers, gains, strict=True)
    ]
    return MixtureEntry(
        id=recipe.id,
        sample_rate=layout.sample_rate,
        num_samples=known["num_samples"],
        sources=sources[:1] if kind == "mix_single" else sources,
        mode=layout.mode,
        mixture=manifest_path(wavs[kind], layout.out) if written else None,
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


def _header(path: Path) -> audio.AudioInfo:
    header = check_whole(path)
    if header.sample_rate != SOURCE_RATE:
        raise UserError(f"{path}: {header.sample_rate} Hz, expected {SOURCE_RATE}; it is not the corpus's recording")
    return header


def _read(path: Path) -> np.ndarray:
    _header(path)
    return audio.read(path, channel=0)


def find_tables(folder: Path, prefix: str, nested: Sequence[str]) -> dict[str, Path]:
    """Return table names, without `prefix` and `.csv`, -> tables of a folder, or of one `nested` in it; "info" is left
    out."""
    for candidate in (folder, *(folder / name for name in nested)):
        tables = {
            path.stem.removeprefix(prefix): path
            for path in sorted(candidate.glob(f"{prefix}*.csv"))
            if "info" not in path.name
        }
        if tables:
            return tables
    found = "no such folder" if not folder.is_dir() else f"contains no {prefix}*.csv"
    raise UserError(f"{folder}: {found}; expected the folder of the published metadata")


def read_table(path: Path, speakers: int) -> tuple[list[Recipe], dict[str, str]]:
    """Return the mixtures of a table, in its order, and its unusable lines: place -> reason."""
    recipes: list[Recipe] = []
    bad: dict[str, str] = {}
    first_line: dict[str, int] = {}
    of_source = [f"source_{number}_{what}" for number in range(1, speakers + 1) for what in ("path", "gain")]
    for number, row in _rows(path, ["mixture_ID", *of_source, "noise_path", "noise_gain"]):
        where = f"{path}:{number}"
        try:
            recipe = _recipe(row, where)
        except UserError as error:
            bad[where] = str(error)
            continue
        if (first := first_line.setdefault(recipe.id, number)) != number:
            bad[where] = f"{where}: mixture_ID {recipe.id!r} is that of line {first}; names must differ"
        else:
            recipes.append(recipe)
    if not recipes:
        raise UserError(next(iter(bad.values()), f"{path}: contains no mixtures; get the table again"))
    return recipes, bad


def _rows(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str | None]]]:
    found, rows = read_csv(path)
    if found != list(columns):
        raise UserError(
            f"{path}: columns {', '.join(found[:9]) or 'none'}; expected {', '.join(columns)}: the metadata of another "
            "version, or for another number of speakers"
        )
    return rows


def _recipe(row: dict[str, str | None], where: str) -> Recipe:
    cells = [cell or "" for column, cell in row.items() if column is not None]
    if "" in cells or None in row:
        raise UserError(f"{where}: expected {len(cells)} cells, none of them empty; the table is damaged")
    name, *parts = cells
    if Path(name).name != name or name in (".", ".."):
        raise UserError(f"{where}: mixture_ID {name!r} leads out of its folder; expected a plain name")
    *gains, noise_gain = (finite_number(text, where) for text in parts[1::2])
    *sources, noise = parts[::2]
    return Recipe(name, tuple(sources), tuple(gains), noise, noise_gain)
