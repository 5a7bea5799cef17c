"""Measure and draw speaker encoders on collections with known speakers: what clusters come of, by each rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch

from sepkit.data import audio
from sepkit.data.segments import read_segments
from sepkit.errors import UserError
from sepkit.evaluation.clusters import clustering_scores
from sepkit.extras import is_installed, missing
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rule = Literal["embedding", "features", "gate", "posterior"]
"""embedding: k-means on embeddings. features: k-means on what the trunk gives. gate: k-means on MiCE's gate embeddings.
posterior: MiCE's own clusters."""

_RATE = 8000
_SCORES = ("nmi", "acc", "ari", "purity")
_FRAME_SECONDS, _LOUD_PERCENTILE, _BELOW_LOUD_DB = 0.02, 95, 20.0
# Of the figures.
_BINS, _PERPLEXITY = 10, 30.0


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
    """Return what an encoder makes of N waveforms, one by one.

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
        heard: What it makes of the segments, see `listen`.
        speakers: Number K of clusters; of the rule `posterior` the encoder's experts.
        seed: Seed of k-means.
    """
    if rule != "posterior":
        values = standardized(heard[rule]) if rule == "features" else heard[rule]
        return spherical_k_means(values, speakers, seed)
    posterior = posterior_of_experts(encoder, heard)
    labels, points = posterior.argmax(-1), unit_rows(heard["embedding"])
    centers = mean_directions(points, labels, np.zeros((posterior.shape[1], points.shape[1])))
    return Clusters(labels, centers, posterior)


@torch.inference_mode()
def posterior_of_experts(encoder: SpeakerEncoder, heard: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the posterior of MiCE's experts (equations 6 to 10) by the student alone, (N, K).

    The paper's has the teacher's view of the same segment in the numerator. A trained encoder keeps no teacher, so that
    view is the student's own, and its similarity with itself 1. All other segments stand in the place of the queue.

    Args:
        encoder: The encoder, which keeps the temperatures of its training.
        heard: What it makes of the segments, see `listen`.
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


# -------------------------------------------------------------------------------------------------------------- figures


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
        UserError: scikit-learn is not installed, or two models have one name.
    """
    from sepkit.reporting.figures import save_figure

    if not is_installed("sklearn"):
        raise UserError(missing("sklearn", "t-SNE"))
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
    from sklearn.manifold import TSNE

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
    from matplotlib.figure import Figure

    from sepkit.reporting.figures import COLORS

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
    from sepkit.reporting.figures import COLORS, panels

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
