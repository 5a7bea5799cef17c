"""Fit a model's prediction of SI-SDR on mixtures with known sources, and keep it beside the model."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from sepkit.inference.alone import estimates_summary, fit_alone
from sepkit.inference.features import recording_features
from sepkit.inference.options import SeparatorOptions
from sepkit.inference.quality import QualityPredictor, fit_quality
from sepkit.inference.separator import Separator, weights_fingerprint
from sepkit.inference.silence import fit_silence, levels_db
from sepkit.inference.uncertainty import check_samples
from sepkit.objectives.assignment import PIT
from sepkit.objectives.costs import pairwise_neg_si_sdr


@dataclass
class Calibration:
    """The result of fitting a predictor.

    Args:
        predictor: fitted, not yet stored.
        skipped: id of an unusable mixture -> reason.
    """

    predictor: QualityPredictor
    skipped: dict[str, str] = field(default_factory=dict)


def calibrate(
    separator: Separator,
    manifest: str | os.PathLike[str],
    *,
    samples: int = 2,
    seed: int = 0,
    first: int | None = None,
) -> Calibration:
    """Return a predictor of the SI-SDR of a separator's estimates, fitted on mixtures that the model was not trained
    on.

    The target is the SI-SDR of each active source's hypothesis in the best one-to-one matching, at the mixture's rate,
    as `sepkit evaluate` measures it. A second head is fitted on the mean SI-SDR improvement of each mixture, see
    `fit_not_separated`. Where all sources of a mixture but one are left out, the model hears one speaker alone; where
    one speaks in the first half and another in the second, two take turns. From these and the mixtures follow the level
    below which nobody speaks in an estimate (`fit_silence`) and what tells one speaker alone (`fit_alone`). The
    separator's own predictor does not change.

    Args:
        separator: of the model.
        manifest: of mixtures with sources, dev.jsonl for example.
        samples: of the masks, for each mixture; of no effect if they are deterministic.
        seed: of those.
        first: number of mixtures, from the beginning of the manifest; None: all.

    Raises:
        UserError: a bad manifest or number, or too few usable mixtures; see `fit_ridge`.
    """
    check_samples(samples)
    if first is not None and first < 1:
        raise UserError(f"first: found {first}, expected at least 1 mixture")
    entries = list(read_manifest(manifest))[:first]
    # A separator without a predictor, whose results would not be used.
    plain = Separator(separator.model, separator.device, SeparatorOptions(precision=separator.options.precision))
    skipped: dict[str, str] = {}
    rows: list[dict[str, np.ndarray]] = []
    targets: list[np.ndarray] = []
    improvements: list[np.ndarray] = []
    mixtures: list[int] = []
    heard: list[_Heard] = []
    for number, entry in enumerate(tqdm(entries, disable=None, unit="mixture")):
        try:
            features, si_sdr_db, improvement_db, levels = _example(plain, entry, samples, seed)
        except UserError as error:
            skipped[entry.id] = str(error)
            continue
        rows.append(features)
        targets.append(si_sdr_db)
        improvements.append(improvement_db)
        heard += levels
        mixtures += [number] * len(si_sdr_db)
    if not rows:
        name, reason = next(iter(skipped.items()), ("none", "the manifest is empty"))
        raise UserError(f"{manifest}: no mixture could be used ({name}: {reason}); expected mixtures with sources")
    try:
        predictor = fit_quality(
            {name: np.concatenate([row[name] for row in rows]) for name in rows[0]},
            np.concatenate(targets),
            mixtures,
            np.concatenate(improvements),
            weights=weights_fingerprint(separator.model),
            hypotheses=separator.hypotheses,
            samples=samples,
            seed=seed,
            manifest=str(Path(manifest)),
        )
        predictor.depth_steps = plain.depth_steps
        if plain.model.scoring_head is None:
            speakers = [one.speakers for one in heard]
            predictor.silence = fit_silence([one.levels_db for one in heard], speakers)
            summaries = [estimates_summary(one.features, one.levels_db) for one in heard]
            predictor.alone = fit_alone(summaries, speakers)
    except UserError as error:
        raise UserError(f"{manifest}: {error}") from error
    return Calibration(predictor, skipped)


@dataclass
class _Heard:
    """Levels and features of all hypotheses of a recording, (n,) each, and how many speak in it."""

    levels_db: np.ndarray
    speakers: int
    features: dict[str, np.ndarray]


def _example(
    separator: Separator, entry: MixtureEntry, samples: int, seed: int
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, list[_Heard]]:
    """Return (k,) of every feature, SI-SDR and its improvement, dB, of the hypotheses matched with the active sources.

    The last tell of all hypotheses, for the mixture, for its first source alone, and for its first two in turn.

    Raises:
        UserError: an unusable mixture.
    """
    mixed = mix_entry(entry)
    active = mixed.sources.any(axis=1)
    count = int(active.sum())
    if not count:
        raise UserError("no active source")
    if count > separator.hypotheses:
        raise UserError(f"{count} sources, but the model makes {separator.hypotheses} estimates")
    estimates = separator.separate(mixed.mixture, entry.sample_rate).estimates
    mixture = audio.resample(mixed.mixture, entry.sample_rate, separator.sample_rate)
    on_device = torch.as_tensor(mixture, device=separator.device)
    with torch.inference_mode():
        separation = separator.model(on_device[None])
    features = recording_features(separator.model, on_device, separation, samples, seed)
    if features is None:
        raise UserError("silent, or shorter than half a second")
    heard = [_Heard(_levels(separation.estimates), count, features)]
    speaking = np.flatnonzero(active)
    if count > 1 and separator.model.scoring_head is None:
        # The noise stays.
        background = mixed.mixture - mixed.sources.sum(0)
        first, second = mixed.sources[speaking[:2]]
        middle = len(first) // 2
        taking_turns = np.concatenate([first[:middle], second[middle:]])
        for speakers, speech in ((1, first), (2, taking_turns)):
            waveform = audio.resample(
                (background + speech).astype(np.float32), entry.sample_rate, separator.sample_rate
            )
            heard += _hear(separator, waveform, speakers, samples, seed)
    sources = torch.from_numpy(mixed.sources[active])[None]
    cost = pairwise_neg_si_sdr(torch.from_numpy(estimates)[None], sources)
    matches = PIT().matches(cost)[0]
    si_sdr_db = -cost[0, matches, torch.arange(len(matches))].double().numpy()
    before = -pairwise_neg_si_sdr(torch.from_numpy(mixed.mixture)[None, None], sources)[0, 0].double().numpy()
    improvement_db = si_sdr_db - before if count > 1 else np.full(1, np.nan)
    matched = {name: values[matches.numpy()] for name, values in features.items()}
    return matched, si_sdr_db, improvement_db, heard


def _hear(separator: Separator, waveform: np.ndarray, speakers: int, samples: int, seed: int) -> list[_Heard]:
    """Return what a model makes of a recording; nothing of one that is silent, or too short."""
    on_device = torch.as_tensor(waveform, device=separator.device)
    with torch.inference_mode():
        separation = separator.model(on_device[None])
    features = recording_features(separator.model, on_device, separation, samples, seed)
    return [] if features is None else [_Heard(_levels(separation.estimates), speakers, features)]


def _levels(estimates: torch.Tensor) -> np.ndarray:
    return levels_db(estimates[0].double().square().sum(-1).cpu().numpy())
