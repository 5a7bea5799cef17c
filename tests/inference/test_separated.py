"""The facts of a separation, and its display in a notebook."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

from sepkit.data import audio
from sepkit.inference import Separator
from sepkit.inference.selection import Selection
from sepkit.inference.separated import GOOD_DB, USABLE_DB, Prediction, Separated, summary_line
from sepkit.models import build_model
from tests.complaint import complaint
from tests.tiny_models import RECURRENT

BOTH, FIRST, NONE = np.array([True, False, True]), np.array([True, False, False]), np.zeros(3, bool)


def separated(is_speaker=None, si_sdr_db=None, interval_db=(5.7, 13.05), *, or_more=False, **told) -> Separated:
    """Return the first and the third of three hypotheses, with a prediction for each if an SI-SDR is given."""
    estimates = 3 * np.random.default_rng(0).standard_normal((2, 4000)).astype(np.float32)
    selection = Selection(np.ones(3), np.array([0, 2]), is_speaker, count_is_lower_bound=or_more)
    prediction = None
    if si_sdr_db is not None:
        prediction = Prediction(np.broadcast_to(np.array(si_sdr_db), 3), np.broadcast_to(interval_db, (3, 2)), **told)
    return Separated(estimates, 8000, selection, prediction=prediction)


PREDICTED = "predicted SI-SDR 9.9 dB (90 % interval 6 to 13)"
WORSE = "predicted SI-SDR 4.0 dB (90 % interval 0 to 8) if there are 2 speakers"
LEAKS = "usable, with audible leakage"
UNKNOWN = "quality unknown: unlike the recordings that the prediction was fitted on"
SURE = [9.0, -50.0, 10.8], [[5.0, 12.0], [-60.0, -40.0], [7.2, 14.1]]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (separated(), "2 outputs"),
        (separated(BOTH), "2 speakers"),
        (separated(FIRST[::-1]), "1 speaker, in _s2 (--speakers 2 if there are more)"),
        (separated(NONE), "no sound"),
        (separated(None, 4.0, [-0.3, 8.2]), f"2 outputs; {WORSE}: {LEAKS}"),
        (separated(None, -0.04, np.nan), "2 outputs; predicted SI-SDR 0.0 dB if there are 2 speakers"),
        # Means over the hypotheses that were kept: the first and the third.
        (separated(None, *SURE), f"2 outputs; {PREDICTED} if there are 2 speakers: good"),
        (separated(BOTH, *SURE), f"2 speakers; {PREDICTED}: good"),
        (separated(BOTH, *SURE, or_more=True), f"2 speakers or more; {PREDICTED}: good"),
        (separated(BOTH, *SURE, out_of_domain=True), f"2 speakers; {UNKNOWN}"),
        (separated(BOTH, [9.0, 0.0, np.nan], np.nan), "2 speakers; predicted SI-SDR 9.0 dB"),
        (separated(BOTH, np.nan), "2 speakers"),
    ],
)
def test_the_sentence_tells_speakers_and_what_to_expect(found: Separated, line: str) -> None:
    assert summary_line(found) == line
    assert repr(found) == f"Separated(2 x 0.5 s at 8000 Hz: {line})"


def test_a_failure_that_is_likely_is_a_flag() -> None:
    lows = {USABLE_DB - 0.1: True, USABLE_DB: False, np.nan: False}
    assert {low: separated(BOTH, 4.0, [low, 20.0]).likely_not_separated for low in lows} == lows
    # The mean over the hypotheses that were kept, the first and the third.
    apart = [[USABLE_DB - 1, 9], [-50, 9], [USABLE_DB + 2, 9]]
    assert not separated(BOTH, 4.0, apart).likely_not_separated and not separated().likely_not_separated


@pytest.mark.parametrize(
    ("low", "words"),
    [(GOOD_DB, "good"), (GOOD_DB - 0.1, LEAKS), (USABLE_DB, LEAKS), (USABLE_DB - 0.1, "probably failed")],
)
def test_words_follow_the_lower_end_of_the_interval(low: float, words: str) -> None:
    assert summary_line(separated(BOTH, low + 4, [low, low + 8])).endswith(f": {words}")


@pytest.mark.parametrize(("peak", "shown", "rate"), [(9.0, 0.9, 8000), (0.91, 0.9, 60), (0.5, 0.5, 8000)])
def test_a_notebook_shows_a_player_for_each_estimate(peak: float, shown: float, rate: int) -> None:
    """One gain for all, so that nothing clips and levels stay comparable; the first minute of a longer recording."""
    found = separated(None, [9.0, 0.0, 10.8])
    heard = found.estimates[:, : 60 * rate]
    heard *= peak / np.abs(heard).max()
    html = replace(found, sample_rate=rate)._repr_html_()
    assert html.count("<audio") == 2 and "predicted 10.8 dB" in html and "predicted 0.0 dB" not in html
    assert ("The first 60 s are here." in html) == (rate == 60)
    for place, sound in enumerate(re.findall(r"base64,([^\"]+)", html)):
        waveform, _ = soundfile.read(io.BytesIO(base64.b64decode(sound)))
        np.testing.assert_allclose(waveform, heard[place] * shown / peak, atol=1e-4)


def test_estimates_are_saved_and_a_separator_is_called(tmp_path) -> None:
    separator = Separator(build_model(RECURRENT))
    mixture = torch.randn(400, generator=torch.Generator().manual_seed(0))
    found = separator(mixture, 8000)
    assert torch.equal(found.estimates, separator.separate(mixture, 8000).estimates)
    assert repr(separator) == "Separator(2 speakers at 8000 Hz on cpu)"
    paths = found.save(tmp_path / "new", "talk")
    assert [path.name for path in paths] == ["talk_s1.wav", "talk_s2.wav"]
    np.testing.assert_allclose(audio.read(paths[1]).reshape(-1), found.estimates[1], atol=1e-7)
    (tmp_path / "file").write_text("")
    complaint(lambda: found.save(tmp_path / "file"), "file")
