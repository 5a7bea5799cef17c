"""Exported models: ONNX Runtime agrees with torch at every length, and a separator takes either."""

import json
import sys
import warnings
from dataclasses import dataclass, replace
from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sepkit
from sepkit import config as c
from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.models import build_model, load_pretrained, save_model
from sepkit.models.features import latent_features
from sepkit.models.maskers import Masker, tiger
from sepkit.registry import register
from tests.complaint import complaint

onnx = pytest.importorskip("onnx", reason="onnx is missing: pip install 'sepkit[torch]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is missing: pip install 'sepkit[torch]'")

from sepkit.models.export import onnx_export  # noqa: E402
from sepkit.models.export.graph_description import METADATA  # noqa: E402
from sepkit.models.export.graph_file import Graph  # noqa: E402
from sepkit.models.export.onnx_export import TOLERANCE, export_onnx  # noqa: E402

LINEAR, SOFTMAX, GELU = (c.DeterministicConfig(activation=name) for name in ("linear", "softmax", "gelu"))
NORMAL, LOG_NORMAL = c.GaussianConfig(), c.LogNormalConfig()
FREE = c.FreeFilterbankConfig(num_filters=12)
PADDED = c.FreeFilterbankConfig(12, 21, 10, padding=10, output_padding=9, multiple=80)
STFT = c.STFTFilterbankConfig(64, 32)
COMPLEX = replace(STFT, complex_masks=True)
AT_THE_END = c.STFTFilterbankConfig(64, 24, complex_masks=True, synthesis_size=32)
MAPPED = c.STFTFilterbankConfig(16, 8, 1.0, features="real_imaginary", complex_masks=True, mapping=True)
TCN = c.ConvTasNetConfig(6, 10, 6, blocks=2, repeats=2)
LSTM = c.RecurrentConfig(rnn="lstm", hidden_size=8, num_layers=2)
ONE_WAY = c.GatedRecurrenceConfig(8, 6, 10, 1, bidirectional=False)
SR_CORRNET = c.SRCorrNetConfig(8, 1, 1, 2, 5, 7)


def of(masker: c.MaskerConfig, filterbank: c.FilterbankConfig = FREE, **fields) -> c.ModelConfig:
    return c.ModelConfig(filterbank=filterbank, masker=masker, **fields)


def mapping(masker: c.MaskerConfig, **changes) -> c.ModelConfig:
    """A model whose masker makes the coefficients of the estimates."""
    return of(masker, replace(MAPPED, **changes), masks=LINEAR)


