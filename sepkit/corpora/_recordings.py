"""Find single-speaker recordings, their speaker and split, and check that they can be used."""

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path

import numpy as np

from sepkit.choices import did_you_mean
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.files import read_csv, read_json, read_text, remove, write_json, write_text
from sepkit.signals import active_level

SPLITS = ("train", "dev", "test")

# Long recordings are read in blocks of this length, so that memory does not grow with them.
_BLOCK_SECONDS = 30
# Blocks this far below the loudest one (as a ratio of powers) are pauses and do not count in a recording's level.
_PAUSE_POWER_RATIO = 1e-4


@dataclass(frozen=True)
class Recording:
    """A file of one speaker, or a part of one, not read yet. What is None is not known; without `part_seconds`, from
    where to where, the whole file is this speaker's. The name of mixtures is made of `name`; empty: the file's name."""

    path: Path
    speaker: str
    split: str | None = None
    sex: str | None = None
    name: str = ""
    part_seconds: tuple[float, float] | None = None

    @property
    def label(self) -> str:
        """Its name, or else that of the file without the ending."""
        return self.name or self.path.stem


@dataclass(frozen=True)
class Utterance:
    """A recording that was read and can be mixed. Positions are in samples at the rate of the mixtures; the level is
    the root mean square during speech."""

    recording: Recording
    start: int
    num_samples: int
    level: float
    file_sample_rate: int

    @property
    def speaker(self) -> str:
        """Identifier of the speaker."""
        return self.recording.speaker


def find_recordings(speech: Path, speaker_from: str = "first") -> tuple[list[Recording], dict[str, str]]:
    """Return the recordings below a folder, and the files left out with the reason; folders named train, dev or test,
    or like "train-clean-100", are splits.

    Args:
        speaker_from: Rule for the speaker: "first" (the first folder below the split folder), "parent" (the folder
            that holds the file), "regex:PATTERN" (the first group, or all, of the match in the path below `speech`) or
            "csv:FILE" (columns path and speaker, optionally split and sex; paths absolute or relative to `speech`).
    """
    paths = audio.find_audio_files(speech)
    describe = _speaker_rule(speaker_from, speech)
    recordings: list[Recording] = []
    left_out: dict[str, str] = {}
    for path in paths:
        try:
            recordings.append(describe(path))
        except UserError as error:
            left_out[str(path)] = str(error)
    if not recordings:
        raise UserError(f"{speech}: no speaker of {len(paths)} files is known: {next(iter(left_out.values()))}")
    return recordings, left_out


def split_of(relative: Path) -> tuple[str | None, int]:
    """Return the split that a path names, and the number of its folders up to and including the one that names it."""
    for depth, folder in enumerate(relative.parts[:-1], start=1):
        word = re.split(r"[-_.]", folder.lower())[0]
        if word in SPLITS:
            return word, depth
    return None, 0


def speaker_sexes(speech: Path) -> dict[str, str]:
    """Return speaker -> "F" or "M" of LibriSpeech's SPEAKERS.TXT in a folder or up to two above it, if there is one."""
    folder = speech.resolve()
    files = (place / "SPEAKERS.TXT" for place in (folder, *folder.parents[:2]))
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        return {}
    lines = (line.split("|") for line in read_text(path, "a text file").splitlines() if not line.startswith(";"))
    pairs = [(fields[0].strip(), fields[1].strip()) for fields in lines if len(fields) > 1]
    return {speaker: sex for speaker, sex in pairs if sex in ("F", "M")}


def examine(recordings: Sequence[Recording], sample_rate: int) -> tuple[list[Utterance], dict[str, str]]:
    """Return the recordings that can be used, in the order given, and the others with the reason.

    Every file is read to its end, to find truncated, empty, silent and non-finite ones now and not in training.
    """
    from tqdm import tqdm

    def look(recording: Recording) -> Utterance | str:
        try:
            return _examine_one(recording, sample_rate)
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        seen = pool.map(look, recordings)
        results = list(tqdm(seen, total=len(recordings), desc="reading", unit="file", disable=None))
    unusable = {
        f"{recording.path}#{recording.name}" if recording.name else str(recording.path): result
        for recording, result in zip(recordings, results, strict=True)
        if isinstance(result, str)
    }
    return [result for result in results if isinstance(result, Utterance)], unusable


