"""Views of a recording: means, their order and level, and how far they agree."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from sepkit.data import audio
from sepkit.inference import Separator, separate_files
from sepkit.inference.runners.base import AGREEMENT
from sepkit.inference.runners.torch_runner import TorchRunner
from sepkit.inference.runners.views import ViewsRunner
from sepkit.inference.separated import summary_line
from sepkit.models import build_model
from tests.complaint import complaint
from tests.inference.bands import BandMasks, masked, tones
from tests.tiny_models import RECURRENT

RATE = 8000


class Bands(BandMasks):
    """Everything below 2 kHz, and everything above; in the other order and at other levels every second time."""

    calls = 0

    def rows(self, lower, frames):
        self.calls += 1
        return super().rows(lower, frames).flip(0) if self.calls % 2 == 0 else torch.stack([lower, 1 - lower])


def model(scales=(1.0, 1.0)):
    return masked(Bands(scales))


@pytest.mark.parametrize("views", [2, 3, 5])
def test_views_are_ordered_and_leveled_like_the_first(views):
    sources = tones()
    plain = TorchRunner(model()).run(sources.sum(0)[None], features=True)
    output = ViewsRunner(TorchRunner(model((-3.0, 0.2))), views).run(sources.sum(0)[None], features=True)
    inside = slice(400, -400)
    np.testing.assert_allclose(output.estimates[..., inside], plain.estimates[..., inside], atol=3e-3)
    assert (output.features[AGREEMENT] > 20).all() and AGREEMENT not in plain.features


def test_noise_that_differs_between_views_is_averaged_away():
    """An estimate with an error that no other view has gets better, and agrees less the larger the error is."""

    class Noisy(TorchRunner):
        deviation = 0.0

        def run(self, mixtures, *wanted, **more):
            output = super().run(mixtures, *wanted, **more)
            shape = output.estimates.shape
            noise = np.random.default_rng(shape[-1]).standard_normal(shape, np.float32)
            output.estimates += np.float32(self.deviation) * noise
            return output

    sources, agreements, predicted = tones(RATE, 4 * RATE), [], []
    for deviation in (0.02, 0.1):
        runner = Noisy(model())
        runner.deviation = deviation
        alone = runner.run(sources.sum(0)[None]).estimates[0]
        runner.model.masker.calls = 0
        output = ViewsRunner(runner, 2).run(sources.sum(0)[None], features=True)
        error, before = (np.square((found - sources)[:, 400:-400]).mean() for found in (output.estimates[0], alone))
        assert error < 0.62 * before
        agreements.append(output.features[AGREEMENT][0].mean())
        predicted.append(Separator(runner, views=2).separate(sources.sum(0), RATE).predicted_si_sdr_db)
    assert agreements[0] - agreements[1] == pytest.approx(20 * np.log10(5), abs=1.0)
    assert (predicted[0] > predicted[1]).all()


@pytest.mark.parametrize(("hypotheses", "views", "predicts"), [(2, 2, True), (2, 1, False), (1, 2, False)])
def test_one_output_or_one_view_predicts_nothing(hypotheses, views, predicts):
    separator = Separator(build_model(replace(RECURRENT, hypotheses=hypotheses)), views=views)
    assert (separator.quality is not None) is predicts


@pytest.mark.parametrize("seconds", [1, 3])
def test_views_predict_the_si_sdr_of_a_model_that_was_never_calibrated(tmp_path, seconds):
    options = {"whole_seconds": 1.0, "chunk_seconds": 1.0, "overlap_seconds": 0.5}
    mixture = tones(RATE, seconds * RATE).sum(0)
    path = audio.write(tmp_path / "tones.wav", mixture, RATE)
    separate_files([path], Separator(model(), views=2, **options), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "tones.json").read_text())
    assert written["predicted_by"] == "agreement of views"
    for value, (low, high) in zip(written["predicted_si_sdr_db"], written["predicted_interval_db"], strict=True):
        assert low < value < high
    found = Separator(model(), views=2).separate(mixture, RATE)
    # Tones in a model of nothing are unlike speech.
    assert found.out_of_domain and summary_line(found).startswith("2 outputs; quality unknown")
    line = summary_line(replace(found, prediction=replace(found.prediction, out_of_domain=False)))
    interval = r"\(90 % interval -?\d+ to \d+\)"
    rest = "by the agreement of views if there are 2 speakers: (good|usable, with audible leakage|probably failed)"
    assert re.fullmatch(rf"2 outputs; predicted SI-SDR \d+\.\d dB {interval} {rest}", line)
    assert Separator(model()).separate(mixture, RATE).prediction is None
    silent = Separator(model(), views=2).separate(np.zeros(RATE, np.float32), RATE)
    assert np.isnan(silent.predicted_si_sdr_db).all() and summary_line(silent) == "no sound"


@pytest.mark.parametrize("num_samples", [1, 2, 400])
def test_short_recordings_have_views(num_samples):
    found = Separator(model(), views=3).separate(np.ones(num_samples, np.float32), RATE)
    assert found.estimates.shape == (2, num_samples) and np.isfinite(found.estimates).all()


def test_live_sound_has_one_view():
    complaint(lambda: Separator(model(), views=2).streaming(), "views: found 2, but live sound has one view")
