"""Files of graphs: what their bytes hold, which are refused, and that torch's weights lie in them by name."""

import json
import resource
import shutil
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

import sepkit
from sepkit.config import GatedRecurrenceConfig, RecurrentConfig, SpeakerEncoderConfig
from sepkit.errors import UserError
from sepkit.files import file_digest
from sepkit.limits import ONNX_SECONDS, ONNX_SECONDS_PER_SECOND
from sepkit.models import build_model, load_checkpoint, load_weights_into, save_model
from sepkit.models.features import latent_features
from sepkit.models.saved import weights_fingerprint
from sepkit.models.speaker_encoder import SpeakerEncoder
from tests.complaint import complaint
from tests.models.export.test_export import CONFIGS, made

onnx = pytest.importorskip("onnx", reason="onnx is missing: pip install 'sepkit[torch]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is missing: pip install 'sepkit[torch]'")

from sepkit.models.export.graph_description import METADATA  # noqa: E402
from sepkit.models.export.graph_file import Graph, Session, _providers  # noqa: E402
from sepkit.models.export.onnx_export import export_onnx, save_graph  # noqa: E402
from sepkit.models.storage.onnx_reader import read_onnx  # noqa: E402


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model whose weights are those that half precision holds, and its file."""
    model = made(CONFIGS["gated_recurrence"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    export_onnx(model, path, [900])
    return model, path


def changed(path, to, description=None, change=lambda proto: None):
    """Write a graph again with another description, or with another change."""
    proto = onnx.load(str(path))
    change(proto)
    if description is not None:
        known = json.loads(proto.metadata_props[0].value)
        del proto.metadata_props[:]
        onnx.helper.set_model_props(proto, {METADATA: json.dumps(known | description)})
    to.write_bytes(proto.SerializeToString())
    return to


def test_the_reader_finds_what_the_library_finds(exported):
    _, path = exported
    proto, contents = onnx.load(str(path)), read_onnx(path.read_bytes())
    onnx.checker.check_model(proto)
    stored = [*proto.graph.initializer, *proto.training_info[0].algorithm.initializer]
    named = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in stored}
    assert contents.tensors.keys() == named.keys()
    for name, values in named.items():
        np.testing.assert_array_equal(contents.tensors[name], values)
        assert contents.tensors[name].dtype == values.dtype
    assert {node.op_type for node in proto.graph.node} <= contents.operators
    assert contents.opset == proto.opset_import[0].version
    assert contents.metadata == {prop.key: prop.value for prop in proto.metadata_props}


def test_weights_lie_in_the_file_by_name_in_half_precision(exported):
    model, path = exported
    tensors = read_onnx(path.read_bytes()).tensors
    for name, parameter in model.named_parameters():
        assert tensors[name].dtype == np.float16
        np.testing.assert_array_equal(tensors[name].astype(np.float32), parameter.detach().numpy())
    graph = Graph(path)
    assert graph.fingerprint == weights_fingerprint(model) and graph.variational
    assert (graph.sample_rate, graph.hypotheses, graph.signal_std) == (8000, 2, float(model.signal_std))


def test_an_encoder_of_voices_as_a_graph(tmp_path):
    encoder = SpeakerEncoder(SpeakerEncoderConfig(channels=8, pooled=6, dimensions=4)).eval()
    report = export_onnx(encoder, tmp_path / "voices.onnx")
    graph = Graph(tmp_path / "voices.onnx")
    assert (graph.kind, graph.embedding_size, graph.sample_rate) == ("speaker_encoder", 4, encoder.sample_rate)
    assert len(report.differences) == 6
    waveforms = 0.1 * torch.randn(3, 12_345)
    with torch.no_grad():
        expected = encoder(waveforms).numpy()
    found = graph.run({"waveforms": waveforms.numpy()}, ["embeddings"])["embeddings"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


EXTERNAL = onnx.TensorProto.EXTERNAL


def hidden_operator(proto):
    next(node for node in proto.graph.node if node.op_type == "Scan").attribute[0].g.node[0].op_type = "Einsum"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda proto: setattr(proto.graph.initializer[0], "data_location", EXTERNAL), "names other files"),
        (lambda proto: setattr(proto.graph.node[0], "domain", "com.microsoft"), "com.microsoft::"),
        (hidden_operator, "'Einsum'"),
        (lambda proto: proto.functions.add(name="f", domain="own"), "operators of its own"),
    ],
)
def test_graphs_that_do_more_than_compute_are_refused(change, message, exported, tmp_path):
    changed(exported[1], tmp_path / "model.onnx", change=change)
    assert message in complaint(lambda: Graph(tmp_path / "model.onnx"))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"format": 3}, "not of format 2"), ({"features_version": 99}, "features are of version 99"),
        ({"features": ["loudness"]}, "'loudness'"), ({"features": ["mask_spread_db"]}, "its outputs are"),
        ({"kind": "mixer"}, "kind"), ({"fingerprint": None}, "fingerprint"),
        ({"hypotheses": 3}, "gives estimates of shape (1, 2, 700), expected (1, 3, 700)"),
        ({"score_loss": 4}, "score_loss"),
    ],
)  # fmt: skip
def test_descriptions_that_do_not_fit_are_refused(description, message, exported, tmp_path):
    changed(exported[1], tmp_path / "model.onnx", description)
    mixture = np.ones((1, 700), np.float32)
    assert message in complaint(lambda: Graph(tmp_path / "model.onnx").separate(mixture))


@pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 31), reason="older ones fold whatever the size"
)
@pytest.mark.parametrize("kind", ["products", "doubled"])
def test_constants_that_grow_are_not_computed_while_a_graph_is_loaded(kind, exported, tmp_path):
    """Products that take minutes, and 8 GB in 31 steps from 16 bytes."""

    def grow(proto):
        helper = onnx.helper
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([12_000, 12_000]), "sizes"))
        if kind == "products":
            value = helper.make_tensor("v", onnx.TensorProto.FLOAT, [1], [1.0])
            nodes = [helper.make_node("ConstantOfShape", ["sizes"], ["c0"], value=value)]
            nodes += [helper.make_node("MatMul", [f"c{k}", "c0"], [f"c{k + 1}"]) for k in range(40)]
        else:
            nodes = [helper.make_node("Cast", ["sizes"], ["c0"], to=1)]
            nodes += [helper.make_node("Concat", [f"c{k}"] * 2, [f"c{k + 1}"], axis=0) for k in range(31)]
        proto.graph.node.extend([*nodes, helper.make_node("ReduceMax", [nodes[-1].output[0]], ["unused"], keepdims=0)])
        proto.graph.output.append(helper.make_tensor_value_info("unused", onnx.TensorProto.FLOAT, []))

    changed(exported[1], tmp_path / "model.onnx", change=grow)
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "its outputs are" in complaint(lambda: Graph(tmp_path / "model.onnx"))
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


CPU, CUDA, COREML = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "CoreML"))


@pytest.mark.parametrize(
    ("device", "there", "expected"),
    [
        ("auto", [CPU], [CPU]), ("auto", [COREML, CPU], [CPU]), ("auto", [CUDA, CPU], [(CUDA, {}), CPU]),
        ("cpu", [CUDA, CPU], [CPU]), ("cuda", [CUDA, CPU], [(CUDA, {}), CPU]),
        ("cuda:1", [CUDA, CPU], [(CUDA, {"device_id": "1"}), CPU]), ("coreml", [COREML, CPU], [(COREML, {}), CPU]),
        ("cuda", [CPU], "use cpu or auto"), ("cuda:x", [CUDA, CPU], "use cuda, cpu or auto"),
        ("cpu:1", [CPU], "use cpu or auto"), ("coreml:1", [COREML, CPU], "use coreml, cpu or auto"),
        ("tpu", [CPU], "use cpu or auto"),
    ],
)  # fmt: skip
def test_devices(device, there, expected):
    if isinstance(expected, list):
        assert _providers(device, there) == expected
    else:
        complaint(
            lambda: _providers(device, there), f"found '{device}', which ONNX Runtime does not have here; {expected}"
        )


@pytest.fixture
def options(monkeypatch):
    """Options of the sessions that are made, which open nothing."""
    made = []
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda content, options, providers: made.append(options))
    return made


@pytest.mark.parametrize(
    ("threads", "wanted", "policy", "expected"),
    [
        (None, "", "", (0, "0")), (None, "3", "", (3, "0")), (2, "3", "passive", (2, "0")),
        (None, "x", "active", (0, "1")),
    ],
)  # fmt: skip
def test_threads_of_a_session(threads, wanted, policy, expected, options, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    Session(Path("x"), b"", threads=threads)
    (given,) = options
    assert (given.intra_op_num_threads, given.get_session_config_entry("session.intra_op.allow_spinning")) == expected


@pytest.mark.parametrize(
    ("error", "bounded", "kind", "words"),
    [
        ("bad_alloc", True, UserError, "x: takes more memory for 2.0 s of sound than there is"),
        ("bad_alloc", False, MemoryError, "x: bad_alloc"),
        (
            "late",
            True,
            UserError,
            f"on 16000 samples .stopped after {ONNX_SECONDS + 2 * ONNX_SECONDS_PER_SECOND:.0f} s",
        ),
        ("of\nlines", False, UserError, "x: ONNX Runtime failed on 16000 samples .of lines"),
    ],
)
def test_failures_of_a_session(error, bounded, kind, words, options):
    def run(outputs, inputs, options):
        options.terminate = error == "late"
        raise RuntimeError(error)

    session = Session(Path("x"), b"")
    session.inner, session._bounded, session._bounded_by = SimpleNamespace(run=run), bounded, lambda _: nullcontext()
    with pytest.raises(kind, match=words) as caught:
        session.run({}, [], 16000, 8000)
    assert type(caught.value) is kind


# ----------------------------------------------------------------------------------------------------- torch loads them


def test_torch_loads_the_weights_of_a_graph(tmp_path):
    model = build_model(replace(CONFIGS["gated_recurrence"], masker=GatedRecurrenceConfig(32, 32, 64, 2))).eval()
    model.set_signal_statistics(1e-5, 0.0712345)
    model.info = {"epoch": 3}
    whole = save_model(model, tmp_path / "half", model.info)
    report = save_graph(model, tmp_path / "half")
    assert sorted(path.name for path in whole.iterdir()) == ["model.onnx", "model.yaml"]
    # The nodes of the graph take some 145 kB.
    assert report.num_bytes < 2 * sum(parameter.numel() for parameter in model.parameters()) + 150_000
    loaded = load_checkpoint(whole)
    assert loaded.info == {"epoch": 3} and loaded.config == model.config
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
    # Statistics and constants are as they were; weights are rounded to 11 bits.
    for name, tensor in loaded.named_buffers():
        assert torch.equal(tensor, model.get_buffer(name)), name
    for name, tensor in loaded.named_parameters():
        assert torch.equal(tensor, model.get_parameter(name).half().float()), name
    graph = Graph(whole / "model.onnx")
    assert graph.fingerprint == weights_fingerprint(loaded)
    assert sepkit.load_model(whole).fingerprint() == graph.fingerprint
    # Fine-tuning begins with them, from the folder as from the file.
    fresh = build_model(model.config)
    assert not load_weights_into(fresh, whole).missing
    assert weights_fingerprint(fresh) == graph.fingerprint
    assert weights_fingerprint(load_checkpoint(whole / "model.onnx")) == graph.fingerprint


@pytest.mark.parametrize("name", ["sudormrf", "batch_norm", "dual_path_gru", "sepformer", "variational"])
def test_every_masker_comes_back_from_its_graph(name, tmp_path):
    """Also where the graph computes with other modules than torch, and leaves weights unused."""
    model = made(CONFIGS[name])
    with torch.no_grad():
        for buffer in model.buffers():
            if buffer.is_floating_point() and buffer.numel() > 1 and buffer.dim() == 1:
                buffer += 0.1
    save_graph(model, tmp_path)
    for tensor_name, tensor in load_checkpoint(tmp_path).state_dict().items():
        expected = model.state_dict()[tensor_name]
        is_weight = tensor_name in dict(model.named_parameters())
        assert torch.equal(tensor, expected.half().float() if is_weight else expected), tensor_name


def test_what_half_precision_cannot_hold_is_not_saved(tmp_path):
    model = made(CONFIGS["conv_tasnet"])
    with torch.no_grad():
        next(iter(model.parameters())).view(-1)[0] = 1e5
    assert "not finite in half precision" in complaint(lambda: save_graph(model, tmp_path / "model"))
    assert not (tmp_path / "model").exists()


@pytest.fixture(scope="module")
def as_shipped(tmp_path_factory):
    """A model as it ships."""
    folder = tmp_path_factory.mktemp("shipped")
    save_graph(made(CONFIGS["conv_tasnet"]), folder)
    return folder


@pytest.mark.parametrize("change", ["weights", "shape", "cut", "description"])
def test_graphs_that_are_not_the_description_s_are_refused(change, as_shipped, tmp_path):
    shutil.copytree(as_shipped, tmp_path, dirs_exist_ok=True)
    path, text = tmp_path / "model.onnx", tmp_path / "model.yaml"
    proto = onnx.load(str(path))
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "masker.output.weight")
    if change == "weights":
        weight.raw_data = bytes(len(weight.raw_data))
    elif change == "shape":
        weight.dims[0] += 1
        weight.raw_data += weight.raw_data[: len(weight.raw_data) // (weight.dims[0] - 1)]
    path.write_bytes(path.read_bytes()[:-100] if change == "cut" else proto.SerializeToString())
    if change == "shape":
        text.write_text(yaml.safe_dump(yaml.safe_load(text.read_text()) | {"weights_sha256": file_digest(path)}))
    if change == "description":
        text.write_text(text.read_text().replace("weights_sha256", "weights_md5"))
    assert "model.onnx: " in complaint(lambda: load_checkpoint(tmp_path))


# ------------------------------------------------------------------------------------------------------- block by block

RECURRENCE = GatedRecurrenceConfig(8, 6, 10, 2, bidirectional=False, norm="channel_layer_norm")
CAUSAL = {
    "gated_recurrence": replace(CONFIGS["gated_recurrence"], masker=RECURRENCE, hypotheses=3),
    "bands": CONFIGS["bands, real and imaginary parts"],
    "cumulative norm": CONFIGS["causal"],
    "lstm": replace(CONFIGS["recurrent_stft"], masker=RecurrentConfig("lstm", 8, 2, bidirectional=False)),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_blocks_of_any_size_give_what_torch_gives(name, tmp_path):
    model = made(CAUSAL[name])
    export_onnx(model, tmp_path / "model.onnx", [100])
    graph = Graph(tmp_path / "model.onnx")
    mixtures = 0.1 * torch.randn(2, 4003)
    with torch.no_grad():
        separation = model(mixtures)
        expected = separation.estimates.numpy()
        features = latent_features(model, separation)
    largest = np.abs(expected).max()
    found = graph.separate(mixtures.numpy(), graph.outputs)
    np.testing.assert_allclose(found["estimates"], expected, atol=1e-5 * largest, rtol=0)
    assert graph.features == tuple(features)
    for feature, values in features.items():
        np.testing.assert_allclose(found[feature], values.numpy(), rtol=2e-5, atol=2e-4)
    stream, generator = graph.stream(), np.random.default_rng(0)
    parts, at = [], 0
    while at < 4003:
        size = int(generator.integers(0, 300))
        parts.append(stream.push(mixtures[0, at : at + size].numpy()))
        at += size
        # What is final is there.
        assert sum(part.shape[1] for part in parts) >= min(at, 4003) - stream.lookahead_samples
    parts.append(stream.finish())
    np.testing.assert_allclose(np.concatenate(parts, 1), expected[0], atol=1e-5 * largest, rtol=0)
    assert graph.stream().finish().shape == (model.hypotheses, 0)
    # Whole strides leave no sample over in the last frame, one less and one more leave most of it.
    for length in range(graph.stride * 20 - 1, graph.stride * 20 + 2):
        stream = graph.stream()
        assert stream.push(mixtures[0, :length].numpy()).shape[1] + stream.finish().shape[1] == length


@pytest.fixture(scope="module")
def causal_graph(tmp_path_factory):
    """A file of a causal graph."""
    path = tmp_path_factory.mktemp("causal") / "model.onnx"
    export_onnx(made(CAUSAL["gated_recurrence"]), path, [100])
    return path


def test_what_a_causal_graph_takes_and_gives(causal_graph):
    """As the documentation of `Graph` says it, for whoever runs one without sepkit."""
    graph = Graph(causal_graph)
    assert (graph.stride, graph.kernel_size, graph.delay_samples) == (32, 64, 32)
    state = graph.first_state(2)
    assert [(name, values.shape[0]) for name, values in state.items()] == [(f"state_{n}", 2) for n in range(4)]
    mixtures = 0.1 * np.random.default_rng(0).standard_normal((2, 320)).astype(np.float32)
    nexts = [f"next_{name}" for name in state]
    whole = graph.run({"mixture": mixtures} | state, ["estimates", "mask_rate_nats"])
    first = graph.run({"mixture": mixtures[:, :96]} | state, ["estimates", "mask_rate_nats", *nexts])
    middle = {name: first[f"next_{name}"] for name in state}
    second = graph.run({"mixture": mixtures[:, 96:]} | middle, ["estimates", "mask_rate_nats"])
    halves = np.concatenate([first["estimates"], second["estimates"]], -1)
    np.testing.assert_allclose(halves, whole["estimates"], atol=1e-6)
    np.testing.assert_allclose(first["mask_rate_nats"] + second["mask_rate_nats"], whole["mask_rate_nats"], rtol=1e-5)


def test_a_graph_of_a_whole_recording_does_not_stream(exported):
    assert "needs the whole recording" in complaint(lambda: Graph(exported[1]).stream())


@pytest.mark.parametrize(
    "causal",
    [
        [],
        {"stride": 32, "kernel_size": 64, "state": []},
        {"stride": 64, "kernel_size": 32, "state": [{"shape": [1], "batch_axis": 0}] * 4},
        {"stride": 32, "kernel_size": 64, "state": [{"shape": [10**9], "batch_axis": 0}] * 4},
        {"stride": 32, "kernel_size": 64, "state": [{"shape": [1, 32], "batch_axis": 5}] * 4},
        {"stride": 32, "kernel_size": 64, "state": [{"shape": [1, 32], "batch_axis": 0}] * 4},
        {"stride": 32, "kernel_size": 64, "state": [{"shape": [1, 32], "batch_axis": 0}] * 2},
    ],
)
def test_descriptions_of_another_state_are_refused(causal, causal_graph, tmp_path):
    changed(causal_graph, tmp_path / "other.onnx", {"causal": causal})
    assert "other.onnx: " in complaint(lambda: Graph(tmp_path / "other.onnx"))
