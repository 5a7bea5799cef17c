import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.signal import welch

from sepkit.config import BetaConfig, DeterministicConfig, GaussianConfig, LogNormalConfig, ScoringConfig
from sepkit.inference.quality import features
from sepkit.inference.quality.features import hypothesis_features, largest, mixture_features, recording_features
from sepkit.inference.runners.base import ModelOutput
from sepkit.inference.runners.torch_runner import TorchRunner
from sepkit.models import build_model
from sepkit.objectives.costs import pairwise_neg_si_sdr
from tests.inference.bands import BandMasks, masked
from tests.tiny_models import RECURRENT, VARIATIONAL

RATE = 8000
OF_ESTIMATES = {"residual_db", "relative_level_db", "correlation_db", "estimate_level_deviation_db"}
OF_ESTIMATES |= {"correlation_db*correlation_db"}
OF_MIXTURE = {"crest_factor_db", "spectral_flatness_db", "spectral_centroid_hz", "zero_crossing_rate"}
OF_MIXTURE |= {"log_kurtosis", "level_deviation_db", "log_duration_seconds"}
RATES_OF_MASKS = {"mask_spread_db", "mask_rate_nats_per_frame"}


def noise(*shape, level=0.1, seed=0):
    return level * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def features_of(model, mixture):
    runner, samples = TorchRunner(model), mixture.numpy()
    return recording_features(runner, samples, runner.run(samples[None], features=True))


def test_the_largest_feature_of_hypotheses_that_are_not_silent():
    found = largest({"one": np.array([-3.0, np.nan, -2.0]), "none": np.array([np.nan, np.nan])})
    assert found == {"one": -2.0, "none": -math.inf}


def test_statistics_of_a_sine():
    time = np.arange(2 * RATE) / RATE
    found = mixture_features(0.5 * np.sin(2 * np.pi * 1000 * time + 0.1), RATE)
    assert set(found) == OF_MIXTURE
    assert found["crest_factor_db"] == pytest.approx(10 * math.log10(2), abs=0.05)
    assert found["spectral_centroid_hz"] == pytest.approx(1000, abs=2) and found["spectral_flatness_db"] < -60
    assert found["zero_crossing_rate"] == pytest.approx(2 * 1000 / RATE, abs=1e-3)
    assert found["log_kurtosis"] == pytest.approx(math.log(1.5), abs=1e-3)
    assert found["level_deviation_db"] == pytest.approx(0, abs=0.01)
    assert found["log_duration_seconds"] == pytest.approx(math.log(2))


def test_statistics_of_noise():
    waveform = np.random.default_rng(0).standard_normal(80000)
    found = mixture_features(waveform, RATE)
    assert found["log_kurtosis"] == pytest.approx(math.log(scipy.stats.kurtosis(waveform, fisher=False)), abs=1e-9)
    assert found["spectral_flatness_db"] == pytest.approx(0, abs=0.1)
    assert found["spectral_centroid_hz"] == pytest.approx(2000, abs=50)
    halved = np.concatenate([waveform, 0.1 * waveform])
    assert mixture_features(halved, RATE)["level_deviation_db"] == pytest.approx(10, abs=0.3)


@pytest.mark.parametrize("frame", [256, 255, 2])
def test_the_spectrum_is_that_of_scipy(frame):
    waveform = np.random.default_rng(0).standard_normal(3000)
    expected = welch(waveform, nperseg=frame)[1][1:]
    found = features._welch(features._frame_powers(waveform, frame), frame)
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), rtol=1e-9)


def test_no_feature_depends_on_the_level():
    waveform = np.random.default_rng(0).standard_normal(8000)
    quiet, loud = mixture_features(0.01 * waveform, RATE), mixture_features(waveform, RATE)
    for name in OF_MIXTURE:
        assert quiet[name] == pytest.approx(loud[name], abs=1e-9)


@pytest.mark.parametrize("place", [0, 4000, 7999])
def test_a_click_has_finite_statistics(place):
    waveform = np.zeros(8000)
    waveform[place] = 1e-20
    assert all(map(math.isfinite, mixture_features(waveform, RATE).values()))


def features_with(model, mixture, estimates):
    """Return the features of the model's output with other estimates."""
    output = TorchRunner(model).run(mixture.numpy()[None], features=True)
    output.estimates = estimates.numpy()[None]
    return hypothesis_features(mixture.numpy(), output, RATE)