CONFIGS = {
    "conv_tasnet": of(TCN),
    "as_asteroid": of(TCN, pad="asteroid", hypotheses=3),
    "causal": of(replace(TCN, norm="cumulative_layer_norm", causal=True)),
    "batch_norm": of(replace(TCN, norm="batch_norm", skip_channels=0)),
    "dual_path_rnn": of(c.DualPathRNNConfig(6, 5, 20, 10, 2)),
    "dual_path_gru": of(c.DualPathRNNConfig(6, 5, 21, 8, 1, rnn="gru", norm="channel_layer_norm")),
    "sudormrf": of(c.SuDoRMRFConfig(6, 12, 2, 3), PADDED, masks=SOFTMAX),
    "improved_sudormrf": of(c.ImprovedSuDoRMRFConfig(6, 12, 2, 3), PADDED, pad="asteroid"),
    "recurrent_stft": of(c.RecurrentConfig(hidden_size=8, num_layers=2), c.STFTFilterbankConfig(64, 16)),
    # As in the shipped model, one deviation per bin is expanded to the batch inside the graph.
    "variational": of(LSTM, STFT, encoding=NORMAL, masks=LOG_NORMAL, scoring=c.ScoringConfig(4)),
    "gated_recurrence": of(c.GatedRecurrenceConfig(8, 6, 10, 2), COMPLEX, encoding=NORMAL, masks=NORMAL),
    "synthesis windows at the end": of(ONE_WAY, AT_THE_END, masks=LINEAR),
    "bands, real and imaginary parts": of(
        replace(ONE_WAY, bands=5), replace(COMPLEX, features="real_imaginary"), masks=LINEAR
    ),
    "sepreformer": of(
        c.SepReformerConfig(6, 1, 2, 5, 30), replace(FREE, num_filters=6, mapping=True), encoding=GELU, masks=LINEAR
    ),
    "tf_locoformer": replace(
        mapping(c.TFLocoformerConfig(4, 1, 2, 8, 5, 3, 2), kernel_size=32, stride=16, like_torch=True),
        input_norm="mixture",
    ),
    "sr_corrnet": replace(mapping(SR_CORRNET), input_norm="mixture"),
    "sr_corrnet, counting": replace(mapping(replace(SR_CORRNET, count_speakers=True)), hypotheses=3),
    "tiger": replace(
        mapping(c.TIGERConfig(16000, 4, 4, 1, 3, 2, 2, edge_frames=1), kernel_size=640, stride=160, like_torch=True),
        sample_rate=16000,
    ),
    "gamma": of(TCN, masks=c.GammaConfig(), estimate_scales=True),
    "sepformer": of(c.SepFormerConfig(8, 1, 10, 1, 2, 12)),
}
LENGTHS = [1, 17, 650, 2003]
# One of every kind of latent.
WITH_FEATURES = ["gated_recurrence", "variational", "gamma"]


def made(config: c.ModelConfig):
    torch.manual_seed(0)
    model = build_model(config).eval()
    model.set_signal_statistics(0.03, 0.2)
    return model


@pytest.fixture(scope="module", autouse=True)
def _few_bands():
    """Every band adds as many nodes to a graph: a few bands of each width in place of 67."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tiger, "_LAYOUT", ((2, 25), (1, 100), (1, 250), (1, 500)))
        yield


@pytest.mark.parametrize("name", CONFIGS)
def test_onnx_runtime_gives_what_torch_gives(name, tmp_path, capfd):
    model = made(CONFIGS[name])
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = export_onnx(model, path, LENGTHS)
    assert list(report.differences) == LENGTHS and max(report.differences.values()) < TOLERANCE / 3
    graph = Graph(path)
    # ONNX Runtime alone runs it, with lengths and batches that the export has not seen.
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert not capfd.readouterr().err  # of the export, and of a session that logs warnings
    for batch, length in ((3, 777), (1, 1330)):
        mixture = 0.1 * torch.randn(batch, length)
        with torch.no_grad():
            expected = model(mixture)
        if graph.state:
            values = graph.separate(mixture.numpy(), graph.outputs)
        else:
            outputs = session.run(None, {"mixture": mixture.numpy()})
            values = dict(zip([output.name for output in session.get_outputs()], outputs, strict=True))
        largest = float(expected.estimates.abs().max())
        np.testing.assert_allclose(values["estimates"], expected.estimates.numpy(), atol=1e-5 * largest, rtol=0)
        assert ("scores" in values) == (expected.scores is not None)
        if expected.scores is not None:
            np.testing.assert_allclose(values["scores"], expected.scores.numpy(), atol=1e-5)
    separator, recording = sepkit.load_model(path), np.ones(500, np.float32)
    assert (separator.default_speakers == "auto") == model.counts_speakers
    if model.counts_speakers:
        line = complaint(lambda: separator.separate(recording, 8000, speakers=2))
        assert line == "speakers: found 2, but this graph counts, and cannot be told; use the model it was made of"
    if name in WITH_FEATURES:
        mixtures = 0.1 * torch.randn(3, 4001)
        with torch.no_grad():
            features = latent_features(model, model(mixtures))
        assert graph.features == tuple(features) and "mask_spread_db" in features
        found = graph.separate(mixtures.numpy(), graph.features)
        for feature, wanted in features.items():
            np.testing.assert_allclose(found[feature], wanted.numpy(), rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("name", ["conv_tasnet", "dual_path_rnn", "variational", "gated_recurrence"])
def test_openvino_gives_what_torch_gives(name, tmp_path):
    openvino = pytest.importorskip("openvino", reason="openvino is missing: pip install openvino")
    model = made(CONFIGS[name])
    export_onnx(model, tmp_path / "model.onnx", LENGTHS[:1])
    graph = openvino.Core().compile_model(tmp_path / "model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for batch, length in ((3, 777), (1, 1330)):
        mixture = 0.1 * torch.randn(batch, length)
        with torch.no_grad():
            expected = model(mixture).estimates.numpy()
        found = graph({"mixture": mixture.numpy()})["estimates"]
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max(), rtol=0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with a model, and the same as a graph."""
    folder = tmp_path_factory.mktemp("exported")
    model = made(replace(CONFIGS["conv_tasnet"], scoring=c.ScoringConfig(4)))
    save_model(model, folder / "exp" / "model", {"epoch": 3, "score_threshold": 0.25})
    assert main(["export", str(folder / "exp"), "--out", str(folder / "model.onnx")]) == 0
    return folder


