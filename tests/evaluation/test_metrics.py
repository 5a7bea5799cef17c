"""Metrics against independent implementations, closed forms, and their answers to odd input."""

import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sepkit.evaluation import metrics
from tests.complaint import complaint


def _speechlike(rows: int, num_samples: int = 16000, seed: int = 0) -> np.ndarray:
    """Noise with a low-pass spectrum and a slow envelope."""
    white = np.random.default_rng(seed).standard_normal((rows, num_samples))
    spectrum = np.fft.rfft(white) / (1 + np.arange(num_samples // 2 + 1) / 400)
    envelope = 0.2 + np.sin(np.arange(num_samples) / 700 + np.arange(rows)[:, None]) ** 2
    return np.fft.irfft(spectrum, num_samples) * envelope


def _with_noise(sources: np.ndarray, snr_db: float) -> np.ndarray:
    noise = _speechlike(len(sources), sources.shape[-1], seed=1)
    gain = np.linalg.norm(sources, axis=-1) / np.linalg.norm(noise, axis=-1)
    return sources + noise * (gain * 10 ** (-snr_db / 20))[:, None]


@pytest.mark.parametrize("snr_db", [-30, -10, 0, 10, 30, 60])
def test_si_sdr_equals_fast_bss_eval(snr_db: float) -> None:
    from fast_bss_eval.torch import si_sdr_loss

    sources = _speechlike(3) + 0.1
    estimates = _with_noise(sources, snr_db)
    expected = -si_sdr_loss(torch.from_numpy(estimates), torch.from_numpy(sources), zero_mean=True)
    np.testing.assert_allclose(metrics.si_sdr_db(estimates, sources), expected, atol=1e-5)


@pytest.mark.parametrize("si_sdr_db", [-40.0, -3.0, 0.0, 12.5, 60.0])
def test_si_sdr_of_orthogonal_noise_is_the_energy_ratio(si_sdr_db: float) -> None:
    source, noise = _speechlike(2)
    source, noise = source - source.mean(), noise - noise.mean()
    noise -= source * (noise @ source) / (source @ source)
    noise *= np.linalg.norm(source) / np.linalg.norm(noise) * 10 ** (-si_sdr_db / 20)
    assert metrics.si_sdr_db(source + noise, source) == pytest.approx(si_sdr_db, abs=1e-9)


@given(gain=st.floats(1e-3, 1e3), offset=st.floats(-10, 10), sign=st.sampled_from([-1, 1]))
@settings(deadline=None, max_examples=25)
def test_si_sdr_ignores_level_sign_and_mean(gain: float, offset: float, sign: int) -> None:
    sources = _speechlike(2, 500)
    estimates = _with_noise(sources, 7.0)
    changed = metrics.si_sdr_db(sign * gain * estimates + offset, sources / gain - offset)
    np.testing.assert_allclose(changed, metrics.si_sdr_db(estimates, sources), atol=1e-5)


@pytest.mark.parametrize("snr_db", [-20, 0, 20, 50])
def test_sdr_equals_bss_eval(snr_db: float) -> None:
    import mir_eval

    sources = _speechlike(2, 8000)
    estimates = _with_noise(sources, snr_db)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        expected = mir_eval.separation.bss_eval_sources(sources, estimates, compute_permutation=False)[0]
    np.testing.assert_allclose(metrics.sdr_db(estimates, sources), expected, atol=1e-4)


def test_sdr_of_several_estimates_of_each_source() -> None:
    sources = _speechlike(2, 8000)
    estimates = np.stack([_with_noise(sources, 10.0), _with_noise(sources, -5.0), 0 * sources])
    estimates[1, 0, 7] = np.nan
    together = metrics.sdr_db(estimates, sources)
    alone = np.stack([metrics.sdr_db(rows, sources) for rows in estimates])
    np.testing.assert_allclose(together, alone, atol=1e-9)
    assert np.isnan(together[1, 0]) and together[2].tolist() == [-100, -100]
    np.testing.assert_allclose(metrics.sdr_db(estimates[0, 0], sources)[0], alone[0, 0], atol=1e-9)


@pytest.mark.parametrize("snr_db", [0, 30])
def test_sir_and_sar_equal_bss_eval(snr_db: float) -> None:
    import mir_eval

    sources = _speechlike(2, 8000)
    estimates = _with_noise(sources + 0.2 * sources[::-1], snr_db)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        expected = mir_eval.separation.bss_eval_sources(sources, estimates, compute_permutation=False)[:3]
    np.testing.assert_allclose(np.stack(metrics.bss_eval_db(estimates, sources)), np.stack(expected), atol=1e-3)


def test_a_batch_has_the_scores_of_its_mixtures() -> None:
    sources = np.stack([_speechlike(2, 4000, seed=seed) for seed in range(3)])
    estimates = _with_noise(sources.reshape(6, -1), 10.0).reshape(sources.shape) + 0.1 * sources[:, ::-1]
    sources[1, 0] = 0
    for metric in (metrics.bss_eval_db, metrics.sdr_db, metrics.si_sdr_db, metrics.snr_db):
        single = [metric(e, s) for e, s in zip(estimates, sources, strict=True)]
        np.testing.assert_allclose(metric(estimates, sources), np.stack(single, axis=-2), atol=1e-6)
    assert np.isnan(metrics.bss_eval_db(estimates, sources)[0]).tolist() == [[False] * 2, [True] * 2, [False] * 2]


def test_bss_eval_needs_sources_that_speak() -> None:
    sources = _speechlike(2, 4000)
    for values in metrics.bss_eval_db(np.stack([sources] * 2), np.stack([sources, sources * [[1], [0]]])):
        assert np.isfinite(values[0]).all() and np.isnan(values[1]).all()
    with pytest.raises(ValueError, match="equal shapes"):
        metrics.bss_eval_db(sources, sources[:1])


def test_snr_is_the_energy_ratio_and_counts_the_level() -> None:
    sources = _speechlike(2)
    np.testing.assert_allclose(metrics.snr_db(_with_noise(sources, 7.0), sources), 7.0, atol=1e-9)
    np.testing.assert_allclose(metrics.snr_db(0.5 * sources, sources), 20 * np.log10(2), atol=1e-9)
    assert metrics.snr_db(0 * sources[0], sources[0]) == 0
    assert np.isnan(metrics.snr_db(sources[0], 0 * sources[0])) and metrics.snr_db(sources[0], sources[0]) == 100


def test_attenuation_is_the_level_under_the_mixture() -> None:
    mixture = _speechlike(1)[0]
    estimates = torch.from_numpy(np.stack([0.1 * mixture, 0 * mixture, -mixture]))
    np.testing.assert_allclose(metrics.attenuation_db(estimates, torch.from_numpy(mixture)), [20, 100, 0], atol=1e-9)
    assert np.isnan(metrics.attenuation_db(mixture, 0 * mixture))


def test_improvement_is_over_the_mixture() -> None:
    sources = _speechlike(2)
    estimates, mixture = _with_noise(sources, 10.0), sources.sum(0)
    improvement = metrics.si_sdri_db(estimates, sources, mixture)
    expected = metrics.si_sdr_db(estimates, sources) - metrics.si_sdr_db(np.stack([mixture, mixture]), sources)
    np.testing.assert_array_equal(improvement, expected)
    batched = metrics.si_sdri_db(np.stack([estimates] * 3), np.stack([sources] * 3), np.stack([mixture] * 3))
    np.testing.assert_allclose(batched, np.stack([expected] * 3), atol=1e-12)
    assert metrics.si_sdri_db(mixture, sources[0], mixture) == 0


def test_stoi_and_pesq_are_those_of_their_packages() -> None:
    pystoi = pytest.importorskip("pystoi")
    pesq = pytest.importorskip("pesq", reason="pesq is missing: pip install 'sepkit[metrics]'")
    sources = _speechlike(2, 24000)
    estimates = _with_noise(sources, 5.0)
    for row in range(2):
        stoi = pystoi.stoi(sources[row], estimates[row], 8000)
        assert metrics.stoi(estimates, sources, 8000)[row] == pytest.approx(stoi, abs=1e-12)
        extended = pystoi.stoi(sources[row], estimates[row], 8000, extended=True)
        assert metrics.stoi(estimates, sources, 8000, extended=True)[row] == pytest.approx(extended, abs=1e-12)
        for rate, mode in ((8000, "nb"), (16000, "wb")):
            score = pesq.pesq(rate, sources[row].astype(np.float32), estimates[row].astype(np.float32), mode)
            assert metrics.pesq(estimates, sources, rate)[row] == pytest.approx(score, abs=1e-6)


def _bursts(count: int, seconds: float, pause: float, rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise of varying level in bursts of some seconds with pauses, and the same with more noise."""
    pair = np.random.default_rng(0).standard_normal((2, count, round((seconds + pause) * rate)))
    pair[0] *= 1 + np.sin(9 * np.arange(pair.shape[2]) / rate)
    pair[0, :, round(seconds * rate) :] = 0
    source, noise = pair.reshape(2, -1)
    return source, source + 0.1 * noise


@pytest.mark.parametrize(("rate", "mode"), [(8000, "nb"), (16000, "wb")])
def test_pesq_of_a_long_pair_is_that_of_its_package_and_leaves_no_room_for_too_many_utterances(rate, mode) -> None:
    package = pytest.importorskip("pesq", reason="pesq is missing: pip install 'sepkit[metrics]'")
    source, estimate = _bursts(20, 0.7, 0.3, rate)
    expected = package.pesq(rate, source.astype(np.float32), estimate.astype(np.float32), mode)
    assert metrics.pesq(estimate, source, rate) == pytest.approx(expected, abs=1e-6)
    source, estimate = _bursts(52, 0.35, 0.25, rate)
    with pytest.raises(metrics.NoScore, match="up to 52 utterances, expected at most 40"):
        metrics.pesq_of_pair(estimate, source, rate)
    # Neither a hum nor an offset hides the pauses.
    hum = 1 + np.sin(2 * np.pi * 50 / rate * np.arange(len(source)))
    assert np.isnan(metrics.pesq(estimate, source + hum, rate))


@pytest.mark.parametrize(
    ("level_db", "seconds", "pause", "count"),
    [(-30, 0.3, 0.3, 5), (-41, 0.3, 0.3, 1), (-30, 0.1, 0.3, 1), (-30, 0.3, 0.0, 2)],
    ids=["faint", "too faint", "too short", "no pause"],
)
def test_utterances_are_stretches_between_pauses(level_db: float, seconds: float, pause: float, count: int) -> None:
    """A second of a tone, and then four bursts of it that rise and fall, in a band that a filter lets through."""
    rate = 8000
    tone = np.sin(2 * np.pi * 1000 * np.arange(rate) / rate)
    burst = tone[: round(seconds * rate)] * np.hanning(round(seconds * rate)) * 10 ** (level_db / 20)
    rest = [np.zeros(rate // 2), *([burst, np.zeros(round(pause * rate))] * 4)]
    assert metrics._utterances(np.concatenate([tone * np.hanning(rate), *rest]), rate) == count


def test_pesq_ends_at_the_length_that_its_package_has_room_for() -> None:
    pytest.importorskip("pesq", reason="pesq is missing: pip install 'sepkit[metrics]'")
    source, estimate = _bursts(91, 1.0, 0.0, 8000)
    with pytest.raises(metrics.NoScore, match="lasts 91 s, expected at most 90 s"):
        metrics.pesq_of_pair(estimate, source, 8000)


def test_a_crash_of_pesq_leaves_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pesq", reason="pesq is missing: pip install 'sepkit[metrics]'")
    monkeypatch.setattr(metrics, "PESQ_UTTERANCES", 1000)
    source, estimate = _bursts(100, 0.35, 0.25, 8000)
    with pytest.raises(metrics.NoScore, match="ended its process with exit code"):
        metrics.pesq_of_pair(estimate, source, 8000)


METRICS = {
    "si_sdr_db": metrics.si_sdr_db,
    "sdr_db": metrics.sdr_db,
    "stoi": lambda e, s: metrics.stoi(e, s, 8000),
    "pesq": lambda e, s: metrics.pesq(e, s, 8000),
}


@pytest.mark.parametrize("name", METRICS)
def test_numpy_and_torch_agree_and_keep_their_kind(name: str) -> None:
    sources = _speechlike(4, 12000).reshape(2, 2, -1).astype(np.float32)
    estimates = (sources + 0.3 * sources[:, ::-1]).astype(np.float32)
    of_numpy = METRICS[name](estimates, sources)
    of_torch = METRICS[name](torch.from_numpy(estimates), torch.from_numpy(sources))
    assert isinstance(of_numpy, np.ndarray) and of_numpy.shape == (2, 2) and of_numpy.dtype == np.float64
    assert isinstance(of_torch, torch.Tensor) and of_torch.dtype == torch.float64
    np.testing.assert_allclose(of_numpy, of_torch.numpy(), atol=1e-9, rtol=0)
    assert isinstance(METRICS[name](estimates[0, 0], sources[0, 0]), np.floating)


@pytest.mark.parametrize("name", METRICS)
def test_a_silent_source_has_no_score(name: str) -> None:
    estimate = _speechlike(1)[0]
    assert np.isnan(METRICS[name](estimate, np.zeros_like(estimate)))
    assert np.isnan(METRICS[name](np.zeros_like(estimate), np.zeros_like(estimate)))
    assert np.isnan(METRICS[name](estimate, np.full_like(estimate, 0.1)))
    rows = METRICS[name](np.stack([estimate, estimate]), np.stack([estimate, 0 * estimate]))
    assert np.isfinite(rows[0]) and np.isnan(rows[1])


ENDS = [("si_sdr_db", -100, 100), ("sdr_db", -100, 100), ("stoi", 0, 1), ("pesq", 1.0169, 4.549)]


@pytest.mark.parametrize(("name", "worst", "best"), ENDS)
def test_a_silent_estimate_scores_worst_and_a_perfect_one_best(name: str, worst: float, best: float) -> None:
    source = _speechlike(1)[0]
    assert METRICS[name](np.zeros_like(source), source) == pytest.approx(worst, abs=1e-3)
    assert METRICS[name](source, source) == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_give_nan(name: str, bad: float) -> None:
    source = _speechlike(1)[0]
    broken = source.copy()
    broken[5] = bad
    assert np.isnan(METRICS[name](broken, source))
    assert np.isnan(METRICS[name](source, broken))


@pytest.mark.parametrize("num_samples", [1, 2, 100, 511, 513])
def test_short_signals(num_samples: int) -> None:
    estimate, source = np.random.default_rng(0).standard_normal((2, num_samples))
    for name, metric in METRICS.items():
        # One sample is all mean; STOI and PESQ want more than these signals hold.
        assert np.isnan(metric(estimate, source)) == (num_samples == 1 or name in ("stoi", "pesq"))


def test_a_source_that_its_shifts_predict_has_an_sdr() -> None:
    tone = np.sin(np.arange(8000) / 5)
    noise = np.random.default_rng(0).standard_normal(8000)
    assert metrics.sdr_db(tone + 0.1 * noise, tone) == pytest.approx(17, abs=0.5)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("shapes", [((3,), (4,)), ((0,), (0,)), ((2, 5), (2, 1)), ((), ())])
def test_lengths_must_be_equal_and_not_zero(name: str, shapes: tuple) -> None:
    words = re.escape(f"signals of shape {shapes[0]} and {shapes[1]}, expected the same number of samples")
    with pytest.raises(ValueError, match=words):
        METRICS[name](np.ones(shapes[0]), torch.ones(shapes[1]))


def test_pesq_refuses_other_rates() -> None:
    with pytest.raises(ValueError, match="8000 and 16000"):
        metrics.pesq(np.ones(8), np.ones(8), 44100)


def test_pesq_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pesq", None)
    complaint(lambda: metrics.pesq(np.ones(8), np.ones(8), 8000), r"sepkit\[metrics\]")


def test_gradients_reach_the_estimate() -> None:
    source = torch.from_numpy(_speechlike(1)[0])
    estimate = torch.from_numpy(_with_noise(_speechlike(1), 3.0)[0]).requires_grad_()
    metrics.si_sdr_db(estimate, source).backward()
    assert estimate.grad is not None and estimate.grad.abs().max() > 0


def test_integers_reversed_and_read_only_arrays_are_signals_too() -> None:
    estimate, source = (1000 * _speechlike(2, 4000)).astype(np.int16)
    expected = metrics.si_sdr_db(estimate.astype(float), source.astype(float))
    source.flags.writeable = False
    assert metrics.si_sdr_db(estimate[::-1], source[::-1]) == pytest.approx(expected, abs=1e-9)
