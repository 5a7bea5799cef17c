"""The facts of a separation, and its display in a notebook."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
import torch

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference import Separator
from sepkit.inference.separated import GOOD_DB, USABLE_DB, Separated, expectation, summary_line
from sepkit.models import build_model
from tests.tiny_models import RECURRENT


def separated(**told) -> Separated:
    estimates = 0.1 * np.random.default_rng(0).standard_normal((2, 4000)).astype(np.float32)
    return Separated(estimates, np.ones(2), kept=np.array([0, 2]), sample_rate=8000, **told)


def test_the_sentence_tells_speakers_and_what_to_expect() -> None:
    assert summary_line(separated()) == "2 outputs"
    assert summary_line(separated(is_speaker=np.array([True, False, True]))) == "2 speakers"
    alone = separated(is_speaker=np.array([False, False, True]))
    assert summary_line(alone) == "1 speaker, in _s2 (--speakers 2 if there are more)"
    assert summary_line(separated(is_speaker=np.zeros(3, bool))) == "no sound"
    low = separated(predicted_si_sdr_db=np.full(3, 4.0), predicted_interval_db=np.tile([-0.3, 8.2], (3, 1)))
    line = "2 outputs; predicted SI-SDR 4.0 dB (90 % interval 0 to 8) if there are 2 speakers"
    assert summary_line(low) == f"{line}: usable, with audible leakage"
    point = separated(predicted_si_sdr_db=np.full(3, -0.04))
    assert summary_line(point) == "2 outputs; predicted SI-SDR 0.0 dB if there are 2 speakers"
    found = separated(
        predicted_si_sdr_db=np.array([9.0, -50.0, 10.8]),
        predicted_interval_db=np.array([[5.0, 12.0], [-60.0, -40.0], [7.2, 14.1]]),
    )
    # Means over the hypotheses that were kept: the first and the third.
    line = "2 outputs; predicted SI-SDR 9.9 dB (90 % interval 6 to 13) if there are 2 speakers: good"
    assert summary_line(found) == line
    assert repr(found) == f"Separated(2 x 0.5 s at 8000 Hz: {line})"
    found.is_speaker = np.array([True, False, True])
    assert summary_line(found) == "2 speakers; predicted SI-SDR 9.9 dB (90 % interval 6 to 13): good"
    found.or_more = True
    assert summary_line(found) == "2 speakers or more; predicted SI-SDR 9.9 dB (90 % interval 6 to 13): good"
    found.out_of_domain, found.or_more = True, False
    assert summary_line(found) == "2 speakers; quality unknown: unlike the recordings that the prediction was fitted on"
    unsure = separated(predicted_si_sdr_db=np.array([9.0, 0.0, np.nan]), is_speaker=np.array([True, False, True]))
    assert expectation(unsure) == "predicted SI-SDR 9.0 dB"
    assert expectation(separated(predicted_si_sdr_db=np.full(3, np.nan))) == ""


@pytest.mark.parametrize(
    ("low", "words"),
    [
        (GOOD_DB, "good"),
        (GOOD_DB - 0.1, "usable, with audible leakage"),
        (USABLE_DB, "usable, with audible leakage"),
        (USABLE_DB - 0.1, "probably failed"),
    ],
)
def test_words_follow_the_lower_end_of_the_interval(low: float, words: str) -> None:
    ends = np.tile([low, low + 8], (3, 1))
    speaks = np.array([True, False, True])
    found = separated(predicted_si_sdr_db=np.full(3, low + 4), predicted_interval_db=ends, is_speaker=speaks)
    assert summary_line(found).endswith(f": {words}")


def test_a_notebook_shows_a_player_for_each_estimate() -> None:
    found = separated(predicted_si_sdr_db=np.array([9.0, 0.0, 10.8]))
    found.estimates = 30 * found.estimates
    html = found._repr_html_()
    assert html.count("<audio") == 2 and "predicted 10.8 dB" in html
    for place, sound in enumerate(re.findall(r"base64,([^\"]+)", html)):
        waveform, rate = audio.decode(io.BytesIO(base64.b64decode(sound)))
        assert rate == 8000
        # One gain for all, so that nothing clips and levels stay comparable.
        expected = found.estimates[place] * 0.9 / np.abs(found.estimates).max()
        np.testing.assert_allclose(waveform.reshape(-1), expected, atol=1e-4)


def test_estimates_are_saved_and_a_separator_is_called(tmp_path) -> None:
    torch.manual_seed(0)
    separator = Separator(build_model(RECURRENT))
    mixture = torch.randn(400, generator=torch.Generator().manual_seed(0))
    found = separator(mixture, 8000)
    assert torch.equal(found.estimates, separator.separate(mixture, 8000).estimates)
    assert repr(separator) == "Separator(2 speakers at 8000 Hz on cpu)"
    paths = found.save(tmp_path / "new", "talk")
    assert [path.name for path in paths] == ["talk_s1.wav", "talk_s2.wav"]
    np.testing.assert_allclose(audio.read(paths[1]).reshape(-1), found.estimates[1], atol=1e-7)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        found.save(tmp_path / "file")
