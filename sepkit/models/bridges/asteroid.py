"""Weights of asteroid's ConvTasNet, DPRNNTasNet, SuDORMRFNet and SuDORMRFImprovedNet, in and out.

Reading its files does not need asteroid. They are pickles, read by torch's restricted loader, which makes only tensors
and plain data and runs nothing.
"""

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sepkit import config
from sepkit.errors import UserError, shown
from sepkit.models.bridges._pickles import Description, check_plain, check_sizes, read_checkpoint
from sepkit.models.bridges._weights import Names, all_pieces, build_with
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.filterbanks import FreeFilterbank
from sepkit.models.maskers import ConvTasNetMasker, DualPathRNNMasker, ImprovedSuDoRMRFMasker, SuDoRMRFMasker
from sepkit.registry import registered

FILES = ("pytorch_model.bin",)
"""Fetched from a repository."""
_EXPECTED = "expected what asteroid's serialize() gives (model_name, model_args, state_dict)"
# Second name of the encoder's filters in SuDoRM-RF, where a wrapper pads.
_WRAPPED = "encoder.encoder.filterbank._filters"

# ------------------------------------------------------------------------------------------- asteroid -> sepkit


def from_asteroid(model_or_path: nn.Module | str | Path, *, sample_rate: int | None = None) -> EncoderMaskerDecoder:
    """Return a sepkit model, in evaluation mode, with the outputs (to rounding) and weights of an asteroid model.

    Args:
        model_or_path: an asteroid model, or a file of its `serialize()`.
        sample_rate: Hz, for old files that do not state it.
    """
    where, checkpoint = _unpack(model_or_path)
    name, arguments, weights = (checkpoint[key] for key in ("model_name", "model_args", "state_dict"))
    if name not in _MASKERS:
        raise UserError(f"{where}: found an asteroid {shown(name)}, expected one of {', '.join(_MASKERS)}")
    try:
        # Files of asteroid 0.3 and before state their rate only in their training configuration.
        trained = Description(Path(where), checkpoint).at("infos.training_config.data.sample_rate", sample_rate)
        rate = arguments.get("sample_rate")
        made = _model_config(where, name, {**arguments, "sample_rate": trained if rate is None else rate})
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where}: model_args are not those of a {name} ({type(error).__name__}: {error})") from None
    # Types and ranges are config's to check.
    made = config.from_dict(config.ModelConfig, config.to_dict(made), where)
    if name.startswith("SuDORMRF"):
        weights = {key: tensor for key, tensor in weights.items() if key != _WRAPPED}
    check_plain(where, weights)
    return build_with(where, made, weights, _names(registered(made.masker), made.masker))


def _unpack(model_or_path: nn.Module | str | Path) -> tuple[str, Mapping[str, Any]]:
    """Return the source's name for messages, and asteroid's checkpoint."""
    if not isinstance(model_or_path, nn.Module):
        path = Path(model_or_path)
        checkpoint = read_checkpoint(path, _EXPECTED)
        for key, kind in (("model_name", str), ("model_args", Mapping), ("state_dict", Mapping)):
            if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get(key), kind):
                raise UserError(f"{path}: no {key} in it; {_EXPECTED}")
        return str(path), checkpoint
    classes = [cls.__name__ for cls in type(model_or_path).__mro__]
    name = next((name for name in classes if name in _MASKERS), classes[0])
    arguments = model_or_path.get_model_args() if name in _MASKERS else {}  # type: ignore[operator]
    return "asteroid model", {"model_name": name, "model_args": arguments, "state_dict": model_or_path.state_dict()}


def _model_config(where: str, name: str, arguments: Mapping[str, Any]) -> config.ModelConfig:
    check_sizes(where, arguments, _LARGEST)
    rate, filters = arguments["sample_rate"], arguments["n_filters"]
    if not rate:
        raise UserError(f"{where}: found no sample rate in it; give one: asteroid:{where}@8000")
    _require(where, "fb_name", arguments.get("fb_name", "free"), ["free", "FreeFB"])
    _require(where, "out_chan", arguments.get("out_chan") or filters, [filters])
    # SuDORMRFNet's encoder activation is fixed; the other models' arguments may name one.
    activation = "relu" if name == "SuDORMRFNet" else arguments.get("encoder_activation") or "linear"
    # In asteroid a softmax of DPRNNTasNet runs over filters.
    softmax = [] if name == "DPRNNTasNet" else ["softmax"]
    return config.ModelConfig(
        sample_rate=round(rate),
        hypotheses=arguments["n_src"],
        filterbank=_filterbank_config(name, arguments),
        encoding=config.DeterministicConfig(activation=_require(where, "encoder_activation", activation, _ACTIVATIONS)),
        masker=_MASKERS[name](where, arguments),
        masks=config.DeterministicConfig(
            activation=_require(where, "mask_act", arguments["mask_act"] or "linear", [*_ACTIVATIONS, *softmax])
        ),
        pad="asteroid",
    )


