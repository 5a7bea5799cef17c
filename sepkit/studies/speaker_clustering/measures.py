"""Measure speaker encoders on collections with known speakers, by each rule of clustering."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from sepkit.data import audio
from sepkit.data.segments import read_segments
from sepkit.errors import UserError
from sepkit.evaluation.clusters import clustering_scores
from sepkit.files import read_json
from sepkit.inference.diarization.clustering import Clusters, mean_directions, spherical_k_means, unit_rows
from sepkit.inference.diarization.segments import WINDOW_SECONDS
from sepkit.inference.diarization.spectra import BASELINES, mean_spectra, standardized
from sepkit.models import load_checkpoint
from sepkit.models.published.shipped import encoder_folder
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.reporting.tables import Table, mean_and_deviation
from sepkit.signals import active_frames, frame_powers
from sepkit.studies.speaker_clustering.losses import ContrastiveQueue, mixture_loss

Rule = Literal["embedding", "features", "gate", "posterior"]
"""embedding: k-means on embeddings. features: k-means on the trunk's output. gate: k-means on MiCE's gate embeddings.
posterior: MiCE's own clusters."""

_RATE = 8000
_SCORES = ("nmi", "acc", "ari", "purity")
_FRAME_SECONDS, _LOUD_PERCENTILE, _BELOW_LOUD_DB = 0.02, 95, 20.0


@dataclass
class Collection:
    """Segments of 1.5 s of speech of known speakers.

    Args:
        speakers: Speaker of each of N segments.
        waveforms: Samples of each, (T,), at 8 kHz.
    """

    speakers: list[str]
    waveforms: list[np.ndarray]

    def at(self, sample_rate: int) -> list[np.ndarray]:
        """Return the samples of each segment at a rate, (T,) each."""
        return [audio.resample(waveform, _RATE, sample_rate) for waveform in self.waveforms]


def read_collection(table: str | Path) -> Collection:
    """Return the segments of the utterances of a CSV file with speakers, or of a folder's voices.csv."""
    table = Path(table)
    table = table / "voices.csv" if table.is_dir() else table
    speakers: list[str] = []
    waveforms: list[np.ndarray] = []
    for row in read_segments(table):
        if row.speaker is None:
            raise UserError(f"{table}: {row.path} has no speaker, expected one for each recording")
        segments = cut_speech(audio.read(table.parent / row.path, sample_rate=_RATE), _RATE)
        speakers += [row.speaker] * len(segments)
        waveforms += segments
    if not waveforms:
        raise UserError(f"{table}: nothing is heard in its recordings")
    return Collection(speakers, waveforms)