def test_relations_against_least_squares_and_correlations():
    model, mixture = build_model(RECURRENT).eval(), noise(4000)
    estimates = torch.stack([mixture + noise(4000, seed=1), 5 * noise(4000, seed=2) + mixture])
    found = features_with(model, mixture, estimates)
    e, x = estimates.double().numpy(), mixture.double().numpy()
    left = x - e.T @ np.linalg.lstsq(e.T, x, rcond=None)[0]
    np.testing.assert_allclose(found["residual_db"], 10 * np.log10(left @ left / (x @ x)), atol=1e-4)
    for i in range(2):
        gain = e[i] @ x / (e[i] @ e[i])
        level = 10 * math.log10(np.square(gain * e[i]).sum() / (x @ x))
        assert found["relative_level_db"][i] == pytest.approx(level, abs=1e-4)
        si_sdr_db = -pairwise_neg_si_sdr(estimates[None, i : i + 1], estimates[None, 1 - i : 2 - i], zero_mean=False)
        assert found["correlation_db"][i] == pytest.approx(float(si_sdr_db), abs=1e-3)


def test_squares_and_the_product_of_agreement_and_correlation():
    estimates = torch.stack([noise(4000), noise(4000, seed=1)])[None].numpy()
    output = ModelOutput(estimates, features={"agreement_db": np.array([[3.0, -7.0]])})
    found = hypothesis_features(estimates[0].sum(0), output, RATE)
    assert found["agreement_db*agreement_db"].tolist() == [9.0, 49.0]
    correlation = found["correlation_db"]
    np.testing.assert_array_equal(found["agreement_db*correlation_db"], correlation * [3, -7])
    np.testing.assert_array_equal(found["correlation_db*correlation_db"], correlation**2)


def test_estimates_that_are_alike_and_add_up_have_bounded_features():
    model, mixture = build_model(RECURRENT).eval(), noise(4000)
    found = features_with(model, mixture, torch.stack([mixture, mixture]))
    assert found["correlation_db"].tolist() == [60, 60] and found["residual_db"].tolist() == [-60, -60]
    assert found["relative_level_db"] == pytest.approx([0, 0], abs=1e-4)


def test_a_silent_hypothesis_has_no_features_but_the_mixtures():
    model, mixture = build_model(RECURRENT).eval(), noise(4000)
    for name, values in features_with(model, mixture, torch.stack([mixture, torch.zeros(4000)])).items():
        assert np.isfinite(values[0])
        assert np.isfinite(values[1]) == (name in OF_MIXTURE)


@pytest.mark.parametrize(
    ("encoding", "masks", "own"),
    [
        (DeterministicConfig("linear"), DeterministicConfig("sigmoid"), set()),
        (DeterministicConfig("linear"), BetaConfig(), RATES_OF_MASKS),
        (GaussianConfig("linear"), DeterministicConfig("sigmoid"), {"encoding_rate_nats_per_frame"}),
        (GaussianConfig("linear"), LogNormalConfig(), RATES_OF_MASKS | {"encoding_rate_nats_per_frame"}),
    ],
)
def test_a_model_has_the_features_that_there_are(encoding, masks, own):
    found = features_of(build_model(replace(RECURRENT, encoding=encoding, masks=masks)).eval(), noise(RATE))
    assert set(found) == own | OF_ESTIMATES | {"dominance"} | OF_MIXTURE
    assert all(values.shape == (2,) and np.isfinite(values).all() for values in found.values())


def test_scores_are_features_and_one_hypothesis_is_like_no_other():
    found = features_of(build_model(replace(RECURRENT, hypotheses=1, scoring=ScoringConfig(4))).eval(), noise(RATE))
    assert found is not None and "score" in found and "correlation_db" not in found


