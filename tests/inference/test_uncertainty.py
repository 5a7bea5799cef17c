from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.signal import welch
from torch import nn

from sepkit.config import (
    BetaConfig,
    DeterministicConfig,
    FreeFilterbankConfig,
    GaussianConfig,
    LogNormalConfig,
    ModelConfig,
    RecurrentConfig,
    ScoringConfig,
)
from sepkit.errors import UserError
from sepkit.inference import Separator, uncertainty
from sepkit.inference.options import SeparatorOptions
from sepkit.inference.run_model import run_model
from sepkit.inference.uncertainty import (
    BASELINE_FEATURES,
    RunningMoments,
    _power_spectrum,
    hypothesis_features,
    mixture_features,
    monte_carlo,
    recording_features,
)
from sepkit.models import EncoderMaskerDecoder, build_model
from sepkit.models.filterbanks import STFTFilterbank
from sepkit.models.latents import Deterministic, LogNormal
from sepkit.models.priors import FixedPrior
from sepkit.objectives.assignment import PIT
from sepkit.objectives.costs import pairwise_neg_si_sdr

RATE = 8000
CONFIG = ModelConfig(
    filterbank=FreeFilterbankConfig(num_filters=8), masker=RecurrentConfig(hidden_size=4, num_layers=1)
)
VARIATIONAL = ModelConfig(
    filterbank=CONFIG.filterbank,
    masker=CONFIG.masker,
    encoding=GaussianConfig("linear"),
    masks=LogNormalConfig(),
)


class NoisyBands(nn.Module):
    """Log-normal masks that give each hypothesis one half of the bins, with or without uncertainty."""

    hypotheses = 2

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.raw_deviation = math.log(math.expm1(deviation))

    def forward(self, features):
        lower = torch.arange(features.shape[1]) < features.shape[1] // 2
        location = torch.stack([lower, ~lower]).float() * 6 - 6
        raw = torch.stack([location, torch.full_like(location, self.raw_deviation)], dim=1)
        return raw[None, ..., None].expand(len(features), -1, -1, -1, features.shape[2])


def noisy_bands(deviation=0.5):
    linear, masks = Deterministic("linear"), LogNormal()
    prior = FixedPrior(masks.standard_prior())
    model = EncoderMaskerDecoder(
        STFTFilterbank(), NoisyBands(deviation), linear, masks, sample_rate=RATE, mask_prior=prior
    )
    return model.eval()


def noise(*shape, level=0.1, seed=0):
    return level * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def features_of(model, mixture, **kwargs):
    with torch.inference_mode():
        separation = model(mixture[None])
    return recording_features(model, mixture, separation, **kwargs)


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    torch.manual_seed(0)


# --------------------------------------------------------------------------------------------------------- Monte Carlo


def test_running_moments_are_those_of_all_values():
    values = 1000 + torch.randn(50, 3, 7, dtype=torch.float64)
    moments = RunningMoments()
    for value in values:
        moments.add(value)
    np.testing.assert_allclose(moments.mean, values.mean(0), rtol=1e-13)
    np.testing.assert_allclose(moments.deviation, values.std(0), rtol=1e-9)
    assert moments.count == 50


def test_one_value_has_no_deviation():
    moments = RunningMoments()
    moments.add(torch.ones(2))
    assert moments.deviation.tolist() == [0, 0]


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_monte_carlo_is_the_mean_and_deviation_of_sampled_separations(monkeypatch, at_once):
    """Results are equal if draws are made one by one, in pairs, or in one batch."""
    model, mixture = build_model(VARIATIONAL).eval(), noise(2, 400)
    monkeypatch.setattr(uncertainty, "_SECONDS_AT_ONCE", at_once * 800 / RATE)
    drawn = monte_carlo(model, mixture, samples=5, seed=3)
    generator = torch.Generator().manual_seed(3)
    copies = [min(at_once, 5 - start) for start in range(0, 5, at_once)]
    with torch.no_grad():
        batches = [model(mixture.repeat(n, 1), generator=generator, sample=True).estimates for n in copies]
    estimates = torch.cat(batches).unflatten(0, (5, 2)).double()
    np.testing.assert_allclose(drawn.estimates, estimates.mean(0), atol=1e-12)
    np.testing.assert_allclose(drawn.spread, estimates.std(0), atol=1e-12)
    assert drawn.estimates.shape == drawn.spread.shape == (2, 2, 400)
    assert drawn.spread.min() > 0 and drawn.samples == 5