def cut_speech(waveform: np.ndarray, sample_rate: int) -> list[np.ndarray]:
    """Return segments of 1.5 s of speech, without frames 20 dB below the loud ones and without a short rest."""
    frame, length = round(_FRAME_SECONDS * sample_rate), round(WINDOW_SECONDS * sample_rate)
    frames = waveform[: len(waveform) // frame * frame].reshape(-1, frame)
    # Less far down than for estimates, because these recordings have rooms and noise.
    speech = frames[active_frames(frame_powers(waveform, frame), _BELOW_LOUD_DB, _LOUD_PERCENTILE)].reshape(-1)
    parts = [speech[start : start + length] for start in range(0, len(speech), length)]
    return [part for part in parts if len(part) >= length / 2]


def score_encoder(model: str, collection: Collection, seeds: int = 3) -> dict[str, Any]:
    """Return NMI, ACC, ARI and purity, %, of each rule that the encoder has, their number of speakers known.

    Args:
        model: Folder of an encoder, name of one that ships, or name of a baseline (mean_mfcc, mean_log_mel).
        collection: Segments of known speakers.
        seeds: Number of seeds of k-means, whose mean counts.
    """
    count = len(set(collection.speakers))
    if model in BASELINES:
        values = mean_spectra(model, collection.waveforms, _RATE)
        found = {"embedding": [spherical_k_means(values, count, seed) for seed in range(seeds)]}
    else:
        encoder = load_checkpoint(encoder_folder(model), of=SpeakerEncoder)
        heard = listen(encoder, collection.at(encoder.sample_rate))
        found = {
            rule: [cluster_by(rule, encoder, heard, count, seed) for seed in range(1 if rule == "posterior" else seeds)]
            for rule in get_args(Rule)
            if has_rule(rule, encoder, count)
        }
    rows = {}
    for rule, results in found.items():
        scores = [clustering_scores(collection.speakers, result.labels.tolist()) for result in results]
        rows[rule] = {name: 100 * float(np.mean([s[name] for s in scores])) for name in _SCORES}
    return {"model": model, "stretches": len(collection.speakers), "speakers": count, "rules": rows}


def has_rule(rule: Rule, encoder: SpeakerEncoder, count: int) -> bool:
    """Return whether a rule finds `count` clusters by an encoder."""
    if rule == "gate":
        return encoder.gate is not None
    if rule == "posterior":
        return encoder.config.gate != "none" and encoder.config.experts == count
    return rule == "features" or encoder.config.experts == 1 or encoder.config.one_head


def table_of(files: Sequence[str | Path]) -> str:
    """Return a Markdown table of scores: a row for each method and rule, mean and deviation over files.

    Args:
        files: Files that `sepkit voices score` wrote, METHOD/RUN.json.
    """
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for file in files:
        for rule, scores in read_json(file, "score the encoder again")["rules"].items():
            groups.setdefault((Path(file).parent.name, rule), []).append(scores)
    rows = [
        [method, rule, *(mean_and_deviation([one[name] for one in found], 1) for name in _SCORES[:3]), len(found)]
        for (method, rule), found in groups.items()
    ]
    return Table(["method", "clusters from", "NMI", "ACC", "ARI", "runs"], rows).markdown(words=(0, 1))


@torch.inference_mode()
def listen(encoder: SpeakerEncoder, waveforms: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Return an encoder's outputs for N waveforms, one by one.

    Args:
        encoder: The encoder.
        waveforms: Samples, (T,) each, at the encoder's rate.

    Returns:
        `embedding` (N, D), `features` (N, C) of the trunk, `experts` (N, H, D), and of an encoder with a gate `gate`
        (N, D).
    """
    rows: dict[str, list[np.ndarray]] = {}
    for waveform in waveforms:
        trunk = encoder.features(encoder.log_mel(torch.from_numpy(np.ascontiguousarray(waveform))[None]))
        made = {
            "embedding": encoder.embed_features(trunk),
            "features": trunk,
            "experts": encoder.expert_embeddings(trunk),
            "gate": encoder.gate_embedding(trunk),
        }
        for name, values in made.items():
            if values is not None:
                rows.setdefault(name, []).append(values[0].numpy())
    return {name: np.array(values) for name, values in rows.items()}


def cluster_by(
    rule: Rule, encoder: SpeakerEncoder, heard: Mapping[str, np.ndarray], speakers: int, seed: int = 0
) -> Clusters:
    """Return the clusters that a rule finds.

    Args:
        rule: The rule.
        encoder: The encoder.
        heard: Embeddings of the segments, see `listen`.
        speakers: Number K of clusters; of the rule `posterior` the encoder's experts.
        seed: Seed of k-means.
    """
    if rule != "posterior":
        values = standardized(heard[rule]) if rule == "features" else heard[rule]
        return spherical_k_means(values, speakers, seed)
    posterior = posterior_of_experts(encoder, heard)
    labels, points = posterior.argmax(-1), unit_rows(heard["embedding"])
    return Clusters(labels, mean_directions(points, labels, np.zeros((posterior.shape[1], points.shape[1]))), posterior)


@torch.inference_mode()
def posterior_of_experts(encoder: SpeakerEncoder, heard: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the posterior of MiCE's experts (equations 6 to 10) by the student alone, (N, K).

    The paper's has the teacher's view of the same segment in the numerator. A trained encoder keeps no teacher, so that
    view is the student's own, and its similarity with itself 1. All other segments stand in the place of the queue.

    Args:
        encoder: The encoder, which keeps the temperatures of its training.
        heard: Embeddings of the segments, see `listen`.
    """
    experts, gate = torch.from_numpy(heard["experts"]), heard.get("gate")
    queue, numbers = ContrastiveQueue(*experts.shape), torch.arange(len(experts))
    queue.add(experts, numbers)
    return mixture_loss(
        experts,
        experts,
        queue,
        numbers,
        encoder.info.get("temperatures") or (0.3, 0.3),
        None if gate is None else torch.from_numpy(gate),
        encoder.unit_centers(),
        encoder.unit_prototypes(),
    ).posterior.numpy()
