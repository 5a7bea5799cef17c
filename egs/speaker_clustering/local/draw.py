"""Figures 2 to 5 of the MiCE paper: t-SNE of embeddings, posteriors of the experts, and sizes of clusters.

    draw.py COLLECTION OUT SEED MODEL ...    OUT/tsne.png and, of mixtures of experts, OUT/posteriors.png

COLLECTION is a folder that `sepkit prepare voices` wrote. A MODEL is a folder that `sepkit train --config
speaker_encoder` or `speaker_encoder_mice` wrote. Needs scikit-learn.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.manifold import TSNE

from sepkit.errors import UserError
from sepkit.evaluation.clusters import clustering_scores
from sepkit.models import load_checkpoint
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.reporting.figures import COLORS, panels, save_figure
from sepkit.studies.speaker_clustering.measures import (
    Collection,
    Rule,
    cluster_by,
    has_rule,
    listen,
    posterior_of_experts,
    read_collection,
)  # fmt: skip

_BINS, _PERPLEXITY = 10, 30.0


@dataclass
class Drawn:
    """What is drawn of an encoder on N segments of K speakers.

    Args:
        places: (N, 2), the embeddings by t-SNE: of the gate, or of the head of an encoder without one.
        labels: (N,) int, its clusters: by MiCE's experts, or else by k-means.
        accuracy: Accuracy of the clusters, %.
        posteriors: "untrained" and "trained" -> (N, K), of a mixture of experts.
    """

    places: np.ndarray
    labels: np.ndarray
    accuracy: float
    posteriors: dict[str, np.ndarray]


def draw(models: list[str], collection: Collection, out: Path, seed: int) -> list[Path]:
    """Write OUT/tsne.png and, if a model is a mixture of experts, OUT/posteriors.png; return their paths.

    These are figures 2 to 5 of the MiCE paper.

    Args:
        models: Folders of encoders.
        collection: Segments of known speakers.
        out: Folder of the figures.
        seed: Seed of t-SNE, of k-means and of the untrained weights.

    Raises:
        UserError: two models have one name.
    """
    names = {"/".join(Path(model).resolve().parts[-2:]): model for model in models}
    if len(names) < len(models):
        raise UserError(f"models: found {', '.join(models)}, expected different folders")
    drawn = {name: _drawn(model, collection, seed) for name, model in names.items()}
    speakers = np.unique(collection.speakers, return_inverse=True)[1]
    figures = {"tsne": tsne_figure(drawn, speakers)}
    if any(found.posteriors for found in drawn.values()):
        figures["posteriors"] = posterior_figure(drawn, np.bincount(speakers))
    return [save_figure(figure, out / f"{name}.png") for name, figure in figures.items()]


def _drawn(model: str, collection: Collection, seed: int) -> Drawn:
    encoder = load_checkpoint(model, of=SpeakerEncoder)
    waveforms, count = collection.at(encoder.sample_rate), len(set(collection.speakers))
    heard, posteriors = listen(encoder, waveforms), {}
    rule: Rule = "posterior" if has_rule("posterior", encoder, count) else "embedding"
    found = cluster_by(rule, encoder, heard, count, seed)
    if rule == "posterior":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            fresh = SpeakerEncoder(encoder.config).eval()
        fresh.info = encoder.info
        # The centers of a fixed gate are those of the training from its first step on.
        if encoder.centers is not None and fresh.centers is not None:
            fresh.centers.data.copy_(encoder.centers)
        posteriors["untrained"] = posterior_of_experts(fresh, listen(fresh, waveforms))
        posteriors["trained"] = found.posterior
    points = heard.get("gate", heard["embedding"])
    perplexity = min(_PERPLEXITY, (len(points) - 1) / 3)
    places = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    accuracy = 100 * clustering_scores(collection.speakers, found.labels.tolist())["acc"]
    return Drawn(places, found.labels, accuracy, posteriors)


def tsne_figure(drawn: Mapping[str, Drawn], speakers: np.ndarray) -> Figure:
    """Return a figure with a column for each encoder: colors are speakers (above) and clusters (below).

    Args:
        drawn: Encoder -> what is drawn.
        speakers: (N,) numbers of the speakers.
    """
    figure = Figure(figsize=(3.6 * len(drawn), 7.2), layout="constrained")
    grid = figure.subplots(2, len(drawn), squeeze=False)
    for column, (name, found) in zip(grid.T, drawn.items(), strict=True):
        for axes, labels, what in zip(column, (speakers, found.labels), ("speakers", "clusters"), strict=True):
            for label in np.unique(labels):
                # As many groups as there are colors are dots, the next ones triangles.
                marker, points = "o^s"[label // len(COLORS) % 3], found.places[labels == label].T
                axes.scatter(*points, s=9, color=COLORS[label % len(COLORS)], marker=marker, linewidths=0)
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"{name}, {what}" + f" ({found.accuracy:.1f} %)" * (what == "clusters"), fontsize=9)
    return figure


def posterior_figure(drawn: Mapping[str, Drawn], speakers: np.ndarray) -> Figure:
    """Return a figure with two panels for each mixture of experts: the histogram of its posterior probabilities before
    and after training, and how many segments each cluster has, the largest first, beside the speakers.

    Args:
        drawn: Encoder -> what is drawn.
        speakers: (K,) numbers of segments of each speaker.
    """
    mixtures = {name: found for name, found in drawn.items() if found.posteriors}
    figure = panels("", ["share of the probabilities", "stretches"] * len(mixtures))
    edges = np.linspace(0, 1, _BINS + 1)
    for place, (name, found) in enumerate(mixtures.items()):
        left, right = figure.axes[2 * place : 2 * place + 2]
        for shift, color, (stage, values) in zip((0.0, 0.5), COLORS, found.posteriors.items(), strict=False):
            shares = np.histogram(values, edges)[0] / values.size
            left.bar(edges[:-1] + (0.25 + shift) / _BINS, shares, 0.45 / _BINS, color=color, label=stage)
        left.set(xlabel=f"posterior probability ({name})", yscale="log", xlim=(0, 1))
        sizes = {"speakers": speakers, "clusters": np.bincount(found.labels, minlength=len(speakers))}
        for shift, color, (what, counts) in zip((-0.2, 0.2), (COLORS[2], COLORS[0]), sizes.items(), strict=True):
            right.bar(np.arange(len(counts)) + shift, np.sort(counts)[::-1], 0.4, color=color, label=what)
        right.set(xlabel=f"by size ({name})", xticks=[])
        for axes in (left, right):
            axes.legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    where, out, seed, *models = sys.argv[1:]
    for path in draw(models, read_collection(where), Path(out), int(seed)):
        print(path)
