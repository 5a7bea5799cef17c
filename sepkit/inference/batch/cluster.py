"""`sepkit cluster`: who spoke when in recordings, folders of them, or what `sepkit separate` wrote."""

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sepkit.data.activity import rttm_lines
from sepkit.data.segments import EMBEDDINGS, Segment, write_segments
from sepkit.errors import UserError
from sepkit.files import check_writable, write_csv, write_json, write_text
from sepkit.inference.batch.inputs import find_recordings, name_outputs, rttm_ids
from sepkit.inference.batch.reports import failure_reason
from sepkit.inference.diarization.clustering import in_order_of_appearance, unit_rows
from sepkit.inference.diarization.counting import group_speakers, rule_of
from sepkit.inference.diarization.encoders import Encoder, load_encoder
from sepkit.inference.diarization.segments import (
    SHORTEST_SECONDS,
    WINDOW_SECONDS,
    Overlaps,
    Source,
    SpeechSegment,
    clear_segments,
    embed,
    find_segments,
    group_estimates,
    join_turns,
    neighbors_in_turns,
    overlaps_of,
    waveforms_of,
)
from sepkit.inference.diarization.spectra import BASELINES, mean_spectra
from sepkit.inference.options import SpeakerFeatures
from sepkit.models.published.shipped import encoder_folder
from sepkit.owned import check
from sepkit.parallel import Failed, attempt
from sepkit.version import __version__


