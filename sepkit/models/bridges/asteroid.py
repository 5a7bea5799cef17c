"""Weights of asteroid's ConvTasNet, DPRNNTasNet, SuDORMRFNet and SuDORMRFImprovedNet, in and out.

asteroid itself need not be installed to read its files. They are pickles, and are read by torch's restricted loader, which
makes tensors and plain data and runs nothing.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sepkit.config import (
    ConvTasNetConfig,
    DeterministicConfig,
    DualPathRNNConfig,
    FreeFilterbankConfig,
    ImprovedSuDoRMRFConfig,
    MaskerConfig,
    ModelConfig,
    SuDoRMRFConfig,
)
from sepkit.errors import UserError
from sepkit.models.emd import EncoderMaskerDecoder, build_model
from sepkit.models.filterbanks import FreeFilterbank
from sepkit.models.maskers import ConvTasNetMasker, DualPathRNNMasker, ImprovedSuDoRMRFMasker, SuDoRMRFMasker

__all__ = ["from_asteroid", "to_asteroid_state_dict"]

# ------------------------------------------------------------------------------------------- asteroid -> sepkit


def from_asteroid(model_or_path: nn.Module | str | Path, *, sample_rate: int | None = None) -> EncoderMaskerDecoder:
    """The sepkit model with the weights of an asteroid model, and the same outputs to rounding, in evaluation mode.

    Args:
        model_or_path: an asteroid model, or a file that holds what its `serialize()` gives (model_name, model_args,
            state_dict).
        sample_rate: Hz; for old files that do not say theirs, which wins otherwise.

    Raises:
        UserError: no such file, not an asteroid checkpoint, one that holds more than tensors and plain data, an
            architecture or option that sepkit does not have, or weights that do not fit it.
    """
    where, name, arguments, weights = _unpack(model_or_path)
    if name not in _CONFIGS:
        raise UserError(f"{where}: found an asteroid {name}, expected one of {', '.join(_CONFIGS)}")
    try:
        config = _model_config(where, name, arguments, sample_rate)
    except KeyError as error:
        raise UserError(f"{where}: model_args of {name} has no {error}; the file is not complete") from None
    model = build_model(config)
    _load(where, model, weights)
    return model.eval()


def _unpack(model_or_path: nn.Module | str | Path) -> tuple[str, str, Mapping[str, Any], Mapping[str, Tensor]]:
    """(what to call it in messages, model name, model arguments, state dict)."""
    if isinstance(model_or_path, nn.Module):
        classes = [cls.__name__ for cls in type(model_or_path).__mro__]
        name = next((name for name in classes if name in _CONFIGS), classes[0])
        arguments = model_or_path.get_model_args() if name in _CONFIGS else {}
        return "asteroid model", name, arguments, model_or_path.state_dict()
    checkpoint = _read(Path(model_or_path))
    absent = [key for key in ("model_name", "model_args", "state_dict") if key not in checkpoint]
    if absent:
        raise UserError(f"{model_or_path}: no {', '.join(absent)} in it, expected what asteroid's serialize() gives")
    return str(model_or_path), checkpoint["model_name"], checkpoint["model_args"], checkpoint["state_dict"]


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected an asteroid checkpoint")
    try:
        with torch.serialization.safe_globals(_HARMLESS):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it names {found[1]}, which could run code" if found else "it is no torch checkpoint of tensors and plain data"
        raise UserError(f"{path}: refused, {reason}; expected what asteroid's serialize() gives") from None
    except (RuntimeError, EOFError, ValueError, OSError) as error:
        raise UserError(f"{path}: cannot be read as a torch checkpoint ({type(error).__name__}); is it complete?") from None
    if not isinstance(checkpoint, Mapping):
        raise UserError(f"{path}: found {type(checkpoint).__name__}, expected what asteroid's serialize() gives")
    return checkpoint


# asteroid writes torch's version string into its files, and published ones hold final scores as NumPy numbers.
_HARMLESS: list[Any] = [
    torch.torch_version.TorchVersion,
    np.dtype,
    type(np.dtype(np.float64)),
    type(np.dtype(np.float32)),
    (np.float64(0).__reduce__()[0], "numpy.core.multiarray.scalar"),
    (np.float64(0).__reduce__()[0], "numpy._core.multiarray.scalar"),
]


def _model_config(where: str, name: str, arguments: Mapping[str, Any], sample_rate: int | None) -> ModelConfig:
    rate = arguments.get("sample_rate") or sample_rate
    if not rate:
        raise UserError(f"{where}: it does not say its sample rate; give it (sample_rate=8000)")
    _refuse_unless(where, arguments, "fb_name", {"free", "FreeFB"}, "free")
    _refuse_unless(where, arguments, "out_chan", {None, arguments["n_filters"]}, None)
    mask_link = _link(where, arguments, "mask_act", arguments.get("mask_act"))
    if name == "DPRNNTasNet" and mask_link == "softmax":
        raise UserError(f"{where}: mask_act softmax runs over filters in asteroid's DPRNNTasNet, which sepkit does not have")
    return ModelConfig(
        sample_rate=round(rate),
        hypotheses=arguments["n_src"],
        filterbank=_filterbank_config(name, arguments),
        encoding=DeterministicConfig(link=_link(where, arguments, "encoder_activation", _encoder_activation(name, arguments))),
        masker=_CONFIGS[name](where, arguments),
        masks=DeterministicConfig(link=mask_link),
        pad="asteroid",
    )


def _filterbank_config(name: str, arguments: Mapping[str, Any]) -> FreeFilterbankConfig:
    config = FreeFilterbankConfig(arguments["n_filters"], arguments["kernel_size"], arguments["stride"])
    if name in ("SuDORMRFNet", "SuDORMRFImprovedNet"):
        half = arguments["kernel_size"] // 2
        config.padding = half
        config.output_padding = half - 1
        config.multiple = math.lcm(half, 2 ** arguments["upsampling_depth"])
    return config


def _encoder_activation(name: str, arguments: Mapping[str, Any]) -> str | None:
    return "relu" if name == "SuDORMRFNet" else arguments.get("encoder_activation")


def _link(where: str, arguments: Mapping[str, Any], field: str, activation: str | None) -> Any:
    known = {"linear", "relu", "sigmoid", "softmax", "tanh"} - ({"softmax"} if field == "encoder_activation" else set())
    _refuse_unless(where, {**arguments, field: activation}, field, {None} | known, None)
    return activation or "linear"


def _norm(where: str, arguments: Mapping[str, Any]) -> Any:
    _refuse_unless(where, arguments, "norm_type", set(_NORMS), "gLN")
    return _NORMS[arguments.get("norm_type", "gLN")]


def _refuse_unless(where: str, arguments: Mapping[str, Any], field: str, known: set[Any], default: Any) -> None:
    found = arguments.get(field, default)
    if not isinstance(found, str | int | None) or found not in known:
        choices = ", ".join(sorted(str(choice) for choice in known))
        raise UserError(f"{where}: {field} is {found!r}, which sepkit does not have; expected one of {choices}")


def _conv_tasnet_config(where: str, arguments: Mapping[str, Any]) -> MaskerConfig:
    return ConvTasNetConfig(
        bottleneck_channels=arguments["bn_chan"],
        hidden_channels=arguments["hid_chan"],
        skip_channels=arguments["skip_chan"] or 0,
        kernel_size=arguments["conv_kernel_size"],
        blocks=arguments["n_blocks"],
        repeats=arguments["n_repeats"],
        norm=_norm(where, arguments),
        causal=arguments.get("causal", False),
    )


def _dual_path_rnn_config(where: str, arguments: Mapping[str, Any]) -> MaskerConfig:
    _refuse_unless(where, arguments, "use_mulcat", {False}, False)
    rnn = str(arguments["rnn_type"]).lower()
    _refuse_unless(where, {"rnn_type": rnn}, "rnn_type", {"lstm", "gru"}, "lstm")
    layers = arguments["num_layers"]
    return DualPathRNNConfig(
        bottleneck_channels=arguments["bn_chan"],
        hidden_channels=arguments["hid_size"],
        chunk_size=arguments["chunk_size"],
        hop_size=arguments["hop_size"],
        repeats=arguments["n_repeats"],
        rnn=rnn,  # type: ignore[arg-type]
        num_layers=layers,
        # Dropout acts between layers; asteroid accepts it, without effect, for a single one.
        dropout=float(arguments["dropout"]) if layers > 1 else 0.0,
        bidirectional=bool(arguments["bidirectional"]),
        norm=_norm(where, arguments),
    )


def _sudormrf_sizes(arguments: Mapping[str, Any]) -> dict[str, int]:
    return {
        "bottleneck_channels": arguments["bn_chan"],
        "hidden_channels": arguments["in_chan"],
        "blocks": arguments["num_blocks"],
        "upsampling_depth": arguments["upsampling_depth"],
    }


_CONFIGS: dict[str, Callable[[str, Mapping[str, Any]], MaskerConfig]] = {
    "ConvTasNet": _conv_tasnet_config,
    "DPRNNTasNet": _dual_path_rnn_config,
    "SuDORMRFNet": lambda where, arguments: SuDoRMRFConfig(**_sudormrf_sizes(arguments)),
    "SuDORMRFImprovedNet": lambda where, arguments: ImprovedSuDoRMRFConfig(**_sudormrf_sizes(arguments)),
}

_NORMS = {
    "gLN": "global_layer_norm",
    "GlobLN": "global_layer_norm",
    "cLN": "channel_layer_norm",
    "ChanLN": "channel_layer_norm",
    "cgLN": "cumulative_layer_norm",
    "CumLN": "cumulative_layer_norm",
    "bN": "batch_norm",
    "BatchNorm": "batch_norm",
}


def _load(where: str, model: EncoderMaskerDecoder, weights: Mapping[str, Tensor]) -> None:
    """Copies asteroid's weights into `model`; both sets of names must match exactly, and all shapes."""
    names = _asteroid_names(model)
    expected = {name for theirs in names.values() for name in theirs}
    differing = sorted(expected ^ set(weights))
    if differing:
        kind = "missing" if differing[0] in expected else "unexpected"
        raise UserError(f"{where}: {len(differing)} weights do not fit its model_args, first {kind}: {differing[0]}")
    state = model.state_dict()
    for ours, theirs in names.items():
        # Several names are pieces of one tensor of ours, or, for the encoder's filters, the same tensor twice.
        tensor = torch.cat([weights[name] for name in theirs]) if _is_merged(ours) else weights[theirs[0]]
        if tensor.shape != state[ours].shape:
            raise UserError(
                f"{where}: {theirs[0]} has shape {tuple(tensor.shape)}, its model_args ask for {tuple(state[ours].shape)}"
            )
        state[ours] = tensor
    model.load_state_dict(state)


