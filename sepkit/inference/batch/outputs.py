"""The files of a separated recording: estimates, who spoke when, and the JSON that describes them."""

import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sepkit.data.activity import ActivityMeter, rttm_lines
from sepkit.data.audio import write_blocks
from sepkit.errors import UserError
from sepkit.files import atomic_output, file_digest, file_text, parse_json, write_json, write_text
from sepkit.inference.batch.inputs import same_name
from sepkit.inference.options import OutputOptions, Subtype
from sepkit.inference.separated import Separated
from sepkit.owned import FOREIGN


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f"{target.name}{suffix}")


def check_free(
    targets: Collection[Path], inputs: Collection[Path], tracks: Collection[str], most: float, options: OutputOptions
) -> None:
    """Raise UserError if an output would be written over an input, or over a file that no earlier call has written.

    Args:
        targets: Paths without ending.
        inputs: Recordings, and whatever else is read.
        tracks: Names of tracks beside s1, s2 ...
        most: Largest number of a track.
        options: Format and kinds of the outputs.
    """
    read = {(status.st_dev, status.st_ino) for status in map(os.stat, filter(os.path.exists, inputs))}
    whole, of_tracks = ("|".join(map(re.escape, endings)) for endings in _endings(options))
    track = "|".join(["s([0-9]+)", *map(re.escape, tracks)])
    output = re.compile(rf"(.+?)(?:_(?:{track})(?:{of_tracks})|{whole})", re.IGNORECASE | re.DOTALL)
    by_name = {(target.parent, same_name(target.name)): target for target in targets}
    for folder in dict.fromkeys(target.parent for target in targets):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            found = output.fullmatch(path.name)
            target = by_name.get((folder, same_name(found[1]))) if found and int(found[2] or 0) <= most else None
            if target is None:
                continue
            if path.exists() and (path.stat().st_dev, path.stat().st_ino) in read:
                raise UserError(f"{path}: is an input, and would be written over by a result; choose another --out")
            if not _is_own(path, target):
                raise UserError(FOREIGN.format(path))


def _endings(options: OutputOptions) -> tuple[list[str], list[str]]:
    """Return how the names of files end that a recording has, and that each track has."""
    return [".json", *[".rttm"] * options.rttm], list(dict.fromkeys([f".{options.format}", ".wav"]))


def _is_own(path: Path, target: Path) -> bool:
    """Return whether a file was written by an earlier call, according to its JSON file, or a mark if it was killed."""
    return same_name(path.name) in map(same_name, _recorded(target)) or _mark(target).is_file()


def _recorded(target: Path) -> set[str]:
    """Return the files that the JSON file of an earlier call records, and that file itself."""
    written = _written_before(target)
    return _names_of(written) | {f"{target.name}.json"} if "sepkit" in written else set()


def _mark(target: Path) -> Path:
    return target.with_name(f".{target.name}.begun")


@contextmanager
def marked(target: Path, tracks: Collection[str | None], options: OutputOptions) -> Iterator[None]:
    """Mark a recording as begun until its files are recorded, so that leftovers of a killed run are recognized.

    Args:
        target: Path without ending.
        tracks: Names of the tracks; None: not written.
        options: Format and kinds of the outputs.

    Raises:
        UserError: a file has appeared that would be written over.
    """
    whole, of_tracks = _endings(options)
    endings = [*whole, *(f"_{track}{ending}" for track in tracks if track for ending in of_tracks)]
    outputs = [_beside(target, ending) for ending in endings]
    for path in filter(os.path.lexists, outputs):
        if not _is_own(path, target):
            raise UserError(FOREIGN.format(path))
    with atomic_output(_mark(target)) as temporary:
        temporary.touch()
    try:
        yield
    finally:
        if {path.name for path in filter(os.path.lexists, outputs)} <= _recorded(target):
            _mark(target).unlink(missing_ok=True)


class _WouldClipError(Exception):
    """Samples beyond full scale, for a format that cannot hold them."""