def _require(where: str, field: str, found: Any, known: Collection[Any]) -> Any:
    """Return `found` if it is one of the `known`, else raise UserError."""
    if found not in known:
        choices = ", ".join(str(choice) for choice in known)
        raise UserError(f"{where}: {field} is {shown(found)}, which sepkit does not have; expected one of {choices}")
    return found


def _filterbank_config(name: str, arguments: Mapping[str, Any]) -> config.FreeFilterbankConfig:
    bank = config.FreeFilterbankConfig(arguments["n_filters"], arguments["kernel_size"], arguments["stride"])
    if name in ("SuDORMRFNet", "SuDORMRFImprovedNet"):
        half = arguments["kernel_size"] // 2
        bank.padding = half
        bank.output_padding = half - 1
        bank.multiple = math.lcm(half, 2 ** arguments["upsampling_depth"])
    return bank


def _norm(where: str, arguments: Mapping[str, Any]) -> Any:
    return _NORMS[_require(where, "norm_type", arguments.get("norm_type", "gLN"), _NORMS)]


def _conv_tasnet_config(where: str, arguments: Mapping[str, Any]) -> config.MaskerConfig:
    return config.ConvTasNetConfig(
        bottleneck_channels=arguments["bn_chan"],
        hidden_channels=arguments["hid_chan"],
        skip_channels=arguments["skip_chan"] or 0,
        kernel_size=arguments["conv_kernel_size"],
        blocks=arguments["n_blocks"],
        repeats=arguments["n_repeats"],
        norm=_norm(where, arguments),
        causal=arguments.get("causal", False),
    )