# ------------------------------------------------------------------------------------------- sepkit -> asteroid


def to_asteroid_state_dict(model: EncoderMaskerDecoder) -> dict[str, Tensor]:
    """The weights of `model` under the names and in the shapes of asteroid's model of the same sizes; copies.

    The training deviation, by which a sepkit model divides its input and multiplies its estimates, goes into the filters. The
    outputs are equal to rounding if the model was built with pad="asteroid"; else they differ at the edges.

    Args:
        model: free filterbank, deterministic latents, and a masker that asteroid has.

    Raises:
        UserError: something that asteroid's models do not have, among it a training mean above 0.1 % of the
            training deviation (a smaller one is dropped).
    """
    _check_exportable(model)
    state = model.state_dict()
    scale = model.signal_std
    state["filterbank.encoder.filterbank._filters"] = state["filterbank.encoder.filterbank._filters"] / scale
    state["filterbank.decoder.filterbank._filters"] = state["filterbank.decoder.filterbank._filters"] * scale
    exported: dict[str, Tensor] = {}
    for ours, theirs in _asteroid_names(model).items():
        pieces = [state[ours]] * len(theirs)
        if _is_merged(ours) and len(theirs) > 1:
            pieces = list(state[ours].split([model.masker.bottleneck_channels, model.masker.skip_channels]))
        exported.update({name: piece.clone() for name, piece in zip(theirs, pieces, strict=True)})
    return exported


