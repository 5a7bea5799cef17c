"""Gradient checkpointing: blocks discard their inner values and compute them again in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sepkit.errors import UserError
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.maskers import ContinuousDepthMasker, ConvTasNetMasker
from sepkit.models.maskers.fast.recomputed import is_recomputable


def checkpoint_blocks(model: EncoderMaskerDecoder) -> None:
    """Make each block keep only its input for the backward pass; gradients stay the same.

    Blocks of Conv-TasNet that already do so, faster (see `recomputed`), are left alone.

    Args:
        model: has `blocks`, or a masker with `blocks`, and is on the device and in the precision of training.
    """
    masker = getattr(model, "masker", model)
    if isinstance(masker, ContinuousDepthMasker):
        masker.recompute = True
        return
    blocks = getattr(masker, "blocks", None)
    if not isinstance(blocks, nn.Module):
        raise UserError(
            "trainer.gradient_checkpointing: found true, but this masker has no blocks to compute again one by"
            " one; expected false, or one of conv_tasnet, dual_path_rnn, sudormrf, improved_sudormrf, sepformer and"
            " continuous_depth"
        )
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in blocks.modules()):
        raise UserError(
            "trainer.gradient_checkpointing: found true, but batch normalization would count every batch twice; "
            "expected false, or another norm"
        )
    if isinstance(masker, ConvTasNetMasker):
        weight = next(masker.parameters())
        x = weight.new_zeros(1, masker.bottleneck_channels, 1)
        if is_recomputable(masker, x):
            return
    for block in blocks.children():
        block.forward = _Checkpointed(block.forward)


class _Checkpointed:
    """A forward method that the backward pass calls again."""

    def __init__(self, forward: Any) -> None:
        self._forward = forward

    def __call__(self, *inputs: Tensor | None) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*inputs)
        return checkpoint(self._forward, *inputs, use_reentrant=False)
