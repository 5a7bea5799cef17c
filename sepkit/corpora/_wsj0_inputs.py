"""Inputs of WSJ0-mix: the mixing lists, the table of active levels, and the recordings that the lists name."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np

from sepkit.corpora._recordings import finite_number
from sepkit.corpora._verify import check_whole
from sepkit.corpora.active_level import active_speech_level
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.files import read_text
from sepkit.parallel import Failed, for_each

CONDITIONS = {"tr": "train", "cv": "dev", "tt": "test"}
"""Name of a list -> name of its manifest."""

WSJ0_RATE = 16000
# Active levels are measured at this rate, whatever the rate of the mixtures.
_LEVEL_RATE = 8000
_SUFFIXES = (".wav", ".flac", ".wv1", ".sph")
# Number of recordings that are measured to check that the table of levels belongs to them.
_CHECKED_LEVELS = 40
_LEVEL_TOLERANCE_DB = 1.5


@dataclass(frozen=True)
class Part:
    """One source of a line of a list: the path as the list has it, and its level relative to the others."""

    listed: str
    snr_db: float

    @property
    def utterance(self) -> str:
        """The utterance's name in the table of levels."""
        return self.listed.split("/")[-1].replace(".wav", "")

    @property
    def speaker(self) -> str:
        """The folder of the recording: WSJ0 has one per speaker."""
        return PurePosixPath(self.listed).parent.name or self.utterance[:3]


@dataclass(frozen=True)
class Line:
    """A line of a mixing list."""

    where: str
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """The name of the mixture's files: utterances and relative levels, 8 significant digits."""
        return "_".join(f"{part.utterance}_{part.snr_db:.8g}" for part in self.parts)


@dataclass(frozen=True)
class Recording:
    """A recording that was checked, and its active level as a power."""

    path: Path
    level: float


def read_lists(folder: Path, speakers: int) -> dict[str, list[Line]]:
    """Return condition -> lines of its list."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with mix_{speakers}_spk_tr.txt ... and activlev/")
    paths = {condition: folder / f"mix_{speakers}_spk_{condition}.txt" for condition in CONDITIONS}
    found = {condition: _read_list(path, speakers) for condition, path in paths.items() if path.is_file()}
    if not found:
        raise UserError(f"{folder}: contains none of {', '.join(path.name for path in paths.values())}; get the lists")
    return found


def _read_list(path: Path, speakers: int) -> list[Line]:
    lines: list[Line] = []
    for number, text in _text_lines(path):
        words, where = text.split(), f"{path}:{number}"
        if len(words) != 2 * speakers:
            raise UserError(
                f"{where}: {len(words)} columns, expected {2 * speakers}: path and relative level of {speakers} "
                "speakers; the list is of another version, or of another number of speakers"
            )
        parts = zip(words[::2], words[1::2], strict=True)
        lines.append(Line(where, tuple(Part(name, finite_number(level, where)) for name, level in parts)))
    if not lines:
        raise UserError(f"{path}: is empty; get the list again")
    return lines


def read_levels(folder: Path) -> dict[str, float]:
    """Return utterance -> active level, a power; empty if there is no table. Two tables must not contradict each
    other."""
    levels: dict[str, float] = {}
    for path in sorted(folder.glob("*.txt")) if folder.is_dir() else ():
        for number, text in _text_lines(path):
            words, where = text.split(), f"{path}:{number}"
            if len(words) != 2:
                raise UserError(f"{where}: {len(words)} columns, expected two: utterance and active level")
            name, level = words[0].replace(".wav", ""), finite_number(words[1], where)
            if not level > 0:
                raise UserError(f"{where}: level {words[1]}, expected a power above 0")
            if levels.setdefault(name, level) != level:
                raise UserError(f"{where}: {name} has two levels; keep one version of the tables")
    return levels


def _text_lines(path: Path) -> Iterator[tuple[int, str]]:
    lines = read_text(path, "a text file").splitlines()
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _present(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by their names in lower case."""
    return {path.name.lower(): path for path in (sorted(folder.iterdir()) if folder.is_dir() else ())}


