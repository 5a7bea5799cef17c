import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import sepkit
from sepkit.config import ScoringConfig
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference import Separator
from sepkit.models import build_model, save_model
from tests.complaint import complaint
from tests.inference.bands import BandMasks, Scores, band_split, masked, tones
from tests.published import small_asteroid
from tests.tiny_models import RECURRENT


def at_level(mixture):
    """A recording with zero mean at the level of models that never measured theirs, and the factor back."""
    factor = mixture.std(correction=0) / 0.05
    return (mixture - mixture.mean()) / factor, factor


def test_two_tones_come_apart_at_their_levels():
    sources = tones()
    separated = band_split().separate(sources.sum(0), 8000)
    np.testing.assert_allclose(separated.estimates[:, 500:-500], sources[:, 500:-500], atol=2e-3)
    assert separated.scores is None and separated.predicted_si_sdr_db is None


@pytest.mark.parametrize("scales", [(1e3, 1e-3), (-5.0, 0.2)])
def test_a_model_without_levels_gets_those_of_the_mixture(scales):
    sources = tones()
    expected = band_split().separate(sources.sum(0), 8000)
    separated = band_split(scales).separate(sources.sum(0), 8000)
    np.testing.assert_allclose(separated.estimates, expected.estimates, atol=1e-5)
    np.testing.assert_allclose(separated.gains * np.array(scales), expected.gains, rtol=1e-4)


def test_gains_are_least_squares_fits_of_the_mixture():
    mixture = tones().sum(0)
    raw = band_split((3.0, 0.5), levels="model").separate(mixture, 8000)
    separated = band_split((3.0, 0.5)).separate(mixture, 8000)
    expected = [np.linalg.lstsq(estimate[:, None], mixture, rcond=None)[0][0] for estimate in raw.estimates]
    np.testing.assert_allclose(separated.gains, expected, rtol=1e-4)
    np.testing.assert_allclose(raw.gains, 1)
    assert (np.square(separated.estimates).sum(-1) <= np.square(mixture).sum() * (1 + 1e-5)).all()


def test_levels_of_the_model():
    model = build_model(RECURRENT)
    mixture = torch.randn(500)
    separated = Separator(model, levels="model").separate(mixture, 8000)
    leveled, factor = at_level(mixture)
    torch.testing.assert_close(separated.estimates, factor * model(leveled[None]).estimates[0].detach())


@pytest.mark.parametrize("sample_rate", [7999, 11025, 16000, 44100, 48000, 6000])
def test_other_rates_come_back_at_their_own(sample_rate):
    sources = tones(sample_rate, sample_rate, (440.0, 2400.0))
    separated = band_split().separate(sources.sum(0), sample_rate)
    edge = sample_rate // 10
    assert separated.estimates.shape == sources.shape
    np.testing.assert_allclose(separated.estimates[:, edge:-edge], sources[:, edge:-edge], atol=5e-3)


def test_channels_that_cancel_are_not_averaged(separator, tmp_path):
    voice = torch.randn(400)
    path = audio.write(tmp_path / "x.wav", torch.stack([0.9 * voice, -voice]).numpy(), 8000)
    expected = separator.separate(-voice, 8000).estimates.numpy()
    for recording, rate in ((np.stack([0.9 * voice, -voice]), 8000), (path, None), (path.read_bytes(), None)):
        with pytest.warns(UserWarning, match="cancel in their mean.* channel 1 alone"):
            separated = separator.separate(recording, rate)
        np.testing.assert_allclose(separated.estimates, expected, atol=1e-6)
    np.testing.assert_allclose(separator.separate(path, channel=1).estimates, expected, atol=1e-6)


@pytest.mark.parametrize("kind", [list, np.float64, np.float32, torch.float64, torch.float16])
def test_results_are_of_the_kind_of_the_recording(separator, kind):
    samples = torch.randn(300)
    if isinstance(kind, torch.dtype):
        waveform = samples.to(kind).requires_grad_()
    else:
        waveform = samples.tolist() if kind is list else samples.numpy().astype(kind)
    separated = separator.separate(waveform, 8000)
    expected = torch.Tensor if isinstance(kind, torch.dtype) else np.ndarray
    assert isinstance(separated.estimates, expected) and isinstance(separated.gains, expected)
    assert str(separated.estimates.dtype).endswith("float32")


def test_several_recordings_and_an_open_file_are_separated_as_each_alone(separator, tmp_path):
    recordings = [np.random.default_rng(n).standard_normal(300 + n).astype(np.float32) for n in range(3)]
    alone = [separator.separate(recording, 8000).estimates for recording in recordings]
    for found, expected in zip(separator.separate_many(recordings, 8000), alone, strict=True):
        np.testing.assert_array_equal(found.estimates, expected)
    batch = torch.from_numpy(np.stack([recording[:300] for recording in recordings]))[:, None]
    assert [tuple(found.estimates.shape) for found in separator.separate_many(batch, 8000)] == [(2, 300)] * 3
    with open(audio.write(tmp_path / "a.wav", recordings[0], 8000), "rb") as file:
        np.testing.assert_array_equal(separator(file).estimates, alone[0])
    with pytest.raises(UserError, match=r"^recording 1: waveform: found no samples"):
        separator.separate_many([recordings[0], np.zeros(0)], 8000)


