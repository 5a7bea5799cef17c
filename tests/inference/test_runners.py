"""Mixtures that go through a model at once: the same as one by one, from whichever batch, and from folders."""

import json
import math

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sepkit.cli.main import main
from sepkit.config import ConvTasNetConfig, FreeFilterbankConfig, ModelConfig
from sepkit.data import audio
from sepkit.inference import loading
from sepkit.inference.diarization.encoders import load_encoder
from sepkit.inference.loading import load_model
from sepkit.inference.runners import latents
from sepkit.inference.runners.base import Batches
from sepkit.inference.runners.graph_runner import _rates
from sepkit.inference.runners.torch_runner import TorchRunner, device_of
from sepkit.models import build_model, features, load_pretrained, norms
from sepkit.models.published.shipped import encoder_folder, shipped_models
from sepkit.models.storage.folders import GRAPH
from tests.complaint import complaint
from tests.tiny_models import VARIATIONAL

BANK = FreeFilterbankConfig(num_filters=8)
RATE = 8000


def test_each_of_a_batch_is_what_it_is_alone(gru, batch_sizes):
    mixtures = np.random.default_rng(0).standard_normal((5, 900)) * np.logspace(-2, 0, 5)[:, None]
    runner, mixtures = TorchRunner(gru), mixtures.astype(np.float32)
    found = Batches(runner, 4).outputs(mixtures, rates=True)
    assert batch_sizes == [4, 1]
    alone = [runner.run(mixture[None], rates=True) for mixture in mixtures]
    for output, own in zip(found, alone, strict=True):
        np.testing.assert_allclose(output.estimates, own.estimates, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(output.scores, own.scores, rtol=1e-5, atol=1e-6)
    # Rates of a batch are means over it.
    for name in alone[0].rates:
        assert found[0].rates[name] == pytest.approx(np.mean([own.rates[name] for own in alone[:4]]), rel=1e-5)
        assert found[4].rates[name] == pytest.approx(alone[4].rates[name], rel=1e-5)
    assert all(output.rates is None for output in Batches(runner, 8).outputs(mixtures))


def test_rates_of_a_graph_are_means_over_the_batch_and_sums_over_the_estimates():
    masks, encodings = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[4.0, 4.0], [7.0, 7.0]])
    features = {"mask_rate_nats_per_frame": masks, "encoding_rate_nats_per_frame": encodings}
    features["log_kurtosis"] = np.ones((2, 2))
    assert _rates(features, True) == {"mask_rate_nats_per_frame": 5.5, "encoding_rate_nats_per_frame": 5.5}
    assert _rates(features, False) is None and _rates({"log_kurtosis": np.ones((2, 2))}, True) is None


def test_what_does_not_fit_into_memory_is_halved_and_said(gru, monkeypatch, capsys):
    run = TorchRunner.run

    def small(runner, mixtures, *wanted, **more):
        if len(mixtures) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return run(runner, mixtures, *wanted, **more)

    monkeypatch.setattr(TorchRunner, "run", small)
    mixtures = np.random.default_rng(0).standard_normal((7, 300)).astype(np.float32)
    batches = Batches(TorchRunner(gru), 6)
    assert len(batches.outputs(mixtures)) == 7 and batches.size == 1
    words = "sepkit: {} mixtures at once do not fit into memory; continuing with {}"
    assert capsys.readouterr().err.splitlines() == [words.format(6, 3), words.format(3, 1)]

    def broken(*arguments, **more):
        raise RuntimeError("sizes do not agree")

    monkeypatch.setattr(TorchRunner, "run", broken)
    with pytest.raises(RuntimeError, match="sizes do not agree"):
        Batches(TorchRunner(gru), 6).outputs(mixtures)


def test_how_many_go_at_once(gru):
    runner = TorchRunner(gru)
    assert [runner.batch_size(seconds) for seconds in (0.0, 5.0, 10.0, 15.0, 30.0, 100.0)] == [4, 4, 4, 2, 1, 1]
    runner.device = "cuda:0"
    assert runner.batch_size(30.0) == 8
    convolutions = build_model(ModelConfig(filterbank=BANK, masker=ConvTasNetConfig(4, 4, 4, blocks=1, repeats=1)))
    assert TorchRunner(convolutions).batch_size(5.0) == 1