def write_outputs(
    target: Path,
    separated: Separated[Any],
    options: OutputOptions,
    description: dict[str, Any],
    subtype: Subtype,
    turns: Sequence[Sequence[tuple[float, float]]] | None = None,
    recording: str = "",
) -> list[Path]:
    """Write the estimates of a recording, and then the JSON file: if it exists, all outputs do. Return the
    estimates' files.

    Files that the JSON file of an earlier call names, and this call does not make, are removed. Estimates that would
    clip as PCM are written as 32-bit float wav instead; where PCM or flac was asked for, a line on standard error says
    so.

    Args:
        target: Path without ending.
        separated: Result whose estimates are read block by block.
        options: Format and kinds of the outputs.
        description: Origin of the estimates, for the JSON file.
        subtype: Sample format, unless they would clip.
        turns: Beginnings and lengths of the turns of each track, seconds; None: whenever it is active.
        recording: Name of the recording in RTTM.
    """
    suffix = f".{options.format}"
    try:
        paths, activity = _write_estimates(target, separated, subtype, suffix)
    except _WouldClipError:
        subtype, suffix = "FLOAT", ".wav"
        paths, activity = _write_estimates(target, separated, subtype, suffix)
        if options.subtype is not None or options.format != "wav":
            tqdm.write(
                f"{description['input']}: an estimate peaks at {activity.peak:.2f} and would clip; "
                "written as 32-bit float wav",
                file=sys.stderr,
            )
    written = list(paths)
    if options.rttm:
        names, turns = tracks_of(separated), activity.segments() if turns is None else turns
        if separated.tracks is None and separated.is_speaker is not None:
            # What is left in an output in which no one is speaking is no turn.
            speaks = np.asarray(separated.is_speaker)[separated.kept]
            turns = [own if speaker else [] for own, speaker in zip(turns, speaks, strict=True)]
        named = [(name, own) for name, own in zip(names, turns, strict=True) if name is not None]
        lines = rttm_lines(recording, [own for _, own in named], [name for name, _ in named])
        written.append(write_text(_beside(target, ".rttm"), "".join(lines)))
    for name in _names_of(_written_before(target)) - {path.name for path in paths}:
        if name.startswith(f"{target.name}_"):
            target.with_name(name).unlink(missing_ok=True)
    intervals, linked = separated.predicted_interval_db, description.get("linked", {})
    result = {
        **description,
        "sample_rate": separated.sample_rate,
        "num_samples": separated.estimates.shape[-1],
        "gains": _numbers(separated.gains),
        "scores": _numbers(separated.scores),
        "speakers": linked.get("speakers", separated.speakers),
        "or_more": not linked and separated.selection.count_is_lower_bound,
        "kept_hypotheses": [int(index) + 1 for index in separated.kept],
        "predicted_si_sdr_db": _numbers(separated.predicted_si_sdr_db),
        "predicted_interval_db": intervals if intervals is None else [_numbers(ends) for ends in intervals],
        "predicted_by": None if separated.prediction is None else separated.prediction.source,
        "out_of_domain": separated.out_of_domain,
        "rates": separated.rates,
        "audio_format": options.format,
        "estimates": [path.name for path in paths],
        "written_as": subtype,
        "peak": activity.peak,
        "input_sha256": file_digest(description["input"]),
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in written},
    }
    write_json(_beside(target, ".json"), result)
    return paths


def _write_estimates(
    target: Path, separated: Separated[Any], subtype: Subtype, suffix: str
) -> tuple[list[Path], ActivityMeter]:
    """Return the paths written, and the active turns of each track, including those that are not written."""
    rate, num_samples = separated.sample_rate, separated.estimates.shape[-1]
    names = tracks_of(separated)
    written = [index for index, name in enumerate(names) if name is not None]
    paths = [_beside(target, f"_{names[index]}{suffix}") for index in written]
    activity = ActivityMeter(len(names), rate)
    with ExitStack() as stack:
        writers = [stack.enter_context(write_blocks(path, rate, num_samples, subtype)) for path in paths]
        for block in separated.estimates.blocks():
            activity.add(block)
            if subtype == "PCM_16" and activity.peak >= 1.0:
                raise _WouldClipError
            for writer, index in zip(writers, written, strict=True):
                writer.write(block[index])
    return paths, activity


def tracks_of(separated: Separated[Any]) -> Sequence[str | None]:
    """Return the name of each track; None for one that is not written."""
    if separated.tracks is not None:
        return separated.tracks
    return [f"s{index + 1}" for index in range(len(separated.kept))]


def _numbers(values: Any) -> list[float | None] | None:
    """Plain numbers; None: unknown."""
    return None if values is None else [float(value) if math.isfinite(value) else None for value in values]


def _names_of(written: dict[str, Any]) -> set[str]:
    """Return the files that a JSON file names, beside which it stands."""
    lists = [written.get("estimates"), list(written["files"]) if isinstance(written.get("files"), dict) else None]
    return {name for names in lists if isinstance(names, list) for name in names if _is_plain_name(name)}


def _is_plain_name(name: Any) -> bool:
    return isinstance(name, str) and "\0" not in name and name not in ("", ".", "..") and Path(name).name == name


def is_done(target: Path, description: dict[str, Any], options: OutputOptions) -> bool:
    """Return whether all outputs are complete and come from the same recording, model and options.

    Args:
        target: Path without ending.
        description: Content of their JSON file, as far as it is known before.
        options: Kinds of the outputs. `verify`: whether to compare SHA-256 of recording and outputs, too; otherwise
            size and time of change, and sizes.
    """
    written, verify = _written_before(target), options.verify
    estimates, files = written.get("estimates"), written.get("files")
    if any(written.get(key) != value for key, value in description.items()):
        return False
    if not isinstance(estimates, list) or not isinstance(files, dict):
        return False
    names = {*filter(_is_plain_name, estimates)} | ({f"{target.name}.rttm"} if options.rttm else set())
    if names != files.keys():
        return False
    if verify and written.get("input_sha256") != file_digest(description["input"]):
        return False
    done = all(_stands(target.with_name(name), files[name], verify) for name in names)
    if done:
        # Of a call that was killed after all stood.
        _mark(target).unlink(missing_ok=True)
    return done


def _stands(path: Path, expected: Any, verify: bool) -> bool:
    try:
        return path.stat().st_size == expected["bytes"] and (not verify or file_digest(path) == expected["sha256"])
    except (OSError, TypeError, KeyError):
        return False


def _written_before(target: Path) -> dict[str, Any]:
    """The content of an earlier call's JSON file; empty if none can be read."""
    try:
        written = parse_json(file_text(_beside(target, ".json")))
    except (OSError, ValueError):
        return {}
    # `format` is that of the JSON file itself.
    return written | {"format": written.get("audio_format")} if isinstance(written, dict) else {}


def file_identity(path: Path) -> dict[str, int]:
    """Return size and time of change of an input, by which a later call recognizes the same file."""
    status = path.stat()
    return {"input_bytes": status.st_size, "input_modified_ns": status.st_mtime_ns}
