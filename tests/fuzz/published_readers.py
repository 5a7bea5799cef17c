"""Models in the layouts of other toolkits and of authors, and the command that separates with them."""

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save

from sepkit import config as c
from sepkit.models import build_model
from sepkit.models.bridges import to_asteroid_state_dict, torchaudio
from sepkit.models.bridges._weights import all_pieces
from tests import published
from tests.fuzz.reader import Files, Reader, named, with_model


def _saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _published(kind: str, files: Files, named: str, plain: Sequence[str] = ()) -> Reader:
    """A folder of published files; `named` is the one that MODEL names, or empty for the folder."""
    return Reader(files, with_model(lambda given: f"{kind}:{given / named}"), plain)


def asteroid() -> Reader:
    """With its arguments, and as asteroid 0.3 wrote them: the rate stands in the training's configuration."""
    arguments = {
        "n_src": 2, "fb_name": "free", "n_filters": 8, "kernel_size": 16, "stride": 8, "bn_chan": 4, "hid_chan": 6,
        "skip_chan": 4, "conv_kernel_size": 3, "n_blocks": 2, "n_repeats": 1, "mask_act": "relu", "norm_type": "gLN",
        "in_chan": 8, "causal": False,
    }  # fmt: skip
    channels = {"bottleneck_channels": 4, "hidden_channels": 6, "skip_channels": 4, "blocks": 2, "repeats": 1}
    config = {"filterbank": {"name": "free", "num_filters": 8}, "masker": {"name": "conv_tasnet"} | channels}
    torch.manual_seed(0)
    weights = to_asteroid_state_dict(build_model(c.from_dict(c.ModelConfig, config | {"pad": "asteroid"})))
    described = {"model_name": "ConvTasNet", "model_args": arguments, "infos": {"training_config": {"data": {}}}}
    described["infos"]["training_config"]["data"]["sample_rate"] = 8000

    def model(given: Path) -> str:
        text = (given / "description.json").read_bytes()
        if text != files["description.json"]:
            with contextlib.suppress(Exception):
                text = yaml.safe_load(text) | {"state_dict": weights}
            (given / "model.pth").write_bytes(_saved(text))
        return f"asteroid:{given / 'model.pth'}"

    newer = {"model_name": "ConvTasNet", "model_args": arguments | {"sample_rate": 8000.0}, "state_dict": weights}
    files = {"description.json": json.dumps(described).encode(), "model.pth": _saved(newer)}
    return Reader(files, with_model(model), ["description.json"])


def speechbrain() -> Reader:
    """A SepFormer's YAML, whose tags speechbrain would carry out, and its three files of weights."""
    torch.manual_seed(0)
    sizes = {"model_dim": 16, "feedforward_dim": 20, "chunk_size": 10}
    masker = c.SepFormerConfig(**sizes, num_layers=2, transformer_layers=1, num_heads=4)
    relu = c.DeterministicConfig(activation="relu")
    bank = c.FreeFilterbankConfig(12, 8, 4)
    config = c.ModelConfig(filterbank=bank, masker=masker, encoding=relu, masks=relu, pad="asteroid")
    model: Any = build_model(config)
    weights = {
        "encoder": {"conv1d.weight": model.filterbank.encoder.filterbank._filters.data},
        "masknet": model.masker.network.state_dict(),
        "decoder": {"weight": model.filterbank.decoder.filterbank._filters.data},
    }
    files = {f"{name}.ckpt": _saved(tensors) for name, tensors in weights.items()}
    return _published("speechbrain", {"hyperparams.yaml": published.SPEECHBRAIN_YAML.encode(), **files}, "")


def sepreformer() -> Reader:
    """A state of its training."""
    described = {"model": {"module_audio_enc": {"stride": 4}}, "dataset": {"sampling_rate": 8000}}
    weights = _saved(published.sepreformer_checkpoint(published.sepreformer_weights()))
    files = {"configs.yaml": yaml.safe_dump({"config": described}).encode(), "epoch.0180.pth": weights}
    return _published("sepreformer", files, "epoch.0180.pth", ["configs.yaml"])


def tf_locoformer() -> Reader:
    """ESPnet's weights and configuration."""
    name, text = "valid.loss.ave_5best.pth", published.tf_locoformer_yaml().encode()
    files = {"config.yaml": text, name: _saved(published.tf_locoformer_weights())}
    return _published("tf-locoformer", files, "valid.loss.ave_5best.pth", ["config.yaml"])


def sr_corrnet() -> Reader:
    """Weights and configuration of one that counts speakers."""
    text = yaml.safe_dump(published.sr_corrnet_description(counts=True)).encode()
    weights = {"model_state_dict": published.sr_corrnet_weights(counts=True)}
    files = {"config.yaml": text, "model.pt": _saved(weights)}
    return _published("sr-corrnet", files, "", ["config.yaml"])


def tiger() -> Reader:
    """Safetensors and JSON."""
    weights = {name: tensor.contiguous() for name, tensor in published.tiger_weights().items()}
    files = {"config.json": json.dumps(published.tiger_arguments()).encode(), "model.safetensors": save(weights)}
    return _published("tiger", files, "", ["config.json"])


def _torchaudio() -> Reader:
    """Weights alone: sizes follow from them."""
    linear, relu = c.DeterministicConfig(activation="linear"), c.DeterministicConfig(activation="relu")
    sizes = {"bottleneck_channels": 4, "hidden_channels": 6, "skip_channels": 4, "kernel_size": 3}
    masker = c.ConvTasNetConfig(**sizes, blocks=8, repeats=1)
    bank = c.FreeFilterbankConfig(8, 16, 8, padding=8, multiple=8)
    torch.manual_seed(0)
    model = build_model(c.ModelConfig(filterbank=bank, encoding=linear, masker=masker, masks=relu, pad="asteroid"))
    return _published("torchaudio", {"model.pt": _saved(all_pieces(model, torchaudio._NAMES))}, "model.pt@8000")


READERS = named(asteroid, speechbrain, sepreformer, tf_locoformer, sr_corrnet, tiger, _torchaudio)
"""Name -> what makes the reader."""
