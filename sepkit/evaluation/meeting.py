"""Measure a meeting: who spoke when (DER), and who said what (cpWER and tcpWER, by meeteval)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sepkit.cells import run_cells
from sepkit.data import audio
from sepkit.data.activity import ActivityMeter, rttm_lines
from sepkit.data.seglst import SpokenSegment, read_seglst, write_seglst
from sepkit.errors import UserError, shown
from sepkit.evaluation.diarization import error_rates, read_rttm
from sepkit.evaluation.results import commit
from sepkit.evaluation.transcripts import timed_lines, transcribe, words
from sepkit.extras import require
from sepkit.files import check_writable, file_digest, write_json, write_text
from sepkit.version import __version__

TABLES = {".rttm": "RTTM", ".json": "SegLST", ".seglst": "SegLST"}
"""Endings of files that say who speaks when."""

COLLAR_SECONDS = 5.0
"""Largest distance of a word from its time in the reference, for tcpWER, as in the field's challenges."""

_BLOCK_SECONDS = 10.0


def evaluate_meetings(
    reference: str | Path, hypotheses: Sequence[str | Path], out: str | Path, asr_command: str | None = None
) -> dict[str, Any]:
    """Write OUT/summary.json with DER, cpWER and tcpWER of meetings, and return it.

    From tracks, write who speaks when to OUT/hypothesis.rttm and who said what to OUT/hypothesis.json (SegLST).

    Args:
        reference: RTTM for DER, or SegLST for all three.
        hypotheses: RTTM or SegLST files, or the tracks of one meeting as audio files, one for each speaker.
        asr_command: transcribes a track, see `transcribe` and `timed_lines`.

    Raises:
        UserError: files that cannot be read, no meeting in common, tracks for a reference of several meetings, or a
            package that is missing.
    """
    paths, out = [Path(path) for path in hypotheses], Path(out)
    tables = [path for path in paths if path.suffix.lower() in TABLES]
    if tables and len(tables) < len(paths):
        raise UserError(f"{tables[0]}: is a table beside audio files; expected tables alone or one meeting's tracks")
    if tables and asr_command is not None:
        raise UserError(f"--asr-command: transcribes audio files, found the table {tables[0]}")
    truth = read_turns(reference)
    if not truth:
        raise UserError(f"{reference}: it contains no speech, expected turns")
    sessions = {segment.session for segment in truth}
    if not tables and len(sessions) > 1:
        raise UserError(f"{reference}: found {len(sessions)} meetings, expected one, that of the tracks")
    with_words = all(segment.words is not None for segment in truth)
    if asr_command is not None and not with_words:
        raise UserError(f"{reference}: has no words to measure --asr-command against; expected SegLST with words")
    if with_words and (asr_command is not None or any(TABLES[path.suffix.lower()] != "RTTM" for path in tables)):
        require("meeteval", what="cpWER")
    check_writable(out)
    if tables:
        turns = said = [segment for path in tables for segment in read_turns(path)]
    else:
        turns, said = _of_tracks(paths, sessions.pop(), out, asr_command)
    found = {segment.session for segment in turns}
    known = {segment.session for segment in truth}
    if turns and not found & known:
        raise UserError(f"{reference}: names none of the meetings of {paths[0]}, such as {shown(min(found))}")
    summary: dict[str, Any] = {"reference": str(reference), "hypothesis": [str(path) for path in paths]}
    # What has no times, such as a plain transcript, says nothing of who speaks when.
    if all(segment.start_seconds is not None for segment in (*truth, *turns)):
        summary |= error_rates(_turns_by_session(truth), _turns_by_session(turns))
    else:
        summary["recordings"] = {session: {} for session in sorted(known)}
    if with_words and said and all(segment.words is not None for segment in said):
        _add_word_errors(summary, truth, said)
    summary |= {
        "missing": sorted(known - found),
        "not_in_reference": sorted(found - known),
        "asr_command": asr_command,
        "version": __version__,
        "commit": commit(),
    }
    write_json(out / "summary.json", summary)
    return summary


def read_turns(path: str | Path) -> list[SpokenSegment]:
    """Return the segments of an RTTM or SegLST file, by its ending.

    Raises:
        UserError: another ending, or a file that cannot be read.
    """
    kind = TABLES.get(Path(path).suffix.lower())
    if kind is None:
        raise UserError(f"{path}: unsupported extension, expected {' or '.join(TABLES)} (RTTM or SegLST)")
    if kind == "SegLST":
        return read_seglst(path)
    return [
        SpokenSegment(session, speaker, start, start + length)
        for session, speakers in read_rttm(path).items()
        for speaker, turns in speakers.items()
        for start, length in turns
    ]