def _dual_path_rnn_config(where: str, arguments: Mapping[str, Any]) -> config.MaskerConfig:
    _require(where, "use_mulcat", arguments.get("use_mulcat", False), [False])
    layers = arguments["num_layers"]
    return config.DualPathRNNConfig(
        bottleneck_channels=arguments["bn_chan"],
        hidden_channels=arguments["hid_size"],
        chunk_size=arguments["chunk_size"],
        hop_size=arguments["hop_size"],
        repeats=arguments["n_repeats"],
        rnn=_require(where, "rnn_type", str(arguments["rnn_type"]).lower(), ["lstm", "gru"]),
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


_MASKERS: dict[str, Callable[[str, Mapping[str, Any]], config.MaskerConfig]] = {
    "ConvTasNet": _conv_tasnet_config,
    "DPRNNTasNet": _dual_path_rnn_config,
    "SuDORMRFNet": lambda where, arguments: config.SuDoRMRFConfig(**_sudormrf_sizes(arguments)),
    "SuDORMRFImprovedNet": lambda where, arguments: config.ImprovedSuDoRMRFConfig(**_sudormrf_sizes(arguments)),
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

_ACTIVATIONS = ["linear", "relu", "sigmoid", "tanh"]

# The last two are exponents of two: dilations, and how often a resolution is halved.
_LARGEST = {"sample_rate": math.inf, "n_repeats": 1000, "num_blocks": 1000, "num_layers": 1000}
_LARGEST |= {"n_blocks": 30, "upsampling_depth": 30}

# ------------------------------------------------------------------------------------------- sepkit -> asteroid


def to_asteroid_state_dict(model: EncoderMaskerDecoder) -> dict[str, Tensor]:
    """Return copies of the weights of `model` under the names and in the shapes of asteroid's model of the same sizes.

    A sepkit model divides its input by the training deviation and multiplies its estimates by it; here this goes into
    the filters. Outputs agree to rounding if the model was built with pad="asteroid", else they differ at the edges.

    Args:
        model: free filterbank, deterministic latents, and a masker that asteroid has.
    """
    _check_portable(model)
    pieces = all_pieces(model, _names(type(model.masker), model.masker))
    exported = {theirs: piece.detach().clone() for theirs, piece in pieces.items()}
    exported["encoder.filterbank._filters"] /= model.signal_std
    exported["decoder.filterbank._filters"] *= model.signal_std
    if isinstance(model.masker, SuDoRMRFMasker | ImprovedSuDoRMRFMasker):
        exported[_WRAPPED] = exported["encoder.filterbank._filters"].clone()
    return exported


def _check_portable(model: EncoderMaskerDecoder) -> None:
    masker = model.masker
    if type(masker) not in _NAMES:
        known = ", ".join(cls.__name__ for cls in _NAMES)
        raise UserError(f"masker {type(masker).__name__}: asteroid has none like it; expected {known}")
    if not isinstance(model.filterbank, FreeFilterbank) or model.filterbank.together:
        raise UserError(f"filterbank {type(model.filterbank).__name__}: asteroid has only free ones, for one estimate")
    if model.scoring_head is not None:
        raise UserError("model.scoring: found a scoring head; asteroid's models have no scores")
    if model.variational or model.scale_decoder is not None:
        raise UserError("latents: found a variational family; asteroid supports only deterministic models")
    if isinstance(masker, ConvTasNetMasker) and masker.skip_scale != 1:
        raise UserError("model.masker.normalize_skip_sum: found true; asteroid does not divide its skip sum")
    width, filters = getattr(masker, "hidden_channels", masker.encoding_dim), masker.encoding_dim
    if width != filters:
        raise UserError(f"model.masker.hidden_channels: found {width}; asteroid has as many as filters, {filters}")
    if model.signal_mean.abs() > 1e-3 * model.signal_std:
        raise UserError(f"signal_mean: found {model.signal_mean:.3g}; asteroid's models cannot remove a mean")


# -------------------------------------------------------------------------------------------------- names of weights


def _names(masker_class: type[nn.Module], masker: Any) -> Names:
    """Return the substitutions that make asteroid's names of ours; `masker` is one, or its configuration."""
    # In asteroid the convolution and the module that cuts its future frames form a sequence of two.
    cut = [(r"shared_block\.3\.", "shared_block.3.0.")] if getattr(masker, "causal", False) else []
    return [*_CODERS, *_NAMES[masker_class], *cut]


_CODERS = [(r"^filterbank\.(en|de)coder\.filterbank\._filters", r"\1coder.filterbank._filters")]

_SUDORMRF = [
    (r"^masker\.norm\.", "masker.ln."),
    (r"^masker\.blocks\.(\d+)\.", r"masker.sm.\1."),
    (r"\.resolutions\.expand\.0\.", ".proj_1x1.conv."),
    (r"\.resolutions\.expand\.1\.", ".proj_1x1.norm."),
    (r"\.resolutions\.expand\.2\.", ".proj_1x1.act."),
    (r"\.resolutions\.levels\.(\d+)\.0\.", r".spp_dw.\1.conv."),
    (r"\.resolutions\.levels\.(\d+)\.1\.", r".spp_dw.\1.norm."),
    (r"\.resolutions\.merge\.0\.", ".final_norm.norm."),
    (r"\.resolutions\.merge\.1\.", ".final_norm.act."),
]

# Our names -> asteroid's, one after another.
_NAMES: dict[type[nn.Module], list[tuple[str, str]]] = {
    ConvTasNetMasker: [
        (r"^masker\.bottleneck\.", "masker.bottleneck.1."),
        (r"^masker\.norm\.", "masker.bottleneck.0."),
        (r"^masker\.blocks\.(\d+)\.", r"masker.TCN.\1."),
        (r"\.expand\.", ".shared_block."),
        (r"\.depthwise\.", ".shared_block.3."),
        (r"(TCN\.\d+)\.activation\.", r"\1.shared_block.4."),
        (r"(TCN\.\d+)\.norm\.", r"\1.shared_block.5."),
        (r"(TCN\.\d+)\.output\.", r"\1.{part}_conv."),
        (r"^masker\.activation\.", "masker.mask_net.0."),
        (r"^masker\.output\.", "masker.mask_net.1."),
    ],
    DualPathRNNMasker: [
        (r"^masker\.bottleneck\.", "masker.bottleneck.1."),
        (r"^masker\.norm\.", "masker.bottleneck.0."),
        (r"^masker\.blocks\.(\d+)\.(intra|inter)\.rnn\.", r"masker.net.\1.\2_RNN.rnn."),
        (r"^masker\.blocks\.(\d+)\.(intra|inter)\.(linear|norm)\.", r"masker.net.\1.\2_\3."),
        (r"^masker\.spread\.", "masker.first_out."),
        (r"^masker\.value\.", "masker.net_out."),
        (r"^masker\.gate\.", "masker.net_gate."),
        (r"^masker\.output\.", "masker.mask_net."),
    ],
    SuDoRMRFMasker: [
        *_SUDORMRF,
        (r"^masker\.bottleneck\.", "masker.l1."),
        (r"\.project\.0\.", ".conv_1x1_exp.conv."),
        (r"\.project\.1\.", ".conv_1x1_exp.norm."),
        (r"(sm\.\d+)\.output\.0\.", r"\1.module_act.norm."),
        (r"(sm\.\d+)\.output\.1\.", r"\1.module_act.act."),
        (r"^masker\.expand\.", "masker.reshape_before_masks."),
        (r"^masker\.output\.", "masker.m."),
        (r"\.gamma$", ".weight"),
        (r"\.beta$", ".bias"),
    ],
    ImprovedSuDoRMRFMasker: [*_SUDORMRF, (r"\.project\.", ".res_conv."), (r"^masker\.output\.", "masker.mask_net.")],
}
