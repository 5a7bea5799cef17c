"""Files in, files out: every recording becomes one file an estimate and a JSON file that says how it came about."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError, one_line
from sepkit.files import check_writable
from sepkit.inference.batch.inputs import find_recordings, name_outputs, rttm_ids
from sepkit.inference.batch.outputs import (
    Blocks,
    check_free,
    file_identity,
    is_done,
    marked,
    tracks_of,
    write_outputs,
)
from sepkit.inference.batch.reports import (
    FAILED,
    FilesReport,
    check_failures,
    failure_reason,
    is_out_of_memory,
    write_failures,
)
from sepkit.inference.diarization.encoders import Encoder, load_encoder
from sepkit.inference.diarization.enrollment import (
    Enrolled,
    enroll,
    name_speakers,
    threshold_of,
    threshold_warning,
)
from sepkit.inference.diarization.linking import LinkedSpeakers, link
from sepkit.inference.loading import load_model
from sepkit.inference.long.recordings import FileRecording
from sepkit.inference.long.upper_band import upper_band_note
from sepkit.inference.options import LinkSpeakers, OutputOptions, Subtype, check_samples, read_names
from sepkit.inference.selection import check_speakers
from sepkit.inference.separated import Separated, counted, summary_line
from sepkit.inference.separator import Separator
from sepkit.models.published.names import license_of
from sepkit.owned import command
from sepkit.parallel import Failed, for_each
from sepkit.version import __version__

__all__ = ["FilesReport", "separate_files"]


# As libsndfile names them; what is compressed with loss has no bits to keep.
_FINER_THAN_16_BITS = frozenset({"PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAC_20", "ALAC_24", "ALAC_32"})


@dataclass(frozen=True)
class _Job:
    """How every recording is separated, and to where; `provenance` is the part that its JSON file states, and `channel`
    the one that is taken: None for the mean."""

    out: Path
    separator: Separator
    provenance: dict[str, Any]
    progress: bool
    verify: bool
    channel: int | None
    encoder: Encoder | None = None
    enrolled: Sequence[Enrolled] = ()
    rttm_ids: dict[Path, str] = field(default_factory=dict)


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
    tell: Callable[[str, bool], None] | None = None,
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
        tell: takes a line about each recording as soon as it is separated or has failed, and whether it has failed.

    Raises:
        UserError: an input that does not exist, a folder without audio files, an output folder that cannot be
            written to or is an input, `speakers` that the model cannot tell, several processes on an accelerator, or a
            spread of a deterministic model or of fewer than two samples.
    """
    began, out, options = time.perf_counter(), Path(out), options or OutputOptions()
    if options.speakers is None and options.link_speakers is None and not options.spread:
        options = replace(options, speakers=separator.default_speakers)
    check_speakers(options.speakers, separator.hypotheses, separator.counts_speakers)
    if options.spread:
        check_samples(options.samples)
        separator.check_spread()
    if processes > 1 and separator.device != "cpu":
        raise UserError(
            f"processes: found {processes} on {separator.device}, expected 1; torchrun starts one for each accelerator"
        )
    named = name_outputs(find_recordings(inputs, out), rttm=options.rttm)
    recordings = list(named.items())[rank::world_size]
    list_name = FAILED if world_size == 1 else f"failed_rank{rank}.jsonl"
    check_failures(out / list_name)
    samples = read_names(options.enroll or ())
    most = separator.hypotheses if options.link_speakers is None else math.inf
    outputs = {"format": options.format, "rttm": options.rttm, "spread_samples": options.spread}
    check_free([out / name for name in named.values()], [*named, *samples.values()], samples, most, outputs)
    encoder, enrolled = None, []
    if options.link_speakers is not None:
        encoder = load_encoder(options.speaker_encoder, options.speaker_features)
    if encoder is not None and options.enroll:
        enrolled = enroll(samples, encoder)
    check_writable(out)
    report = FilesReport(out, list_name=list_name)
    provenance = {
        "model": model_name,
        "weights": separator.fingerprint(),
        "license": license_of(model_name) if model_name else None,
        "model_sample_rate": separator.sample_rate,
        **separator.provenance(),
        "channel": options.channel,
        "speakers_option": options.speakers,
        "score_threshold": separator.score_threshold if options.speakers == "auto" else None,
        "subtype": options.subtype,
        "format": options.format,
        "rttm": options.rttm,
        "link_speakers": options.link_speakers,
        "speaker_encoder": None if encoder is None else encoder.fingerprint(),
        "enroll": {speaker.name: speaker.sha256 for speaker in enrolled} or None,
        "only": options.only,
        "spread_samples": options.samples if options.spread else None,
        "sepkit": __version__,
    }
    ids = rttm_ids(named.values()) if options.rttm else {}
    job = _Job(out, separator, provenance, processes == 1, options.verify, options.channel, encoder, enrolled, ids)
    highest_rate = 0
    for (path, target), done in for_each(partial(_separate_one, job), recordings, processes, "separating"):
        if isinstance(done, Failed):
            reason = report.failed[str(path)] = failure_reason(UserError(done.reason), path)
            if tell:
                tell(reason, True)
        elif done is None:
            report.already_done += 1
        else:
            report.separated += 1
            command().finished = True
            report.audio_seconds += done.seconds
            report.summaries[str(target)] = done.summary
            if tell:
                tell(one_line(f"{target}: {done.summary}"), False)
            highest_rate = max(highest_rate, done.sample_rate)
    note = upper_band_note(separator.options.high_band, highest_rate, separator.sample_rate)
    unsure = threshold_warning(encoder) if encoder is not None and enrolled else None
    report.warnings = list(filter(None, [note, unsure, *(speaker.warning() for speaker in enrolled)]))
    write_failures(out / report.list_name, report.failed)
    report.wall_seconds = time.perf_counter() - began
    return report