def _check_exportable(model: EncoderMaskerDecoder) -> None:
    masker = model.masker
    if type(masker) not in _RULES:
        raise UserError(f"masker {type(masker).__name__}: asteroid has none like it; expected {', '.join(c.__name__ for c in _RULES)}")
    if not isinstance(model.filterbank, FreeFilterbank):
        raise UserError(f"filterbank {type(model.filterbank).__name__}: only free filterbanks go to asteroid")
    if masker.values_per_dimension != 1 or model.encoding_family.values_per_dimension != 1:
        raise UserError("latents: found a variational family; only deterministic models go to asteroid")
    if isinstance(masker, ConvTasNetMasker) and masker.skip_scale != 1:
        raise UserError("model.masker.normalize_skip_sum: found true; asteroid's ConvTasNet does not divide its skip sum")
    if isinstance(masker, SuDoRMRFMasker | ImprovedSuDoRMRFMasker) and masker.hidden_channels != masker.encoding_dim:
        raise UserError(
            f"model.masker.hidden_channels: found {masker.hidden_channels}; asteroid has as many as filters, {masker.encoding_dim}"
        )
    if model.signal_mean.abs() > 1e-3 * model.signal_std:
        raise UserError(f"signal_mean: found {model.signal_mean:.3g}; asteroid's models cannot remove a mean")


# ------------------------------------------------------------------------------------------------------- names


