"""One speaker or several: a logistic regression on what estimates have in common and on how the voice changes in time.

One speaker alone leaves little in the other estimate, or the same in both, and all segments of the speech are of one
voice. Where this is sure, or where it is surely not so, a recording has a number of speakers; between, it is not known.
Nothing depends on the level of the recording.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import numpy as np

from sepkit.inference.quality.regression import LogisticRegression, fit_logistic, threshold_above
from sepkit.inference.runners.base import AGREEMENT

MOST_TAKEN_FOR_ONE = 0.005
"""Share of the recordings of several speakers that may be taken for one speaker."""

MOST_TAKEN_FOR_SEVERAL = 0.025
"""Share of the recordings of one speaker that may be taken for several."""

MOST_OF_A_KIND = 0.03
"""Largest share of errors among the recordings of one kind, if there are at least `LEAST_OF_EACH` of them."""

# A rule that found 34 % was wrong for 8 % of unseen single speakers in noise at 0 dB.
LEAST_FOUND = 0.4
"""The rule is kept only if it finds at least this share of the recordings of one speaker."""

LEAST_OF_EACH = 30
"""Fit only with at least this many recordings of one speaker, and of several."""

MOST_TAKEN_FOR_NOISE = 0.01
"""Share of the recordings of speech that may be taken for noise."""

# Features that distinguish speech from other sounds: neither level nor length.
_SOUND = (
    "spectral_flatness_db",
    "spectral_centroid_hz",
    "zero_crossing_rate",
    "log_kurtosis",
    "level_deviation_db",
    "crest_factor_db",
)
# What a voice and its level are compared with: pauses and noise, what the estimates leave of the mixture, and how well
# the views of the best estimate agree. A model of one view that was fitted with several does not count.
_BACKGROUND = ("level_deviation_db", "spectral_flatness_db", "residual_db", "dominance", AGREEMENT)
# Share of a range that is added to it on both sides.
_SLACK = 0.1


@dataclass
class LabeledRecording:
    """What is known of a recording to fit the rule.

    Args:
        evidence: Result of `rule_features`.
        speakers: Number of speakers.
        group: Name of the recordings that are left out together, those of a speaker.
        sound: Features of the recording by name, `largest` of `hypothesis_features`.
        kind: Kind of the recording; `MOST_OF_A_KIND` bounds the errors of each.
    """

    evidence: Mapping[str, float]
    speakers: int
    group: str = ""
    sound: Mapping[str, float] = field(default_factory=dict)
    kind: str = ""


def rule_features(voices: Mapping[str, float], sound: Mapping[str, float]) -> dict[str, float]:
    """Return the features of the rule; none without voices.

    A cosine means something else if one estimate is nearly empty. So the products of all pairs of features of
    `speaker_evidence`, and their squares, are features, too. The SI-SDR between estimates, c dB, also enters as their
    squared correlation, 1 / (1 + 10^(-c / 10)), which does not keep growing from near copies to exact ones. Others
    describe pauses and noise of the mixture, and the separation as a whole.

    Args:
        voices: Result of `speaker_evidence`.
        sound: Features of the recording by name, `largest` of `hypothesis_features`.
    """
    if not voices:
        return {}
    pairs = combinations_with_replacement(voices, 2)
    return {
        **voices,
        "correlation_squared": 1 / (1 + 10 ** (-voices["correlation_db"] / 10)),
        **{f"{one}*{other}": voices[one] * voices[other] for one, other in pairs},
        **{name: sound[name] for name in _BACKGROUND if name in sound},
    }


@dataclass
class SingleSpeakerDetector:
    """Rule that distinguishes recordings of one speaker from recordings of several.

    Args:
        one: Regression whose log-odds are for one speaker, who is found above its threshold; its false alarms are
            recordings of several.
        several_below: Log-odds below which several are found.
        encoder: Fingerprint of the speaker encoder that it was fitted with.
        found_several: Share of the recordings of several that are found, by fits without the speaker.
        taken_for_several: Share of the recordings of one that are taken for several, in the same way.
        sound: Least and largest value of each feature in `_SOUND`, of the recordings that it was fitted on and a little
            beyond. What is beyond these, such as hum and music, is not counted.
        noise: Regression that flags recordings of noise alone by these features, which are not counted; None if there
            were too few.
    """

    one: LogisticRegression
    several_below: float
    encoder: str
    found_several: float
    taken_for_several: float
    sound: dict[str, tuple[float, float]] = field(default_factory=dict)
    noise: LogisticRegression | None = None

    def in_domain(self, sound: Mapping[str, float]) -> bool:
        """Return whether a recording sounds like those that the rule was fitted on.

        Args:
            sound: Features of the recording by name, `largest` of `hypothesis_features`.
        """
        if self.noise is not None and self.noise.log_odds(sound) > self.noise.threshold:
            return False
        return all(low <= sound[name] <= high for name, (low, high) in self.sound.items())

    def is_one(self, evidence: Mapping[str, float]) -> bool | None:
        """Return whether one speaker is alone in a recording; None if that is not sure.

        Args:
            evidence: Result of `rule_features`.
        """
        log_odds = self.one.log_odds(evidence)
        if log_odds > self.one.threshold:
            return True
        return False if log_odds < self.several_below else None


def fit_single_speaker(recordings: Sequence[LabeledRecording], encoder: str) -> SingleSpeakerDetector | None:
    """Return the rule that distinguishes one speaker from several, or None if it would not find enough of them.

    In ten-fold cross-validation over speakers, at most 0.5 % of the recordings of several speakers are taken for one,
    2.5 % of those of one speaker are taken for several, and 3 % of each kind are misjudged.

    Args:
        recordings: Recordings to fit on; those without evidence, or with numbers that are not finite, are left out.
            Those without speakers show how noise sounds.
        encoder: Fingerprint of the speaker encoder of the evidence.
    """
    noise = [one.sound for one in recordings if not one.speakers]
    usable = [
        one for one in recordings if one.speakers and one.evidence and all(map(math.isfinite, one.evidence.values()))
    ]
    alone = np.array([one.speakers == 1 for one in usable], bool)
    if min(alone.sum(), (~alone).sum()) < LEAST_OF_EACH:
        return None
    groups = np.unique([one.group for one in usable], return_inverse=True)[1]
    if (fit := fit_logistic([one.evidence for one in usable], alone, groups)) is None:
        return None
    one, scores = fit
    kinds = np.array([one.kind for one in usable])
    several_below = -_threshold(-scores[alone], kinds[alone], MOST_TAKEN_FOR_SEVERAL)
    threshold = _threshold(scores[~alone], kinds[~alone], MOST_TAKEN_FOR_ONE)
    # Where both kinds hardly overlap, what lies between the thresholds is still not known.
    one.set_threshold(max(threshold, several_below), scores[alone], scores[~alone])
    several_below = min(threshold, several_below)
    if one.found < LEAST_FOUND:
        return None
    speech, ranges = [recording.sound for recording in usable], {}
    for name in filter(speech[0].__contains__, _SOUND):
        values = [sound[name] for sound in speech]
        slack = _SLACK * float(np.ptp(values))
        ranges[name] = (min(values) - slack, max(values) + slack)
    return SingleSpeakerDetector(
        one,
        several_below,
        encoder,
        found_several=float(np.mean(scores[~alone] < several_below)),
        taken_for_several=float(np.mean(scores[alone] < several_below)),
        sound=ranges,
        noise=_fit_noise(speech, noise) if len(noise) >= LEAST_OF_EACH else None,
    )


def _threshold(scores: np.ndarray, kinds: np.ndarray, share: float) -> float:
    """Return the threshold that this share of the scores (N,) is above, and at most `MOST_OF_A_KIND` of each kind."""
    own = [scores[kinds == kind] for kind in np.unique(kinds)]
    highest = [threshold_above(of_kind, MOST_OF_A_KIND) for of_kind in own if len(of_kind) >= LEAST_OF_EACH]
    return max(threshold_above(scores, share), *highest)


def _fit_noise(
    speech: Sequence[Mapping[str, float]], noise: Sequence[Mapping[str, float]]
) -> LogisticRegression | None:
    """Return what flags noise alone by its sound, and at most 1 % of speech, by fits without it."""
    rows = [{name: one[name] for name in _SOUND} for one in (*speech, *noise)]
    labels = np.arange(len(rows)) >= len(speech)
    if (fit := fit_logistic(rows, labels)) is None:
        return None
    regression, scores = fit
    regression.set_threshold(threshold_above(scores[~labels], MOST_TAKEN_FOR_NOISE), scores[labels], scores[~labels])
    return regression