def test_the_bound_on_the_mixture_by_hand():
    model, mixture = build_model(VARIATIONAL).eval(), 0.1 * torch.randn(RATE)
    model.set_signal_statistics(0.0, 0.1)
    with torch.no_grad():
        plain = model(mixture[None])
        reconstruction = model.decode(plain.encoding.sample(torch.Generator().manual_seed(5))[:, None], RATE)[0, 0]
    encoding_rate = plain.encoding.kl(plain.extras["encoding_prior"]).sum().item()
    # Multivariate Student t, see pairwise_blr_nll; its matrix inverted and its determinant taken in closed form.
    e, x = reconstruction.double().numpy() / 0.1, mixture.double().numpy() / 0.1
    a0, b0, lambda0, t = 1.0, 1e-3, 1e-6, len(x)
    quadratic = x @ x - (e @ x) ** 2 / (lambda0 + e @ e)
    evidence = (
        math.lgamma(a0 + t / 2)
        - math.lgamma(a0)
        - t / 2 * math.log(2 * math.pi * b0)
        - math.log1p(e @ e / lambda0) / 2
        - (a0 + t / 2) * math.log1p(quadratic / (2 * b0))
    )
    expected = (evidence - encoding_rate) / RATE
    bound = latents.mixture_elbo(model, mixture[None], plain, seed=5)
    assert bound is not None and bound.item() == pytest.approx(expected, rel=1e-5)
    runner, samples = TorchRunner(model), mixture.numpy()[None]
    assert runner.run(samples).rates is None
    assert "mixture_elbo_nats_per_sample" not in runner.run(samples, rates=True).rates
    output = runner.run(samples, rates=True, evidence=True)
    assert output.rates is not None and output.rates["mixture_elbo_nats_per_sample"] == pytest.approx(expected, abs=0.1)
    for what, posterior, prior in (
        ("encoding", plain.encoding, plain.extras["encoding_prior"]),
        ("mask", plain.masks, plain.extras["mask_prior"]),
    ):
        share = (posterior.kl(prior)[0].mean(-1) > 0.01).double().mean().item()
        assert output.rates[f"{what}_alive_share"] == pytest.approx(share)


class Computed(TorchDispatchMode):
    """Notes the operations on arrays of float64; single numbers of it may stay on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        if any(x.dtype == torch.float64 and x.dim() for x in tensors):
            self.found.append(func.overloadpacket.__name__)
        return out


@pytest.mark.parametrize("name", ["boxed_8k", "boxed_8k_causal"])
def test_models_that_ship_run_where_there_is_no_float64(name, monkeypatch):
    """As on Apple's accelerators: only what is on the CPU again, features for NumPy, is of float64."""
    for module in (features, latents, norms):
        monkeypatch.setattr(module, "widest", lambda _: torch.float32)
    mixture = 0.1 * np.random.default_rng(0).standard_normal((1, 4000)).astype(np.float32)
    runner = TorchRunner(load_pretrained(name))
    with Computed() as noted:
        output = runner.run(mixture, features=True, rates=True)
    assert len(output.features) == 3 * runner.variational and noted.found.count("to") == 2 * len(output.features)
    assert {*noted.found} <= {"to", "detach", "resolve_conj", "resolve_neg"}


def test_the_accelerator_of_a_mac_is_found(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *_, device: asked.append(device))
    assert device_of("auto") == torch.device("mps") and asked == [torch.device("mps")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of("auto") == torch.device("cuda:0")


@pytest.mark.parametrize(
    ("system", "device", "there", "kind"),
    [
        ("linux", "auto", "torch", "graph"), ("linux", "auto", "torch driver", "torch"),
        ("linux", "auto", "driver", "graph"), ("linux", "cpu", "torch driver", "graph"),
        ("linux", "cuda", "torch", "torch"),
        ("linux", "cuda", "torch driver CUDAExecutionProvider", "graph"), ("win32", "auto", "torch nvcuda", "torch"),
        ("win32", "auto", "torch driver", "graph"), ("darwin", "auto", "torch arm64", "torch"),
        ("darwin", "auto", "torch driver x86_64", "graph"),
    ],
)  # fmt: skip
def test_auto_is_torch_only_where_there_may_be_an_accelerator_that_graphs_lack(
    system, device, there, kind, monkeypatch
):
    words = there.split()
    monkeypatch.setattr(loading, "_DRIVERS", ("." if "driver" in words else "missing",))
    monkeypatch.setattr(loading.sys, "platform", system)
    monkeypatch.setattr(loading.platform, "machine", lambda: words[-1])
    for module, name in ((loading, "find_library"), (loading, "is_installed")):
        monkeypatch.setattr(module, name, lambda part: part if part in words else None)
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: words)
    assert loading._runs_as_graph(loading.SeparatorOptions(), device, False) == (kind == "graph")
    assert loading._runs_as_graph(loading.SeparatorOptions(), device, True)
    for runner in ("graph", "torch"):
        assert loading._runs_as_graph(loading.SeparatorOptions(runner=runner), device, False) == (runner == "graph")


def test_graphs_of_another_kind_are_refused_before_any_work():
    model, encoder = shipped_models()["boxed_8k"] / GRAPH, encoder_folder(None) / GRAPH
    complaint(lambda: load_model(encoder), "found a graph of kind speaker_encoder, expected a model that separates")
    complaint(lambda: load_encoder(model.parent), "found a graph of kind separation, expected a speaker encoder")