def _find(listed: str, wsj0: Path, present: Callable[[Path], dict[str, Path]]) -> Path | None:
    """Return the file that a list names: wav or flac, or sphere as the LDC ships it; None if there is none.

    The far microphone's is refused.
    """
    for relative in (wsj0 / listed, wsj0.parent / listed, wsj0 / listed.removeprefix("wsj0/")):
        files, stem = present(relative.parent), relative.stem.lower()
        found = [files[stem + suffix] for suffix in (relative.suffix, *_SUFFIXES) if stem + suffix in files]
        far = files.get(f"{stem}.wv2") or files.get(f"{stem}.wv2.wav") or files.get(f"{stem}_wv2.wav")
        if far is not None and (not found or f"{stem}.wv1" not in files):
            state = f"and {found[0].name} beside it seems to be made of it" if found else "and there is no wv1"
            raise UserError(
                f"{far}: is of the far microphone (wv2), {state}; WSJ0-mix is made of wv1, wv2 costs 1 to 4 dB: "
                f"put the wv1 files, or wavs made of them (sph2pipe -p -f wav), into {relative.parent}, without wv2"
            )
        if found:
            return found[0]
    return None


def find_recordings(
    wsj0: Path,
    lines: Mapping[str, Sequence[Line]],
    table: Mapping[str, float],
    processes: int | None,
    skipped: dict[str, str],
) -> dict[str, Recording | str]:
    """Return path in the lists -> recording, or the reason why it cannot be used. Bad ones are added to `skipped`."""
    if not wsj0.is_dir():
        raise UserError(f"{wsj0}: no such folder; expected the folder wsj0 of LDC93S6A, or the one above it")
    present_in = cache(_present)
    parts = {part.listed: part for members in lines.values() for line in members for part in line.parts}
    paths = {listed: _find(listed, wsj0, present_in) for listed in parts}
    if not any(paths.values()):
        raise UserError(
            f"{wsj0}: none of the {len(parts)} recordings of the lists is there, the first: {next(iter(parts))} "
            f"(or .flac, .wv1, .sph); give the folder that contains si_tr_s, si_dt_05 and si_et_05"
        )
    present = [(path, table.get(parts[listed].utterance)) for listed, path in paths.items() if path is not None]
    unlisted = sum(level is None for _, level in present)
    if table and unlisted:
        print(f"{unlisted} of {len(present)} recordings have no level in the table: measured here (ITU-T P.56)")
    elif unlisted:
        print("no table of active levels (activlev/*.txt): measured here (ITU-T P.56)")
    examined: dict[Path | None, Recording | str] = {}
    for (path, _), result in for_each(_examine, present, processes, "reading"):
        examined[path] = result.reason if isinstance(result, Failed) else result
    skipped |= {str(path): reason for path, reason in examined.items() if isinstance(reason, str)}
    _compare_levels([recording for recording in examined.values() if isinstance(recording, Recording)], table)
    absent = {
        listed: f"{listed}: no such file in {wsj0}, nor as .flac, .wv1 or .sph"
        for listed, path in paths.items()
        if path is None
    }
    skipped |= absent
    return {listed: absent.get(listed) or examined[path] for listed, path in paths.items()}


def _examine(item: tuple[Path, float | None]) -> Recording:
    path, level = item
    header = check_whole(path)
    if header.sample_rate != WSJ0_RATE or header.channels != 1:
        raise UserError(
            f"{path}: {header.sample_rate} Hz, {header.channels} channel(s); WSJ0 has {WSJ0_RATE} Hz and one channel: "
            "convert it from the original wv1"
        )
    return Recording(path, _measure(path) if level is None else level)


def _measure(path: Path) -> float:
    level = active_speech_level(audio.read(path, sample_rate=_LEVEL_RATE, resampler="scipy_poly"), _LEVEL_RATE)
    if level == 0:
        raise UserError(f"{path}: digital silence; get the file again")
    return level


def _compare_levels(recordings: Sequence[Recording], table: Mapping[str, float]) -> None:
    """Warn if the table's levels are not those of the recordings: wv2, or normalized wavs."""
    with_level = [recording for recording in recordings if table.get(recording.path.stem) == recording.level]
    sample = with_level[:: max(1, len(with_level) // _CHECKED_LEVELS)]
    differences: list[float] = []
    for recording in sample:
        try:
            differences.append(10 * math.log10(_measure(recording.path) / recording.level))
        except UserError:
            continue  # it fails again where it is mixed, and is listed there
    if differences and abs(median := float(np.median(differences))) > _LEVEL_TOLERANCE_DB:
        print(
            f"warning: recordings are {median:+.1f} dB from the published active levels (median of {len(differences)}),"
            " where wv1 is within 0.5 dB: made from wv2, or normalized? Scores will not compare with published ones",
            file=sys.stderr,
        )
