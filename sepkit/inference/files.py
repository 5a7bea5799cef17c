"""Files in, files out: every recording becomes one file an estimate and a JSON file that says how it came about."""

from __future__ import annotations

import io
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.data.activity import ActivityMeter, rttm_lines
from sepkit.data.audio_streams import write_blocks
from sepkit.errors import UserError
from sepkit.files import atomic_output, check_writable, file_digest, parse_json, write_json, write_text
from sepkit.inference.high_band import high_band_note
from sepkit.inference.inputs import find_recordings, name_outputs
from sepkit.inference.linking import link
from sepkit.inference.options import OutputOptions, Subtype
from sepkit.inference.recordings import FileRecording
from sepkit.inference.reports import FAILED, FilesReport, failure_reason, is_out_of_memory, write_failures
from sepkit.inference.separated import Separated, sentence
from sepkit.inference.separator import Separator, weights_fingerprint
from sepkit.inference.speakers import check_speakers
from sepkit.inference.uncertainty import check_samples, is_variational
from sepkit.models import load_checkpoint
from sepkit.models.shipped import encoder_folder
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.parallel import Failed, attempt, for_each
from sepkit.version import __version__

__all__ = ["FilesReport", "failure_reason", "file_identity", "find_recordings", "separate_files", "write_failures"]


@dataclass(frozen=True)
class _Job:
    """How every recording is separated; `way` is the part that its JSON file tells."""

    separator: Separator
    way: dict[str, Any]
    progress: bool
    verify: bool
    encoder: SpeakerEncoder | None = None


def separate_files(
    inputs: Sequence[str | os.PathLike[str]],
    separator: Separator,
    out: str | os.PathLike[str],
    options: OutputOptions | None = None,
    *,
    model_name: str = "",
    processes: int = 1,
    rank: int = 0,
    world_size: int = 1,
) -> FilesReport:
    """Separate recordings to files and return what became of each; the same call again continues where it stopped.

    Write OUT/<relative path>_s1.wav, _s2.wav ... at the recording's rate and level, one per kept hypothesis, then
    OUT/<relative path>.json. Remove files that the JSON of an earlier call names and this one does not make. List a
    recording that cannot be separated in OUT/failed.jsonl and continue with the rest. Long recordings are separated in
    bounded memory, see `Separator.separate_long`.

    Args:
        inputs: audio files, and folders that are searched for them.
        separator: the model.
        out: folder of the outputs, made if absent.
        options: what is written; None: the defaults.
        model_name: how the JSON files name the model.
        processes: how many separate recordings side by side, on a CPU; 1: this one alone.
        rank: of this process among those that share the recordings: each takes every `world_size`-th. Its list of
            failures is OUT/failed_rank<rank>.jsonl then.
        world_size: how many processes share them.

    Raises:
        UserError: an input that does not exist, a folder without audio files, an output folder that cannot be
            written to or is an input, `speakers` that the model cannot tell, several processes on an accelerator, or a
            spread of a deterministic model or of fewer than two samples.
    """
    began, out, options = time.perf_counter(), Path(out), options or OutputOptions()
    check_speakers(options.speakers, separator.model, separator.counts_speakers)
    if options.spread:
        check_samples(options.samples)
        if not is_variational(separator.model):
            raise UserError("spread: the model is deterministic, its estimates have none; use a variational one")
    if processes > 1 and separator.device.type != "cpu":
        raise UserError(
            f"processes: found {processes} on {separator.device}, expected 1; torchrun starts one for each accelerator"
        )
    recordings = list(name_outputs(find_recordings(inputs, out)).items())[rank::world_size]
    check_writable(out)
    report = FilesReport(out, list_name=FAILED if world_size == 1 else f"failed_rank{rank}.jsonl")
    encoder = None
    if options.link_speakers is not None:
        encoder = load_checkpoint(encoder_folder(options.link_encoder), of=SpeakerEncoder)
    way = {
        "model": model_name,
        "weights": separator.fingerprint(),
        "model_sample_rate": separator.sample_rate,
        **separator.way(),
        "channel": options.channel,
        "speakers_option": options.speakers,
        "score_threshold": separator.score_threshold if options.speakers == "auto" else None,
        "subtype": options.subtype or ("FLOAT" if options.format == "wav" else "PCM_16"),
        "format": options.format,
        "rttm": options.rttm,
        "link_speakers": options.link_speakers,
        "link_encoder": None if encoder is None else weights_fingerprint(encoder),
        "spread_samples": options.samples if options.spread else None,
        "sepkit": __version__,
    }
    job = _Job(separator, way, processes == 1, options.verify, encoder)
    highest_rate = 0
    for (path, target), done in _separate_all(job, out, recordings, processes):
        if isinstance(done, Failed):
            report.failed[str(path)] = failure_reason(UserError(done.reason), path)
        elif done is None:
            report.already_done += 1
        else:
            report.separated += 1
            report.audio_seconds += done.seconds
            report.told[str(target)] = done.told
            highest_rate = max(highest_rate, done.sample_rate)
    report.warning = high_band_note(separator.options.high_band, highest_rate, separator.sample_rate)
    write_failures(out / report.list_name, report.failed)
    report.wall_seconds = time.perf_counter() - began
    return report


