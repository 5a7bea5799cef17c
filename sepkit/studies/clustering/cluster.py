"""`sepkit cluster`: who speaks when in recordings, folders of them, or what `sepkit separate` wrote."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data.activity import rttm_lines
from sepkit.data.segments import Segment, write_segments
from sepkit.errors import UserError
from sepkit.evaluation.run_folder import EMBEDDINGS
from sepkit.files import atomic_output, check_writable, write_json, write_text
from sepkit.inference.counting import Counted, count_speakers
from sepkit.inference.stretches import (
    WINDOW_SECONDS,
    Source,
    Stretch,
)
from sepkit.inference.voices import (
    Clusters,
    in_order_of_appearance,
    spherical_k_means,
    unit_rows,
)
from sepkit.models import load_checkpoint
from sepkit.models.published.shipped import encoder_folder
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.studies.clustering.adapt import adapt
from sepkit.studies.clustering.hearing import ClusterOptions, Heard, hear
from sepkit.studies.clustering.measures import BASELINES, Voices, cluster_by, listen, plain_features
from sepkit.version import __version__

# Stretches of one speaker that are nearer than this are one turn in the RTTM file.
_PAUSE_SECONDS = 0.3


def cluster_recordings(inputs: Sequence[str | Path], out: str | Path, options: ClusterOptions) -> dict[str, Any]:
    """Find who speaks when; write OUT/segments.csv, OUT/summary.json and an RTTM file for each recording.

    OUT/embeddings.csv holds the embeddings in two dimensions, which `sepkit report OUT` draws.

    Args:
        inputs: recordings, folders of them, or what `sepkit separate` wrote.
        out: folder of the results.
        options: the encoder, and the number of speakers.

    Returns:
        The summary.

    Raises:
        UserError: inputs, an encoder or a number of speakers that cannot be used.
    """
    began, out = time.perf_counter(), Path(out)
    if options.speakers != "auto" and options.speakers < 1:
        raise UserError(f"--speakers: found {options.speakers}, expected auto or 1 or more")
    encoder = None if options.model in BASELINES else load_checkpoint(encoder_folder(options.model), of=SpeakerEncoder)
    if encoder is None and (options.speakers == "auto" or options.adapt):
        raise UserError(
            f"--model {options.model}: has no threshold to count with and learns nothing; give --speakers N"
        )
    heard = hear(inputs, out)
    check_writable(out)
    stretches = heard.all
    if options.speakers != "auto" and options.speakers > len(stretches):
        raise UserError(
            f"--speakers: found {options.speakers} for {len(stretches)} stretches of speech, expected at most as many"
        )
    counted: Counted | None = None
    if encoder is None:
        features = plain_features(str(options.model), heard.waveforms(8000), 8000)
        speakers, adapted, rule = int(options.speakers), None, "embedding"
        points, clusters = features, spherical_k_means(heard.blend(features), speakers, options.seed)
    else:
        voices = listen(encoder, heard.waveforms(encoder.sample_rate))
        _check_finite(voices)
        if options.speakers == "auto":
            counting = encoder.info.get("counting")
            counted = count_speakers(heard.blend(voices.embeddings), heard.seconds, counting, heard.separated)
            speakers = counted.speakers
        else:
            speakers = options.speakers
        adapted = None
        if options.adapt and speakers > 1:
            adapted = adapt(encoder_folder(options.model), encoder, heard, speakers, out / "adapted", options)
            encoder = load_checkpoint(adapted, of=SpeakerEncoder)
            voices = listen(encoder, heard.waveforms(encoder.sample_rate))
            _check_finite(voices)
        rule = options.rule or encoder.info.get("rule") or ("embedding" if encoder.config.experts == 1 else "features")
        points, clusters = voices.embeddings, _clusters(rule, encoder, voices, speakers, options.seed, heard)
    labels = in_order_of_appearance(clusters.labels.tolist())
    confidence = clusters.posterior[np.arange(len(labels)), clusters.labels]
    names = [f"speaker_{label + 1}" for label in labels]
    write_segments(out / "segments.csv", _segments(stretches, names, confidence))
    _write_rttms(heard, labels, out)
    _write_embeddings(out / EMBEDDINGS, heard, names, points)
    summary = {
        "n_recordings": len(heard.sources),
        "n_stretches": len(stretches),
        "n_speakers": len(set(labels)),
        "speakers_asked_for": options.speakers,
        "counting": None if counted is None else _told(counted),
        "seconds": {name: round(float(sum(heard.seconds[np.array(names) == name])), 3) for name in sorted(set(names))},
        "mean_confidence": float(confidence.mean()),
        "model": options.model or str(encoder_folder(None).name),
        "adapted": None if adapted is None else str(adapted),
        "rule": rule,
        "window_seconds": WINDOW_SECONDS,
        "n_short": len(heard.short),
        "short": [
            {"path": path, "start_seconds": s.start_seconds, "duration_seconds": s.duration_seconds}
            for path, s in heard.short
        ],
        "n_skipped": len(heard.skipped),
        "skipped": [{"path": path, "reason": reason} for path, reason in heard.skipped.items()],
        "seed": options.seed,
        "wall_seconds": time.perf_counter() - began,
        "sepkit": __version__,
    }
    write_json(out / "summary.json", summary)
    return summary


def _clusters(rule: Any, encoder: SpeakerEncoder, voices: Voices, speakers: int, seed: int, heard: Heard) -> Clusters:
    if rule == "gate" and voices.gate is None:
        raise UserError(
            "--rule gate: the encoder has no gate; use embedding or features, or an encoder trained with MiCE"
        )
    if rule == "posterior" and encoder.config.experts != speakers:
        raise UserError(
            f"--rule posterior: the encoder has {encoder.config.experts} experts for {speakers} speakers, expected as "
            "many; use --adapt, or another rule"
        )
    tau, kappa = encoder.info.get("temperatures") or (0.3, 0.3)
    return cluster_by(rule, encoder, voices, speakers, (tau, kappa), seed, heard.blend)


def _check_finite(voices: Voices) -> None:
    if not np.isfinite(voices.embeddings).all():
        raise UserError("--model: the encoder gives embeddings that are not finite; train it again")


def _told(counted: Counted) -> dict[str, Any]:
    margin = counted.margin if np.isfinite(counted.margin) else None
    return {
        "speakers": counted.speakers,
        "runner_up": counted.runner_up,
        "margin": margin,
        "threshold": counted.threshold,
        "rule": counted.rule,
    }


def _segments(
    stretches: Sequence[tuple[Source, Stretch]], names: Sequence[str], confidence: np.ndarray
) -> Iterator[Segment]:
    for (source, stretch), name, sure in zip(stretches, names, confidence.tolist(), strict=True):
        path = source.relative[stretch.track]
        yield Segment(path, stretch.start_seconds, stretch.duration_seconds, name, min(1.0, sure))


def _write_rttms(heard: Heard, labels: Sequence[int], out: Path) -> None:
    rest = iter(labels)
    count = max(labels) + 1
    for source, own in zip(heard.sources, heard.stretches, strict=True):
        turns: list[list[tuple[float, float]]] = [[] for _ in range(count)]
        for stretch in own:
            turns[next(rest)].append((stretch.start_seconds, stretch.duration_seconds))
        joined = [join_turns(own_turns) for own_turns in turns]
        lines = rttm_lines(source.name.name, joined, [f"speaker_{k + 1}" for k in range(count)])
        write_text(out / source.name.with_name(f"{source.name.name}.rttm"), "".join(lines))


def _write_embeddings(path: Path, heard: Heard, names: Sequence[str], points: np.ndarray) -> None:
    """Write where each stretch is drawn: the first two principal components of its embedding."""
    points = unit_rows(np.asarray(points, np.float64))
    centered = points - points.mean(0)
    values, axes = np.linalg.eigh(centered.T @ centered)
    places = centered @ axes[:, np.argsort(-values)[:2]]
    places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
    with atomic_output(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["recording", "start_seconds", "duration_seconds", "speaker", "x", "y"])
        for (source, stretch), name, (x, y) in zip(heard.all, names, places.tolist(), strict=True):
            times = f"{stretch.start_seconds:.3f}", f"{stretch.duration_seconds:.3f}"
            writer.writerow([str(source.name), *times, name, f"{x:.5f}", f"{y:.5f}"])


def join_turns(turns: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return turns with those joined that overlap or have hardly a pause between them.

    Args:
        turns: of one speaker: beginnings and lengths, seconds.
    """
    joined: list[tuple[float, float]] = []
    for start, length in sorted(turns):
        if joined and start <= joined[-1][0] + joined[-1][1] + _PAUSE_SECONDS:
            first, before = joined[-1]
            joined[-1] = first, max(before, start + length - first)
        else:
            joined.append((start, length))
    return joined