def test_the_seed_decides():
    model, mixture = build_model(VARIATIONAL).eval(), noise(1, 400)
    torch.manual_seed(1)
    first = monte_carlo(model, mixture, 3, seed=1)
    state = torch.get_rng_state()
    second, other = monte_carlo(model, mixture, 3, seed=1), monte_carlo(model, mixture, 3, seed=2)
    assert torch.equal(first.spread, second.spread) and not torch.equal(first.spread, other.spread)
    assert torch.equal(torch.get_rng_state(), state)


def test_points_have_no_spread():
    model, mixture = build_model(CONFIG).eval(), noise(1, 400)
    drawn = monte_carlo(model, mixture)
    assert not drawn.spread.any() and drawn.log_evidence is None
    torch.testing.assert_close(drawn.estimates.float(), model(mixture).estimates.detach())


@pytest.mark.parametrize("deviation", [0.05, 0.5])
def test_spread_of_log_normal_masks_is_theirs(deviation):
    # A mask that is the same over frames and bins scales; that it differs from bin to bin averages out over them.
    model, mixture = noisy_bands(deviation), noise(1, 8000)
    drawn = monte_carlo(model, mixture, samples=60)
    share = drawn.spread.square().sum(-1) / drawn.estimates.square().sum(-1)
    variance = math.exp(deviation**2) - 1
    # Overlapping windows of one sample each are drawn apart, so that part of the deviation cancels.
    assert (0.2 * variance < share).all() and (share < 1.1 * variance).all()


@pytest.mark.parametrize("deviation", [0.1, 1.0])
def test_hypotheses_keep_their_order_from_sample_to_sample(deviation):
    model, mixture = noisy_bands(deviation), noise(1, 4000)
    mean = monte_carlo(model, mixture, samples=20).estimates
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        with torch.no_grad():
            estimates = model(mixture, generator=generator, sample=True).estimates.double()
        assert PIT().matches(pairwise_neg_si_sdr(estimates, mean))[0].tolist() == [0, 1]


@pytest.mark.parametrize("samples", [1, 0, -3, 10**6, True])
def test_a_deviation_takes_two_samples(samples):
    with pytest.raises(UserError, match="samples: found"):
        monte_carlo(build_model(CONFIG), noise(1, 100), samples)


def test_spread_goes_to_the_rate_and_level_of_the_recording():
    model = noisy_bands(0.3)
    mixture = noise(RATE).numpy()
    plain = Separator(model, options=SeparatorOptions(levels="model")).separate(mixture, RATE, samples=6)
    np.testing.assert_allclose(
        plain.spread, monte_carlo(model, torch.from_numpy(mixture)[None], 6).spread[0].float(), rtol=1e-5
    )
    scaled = Separator(model).separate(mixture, RATE, samples=6)
    np.testing.assert_allclose(scaled.spread, plain.spread * np.abs(scaled.gains)[:, None], rtol=1e-5)
    faster = Separator(model).separate(np.repeat(mixture, 2), 2 * RATE, samples=6)
    assert faster.spread.shape == faster.estimates.shape == (2, 2 * RATE)
    assert np.sqrt(np.mean(faster.spread**2)) == pytest.approx(np.sqrt(np.mean(scaled.spread**2)), rel=0.25)
    assert scaled.spread.dtype == np.float32 and Separator(model).separate(mixture, RATE).spread is None