@dataclass(frozen=True)
class _Done:
    """What became of one recording: seconds of sound, Hz, and what is told of it."""

    seconds: float
    sample_rate: int
    told: str


_Recording = tuple[Path, Path]
"""Path, and target below the folder of the outputs."""

_Result = _Done | None | Failed
"""None where it was separated before."""


def _separate_all(
    job: _Job, out: Path, recordings: list[_Recording], processes: int
) -> Iterator[tuple[_Recording, _Result]]:
    """Yield each recording with what became of it."""
    groups = list(_groups(job, recordings))
    alone: list[_Recording] = []
    for group, results in for_each(partial(_separate_group, job, out), groups, processes, "separating", "batch"):
        if not isinstance(results, Failed):
            yield from zip(group, results, strict=True)
        elif len(group) == 1:
            yield group[0], results
        else:
            # Its process died, perhaps of one of them.
            alone += group
    yield from for_each(partial(_separate_one, job, out), alone, processes, "separating")


def _groups(job: _Job, recordings: list[_Recording]) -> Iterator[list[_Recording]]:
    """Yield recordings of equal length and rate together, as many as go through the model at once."""
    separator = job.separator
    together = job.way["spread_samples"] is None and separator.batch_size(0.0) > 1
    open_groups: dict[tuple[int, int], list[_Recording]] = {}
    for recording in recordings:
        try:
            header = audio.info(recording[0]) if together else None
        except (UserError, OSError):
            header = None
        if header is None or separator.is_long(header.num_samples, header.sample_rate):
            yield [recording]
            continue
        key = header.num_samples, header.sample_rate
        group = open_groups.setdefault(key, [])
        group.append(recording)
        if len(group) >= separator.batch_size(header.duration_seconds):
            yield open_groups.pop(key)
    yield from open_groups.values()


def _separate_group(job: _Job, out: Path, group: list[_Recording]) -> list[_Result]:
    ready = _separate_ahead(job, out, group) if len(group) > 1 else {}
    return [attempt(partial(_separate_one, job, out, ready=ready), recording) for recording in group]


@dataclass(frozen=True)
class _Ready:
    """A recording that was separated together with others, and the file's identity before it was read."""

    identity: dict[str, Any]
    waveform: np.ndarray
    separated: Separated


def _separate_ahead(job: _Job, out: Path, group: list[_Recording]) -> dict[Path, _Ready]:
    """Return the recordings of a group that could be separated together; the others are for `_separate_one`.

    Those that were separated before take part. Without them, the rest would differ in its last bits from what one call
    without a stop writes.
    """
    identities: dict[Path, dict[str, Any]] = {}
    left = False
    for path, target in group:
        try:
            identities[path] = file_identity(path)
        except (UserError, OSError):
            continue
        left |= not _is_done(out / target, {"input": str(path), **identities[path], **job.way}, job.verify)
    if not left:
        return {}
    read: list[tuple[Path, dict[str, Any], np.ndarray]] = []
    rate = 0
    for path, identity in identities.items():
        try:
            rate = audio.info(path).sample_rate
            read.append((path, identity, audio.read(path, channel=job.way["channel"])))
        except (UserError, OSError):
            continue
    waveforms = [waveform for _, _, waveform in read]
    if len({len(waveform) for waveform in waveforms}) != 1:
        return {}
    try:
        found = job.separator.separate_equal(waveforms, rate, speakers=job.way["speakers_option"])
    except (UserError, RuntimeError, MemoryError) as error:
        # One of them is at fault: each alone will tell.
        if not isinstance(error, UserError) and not is_out_of_memory(error):
            raise
        return {}
    return {
        path: _Ready(identity, waveform, separated)
        for (path, identity, waveform), separated in zip(read, found, strict=True)
    }