def _turns_by_session(segments: Iterable[SpokenSegment]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for segment in segments:
        start, end = segment.start_seconds or 0.0, segment.end_seconds or 0.0
        found.setdefault(segment.session, {}).setdefault(segment.speaker, []).append((start, end - start))
    return found


def _of_tracks(
    paths: Sequence[Path], session: str, out: Path, asr_command: str | None
) -> tuple[list[SpokenSegment], list[SpokenSegment]]:
    """Return the active turns of each track, and its transcript; nothing without a command."""
    if len({path.stem for path in paths}) < len(paths):
        raise UserError("--hypothesis: found two tracks of one name, expected a name for each speaker")
    heard: list[list[tuple[float, float]]] = []
    for path in paths:
        meter = ActivityMeter(1, audio.info(path).sample_rate)
        for block in audio.read_blocks(path, round(_BLOCK_SECONDS * audio.info(path).sample_rate)):
            meter.add(block[None])
        heard += meter.segments()
    names = ["_".join(path.stem.split()) for path in paths]
    write_text(out / "hypothesis.rttm", "".join(rttm_lines(session, heard, names)))
    turns = [
        SpokenSegment(session, name, start, start + length)
        for name, own in zip(names, heard, strict=True)
        for start, length in own
    ]
    if asr_command is None:
        return turns, []
    cells = {
        name: {"command": asr_command, "path": str(path), "sha256": file_digest(path)}
        for name, path in zip(names, paths, strict=True)
    }
    results = run_cells(cells, _transcript, out / "transcripts", seed=0)
    said = [one for name, result in results.items() for one in _segments_of(result["transcript"], session, name)]
    write_seglst(out / "hypothesis.json", said)
    return turns, said


def _transcript(command: str, path: str, **_: Any) -> dict[str, Any]:
    try:
        return {"transcript": transcribe(command, audio.read(path), audio.info(path).sample_rate)}
    except RuntimeError as error:
        raise UserError(f"--asr-command: {path}: {error}") from error


def _segments_of(transcript: str, session: str, speaker: str) -> Iterator[SpokenSegment]:
    """Yield the cues of a transcript, or else one segment without times."""
    cues = timed_lines(transcript)
    for start, end, text in cues:
        yield SpokenSegment(session, speaker, start, end, text)
    if not cues:
        # Silence needs no time.
        times = (None, None) if transcript.strip() else (0.0, 0.0)
        yield SpokenSegment(session, speaker, *times, transcript.strip())


def _add_word_errors(summary: dict[str, Any], truth: Sequence[SpokenSegment], said: Sequence[SpokenSegment]) -> None:
    """Add cpWER, and tcpWER if all times are known, of each meeting and of all together: errors over words.

    Words have neither case nor punctuation, see `words`.
    """
    from meeteval.wer import cp_word_error_rate, time_constrained_minimum_permutation_word_error_rate

    timed = all(segment.start_seconds is not None for segment in (*truth, *said))
    # Segments are in order of time already; else a line on standard error says so.
    in_order: dict[str, Any] = {"reference_sort": False, "hypothesis_sort": False}
    totals = dict.fromkeys(["n_words", "cpwer", *["tcpwer"] * timed], 0)
    recordings: Mapping[str, dict[str, Any]] = summary["recordings"]
    for session, own in recordings.items():
        sides = [_rows([segment for segment in side if segment.session == session]) for side in (truth, said)]
        errors = cp_word_error_rate(*sides, **in_order)
        counts = {"n_words": int(errors.length), "cpwer": int(errors.errors)}
        if timed:
            found = time_constrained_minimum_permutation_word_error_rate(*sides, collar=COLLAR_SECONDS)
            counts["tcpwer"] = int(found.errors)
        totals = {name: total + counts[name] for name, total in totals.items()}
        own |= _rates(counts)
    if not totals["n_words"]:
        raise UserError(f"{summary['reference']}: no words are said in it, expected some")
    summary |= _rates(totals)
    if timed:
        summary["tcpwer_collar_seconds"] = COLLAR_SECONDS


def _rates(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return counts of errors over the number of words; None where there are no words."""
    n_words = counts["n_words"]
    rates = {name: errors / n_words if n_words else None for name, errors in counts.items() if name != "n_words"}
    return {"n_words": n_words, **rates}


def _rows(segments: Sequence[SpokenSegment]) -> Any:
    """Return the segments of one meeting as meeteval takes them; nothing at all is a speaker who says nothing."""
    from meeteval.io import SegLST

    rows: list[Any] = []
    for segment in sorted(segments, key=lambda segment: segment.start_seconds or 0.0):
        row = {"speaker": segment.speaker, "words": " ".join(words(segment.words or ""))}
        if segment.start_seconds is not None:
            row |= {"start_time": segment.start_seconds, "end_time": segment.end_seconds}
        rows.append(row)
    return SegLST(rows or [{"speaker": "", "words": "", "start_time": 0.0, "end_time": 0.0}])


def meeting_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the measures of meetings in words."""
    lines = []
    if "der" in summary:
        parts = ", ".join(f"{100 * summary[f'{name}_share']:.1f} % {word}" for name, word in _PARTS.items())
        collar, seconds = 100 * summary["der_collar_0.25"], summary["speech_seconds"]
        text = f"DER {100 * summary['der']:.1f} % of {seconds:.1f} s of speech ({parts})"
        lines.append(f"{text}; with a collar of 0.25 s {collar:.1f} % of the speech outside it")
    if "cpwer" in summary:
        text = f"cpWER {100 * summary['cpwer']:.1f} %"
        if "tcpwer" in summary:
            text += f", tcpWER {100 * summary['tcpwer']:.1f} % (collar {COLLAR_SECONDS:g} s)"
        else:
            text += "; no tcpWER: some words have no times"
        lines.append(f"{text}, of {summary['n_words']} words")
    lines += [f"{name}: in the reference, but the hypothesis contains no speech for it" for name in summary["missing"]]
    lines += [f"{name}: in the hypothesis, not in the reference; not measured" for name in summary["not_in_reference"]]
    return lines


_PARTS = {"missed": "missed", "false_alarm": "false alarm", "confused": "confused"}