def test_the_command_tells_what_it_compared_and_made(exported, tmp_path, printed):
    lines = printed(["export", exported / "exp", "--out", tmp_path / "again.onnx"]).splitlines()
    assert lines[-1] == str(tmp_path / "again.onnx") and "1 samples: differs from torch by" in lines[0]
    assert len([line for line in lines if "differs from torch by" in line]) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["again.onnx"]


@pytest.mark.parametrize("rate", [8000, 11025])
def test_a_separator_takes_an_exported_model(exported, rate):
    separators = [sepkit.load_model(exported / name) for name in ("exp", "model.onnx")]
    graph = separators[1]
    assert (graph.sample_rate, graph.hypotheses, graph.score_threshold) == (8000, 2, 0.25)
    recording = 0.1 * np.random.default_rng(0).standard_normal(3001).astype(np.float32)
    expected, found = (separator.separate(recording, rate) for separator in separators)
    np.testing.assert_allclose(found.estimates, expected.estimates, atol=1e-5)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    np.testing.assert_array_equal(found.is_speaker, expected.is_speaker)
    assert found.rates is None


def test_exported_models_are_told_apart(exported, tmp_path):
    export_onnx(made(CONFIGS["conv_tasnet"]), tmp_path / "other.onnx", [100])
    prints = [sepkit.load_model(path).fingerprint() for path in (exported / "model.onnx", tmp_path / "other.onnx")]
    assert prints[0] != prints[1] and prints[0] == sepkit.load_model(exported / "model.onnx").fingerprint()


