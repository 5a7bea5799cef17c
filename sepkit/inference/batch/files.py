"""Files in, files out: every recording becomes one file an estimate and a JSON file that records the computation."""

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError, counted, one_line
from sepkit.files import check_writable
from sepkit.inference.batch import reports
from sepkit.inference.batch.inputs import find_recordings, name_outputs, rttm_ids
from sepkit.inference.batch.outputs import check_free, file_identity, is_done, marked, tracks_of, write_outputs
from sepkit.inference.diarization.encoders import Encoder, load_encoder
from sepkit.inference.diarization.enrollment import (
    DECIDING_SECONDS,
    Enrolled,
    enroll,
    name_speakers,
    threshold_of,
    threshold_warning,
)
from sepkit.inference.diarization.linking import LinkedSpeakers, link
from sepkit.inference.loading import load_model
from sepkit.inference.long.recordings import FileRecording, Rendered
from sepkit.inference.options import LinkSpeakers, OutputOptions, Subtype, read_names
from sepkit.inference.selection import check_speakers
from sepkit.inference.separated import Separated, summary_line
from sepkit.inference.separator import Separator
from sepkit.models.published.names import license_of
from sepkit.owned import command
from sepkit.parallel import Failed, for_each
from sepkit.version import __version__

__all__ = ["separate_files"]


# As libsndfile names them; what is compressed with loss has no bits to keep.
_FINER_THAN_16_BITS = frozenset({"PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAC_20", "ALAC_24", "ALAC_32"})


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
) -> reports.FilesReport:
    """Separate recordings to files and return what became of each; the same call again continues where it stopped.

    Write OUT/<relative path>_s1.wav, _s2.wav ... at the recording's rate and level, one per kept hypothesis, then
    OUT/<relative path>.json. Remove files that the JSON of an earlier call names and this one does not make. List a
    recording that cannot be separated in OUT/failed.jsonl and continue with the rest. Long recordings are separated in
    bounded memory, see `Separator.separate_recording`.

    Args:
        inputs: Audio files, and folders that are searched for them.
        separator: The model.
        out: Folder of the outputs, made if absent.
        options: Options of the outputs; None: the defaults.
        model_name: Name of the model in the JSON files.
        processes: Number of parallel processes, on a CPU; 1: only this one.
        rank: Number of this process among those that share the recordings: each takes every `world_size`-th. Its list
            of failures is OUT/failed_rank<rank>.jsonl then.
        world_size: Number of processes that share the recordings.
        tell: Function that gets a line about each finished recording, and whether the recording failed.

    Raises:
        UserError: an input that does not exist, a folder without audio files, an output folder that cannot be
            written to or is an input, `speakers` that the model cannot output, or several processes on an accelerator.
    """
    began, out, options = time.perf_counter(), Path(out), options or OutputOptions()
    if options.speakers is None and options.link_speakers is None:
        options = replace(options, speakers=separator.default_speakers)
    check_speakers(options.speakers, separator.hypotheses, separator.counts_speakers)
    if processes > 1 and separator.device != "cpu":
        raise UserError(
            f"processes: found {processes} on {separator.device}, expected 1; torchrun starts one for each accelerator"
        )
    named = name_outputs(find_recordings(inputs, out), rttm=options.rttm)
    report = reports.FilesReport(out, list_name=reports.FAILED if world_size == 1 else f"failed_rank{rank}.jsonl")
    reports.check_failures(out / report.list_name)
    samples = read_names(options.enroll or ())
    most = separator.hypotheses if options.link_speakers is None else math.inf
    check_free([out / name for name in named.values()], [*named, *samples.values()], samples, most, options)
    encoder, enrolled = None, []
    if options.link_speakers is not None:
        encoder = load_encoder(options.speaker_encoder, options.speaker_features)
        enrolled = enroll(samples, encoder) if samples else []
    check_writable(out)
    # All JSON files state this: a recording is done if its file states the same.
    provenance: dict[str, Any] = {
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
        "sepkit": __version__,
    }
    ids = rttm_ids(named.values()) if options.rttm else {}
    job = _Job(out, separator, options, provenance, processes == 1, encoder, enrolled, ids)
    for (path, target), done in for_each(job.separate, list(named.items())[rank::world_size], processes, "separating"):
        if isinstance(done, Failed):
            line = report.failed[str(path)] = reports.failure_reason(UserError(done.reason), path)
        elif done is None:
            report.already_done += 1
            continue
        else:
            command().finished = True
            report.separated += 1
            seconds, report.summaries[str(target)], written = done
            report.audio_seconds += seconds
            names = ", ".join(map(str, written)) or f"{out / target}.json"
            line = one_line(f"{_from_here(path)} → {names}") + f"\n  {one_line(report.summaries[str(target)])}"
        if tell:
            tell(line, isinstance(done, Failed))
    unsure = threshold_warning(encoder) if encoder is not None and enrolled else None
    report.warnings = list(filter(None, [unsure, *(speaker.warning() for speaker in enrolled)]))
    reports.write_failures(out / report.list_name, report.failed)
    report.wall_seconds = time.perf_counter() - began
    return report