@dataclass(frozen=True)
class _Done:
    """What became of one recording: seconds of sound, Hz, and its summary line."""

    seconds: float
    sample_rate: int
    summary: str


def _separate_one(job: _Job, recording: tuple[Path, Path]) -> _Done | None:
    """Return what became of a recording; None where it was separated before.

    Args:
        recording: its path, and that of its outputs below `job.out`, without ending.
    """
    path, target = recording[0], job.out / recording[1]
    description = {"input": str(path), **file_identity(path), **job.provenance}
    if is_done(target, description, job.verify):
        return None
    note = ""
    try:
        header = audio.info(path)
        if description["channel"] is None and (loudest := audio.cancelled(path)) is not None:
            job, note = replace(job, channel=loudest), f"; {audio.cancelled_note(loudest)}"
        if job.separator.is_long(header.num_samples, header.sample_rate):
            summary = _separate_long(job, path, target, description, header)
        else:
            summary = _separate_whole(job, path, target, description, header)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(failure_reason(error, path)) from error
    return _Done(header.duration_seconds, header.sample_rate, summary + note)


def _separate_whole(job: _Job, path: Path, target: Path, description: dict[str, Any], header: audio.AudioInfo) -> str:
    provenance = job.provenance
    waveform = audio.read(path, channel=job.channel)
    _check_unchanged(path, description)
    separated = job.separator.separate(
        waveform, header.sample_rate, speakers=provenance["speakers_option"], samples=provenance["spread_samples"]
    )
    estimates, whole = (lambda: iter([separated.estimates])), (lambda: iter([waveform[None]]))
    return _write_speakers(job, target, separated, estimates, whole, description, header)


def _separate_long(job: _Job, path: Path, target: Path, description: dict[str, Any], header: audio.AudioInfo) -> str:
    recording = FileRecording(path, job.channel)
    check_writable(target.parent)
    # The temporary file needs as much room as the estimates, and not in a system folder that may be memory.
    long = job.separator.separate_long(
        recording,
        speakers=job.provenance["speakers_option"],
        samples=job.provenance["spread_samples"],
        folder=target.parent,
        progress=job.progress,
        # Profiles are of one speaker for each output; outputs that are linked hold several.
        stitcher=None if job.encoder is None else "overlap",
    )
    try:
        _check_unchanged(path, description)
        summary = _write_speakers(
            job,
            target,
            long.separated,
            long.blocks,
            lambda: (block[None] for block in recording.blocks()),
            description,
            header,
        )
        _check_unchanged(path, description)
        return summary
    finally:
        long.close()