def test_commands_take_an_exported_model(exported, make_corpus, tmp_path, printed, capsys):
    graph = str(exported / "model.onnx")
    generator = np.random.default_rng(0)
    for number in range(4):
        noise = 0.1 * generator.standard_normal(301 + 977 * number).astype(np.float32)
        audio.write(tmp_path / "in" / f"{number}.wav", noise, (8000, 16000)[number % 2])
    line = ["separate", str(tmp_path / "in"), "--model", graph, "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(line) == 0
    assert len(list((tmp_path / "out").glob("*_s?.wav"))) == 8
    manifest = make_corpus(tmp_path / "corpus", count=2).manifest
    assert main(["evaluate", "--model", graph, "--manifest", str(manifest), "--out", str(tmp_path / "scores")]) == 0
    assert json.loads((tmp_path / "scores" / "summary.json").read_text())["n_utterances"] == 2
    capsys.readouterr()
    described = printed(["models", "--model", graph])
    assert "sample_rate: 8000" in described and "epoch: 3" in described


def test_what_an_exported_model_is_not_for(exported, capsys):
    assert "separates and evaluates only" in complaint(lambda: load_pretrained(exported / "model.onnx"))
    assert main(["export", str(exported / "model.onnx"), "--out", "again.onnx"]) == 2
    capsys.readouterr()
    assert main(["export", str(exported / "exp"), "--out", "again.pt"]) == 2
    assert "--out again.pt: expected a file that ends in .onnx" in capsys.readouterr().err
    assert main(["report", str(exported / "exp"), "--out", "page.txt"]) == 2
    assert "--out page.txt: expected a file that ends in .html" in capsys.readouterr().err


def test_a_graph_that_separates_no_recording_is_not_kept(exported, tmp_path, capsys, monkeypatch):
    def fails(self, mixture, *arguments, **options):
        raise UserError("ONNX Runtime failed")

    monkeypatch.setattr("sepkit.models.export.onnx_export.difference", lambda *arguments: 0.0)
    monkeypatch.setattr(Graph, "separate", fails)
    assert main(["export", str(exported / "exp"), "--out", str(tmp_path / "model.onnx")]) == 2
    assert "separates no recording" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------------- what cannot be


@dataclass
class FixedConfig(c.MaskerConfig, name="fixed_length_of_a_test"):
    """A masker that no graph holds, in one of several ways."""

    way: str = "counts"


@register(FixedConfig)
class Fixed(Masker):
    def __init__(self, encoding_dim, hypotheses=2, values_per_dimension=1, *, way="counts"):
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        self.way = way

    def forward(self, features):
        if self.way == "counts":
            # int() makes the number of frames of the example a constant of the graph.
            features = features * int(features.shape[-1]) / 1000
        elif self.way == "batch":
            # The graph only fits batches of the example's size.
            features = features + torch.zeros(int(features.shape[0]), 1, 1)
        elif self.way == "eigenvalues":
            features = features * torch.linalg.eigvalsh(features @ features.transpose(1, 2))[:, :, None]
        return features[:, None, None].expand(-1, self.hypotheses, 1, -1, -1)


@pytest.mark.parametrize(
    ("way", "message"),
    [("counts", "differs from torch by"), ("batch", "gives estimates of shape"), ("eigenvalues", "no ONNX graph")],
)
def test_what_has_no_such_graph_is_refused_and_nothing_written(way, message, tmp_path):
    model = made(of(FixedConfig(way)))
    assert message in complaint(lambda: export_onnx(model, tmp_path / "model.onnx"))
    assert not list(tmp_path.iterdir())


def test_the_length_with_the_largest_difference_is_named(tmp_path, monkeypatch):
    found = {(5, 1): 0.1, (6, 3): 0.5}
    monkeypatch.setattr(onnx_export, "difference", lambda model, graph, length, batch: found.get((length, batch), 0.0))
    message = complaint(lambda: export_onnx(made(CONFIGS["conv_tasnet"]), tmp_path / "model.onnx", [5, 6, 7]))
    assert "differs from torch by 5.0e-01 of the largest value in a mixture of 6 samples" in message


@pytest.mark.parametrize(
    ("name", "wanted", "found", "expected"),
    [
        ("estimates", [[[0.0, 2.0, -4.0]]], [[[0.4, 2.0, -4.0]]], 0.1),
        ("estimates", [[[0.0, 0.0]]], [[[0.0, -0.5]]], 0.5), ("embeddings", [[0.1, -0.2]], [[0.1, -0.15]], 0.25),
        ("scores", [[0.5, -10.0]], [[0.7, -11.0]], 0.2), ("mask_spread_db", [[nan, 1.0]], [[nan, 1.5]], 0.5),
        ("mask_spread_db", [[1.0]], [[nan]], inf), ("estimates", [[[nan]]], [[[1.0]]], inf),
    ],
)  # fmt: skip
def test_differences_by_hand(name, wanted, found, expected, monkeypatch):
    """Of estimates and embeddings relative to the largest value, of others to their own or to 1; features of 0.1 s."""
    graph = SimpleNamespace(outputs=[name], sample_rate=1000, features=["mask_spread_db"])
    graph.separate = lambda noise, outputs: {name: np.array(found)}
    monkeypatch.setattr(onnx_export, "_outputs", lambda model, waveforms: {name: torch.tensor(wanted)})
    model = made(CONFIGS["conv_tasnet"])
    assert onnx_export.difference(model, graph, 100) == pytest.approx(expected)
    assert name == "mask_spread_db" or onnx_export.difference(model, graph, 99) == pytest.approx(expected)
    assert name != "mask_spread_db" or onnx_export.difference(model, graph, 99) == 0


def test_a_path_that_is_not_to_be_written(tmp_path):
    model = made(CONFIGS["conv_tasnet"])
    assert "ends in .onnx" in complaint(lambda: export_onnx(model, tmp_path / "model.pt"))
    (tmp_path / "file").write_text("")
    assert "cannot be written to" in complaint(lambda: export_onnx(model, tmp_path / "file" / "model.onnx", [100]))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(exported, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    model = made(CONFIGS["conv_tasnet"])
    assert "sepkit[torch]" in complaint(lambda: export_onnx(model, tmp_path / "model.onnx"))
    if package == "onnxruntime":
        assert "need onnxruntime" in complaint(lambda: Graph(exported / "model.onnx"))


def graph_of(path, inputs, outputs, description):
    """A graph that hands its first input on, with these names, types and ranks."""
    kinds = {"float": onnx.TensorProto.FLOAT, "double": onnx.TensorProto.DOUBLE}

    def values(named):
        make = onnx.helper.make_tensor_value_info
        return [make(name, kinds[kind], [f"{name}{axis}" for axis in range(rank)]) for name, kind, rank in named]

    nodes = [onnx.helper.make_node("Identity", [inputs[0][0]], [name]) for name, _, _ in outputs]
    graph = onnx.helper.make_graph(nodes, "g", values(inputs), values(outputs))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    onnx.helper.set_model_props(model, {METADATA: description})
    onnx.save(model, str(path))


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([("audio", "float", 2)], [("estimates", "float", 3)]),
        ([("mixture", "float", 3)], [("estimates", "float", 3)]),
        ([("mixture", "double", 2)], [("estimates", "double", 3)]),
        ([("mixture", "float", 2), ("more", "float", 1)], [("estimates", "float", 3)]),
        ([("mixture", "float", 2)], [("scores", "float", 2)]),
    ],
)
def test_graphs_with_other_inputs_or_outputs_are_refused(inputs, outputs, exported, tmp_path):
    graph_of(tmp_path / "model.onnx", inputs, outputs, onnx.load(str(exported / "model.onnx")).metadata_props[0].value)
    assert "model.onnx: " in complaint(lambda: Graph(tmp_path / "model.onnx"))


def test_a_graph_that_takes_too_long_is_stopped(exported, monkeypatch):
    monkeypatch.setattr("sepkit.limits.ONNX_SECONDS", 0.01)
    monkeypatch.setattr("sepkit.limits.ONNX_SECONDS_PER_SECOND", 0.0)
    model = Graph(exported / "model.onnx")
    assert "stopped after 0 s" in complaint(lambda: model.separate(np.zeros((8, 400_000), np.float32)))


def test_files_that_are_no_exported_model(exported, tmp_path):
    path = tmp_path / "model.onnx"
    assert "no such file" in complaint(lambda: sepkit.load_model(path))
    for content in (b"", b"no graph", (exported / "model.onnx").read_bytes()[:3000]):
        path.write_bytes(content)
        assert "model.onnx" in complaint(lambda: sepkit.load_model(path))
    for metadata in ({}, {METADATA: "{"}, {METADATA: "[]"}, {METADATA: '{"format": 99}'}, {METADATA: '{"format": 1}'}):
        graph = onnx.load(str(exported / "model.onnx"))
        del graph.metadata_props[:]
        onnx.helper.set_model_props(graph, metadata)
        onnx.save(graph, str(path))
        assert "model.onnx" in complaint(lambda: Graph(path))