def test_the_recording_is_left_as_it_was(separator):
    waveform = np.random.default_rng(0).standard_normal((2, 300))
    before = waveform.copy()
    separator.separate(waveform, 16000)
    np.testing.assert_array_equal(waveform, before)


def test_a_broken_model_is_said_to_be_broken():
    separator = Separator(build_model(RECURRENT))
    separator.model.signal_std.fill_(math.nan)
    complaint(lambda: separator.separate(torch.randn(100), 8000), "not finite")


def test_load_model_from_an_experiment_folder(tmp_path):
    model = build_model(RECURRENT)
    save_model(model, tmp_path / "exp" / "model")
    mixture = torch.randn(400)
    expected = Separator(model).separate(mixture, 8000).estimates
    for name in ("exp", "exp/model", "exp/model/model.safetensors"):
        separator = sepkit.load_model(tmp_path / name)
        assert isinstance(separator, sepkit.Separator)
        assert (separator.sample_rate, separator.hypotheses) == (8000, 2)
        assert not separator.model.training
        torch.testing.assert_close(separator.separate(mixture, 8000).estimates, expected)


def test_load_model_from_asteroid(tmp_path):
    theirs = small_asteroid().eval()
    torch.save(theirs.serialize(), tmp_path / "theirs.pth")
    mixture = torch.randn(1001)
    separator = sepkit.load_model(f"asteroid:{tmp_path / 'theirs.pth'}")
    ours = Separator(separator.model, levels="model").separate(mixture, 8000)
    with torch.no_grad():
        leveled, factor = at_level(mixture)
        torch.testing.assert_close(ours.estimates, factor * theirs(leveled[None])[0], rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------------------- unknown number of speakers


class FourOfTwo(BandMasks):
    """The lower half, the upper half, the lower half again and all, of the bins."""

    hypotheses = 4

    def rows(self, lower, frames):
        return torch.stack([lower, 1 - lower, 0.5 * lower, torch.ones_like(lower)])


def scored(scores, **options):
    return Separator(masked(FourOfTwo(), scoring_head=Scores(scores)), **options)


@pytest.mark.parametrize(
    ("scores", "threshold", "kept"),
    [
        ([1.0, 2.0, 0.5, -1.0], None, [0, 1]),  # the third is a duplicate of the first, the fourth below the threshold
        ([1.0, 2.0, 3.0, -1.0], None, [1, 2]),  # now the first is the duplicate
        ([1.0, 2.0, 3.0, -1.0], 2.5, [2]),
        ([1.0, 2.0, 3.0, 4.0], -2.0, [1, 2, 3]),  # the sum of two tones is 3 dB like each of them: no duplicate
        ([-1.0, -2.0, -3.0, -4.0], None, []),
    ],
)
def test_auto_keeps_what_scores_high_and_is_not_there_yet(scores, threshold, kept):
    separator = scored(scores, score_threshold=threshold)
    mixture = tones().sum(0)
    everything = separator.separate(mixture, 8000)
    found = separator.separate(mixture, 8000, speakers="auto")
    assert found.kept.tolist() == kept and everything.kept.tolist() == [0, 1, 2, 3]
    assert found.estimates.shape == (len(kept), len(mixture)) and found.gains.shape == (len(kept),)
    np.testing.assert_array_equal(found.estimates, everything.estimates[kept])
    np.testing.assert_array_equal(found.scores, np.float32(scores))
    for separated in (found, everything):
        assert np.flatnonzero(separated.is_speaker).tolist() == kept


@pytest.mark.parametrize(("count", "kept"), [(1, [2]), (2, [1, 2]), (3, [1, 2, 3]), (4, [0, 1, 2, 3])])
def test_a_number_keeps_the_best_and_duplicates_last(count, kept):
    found = scored([2.5, 2.0, 3.0, -1.0]).separate(torch.from_numpy(tones().sum(0)), 8000, speakers=count)
    assert isinstance(found.kept, torch.Tensor) and found.kept.tolist() == kept and found.speakers == count


def test_the_threshold_is_the_models_own(tmp_path):
    model = build_model(replace(RECURRENT, hypotheses=3, scoring=ScoringConfig(4)))
    assert Separator(model).score_threshold == 0.0
    save_model(model, tmp_path / "model", {"score_threshold": -1.5})
    separator = sepkit.load_model(tmp_path / "model")
    assert separator.score_threshold == -1.5
    mixture = tones().sum(0)
    scores = separator.separate(mixture, 8000).scores
    separator.score_threshold = float(np.sort(scores)[1])
    assert separator.separate(mixture, 8000, speakers="auto").kept.tolist() == [int(scores.argmax())]


def test_what_a_model_needs_holds_where_the_user_says_nothing():
    model = build_model(RECURRENT)
    model.info["needs"] = {"whole_seconds": 4.0, "chunk_seconds": 2.0, "overlap_seconds": 1.0, "levels": "model"}
    stated = Separator(model)
    told = Separator(model, levels="mixture", whole_seconds=30.0, chunk_seconds=10.0)
    assert (stated.levels, told.levels) == ("model", "mixture")
    lengths = [5 * 8000, 31 * 8000]
    assert [stated.is_long(length, 8000) for length in lengths] == [True, True]
    assert [told.is_long(length, 8000) for length in lengths] == [False, True]
    assert stated.provenance()["chunk_samples"] == 16000 and told.provenance()["overlap_samples"] == 8000
    model.info["needs"] = {"whole_seconds": "long"}
    complaint(lambda: Separator(model), r"info\.needs has")