@dataclass(frozen=True)
class _Job:
    """How every recording of a call is separated and written.

    Args:
        out: Folder of the outputs.
        separator: The model.
        options: Options of the outputs.
        provenance: Fields of all JSON files.
        progress: Whether to show a bar for a long recording.
        encoder: Speaker encoder that links estimates to speakers; None: they are not linked.
        enrolled: Speakers whose tracks have names.
        rttm_ids: Names in RTTM by output path.
    """

    out: Path
    separator: Separator
    options: OutputOptions
    provenance: dict[str, Any]
    progress: bool
    encoder: Encoder | None
    enrolled: Sequence[Enrolled]
    rttm_ids: dict[Path, str]

    def separate(self, recording: tuple[Path, Path]) -> tuple[float, str, list[Path]] | None:
        """Return the length of a recording, seconds, a line about it, and the estimates' files; None if it was
        separated before.

        Args:
            recording: Its path, and that of its outputs below `out`, without ending.
        """
        path, target = recording[0], self.out / recording[1]
        identity = file_identity(path)
        description = {"input": str(path), **identity, **self.provenance}
        if is_done(target, description, self.options):
            return None
        try:
            header, channel, note = audio.info(path), self.options.channel, ""
            if channel is None and (loudest := audio.cancelled(path)) is not None:
                channel, note = loudest, f"; {audio.cancelled_note(loudest)}"
                description["channel_taken"] = channel
            check_writable(target.parent)
            separated = self.separator.separate_recording(
                FileRecording(path, channel),
                speakers=self.options.speakers,
                # The temporary file needs as much room as the estimates, and not in a system folder that may be memory.
                folder=target.parent,
                progress=self.progress,
                # Outputs that are linked hold several speakers each.
                undo_swaps=self.encoder is None,
            )
            with closing(separated.estimates):
                _check_unchanged(path, identity)
                summary, written = self._write(target, separated, description, header)
                _check_unchanged(path, identity)
        except (RuntimeError, MemoryError) as error:
            if not reports.is_out_of_memory(error):
                raise
            raise UserError(reports.failure_reason(error, path)) from error
        return header.duration_seconds, summary + note, written

    def _write(
        self, target: Path, separated: Separated[Rendered], description: dict[str, Any], header: audio.AudioInfo
    ) -> tuple[str, list[Path]]:
        """Write the estimates, or the speakers that they are linked to; return a line about them, and their files."""
        fine = self.options.format == "wav" and header.subtype in _FINER_THAN_16_BITS
        subtype: Subtype = self.options.subtype or ("FLOAT" if fine else "PCM_16")
        name = self.rttm_ids.get(target.relative_to(self.out), "")
        if self.encoder is None:
            with marked(target, tracks_of(separated), self.options):
                written = write_outputs(target, separated, self.options, description, subtype, recording=name)
            return summary_line(separated), written
        count, estimates = len(separated.kept), separated.estimates
        mixture = lambda: (block[None] for block in estimates.recording.blocks())  # noqa: E731  # read again and again
        speakers = speakers_to_link(self.options.link_speakers, separated)
        linked = link(estimates.blocks, count, separated.sample_rate, self.encoder, speakers, mixture)
        names, found = self._names(linked)
        description = {**description, "linked": linked.to_plain(), **found}
        tracks = replace(separated, estimates=linked, tracks=names)
        with marked(target, names, self.options):
            written = write_outputs(target, tracks, self.options, description, subtype, linked.turns, name)
        line = counted(linked.speakers, "speaker") if any(linked.turns) else "no speech"
        line += f" in {counted(count, 'estimate')}"
        if linked.counted is not None and linked.counted.uncertain:
            line += f" (uncertain, perhaps {linked.counted.runner_up})"
        if found:
            absent = ", ".join(found["absent"]) or "none"
            line += f"; written: {', '.join(filter(None, names)) or 'none'}; not found: {absent}"
            if short := ", ".join(found["too_short"]):
                line += f"; enrollment too short to decide (less than {DECIDING_SECONDS:g} s of speech): {short}"
        return line, written

    def _names(self, linked: LinkedSpeakers) -> tuple[list[str | None], dict[str, Any]]:
        """Return the names of tracks, None for those not written, and the JSON entries about enrolled speakers."""
        names: list[str | None] = [f"s{number + 1}" for number in range(linked.speakers)]
        if not self.enrolled or self.encoder is None:
            return names, {}
        threshold, only = threshold_of(self.encoder), self.options.only
        found = name_speakers(self.enrolled, linked.embeddings, threshold, self.encoder.cohort)
        for one in found:
            if one.speaker is not None:
                names[one.speaker] = one.enrolled.name
        absent = [one.enrolled.name for one in found if one.speaker is None and not one.too_short]
        short = [one.enrolled.name for one in found if one.too_short]
        about = {"enrolled": [one.to_plain() for one in found], "enroll_threshold": threshold}
        more = {**about, "absent": absent, "too_short": short}
        return [name if only in (None, name) else None for name in names], more


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _check_unchanged(path: Path, identity: dict[str, int]) -> None:
    if file_identity(path) != identity:
        raise UserError(f"{path}: changed while it was read; separate it again when it is complete")


def speakers_to_link(wanted: LinkSpeakers | None, separated: Separated[Any]) -> LinkSpeakers:
    """Return the requested number; for "auto" 1 if the model's detector is sure of a single speaker.

    The other estimates of such a recording contain leakage, which sounds like another speaker. Scores give the number
    of active outputs, each of which may contain several speakers.

    Args:
        wanted: Number of speakers, or "auto".
        separated: Result of the separation.
    """
    return 1 if wanted == "auto" and separated.scores is None and separated.speakers == 1 else wanted or "auto"


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
        for reason in separate_files([folder / "in"], separator, folder / "out").failed.values():
            raise UserError(f"{path.name}: not written: the graph separates no recording ({reason})")
