"""A corpus that is already mixed, for evaluation: mixtures with one reference for each speaker.

What it is: which files are the mixture, the references and the noise, in one of these layouts.

| layout | where |
|---|---|
| folders | `--mixture DIR --sources DIR DIR`, files with equal paths below them |
| bare folder | mix/, s1/, s2/; ID/mix.wav, ID/s1.wav; ID_mix.wav, ID_s1.wav; or `--pattern` |
| CSV | LibriMix and asteroid (mixture_path, source_1_path ...), SpeechBrain (mix_wav, s1_wav ...) |
| Kaldi | wav.scp, spk1.scp, spk2.scp ... |

Traps: in folders, files are paired by their path below the folder, without the ending. A file without a partner, or
whose partner has another rate or length, is left out and listed. Speakers are unknown, so the manifest is useless for
dynamic mixing.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sepkit.corpora._mixtures import few, manifest_path
from sepkit.corpora._recordings import report_skipped
from sepkit.corpora.kaldi import locate_file, read_lines
from sepkit.corpora.options import MixedOptions
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry, write_manifest
from sepkit.errors import UserError, counted
from sepkit.files import check_writable, read_csv

_MIXTURES = ("mix", "mixture", "mix_clean", "mix_both", "mix_single", "noisy")
_SOURCES = ("s{}", "spk{}", "source{}", "speaker{}", "clean")
_ARRANGEMENTS = ("{word}/{id}", "{id}/{word}", "{id}_{word}", "{id}-{word}")
_ID = "{id}"
# Columns of tables.
_ID_COLUMNS = ("mixture_ID", "ID", "id")
_MIXTURE_COLUMNS = ("mixture_path", "mix_wav", "mixture", "mix")
_NOISE_COLUMNS = ("noise_path", "noise_wav", "noise")
_SOURCE_COLUMN = re.compile(r"(?:source|s|spk)_?(\d{1,3})(?:_path|_wav)?")


@dataclass(frozen=True)
class Row:
    """The files of one mixture."""

    id: str
    mixture: Path
    sources: tuple[Path, ...]
    noise: Path | None = None


Rows = tuple[list[Row], dict[str, str]]
"""The mixtures found, and what was left out with the reason."""

Files = dict[str, Path]
"""Path below a folder, without the ending, or another name -> file."""


def prepare_mixed(options: MixedOptions) -> Path:
    """Write `out/test.jsonl`, the recorded mixtures with their references at the rate that most have; return its
    path."""
    out = Path(options.out)
    check_writable(out)
    rows, left_out = find_rows(options)
    entries: list[MixtureEntry] = []
    for row in rows:
        try:
            entries.append(_entry(row, out))
        except UserError as error:
            left_out[str(row.mixture)] = str(error)
    failure = "" if entries else f"{options.folder or options.mixture}: none of its mixtures can be used"
    report_skipped(out, left_out, failure)
    rates = Counter(entry.sample_rate for entry in entries)
    sample_rate = max(rates, key=lambda rate: (rates[rate], rate))
    for entry in entries:
        length = audio.resampled_length(entry.num_samples, entry.sample_rate, sample_rate, entry.resampler)
        entry.sample_rate, entry.num_samples = sample_rate, length
    hours = sum(entry.duration_seconds for entry in entries) / 3600
    sizes = " or ".join(map(str, sorted({len(entry.sources) for entry in entries})))
    print(f"test.jsonl: {counted(len(entries), 'mixture')} of {sizes} at {sample_rate} Hz, {hours:.2f} h{few(entries)}")
    return write_manifest(out / "test.jsonl", entries)


def _entry(row: Row, out: Path) -> MixtureEntry:
    header = audio.info(row.mixture)
    for path in [*row.sources, *([row.noise] if row.noise else [])]:
        if path.resolve() == row.mixture.resolve():
            raise UserError(f"{path}: is the mixture and a reference of itself; leave out the row")
        other = audio.info(path)
        if (other.sample_rate, other.num_samples) != (header.sample_rate, header.num_samples):
            raise UserError(
                f"{path}: {other.num_samples} samples at {other.sample_rate} Hz, but its mixture {row.mixture} has "
                f"{header.num_samples} at {header.sample_rate} Hz"
            )
    return MixtureEntry(
        id=row.id,
        sample_rate=header.sample_rate,
        num_samples=header.num_samples,
        mixture=manifest_path(row.mixture, out),
        corpus="mixed",
        task="sep_clean" if row.noise is None else "sep_noisy",
        sources=[SourceEntry(manifest_path(path, out)) for path in row.sources],
        noise=None if row.noise is None else NoiseEntry(manifest_path(row.noise, out)),
    )


def find_rows(options: MixedOptions) -> Rows:
    """Return the mixtures that the options describe."""
    if options.mixture is not None:
        if options.folder is not None or options.pattern:
            raise UserError("--mixture: expected without a folder of all and without --pattern; give one of them")
        return _in_folders(options)
    if options.sources or options.noise:
        raise UserError("--sources, --noise: expected with --mixture; a folder of all is searched for them")
    corpus = Path(options.folder or "nothing")
    if options.folder is None or not corpus.exists():
        raise UserError(f"FOLDER: found {corpus}, expected a folder, a CSV file, or --mixture DIR --sources DIR DIR")
    if corpus.is_file():
        return _in_table(corpus)
    if options.pattern:
        return _by_patterns(corpus, _stems(corpus), [_without_ending(pattern) for pattern in options.pattern])
    if (corpus / "wav.scp").is_file():
        return _in_kaldi(corpus)
    stems = _stems(corpus)
    layouts = [
        (arrangement.replace("{word}", mixture), arrangement.replace("{word}", source))
        for arrangement in _ARRANGEMENTS
        for mixture in _MIXTURES
        for source in _SOURCES
    ]
    # Of several ways to name references, the first that fits is kept.
    found = {
        mixture: source
        for mixture, source in reversed(layouts)
        if _files(mixture, stems).keys() & _files(source.replace("{}", "1"), stems).keys()
    }
    if len(found) > 1:
        raise UserError(
            f"{corpus}: the mixtures could be {' or '.join(sorted(found))}; choose with --pattern '{min(found)}'"
        )
    if not found:
        raise UserError(
            f"{corpus}: found no mixtures with references{_hint(corpus)}; expected mix/ s1/ s2/, ID/mix.wav "
            "ID/s1.wav, ID_mix.wav ID_s1.wav, or wav.scp spk1.scp; name others with --mixture and --sources, or "
            "--pattern"
        )
    ((mixture, source),) = found.items()
    return _by_patterns(corpus, stems, [mixture, *_numbered(source, stems)])


def _hint(corpus: Path) -> str:
    """Return " (did you mean CORPUS/tt?)" for a folder below that has mixtures; "" if there is none."""
    folders = sorted(path.parent for word in _MIXTURES for path in corpus.glob(f"*/**/{word}") if path.is_dir())
    test = [folder for folder in folders if folder.name.startswith(("test", "tt"))]
    return f" (did you mean {(test or folders)[-1]}?)" if folders else ""


def _in_folders(options: MixedOptions) -> Rows:
    mixture, sources = Path(options.mixture or ""), [Path(source) for source in options.sources or ()]
    noises = [] if options.noise is None else [Path(options.noise)]
    if not sources:
        raise UserError("--sources: found none, expected a folder for each speaker")
    seen: dict[Path, Path] = {}
    for folder in (mixture, *sources, *noises):
        if (same := seen.setdefault(folder.resolve(), folder)) is not folder:
            raise UserError(f"{folder}: the same folder as {same}; expected another for the mixtures and each source")
    mixtures, partners, noise = ({str(path): _stems(path) for path in paths} for paths in ([mixture], sources, noises))
    return _paired(mixtures, partners | noise, partners, noise)


def _paired(
    mixtures: Mapping[str, Files], needed: Mapping[str, Files], sources: Mapping[str, Files], noise: Mapping[str, Files]
) -> Rows:
    """Return the mixtures whose name is in all that is needed; all arguments are place -> name -> file."""
    ((place, named),) = mixtures.items()
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for name, path in named.items():
        absent = next((where for where, files in needed.items() if name not in files), None)
        if absent is not None:
            left_out[str(path)] = f"{path}: has no partner of that name in {absent}"
            continue
        beside = next((files.get(name) for files in noise.values()), None)
        rows.append(Row(name, path, tuple(files[name] for files in sources.values()), beside))
    strays = [path for files in needed.values() for name, path in files.items() if name not in named]
    return rows, left_out | {str(path): f"{path}: has no mixture of that name in {place}" for path in strays}


def _stems(folder: Path) -> Files:
    """Return the audio files of a folder; refuse two that differ only in their endings."""
    files: Files = {}
    for path in audio.find_audio_files(folder):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in files:
            raise UserError(f"{path}: {files[name].name} has the same name; expected one file of a name")
        files[name] = path
    return files


def _files(pattern: str, stems: Files) -> Files:
    """Return the files that match a pattern, by their {id}."""
    before, _, after = pattern.partition(_ID)
    regular = re.compile(re.escape(before) + "(.+)" + re.escape(after).replace(re.escape(_ID), r"\1"))
    return {match[1]: path for stem, path in stems.items() if (match := regular.fullmatch(stem))}


def _numbered(source: str, stems: Files) -> list[str]:
    if "{}" not in source:
        return [source]
    patterns: list[str] = []
    while _files(pattern := source.replace("{}", str(len(patterns) + 1)), stems):
        patterns.append(pattern)
    return patterns


def _by_patterns(corpus: Path, stems: Files, patterns: Sequence[str]) -> Rows:
    if any(_ID not in pattern for pattern in patterns):
        raise UserError(f"--pattern {' '.join(patterns)}: expected {_ID} in each, as in '{{id}}_mix.wav'")
    mixture, *sources = patterns
    word = next((word for word in sorted(_MIXTURES, key=len, reverse=True) if word in mixture), None)
    if not sources:
        styles = [mixture.replace(word, style) for style in _SOURCES] if word else []
        style = next((style for style in styles if _files(style.replace("{}", "1"), stems)), None)
        if style is None:
            raise UserError(
                f"--pattern {mixture}: found no references beside the mixtures; expected further patterns for them, "
                "as in '{id}_mix.wav' '{id}_s1.wav' '{id}_s2.wav'"
            )
        sources = _numbered(style, stems)
    noises = [mixture.replace(word, "noise")] if word else []
    mixtures, partners, noise = (
        {str(corpus / pattern): _files(pattern, stems) for pattern in of_kind}
        for of_kind in ([mixture], sources, noises)
    )
    if not any(mixtures.values()):
        raise UserError(f"{corpus}: no file fits the pattern {mixture}")
    return _paired(mixtures, partners, partners, noise)


def _without_ending(pattern: str) -> str:
    stem, suffix = os.path.splitext(pattern)
    return stem if suffix.lower() in audio.AUDIO_SUFFIXES else pattern


def _in_table(path: Path) -> Rows:
    columns, lines = read_csv(path)
    mixture = next((name for name in _MIXTURE_COLUMNS if name in columns), None)
    numbers = {int(match.group(1)): name for name in columns if (match := _SOURCE_COLUMN.fullmatch(name))}
    if mixture is None or not numbers:
        raise UserError(
            f"{path}: columns {', '.join(columns[:9]) or 'none'}; expected those of LibriMix and asteroid "
            "(mixture_path, source_1_path ...) or of SpeechBrain (mix_wav, s1_wav ...)"
        )
    noise, identifier = (next((n for n in known if n in columns), None) for known in (_NOISE_COLUMNS, _ID_COLUMNS))
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for line_number, line in lines:
        where = f"{path}:{line_number}"
        cells = [line[column] or "" for column in (mixture, *(numbers[number] for number in sorted(numbers)))]
        of_noise = line[noise] if noise else None
        if not all(cells):
            left_out[where] = f"{where}: a cell of a path is empty"
        elif any("\0" in cell for cell in (*cells, of_noise or "")):
            left_out[where] = f"{where}: a path contains a NUL character"
        else:
            of_mixture, *sources = (_located(cell, path) for cell in cells)
            name = (line[identifier] if identifier else None) or Path(cells[0]).stem
            rows.append(Row(name, of_mixture, tuple(sources), _located(of_noise, path) if of_noise else None))
    if not rows:
        raise UserError(next(iter(left_out.values()), f"{path}: contains no mixtures"))
    return rows, left_out


def _located(cell: str, table: Path) -> Path:
    """Return the file of a cell: absolute, or relative to the table's folder (SpeechBrain's $data_root)."""
    return table.parent / re.sub(r"^(\$\{?\w+\}?|\{\w+\})/", "", cell)


def _in_kaldi(folder: Path) -> Rows:
    lines = {"wav.scp": read_lines(folder / "wav.scp")}
    while (path := folder / f"spk{len(lines)}.scp").is_file():
        lines[path.name] = read_lines(path)
    if (speakers := len(lines) - 1) == 0:
        raise UserError(f"{folder}: wav.scp but no spk1.scp; expected the references in spk1.scp, spk2.scp ...")
    if (path := folder / "noise.scp").is_file():
        lines[path.name] = read_lines(path)
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for name, (_, where) in lines["wav.scp"].items():
        absent = next((file for file, known in lines.items() if name not in known), None)
        try:
            if absent is not None:
                raise UserError(f"{where}: {name} has no line in {folder / absent}")
            mixture, *others = (locate_file(*known[name], folder) for known in lines.values())
            rows.append(Row(name, mixture, tuple(others[:speakers]), *others[speakers:]))
        except UserError as error:
            left_out[where] = str(error)
    return rows, left_out
