"""Kaldi data folders: `wav.scp` and `utt2spk`, optionally with `segments` and `spk2gender`.

What it is: one line per utterance. `wav.scp` maps recordings to files, `utt2spk` utterances to speakers, `segments`
utterances to parts of recordings (seconds), `spk2gender` speakers to f or m.
Traps: `wav.scp` may hold shell commands. None is ever run: `flac -c -d -s FILE |` and `sph2pipe -f wav FILE |` are read
as their FILE, which libsndfile opens (except shorten-compressed sph); every other command is refused.
"""

import math
import re
from pathlib import Path

from sepkit.corpora._recordings import SPLITS, Recording, finite_number, split_of
from sepkit.errors import UserError
from sepkit.files import read_text

_DECODERS = ("flac", "sph2pipe")


def read_kaldi(folder: Path) -> tuple[list[Recording], dict[str, str]]:
    """Return the recordings of a Kaldi data folder, or of those named train, dev and test in it, and those left out."""
    if (folder / "wav.scp").is_file():
        return _read_one(folder, None)
    recordings: list[Recording] = []
    left_out: dict[str, str] = {}
    for part in sorted(path.parent for path in folder.glob("*/wav.scp")):
        split = split_of(Path(part.name, "wav.scp"))[0]
        if split is not None:
            found, lost = _read_one(part, split)
            recordings += found
            left_out |= lost
    if not recordings:
        raise UserError(f"{folder}: no wav.scp here or in folders {', '.join(SPLITS)}; expected a Kaldi data folder")
    return recordings, left_out


def _read_one(folder: Path, split: str | None) -> tuple[list[Recording], dict[str, str]]:
    files = {name: locate_file(*line, folder) for name, line in read_lines(folder / "wav.scp").items()}
    speakers = read_lines(folder / "utt2spk")
    genders = read_lines(folder / "spk2gender") if (folder / "spk2gender").is_file() else {}
    sexes = {speaker: {"F": "F", "M": "M"}.get(value.upper()[:1]) for speaker, (value, _) in genders.items()}
    segments = read_lines(folder / "segments") if (folder / "segments").is_file() else {}
    parts = {name: _read_part(*line) for name, line in segments.items()} or {name: (name, None) for name in files}
    recordings: list[Recording] = []
    left_out: dict[str, str] = {}
    for utterance, (speaker, where) in speakers.items():
        source, part = parts.get(utterance, ("", None))
        if source in files:
            recordings.append(Recording(files[source], speaker, split, sexes.get(speaker), utterance, part))
        else:
            table = folder / ("segments" if segments and not source else "wav.scp")
            left_out[f"{folder}#{utterance}"] = f"{where}: utterance {utterance} has no line in {table}"
    if not recordings:
        raise UserError(f"{folder}: utt2spk and wav.scp share no utterance; expected the same identifiers in both")
    return recordings, left_out


def _read_part(value: str, where: str) -> tuple[str, tuple[float, float]]:
    words = value.split()
    if len(words) < 3:
        raise UserError(f"{where}: found {value!r}, expected a recording, a start and an end in seconds")
    start, end = (finite_number(word, where) for word in words[1:3])
    # Kaldi writes -1 for the end of the recording.
    end = end if end > 0 else math.inf
    if not 0 <= start < end:
        raise UserError(f"{where}: from {start} s to {end} s, expected a start before the end")
    return words[0], (start, end)


def read_lines(path: Path) -> dict[str, tuple[str, str]]:
    """Return for the first word of each line, which must be unique, the rest of it and where it is ("FILE:NUMBER")."""
    text = read_text(path, "lines of an identifier and a value")
    entries: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split(maxsplit=1)
        if not words:
            continue
        if len(words) < 2:
            raise UserError(f"{path}:{number}: found only {words[0]!r}, expected an identifier and a value")
        if words[0] in entries:
            raise UserError(f"{path}:{number}: {words[0]} has a line already; expected each identifier once")
        entries[words[0]] = (words[1].strip(), f"{path}:{number}")
    return entries


def locate_file(value: str, where: str, folder: Path) -> Path:
    """Return the file of a line of an scp, seen from the current folder as Kaldi does, or else from the data folder.

    The value is a path, or a command that decodes one file with flac or sph2pipe; others are refused.
    """
    if value.endswith("|"):
        words = value.rstrip("| \t").split()
        files = [word for word in words[1:] if re.search(r"\.\w+$", word)]
        if Path(words[0]).name not in _DECODERS or len(files) != 1 or "|" in words:
            raise UserError(f"{where}: command ({value}) is not run; expected a file, or flac or sph2pipe on one file")
        value = files[0]
    path = Path(value)
    return path if path.is_absolute() or path.exists() else folder / path
