"""Fit the projection of an encoder of voices: linear discriminant analysis without labels of speakers.

What it is: embeddings, together with mean and deviation over time of the spectrum, are mapped to directions in which
recordings differ much and segments of one recording little. How collections differ from each other (noise, separation,
another corpus) tells nothing of voices; it counts as a difference within recordings.
Source: linear discriminant analysis (Fisher 1936) with the within-class covariance of Hatch et al., "Within-class
covariance normalization for SVM-based speaker recognition", 2006, and nuisance attribute projection (Solomonoff et al.,
"Advances in channel compensation for SVM speaker recognition", 2005) as a penalty.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sepkit.errors import Bounds, UserError
from sepkit.inference.diarization.clustering import in_order_of_appearance
from sepkit.models import load_checkpoint
from sepkit.models.published.shipped import encoder_folder
from sepkit.models.speaker_encoder import SpeakerEncoder, beside_spectra
from sepkit.models.storage.checkpoints import save_model
from sepkit.studies.speaker_clustering.measures import read_collection

_SHRINKAGE = 0.1
_DOMAIN_WEIGHT = 10.0
_TINY = 1e-9


def project_encoder(
    model: str, collections: Sequence[str | Path], domains: Sequence[str], dimensions: int, out: str | Path
) -> Path:
    """Write an encoder with a projection that is fitted to collections, and return its folder.

    Args:
        model: Folder of an encoder with one head, or one that ships.
        collections: Folders of collections; each is a domain.
        domains: Regular expressions: recordings whose speaker matches one are a domain of their own.
        dimensions: Number of dimensions of the new embeddings.
        out: Folder of the new encoder.

    Raises:
        UserError: more dimensions than there are to map.
    """
    before = load_checkpoint(encoder_folder(model), of=SpeakerEncoder)
    inputs = before.config.dimensions + 2 * before.config.bands
    Bounds(ge=1, le=inputs, note=", what there is to map").check("--dimensions", dimensions)
    encoder = SpeakerEncoder(replace(before.config, projected=dimensions))
    encoder.load_state_dict({k: v for k, v in before.state_dict().items() if not k.startswith("projection")}, False)
    encoder.eval()
    values, recordings, own_domains = [], [], []
    for number, folder in enumerate(collections):
        collection = read_collection(folder)
        values.append(_inputs(encoder, collection.at(encoder.sample_rate)))
        recordings += [(number, int(utterance)) for utterance in collection.utterances]
        own_domains += [(number, *(bool(re.search(d, speaker)) for d in domains)) for speaker in collection.speakers]
    mean, directions = discriminants(np.concatenate(values), recordings, own_domains, dimensions)
    assert encoder.projection is not None
    with torch.no_grad():
        encoder.projection.weight.copy_(torch.from_numpy(directions.T))
        encoder.projection.bias.copy_(torch.from_numpy(-mean @ directions))
    # Thresholds of other embeddings mean nothing for these.
    info = {name: value for name, value in before.info.items() if name != "enrollment"}
    return save_model(encoder, Path(out), info | {"rule": "embedding"})


@torch.inference_mode()
def _inputs(encoder: SpeakerEncoder, waveforms: Sequence[np.ndarray]) -> np.ndarray:
    rows = []
    for waveform in waveforms:
        spectra = encoder.log_mel(torch.from_numpy(np.ascontiguousarray(waveform))[None])
        rows.append(beside_spectra(encoder.embed_features(encoder.features(spectra)), spectra)[0].double().numpy())
    return np.stack(rows)


def discriminants(
    values: np.ndarray, classes: Sequence[Any], domains: Sequence[Any], dimensions: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (C,) and the directions (C, P) along which classes differ most, at unit spread within them.

    Differences between the means of domains count as spread within classes.

    Args:
        values: (N, C) embeddings.
        classes: Class of each.
        domains: Domain of each.
        dimensions: Number P of directions.

    Raises:
        UserError: no class has two members.
    """
    mean = values.mean(0)
    inside = values - _means_of(values, classes)
    counts = np.unique(in_order_of_appearance(classes), return_counts=True)[1]
    degrees = int((counts - 1).sum())
    if not degrees:
        raise UserError("found no recording with two segments of speech, expected many; give longer recordings")
    within = inside.T @ inside / degrees
    within = (1 - _SHRINKAGE) * within + _SHRINKAGE * np.diag(np.diag(within))
    means = _means_of(values, domains)
    places = np.unique(in_order_of_appearance(domains), return_index=True)[1]
    between = means[places] - means[places].mean(0)
    spread, axes = np.linalg.eigh(within + _DOMAIN_WEIGHT * between.T @ between / len(places))
    whitening = axes / np.sqrt(spread + _TINY)
    centered = (values - means) @ whitening
    spread, axes = np.linalg.eigh(centered.T @ centered / len(values))
    return mean, whitening @ axes[:, np.argsort(-spread)[:dimensions]]


def _means_of(values: np.ndarray, groups: Sequence[Any]) -> np.ndarray:
    numbers = np.array(in_order_of_appearance(groups))
    sums = np.zeros((numbers.max() + 1, values.shape[1]))
    np.add.at(sums, numbers, values)
    return (sums / np.bincount(numbers)[:, None])[numbers]