def _separate_one(
    job: _Job, out: Path, recording: _Recording, ready: Mapping[Path, _Ready] | None = None
) -> _Done | None:
    """Return what became of a recording; None where it was separated before.

    Args:
        job: how it is separated.
        out: folder of the outputs.
        recording: its path, and target below that folder.
        ready: what was separated already, if the file is still the same.

    Raises:
        UserError: a recording that cannot be separated.
    """
    path, target = recording[0], out / recording[1]
    description = {"input": str(path), **file_identity(path), **job.way}
    if _is_done(target, description, job.verify):
        return None
    try:
        header = audio.info(path)
        if job.separator.is_long(header.num_samples, header.sample_rate):
            told = _separate_long(job, path, target, description)
        else:
            told = _separate_whole(job, path, target, description, header.sample_rate, (ready or {}).get(path))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(failure_reason(error, path)) from error
    return _Done(header.duration_seconds, header.sample_rate, told)


def _separate_whole(
    job: _Job, path: Path, target: Path, description: dict[str, Any], sample_rate: int, ready: _Ready | None
) -> str:
    way = job.way
    if ready is not None and all(description[name] == value for name, value in ready.identity.items()):
        waveform, separated = ready.waveform, ready.separated
    else:
        waveform = audio.read(path, channel=way["channel"])
        _check_unchanged(path, description)
        separated = job.separator.separate(
            waveform, sample_rate, speakers=way["speakers_option"], samples=way["spread_samples"]
        )
    told = _write_people(job, target, separated, len(waveform), lambda: iter([separated.estimates]), description)
    return told or sentence(separated)


def _separate_long(job: _Job, path: Path, target: Path, description: dict[str, Any]) -> str:
    job.separator.check_spread_of_long(job.way["spread_samples"])
    recording = FileRecording(path, job.way["channel"])
    check_writable(target.parent)
    # The temporary file needs as much room as the estimates, and not in a system folder that may be memory.
    long = job.separator.separate_long(
        recording, speakers=job.way["speakers_option"], folder=target.parent, progress=job.progress
    )
    try:
        _check_unchanged(path, description)
        told = _write_people(job, target, long.separated, recording.num_samples, long.blocks, description)
        _check_unchanged(path, description)
        return told or sentence(long.separated)
    finally:
        long.close()


def _check_unchanged(path: Path, description: dict[str, Any]) -> None:
    now = file_identity(path)
    if any(description[name] != value for name, value in now.items()):
        raise UserError(f"{path}: changed while it was read; separate it again when it is complete")


# ------------------------------------------------------------------------------------------------------------ outputs


def _estimate_paths(target: Path, count: int, suffix: str) -> list[Path]:
    return [target.with_name(f"{target.name}_s{index + 1}{suffix}") for index in range(count)]


def _description_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.json")


def _rttm_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.rttm")


class _WouldClipError(Exception):
    """Samples beyond full scale, for a format that cannot hold them."""


_Blocks = Callable[[], Iterator[np.ndarray]]


def _write_people(
    job: _Job, target: Path, separated: Separated, num_samples: int, blocks: _Blocks, description: dict[str, Any]
) -> str | None:
    """Write the estimates, or the people that they are linked to; return what is told of those."""
    if job.encoder is None:
        _write(target, separated, num_samples, blocks, description)
        return None
    linked = link(blocks, len(separated.kept), separated.sample_rate, job.encoder, job.way["link_speakers"])
    people = replace(separated, people=linked.people)
    _write(target, people, num_samples, linked.blocks, description, {"linked": linked.told()})
    return f"{linked.people} people in {len(separated.kept)} estimates"


def _write(
    target: Path,
    separated: Separated,
    num_samples: int,
    blocks: _Blocks,
    description: dict[str, Any],
    more: dict[str, Any] | None = None,
) -> None:
    """The estimates first and the JSON last: where it stands, everything stands.

    Args:
        target: path without ending.
        separated: what is told of the estimates.
        num_samples: of each.
        blocks: them, (k, t), as often as it is called.
        description: how they came about.
        more: what else the JSON file tells.
    """
    subtype, suffix = description["subtype"], f".{description['format']}"
    try:
        paths, activity = _write_estimates(target, separated, num_samples, blocks, subtype, suffix)
    except _WouldClipError:
        subtype, suffix = "FLOAT", ".wav"
        paths, activity = _write_estimates(target, separated, num_samples, blocks, subtype, suffix)
        print(
            f"{description['input']}: an estimate peaks at {activity.peak:.2f} and would clip; "
            "written as 32-bit float wav",
            file=sys.stderr,
        )
    spread_paths = [] if separated.spread is None else [_spread_path(path) for path in paths]
    for path, deviation in zip(spread_paths, () if separated.spread is None else separated.spread, strict=True):
        buffer = io.BytesIO()
        np.save(buffer, deviation)
        with atomic_output(path) as temporary:
            # Not by NumPy, which does not tell why a file cannot be written.
            temporary.write_bytes(buffer.getbuffer())
    written = [*paths, *spread_paths]
    if description["rttm"]:
        written.append(write_text(_rttm_path(target), "".join(rttm_lines(target.name, activity.segments()))))
    for name in _names_of(_written_before(target)) - {path.name for path in (*paths, *spread_paths)}:
        if name.startswith(f"{target.name}_s"):
            target.with_name(name).unlink(missing_ok=True)
    result = {
        **description,
        "sample_rate": separated.sample_rate,
        "num_samples": num_samples,
        "estimates": [path.name for path in paths],
        "written_as": subtype,
        "peak": activity.peak,
        "gains": _numbers(separated.gains),
        "scores": _numbers(separated.scores),
        "speakers": separated.speakers,
        "kept_hypotheses": [int(index) + 1 for index in separated.kept],
        "predicted_si_sdr_db": _numbers(separated.predicted_si_sdr_db),
        "predicted_interval_db": _pairs(separated.predicted_interval_db),
        "likely_not_separated": separated.likely_not_separated,
        "rates": separated.rates,
        "spreads": None if separated.spread is None else [path.name for path in spread_paths],
        "spread_db": _spread_db(separated),
        **(more or {}),
        "input_sha256": file_digest(description["input"]),
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in written},
    }
    write_json(_description_path(target), result)


