"""Find the recordings to separate, and name their outputs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from sepkit.data import audio
from sepkit.errors import UserError


def check_inputs(inputs: Iterable[str | os.PathLike[str]], out: Path) -> None:
    """Raise UserError for an input that does not exist, for standard input, and where `out` is one of them."""
    for given in inputs:
        if os.fspath(given) == "-":
            raise UserError("-: standard input is separated by `sepkit stream -`; expected a file or folder")
        if os.path.abspath(given) == os.path.abspath(out):
            raise UserError(f"--out {os.path.abspath(out)}: is also an input; choose another folder")
        if not os.path.exists(given):
            raise UserError(f"{given}: no such file or folder; check the path")


def find_recordings(inputs: Iterable[str | os.PathLike[str]], out: Path) -> dict[Path, Path]:
    """Return audio file -> its path relative to the input that led to it, in the order of `inputs`, folders sorted.

    In folders, hidden files and everything under `out` are ignored.

    Raises:
        UserError: an input that does not exist, a folder without audio files, or `out` itself.
    """
    inputs, out = list(inputs), Path(os.path.abspath(out))
    check_inputs(inputs, out)
    found: dict[Path, Path] = {}
    for given in inputs:
        path = Path(os.path.abspath(given))
        if path.is_dir():
            files = audio.without_undecodable(f for f in sorted(path.rglob("*")) if _is_recording(f, path, out))
            if not files:
                suffixes = ", ".join(sorted(audio.AUDIO_SUFFIXES))
                raise UserError(f"{given}: no audio files in this folder, expected {suffixes}")
        else:
            files = [path]
        root = path if path.is_dir() else path.parent
        for file in files:
            found.setdefault(file, file.relative_to(root))
    return found


def _is_recording(file: Path, folder: Path, out: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return (
        file.suffix.lower() in audio.AUDIO_SUFFIXES and not hidden and not file.is_relative_to(out) and file.is_file()
    )


def name_outputs(recordings: dict[Path, Path]) -> dict[Path, Path]:
    """Return recording -> output path without ending, different for each of them.

    It is the relative path if that is unambiguous, else the path below the folder that all recordings share, else
    that with the recording's own ending ("talk_flac").

    Args:
        recordings: recording -> relative path, of `find_recordings`.

    Raises:
        UserError: two recordings that would still be written to one name.
    """
    if not recordings:
        return {}
    shared = Path(os.path.commonpath([path.parent for path in recordings]))

    def candidates(path: Path) -> tuple[Path, Path, Path]:
        below = path.relative_to(shared)
        return recordings[path].with_suffix(""), below.with_suffix(""), below.with_name(below.name.replace(".", "_"))

    level = dict.fromkeys(recordings, 0)
    while True:
        names = {path: candidates(path)[level[path]] for path in recordings}
        counts = Counter(names.values())
        ambiguous = [path for path in recordings if counts[names[path]] > 1]
        if not ambiguous:
            return names
        if all(level[path] == 2 for path in ambiguous):
            raise UserError(
                f"{ambiguous[0]} and {ambiguous[1]}: would be written to one name; separate them one by one"
            )
        for path in ambiguous:
            level[path] = min(level[path] + 1, 2)
