"""Counting speakers by outputs nobody speaks in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.config import DeterministicConfig, ModelConfig, RecurrentConfig, STFTFilterbankConfig
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference import Separator, separate_files
from sepkit.inference.options import OutputOptions
from sepkit.inference.silence import HIGHEST_DB, LOWEST_DB, SilenceThreshold, fit_silence, levels_db
from sepkit.models import build_model

RATE = 8000


def test_levels_are_relative_to_the_strongest():
    np.testing.assert_allclose(levels_db(np.array([10.0, 1000.0, 0.0])), [-20, 0, LOWEST_DB])
    np.testing.assert_allclose(levels_db(np.zeros(2)), LOWEST_DB)


def test_the_threshold_counts_best_and_lies_in_the_middle():
    alone = [np.array([0.0, level]) for level in np.linspace(-60, -40, 20)]
    together = [np.array([level, 0.0]) for level in np.linspace(-20, 0, 20)]
    found = fit_silence(alone + together, [1] * 20 + [2] * 20)
    assert found is not None and found.threshold_db == pytest.approx(-30)
    assert found.right == {"1": 1.0, "2": 1.0} and found.recordings == {"1": 20, "2": 20}
    assert found.is_speaker(np.array([1.0, 1e-4])).tolist() == [True, False]
    # A few that are wrong do not move it across the many.
    found = fit_silence([*alone, np.array([0.0, -5.0])], [1] * 21)
    assert found is None
    found = fit_silence([*alone, np.array([0.0, -5.0]), *together], [1] * 21 + [2] * 20)
    assert found is not None and found.right["1"] == pytest.approx(20 / 21) and -40 < found.threshold_db < -20


def test_a_model_that_splits_one_voice_does_not_count():
    generator = np.random.default_rng(0)
    levels = [np.array([0.0, level]) for level in generator.uniform(-12, 0, 60)]
    assert fit_silence(levels, [1, 2] * 30) is None
    assert fit_silence(levels[:12], [1] * 6 + [2] * 6) is None
    # Nothing above the highest threshold is silent.
    apart = [np.array([0.0, -8.0])] * 20 + [np.array([0.0, -2.0])] * 20
    assert fit_silence(apart, [1] * 20 + [2] * 20) is None and HIGHEST_DB < -8


@pytest.fixture
def separator(monkeypatch) -> Separator:
    """Of a model whose second estimate is the positive samples, and whose first the others and a little of all."""
    config = ModelConfig(
        filterbank=STFTFilterbankConfig(64, 32),
        masker=RecurrentConfig(hidden_size=4, num_layers=1),
        encoding=DeterministicConfig("linear"),
        masks=DeterministicConfig("sigmoid"),
    )
    model = build_model(config)

    def estimates(mixture):
        first, second = mixture.clamp_min(0), mixture.clamp_max(0) + 1e-3 * mixture
        return torch.stack([second, first], dim=1)

    monkeypatch.setattr(model, "estimates", estimates)
    made = Separator(model)
    made.silence = SilenceThreshold(-30.0, {"1": 1.0, "2": 1.0}, {"1": 10, "2": 10})
    return made


def one_talker(both: bool = False) -> np.ndarray:
    wave = np.abs(np.random.default_rng(0).standard_normal(RATE)).astype(np.float32)
    return 0.1 * (wave - 2 * wave * (np.arange(RATE) % 2) if both else wave)


def test_one_talker_comes_out_once(separator):
    separated = separator.separate(one_talker(), RATE)
    assert separated.speakers == 1 and separated.is_speaker.tolist() == [False, True]
    levels = 10 * np.log10(np.square(separated.estimates).sum(-1))
    # The best gain of the quiet estimate would lift it to the level of the recording.
    assert levels[0] < levels[1] - 30
    assert repr(separated).endswith("1 speaker)")
    kept = separator.separate(one_talker(), RATE, speakers="auto")
    assert kept.kept.tolist() == [1] and kept.estimates.shape == (1, RATE)
    assert separator.separate(one_talker(), RATE, speakers=1).kept.tolist() == [1]
    assert separator.separate(one_talker(), RATE, speakers=2).kept.tolist() == [0, 1]


def test_two_talkers_come_out_twice_and_silence_has_none(separator):
    separated = separator.separate(one_talker(both=True), RATE, speakers="auto")
    assert separated.speakers == 2 and separated.estimates.shape == (2, RATE)
    assert separator.separate(np.zeros(RATE, np.float32), RATE, speakers="auto").speakers == 0
    separator.silence = None
    assert separator.separate(one_talker(), RATE).speakers is None
    with pytest.raises(UserError, match="sepkit calibrate"):
        separator.separate(one_talker(), RATE, speakers="auto")


def test_estimates_still_add_up_to_the_recording(separator):
    together = Separator(separator.model, consistency="mixture")
    together.silence = separator.silence
    estimates = together.separate(one_talker(), RATE).estimates
    np.testing.assert_allclose(estimates.sum(0), one_talker(), atol=1e-6)
    assert np.square(estimates[0]).sum() < 1e-3 * np.square(estimates[1]).sum()


def test_json_files_tell_how_many_speak(separator, tmp_path: Path):
    for name, both in (("one", False), ("two", True)):
        audio.write(tmp_path / "in" / f"{name}.wav", one_talker(both), RATE)
    report = separate_files([tmp_path / "in"], separator, tmp_path / "out", OutputOptions())
    told = {name: json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("one", "two")}
    assert [told[name]["speakers"] for name in told] == [1, 2]
    assert all(one["speakers_option"] is None and len(one["estimates"]) == 2 for one in told.values())
    assert told["one"]["likely_not_separated"] is None
    assert report.told == {"one": "1 speaker", "two": "2 speakers"}
    # Another threshold is another result.
    assert separate_files([tmp_path / "in"], separator, tmp_path / "out", OutputOptions()).already_done == 2
    separator.silence = SilenceThreshold(-70.0, {}, {})
    assert separate_files([tmp_path / "in"], separator, tmp_path / "out", OutputOptions()).separated == 2