def _write_estimates(
    target: Path, separated: Separated, num_samples: int, blocks: _Blocks, subtype: Subtype, suffix: str
) -> tuple[list[Path], ActivityMeter]:
    """The paths written, and when something is heard in each."""
    rate = separated.sample_rate
    count = len(separated.kept) if separated.people is None else separated.people
    paths, activity = _estimate_paths(target, count, suffix), ActivityMeter(count, rate)
    with ExitStack() as stack:
        writers = [stack.enter_context(write_blocks(path, rate, num_samples, subtype)) for path in paths]
        for block in blocks():
            activity.add(block)
            if subtype == "PCM_16" and activity.peak >= 1.0:
                raise _WouldClipError
            for writer, samples in zip(writers, block, strict=True):
                writer.write(samples)
    return paths, activity


def _numbers(values: Any) -> list[float | None] | None:
    """Plain numbers; None for what is not known."""
    return None if values is None else [float(value) if math.isfinite(value) else None for value in values]


def _pairs(values: Any) -> list[list[float | None] | None] | None:
    return None if values is None else [_numbers(pair) for pair in values]


def _spread_path(estimate: Path) -> Path:
    return estimate.with_name(f"{estimate.stem}_spread.npy")


def _spread_db(separated: Separated) -> list[float | None] | None:
    """Energy of the spread over that of the estimate, dB; None for a silent one."""
    if separated.spread is None:
        return None
    energies = np.square(separated.estimates, dtype=np.float64).sum(-1)
    spreads = np.square(separated.spread, dtype=np.float64).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _numbers(10 * np.log10(spreads / energies))


def _names_of(written: dict[str, Any]) -> set[str]:
    """The files that a JSON file names, beside which it stands."""
    lists = [written.get(key) for key in ("estimates", "spreads")]
    return {name for names in lists if isinstance(names, list) for name in names if _is_plain_name(name)}


def _is_plain_name(name: Any) -> bool:
    return isinstance(name, str) and "\0" not in name and name not in ("", ".", "..") and Path(name).name == name


def _is_done(target: Path, description: dict[str, Any], verify: bool) -> bool:
    """Whether all outputs stand, whole, and come from the same recording, model and options.

    Args:
        target: path without ending.
        description: what their JSON file would say of them.
        verify: compare SHA-256 of recording and outputs, too; otherwise size and time of change, and sizes.
    """
    written = _written_before(target)
    if any(written.get(key) != value for key, value in description.items()):
        return False
    names = _names_of(written) | ({_rttm_path(target).name} if description["rttm"] else set())
    files = written.get("files")
    # Earlier versions did not say how long their estimates are: those are made again.
    if not isinstance(written.get("estimates"), list) or not isinstance(files, dict) or names != files.keys():
        return False
    if verify and written.get("input_sha256") != file_digest(description["input"]):
        return False
    return all(_stands(target.with_name(name), files[name], verify) for name in names)


def _stands(path: Path, expected: Any, verify: bool) -> bool:
    try:
        same = path.stat().st_size == expected["bytes"]
        return same and (not verify or file_digest(path) == expected["sha256"])
    except (OSError, TypeError, KeyError):
        return False


def _written_before(target: Path) -> dict[str, Any]:
    """What the JSON file of an earlier call holds; nothing where there is none that can be read."""
    try:
        written = parse_json(_description_path(target).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}


def file_identity(path: Path) -> dict[str, int]:
    """Return size and time of change of an input, by which a later call knows that it is still the same file.

    Args:
        path: of the input.
    """
    status = path.stat()
    return {"input_bytes": status.st_size, "input_modified_ns": status.st_mtime_ns}
