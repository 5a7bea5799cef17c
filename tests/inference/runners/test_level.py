"""What a model gets has one level, and what comes out follows the recording: gains change nothing else."""

import functools
import math

import numpy as np
import pytest
import torch

from sepkit.config import ModelConfig
from sepkit.data import audio
from sepkit.inference import Separator, load_model
from sepkit.inference.long.recordings import FileRecording
from sepkit.inference.runners.graph_runner import GraphRunner
from sepkit.inference.runners.level import ModelLevel, RunningLevel, standardize
from sepkit.inference.runners.torch_runner import TorchRunner
from sepkit.models import build_model
from tests.noise_voices import voice
from tests.tiny_models import CAUSAL, RECURRENT

RATE = 8000


def made(config: ModelConfig, deviation: float | None = None):
    torch.manual_seed(0)
    model = build_model(config).eval()
    if deviation is not None:
        model.set_signal_statistics(0.0, deviation)
    return model


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def running(mixture: np.ndarray, rate: int, deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Means of the docstring of `RunningLevel`, one after the other: samples (T,) and factors (T,)."""
    decay = np.exp(-1 / (10 * rate))
    samples, factors = np.zeros(len(mixture)), np.zeros(len(mixture))
    for t in range(len(mixture)):
        past, weights = mixture[: t + 1].astype(np.float64), decay ** np.arange(t, -1, -1)
        mean = np.average(past, weights=weights)
        own = np.sqrt(np.average((past - mean) ** 2, weights=weights))
        if own > 1e-7 * abs(mean):
            samples[t], factors[t] = deviation * (past[t] - mean) / own, own / deviation
    return samples, factors


# -------------------------------------------------------------------------------------------------------------- levels


def test_the_level_of_a_whole_by_hand():
    standardized, factors = standardize(np.float32([[1, 3, 1, 3], [7, 7, 7, 7], [0, 0, 0, 0], [-4, 0, 0, 4]]), 0.5)
    # The deviation of the last is the root of 8.
    last = 0.5 * 4 / math.sqrt(8)
    np.testing.assert_allclose(standardized, [[-0.5, 0.5, -0.5, 0.5], [0] * 4, [0] * 4, [-last, 0, 0, last]], rtol=1e-7)
    np.testing.assert_allclose(factors, [[2], [0], [0], [2 * math.sqrt(8)]], rtol=1e-12)
    assert standardized.dtype == np.float32 and factors.shape == (4, 1)


@pytest.mark.parametrize("constant", [0.0, 0.3, -5.0])
def test_constants_and_gains_do_not_change_what_a_model_gets(constant):
    waveform = noise(1, 4000).astype(np.float64)
    for level in (standardize, lambda mixture, std: RunningLevel(RATE, std).standardize(mixture)):
        expected, factors = level(waveform, 0.1)
        found, scaled = level(1e-3 * waveform + constant, 0.1)
        np.testing.assert_allclose(found[:, 1:], expected[:, 1:], atol=1e-6)
        np.testing.assert_allclose(scaled, 1e-3 * factors, rtol=1e-5)


@pytest.mark.parametrize("constant", [0.0, 0.3])
@pytest.mark.parametrize("size", [1, 7, 300])
def test_the_running_level_is_that_of_the_sums(size, constant):
    """At 8 Hz the weight decays to 1/e within 80 samples; speech begins after a pause, and grows louder."""
    mixtures = constant + noise(2, 300) * np.logspace(-2, 0, 300)
    mixtures[:, :20] = constant
    level = RunningLevel(8, 0.2, 2)
    parts = [level.standardize(mixtures[:, start : start + size]) for start in range(0, 300, size)]
    found, factors = (np.concatenate(side, axis=-1) for side in zip(*parts, strict=True))
    assert found.dtype == np.float32
    for row, samples, back in zip(mixtures, found, factors, strict=True):
        expected, own = running(row, 8, 0.2)
        np.testing.assert_allclose(samples, expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(back, own, rtol=1e-9)
    assert not found[:, :20].any() and not factors[:, :20].any() and factors[:, 20:].all()


def test_the_running_level_of_many_samples_is_that_of_recursive_sums():
    """Across the ends of the blocks in which it is computed."""
    mixture = 0.3 + 0.01 * noise(10_000)
    decay, weight, sums, squares, expected = np.exp(-1 / (10 * 100)), 0.0, 0.0, 0.0, []
    for sample in mixture.astype(np.float64):
        weight, sums, squares = decay * weight + 1, decay * sums + sample, decay * squares + sample**2
        expected.append((sample - sums / weight) / np.sqrt(max(squares / weight - (sums / weight) ** 2, 1e-30)))
    found, _ = RunningLevel(100, 1.0).standardize(mixture[None])
    np.testing.assert_allclose(found[0, 1:], expected[1:], atol=1e-5)


def test_the_running_level_hears_nothing_in_advance():
    mixture = noise(1, 6000)
    other = mixture.copy()
    other[:, 4500:] *= 100
    for found, expected in zip(*(RunningLevel(RATE, 1.0).standardize(x) for x in (other, mixture)), strict=True):
        np.testing.assert_array_equal(found[:, :4500], expected[:, :4500])
        assert (found[:, 4501:] != expected[:, 4501:]).any()


def test_the_level_is_that_of_training_or_the_nominal_one():
    assert ModelLevel(RATE, 1.0, False).deviation == 0.05 and ModelLevel(RATE, 0.07, True).deviation == 0.07


# ------------------------------------------------------------------------------------------------------------- runners


@pytest.mark.parametrize("deviation", [None, 0.2])
@pytest.mark.parametrize("config", [RECURRENT, CAUSAL], ids=["whole", "causal"])
def test_a_runner_gives_the_model_its_level_and_takes_it_back(config, deviation):
    model, mixtures = made(config, deviation), 3 + np.float32([[0.01], [10.0]]) * noise(2, 400)
    level = deviation or 0.05
    if config is CAUSAL:
        rows = [running(row, RATE, level) for row in mixtures]
        standardized, factors = (np.stack(side) for side in zip(*rows, strict=True))
    else:
        in_double = mixtures.astype(np.float64)
        factors = in_double.std(-1, keepdims=True) / level
        standardized = (in_double - in_double.mean(-1, keepdims=True)) / factors
    with torch.no_grad():
        raw = model(torch.from_numpy(standardized).float()).estimates.numpy()
    for estimates, expected in zip(TorchRunner(model).run(mixtures).estimates, factors[:, None] * raw, strict=True):
        np.testing.assert_allclose(estimates, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("config", [RECURRENT, CAUSAL], ids=["whole", "causal"])
def test_a_graph_and_its_model_agree_at_any_level(config, tmp_path):
    pytest.importorskip("onnx", reason="onnx is missing: pip install 'sepkit[torch]'")
    pytest.importorskip("onnxruntime", reason="onnxruntime is missing: pip install 'sepkit[torch]'")
    from sepkit.models.export.graph_file import Graph
    from sepkit.models.export.onnx_export import export_onnx

    model = made(config, 0.2)
    export_onnx(model, tmp_path / "model.onnx", [650])
    graph = Graph(tmp_path / "model.onnx")
    assert graph.causal is model.causal is (config is CAUSAL)
    for gain, constant in ((1.0, 0.0), (1e-3, 0.3), (100.0, -1.0)):
        mixture = (constant + gain * 0.1 * noise(2003)).astype(np.float32)
        runners = TorchRunner(model), GraphRunner(graph)
        estimates = [runner.run(mixture[None]).estimates[0] for runner in runners]
        atol = 1e-4 * np.abs(estimates[0]).max()
        np.testing.assert_allclose(estimates[1], estimates[0], atol=atol)
        if config is CAUSAL:
            for runner in runners:
                stream = runner.stream()
                parts = [stream.push(mixture[:700]), stream.push(mixture[700:]), stream.finish()]
                np.testing.assert_allclose(np.concatenate(parts, -1), estimates[0], atol=atol)


# ---------------------------------------------------------------------------------------------------------- separators


MODELS = ("boxed_8k", "boxed_8k_causal", "whole", "causal")
LONG = {"whole_seconds": 1.0, "chunk_seconds": 1.0, "overlap_seconds": 0.4}
WAYS = [(model, way) for model in MODELS for way in ("whole", "long", "stream") if way != "stream" or "causal" in model]


@functools.cache
def separator(model: str, way: str) -> Separator:
    options = LONG if way == "long" else {}
    if model.startswith("boxed"):
        return load_model(model, **options)
    return Separator(made(RECURRENT if model == "whole" else CAUSAL), **options)


def results(model: str, way: str, waveform: np.ndarray, rate: int) -> tuple[np.ndarray, dict]:
    """Estimates, and what is told of them."""
    if way == "stream":
        with separator(model, way).streaming(rate, "mixture") as stream:
            parts = [stream.push(block) for block in np.array_split(waveform, 7)]
            return np.concatenate([*parts, stream.finish()], -1), {}
    found = separator(model, way).separate(waveform, rate)
    assert separator(model, way).is_long(len(waveform), rate) is (way == "long")
    told = {"speakers": found.speakers, "kept": found.kept.tolist(), "out_of_domain": found.out_of_domain}
    return found.estimates, told | {"predicted": found.predicted_si_sdr_db, "gains": found.gains}


@functools.cache
def usual(model: str, way: str, rate: int) -> tuple[np.ndarray, np.ndarray, dict]:
    """Two voices, and what comes out of them."""
    waveform = voice(0, 2 * rate / RATE, 1) + voice(2, 2 * rate / RATE, 2)
    return waveform, *results(model, way, waveform, rate)


@pytest.mark.parametrize(("gain_db", "constant"), [(-90, 0.0), (-50, 0.0), (40, 0.0), (0, 0.3), (-50, 0.3)])
@pytest.mark.parametrize("rate", [8000, 16000])
@pytest.mark.parametrize(("model", "way"), WAYS)
def test_gains_and_constants_change_nothing_but_the_level(model, way, rate, gain_db, constant):
    waveform, expected, told = usual(model, way, rate)
    gain = 10 ** (gain_db / 20)
    changed = (gain * waveform.astype(np.float64) + constant).astype(np.float32)
    if constant:
        # Rounding to 24 bits beside a constant is part of the recording, and a model may amplify it.
        expected, told = results(model, way, ((changed.astype(np.float64) - constant) / gain).astype(np.float32), rate)
    found, now = results(model, way, changed, rate)
    difference = np.square(found / gain - expected, dtype=np.float64).sum(-1) / np.square(expected).sum(-1)
    assert expected.shape == (2, len(waveform)) and (10 * np.log10(difference + 1e-30) < -60).all()
    for name in ("speakers", "kept", "out_of_domain"):
        assert now.get(name) == told.get(name)
    if told and told["predicted"] is not None:
        np.testing.assert_allclose(now["predicted"], told["predicted"], atol=1e-3)
    if told:
        np.testing.assert_allclose(now["gains"], told["gains"], rtol=1e-3)


@pytest.mark.parametrize("name", ["boxed_8k", "boxed_8k_causal"])
def test_excerpts_of_a_file_have_no_constant_either(name, tmp_path):
    """A prediction hears excerpts of a long recording, which are read from its file again."""
    waveform, _, told = usual(name, "long", 16000)
    path = audio.write(tmp_path / "x.wav", waveform + np.float32(0.3), 16000, subtype="FLOAT")
    long = separator(name, "long").separate_recording(FileRecording(path))
    np.testing.assert_allclose(long.predicted_si_sdr_db, told["predicted"], atol=1e-3)
    long.estimates.close()


@pytest.mark.parametrize("constant", [0.0, 0.3, -1 / 3])
@pytest.mark.parametrize("rate", [8000, 16000])
@pytest.mark.parametrize(("model", "way"), WAYS)
def test_silence_and_constants_give_zeros(model, way, rate, constant):
    found, told = results(model, way, np.full(2 * rate, constant, np.float32), rate)
    assert found.shape == (2, 2 * rate) and not found.any()
    assert way == "stream" or told["speakers"] == 0
