"""One speaker alone, several at once and speakers in turn."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sepkit.inference.quality.single_speaker import (
    LabeledRecording,
    SingleSpeakerDetector,
    estimates_summary,
    fit_single_speaker,
)


def recordings(kind: str, count: int, seed: int, changed: float = -3.0) -> list[LabeledRecording]:
    """Return recordings: estimates are alike where nobody speaks at once, and voices that change in turns."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        alike = generator.normal(-6 if kind == "at once" else 6, 3)
        features = {"correlation_db": np.full(2, alike), "residual_db": np.full(2, -20.0), "level_dbfs": np.ones(2)}
        voice = {} if kind == "at once" else {"voice_halves": generator.normal(changed if kind == "in turn" else 3, 1)}
        summary = estimates_summary(features, np.array([0.0, -2.0]))
        speakers = 1 if kind == "alone" else 2
        found.append(LabeledRecording(summary, voice, speakers, kind == "in turn", f"speaker {number % 20}"))
    return found


KINDS = "alone", "at once", "in turn"


@pytest.fixture(scope="module")
def detector() -> SingleSpeakerDetector:
    found = fit_single_speaker([one for seed, kind in enumerate(KINDS) for one in recordings(kind, 80, seed)], "voices")
    assert found is not None
    return found


def test_one_speaker_is_told_from_several_at_once_and_in_turn(detector):
    assert detector.encoder == "voices"
    assert detector.at_once.features == ["correlation_db_mean"]
    assert detector.in_turn.features == ["correlation_db_mean", "voice_halves"]
    assert detector.found > 0.8 and detector.missed_at_once <= 0.1 and detector.missed_in_turn <= 0.05
    new = {kind: recordings(kind, 200, seed) for seed, kind in enumerate(KINDS, start=10)}
    shares = {
        kind: np.mean(
            [detector.flags(one.estimates, lambda own=one.voice: own or {"voice_halves": 3.0}) for one in ones]
        )
        for kind, ones in new.items()
    }
    assert shares["alone"] > 0.8 and shares["at once"] < 0.2 and shares["in turn"] < 0.1


def test_the_encoder_of_voices_is_asked_only_if_estimates_are_alike(detector):

    def asked() -> dict[str, float]:
        raise AssertionError

    assert detector.flags({"correlation_db_mean": -20.0}, asked) is False
    with pytest.raises(AssertionError):
        detector.flags({"correlation_db_mean": 20.0}, asked)
    # Unknown is neither yes nor no.
    assert detector.flags({"correlation_db_mean": 20.0}, dict) is None and detector.flags({}, asked) is None


def test_there_is_no_rule_that_takes_turns_for_one():
    heard = [one for seed, kind in enumerate(KINDS) for one in recordings(kind, 40, seed, changed=3.0)]
    assert fit_single_speaker(heard, "voices") is None
    # Nor one that too few turns were heard for, or whose numbers are not known.
    apart = [one for seed, kind in enumerate(KINDS) for one in recordings(kind, 40, seed)]
    assert fit_single_speaker(apart, "voices") is not None
    assert fit_single_speaker(apart[:80], "voices") is None and fit_single_speaker(apart[:109], "voices") is None
    unknown = [replace(one, estimates={"correlation_db_mean": math.nan}) for one in apart[:11]]
    assert fit_single_speaker(unknown + apart[11:], "voices") is None
