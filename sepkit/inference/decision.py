"""Active speakers, levels and predicted quality: one decision for short and long recordings."""

from dataclasses import replace

import numpy as np

from sepkit.inference.evidence import Evidence
from sepkit.inference.options import Levels, Speakers
from sepkit.inference.quality.features import largest, levels_db
from sepkit.inference.quality.predictor import QualityPredictor
from sepkit.inference.quality.single_speaker import SingleSpeakerDetector, rule_features
from sepkit.inference.quality.voices import SAME_VOICE, changes_speakers, prediction_encoder, speaker_evidence
from sepkit.inference.selection import Selection, gains_of, select_by_levels, select_by_scores
from sepkit.inference.separated import Prediction
from sepkit.models.hypotheses import DEFAULT_THRESHOLD

EMPTY_DB = -30.0
"""An estimate this far below the strongest is empty: all that was said is in others, however many speak."""


def decide(
    evidence: Evidence,
    speakers: Speakers,
    quality: QualityPredictor | None = None,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    levels: Levels = "mixture",
    consistent: bool = False,
    sum_if_single: bool = True,
) -> tuple[Selection, Prediction | None]:
    """Return which hypotheses are kept at which levels, and the prediction of their SI-SDR; None without a predictor.

    Without scores, levels and features decide which hypotheses are speakers. A count given by the user overrides the
    single-speaker rule.

    Args:
        evidence: Statistics of the recording.
        speakers: Hypotheses to keep, see `Separator.separate`.
        quality: Predictor of SI-SDR and of single speakers; None: no prediction.
        threshold: Log-odds above which a hypothesis is a speaker.
        levels: Levels of the estimates, see `SeparatorOptions`.
        consistent: Whether estimates add up to the recording.
        sum_if_single: Whether all hypotheses that hold parts of one voice make the output of the only speaker.
    """
    products, silent = evidence.products, evidence.silent
    energies = np.diagonal(products.gram)
    everything = np.arange(len(energies))
    if evidence.scores is not None:
        selection = select_by_scores(products, evidence.scores, silent, speakers, threshold, levels, consistent)
    elif quality is not None and (rule := quality.single_speaker) is not None:
        given = isinstance(speakers, int) and speakers > 1
        single, alike = (False, False) if given else _is_single_speaker(evidence, rule)
        joined = alike and sum_if_single
        selection = select_by_levels(products, silent, speakers, levels, consistent, bool(single), joined)
        if single is None and speakers in (None, "auto"):
            selection = replace(selection, is_speaker=None)
    elif isinstance(speakers, int):
        selection = select_by_levels(products, silent, speakers, levels, consistent)
    else:
        selection = Selection(gains_of(products, levels, consistent, everything), everything)
    if silent and selection.is_speaker is None:
        selection = replace(selection, is_speaker=np.zeros(len(energies), bool))
    uncertain = evidence.scores is None and not isinstance(speakers, int)
    if uncertain and selection.speakers == len(energies) > 1:
        selection = replace(selection, count_is_lower_bound=True)
    return selection, None if quality is None else _predict(selection, evidence, quality)


def _is_single_speaker(evidence: Evidence, rule: SingleSpeakerDetector) -> tuple[bool | None, bool]:
    """Return whether one speaker is alone, None if that is not known, and whether all estimates hold the same voice."""
    sound = largest(evidence.features or {})
    if not sound or not rule.in_domain(sound):
        return None, False
    encoder = prediction_encoder()
    if encoder.fingerprint() != rule.encoder:
        # The numbers of another encoder mean something else.
        return None, False
    found = speaker_evidence(encoder, evidence.products, evidence.estimates, evidence.sample_rate)
    return rule.is_one(rule_features(found, sound)), found.get("outputs_between", -1.0) > SAME_VOICE


def _predict(selection: Selection, evidence: Evidence, quality: QualityPredictor) -> Prediction:
    """Return the predicted SI-SDR of all estimates, and whether the recording is unlike those of the calibration."""
    found = quality.predict(evidence.features)
    speaks = np.ones(len(selection.gains), bool) if selection.is_speaker is None else selection.is_speaker
    if evidence.scores is None and evidence.features is not None:
        # It was fitted on estimates of several speakers.
        speaks = speaks & (speaks.sum() > 1)
        found = tuple(np.where(speaks if values.ndim == 1 else speaks[:, None], values, np.nan) for values in found)
    si_sdr_db, interval_db = found
    unlike = None
    if (predicted := np.isfinite(si_sdr_db)).any():
        # Predictions hold for active estimates, each of one speaker all the time.
        unlike = (
            bool(quality.out_of_domain(evidence.features))
            or bool((levels_db(np.diagonal(evidence.products.gram))[predicted] < EMPTY_DB).any())
            or changes_speakers(prediction_encoder(), evidence.estimates, evidence.sample_rate)
        )
    return Prediction(si_sdr_db, interval_db, "agreement of views" if quality.of_any_model else "calibration", unlike)