def test_the_spread_of_a_deterministic_model_is_zero():
    spread = Separator(build_model(CONFIG)).separate(noise(500), RATE, samples=2).spread
    assert isinstance(spread, torch.Tensor) and spread.shape == (2, 500) and not spread.any()


# ------------------------------------------------------------------------------------------------------------ features


def test_statistics_of_a_sine():
    time = np.arange(2 * RATE) / RATE
    found = mixture_features(0.5 * np.sin(2 * np.pi * 1000 * time + 0.1), RATE)
    assert tuple(found) == BASELINE_FEATURES
    assert found["level_dbfs"] == pytest.approx(10 * math.log10(0.125), abs=1e-6)
    assert found["crest_factor_db"] == pytest.approx(10 * math.log10(2), abs=0.05)
    assert found["spectral_centroid_hz"] == pytest.approx(1000, abs=2)
    assert found["zero_crossing_rate"] == pytest.approx(2 * 1000 / RATE, abs=1e-3)
    assert found["log_kurtosis"] == pytest.approx(math.log(1.5), abs=1e-3)
    assert found["level_deviation_db"] == pytest.approx(0, abs=0.01)
    assert found["spectral_flatness_db"] < -60
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
    found = _power_spectrum(waveform, frame)[1:]
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), rtol=1e-9)


def test_only_the_level_tells_the_gain():
    waveform = np.random.default_rng(0).standard_normal(8000)
    quiet, loud = mixture_features(0.01 * waveform, RATE), mixture_features(waveform, RATE)
    assert loud["level_dbfs"] - quiet["level_dbfs"] == pytest.approx(40)
    for name in BASELINE_FEATURES[1:]:
        assert quiet[name] == pytest.approx(loud[name], abs=1e-9)


@pytest.mark.parametrize("place", [0, 4000, 7999])
def test_a_click_has_finite_statistics(place):
    waveform = np.zeros(8000)
    waveform[place] = 1e-20
    assert all(map(math.isfinite, mixture_features(waveform, RATE).values()))


def separation_of(model, mixture, estimates):
    """Return the model's separation with other estimates."""
    with torch.no_grad():
        separation = model(mixture[None])
    separation.estimates = estimates[None]
    return separation


def test_relations_against_least_squares_and_correlations():
    model, mixture = build_model(CONFIG).eval(), noise(4000)
    estimates = torch.stack([mixture + noise(4000, seed=1), 5 * noise(4000, seed=2) + mixture])
    found = hypothesis_features(model, mixture, separation_of(model, mixture, estimates))
    e, x = estimates.double().numpy(), mixture.double().numpy()
    left = x - e.T @ np.linalg.lstsq(e.T, x, rcond=None)[0]
    np.testing.assert_allclose(found["residual_db"], 10 * np.log10(left @ left / (x @ x)), atol=1e-4)
    for i in range(2):
        gain = e[i] @ x / (e[i] @ e[i])
        level = 10 * math.log10(np.square(gain * e[i]).sum() / (x @ x))
        assert found["relative_level_db"][i] == pytest.approx(level, abs=1e-4)
        si_sdr_db = -pairwise_neg_si_sdr(estimates[None, i : i + 1], estimates[None, 1 - i : 2 - i], zero_mean=False)
        assert found["correlation_db"][i] == pytest.approx(float(si_sdr_db), abs=1e-3)


def test_estimates_that_are_alike_and_add_up_have_bounded_features():
    model, mixture = build_model(CONFIG).eval(), noise(4000)
    found = hypothesis_features(model, mixture, separation_of(model, mixture, torch.stack([mixture, mixture])))
    assert found["correlation_db"].tolist() == [60, 60] and found["residual_db"].tolist() == [-60, -60]
    assert found["relative_level_db"] == pytest.approx([0, 0], abs=1e-4)


