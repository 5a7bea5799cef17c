"""Counting speakers, and what comes out then."""

import json
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from sepkit.config import DeterministicConfig, STFTFilterbankConfig
from sepkit.data import audio
from sepkit.inference import Separator, separate_files
from sepkit.inference.decision import decide
from sepkit.inference.evidence import Evidence
from sepkit.inference.options import OutputOptions
from sepkit.inference.quality.regression import LogisticRegression
from sepkit.inference.quality.single_speaker import SingleSpeakerDetector
from sepkit.inference.quality.voices import SAME_VOICE, prediction_encoder
from sepkit.inference.selection import products_of
from sepkit.models import build_model
from tests.complaint import complaint
from tests.tiny_models import RECURRENT

RATE = 8000


LINEAR, SIGMOID = DeterministicConfig("linear"), DeterministicConfig("sigmoid")
CONFIG = replace(RECURRENT, filterbank=STFTFilterbankConfig(64, 32), encoding=LINEAR, masks=SIGMOID)


def one_speaker(both: bool = False) -> np.ndarray:
    # Four samples have zero mean, and so has every chunk.
    first, second = np.random.default_rng(0).standard_normal((2, RATE // 4))
    return (0.1 * (np.kron(first, [1, 1, -1, -1]) + both * np.kron(second, [1, -1, -1, 1]))).astype(np.float32)


SURE = LogisticRegression(["outputs_between"], [0.0], [1.0], [0.0], 1.0, 0.0, 1.0, 0.0)


class OneVoice:
    """A predictor that takes every recording for one speaker alone, if no other rule is given."""

    of_any_model = False

    def __init__(self, rule: LogisticRegression = SURE, **more) -> None:
        known = prediction_encoder().fingerprint()
        self.single_speaker = SingleSpeakerDetector(rule, -1.0, **{"encoder": known, **SHARES, **more})

    def predict(self, features):
        return np.full(2, 3.0), np.full((2, 2), 1.0)

    def out_of_domain(self, features):
        return False

    def digest(self):
        return "one voice"


VOICES = dict.fromkeys(
    ("levels_range", "correlation_db", "voice_least", "voice_between", "outputs_between", "loudest_least"), 0.0
)
SHARES = {"found_several": 1.0, "taken_for_several": 0.0}


def set_likeness(monkeypatch: pytest.MonkeyPatch, *between: float) -> None:
    """Let the speaker encoder find voices that are this much alike in both outputs, of one recording after another."""
    each = cycle({"outputs_between": value} for value in between)
    monkeypatch.setattr("sepkit.inference.decision.speaker_evidence", lambda *told: VOICES | next(each))


@pytest.mark.parametrize("between", [0.7, 0.8])
@pytest.mark.parametrize("consistency", [False, True])
def test_one_voice_in_both_estimates_is_joined_and_noise_is_not(consistency, between, monkeypatch):
    mixture = one_speaker(both=True)
    separator = Separator(build_model(CONFIG), mixture_consistency=consistency)
    made = separator.runner.run(mixture[None]).estimates[0].astype(np.float64)
    loudest = int(np.square(made).sum(-1).argmax())
    apart = separator.separate(mixture, RATE)
    separator.quality = OneVoice()
    set_likeness(monkeypatch, between)
    whole = separator.separate(mixture, RATE)
    # The speaker comes first.
    assert whole.speakers == 1 and whole.kept.tolist() == [loudest, 1 - loudest]
    assert repr(whole).endswith("1 speaker, in _s1 (--speakers 2 if there are more))")
    assert np.isnan(whole.predicted_si_sdr_db).all()
    speaks, other = whole.estimates
    voice = made.sum(0) if between > SAME_VOICE else made[loudest]
    gain = (made[loudest] @ mixture) / (made[loudest] @ made[loudest])
    if consistency:
        np.testing.assert_allclose(speaks + other, mixture, atol=1e-4)
    else:
        np.testing.assert_allclose(speaks, gain * voice, atol=1e-4)
    # The other output is what it was, and not turned down: whoever listens hears if the finding is wrong.
    if not consistency or between > SAME_VOICE:
        assert abs(np.corrcoef(other, made[1 - loudest])[0, 1]) == pytest.approx(1, abs=1e-4)
        assert np.square(other).sum() > 1e-2 * np.square(speaks).sum()
    (only,) = separator.separate(mixture, RATE, speakers="auto").estimates
    np.testing.assert_allclose(only, mixture if consistency else speaks, atol=1e-4)
    # Whoever gives a number of speakers knows better.
    obeyed = separator.separate(mixture, RATE, speakers=2)
    assert obeyed.speakers == 2
    predicted = "predicted SI-SDR 3.0 dB (90 % interval 1 to 1): usable, with audible leakage"
    assert repr(obeyed).endswith(f"2 speakers; {predicted})")
    np.testing.assert_array_equal(obeyed.estimates, apart.estimates)
    # What is measured is what the model made.
    separator.sum_if_single = False
    assert consistency or np.corrcoef(separator.separate(mixture, RATE).estimates[0], made[loudest])[0, 1] > 1 - 1e-6


def test_one_speaker_is_joined_in_chunks_too(monkeypatch):
    long = Separator(build_model(CONFIG), whole_seconds=0.5, chunk_seconds=0.5, overlap_seconds=0.25)
    mixture = one_speaker(both=True)
    apart = long.separate(mixture, RATE)
    assert apart.speakers is None
    long.quality = OneVoice()
    set_likeness(monkeypatch, 0.9)
    whole = long.separate(mixture, RATE)
    assert whole.speakers == 1 and "1 speaker, in _s1" in repr(whole)
    # Of the sum, the estimate with its own gain is a part at the same gain.
    loudest, other = whole.kept
    ratio = apart.gains[loudest] / apart.gains[other]
    np.testing.assert_allclose(whole.estimates[0], apart.estimates[loudest] + ratio * apart.estimates[other], atol=1e-4)
    assert long.separate(mixture, RATE, speakers="auto").kept.tolist() == [loudest]
    assert long.separate(mixture, RATE, speakers=2).speakers == 2


def test_a_number_is_said_only_if_it_is_sure(monkeypatch):
    separator = Separator(build_model(CONFIG))
    separator.quality = OneVoice(LogisticRegression(["voice_least"], [0.0], [1.0], [1.0], 0.0, 0.5, 1.0, 0.0))
    asked, least = [], iter([0.9, 0.1, -2.0])

    def heard(encoder, products, estimates, sample_rate):
        asked.append(estimates.shape)
        return VOICES | {"voice_least": next(least)}

    monkeypatch.setattr("sepkit.inference.decision.speaker_evidence", heard)
    found = [separator.separate(one_speaker(), RATE) for _ in range(3)]
    assert [one.speakers for one in found] == [1, None, 2] and asked == [(2, RATE)] * 3
    assert "2 outputs; predicted SI-SDR 3.0 dB" in repr(found[1]) and "2 speakers or more; predicted" in repr(found[2])
    monkeypatch.setattr("sepkit.inference.decision.changes_speakers", lambda *told: True)
    told = separator.separate(one_speaker(), RATE, speakers=2)
    assert told.out_of_domain and "2 speakers; quality unknown" in repr(told)


def test_an_empty_estimate_is_out_of_domain():
    mixture = one_speaker(both=True)

    def told(quiet: float) -> bool | None:
        estimates = np.stack([mixture, quiet * np.roll(mixture, 7)])
        known = Evidence(products_of(mixture, estimates), None, {"log_kurtosis": np.zeros(2)}, False, RATE, estimates)
        return decide(known, 2, OneVoice())[1].out_of_domain

    assert [told(10 ** (level / 20)) for level in (-29, -31)] == [False, True]


def test_json_files_tell_how_many_speak(monkeypatch, tmp_path):
    separator = Separator(build_model(CONFIG))
    separator.quality = OneVoice(LogisticRegression(["outputs_between"], [0.0], [1.0], [1.0], -1.0, 0.0, 1.0, 0.0))
    for name in ("one", "two"):
        audio.write(tmp_path / "in" / f"{name}.wav", one_speaker(name == "two"), RATE)
    set_likeness(monkeypatch, 2.0, -2.0)
    report = separate_files([tmp_path / "in"], separator, tmp_path / "out", OutputOptions())
    told = {name: json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("one", "two")}
    assert [(told[name]["speakers"], told[name]["or_more"]) for name in told] == [(1, False), (2, True)]
    assert all(one["speakers_option"] is None and len(one["estimates"]) == 2 for one in told.values())
    assert report.summaries["two"].startswith("2 speakers or more; predicted")
    assert report.summaries["one"].startswith("1 speaker, in _s")
    assert separate_files([tmp_path / "in"], separator, tmp_path / "out", OutputOptions()).already_done == 2
    complaint(lambda: Separator(separator.model).separate(one_speaker(), RATE, speakers="auto"), "sepkit calibrate")


def test_what_is_left_in_the_other_output_is_no_turn(monkeypatch, tmp_path):
    set_likeness(monkeypatch, 0.9)
    separator = Separator(build_model(CONFIG))
    path = audio.write(tmp_path / "one.wav", one_speaker(both=True), RATE)
    turns = []
    for quality in (None, OneVoice()):
        separator.quality = quality
        separate_files([path], separator, tmp_path / str(len(turns)), OutputOptions(rttm=True))
        turns.append({line.split()[7] for line in (tmp_path / str(len(turns)) / "one.rttm").read_text().splitlines()})
    assert len(turns[0]) == 2 and len(turns[1]) == 1
