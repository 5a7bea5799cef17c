"""`sepkit cluster`: who speaks when in recordings, folders of them, or what `sepkit separate` wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sepkit.data.segments import Segment, write_segments
from sepkit.errors import UserError
from sepkit.files import check_writable, write_json, write_text
from sepkit.inference.activity import rttm_lines
from sepkit.inference.inputs import find_recordings
from sepkit.inference.reports import failure_reason
from sepkit.inference.stretches import (
    SHORTEST_SECONDS,
    WINDOW_SECONDS,
    Source,
    Stretch,
    conflicts_of,
    find_stretches,
    group_estimates,
    waveforms_of,
)
from sepkit.inference.voices import Clusters, Counted, count_speakers, in_order_of_appearance, spherical_k_means
from sepkit.models import load_checkpoint
from sepkit.models.shipped import encoder_folder
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.studies.clustering.measures import BASELINES, Rule, Voices, cluster_by, listen, plain_features
from sepkit.version import __version__

# Stretches of one speaker that are nearer than this are one turn in the RTTM file.
_PAUSE_SECONDS = 0.3


@dataclass
class Heard:
    """The stretches of all recordings, and what was left out.

    Args:
        sources: recordings with at least one stretch.
        stretches: of each of them, in order of time.
        short: (relative path, stretch) of stretches too short to use.
        skipped: path -> why a recording was left out.
    """

    sources: list[Source] = field(default_factory=list)
    stretches: list[list[Stretch]] = field(default_factory=list)
    short: list[tuple[str, Stretch]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def waveforms(self, sample_rate: int) -> Iterator[np.ndarray]:
        """Yield the samples of all stretches at a rate, Hz."""
        for source, own in zip(self.sources, self.stretches, strict=True):
            yield from waveforms_of(source, own, sample_rate)

    @property
    def all(self) -> list[tuple[Source, Stretch]]:
        """Every stretch, with the recording that it is of."""
        return [(source, s) for source, own in zip(self.sources, self.stretches, strict=True) for s in own]

    @property
    def seconds(self) -> np.ndarray:
        """(N,) lengths of the stretches."""
        return np.array([stretch.duration_seconds for _, stretch in self.all])

    def conflicts(self) -> list[list[int]] | None:
        """Return which stretches exclude each other; None if there are no estimates."""
        if all(len(source.paths) == 1 for source in self.sources):
            return None
        conflicts: list[list[int]] = []
        for own in self.stretches:
            before = len(conflicts)
            conflicts += [[before + other for other in others] for others in conflicts_of(own)]
        return conflicts


def hear(inputs: Sequence[str | Path], out: Path) -> Heard:
    """Return the stretches of all inputs; a recording that cannot be used is noted, and the rest goes on.

    Raises:
        UserError: an input that does not exist, or nothing is heard anywhere.
    """
    heard = Heard()
    for source in group_estimates(find_recordings(inputs, out)):
        try:
            stretches, short = find_stretches(source)
        except UserError as error:
            heard.skipped[str(source.paths[0])] = failure_reason(error, source.paths[0])
            continue
        heard.short += [(source.relative[stretch.track], stretch) for stretch in short]
        if not stretches:
            heard.skipped[str(source.paths[0])] = (
                f"{source.paths[0]}: no speech of {SHORTEST_SECONDS} s or more is heard"
            )
            continue
        heard.sources.append(source)
        heard.stretches.append(stretches)
    if not heard.sources:
        reason = next(iter(heard.skipped.values()), "no recordings")
        raise UserError(f"no recording can be used; the first: {reason}")
    return heard


@dataclass(frozen=True)
class ClusterOptions:
    """What `cluster_recordings` does.

    Args:
        model: folder of an encoder, the name of one that ships, mean_mfcc or mean_log_mel; None: the default encoder.
        speakers: their number; auto: it is found.
        adapt: whether the encoder is adapted to these recordings first.
        adapt_epochs: length of the adaptation.
        rule: what clusters come of; None: the one that the encoder's card names.
        seed: of k-means and of the adaptation.
    """

    model: str | None = None
    speakers: int | Literal["auto"] = "auto"
    adapt: bool = False
    adapt_epochs: int = 40
    rule: Rule | None = None
    seed: int = 0


def cluster_recordings(inputs: Sequence[str | Path], out: str | Path, options: ClusterOptions) -> dict[str, Any]:
    """Find who speaks when; write OUT/segments.csv, OUT/summary.json and an RTTM file for each recording.

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
        clusters = spherical_k_means(features, speakers, options.seed, heard.conflicts())
    else:
        voices = listen(encoder, heard.waveforms(encoder.sample_rate))
        _check_finite(voices)
        if options.speakers == "auto":
            counted = count_speakers(voices.embeddings, heard.seconds, encoder.info.get("counting"))
            speakers = counted.speakers
        else:
            speakers = options.speakers
        adapted = None
        if options.adapt and speakers > 1:
            from sepkit.studies.clustering.adapt import adapt

            adapted = adapt(encoder_folder(options.model), encoder, heard, speakers, out / "adapted", options)
            encoder = load_checkpoint(adapted, of=SpeakerEncoder)
            voices = listen(encoder, heard.waveforms(encoder.sample_rate))
            _check_finite(voices)
        rule = options.rule or encoder.info.get("rule") or ("embedding" if encoder.config.experts == 1 else "features")
        clusters = _clusters(rule, encoder, voices, speakers, options.seed, heard)
    labels = in_order_of_appearance(clusters.labels.tolist())
    confidence = clusters.posterior[np.arange(len(labels)), clusters.labels]
    names = [f"speaker_{label + 1}" for label in labels]
    write_segments(out / "segments.csv", _segments(stretches, names, confidence))
    _write_rttms(heard, labels, out)
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
    temperatures = encoder.info.get("temperatures") or (0.3, 0.3)
    return cluster_by(rule, encoder, voices, speakers, tuple(temperatures), seed, heard.conflicts())


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
        lines = rttm_lines(source.name.name, joined)
        text = "".join(lines).replace("<NA> <NA> s", "<NA> <NA> speaker_")
        write_text(out / source.name.with_name(f"{source.name.name}.rttm"), text)


def join_turns(turns: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return turns of one speaker with those joined that overlap or have hardly a pause between them."""
    joined: list[tuple[float, float]] = []
    for start, length in sorted(turns):
        if joined and start <= joined[-1][0] + joined[-1][1] + _PAUSE_SECONDS:
            first, before = joined[-1]
            joined[-1] = first, max(before, start + length - first)
        else:
            joined.append((start, length))
    return joined
