"""Measure speaker encoders on collections with known speakers: what clusters come of, by each rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sepkit.cleaning import escaped
from sepkit.data import audio
from sepkit.data.segments import read_segments
from sepkit.errors import UserError
from sepkit.evaluation.clusters import clustering_scores
from sepkit.files import read_json
from sepkit.inference.diarization.baselines import BASELINES, mean_spectra, standardized
from sepkit.inference.diarization.clustering import Clusters, mean_directions, spherical_k_means, unit_rows
from sepkit.inference.diarization.segments import WINDOW_SECONDS
from sepkit.models import load_checkpoint
from sepkit.models.published.shipped import encoder_folder
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.signals import active_frames, frame_powers
from sepkit.studies.speaker_clustering.contrastive import NOBODY, ContrastiveQueue, MixtureOfContrastiveExperts

Rule = Literal["embedding", "features", "gate", "posterior"]
"""embedding: k-means on embeddings. features: k-means on what the trunk gives. gate: k-means on MiCE's gate embeddings.
posterior: MiCE's own clusters."""

_SEEDS = 3
_RULES = ("embedding", "features", "gate", "posterior")
_RATE = 8000
_FRAME_SECONDS, _LOUD_PERCENTILE, _BELOW_LOUD_DB = 0.02, 95, 20.0


@dataclass
class Collection:
    """Segments of 1.5 s of speech of known speakers at 8 kHz, each with the number of its utterance."""

    speakers: list[str]
    utterances: np.ndarray
    waveforms: list[np.ndarray]

    @property
    def seconds(self) -> np.ndarray:
        """(N,) lengths."""
        return np.array([len(waveform) / _RATE for waveform in self.waveforms])

    def at(self, sample_rate: int) -> list[np.ndarray]:
        """Return the samples of each segment at a rate, (T,) each."""
        return [audio.resample(waveform, _RATE, sample_rate) for waveform in self.waveforms]


def read_collection(table: str | Path) -> Collection:
    """Return the segments of the utterances of a CSV file with speakers, or of a folder's voices.csv."""
    table = Path(table)
    table = table / "voices.csv" if table.is_dir() else table
    speakers: list[str] = []
    utterances: list[int] = []
    waveforms: list[np.ndarray] = []
    for number, row in enumerate(read_segments(table)):
        if row.speaker is None:
            raise UserError(f"{table}: {row.path} has no speaker, expected one for each recording")
        segments = cut_speech(audio.read(table.parent / row.path, sample_rate=_RATE), _RATE)
        speakers += [row.speaker] * len(segments)
        utterances += [number] * len(segments)
        waveforms += segments
    if not waveforms:
        raise UserError(f"{table}: nothing is heard in its recordings")
    return Collection(speakers, np.array(utterances), waveforms)


def cut_speech(waveform: np.ndarray, sample_rate: int) -> list[np.ndarray]:
    """Return segments of 1.5 s of speech, without frames 20 dB below the loud ones and without a short rest."""
    frame, length = round(_FRAME_SECONDS * sample_rate), round(WINDOW_SECONDS * sample_rate)
    frames = waveform[: len(waveform) // frame * frame].reshape(-1, frame)
    # Less far down than for estimates, because these recordings have rooms and noise.
    speech = frames[active_frames(frame_powers(waveform, frame), _BELOW_LOUD_DB, _LOUD_PERCENTILE)].reshape(-1)
    parts = [speech[start : start + length] for start in range(0, len(speech), length)]
    return [part for part in parts if len(part) >= length / 2]


def score_encoder(model: str, collection: Collection, seeds: int = _SEEDS) -> dict[str, Any]:
    """Return NMI, ACC, ARI and purity, %, of each rule that the encoder has, their number of speakers known."""
    count = len(set(collection.speakers))
    if model in BASELINES:
        values = mean_spectra(model, collection.waveforms, _RATE)
        found = {"embedding": [spherical_k_means(values, count, seed) for seed in range(seeds)]}
    else:
        encoder = load_checkpoint(encoder_folder(model), of=SpeakerEncoder)
        voices = listen(encoder, collection.at(encoder.sample_rate))
        tau, kappa = encoder.info.get("temperatures") or (0.3, 0.3)
        rules = [rule for rule in _RULES if has_rule(rule, encoder, count)]
        found = {
            rule: [
                cluster_by(rule, encoder, voices, count, (tau, kappa), seed)  # type: ignore[arg-type]
                for seed in range(1 if rule == "posterior" else seeds)
            ]
            for rule in rules
        }
    rows = {}
    for rule, results in found.items():
        scores = [clustering_scores(collection.speakers, result.labels.tolist()) for result in results]
        rows[rule] = {name: 100 * float(np.mean([s[name] for s in scores])) for name in ("nmi", "acc", "ari", "purity")}
    return {"model": model, "stretches": len(collection.speakers), "speakers": count, "rules": rows}


def has_rule(rule: str, encoder: SpeakerEncoder, count: int) -> bool:
    """Return whether a rule finds `count` clusters by an encoder."""
    if rule == "gate":
        return encoder.gate is not None
    if rule == "posterior":
        return encoder.config.gate != "none" and encoder.config.experts == count
    return rule != "embedding" or encoder.config.experts == 1 or encoder.config.one_head


def table_of(files: Sequence[str | Path]) -> str:
    """Return a Markdown table of scores: a row for each method, a file's folder, and rule, mean and deviation over
    files."""
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for file in files:
        result = read_json(file, "score the encoder again")
        for rule, scores in result["rules"].items():
            groups.setdefault((Path(file).parent.name, rule), []).append(scores)
    lines = ["| method | clusters from | NMI | ACC | ARI | runs |", "|---|---|---|---|---|---|"]
    for (method, rule), rows in groups.items():
        cells = []
        for name in ("nmi", "acc", "ari"):
            values = [row[name] for row in rows]
            spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.1f}{spread}")
        lines.append(f"| {escaped(method)} | {escaped(rule)} | {' | '.join(cells)} | {len(rows)} |")
    return "\n".join(lines) + "\n"


