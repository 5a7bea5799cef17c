"""Which person each estimate of a chunk sounds like, by an encoder of voices.

What it is: the turns of a chunk's estimates are embedded as `sepkit.inference.linking` embeds those of a recording, and
all estimates of all chunks are clustered by the same k-means, into as many people as there are estimates. Estimates of
one chunk are different people.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sepkit.data import audio
from sepkit.data.activity import ActivityMeter
from sepkit.inference.stretches import cut_turns, embed
from sepkit.inference.voices import spherical_k_means
from sepkit.models.speaker_encoder import SpeakerEncoder


def embed_chunk(estimates: np.ndarray, sample_rate: int, encoder: SpeakerEncoder) -> np.ndarray:
    """Return the sum of the embeddings of each estimate's turns, weighted by their seconds, (n, D); silent: zeros.

    Args:
        estimates: (n, T) of one chunk.
        sample_rate: Hz.
        encoder: of voices.
    """
    meter = ActivityMeter(len(estimates), sample_rate)
    meter.add(estimates)
    stretches, _ = cut_turns(meter.segments())
    waveforms = []
    for stretch in stretches:
        first = round(stretch.start_seconds * sample_rate)
        samples = estimates[stretch.track, first : first + max(1, round(stretch.duration_seconds * sample_rate))]
        waveforms.append(audio.resample(samples, sample_rate, encoder.sample_rate))
    embeddings = embed(encoder, waveforms)
    sums = np.zeros((len(estimates), embeddings.shape[1]))
    for stretch, embedding in zip(stretches, embeddings, strict=True):
        sums[stretch.track] += stretch.duration_seconds * embedding
    return sums


def people_of(chunks: Sequence[np.ndarray], seed: int = 0) -> np.ndarray:
    """Return (K, n, n) nats, [k, i, j] of estimate i of chunk k being person j; 0 where nothing is heard.

    Args:
        chunks: results of `embed_chunk`, (n, D) each.
        seed: of k-means.
    """
    values = np.stack(chunks)
    count, people, _ = values.shape
    nats = np.zeros((count, people, people))
    heard = np.linalg.norm(values, axis=-1) > 0
    places = np.argwhere(heard)
    if len(places) < people:
        return nats
    conflicts: list[list[int]] = []
    first = 0
    for together in heard.sum(1).tolist():
        numbers = range(first, first + together)
        conflicts += [[other for other in numbers if other != own] for own in numbers]
        first += together
    found = spherical_k_means(values[heard], people, seed, conflicts)
    nats[places[:, 0], places[:, 1]] = np.log(np.maximum(found.posterior, np.finfo(np.float64).tiny))
    return nats
