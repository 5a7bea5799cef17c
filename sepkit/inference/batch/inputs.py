"""Find the recordings to separate, and name their outputs."""

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from sepkit.data import audio
from sepkit.data.activity import rttm_id
from sepkit.errors import UserError

# Bytes of a name that leave room for "_s10.flac" and the like in the 255 of most file systems.
_LONGEST_NAME = 240


def check_inputs(inputs: Iterable[str | os.PathLike[str]], out: Path) -> None:
    """Raise UserError for an input that does not exist, for standard input, and where `out` is one of them."""
    for given in inputs:
        if os.fspath(given) == "-":
            raise UserError("-: standard input is separated by `sepkit stream -`; expected a file or folder")
        if os.path.realpath(given) == os.path.realpath(out):
            raise UserError(f"--out {os.path.abspath(out)}: is also an input; choose another folder")
        if not os.path.exists(given):
            raise UserError(f"{given}: no such file or folder; check the path")


def find_recordings(inputs: Iterable[str | os.PathLike[str]], out: Path) -> dict[Path, Path]:
    """Return audio file -> its path relative to the input that led to it, in the order of `inputs`, folders sorted.

    In folders, hidden files and folders and everything under `out` are skipped.

    Raises:
        UserError: an input that does not exist, a folder without audio files, or `out` itself.
    """
    inputs = list(inputs)
    check_inputs(inputs, out)
    out = Path(os.path.realpath(out))
    found: dict[Path, Path] = {}
    for given in inputs:
        path = Path(os.path.abspath(given))
        files, root = (audio.find_audio_files(path, out), path) if path.is_dir() else ([path], path.parent)
        for file in files:
            found.setdefault(file, file.relative_to(root))
    return found


def name_outputs(recordings: dict[Path, Path], *, rttm: bool = False) -> dict[Path, Path]:
    """Return recording -> output path without ending, different for each of them, on disks that ignore case too.

    It is the relative path if that is unambiguous, else the path below the folder that all recordings share, else
    that with the recording's own ending ("talk_flac"), else that, shortened, with a digest of the path.

    Args:
        recordings: recording -> relative path, of `find_recordings`.
        rttm: whether the names in RTTM, which hold no spaces, have to be different too.
    """
    if not recordings:
        return {}
    shared = Path(os.path.commonpath([path.parent for path in recordings]))

    def candidates(path: Path) -> tuple[Path, ...]:
        below = path.relative_to(shared)
        whole = below.with_name(below.name.replace(".", "_"))
        digest = hashlib.sha256(os.fsencode(below)).hexdigest()[:8]
        last = f"{os.fsencode(whole.name)[:200].decode(errors='ignore')}_{digest}"
        return recordings[path].with_suffix(""), below.with_suffix(""), whole, whole.with_name(last)

    level = dict.fromkeys(recordings, 0)
    while True:
        names = {path: candidates(path)[level[path]] for path in recordings}
        keys = {path: same_name(rttm_id(name) if rttm else str(name)) for path, name in names.items()}
        counts = Counter(keys.values())
        counts.update(keys[path] for path, name in names.items() if len(os.fsencode(name.name)) > _LONGEST_NAME)
        ambiguous = [path for path in recordings if counts[keys[path]] > 1 and level[path] < 3]
        if not ambiguous:
            return names
        for path in ambiguous:
            level[path] += 1


def same_name(name: str) -> str:
    """Return a key, equal for names that some file systems do not distinguish (case or Unicode form)."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def rttm_ids(names: Collection[Path]) -> dict[Path, str]:
    """Return name of `name_outputs` -> how RTTM names the recording: by its last part if that is unambiguous."""
    counts = Counter(same_name(rttm_id(name.name)) for name in names)
    return {name: rttm_id(name.name if counts[same_name(rttm_id(name.name))] == 1 else name) for name in names}