@dataclass
class Voices:
    """What an encoder says of N stretches.

    Args:
        embeddings: (N, D).
        features: (N, C).
        experts: (N, H, D).
        gate: (N, D); None without a gate.
    """

    embeddings: np.ndarray
    features: np.ndarray
    experts: np.ndarray
    gate: np.ndarray | None


@torch.inference_mode()
def listen(encoder: SpeakerEncoder, waveforms: Iterable[np.ndarray]) -> Voices:
    """Return what an encoder says of waveforms, one by one."""
    embeddings, features, experts, gates = [], [], [], []
    for waveform in waveforms:
        spectra = encoder.log_mel(torch.from_numpy(np.ascontiguousarray(waveform))[None])
        trunk = encoder.features(spectra)
        features.append(trunk[0].numpy())
        experts.append(encoder.expert_embeddings(trunk)[0].numpy())
        embeddings.append(encoder.project(encoder.embed_features(trunk), spectra)[0].numpy())
        gate = encoder.gate_embedding(trunk)
        if gate is not None:
            gates.append(gate[0].numpy())
    return Voices(np.array(embeddings), np.array(features), np.array(experts), np.array(gates) if len(gates) else None)


def cluster_by(
    rule: Rule, encoder: SpeakerEncoder, voices: Voices, speakers: int, temperatures: tuple[float, float], seed: int = 0
) -> Clusters:
    """Return the clusters that a rule finds.

    Args:
        speakers: K; of the rule `posterior` the encoder's experts.
        temperatures: tau and kappa of the encoder's training, for `posterior`.
    """
    if rule == "posterior":
        posterior = posterior_of_experts(encoder, voices, *temperatures)
        labels = posterior.argmax(-1)
        points = unit_rows(voices.embeddings)
        centers = mean_directions(points, labels, np.zeros((posterior.shape[1], points.shape[1])))
        return Clusters(labels, centers, posterior)
    values = {"embedding": voices.embeddings, "features": voices.features, "gate": voices.gate}[rule]
    assert values is not None
    if rule == "features":
        values = standardized(values)
    return spherical_k_means(values, speakers, seed)


@torch.inference_mode()
def posterior_of_experts(
    encoder: SpeakerEncoder, voices: Voices, temperature: float, gate_temperature: float
) -> np.ndarray:
    """Return the posterior of MiCE's experts (equations 6 to 10) by the student alone, (N, K).

    The paper's has the teacher's view of the same stretch in the numerator. A trained encoder keeps no teacher, so that
    view is the student's own, and its similarity with itself 1. All other stretches stand in the place of the queue.
    """
    experts = torch.from_numpy(voices.experts)
    count, heads, dimensions = experts.shape
    queue = ContrastiveQueue(max(1, count), heads, dimensions)
    numbers = torch.arange(count)
    queue.add(experts, numbers)
    assert NOBODY not in queue.instances.tolist()
    mixture = MixtureOfContrastiveExperts(temperature, gate_temperature)(
        experts,
        experts,
        queue,
        numbers,
        None if voices.gate is None else torch.from_numpy(voices.gate),
        encoder.unit_centers(),
        encoder.unit_prototypes(),
    )
    return mixture.posterior.numpy()
