"""Where MiCE starts if an encoder is there already: at the clusters that k-means finds with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sepkit.errors import UserError
from sepkit.inference.voices import mean_directions, spherical_k_means
from sepkit.models import load_checkpoint
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.studies.clustering.data import Stretches

_VIEWS_OF_EACH = 4


@torch.no_grad()
def start_from_clusters(model: SpeakerEncoder, source: str | Path, stretches: Stretches, seed: int) -> None:
    """Set heads, prototypes and gate of MiCE so that its clusters are those of k-means with another encoder.

    Clusters are of embeddings. If the other encoder has a projection, they are projected ones, which tell speakers
    better; the trained model has none, as its embeddings move away from those that the projection was fitted to. Every
    head is the other encoder's. Prototypes are the mean directions of clusters in what the head gives. The gate's head
    is the encoder's, minus its mean output, rotated so that cluster k lies as near omega_k as a rotation can bring it
    (orthogonal Procrustes): centers of the gate add up to zero, but all embeddings have much in common.

    Args:
        model: MiCE's, with trunk and norm of the other encoder already.
        source: folder of an encoder with one head, of the same dimensions.
        stretches: of the training, from which clusters are found.
        seed: of k-means.

    Raises:
        UserError: an encoder with several heads or other dimensions, or fewer stretches than clusters.
    """
    other = load_checkpoint(source, of=SpeakerEncoder)
    if other.config.experts != 1 or other.heads.weight.shape[1:] != model.heads.weight.shape[1:]:
        raise UserError(f"{source}: expected an encoder with one head and the same trunk, such as MoCo's")
    if other.config.dimensions != model.config.dimensions:
        found, wanted = other.config.dimensions, model.config.dimensions
        raise UserError(f"{source}: found embeddings of {found} dimensions, expected {wanted}, as model.dimensions")
    outputs, embeddings = head_outputs(other, stretches)
    clusters = model.config.experts
    if clusters > len(outputs):
        raise UserError(f"model.experts: found {clusters} for {len(outputs)} stretches, expected at most as many")
    found = spherical_k_means(embeddings.double().numpy(), clusters, seed)
    directions = functional.normalize(outputs, dim=-1).double().numpy()
    centers = torch.from_numpy(mean_directions(directions, found.labels, directions[:clusters])).float()
    heads = 1 if model.config.one_head else clusters
    model.heads.weight.copy_(other.heads.weight.repeat(heads, 1))
    model.heads.bias.copy_(other.heads.bias.repeat(heads))
    if model.prototypes is not None:
        model.prototypes.copy_(centers)
    gate_centers = model.unit_centers()
    if model.gate is not None and gate_centers is not None:
        labels, mean = torch.from_numpy(found.labels), outputs.mean(0)
        places = [outputs[labels == k].mean(0) - mean if (labels == k).any() else centers[k] for k in range(clusters)]
        rotation = procrustes(functional.normalize(torch.stack(places), dim=-1), gate_centers)
        model.gate.weight.copy_(rotation.T @ other.heads.weight)
        model.gate.bias.copy_(rotation.T @ (other.heads.bias - mean))


def head_outputs(encoder: SpeakerEncoder, stretches: Stretches) -> tuple[Tensor, Tensor]:
    """Return mean outputs of an encoder's head, and embeddings, over some crops of each stretch as it is, (N, D) each.

    Args:
        encoder: of voices.
        stretches: N of them.
    """
    length = round(stretches.config.views.crop_seconds * stretches.sample_rate)
    outputs, embeddings = [], []
    for waveform in stretches.waveforms:
        starts = np.linspace(0, max(0, len(waveform) - length), _VIEWS_OF_EACH).astype(int)
        crops = [np.resize(waveform[start : start + length], length) for start in starts]
        waveforms = torch.from_numpy(np.stack(crops).astype(np.float32) / 32767)
        spectra = encoder.log_mel(waveforms)
        features = encoder.features(spectra)
        outputs.append(encoder.heads(features).mean(0))
        embeddings.append(encoder.project(encoder.embed_features(features), spectra).mean(0))
    means = torch.stack(outputs)
    return means, torch.stack(embeddings) if encoder.projection is not None else functional.normalize(means, dim=-1)


def procrustes(points: Tensor, targets: Tensor) -> Tensor:
    """Return the orthogonal R that minimizes |points R - targets|, (D, D).

    Args:
        points: (K, D).
        targets: (K, D).
    """
    left, _, right = torch.linalg.svd(points.T @ targets)
    return left @ right