def test_rates_and_spread_by_hand():
    # Of bounded masks, a few hundred samples tell the variance.
    model, mixture = build_model(replace(VARIATIONAL, masks=BetaConfig())).eval(), noise(RATE)
    model.set_signal_statistics(0.0, 0.1)
    found = features_of(model, mixture)
    with torch.no_grad():
        plain = model(0.1 * (mixture - mixture.mean())[None] / mixture.std(correction=0))
        generator = torch.Generator().manual_seed(5)
        masks = torch.cat([plain.masks.sample(generator) for _ in range(400)])
        encoding = model.encoding_family.at_test(plain.encoding).expand(400, -1, -1)
        samples = model.decode(model.filterbank.apply_mask(masks, encoding), RATE).double()
    frames = plain.encoding.shape[-1]
    encoding_rate = plain.encoding.kl(plain.extras["encoding_prior"]).sum().item()
    assert found["encoding_rate_nats_per_frame"] == pytest.approx([encoding_rate / frames] * 2, rel=1e-5)
    mask_rates = plain.masks.kl(plain.extras["mask_prior"])[0].sum((-2, -1)).tolist()
    assert found["mask_rate_nats_per_frame"] == pytest.approx([rate / frames for rate in mask_rates], rel=1e-5)
    spread_db = 10 * (samples.var(0).sum(-1) / plain.estimates[0].square().sum(-1)).log10()
    assert found["mask_spread_db"] == pytest.approx(spread_db.tolist(), abs=0.05)


def test_how_estimates_sound():
    """A voice-like sum of harmonics, and noise that speaks in bursts."""
    model = build_model(RECURRENT).eval()
    time = torch.arange(RATE) / RATE
    voice = sum(torch.sin(2 * math.pi * 125 * k * time) / k for k in range(1, 12)) * 0.1
    bursts = noise(RATE, level=1e-4, seed=1)
    bursts[RATE // 2 : RATE // 2 + 800] *= 3000
    found = features_with(model, voice + bursts, torch.stack([voice, bursts]))
    assert found["estimate_level_deviation_db"][0] < 1 and found["estimate_level_deviation_db"][1] > 10
    expected = [mixture_features((part - part.mean()).numpy(), RATE)["level_deviation_db"] for part in (voice, bursts)]
    assert found["estimate_level_deviation_db"] == pytest.approx(expected, abs=0.05)


def test_dominance_of_estimates_that_take_turns_and_of_those_that_share_everything():
    model = build_model(RECURRENT).eval()
    voice = torch.sin(2 * math.pi * 440 * torch.arange(RATE) / RATE)
    early = (torch.arange(RATE) < RATE // 2).float()
    apart = features_with(model, voice, torch.stack([voice * early, voice * (1 - early)]))
    assert apart["dominance"] == pytest.approx([1, 1], abs=0.02)
    assert features_with(model, voice, torch.stack([voice, voice]))["dominance"] == pytest.approx([0.5, 0.5])


# ----------------------------------------------------------------------------------------------------- long recordings


class Swapping(BandMasks):
    """Halves of the bins that are swapped if the excerpt is short."""

    def rows(self, lower, frames):
        return torch.stack([lower, 1 - lower] if frames > 2000 else [1 - lower, lower])


def test_excerpts_of_a_long_recording_are_put_in_its_order_and_averaged():
    model = masked(Swapping()).eval()
    # Much in the lower half of the bins, little in the upper.
    mixture = noise(40 * RATE).cumsum(0)
    mixture = mixture - mixture.mean() + noise(40 * RATE, seed=1)
    found = features_of(model, mixture)
    assert found["relative_level_db"][0] > found["relative_level_db"][1] + 10
    excerpts = [mixture[start : start + 5 * RATE].numpy() for start in range(0, 36 * RATE, 7 * RATE)]
    for name in OF_MIXTURE - {"log_duration_seconds"}:
        expected = np.mean([mixture_features(excerpt, RATE)[name] for excerpt in excerpts])
        assert found[name] == pytest.approx([expected] * 2, rel=1e-6)
    assert found["log_duration_seconds"] == pytest.approx([math.log(30)] * 2)


def test_silent_excerpts_do_not_count():
    model = build_model(VARIATIONAL).eval()
    mixture = torch.zeros(40 * RATE)
    mixture[: 5 * RATE] = noise(5 * RATE)
    found = features_of(model, mixture)
    expected = mixture_features(mixture[: 5 * RATE].numpy(), RATE)
    assert found["log_kurtosis"] == pytest.approx([expected["log_kurtosis"]] * 2)
    mixture[: 5 * RATE] = 0
    mixture[11 * RATE // 2] = 1.0
    assert features_of(model, mixture) is None
