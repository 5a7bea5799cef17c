"""Who speaks, at which levels, and how well it went: one decision for short recordings and for long ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sepkit.inference.options import Levels, Speakers
from sepkit.inference.quality.features import levels_db
from sepkit.inference.quality.predictor import QualityPredictor
from sepkit.inference.quality.single_speaker import SingleSpeakerDetector
from sepkit.inference.quality.voices import SAME_VOICE, changes_speakers, default_encoder, speaker_evidence
from sepkit.inference.selection import Products, Selection, select_speakers
from sepkit.inference.separated import Separated
from sepkit.models.hypotheses import hypothesis_weights

EMPTY_DB = -30.0
"""An estimate this far below the strongest is empty: all that was said is in others, however many speak."""


@dataclass(frozen=True)
class Evidence:
    """What is known of a separated recording.

    Args:
        products: of its estimates and the mixture.
        scores: (n,) log-odds; None for a model without.
        features: (n,) of each, see `hypothesis_features`; None: there are none, or they were not asked for.
        silent: whether all samples of the mixture are the same.
        sample_rate: Hz, of the model.
        estimates: (n, T) at the level of the model, or excerpts one after the other.
        level: Factor from the level of the products to that of the recording.
    """

    products: Products
    scores: np.ndarray | None
    features: dict[str, np.ndarray] | None
    silent: bool
    sample_rate: int
    estimates: np.ndarray
    level: float = 1.0


@dataclass(frozen=True)
class Rules:
    """What decides.

    Args:
        quality: predicts SI-SDR, and tells one speaker alone; None: nothing is predicted.
        score_threshold: log-odds above which a hypothesis is a speaker.
        score_loss: what scores were trained by; None: their shares are not known.
        levels: of the estimates, see `SeparatorOptions`.
        mixture_consistency: whether estimates add up to the recording.
        joins_single_speaker: whether all hypotheses that hold parts of one voice make the output of the only speaker.
    """

    quality: QualityPredictor | None
    score_threshold: float
    score_loss: str | None
    levels: Levels
    mixture_consistency: bool
    joins_single_speaker: bool


def decide(evidence: Evidence, rules: Rules, speakers: Speakers) -> tuple[Selection, Separated[Any]]:
    """Return which hypotheses are kept at which levels, and the result with its predictions but without estimates.

    Without scores, levels and features tell which hypotheses are speakers. A number of speakers that is given counts
    more than what is found.
    """
    scores, products = evidence.scores, evidence.products
    energies = np.diagonal(products.gram)
    single, alike, loud = None, False, None
    if scores is None and rules.quality is not None and rules.quality.single_speaker is not None:
        # Whoever says that there are two knows better than a guess.
        told = isinstance(speakers, int) and speakers > 1
        single, alike = (False, False) if told else _is_single_speaker(evidence, rules.quality.single_speaker)
        loud = np.ones(len(energies), bool)
        if single:
            loud = np.arange(len(energies)) == np.argmax(energies)
    selection = select_speakers(
        products,
        scores,
        evidence.silent,
        speakers,
        rules.score_threshold,
        rules.levels,
        rules.mixture_consistency,
        loud,
        bool(single),
        alike and rules.joins_single_speaker,
    )
    if loud is not None and single is None:
        selection.is_speaker = None
    if evidence.silent and selection.is_speaker is None:
        selection.is_speaker = np.zeros(len(energies), bool)
    kept = selection.kept
    separated = Separated[Any](None, selection.gains[kept], scores, kept=kept, is_speaker=selection.is_speaker)
    selection.scale(evidence.level)
    several = len(energies) > 1 and selection.is_speaker is not None and bool(selection.is_speaker.all())
    separated.or_more = several and scores is None and not isinstance(speakers, int)
    if scores is not None and rules.score_loss is not None:
        separated.weights = hypothesis_weights(scores, rules.score_loss)  # type: ignore[arg-type]  # one of both
    if rules.quality is not None:
        _predict(separated, evidence, rules.quality)
    return selection, separated


def _is_single_speaker(evidence: Evidence, rule: SingleSpeakerDetector) -> tuple[bool | None, bool]:
    """Return whether one speaker is alone, None if that is not known, and whether all estimates hold the same voice."""
    features = evidence.features
    if features is None or not rule.in_domain({name: float(values[0]) for name, values in features.items()}):
        return None, False
    encoder = default_encoder()
    if encoder.fingerprint() != rule.encoder:
        # The numbers of another encoder mean something else.
        return None, False
    found = speaker_evidence(encoder, evidence.products, evidence.estimates, evidence.sample_rate)
    return rule.is_one(found), found.get("outputs_between", -1.0) > SAME_VOICE


def _predict(separated: Separated[Any], evidence: Evidence, quality: QualityPredictor) -> None:
    found = quality.predict(evidence.features)
    speaks = np.ones(len(evidence.products.cross), bool) if separated.is_speaker is None else separated.is_speaker
    several = bool(speaks.sum() > 1)
    if separated.scores is None and evidence.features is not None:
        # It was fitted on estimates of several speakers.
        speaks = speaks & several
        found = tuple(np.where(speaks if values.ndim == 1 else speaks[:, None], values, np.nan) for values in found)
    separated.predicted_si_sdr_db, separated.predicted_interval_db = found
    separated.predicted_by = "agreement of views" if quality.of_any_model else "calibration"
    if (predicted := np.isfinite(found[0])).any():
        # What is predicted holds for estimates that are heard, each of one speaker all the time.
        separated.out_of_domain = (
            bool(quality.out_of_domain(evidence.features))
            or bool((levels_db(np.diagonal(evidence.products.gram))[predicted] < EMPTY_DB).any())
            or changes_speakers(default_encoder(), evidence.estimates, evidence.sample_rate)
        )
