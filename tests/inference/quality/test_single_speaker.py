"""One speaker, several, or not known: the rule, and what it hears."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sepkit.inference.quality import single_speaker as module
from sepkit.inference.quality.single_speaker import LabeledRecording, fit_single_speaker, rule_features
from sepkit.inference.quality.voices import changes_speakers, evidence_spans, prediction_encoder, speaker_evidence
from sepkit.inference.selection import products_of

RATE = 8000


def recordings(alone: float, apart: float, count: int = 400, seed: int = 0) -> list[LabeledRecording]:
    """Return recordings of one speaker and of several, with these means of their evidence; its deviation is one."""
    generator = np.random.default_rng(seed)
    evidence = [{"voice_least": generator.normal(alone if number % 2 else apart)} for number in range(count)]
    return [LabeledRecording(one, 2 - number % 2, f"speaker {number % 40}") for number, one in enumerate(evidence)]


def test_between_one_and_several_there_is_no_number():
    rule = fit_single_speaker(recordings(3, 0, 2000), "voices")
    assert rule is not None and rule.encoder == "voices"
    new = recordings(3, 0, 4000, seed=1)
    said = [rule.is_one(one.evidence) for one in new]
    of_one, of_several = ([found for found, one in zip(said, new, strict=True) if one.speakers == n] for n in (1, 2))
    assert 0.6 < np.mean([found is True for found in of_one]) == pytest.approx(rule.one.found, abs=0.1)
    assert 0.6 < np.mean([found is False for found in of_several]) == pytest.approx(rule.found_several, abs=0.1)
    assert np.mean([found is True for found in of_several]) < 2.5 * module.MOST_TAKEN_FOR_ONE
    assert np.mean([found is False for found in of_one]) < 2.5 * module.MOST_TAKEN_FOR_SEVERAL
    assert None in of_one and None in of_several
    assert rule.is_one({}) is None and rule.is_one({"voice_least": math.nan}) is None
    # Where nothing lies between, both are found.
    sure = fit_single_speaker(recordings(20, 0), "voices")
    assert sure is not None and [sure.is_one({"voice_least": value}) for value in (20, 0)] == [True, False]


def test_a_rule_that_would_find_too_few_is_none():
    assert fit_single_speaker(recordings(1, 0), "voices") is None
    assert fit_single_speaker(recordings(3, 0, 58), "voices") is None
    unknown = [LabeledRecording({"voice_least": math.nan}, one.speakers) for one in recordings(3, 0)]
    assert fit_single_speaker([*unknown, *recordings(3, 0, 58)], "voices") is None
    assert fit_single_speaker(recordings(3, 0, 80), "voices") is not None


def test_no_kind_of_recording_is_often_taken_for_another():
    """One in 18 recordings of several speakers is of a kind whose voices are more alike."""
    alike, new = (recordings(1.75, 1.75, count, seed)[::2] for count, seed in ((240, 1), (4000, 2)))
    taken = []
    for kind in ("alike", ""):
        rule = fit_single_speaker([*recordings(3.5, 0, 4000), *(replace(one, kind=kind) for one in alike)], "voices")
        taken.append(np.mean([rule.is_one(one.evidence) is True for one in new]))
    assert taken[0] < 2.5 * module.MOST_OF_A_KIND < taken[1]


def test_features_of_the_rule_by_hand():
    voices = {"voice_least": 0.4, "correlation_db": -10.0}
    sound = {"level_deviation_db": 7.0, "spectral_flatness_db": -20.0, "residual_db": -30.0, "agreement_db": 12.0}
    products = {"voice_least*voice_least": 0.16, "voice_least*correlation_db": -4.0}
    products |= {"correlation_db*correlation_db": 100.0, "correlation_squared": 1 / 11}
    found = rule_features(voices, sound | {"zero_crossing_rate": 0.1})
    assert found == pytest.approx(voices | sound | products) and rule_features({}, sound) == {}


def test_a_missing_feature_as_of_views_decides_nothing():
    known = recordings(3.5, 0)
    rule = fit_single_speaker(known, "voices")
    evidence = dict(next(one.evidence for one in known if rule.is_one(one.evidence)))
    evidence.popitem()
    assert rule.is_one(evidence) is None


def test_noise_is_told_by_its_sound():
    generator = np.random.default_rng(4)

    def sound(deviation: float) -> dict[str, float]:
        names = ("spectral_flatness_db", "spectral_centroid_hz", "zero_crossing_rate", "log_kurtosis")
        more = {"level_deviation_db": generator.normal(deviation), "crest_factor_db": generator.normal()}
        return {name: generator.normal() for name in names} | more

    speech = [LabeledRecording(one.evidence, one.speakers, one.group, sound(8)) for one in recordings(3, 0)]
    noise = [LabeledRecording({}, 0, sound=sound(3)) for _ in range(60)]
    assert fit_single_speaker([*speech, *noise[:10]], "voices").noise is None
    rule = fit_single_speaker([*speech, *noise], "voices")
    assert rule.noise.false_alarms <= module.MOST_TAKEN_FOR_NOISE and rule.noise.found > 0.9
    assert np.mean([rule.in_domain(sound(8)) for _ in range(100)]) > 0.9
    # Both ends of the range of speech are far away: it is the regression that tells.
    assert np.mean([rule.in_domain(sound(4)) for _ in range(100)]) < 0.3
    # Noise counts for nothing else.
    alone = fit_single_speaker(speech, "voices")
    assert (rule.one, rule.several_below, rule.sound) == (alone.one, alone.several_below, alone.sound)


def voice(seconds: float, pitch_hz: float, resonance_hz: float, seed: int = 0) -> np.ndarray:
    """Return pulses through a resonance, in syllables with pauses: a voice for an encoder."""
    generator = np.random.default_rng(seed)
    times = np.arange(round(seconds * RATE)) / RATE
    pitch = pitch_hz * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * times + generator.uniform(0, 6)))
    phase = np.cumsum(2 * np.pi * pitch / RATE)
    numbers = np.arange(1, 20)[:, None]
    gains = 1 / (1 + np.square((numbers * pitch_hz - resonance_hz) / 300))
    syllables = np.clip(np.sin(2 * np.pi * 3 * times), 0, None)
    noise = 1e-3 * generator.standard_normal(len(times))
    return (0.05 * syllables * (gains * np.sin(numbers * phase)).sum(0) + noise).astype(np.float32)


def evidence(estimates: np.ndarray, scale: float = 1.0) -> dict[str, float]:
    products = products_of(scale * estimates.sum(0), scale * estimates)
    return speaker_evidence(prediction_encoder(), products, scale * estimates, RATE)


LOW, HIGH = voice(8, 110.0, 600.0), voice(8, 220.0, 1800.0, seed=1)
QUIET = 1e-3 * np.random.default_rng(2).standard_normal(8 * RATE).astype(np.float32)


def test_one_voice_is_unlike_two_in_turn_and_two_at_once():
    one = evidence(np.stack([LOW, QUIET]))
    first = np.arange(8 * RATE) < 4 * RATE
    turns = np.where(first, LOW, HIGH)
    pairs = ((turns, QUIET), (LOW * first, HIGH * ~first), (LOW, HIGH))
    together, apart, at_once = (evidence(np.stack(both)) for both in pairs)
    assert one["levels_range"] > 15 and apart["levels_range"] < 6 and one["correlation_db"] < -20
    assert together["voice_least"] < one["voice_least"] - 0.2 and apart["voice_least"] < one["voice_least"] - 0.2
    # All windows belong to one estimate, or each voice has its own.
    assert together["voice_between"] > apart["voice_between"] and apart["voice_between"] < one["voice_between"] - 0.2
    assert at_once["levels_range"] < 6
    # The same voice in both.
    assert evidence(np.stack([0.5 * LOW, 0.5 * LOW + QUIET]))["correlation_db"] > 10


def test_neither_level_nor_pauses_matter():
    estimates = np.stack([np.where(np.arange(8 * RATE) < 4 * RATE, LOW, HIGH), QUIET])
    found = evidence(estimates)
    assert evidence(estimates, 8.0) == pytest.approx(found, abs=1e-3)
    paused = np.concatenate([estimates[:, : 4 * RATE], np.zeros((2, 3 * RATE)), estimates[:, 4 * RATE :]], axis=1)
    assert evidence(paused.astype(np.float32))["voice_least"] == pytest.approx(found["voice_least"], abs=0.1)


class TwoTones:
    """An encoder whose embedding of a window is the amounts of 500 and of 1000 Hz in it."""

    sample_rate, embedding_size = RATE, 2

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        return np.abs(waveforms @ np.exp(2j * np.pi * np.outer(np.arange(waveforms.shape[1]) / RATE, [500, 1000])))


def test_evidence_by_hand():
    """A tone of 6 s and then another, of half its amplitude in its estimate and of the same in the mixture.

    Windows are of 75 frames of 20 ms, 38 from one to the next; frame 300 is the first of the other tone.
    """
    times = np.arange(12 * RATE) / RATE
    first = times < 6
    estimates = np.stack([0.2 * np.sin(1000 * np.pi * times) * first, 0.1 * np.sin(2000 * np.pi * times) * ~first])
    products = products_of(estimates[0] + 2 * estimates[1], estimates)
    found = speaker_evidence(TwoTones(), products, estimates.astype(np.float32), RATE)
    frames = np.clip(300 - np.arange(0, 600 - 75 + 1, 38), 0, 75)
    rows = np.stack([frames, 75 - frames], 1)
    windows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = windows @ windows.T
    apart = np.abs(np.subtract.outer(np.arange(len(rows)), np.arange(len(rows)))) > 1
    # The sum nearest to the mixture has both alike, but energies of estimates are as they are: 4 to 1.
    shares = rows * [4, 1] / (rows @ [4, 1])[:, None]
    of_first, of_second = (windows[share > 0.8].sum(0) for share in shares.T)
    between = of_first @ of_second / np.linalg.norm(of_first) / np.linalg.norm(of_second)
    expected = {
        "levels_range": 10 * math.log10(4), "projections_range": 0.0, "voice_between": between, "outputs_between": 0.0,
        "voice_least": np.percentile(cosines[apart], 10), "loudest_least": 1.0,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=2e-3)
    far = speaker_evidence(TwoTones(), products_of(estimates.sum(0), estimates * [[1], [1e-3]]), estimates, RATE)
    assert far["levels_range"] == 20.0


def test_what_is_too_short_or_silent_tells_nothing():
    assert evidence(np.stack([LOW, QUIET])[:, : round(2.9 * RATE)]) == {}
    assert evidence(np.zeros((2, 8 * RATE), np.float32)) == {} and evidence(LOW[None]) == {}
    assert evidence(np.stack([LOW, QUIET])[:, :5]) == {}


def test_long_recordings_are_listened_to_in_excerpts_from_beginning_to_end():
    assert evidence_spans(100, RATE) == [(0, 100)]
    spans = evidence_spans(3600 * RATE, RATE)
    assert spans[0] == (0, 10 * RATE) and spans[-1] == (3590 * RATE, 3600 * RATE)
    assert sum(stop - start for start, stop in spans) == 180 * RATE


# --------------------------------------------------------------------------------- estimates that exchange speakers

MIDDLE = voice(8, 160.0, 1100.0, seed=3)


def told(*estimates: np.ndarray) -> bool:
    return changes_speakers(prediction_encoder(), np.stack(estimates).astype(np.float32), RATE)


def joined(first: np.ndarray, then: np.ndarray, share: float = 0.5) -> np.ndarray:
    return np.where(np.arange(len(first)) < share * len(first), first, then)


@pytest.mark.parametrize("share", [0.35, 0.5, 0.65])
def test_estimates_that_exchange_speakers_are_noticed(share):
    assert not told(LOW, HIGH)
    assert told(joined(LOW, HIGH, share), joined(HIGH, LOW, share))
    # Levels do not matter, nor does the order of the estimates.
    assert told(1e-3 * joined(HIGH, LOW, share), joined(LOW, HIGH, share))
    # Two of three exchange, or all three do.
    assert not told(LOW, HIGH, MIDDLE)
    assert told(joined(LOW, HIGH, share), joined(HIGH, LOW, share), MIDDLE)
    assert told(joined(LOW, HIGH, share), joined(HIGH, MIDDLE, share), joined(MIDDLE, LOW, share))


def test_what_is_heard_before_or_after_alone_tells_nothing():
    silence = np.zeros_like(LOW)
    assert not told(joined(LOW, silence), joined(silence, LOW)) and not told(joined(LOW, HIGH), silence)
    assert not told(silence, silence) and not told(LOW) and not told(LOW[:100], HIGH[:100])
    # Its embeddings are not finite.
    assert not told(LOW + 3e37 * (np.arange(len(LOW)) == 100), HIGH)
