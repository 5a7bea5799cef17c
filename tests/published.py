"""Checkpoints in the layouts in which models are published, tiny, with made-up weights."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

from sepkit import config as c
from sepkit.models import build_model
from sepkit.models.bridges import sepreformer, sr_corrnet, tf_locoformer, tiger
from sepkit.models.bridges._weights import renamed

LINEAR = c.DeterministicConfig(activation="linear")
CONVOLUTIONS = ("feature_projector.conv1d", "separator.simple_fusion", "separator.spk_split_block.linear")
"""Linear layers of ours that are convolutions over one frame in SepReformer's code."""

SPEECHBRAIN_YAML = Path(__file__).with_name("published_speechbrain.yaml").read_text(encoding="utf-8")
"""hyperparams.yaml of a SepFormer of speechbrain's: 12 filters of 8 samples, 16 channels, 2 layers."""


def peer(module: str) -> Any:
    """Import a module of another toolkit, or skip the test."""
    package = module.partition(".")[0]
    return pytest.importorskip(module, reason=f"{package} is missing: pip install 'sepkit[peers]'")


def small_asteroid() -> nn.Module:
    """Return a Conv-TasNet of asteroid's, with random weights."""
    models = peer("asteroid.models")
    return models.ConvTasNet(2, n_filters=8, n_blocks=2, n_repeats=1, bn_chan=4, hid_chan=5, skip_chan=6)


def randomize(model: nn.Module) -> nn.Module:
    """Move gains, offsets and slopes off their initial constants, which would hide a mix-up."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.dim() == 1 and tensor.is_floating_point():
            tensor.data += 0.1 * torch.rand_like(tensor)
    return model


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def numbers(name: str, shape: torch.Size) -> Tensor:
    """Return the value of the reference's tensor of this name, as the golden outputs were made with."""
    if name.endswith("num_batches_tracked"):
        return torch.tensor(7)
    # One-dimensional weights are gains of norms.
    is_gain = name.endswith(("running_var", "gamma")) or (name.endswith(".weight") and len(shape) == 1)
    # The square makes matrices of full rank.
    values = 0.5 * np.sin(0.37 * np.arange(shape.numel()) ** 2 + zlib.crc32(name.encode()) % 1000)
    return torch.tensor(values + is_gain).reshape(shape)


def waveform(num_samples: int) -> Tensor:
    """Return the golden outputs' mixture, (1, T)."""
    step = np.arange(num_samples)
    return torch.tensor(np.sin(0.37 * step * step / 50))[None]


def sepreformer_weights(hypotheses: int = 2, stages: int = 1) -> dict[str, Tensor]:
    """Return weights under the authors' names: 6 filters of 8 samples, 8 channels, 2 heads."""
    masker = c.SepReformerConfig(channels=8, num_stages=stages, num_heads=2, kernel_size=5, max_distance=3)
    ends = {"filterbank": c.FreeFilterbankConfig(6, 8, 4, mapping=True), "masks": LINEAR}
    config = c.ModelConfig(hypotheses=hypotheses, masker=masker, encoding=c.DeterministicConfig("gelu"), **ends)
    shapes = {name: tensor.shape for name, tensor in build_model(config).state_dict().items()}
    own = [name for name in shapes if not name.startswith("signal_")]
    named = {renamed(name, sepreformer.NAMES): shapes[name] for name in own}
    weights = {name: numbers(name, shape).float() for name, shape in named.items()}
    # Each inner stage has a mask and a decoder of its own, of the same shapes.
    for name, own in [(name, name.partition(".")) for name in weights]:
        if inner := {"out_layer": "out_layer_bn", "audio_decoder": "decoder_bn"}.get(own[0]):
            for theirs in (f"{inner}.{stage}.{own[2]}" for stage in range(stages)):
                weights[theirs] = numbers(theirs, weights[name].shape).float()
    # Their keys have an offset, which has no effect, and their linear layers over frames are convolutions.
    for name in [name for name in weights if name.endswith("linear_k.weight")]:
        offset = name.replace("weight", "bias")
        weights[offset] = numbers(offset, torch.Size([8])).float()
    for name, tensor in weights.items():
        if "Layer_scale" in name:
            weights[name] = tensor[None, None]
        elif name.startswith(CONVOLUTIONS) and tensor.ndim == 2:
            weights[name] = tensor[..., None]
    return weights