def _subtype(description: dict[str, Any], header: audio.AudioInfo) -> Subtype:
    """Return the sample format of the estimates: as asked for, or with as many bits as the recording has."""
    fine = description["format"] == "wav" and header.subtype in _FINER_THAN_16_BITS
    return description["subtype"] or ("FLOAT" if fine else "PCM_16")


def _check_unchanged(path: Path, description: dict[str, Any]) -> None:
    now = file_identity(path)
    if any(description[name] != value for name, value in now.items()):
        raise UserError(f"{path}: changed while it was read; separate it again when it is complete")


def _write_speakers(
    job: _Job,
    target: Path,
    separated: Separated,
    blocks: Blocks,
    recording: Blocks,
    description: dict[str, Any],
    header: audio.AudioInfo,
) -> str:
    """Write the estimates, or the speakers that they are linked to; return a line about them."""
    count, subtype = header.num_samples, _subtype(description, header)
    more: dict[str, Any] = {} if job.channel == description["channel"] else {"channel_taken": job.channel}
    name = job.rttm_ids.get(target.relative_to(job.out), "")
    if job.encoder is None:
        with marked(target, tracks_of(separated), description):
            write_outputs(target, separated, count, blocks, description, subtype, more, recording=name)
        return summary_line(separated)
    speakers = _speakers_to_link(job, separated)
    linked = link(blocks, len(separated.kept), separated.sample_rate, job.encoder, speakers, recording)
    names, found = _names(job, linked)
    more |= {"linked": linked.to_plain(), **found}
    tracks = replace(separated, tracks=names)
    with marked(target, names, description):
        write_outputs(target, tracks, count, linked.blocks, description, subtype, more, linked.turns, name)
    heard = counted(linked.speakers, "speaker") if any(linked.turns) else "nobody is heard to speak"
    line = f"{heard} in {counted(len(separated.kept), 'estimate')}"
    if linked.counted is not None and linked.counted.uncertain:
        line += f" (uncertain, perhaps {linked.counted.runner_up})"
    if found:
        line += f"; written: {', '.join(filter(None, names)) or 'none'}; absent: {', '.join(found['absent']) or 'none'}"
    return line


def _speakers_to_link(job: _Job, separated: Separated) -> LinkSpeakers:
    """Return the number that was asked for; for "auto" 1 if the model's detector is sure that one speaker is alone.

    The other estimates of such a recording hold what is left of the voice, which sounds like somebody else. Scores tell
    how many outputs are heard, each of which may hold several speakers.
    """
    wanted = job.provenance["link_speakers"]
    return 1 if wanted == "auto" and separated.scores is None and separated.speakers == 1 else wanted


def _names(job: _Job, linked: LinkedSpeakers) -> tuple[list[str | None], dict[str, Any]]:
    """The names of tracks, None for those that are not written, and what the JSON file tells of enrolled speakers."""
    names: list[str | None] = [f"s{number + 1}" for number in range(linked.speakers)]
    if not job.enrolled or job.encoder is None:
        return names, {}
    threshold = threshold_of(job.encoder)
    found = name_speakers(job.enrolled, linked.embeddings, threshold)
    for one in found:
        if one.speaker is not None:
            names[one.speaker] = one.enrolled.name
    only = job.provenance["only"]
    absent = [one.enrolled.name for one in found if one.speaker is None]
    more = {"enrolled": [one.to_plain() for one in found], "enroll_threshold": threshold, "absent": absent}
    return [name if only in (None, name) else None for name in names], more


def check_separates(path: Path) -> None:
    """Separate a wav of one second with an exported model, at its own rate and at another.

    Raises:
        UserError: a recording cannot be separated.
    """
    separator = load_model(path)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for rate in (separator.sample_rate, separator.sample_rate + 1025):
            noise = np.random.default_rng(rate).standard_normal(rate).astype(np.float32)
            audio.write(folder / "in" / f"noise_{rate}.wav", 0.1 * noise, rate)
        report = separate_files([folder / "in"], separator, folder / "out")
        for reason in report.failed.values():
            raise UserError(f"{path.name}: not written: the graph separates no recording ({reason})")
