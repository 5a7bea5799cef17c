"""What clusters come of: embeddings of an encoder, each of the rules of MiCE, or plain spectra to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from sepkit.inference.voices import (
    Clusters,
    mean_directions,
    spherical_k_means,
    unit_rows,
)
from sepkit.models.mel import mel_bands
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.objectives.contrastive import NOBODY, ContrastiveQueue, MixtureOfContrastiveExperts

Rule = Literal["embedding", "features", "gate", "posterior"]
"""embedding: k-means on embeddings. features: k-means on what the trunk gives. gate: k-means on MiCE's gate embeddings.
posterior: MiCE's own clusters."""

Baseline = Literal["mean_log_mel", "mean_mfcc"]

BASELINES: tuple[str, ...] = ("mean_log_mel", "mean_mfcc")
_BANDS, _CEPSTRA = 40, 20
_FRAME_SECONDS, _HOP_SECONDS, _LOWEST_HZ = 0.032, 0.01, 60.0


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
    """Return what an encoder says of waveforms, one by one.

    Args:
        encoder: of voices.
        waveforms: (T,) each, at its rate.
    """
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
    rule: Rule,
    encoder: SpeakerEncoder,
    voices: Voices,
    speakers: int,
    temperatures: tuple[float, float],
    seed: int = 0,
    blend: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Clusters:
    """Return the clusters that a rule finds.

    Args:
        rule: see `Rule`.
        encoder: that heard the stretches.
        voices: what it said.
        speakers: K; of the rule `posterior` the encoder's experts.
        temperatures: tau and kappa of the encoder's training, for `posterior`.
        seed: of k-means.
        blend: adds to what is heard of a stretch what is heard of its neighbors; `posterior` does not use it.
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
    return spherical_k_means(values if blend is None else blend(values), speakers, seed)


@torch.inference_mode()
def posterior_of_experts(
    encoder: SpeakerEncoder, voices: Voices, temperature: float, gate_temperature: float
) -> np.ndarray:
    """Return MiCE's posterior, with all other stretches in the place of the queue (equations 6 to 10), (N, K).

    Args:
        encoder: with K experts.
        voices: what the encoder says of N stretches.
        temperature: of the experts.
        gate_temperature: of the gate.
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


def standardized(values: np.ndarray) -> np.ndarray:
    """Return columns with mean 0 and deviation 1 over the rows.

    Args:
        values: (N, D).
    """
    deviation = values.std(0)
    return (values - values.mean(0)) / np.where(deviation > 0, deviation, 1.0)


def plain_features(kind: str, waveforms: Iterable[np.ndarray], sample_rate: int) -> np.ndarray:
    """Return standardized means over time of the log mel spectrum, or of mel cepstra, of each waveform, (N, D).

    Args:
        kind: of `BASELINES`: "mean_mfcc" for cepstra, "mean_log_mel" for the spectrum.
        waveforms: (T,) each.
        sample_rate: Hz.
    """
    from scipy.fft import dct

    frame, hop = round(_FRAME_SECONDS * sample_rate), round(_HOP_SECONDS * sample_rate)
    bands = mel_bands(frame, sample_rate, _BANDS, _LOWEST_HZ)
    rows = []
    for waveform in waveforms:
        padded = np.pad(waveform, (0, max(0, frame - len(waveform)))).astype(np.float64)
        frames = np.lib.stride_tricks.sliding_window_view(padded, frame)[::hop] * np.hanning(frame)
        power = np.square(np.abs(np.fft.rfft(frames, axis=-1))) @ bands.T
        logs = np.log(power + 1e-6 * power.max() + 1e-20)
        rows.append(
            (np.asarray(dct(logs, axis=-1, norm="ortho"))[:, 1 : _CEPSTRA + 1] if kind == "mean_mfcc" else logs).mean(0)
        )
    return standardized(np.array(rows))


__all__ = ["BASELINES", "Baseline", "Rule", "Voices", "cluster_by", "listen", "plain_features"]