def sepreformer_checkpoint(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what their training saves as epoch.NNNN.pth."""
    step = {"step": torch.tensor(9.0)}
    zeros = enumerate(map(torch.zeros_like, weights.values()))
    moments = {place: {**step, "exp_avg": zero, "exp_avg_sq": zero.clone()} for place, zero in zeros}
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 1e-2, "foreach": None, "params": list(moments)}
    state = {"model_state_dict": dict(weights), "optimizer_state_dict": {"state": moments, "param_groups": [group]}}
    return {"epoch": 180, **state, "train_loss": -20.1, "valid_loss": np.float64(-21.0)}


def _mapping(kernel_size: int, stride: int) -> c.STFTFilterbankConfig:
    """Real and imaginary parts, which the masker maps to those of the estimates."""
    return c.STFTFilterbankConfig(kernel_size, stride, 1.0, features="real_imaginary", complex_masks=True, mapping=True)


def _weights_of(masker: Any, hypotheses: int, names: Any, matrices: float = 1.0) -> dict[str, Tensor]:
    """Return numbers under the names of another toolkit, those of matrices times a factor."""
    config = c.ModelConfig(hypotheses=hypotheses, filterbank=_mapping(16, 8), masker=masker, masks=LINEAR)
    weights = {}
    for name, tensor in build_model(config).masker.state_dict().items():
        theirs, factor = renamed(f"masker.{name}", names), matrices if tensor.ndim > 1 else 1
        weights[theirs] = (tensor if theirs.endswith("freqs") else factor * numbers(theirs, tensor.shape)).float()
    return weights


def tf_locoformer_weights(hypotheses: int = 2) -> dict[str, Tensor]:
    """Return weights under ESPnet's names: windows of 16 samples, 8 channels, 2 heads, 2 layers."""
    masker = c.TFLocoformerConfig(8, 2, 2, attention_dim=8, feedforward_dim=6, kernel_size=3, norm_groups=2)
    return _weights_of(masker, hypotheses, tf_locoformer.NAMES)


def tf_locoformer_yaml(hypotheses: int = 2, **separator: Any) -> str:
    """Return ESPnet's config.yaml of the same model, with further or other options of the separator."""
    described = yaml.safe_load(Path(__file__).with_name("published_tf_locoformer.yaml").read_text(encoding="utf-8"))
    described["num_spk"] = hypotheses
    described["separator_conf"] |= {"num_spk": hypotheses, **separator}
    return yaml.safe_dump(described)


def sr_corrnet_weights(
    hypotheses: int = 2, counts: bool = False, frame_taps: int = 1, kernel_size: int = 3
) -> dict[str, Tensor]:
    """Return weights under the authors' names: 8 channels, 2 heads, 1 and 2 layers."""
    masker = c.SRCorrNetConfig(8, 1, 2, 2, 6, 10, kernel_size, frame_taps=frame_taps, count_speakers=counts)
    # Larger matrices would enlarge rounding errors by four orders of magnitude.
    weights = _weights_of(masker, hypotheses, sr_corrnet.NAMES, 0.3)
    # Each of the two inner layers has a filter of its own, of the same shape.
    for name in [name for name in weights if name.startswith("filter_estim.")]:
        for layer in range(2):
            theirs = name.replace("filter_estim.", f"filter_estim_aux.{layer}.")
            weights[theirs] = 0.3 * numbers(theirs, weights[name].shape).float()
    return weights


def sr_corrnet_description(
    hypotheses: int = 2, counts: bool = False, frame_taps: int = 1, kernel_size: int = 3, window: int = 16
) -> dict[str, Any]:
    """Return the authors' config.yaml of the same model, without aliases and without what only training reads."""
    block = {"d_model": 8, "d_hidden": 6, "n_head": 2, "kernel_size": kernel_size, "dropout_rate": 0.0}
    taps = {"taps_freq": [1, 1], "taps_frame": [frame_taps, frame_taps]}
    model = {
        "ref_ch": 0,
        **taps,
        "d_model": 8,
        "input_embedding": {"d_model": 8, "kernel_sizes": [3, 3], "num_mics": 1, **taps},
        "RoPE": {"d_model": 8, "n_head": 2},
        "multi_path_block": {"channel_module": block, "spectral_module": dict(block)},
        "is_var_spks": counts,
        "spk_split": {
            "varying": {"d_model": 8, "d_freq": 9, "n_head": 2, "max_n_spks": hypotheses, "dropout_rate": 0.0},
            "fixed": {"d_model": 8, "max_n_spks": hypotheses},
        },
        "cross_spk": {"d_model": 8, "d_hidden": 10, "n_head": 2, "dropout_rate": 0.0},
        "N_Enc": 1,
        "N_Dec": 2,
        "mask_estimator": {"d_model": 8, "num_mics": 1, **taps, "MIMO": False},
        "apply_pos_enc": True,
    }
    dataset = {"max_n_spks": hypotheses, "synthesis_config": {"max_len": 32000, "sampling_rate": 8000}}
    config = {"stft": {"frame_length": window, "frame_shift": 8}, "dataset": dataset, "model": model}
    return {"project": "[Project] SR_CorrNet_SS", "config": config}


def tiger_arguments(hypotheses: int = 2, scales: int = 3, iterations: int = 2, stride: int = 320) -> dict[str, int]:
    """Return config.json of a TIGER of 4 channels for each source, with windows of 640 samples."""
    return {
        "out_channels": 4 * hypotheses, "in_channels": 6, "num_blocks": iterations, "upsampling_depth": scales,
        "att_n_head": 2, "att_hid_chan": 3, "att_kernel_size": 8, "att_stride": 1, "win": 640, "stride": stride,
        "num_sources": hypotheses, "sample_rate": 16000,
    }  # fmt: skip


def tiger_weights(hypotheses: int = 2, scales: int = 3) -> dict[str, Tensor]:
    """Return weights of the same model under the authors' names."""
    parts = {"masker": c.TIGERConfig(16000, 4 * hypotheses, 6, 2, scales, 2, 3), "masks": LINEAR}
    config = c.ModelConfig(sample_rate=16000, hypotheses=hypotheses, filterbank=_mapping(640, 320), **parts)
    weights = {}
    for name, tensor in build_model(config).masker.state_dict().items():
        theirs = renamed(f"masker.{name}", tiger.NAMES)
        matrix = tensor.ndim > 1
        weights[theirs] = (numbers(theirs, tensor.shape) * (0.3 if matrix else 1)).float()
    # What nothing uses: as large as the part before it.
    for name in [name for name in weights if f".loc_glo_fus.{scales - 2}." in name]:
        weights[name.replace(f".{scales - 2}.", f".{scales - 1}.", 1)] = torch.ones_like(weights[name])
    # Norms over channels of pictures.
    norms = [name for name in weights if name.endswith(("gamma", "beta"))]
    return weights | {name: weights[name][None, :, None, None] for name in norms}
