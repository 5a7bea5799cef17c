"""How sepkit's names of weights map to asteroid's."""

from __future__ import annotations

import re

from torch import Tensor, nn

from sepkit.models.maskers import ConvTasNetMasker, DualPathRNNMasker, ImprovedSuDoRMRFMasker, SuDoRMRFMasker

_ENCODER, _DECODER = "filterbank.encoder.filterbank._filters", "filterbank.decoder.filterbank._filters"


def asteroid_pieces(masker: nn.Module, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensors that asteroid keeps for one tensor of ours: views of it, in order along its first axis.

    `masker` is one of `PORTABLE`; `name` is the tensor's in the state dict of our model.
    """
    if name == _DECODER:
        return {"decoder.filterbank._filters": tensor}
    if name == _ENCODER:
        return {"encoder.filterbank._filters": tensor}
    theirs = [f"masker.{piece}" for piece in _masker_names(masker, name.removeprefix("masker."))]
    if len(theirs) == 1:
        return {theirs[0]: tensor}
    sizes = [masker.bottleneck_channels, masker.skip_channels]
    return {piece: part for piece, part in zip(theirs, tensor.split(sizes), strict=True) if len(part)}  # type: ignore[arg-type]


def _masker_names(masker: nn.Module, key: str) -> list[str]:
    names = [key]
    for pattern, *templates in _RULES[type(masker)]:
        match = re.match(pattern, key)
        if match:
            names = [match.expand(template) + key[match.end() :] for template in templates]
            break
    if isinstance(masker, SuDoRMRFMasker):
        return [re.sub("gamma$", "weight", re.sub("beta$", "bias", name)) for name in names]
    if isinstance(masker, ConvTasNetMasker) and masker.causal:
        # In asteroid the convolution and the module that cuts its future frames form a sequence of two.
        return [name.replace("shared_block.3.", "shared_block.3.0.") for name in names]
    return names


_RESOLUTIONS = [
    (r"blocks\.(\d+)\.resolutions\.expand\.0\.", r"sm.\1.proj_1x1.conv."),
    (r"blocks\.(\d+)\.resolutions\.expand\.1\.", r"sm.\1.proj_1x1.norm."),
    (r"blocks\.(\d+)\.resolutions\.expand\.2\.", r"sm.\1.proj_1x1.act."),
    (r"blocks\.(\d+)\.resolutions\.levels\.(\d+)\.0\.", r"sm.\1.spp_dw.\2.conv."),
    (r"blocks\.(\d+)\.resolutions\.levels\.(\d+)\.1\.", r"sm.\1.spp_dw.\2.norm."),
    (r"blocks\.(\d+)\.resolutions\.merge\.0\.", r"sm.\1.final_norm.norm."),
    (r"blocks\.(\d+)\.resolutions\.merge\.1\.", r"sm.\1.final_norm.act."),
]

# Start of our name -> start of asteroid's (of two names, where it keeps two tensors for one of ours). The first rule
# that matches is applied; a name without one is the same in both.
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

PORTABLE: tuple[type[nn.Module], ...] = tuple(_RULES)
"""The maskers that asteroid has too."""