@dataclass
class Speech:
    """The segments of speech in all recordings, and what was left out.

    Args:
        recordings: recordings with at least one segment, and their segments in order of time.
        short: (relative path, segment) of segments too short to use.
        skipped: path -> why a recording was left out.
    """

    recordings: list[tuple[Source, list[SpeechSegment]]] = field(default_factory=list)
    short: list[tuple[str, SpeechSegment]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def waveforms(self, sample_rate: int) -> Iterator[np.ndarray]:
        """Yield the samples of all segments, (T,) each, at a rate in Hz."""
        for source, own in self.recordings:
            yield from waveforms_of(source, own, sample_rate)

    def only(self, chosen: np.ndarray) -> "Speech":
        """Return some of the segments; recordings without any of them are noted.

        Args:
            chosen: Which segments, (N,) bool.

        Raises:
            UserError: none of them.
        """
        left = Speech([], self.short, dict(self.skipped))
        for (first, own), (source, _) in zip(self._numbered, self.recordings, strict=True):
            if kept := list(itertools.compress(own, chosen[first:])):
                left.recordings.append((source, kept))
            else:
                left.skipped[str(source.paths[0])] = _nothing_in(source.paths[0])
        left.check_any()
        return left

    def check_any(self) -> None:
        """Refuse to go on without any recording that can be used."""
        if not self.recordings:
            reason = next(iter(self.skipped.values()), "no recordings")
            raise UserError(f"no recording can be used; the first: {reason}")

    @property
    def all(self) -> list[tuple[Source, SpeechSegment]]:
        """Every segment, with the recording that it is of."""
        return [(source, segment) for source, own in self.recordings for segment in own]

    @property
    def seconds(self) -> np.ndarray:
        """(N,) lengths of the segments."""
        return np.array([segment.duration_seconds for _, segment in self.all])

    @property
    def clear(self) -> np.ndarray:
        """(N,) which segments are clear, see `clear_segments`."""
        return np.concatenate([clear_segments(own) for _, own in self.recordings])

    @property
    def neighbors(self) -> np.ndarray:
        """(P, 2) which segments follow each other in a turn, see `neighbors_in_turns`."""
        return np.concatenate([first + neighbors_in_turns(own) for first, own in self._numbered])

    @property
    def overlaps(self) -> Overlaps:
        """Overlaps of the segments of one recording in time, see `overlaps_of`."""
        found = [(number, first, *overlaps_of(own)) for number, (first, own) in enumerate(self._numbered)]
        parts = [(first + pairs, times, number + where) for number, first, pairs, times, where in found]
        pairs, times, where = (np.concatenate(part) for part in zip(*parts, strict=True))
        return pairs, times, where

    @property
    def _numbered(self) -> list[tuple[int, list[SpeechSegment]]]:
        """The number of the first segment of each recording, and its segments."""
        firsts = np.cumsum([0, *(len(own) for _, own in self.recordings[:-1])]).tolist()
        return [(first, own) for first, (_, own) in zip(firsts, self.recordings, strict=True)]


def find_speech(inputs: Sequence[str | Path], out: Path, encoder: Encoder | None) -> Speech:
    """Return the segments of all inputs but `out`; a recording that cannot be used is noted, and the rest goes on.

    Raises:
        UserError: an input that does not exist, or no speech in any of them.
    """
    speech = Speech()
    sources = _named(group_estimates(find_recordings(inputs, out)))
    for source in sources:
        check(_rttm(out, source))
    for source in sources:
        path = source.paths[0]
        found = attempt(partial(find_segments, encoder=encoder), source)
        if isinstance(found, Failed):
            speech.skipped[str(path)] = failure_reason(UserError(found.reason), path)
            continue
        segments, short = found
        speech.short += [(source.relative[segment.channel], segment) for segment in short]
        if not segments:
            speech.skipped[str(path)] = _nothing_in(path)
            continue
        speech.recordings.append((source, segments))
    speech.check_any()
    return speech


def _nothing_in(path: Path) -> str:
    return f"{path}: found no speech of {SHORTEST_SECONDS} s or more"


def _named(sources: Sequence[Source]) -> list[Source]:
    """Return sources of which no two have one name, as in `name_outputs`, nor one path in tables."""
    counts = Counter(path for source in sources for path in source.relative)
    shared = os.path.commonpath([path.parent for source in sources for path in source.paths])
    recordings = {}
    for source in sources:
        path, relative = source.paths[0], Path(source.relative[0])
        if source.name != relative.with_suffix(""):  # estimates are called like their JSON file
            path, relative = (place.with_name(f"{source.name.name}.json") for place in (path, relative))
        recordings[path] = relative
    named = []
    for source, name in zip(sources, name_outputs(recordings, rttm=True).values(), strict=True):
        whole = zip(source.relative, source.paths, strict=True)
        paths = [own if counts[own] == 1 else str(path.relative_to(shared)) for own, path in whole]
        named.append(replace(source, name=name, relative=tuple(paths)))
    return named


def _rttm(out: Path, source: Source) -> Path:
    return out / source.name.with_name(f"{source.name.name}.rttm")


def cluster_recordings(
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    encoder: str | None = None,
    features: SpeakerFeatures | None = None,
    speakers: int | Literal["auto"] = "auto",
) -> dict[str, Any]:
    """Find who spoke when; write OUT/segments.csv, OUT/summary.json and an RTTM file for each recording.

    OUT/embeddings.csv contains the embeddings in two dimensions, which `sepkit report OUT` draws.

    Args:
        inputs: recordings, folders of them, or what `sepkit separate` wrote.
        encoder: folder of a speaker encoder, the name of one that ships, FILE.onnx, mean_mfcc or mean_log_mel; None:
            the default.
        features: Input of FILE.onnx; None: as its metadata say.
        speakers: their number; auto: it is found.

    Returns:
        The summary.

    Raises:
        UserError: inputs, an encoder or a number of speakers that cannot be used.
    """
    began, out = time.perf_counter(), Path(out)
    if speakers != "auto" and speakers < 1:
        raise UserError(f"--speakers: found {speakers}, expected auto or 1 or more")
    loaded = None if encoder in BASELINES else load_encoder(encoder, features)
    if loaded is None and speakers == "auto":
        raise UserError(f"--speaker-encoder {encoder}: plain spectra do not count speakers; give --speakers N")
    speech = find_speech(inputs, out, loaded)
    check_writable(out)
    if loaded is None:
        points = mean_spectra(str(encoder), speech.waveforms(8000), 8000)
    else:
        points, spoken = embed(loaded, speech.waveforms(loaded.sample_rate))
        speech, points = speech.only(spoken), points[spoken]
        if not np.isfinite(points).all():
            raise UserError("--speaker-encoder: it gives embeddings that are not finite; train it again")
    segments, rule = speech.all, rule_of({} if loaded is None else loaded.info)
    if speakers != "auto" and speakers > len(segments):
        raise UserError(
            f"--speakers: found {speakers} for {len(segments)} segments of speech, expected no more; use auto, or "
            "fewer speakers"
        )
    clusters, counted = group_speakers(
        points, speech.neighbors, speech.seconds, speakers, rule, speech.clear, speech.overlaps
    )
    labels = in_order_of_appearance(clusters.labels.tolist())
    confidence = clusters.posterior[np.arange(len(labels)), clusters.labels]
    names = [f"speaker_{label + 1}" for label in labels]
    rows = [
        Segment(source.relative[s.channel], s.start_seconds, s.duration_seconds, name, min(1.0, sure))
        for (source, s), name, sure in zip(segments, names, confidence.tolist(), strict=True)
    ]
    write_segments(out / "segments.csv", rows)
    rest = iter(labels)
    count, ids = max(labels) + 1, rttm_ids([source.name for source, _ in speech.recordings])
    for source, own in speech.recordings:
        turns: list[list[tuple[float, float]]] = [[] for _ in range(count)]
        for segment in own:
            turns[next(rest)].append((segment.start_seconds, segment.duration_seconds))
        joined = [join_turns(own_turns) for own_turns in turns]
        lines = rttm_lines(ids[source.name], joined, [f"speaker_{k + 1}" for k in range(count)])
        write_text(_rttm(out, source), "".join(lines))
    # Each segment is drawn at the first two principal components of its embedding.
    points = unit_rows(np.asarray(points, np.float64))
    centered = points - points.mean(0)
    values, axes = np.linalg.eigh(centered.T @ centered)
    places = centered @ axes[:, np.argsort(-values)[:2]]
    places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
    drawn = []
    for (source, segment), name, (x, y) in zip(speech.all, names, places.tolist(), strict=True):
        times = f"{segment.start_seconds:.3f}", f"{segment.duration_seconds:.3f}"
        drawn.append([str(source.name), *times, name, f"{x:.5f}", f"{y:.5f}"])
    write_csv(out / EMBEDDINGS, ["recording", "start_seconds", "duration_seconds", "speaker", "x", "y"], drawn)
    summary = {
        "n_recordings": len(speech.recordings),
        "n_segments": len(segments),
        "n_speakers": len(set(labels)),
        "counting": None if counted is None else counted.to_plain(),
        "seconds": {name: round(float(sum(speech.seconds[np.array(names) == name])), 3) for name in sorted(set(names))},
        "mean_confidence": float(confidence.mean()),
        "speaker_encoder": encoder or str(encoder_folder(None).name),
        "window_seconds": WINDOW_SECONDS,
        "n_short": len(speech.short),
        "short": [
            {"path": path, "start_seconds": s.start_seconds, "duration_seconds": s.duration_seconds}
            for path, s in speech.short
        ],
        "n_skipped": len(speech.skipped),
        "skipped": [{"path": path, "reason": reason} for path, reason in speech.skipped.items()],
        "wall_seconds": time.perf_counter() - began,
        "sepkit": __version__,
    }
    write_json(out / "summary.json", summary)
    return summary
