"""Measure encoders of voices on collections with known speakers: each rule's clusters, and the count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.data.segments import read_segments
from sepkit.errors import UserError
from sepkit.evaluation.clustering import clustering_scores
from sepkit.evaluation.diarization import read_rttm
from sepkit.files import read_json, write_json
from sepkit.inference.stretches import WINDOW_SECONDS, Stretch, blend_turns
from sepkit.inference.voices import VoiceTree, spherical_k_means
from sepkit.models import load_checkpoint
from sepkit.models.checkpoints import save_model
from sepkit.models.shipped import encoder_folder
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.studies.clustering.hearing import hear
from sepkit.studies.clustering.measures import BASELINES, cluster_by, listen, plain_features

_RESTARTS_SEEDS = 3
_RULES = ("embedding", "features", "gate", "posterior")
_THRESHOLDS = np.round(np.arange(0.05, 1.2, 0.025), 3)
_RATE = 8000
_FRAME_SECONDS, _LOUD_PERCENTILE, _BELOW_LOUD_DB = 0.02, 95, 20.0


@dataclass
class Collection:
    """Segments of 1.5 s of speech of known speakers.

    Args:
        speakers: (N,) who speaks in each.
        utterances: (N,) number of the utterance that it is a part of.
        waveforms: of each, at 8 kHz.
    """

    speakers: list[str]
    utterances: np.ndarray
    waveforms: list[np.ndarray]

    @property
    def seconds(self) -> np.ndarray:
        """(N,) lengths."""
        return np.array([len(waveform) / _RATE for waveform in self.waveforms])

    def at(self, sample_rate: int) -> list[np.ndarray]:
        """Return the samples of each segment at a rate, (T,) each.

        Args:
            sample_rate: Hz.
        """
        return [audio.resample(waveform, _RATE, sample_rate) for waveform in self.waveforms]


def read_collection(table: str | Path) -> Collection:
    """Return the segments of the utterances of a table with speakers.

    Args:
        table: CSV file, or the folder of voices.csv.

    Raises:
        UserError: an unreadable table, without speakers, or a recording that cannot be read.
    """
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
    """Return segments of 1.5 s of speech, without frames 20 dB below the loud ones and without a short rest.

    Args:
        waveform: (T,).
        sample_rate: Hz.
    """
    frame, length = round(_FRAME_SECONDS * sample_rate), round(WINDOW_SECONDS * sample_rate)
    frames = waveform[: len(waveform) // frame * frame].reshape(-1, frame)
    energies = np.square(frames, dtype=np.float64).sum(1)
    if not len(frames) or not energies.max() > 0:
        return []
    loud = energies > np.percentile(energies, _LOUD_PERCENTILE) * 10 ** (-_BELOW_LOUD_DB / 10)
    speech = frames[loud].reshape(-1)
    parts = [speech[start : start + length] for start in range(0, len(speech), length)]
    return [part for part in parts if len(part) >= length / 2]


def score_encoder(model: str, collection: Collection, seeds: int = _RESTARTS_SEEDS) -> dict[str, Any]:
    """Return NMI, ACC, ARI and purity, %, of each rule that the encoder has, their number of speakers known.

    Args:
        model: folder of an encoder, a name of one that ships, mean_mfcc or mean_log_mel.
        collection: with known speakers.
        seeds: of k-means, whose mean counts.
    """
    count = len(set(collection.speakers))
    if model in BASELINES:
        values = plain_features(model, collection.waveforms, _RATE)
        found = {"embedding": [spherical_k_means(values, count, seed) for seed in range(seeds)]}
    else:
        encoder = load_checkpoint(encoder_folder(model), of=SpeakerEncoder)
        voices = listen(encoder, collection.at(encoder.sample_rate))
        tau, kappa = encoder.info.get("temperatures") or (0.3, 0.3)
        rules = [rule for rule in _RULES if _has(rule, encoder, count)]
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


def _has(rule: str, encoder: SpeakerEncoder, count: int) -> bool:
    if rule == "gate":
        return encoder.gate is not None
    if rule == "posterior":
        return encoder.config.gate != "none" and encoder.config.experts == count
    return rule != "embedding" or encoder.config.experts == 1 or encoder.config.one_head


# -------------------------------------------------------------------------------------------------------------- counts


@dataclass(frozen=True)
class CountOptions:
    """Collections to count in.

    Args:
        collections: how many are drawn.
        most: speakers of a collection, from 1 to this, each as often.
        seconds: range of the speech of each speaker.
        seed: of the draws.
    """

    collections: int = 100
    most: int = 10
    seconds: tuple[float, float] = (20.0, 60.0)
    seed: int = 0


def draw_collections(collection: Collection, options: CountOptions) -> list[np.ndarray]:
    """Return the numbers of the stretches of each drawn collection: whole utterances until the seconds are full.

    Args:
        collection: from which stretches are drawn.
        options: how many collections, of how many speakers and seconds.
    """
    generator = np.random.default_rng(options.seed)
    names = sorted(set(collection.speakers))
    by_speaker = {name: np.flatnonzero(np.array(collection.speakers) == name) for name in names}
    most = min(options.most, len(names))
    drawn = []
    for number in range(options.collections):
        chosen = generator.choice(len(names), 1 + number % most, replace=False)
        parts = []
        for index in chosen:
            own, wanted = by_speaker[names[index]], generator.uniform(*options.seconds)
            utterances = generator.permutation(np.unique(collection.utterances[own]))
            taken = 0.0
            for utterance in utterances:
                stretches = own[collection.utterances[own] == utterance]
                parts.append(stretches)
                taken += collection.seconds[stretches].sum()
                if taken >= wanted:
                    break
        drawn.append(np.concatenate(parts))
    return drawn


@dataclass(frozen=True)
class Countable:
    """Stretches to count the speakers of.

    Args:
        tree: of their voices.
        speakers: how many there are.
    """

    tree: VoiceTree
    speakers: int


def countables(embeddings: np.ndarray, collection: Collection, options: CountOptions) -> list[Countable]:
    """Return collections that are drawn from one.

    Args:
        embeddings: (N, D), of all stretches.
        collection: who speaks in them.
        options: of the draws.
    """
    names, seconds = np.array(collection.speakers), collection.seconds
    drawn = draw_collections(collection, options)
    turns = [Stretch(int(utterance), 0.0, 0.0) for utterance in collection.utterances]
    embeddings = blend_turns(embeddings, turns)
    return [Countable(VoiceTree(embeddings[own], seconds[own]), len(set(names[own]))) for own in drawn]


def meetings_of(model: str, folders: Sequence[str | Path]) -> list[Countable]:
    """Return the stretches of separated meetings.

    Args:
        model: see `embeddings_of`.
        folders: that `sepkit prepare conversation` wrote, with the estimates of mixture.flac in separated/.

    Raises:
        UserError: a folder without estimates or without its truth.
    """
    meetings = []
    for folder in map(Path, folders):
        truth = read_rttm(folder / "conversation.rttm")
        heard = hear([folder / "separated"], folder / "separated" / "clusters")
        values = heard.blend(embeddings_of_waveforms(model, heard.waveforms))
        meetings.append(Countable(VoiceTree(values, heard.seconds), len(next(iter(truth.values())))))
    return meetings


def count_all(items: Sequence[Countable], thresholds: Sequence[float]) -> list[dict[str, Any]]:
    """Return for each threshold how often the count is exact and within one, and the confusion matrix (true, found).

    Args:
        items: whose speakers are counted.
        thresholds: of distances in the tree of voices.
    """
    true = np.array([item.speakers for item in items])
    results = []
    for threshold in thresholds:
        found = np.array([item.tree.people(float(threshold)) for item in items])
        confusion = np.zeros((max(true.max(), found.max()),) * 2, int)
        np.add.at(confusion, (true - 1, found - 1), 1)
        errors = found - true
        results.append(
            {
                "collections": len(items),
                "exact": float((errors == 0).mean()),
                "within_one": float((np.abs(errors) <= 1).mean()),
                "mean_error": float(errors.mean()),
                "confusion": confusion.tolist(),
            }
        )
    return results


def calibrate_counting(sets: Mapping[str, Sequence[Countable]]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the threshold that counts best: shares within one and exact, added over all sets; and how well in each.

    Args:
        sets: name -> whose speakers are counted.
    """
    results = {name: count_all(items, _THRESHOLDS.tolist()) for name, items in sets.items()}
    values = sum(np.array([result["within_one"] + result["exact"] for result in own]) for own in results.values())
    # The middle of the best thresholds is the safest.
    good = np.flatnonzero(values >= np.max(values) - 1e-9)
    middle = int(good[len(good) // 2])
    return {"threshold": float(_THRESHOLDS[middle])}, {name: own[middle] for name, own in results.items()}


def embeddings_of(model: str, collection: Collection) -> np.ndarray:
    """Return the embeddings of a collection under an encoder, or its plain features, (N, D).

    Args:
        model: folder or name of an encoder, or a name of `BASELINES`.
        collection: N segments.
    """
    return embeddings_of_waveforms(model, collection.at)


def embeddings_of_waveforms(model: str, waveforms: Callable[[int], Iterable[np.ndarray]]) -> np.ndarray:
    """Return embeddings of segments under an encoder, or their plain features, (N, D).

    Args:
        model: see `embeddings_of`.
        waveforms: gives those of the segments at a rate in Hz.
    """
    if model in BASELINES:
        return plain_features(model, waveforms(_RATE), _RATE)
    encoder = load_checkpoint(encoder_folder(model), of=SpeakerEncoder)
    return listen(encoder, waveforms(encoder.sample_rate)).embeddings


def count_trial(
    model: str,
    dev: Sequence[str | Path],
    test: str | Path,
    out: str | Path,
    options: CountOptions,
    meetings: Sequence[str | Path] = (),
) -> dict[str, Any]:
    """Calibrate the threshold of a count on dev, count on test, and return both; an encoder keeps its threshold.

    Args:
        model: folder of an encoder, mean_mfcc or mean_log_mel.
        dev: collections for calibration.
        test: collection to measure on.
        out: JSON file of the result.
        options: of the collections that are drawn from each.
        meetings: separated ones for calibration, see `meetings_of`.
    """
    sets = {}
    for folder in dev:
        known = read_collection(folder)
        most = min(options.most, len(set(known.speakers)))
        sets[str(folder)] = countables(embeddings_of(model, known), known, replace(options, most=most))
    if meetings:
        sets["meetings"] = meetings_of(model, meetings)
    counting, on_dev = calibrate_counting(sets)
    collection = read_collection(test)
    items = countables(embeddings_of(model, collection), collection, options)
    (on_test,) = count_all(items, [counting["threshold"]])
    if model not in BASELINES:
        keep(encoder_folder(model), {"counting": counting})
    result = {"model": model, "counting": counting, "dev": on_dev, "test": on_test}
    write_json(out, result)
    return result


def keep(folder: Path, info: Mapping[str, Any]) -> None:
    """Add plain data to what stands beside an encoder's weights.

    Args:
        folder: of the encoder.
        info: what is added.
    """
    encoder = load_checkpoint(folder, of=SpeakerEncoder)
    from sepkit.models.checkpoints import find_checkpoint

    save_model(encoder, find_checkpoint(folder), encoder.info | dict(info))


# -------------------------------------------------------------------------------------------------------------- tables


def table_of(files: Sequence[str | Path]) -> str:
    """Return a Markdown table of scores: a row for each method and rule, mean and deviation over its files.

    Args:
        files: of scores; the name of a file's folder is its method.
    """
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
        lines.append(f"| {method} | {rule} | {' | '.join(cells)} | {len(rows)} |")
    return "\n".join(lines) + "\n"