def test_a_silent_hypothesis_has_no_features_but_the_mixtures():
    model, mixture = build_model(CONFIG).eval(), noise(4000)
    estimates = torch.stack([mixture, torch.zeros(4000)])
    found = hypothesis_features(model, mixture, separation_of(model, mixture, estimates))
    for name, values in found.items():
        assert np.isfinite(values[0])
        assert np.isfinite(values[1]) == (name in BASELINE_FEATURES)


@pytest.mark.parametrize(
    ("encoding", "masks", "own"),
    [
        (DeterministicConfig("linear"), DeterministicConfig("sigmoid"), set()),
        (DeterministicConfig("linear"), BetaConfig(), {"spread_db", "mask_rate_nats_per_tick"}),
        (
            GaussianConfig("linear"),
            DeterministicConfig("sigmoid"),
            {"spread_db", "encoding_rate_nats_per_tick", "mixture_elbo_nats_per_sample"},
        ),
        (
            GaussianConfig("linear"),
            LogNormalConfig(),
            {"spread_db", "encoding_rate_nats_per_tick", "mask_rate_nats_per_tick", "mixture_elbo_nats_per_sample"},
        ),
    ],
)
def test_a_model_has_the_features_that_there_are(encoding, masks, own):
    model = build_model(ModelConfig(filterbank=CONFIG.filterbank, masker=CONFIG.masker, encoding=encoding, masks=masks))
    found = features_of(model.eval(), noise(RATE), samples=2)
    assert found is not None
    assert set(found) == own | {"residual_db", "relative_level_db", "correlation_db"} | set(BASELINE_FEATURES)
    assert all(values.shape == (2,) and np.isfinite(values).all() for values in found.values())


def test_scores_are_features_and_one_hypothesis_is_like_no_other():
    config = ModelConfig(filterbank=CONFIG.filterbank, masker=CONFIG.masker, hypotheses=1, scoring=ScoringConfig(4))
    found = features_of(build_model(config).eval(), noise(RATE))
    assert found is not None and "score" in found and "correlation_db" not in found


def test_rates_spread_and_the_bound_on_the_mixture_by_hand():
    model, mixture = build_model(VARIATIONAL).eval(), noise(RATE)
    model.set_signal_statistics(0.0, 0.1)
    found = features_of(model, mixture, samples=4, seed=5)
    with torch.no_grad():
        plain = model(mixture[None])
        generator = torch.Generator().manual_seed(5)
        drawn = model(mixture.repeat(4, 1), generator=generator, sample=True, reconstruct=True)
    assert drawn.reconstructions is not None
    assert found is not None
    encoding_rate = plain.encoding.kl(plain.encoding_prior).sum().item()
    ticks = plain.encoding.shape[-1]
    assert found["encoding_rate_nats_per_tick"] == pytest.approx([encoding_rate / ticks] * 2, rel=1e-5)
    mask_rates = plain.masks.kl(plain.mask_prior)[0].sum((-2, -1)).tolist()
    assert found["mask_rate_nats_per_tick"] == pytest.approx([rate / ticks for rate in mask_rates], rel=1e-5)
    # Multivariate Student t, see pairwise_blr_nll; its matrix inverted and its determinant taken in closed form.
    evidence = []
    for reconstruction in drawn.reconstructions:
        e, x = reconstruction.double().numpy() / 0.1, mixture.double().numpy() / 0.1
        a0, b0, lambda0, t = 1.0, 1e-3, 1e-6, len(x)
        quadratic = x @ x - (e @ x) ** 2 / (lambda0 + e @ e)
        log_determinant = math.log1p(e @ e / lambda0)
        evidence.append(
            math.lgamma(a0 + t / 2)
            - math.lgamma(a0)
            - t / 2 * math.log(2 * math.pi * b0)
            - log_determinant / 2
            - (a0 + t / 2) * math.log1p(quadratic / (2 * b0))
        )
    expected = (np.mean(evidence) - encoding_rate) / RATE
    assert found["mixture_elbo_nats_per_sample"] == pytest.approx([expected] * 2, rel=1e-5)
    bound = uncertainty.mixture_elbo(model, mixture[None], plain, samples=200)
    assert bound is not None and bound.item() == pytest.approx(expected, abs=0.02)
    assert run_model(model, mixture[None]).rates is None
    assert "mixture_elbo_nats_per_sample" not in run_model(model, mixture[None], rates=True).rates
    output = run_model(model, mixture[None], rates=True, evidence=True)
    assert output.rates is not None and output.rates["mixture_elbo_nats_per_sample"] == pytest.approx(expected, abs=0.1)
    for what, posterior, prior in (
        ("encoding", plain.encoding, plain.encoding_prior),
        ("mask", plain.masks, plain.mask_prior),
    ):
        share = (posterior.kl(prior)[0].mean(-1) > 0.01).double().mean().item()
        assert output.rates[f"{what}_alive_share"] == pytest.approx(share)
    estimates = drawn.estimates.double()
    spread_db = 10 * (estimates.var(0).sum(-1) / estimates.mean(0).square().sum(-1)).log10()
    assert found["spread_db"] == pytest.approx(spread_db.tolist(), abs=1e-6)


