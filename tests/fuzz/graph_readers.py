"""Exported models, and the commands that run them; there are none without onnx."""

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sepkit.config import ScoringConfig, SpeakerEncoderConfig
from sepkit.data import audio
from sepkit.models import build_model
from sepkit.models.saved import SavedModel
from sepkit.models.speaker_encoder import SpeakerEncoder
from tests.fuzz.reader import STDIN, Reader, named, separate_command, sound, write_files
from tests.tiny_models import RECURRENT, VARIATIONAL


def _graph(model: SavedModel, command: Callable[[Path, Path], Sequence[str]], examples: int = 10) -> Reader:
    """The graph of a model: its bytes and its description are changed. `command` is of the folder and of the graph."""
    import onnx

    from sepkit.models.export.graph_description import METADATA
    from sepkit.models.export.onnx_export import export_onnx

    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.onnx"
        export_onnx(model.eval(), path, [2000])
        graph = onnx.load(str(path))
        described = next(entry.value for entry in graph.metadata_props if entry.key == METADATA).encode()
        files = {"model.onnx": path.read_bytes(), "description.json": described}

    def run(folder: Path) -> Sequence[str]:
        text, path = (folder / "in" / "description.json").read_bytes(), folder / "in" / "model.onnx"
        if text != described:
            changed = onnx.load(str(path))
            del changed.metadata_props[:]
            onnx.helper.set_model_props(changed, {METADATA: text.decode("utf-8", "replace")})
            onnx.save(changed, str(path))
        write_files(folder, {"x.wav": sound(".wav")})
        return command(folder, path)

    return Reader(files, run, ["description.json"], examples=examples)


def graphs() -> Reader:
    """A model that is not variational."""
    torch.manual_seed(0)
    return _graph(build_model(RECURRENT), lambda folder, path: separate_command(folder / "x.wav", path, folder))


def graphs_with_features() -> Reader:
    """A model with posteriors and scores."""
    torch.manual_seed(0)
    model = build_model(replace(VARIATIONAL, scoring=ScoringConfig()))
    return _graph(model, lambda folder, path: [*separate_command(folder / "x.wav", path, folder), "--speakers", "auto"])


def causal_graphs() -> Reader:
    """A model whose state goes from block to block."""
    torch.manual_seed(0)
    model = build_model(replace(RECURRENT, masker=replace(RECURRENT.masker, bidirectional=False)))
    reader = _graph(model, lambda folder, path: ["stream", "--model", str(path)])
    return replace(reader, files=reader.files | {STDIN: sound(".wav", "PCM_16")})


def encoder_graphs() -> Reader:
    """A speaker encoder."""
    torch.manual_seed(0)
    model = SpeakerEncoder(SpeakerEncoderConfig(bands=8, channels=4, pooled=6, dimensions=5))

    def command(folder: Path, path: Path) -> list[str]:
        # Short recordings hold nothing to cluster.
        write_files(folder, {"x.wav": sound(".wav", samples=8000)})
        return ["cluster", str(folder / "x.wav"), "--speaker-encoder", str(path.parent), "--out", str(folder / "out")]

    return _graph(model, command)


def _other_encoder(nodes: Sequence[Any], shape: Sequence[str | int], weights: dict[str, np.ndarray]) -> bytes:
    """A graph from `heard` to `told` with the metadata of WeSpeaker."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    ends = [("heard", shape), ("told", ["B", 5])]
    heard, told = (helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in ends)
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    made = helper.make_graph(list(nodes), "encoder", [heard], [told], constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"framework": "wespeaker", "sample_rate": "16000"})
    onnx.checker.check_model(model)
    return model.SerializeToString()


def other_encoders() -> Reader:
    """Speaker encoders of other toolkits: one hears spectra, one samples."""
    from onnx.helper import make_node

    generator = np.random.default_rng(0)
    mean = make_node("ReduceMean", ["heard"], ["mean"], axes=[1], keepdims=0)
    spectra = [mean, make_node("Gemm", ["mean", "w", "b"], ["told"])]
    samples = [
        make_node("Unsqueeze", ["heard", "axis"], ["channel"]),
        make_node("Conv", ["channel", "w"], ["frames"], strides=[160], kernel_shape=[400]),
        make_node("Relu", ["frames"], ["energies"]),
        make_node("ReduceMean", ["energies"], ["told"], axes=[2], keepdims=0),
    ]
    matrix = {"w": generator.standard_normal((80, 5)).astype(np.float32), "b": np.ones(5, np.float32)}
    filters = {"w": generator.standard_normal((5, 1, 400)).astype(np.float32), "axis": np.array([1])}
    files = {"fbank.onnx": _other_encoder(spectra, ["B", "F", 80], matrix)}
    files["waveform.onnx"] = _other_encoder(samples, ["B", "T"], filters)

    def command(folder: Path) -> list[str]:
        # Harmonics with a rhythm: the encoder that ships takes them for speech, as it does not take noise.
        time = np.arange(8000) / 8000
        voice = sum(np.sin(2 * np.pi * 120 * k * time) / k for k in range(1, 20))
        audio.write(folder / "x.wav", (0.05 * voice * (0.55 + 0.45 * np.sin(8 * np.pi * time))).astype("f4"), 8000)
        changed = next((name for name, data in files.items() if (folder / "in" / name).read_bytes() != data), None)
        # Metadata say what the first one hears.
        features = ["--speaker-features", "waveform"] if changed == "waveform.onnx" else []
        encoder = ["--speaker-encoder", str(folder / "in" / (changed or "fbank.onnx")), *features]
        return ["cluster", str(folder / "x.wav"), *encoder, "--out", str(folder / "out")]

    return Reader(files, command)


HAS_ONNX = all(map(importlib.util.find_spec, ("onnx", "onnxruntime")))

READERS = named(graphs, graphs_with_features, causal_graphs, encoder_graphs, other_encoders)
"""Name -> what makes the reader."""
if not HAS_ONNX:
    READERS = {}
