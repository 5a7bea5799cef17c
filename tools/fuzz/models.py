"""Kinds of input that are models: folders, predictors of quality, exported graphs, files of asteroid."""

from __future__ import annotations

import importlib.util
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from sepkit.inference import load_model
from sepkit.inference.quality.features import BASELINE_FEATURES
from sepkit.inference.quality.predictor import QualityPredictor, write_quality
from sepkit.inference.quality.regression import RidgeRegression
from sepkit.models import load_checkpoint
from sepkit.models.bridges.asteroid import to_asteroid_state_dict
from tools.fuzz.kind import Kind, model_files, sound, write_files


def _separates(model: Callable[[Path], str]) -> Callable[[Path], list[str]]:
    def command(folder: Path) -> list[str]:
        write_files(folder, {"x.wav": sound(".wav")})
        places = ["--model", model(folder), "--out", str(folder / "out")]
        return ["separate", str(folder / "x.wav"), *places, "--device", "cpu"]

    return command


def _models() -> Kind:
    return Kind(model_files(), _separates(lambda folder: str(folder / "in")), ["model.yaml"], tested=200)


def _predictors() -> Kind:
    names = [str(name) for name in BASELINE_FEATURES]
    ones = [1.0] * len(names)
    ridge = RidgeRegression(names, ones, ones, ones, 1.0, 1.0, (-3.0, 3.0), 0.5, 0.5, 3.0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_files(Path(temporary), model_files())
        weights = load_model(folder).fingerprint()
        write_quality(QualityPredictor(weights, 2, "dev.jsonl", 9, 18, 0.9, ridge, ridge), folder)
        files = {"quality.yaml": (folder / "quality.yaml").read_bytes()}

    def model(folder: Path) -> str:
        write_files(folder / "in", model_files())
        return str(folder / "in")

    return Kind(files, _separates(model), ["quality.yaml"])


def _graphs() -> Kind:
    import onnx

    from sepkit.models.export.onnx_export import export_onnx
    from sepkit.models.export.onnx_model import METADATA

    with tempfile.TemporaryDirectory() as temporary:
        folder = write_files(Path(temporary), model_files())
        export_onnx(load_checkpoint(folder), folder / "model.onnx", [100])
        graph = onnx.load(str(folder / "model.onnx"))
        described = next(entry.value for entry in graph.metadata_props if entry.key == METADATA).encode()
        files = {"model.onnx": (folder / "model.onnx").read_bytes(), "description.json": described}

    def model(folder: Path) -> str:
        text = (folder / "in" / "description.json").read_bytes()
        path = folder / "in" / "model.onnx"
        if text != described:
            changed = onnx.load(str(path))
            del changed.metadata_props[:]
            onnx.helper.set_model_props(changed, {METADATA: text.decode("utf-8", "replace")})
            onnx.save(changed, str(path))
        return str(path)

    return Kind(files, _separates(model), ["description.json"])


def _asteroid() -> Kind:
    arguments = {
        "n_src": 2, "fb_name": "free", "n_filters": 8, "kernel_size": 16, "stride": 8, "sample_rate": 8000.0,
        "bn_chan": 4, "hid_chan": 6, "skip_chan": 4, "conv_kernel_size": 3, "n_blocks": 2, "n_repeats": 1,
        "mask_act": "relu", "norm_type": "gLN", "in_chan": 8, "causal": False,
    }  # fmt: skip
    config = {
        "filterbank": {"name": "free", "num_filters": 8, "kernel_size": 16, "stride": 8},
        "masker": {
            "name": "conv_tasnet", "bottleneck_channels": 4, "hidden_channels": 6, "skip_channels": 4, "blocks": 2,
            "repeats": 1,
        },
        "pad": "asteroid",
    }  # fmt: skip
    from sepkit.config import ModelConfig, from_dict
    from sepkit.models import build_model

    torch.manual_seed(0)
    weights = to_asteroid_state_dict(build_model(from_dict(ModelConfig, config)))
    files = {"arguments.json": json.dumps(arguments).encode(), "model.pth": _packed(arguments, weights)}

    def model(folder: Path) -> str:
        given = (folder / "in" / "arguments.json").read_bytes()
        if given != files["arguments.json"]:
            try:
                plain: Any = yaml.safe_load(given)
            except Exception:
                plain = given
            (folder / "in" / "model.pth").write_bytes(_packed(plain, weights))
        return f"asteroid:{folder / 'in' / 'model.pth'}"

    return Kind(files, _separates(model), ["arguments.json"])


def _packed(arguments: Any, weights: dict[str, torch.Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save({"model_name": "ConvTasNet", "model_args": arguments, "state_dict": weights}, buffer)
    return buffer.getvalue()


KINDS: dict[str, Callable[[], Kind]] = {"models": _models, "predictors": _predictors, "asteroid": _asteroid}
if importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime"):
    KINDS["graphs"] = _graphs