@pytest.mark.parametrize("mixture", [torch.zeros(RATE), torch.full((RATE,), 0.1), noise(RATE // 2 - 1), noise(1)])
def test_silence_and_short_recordings_tell_nothing(mixture):
    assert features_of(build_model(VARIATIONAL).eval(), mixture) is None


def test_features_are_the_same_every_time():
    model, mixture = build_model(VARIATIONAL).eval(), noise(RATE)
    first, second = features_of(model, mixture), features_of(model, mixture)
    assert first is not None and second is not None
    assert all(np.array_equal(first[name], second[name]) for name in first)


# ----------------------------------------------------------------------------------------------------- long recordings


class Swapping(nn.Module):
    """Like NoisyBands, but with swapped halves if the excerpt is short."""

    hypotheses = 2

    def forward(self, features):
        lower = torch.arange(features.shape[1]) < features.shape[1] // 2
        halves = torch.stack([lower, ~lower] if features.shape[2] > 2000 else [~lower, lower]).float()
        return halves[None, :, None, :, None].expand(len(features), -1, -1, -1, features.shape[2])


def test_excerpts_of_a_long_recording_are_put_in_its_order_and_averaged():
    linear = Deterministic("linear")
    model = EncoderMaskerDecoder(STFTFilterbank(), Swapping(), linear, linear, sample_rate=RATE).eval()
    # Much in the lower half of the bins, little in the upper.
    mixture = noise(40 * RATE).cumsum(0)
    mixture = mixture - mixture.mean() + noise(40 * RATE, seed=1)
    found = features_of(model, mixture)
    assert found is not None
    assert found["relative_level_db"][0] > found["relative_level_db"][1] + 10
    excerpts = [mixture[start : start + 5 * RATE].numpy() for start in range(0, 36 * RATE, 7 * RATE)]
    for name in BASELINE_FEATURES[:-1]:
        expected = np.mean([mixture_features(excerpt, RATE)[name] for excerpt in excerpts])
        assert found[name] == pytest.approx([expected] * 2, rel=1e-6)
    assert found["log_duration_seconds"] == pytest.approx([math.log(30)] * 2)


def test_silent_excerpts_do_not_count():
    model = noisy_bands()
    mixture = torch.zeros(40 * RATE)
    mixture[: 5 * RATE] = noise(5 * RATE)
    found = features_of(model, mixture, samples=2)
    assert found is not None
    expected = mixture_features(mixture[: 5 * RATE].numpy(), RATE)
    assert found["level_dbfs"] == pytest.approx([expected["level_dbfs"]] * 2)
    mixture[: 5 * RATE] = 0
    mixture[11 * RATE // 2] = 1.0
    assert features_of(model, mixture, samples=2) is None
