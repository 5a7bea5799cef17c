"""Layouts of corpora that are already mixed: which files are the mixture, the references and the noise.

| layout | where |
|---|---|
| folders | `--mixture DIR --sources DIR DIR`, files with equal paths below them |
| bare folder | mix/, s1/, s2/; ID/mix.wav, ID/s1.wav; ID_mix.wav, ID_s1.wav; or `--pattern` |
| CSV | LibriMix and asteroid (mixture_path, source_1_path ...), SpeechBrain (mix_wav, s1_wav ...) |
| Kaldi | wav.scp, spk1.scp, spk2.scp ... |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sepkit.corpora._recordings import find_audio_files
from sepkit.corpora.kaldi import locate_file, read_lines
from sepkit.corpora.options import MixedOptions
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.files import read_csv

_MIXTURES = ("mix", "mixture", "mix_clean", "mix_both", "mix_single", "noisy")
_SOURCES = ("s{}", "spk{}", "source{}", "speaker{}", "clean")
_ARRANGEMENTS = ("{word}/{id}", "{id}/{word}", "{id}_{word}", "{id}-{word}")
_ID = "{id}"


@dataclass(frozen=True)
class Row:
    """The files of one mixture."""

    id: str
    mixture: Path
    sources: tuple[Path, ...]
    noise: Path | None = None


Rows = tuple[list[Row], dict[str, str]]
"""The mixtures found, and what was left out with the reason."""


def find_rows(options: MixedOptions) -> Rows:
    """Return the mixtures that the options describe."""
    if options.mixture is not None:
        if options.folder is not None or options.pattern:
            raise UserError("--mixture: expected without a folder of all and without --pattern; give one of them")
        return _in_folders(options)
    if options.sources or options.noise:
        raise UserError("--sources, --noise: expected with --mixture; a folder of all is searched for them")
    if options.folder is None:
        raise UserError("found no corpus; expected a folder, a CSV file, or --mixture DIR --sources DIR DIR")
    corpus = Path(options.folder)
    if corpus.is_file():
        return _in_table(corpus)
    if options.pattern:
        return _by_patterns(
            corpus, _stems(corpus), [pattern.removesuffix(_ending(pattern)) for pattern in options.pattern]
        )
    if (corpus / "wav.scp").is_file():
        return _in_kaldi(corpus)
    stems = _stems(corpus)
    # Of several ways to name references, the first that fits is kept.
    found = {mixture: source for mixture, source in reversed(_layouts()) if _matches(mixture, source, stems)}
    if len(found) > 1:
        raise UserError(
            f"{corpus}: the mixtures could be {' or '.join(sorted(found))}; choose with --pattern '{min(found)}'"
        )
    if not found:
        raise UserError(
            f"{corpus}: found no mixtures with their references; expected mix/ s1/ s2/, ID/mix.wav ID/s1.wav, "
            "ID_mix.wav ID_s1.wav, or wav.scp spk1.scp; name others with --mixture and --sources, or --pattern"
        )
    ((mixture, source),) = found.items()
    return _by_patterns(corpus, stems, [mixture, *_numbered(source, stems)])


# ------------------------------------------------------------------------------------------------- folders by option


def _in_folders(options: MixedOptions) -> Rows:
    mixture, folders = Path(options.mixture or ""), [Path(source) for source in options.sources or ()]
    noise = None if options.noise is None else Path(options.noise)
    if not folders:
        raise UserError("--sources: found none, expected a folder for each speaker")
    partners = [*folders, *([noise] if noise else [])]
    seen: dict[Path, Path] = {}
    for folder in (mixture, *partners):
        if (same := seen.setdefault(folder.resolve(), folder)) is not folder:
            raise UserError(
                f"{folder}: is the same folder as {same}; expected another for the mixtures and each source"
            )
    mixtures, files = _stems(mixture), {folder: _stems(folder) for folder in partners}
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for name, path in mixtures.items():
        absent = next((folder for folder in partners if name not in files[folder]), None)
        if absent is not None:
            left_out[str(path)] = f"{path}: has no partner of that name in {absent}"
            continue
        rows.append(Row(name, path, tuple(files[f][name] for f in folders), files[noise][name] if noise else None))
    for stems in files.values():
        strays = (path for name, path in stems.items() if name not in mixtures)
        left_out |= {str(path): f"{path}: has no mixture of that name in {mixture}" for path in strays}
    return rows, left_out


def _stems(folder: Path) -> dict[str, Path]:
    """Return path below the folder, without the ending -> file; refuse two files that differ only in their endings."""
    files: dict[str, Path] = {}
    for path in find_audio_files(folder):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in files:
            raise UserError(f"{path}: {files[name].name} has the same name; expected one file of a name")
        files[name] = path
    return files


# ---------------------------------------------------------------------------------------------------------- patterns


def _layouts() -> list[tuple[str, str]]:
    """Return the patterns of the mixture and of the sources, with {} for their number, of all known layouts."""
    return [
        (arrangement.replace("{word}", mixture), arrangement.replace("{word}", source))
        for arrangement in _ARRANGEMENTS
        for mixture in _MIXTURES
        for source in _SOURCES
    ]


def _matches(mixture: str, source: str, stems: Mapping[str, Path]) -> bool:
    first = source.replace("{}", "1")
    return any(first.replace(_ID, name) in stems for name in _names(mixture, stems))


def _numbered(source: str, stems: Mapping[str, Path]) -> list[str]:
    if "{}" not in source:
        return [source]
    patterns: list[str] = []
    while _names(pattern := source.replace("{}", str(len(patterns) + 1)), stems):
        patterns.append(pattern)
    return patterns


def _names(pattern: str, stems: Mapping[str, Path]) -> dict[str, str]:
    before, _, after = pattern.partition(_ID)
    regular = re.compile(re.escape(before) + "(.+)" + re.escape(after).replace(re.escape(_ID), r"\1"))
    found = ((regular.fullmatch(stem), stem) for stem in stems)
    return {match.group(1): stem for match, stem in found if match}


def _by_patterns(corpus: Path, stems: Mapping[str, Path], patterns: Sequence[str]) -> Rows:
    if any(_ID not in pattern for pattern in patterns):
        raise UserError(f"--pattern {' '.join(patterns)}: expected {_ID} in each, as in '{{id}}_mix.wav'")
    mixture, *sources = patterns
    word = _word_of(mixture)
    if not sources:
        styles = [mixture.replace(word, style) for style in _SOURCES] if word else []
        style = next((s for s in styles if _names(s.replace("{}", "1"), stems)), None)
        if style is None:
            raise UserError(
                f"--pattern {mixture}: found no references beside the mixtures; expected further patterns for them, "
                "as in '{id}_mix.wav' '{id}_s1.wav' '{id}_s2.wav'"
            )
        sources = _numbered(style, stems)
    noise = mixture.replace(word, "noise") if word else None
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for name, stem in _names(mixture, stems).items():
        wanted = [pattern.replace(_ID, name) for pattern in sources]
        absent = next((path for path in wanted if path not in stems), None)
        if absent is not None:
            left_out[str(stems[stem])] = f"{stems[stem]}: has no partner {corpus / absent}"
            continue
        beside = stems.get(noise.replace(_ID, name)) if noise else None
        rows.append(Row(name, stems[stem], tuple(stems[path] for path in wanted), beside))
    if not rows and not left_out:
        raise UserError(f"{corpus}: no file fits the pattern {mixture}")
    used = {path for row in rows for path in (row.mixture, *row.sources, row.noise)} | {Path(path) for path in left_out}
    of_sources = {path for pattern in sources for path in _names(pattern, stems).values()}
    strays = (stems[path] for path in sorted(of_sources) if stems[path] not in used)
    return rows, left_out | {str(path): f"{path}: has no mixture of that name" for path in strays}


def _word_of(pattern: str) -> str | None:
    return next((word for word in sorted(_MIXTURES, key=len, reverse=True) if word in pattern), None)


def _ending(pattern: str) -> str:
    suffix = os.path.splitext(pattern)[1]
    return suffix if suffix.lower() in audio.AUDIO_SUFFIXES else ""


# ------------------------------------------------------------------------------------------------------------- tables

_ID_COLUMNS = ("mixture_ID", "ID", "id")
_MIXTURE_COLUMNS = ("mixture_path", "mix_wav", "mixture", "mix")
_NOISE_COLUMNS = ("noise_path", "noise_wav", "noise")
_SOURCE_COLUMN = re.compile(r"(?:source|s|spk)_?(\d{1,3})(?:_path|_wav)?")


def _in_table(path: Path) -> Rows:
    columns, lines = read_csv(path)
    mixture = next((name for name in _MIXTURE_COLUMNS if name in columns), None)
    numbers = {int(match.group(1)): name for name in columns if (match := _SOURCE_COLUMN.fullmatch(name))}
    if mixture is None or not numbers:
        raise UserError(
            f"{path}: columns {', '.join(columns[:9]) or 'none'}; expected those of LibriMix and asteroid "
            "(mixture_path, source_1_path ...) or of SpeechBrain (mix_wav, s1_wav ...)"
        )
    noise = next((name for name in _NOISE_COLUMNS if name in columns), None)
    identifier = next((name for name in _ID_COLUMNS if name in columns), None)
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for line_number, line in lines:
        where = f"{path}:{line_number}"
        cells = [line[mixture], *(line[numbers[number]] for number in sorted(numbers)), line[noise] if noise else None]
        if not all(cells[:-1]):
            left_out[where] = f"{where}: a cell of a path is empty"
            continue
        if any("\0" in (cell or "") for cell in cells):
            left_out[where] = f"{where}: a path holds a NUL character"
            continue
        of_mixture, *of_sources, of_noise = (_located(cell, path) if cell else None for cell in cells)
        name = (line[identifier] if identifier else None) or Path(cells[0] or "").stem
        sources = tuple(source for source in of_sources if source is not None)
        rows.append(Row(name, of_mixture or path, sources, of_noise))
    if not rows:
        raise UserError(next(iter(left_out.values()), f"{path}: holds no mixtures"))
    return rows, left_out


def _located(cell: str, table: Path) -> Path:
    """Return the file of a cell: absolute, or relative to the table's folder (SpeechBrain's $data_root)."""
    return table.parent / re.sub(r"^(\$\{?\w+\}?|\{\w+\})/", "", cell)


def _in_kaldi(folder: Path) -> Rows:
    mixtures = read_lines(folder / "wav.scp")
    parts: list[dict[str, tuple[str, str]]] = []
    while (path := folder / f"spk{len(parts) + 1}.scp").is_file():
        parts.append(read_lines(path))
    if not parts:
        raise UserError(f"{folder}: wav.scp but no spk1.scp; expected the references in spk1.scp, spk2.scp ...")
    noises = read_lines(folder / "noise.scp") if (folder / "noise.scp").is_file() else None
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for name, (_, where) in mixtures.items():
        absent = next((f"spk{number}.scp" for number, part in enumerate(parts, start=1) if name not in part), None)
        if absent is None and noises is not None and name not in noises:
            absent = "noise.scp"
        if absent is not None:
            left_out[where] = f"{where}: {name} has no line in {folder / absent}"
            continue
        try:
            sources = tuple(locate_file(*part[name], folder) for part in parts)
            noise = locate_file(*noises[name], folder) if noises else None
            rows.append(Row(name, locate_file(*mixtures[name], folder), sources, noise))
        except UserError as error:
            left_out[where] = str(error)
    return rows, left_out