def hold_out_speakers(
    utterances: Sequence[Utterance], names: Sequence[str], smallest: int, seed: int
) -> dict[str, list[Utterance]]:
    """Divide the utterances by speaker: "train", and for each name a tenth of the speakers and at least `smallest`."""
    speakers = sorted({utterance.speaker for utterance in utterances})
    splits = ["train", *names]
    if len(speakers) < smallest * len(splits):
        raise UserError(
            f"found {len(speakers)} speaker(s) ({', '.join(speakers[:5])}), expected at least "
            f"{smallest * len(splits)}: {smallest} each for {', '.join(splits)}, which "
            "share none; give more speakers, or another --speaker-from"
        )
    size = max(smallest, len(speakers) // 10)
    order = np.random.default_rng([seed, 0]).permutation(len(speakers))
    held_out = {speakers[i]: names[rank // size] for rank, i in enumerate(order[: size * len(names)])}
    divided: dict[str, list[Utterance]] = {split: [] for split in splits}
    for utterance in utterances:
        divided[held_out.get(utterance.speaker, "train")].append(utterance)
    return divided


def finite_number(text: str, where: str) -> float:
    """Return the number in a cell of a table.

    Raises:
        UserError: it is none, or not finite.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where}: found {text!r}, expected a finite number")
    return value


def report_skipped(out: Path, skipped: Mapping[str, str], failure: str = "") -> None:
    """Write what was left out to skipped.tsv, one line `path<TAB>reason` each, and warn of it; raise UserError if
    `failure` is given."""
    path = out / "skipped.tsv"
    first = next(iter(skipped.values()), "there are none")
    if skipped:
        write_text(path, "".join(f"{name}\t{reason}\n" for name, reason in skipped.items()))
    else:
        remove(path)
    if failure:
        raise UserError(f"{failure}: {first}")
    if skipped:
        print(f"warning: {len(skipped)} item(s) left out, listed in {path}; the first: {first}", file=sys.stderr)


def check_provenance(path: Path, made_with: Mapping[str, object]) -> None:
    """Add to the JSON file `path` how the recordings in its folder are made; refuse a file that says otherwise."""
    known = read_json(path, "choose another --out") if path.is_file() else {}
    for name, value in made_with.items():
        if dumps(known.get(name, value)) != dumps(value):
            raise UserError(f"{path}: made with {name} {known[name]}, not {value}; choose another --out")
    write_json(path, known | dict(made_with))


def corpus_root(folder: Path, nested: Sequence[str], holds: Sequence[str]) -> Path:
    """Return the folder, or one `nested` in it, that holds folders whose names begin with one of `holds`."""
    for candidate in (folder, *(folder / name for name in nested)):
        if any(path.is_dir() and path.name.startswith(tuple(holds)) for path in candidate.glob("*")):
            return candidate
    found = "contains none" if folder.is_dir() else "no such folder"
    raise UserError(f"{folder}: {found}; expected a folder with {', '.join(f'{name}.../' for name in holds)}")


def _examine_one(recording: Recording, sample_rate: int) -> Utterance:
    header = audio.info(recording.path)
    audio.check_mean(recording.path)
    part = (min(seconds, header.duration_seconds) for seconds in recording.part_seconds or (0.0, math.inf))
    begin, end = (round(seconds * header.sample_rate) for seconds in part)
    start, stop = (audio.resampled_length(n, header.sample_rate, sample_rate) for n in (begin, end))
    if stop <= start:
        raise UserError(f"{recording.path}: {end - begin} samples from {begin} on at {header.sample_rate} Hz: too few")
    blocks = audio.read_blocks(recording.path, _BLOCK_SECONDS * header.sample_rate, start=begin, stop=end)
    powers = [active_level(waveform, header.sample_rate) ** 2 for waveform in blocks]
    loudest = max(powers)
    if loudest == 0:
        raise UserError(f"{recording.path}: digital silence; leave out the file")
    level = float(np.sqrt(np.mean([power for power in powers if power >= _PAUSE_POWER_RATIO * loudest])))
    return Utterance(recording, start, stop - start, level, header.sample_rate)


def _speaker_rule(speaker_from: str, speech: Path) -> Callable[[Path], Recording]:
    kind, _, argument = speaker_from.partition(":")
    if kind in ("first", "parent") and not argument:
        return partial(_by_folder, speech=speech, position=0 if kind == "first" else -1)
    if kind == "regex" and argument:
        try:
            return partial(_by_pattern, speech=speech, pattern=re.compile(argument))
        except re.error as error:
            raise UserError(f"--speaker-from {speaker_from}: not a regular expression ({error})") from None
    if kind == "csv" and argument:
        columns, lines = read_csv(argument)
        if missing := [name for name in ("path", "speaker") if name not in columns]:
            expected = "expected a CSV file with the columns path, speaker"
            raise UserError(f"{argument}: column {missing[0]!r} is missing; {expected}")
        rows = {os.path.abspath(speech / (row["path"] or "")): row for _, row in lines}
        return partial(_by_table, speech=speech, rows=rows, table=argument)
    rules = ("first", "parent", "regex:PATTERN", "csv:FILE")
    hint = did_you_mean(speaker_from, rules)
    raise UserError(f"--speaker-from: found {speaker_from}{hint}, expected one of {', '.join(rules)}")


def _by_folder(path: Path, speech: Path, position: int) -> Recording:
    relative = path.relative_to(speech)
    split, depth = split_of(relative)
    folders = relative.parts[depth:-1]
    if not folders:
        raise UserError(
            f"{path}: no folder between {speech / Path(*relative.parts[:depth])} and the file names its speaker; "
            "use --speaker-from regex:PATTERN or csv:FILE"
        )
    return Recording(path, folders[position], split)


def _by_pattern(path: Path, speech: Path, pattern: re.Pattern[str]) -> Recording:
    relative = path.relative_to(speech)
    match = pattern.search(relative.as_posix())
    speaker = match and (match.group(1) if pattern.groups else match.group(0))
    if not speaker:
        raise UserError(f"{path}: --speaker-from regex:{pattern.pattern} finds no speaker in {relative.as_posix()!r}")
    return Recording(path, speaker, split_of(relative)[0])


def _by_table(path: Path, speech: Path, rows: Mapping[str, Mapping[str, str | None]], table: str) -> Recording:
    row = rows.get(os.path.abspath(path), {})
    if not (speaker := row.get("speaker")):
        raise UserError(f"{path}: {table} has no speaker for it")
    split = row.get("split") or split_of(path.relative_to(speech))[0]
    if split is not None and split not in SPLITS:
        raise UserError(f"{path}: {table} puts it in split {split!r}, expected one of {', '.join(SPLITS)}")
    return Recording(path, speaker, split, {"F": "F", "M": "M"}.get((row.get("sex") or "").upper()[:1]))