def _asteroid_names(model: EncoderMaskerDecoder) -> dict[str, list[str]]:
    """Our name -> asteroid's (two where it keeps two tensors for one of ours), for every weight."""
    encoders = ["encoder.filterbank._filters"]
    if isinstance(model.masker, SuDoRMRFMasker | ImprovedSuDoRMRFMasker):
        encoders.append("encoder.encoder.filterbank._filters")
    names = {
        "filterbank.encoder.filterbank._filters": encoders,
        "filterbank.decoder.filterbank._filters": ["decoder.filterbank._filters"],
    }
    for key in model.masker.state_dict():
        names[f"masker.{key}"] = [f"masker.{name}" for name in _masker_names(model.masker, key)]
    return names


def _masker_names(masker: nn.Module, key: str) -> list[str]:
    for pattern, *templates in _RULES[type(masker)]:
        match = re.match(pattern, key)
        if match:
            names = [match.expand(template) + key[match.end() :] for template in templates]
            break
    else:
        names = [key]
    if isinstance(masker, SuDoRMRFMasker):
        return [re.sub("gamma$", "weight", re.sub("beta$", "bias", name)) for name in names]
    if isinstance(masker, ConvTasNetMasker):
        if masker.causal:
            names = [name.replace("shared_block.3.", "shared_block.3.0.") for name in names]
        if not masker.skip_channels:
            names = names[:1]
    return names


def _is_merged(ours: str) -> bool:
    return re.match(r"masker\.blocks\.\d+\.output\.(weight|bias)$", ours) is not None


_RESOLUTIONS = [
    (r"blocks\.(\d+)\.resolutions\.expand\.0\.", r"sm.\1.proj_1x1.conv."),
    (r"blocks\.(\d+)\.resolutions\.expand\.1\.", r"sm.\1.proj_1x1.norm."),
    (r"blocks\.(\d+)\.resolutions\.expand\.2\.", r"sm.\1.proj_1x1.act."),
    (r"blocks\.(\d+)\.resolutions\.levels\.(\d+)\.0\.", r"sm.\1.spp_dw.\2.conv."),
    (r"blocks\.(\d+)\.resolutions\.levels\.(\d+)\.1\.", r"sm.\1.spp_dw.\2.norm."),
    (r"blocks\.(\d+)\.resolutions\.merge\.0\.", r"sm.\1.final_norm.norm."),
    (r"blocks\.(\d+)\.resolutions\.merge\.1\.", r"sm.\1.final_norm.act."),
]

# Start of our name -> start of asteroid's; the first rule that matches is applied, a name without one is the same.
_RULES: dict[type[nn.Module], list[tuple[str, ...]]] = {
    ConvTasNetMasker: [
        (r"norm\.", r"bottleneck.0."),
        (r"bottleneck\.", r"bottleneck.1."),
        (r"blocks\.(\d+)\.expand\.", r"TCN.\1.shared_block."),
        (r"blocks\.(\d+)\.depthwise\.", r"TCN.\1.shared_block.3."),
        (r"blocks\.(\d+)\.activation\.", r"TCN.\1.shared_block.4."),
        (r"blocks\.(\d+)\.norm\.", r"TCN.\1.shared_block.5."),
        (r"blocks\.(\d+)\.output\.", r"TCN.\1.res_conv.", r"TCN.\1.skip_conv."),
        (r"activation\.", r"mask_net.0."),
        (r"output\.", r"mask_net.1."),
    ],
    DualPathRNNMasker: [
        (r"norm\.", r"bottleneck.0."),
        (r"bottleneck\.", r"bottleneck.1."),
        (r"blocks\.(\d+)\.(intra|inter)\.rnn\.", r"net.\1.\2_RNN.rnn."),
        (r"blocks\.(\d+)\.(intra|inter)\.(linear|norm)\.", r"net.\1.\2_\3."),
        (r"spread\.", r"first_out."),
        (r"value\.", r"net_out."),
        (r"gate\.", r"net_gate."),
        (r"output\.", r"mask_net."),
    ],
    SuDoRMRFMasker: [
        (r"norm\.", r"ln."),
        (r"bottleneck\.", r"l1."),
        *_RESOLUTIONS,
        (r"blocks\.(\d+)\.project\.0\.", r"sm.\1.conv_1x1_exp.conv."),
        (r"blocks\.(\d+)\.project\.1\.", r"sm.\1.conv_1x1_exp.norm."),
        (r"blocks\.(\d+)\.output\.0\.", r"sm.\1.module_act.norm."),
        (r"blocks\.(\d+)\.output\.1\.", r"sm.\1.module_act.act."),
        (r"expand\.", r"reshape_before_masks."),
        (r"output\.", r"m."),
    ],
    ImprovedSuDoRMRFMasker: [
        (r"norm\.", r"ln."),
        *_RESOLUTIONS,
        (r"blocks\.(\d+)\.project\.", r"sm.\1.res_conv."),
        (r"output\.", r"mask_net."),
    ],
}