# ------------------------------------------------------------------------------------------------ graph against torch


RATES = (8000, 16_000, 44_100, 11_025, 48_000, 22_050, 6000, 32_000, 24_000, 96_000)


def fifty_recordings(data_folder, folder):
    """Two speakers at once, one, two in turn, and noise: .05 to 70 s, at rates of 6 to 96 kHz, also stereo."""
    speakers = sorted((data_folder / "speech_mini" / "wav8k" / "test").iterdir())
    generator = np.random.default_rng(0)

    def speech(number: int, length: int) -> np.ndarray:
        return np.resize(audio.read(min(speakers[number % len(speakers)].rglob("*.flac"))), length)

    for number, seconds in enumerate([*np.geomspace(0.05, 14, 46), 29.9, 30.3, 41.0, 70.0]):
        length, rate = round(8000 * seconds), RATES[number % len(RATES)]
        one, other = speech(number, length), speech(number + 1, length)
        turn = np.arange(length) < length // 2
        noise = 0.05 * generator.standard_normal(length, np.float32)
        kinds = (one + other, one + other + noise, one, np.where(turn, one, other), noise)
        channel = audio.resample(kinds[number % len(kinds)].astype(np.float32), 8000, rate)
        samples = np.stack([channel, 0.5 * channel], axis=1).T if number % 7 == 0 else channel
        audio.write(folder / f"{number:02d}_{rate}.wav", 0.4 * samples, rate)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--whole-seconds", "3", "--chunk-seconds", "3"]], ids=["whole", "in chunks"])
@pytest.mark.parametrize("name", ["boxed_8k", "boxed_8k_causal"])
def test_both_runners_make_the_same_of_fifty_recordings(name, options, data_folder, tmp_path):
    (tmp_path / "in").mkdir()
    recordings = fifty_recordings(data_folder, tmp_path / "in")
    for kind in ("graph", "torch"):
        words = ["--model", name, "--device", "cpu", "--runner", kind, "--rttm", "--out", str(tmp_path / kind)]
        assert main(["separate", str(recordings), *words, *options]) == 0
    worst = {"estimates, of the peak": 0.0, "prediction, dB": 0.0}
    for path in sorted(recordings.iterdir()):
        graph, torch_ = (tmp_path / kind / path.stem for kind in ("graph", "torch"))
        found, expected = (json.loads(base.with_suffix(".json").read_text()) for base in (graph, torch_))
        assert graph.with_suffix(".rttm").read_text() == torch_.with_suffix(".rttm").read_text(), path.name
        for same in ("speakers", "kept_hypotheses", "out_of_domain"):
            assert found[same] == expected[same], path.name
        values = [np.array(one["predicted_si_sdr_db"], float) for one in (found, expected)]
        assert (np.isnan(values[0]) == np.isnan(values[1])).all()
        # Rounding is 40 dB nearer to an output that is nearly empty, which is predicted to have -30 dB.
        scale = np.maximum(1.0, np.abs(values[1]) / 10)
        worst["prediction, dB"] = max(worst["prediction, dB"], *np.nan_to_num(np.abs(values[0] - values[1]) / scale))
        peak = np.abs(audio.read(path)).max()
        for estimate in expected["estimates"]:
            pair = [audio.read(tmp_path / kind / estimate) for kind in ("graph", "torch")]
            apart = np.abs(pair[0] - pair[1]).max() / peak
            worst["estimates, of the peak"] = max(worst["estimates, of the peak"], apart)
    print(name, options, worst)
    assert worst["estimates, of the peak"] < 1e-4 and worst["prediction, dB"] < 0.01


@pytest.mark.slow
def test_both_runners_stream_the_same_of_fifty_recordings(data_folder, tmp_path):
    generator, worst = np.random.default_rng(1), 0.0
    separators = [load_model("boxed_8k_causal", runner=kind) for kind in ("graph", "torch")]
    for path in sorted(fifty_recordings(data_folder, tmp_path).iterdir()):
        samples, rate = audio.read(path), audio.info(path).sample_rate
        edges = np.cumsum(generator.integers(1, rate, size=2 + len(samples) // (rate // 4)))
        pair = []
        for separator in separators:
            with separator.streaming(rate) as stream:
                parts = [stream.push(block) for block in np.split(samples, edges[edges < len(samples)])]
                pair.append(np.concatenate([*parts, stream.finish()], axis=1))
        assert pair[0].shape == pair[1].shape == (2, len(samples))
        worst = max(worst, float(np.abs(pair[0] - pair[1]).max() / np.abs(pair[1]).max()))
    print("streams, of the peak", worst)
    assert worst < 1e-4
