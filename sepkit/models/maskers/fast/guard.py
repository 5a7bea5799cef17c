"""Conditions under which a fast way may replace modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from sepkit.models.maskers.replaceable import Condition
from sepkit.models.norms import GlobalLayerNorm
from sepkit.models.runtime import runs_plainly_on_cpu

_DTYPES = (torch.float32, torch.float64)
_SHARED = (nn.Conv1d, nn.PReLU, nn.Sequential, nn.ModuleList, nn.Identity, GlobalLayerNorm)


def in_evaluation(*own: type[nn.Module]) -> Condition:
    """Return a condition: that of `plain`, evaluation mode, and no gradients recorded."""
    is_plain = plain(*own)
    return lambda masker, x: not masker.training and not torch.is_grad_enabled() and is_plain(masker, x)


def plain(*own: type[nn.Module]) -> Condition:
    """Return a condition: the masker runs only its own operations, on a CPU.

    It is false under autocast, while a model is traced, exported or compiled, on other devices, with hooks, with norms
    other than the global one, and if modules or weights were replaced.

    Args:
        own: types of the masker's modules beside convolutions, PReLU, containers and norms.
    """
    types = _SHARED + own

    def is_plain(masker: nn.Module, x: Tensor) -> bool:
        if x.dtype not in _DTYPES or not runs_plainly_on_cpu(x):
            return False
        if nn_module._global_forward_hooks or nn_module._global_forward_pre_hooks:
            return False
        if nn_module._global_backward_hooks or nn_module._global_backward_pre_hooks:
            return False
        return all(_is_plain(module, types, x.dtype) for module in masker.modules())

    return is_plain


def _is_plain(module: nn.Module, types: tuple[type[nn.Module], ...], dtype: torch.dtype) -> bool:
    if type(module) not in types or "forward" in vars(module):
        return False
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    weights = [weight for weight in module._parameters.values() if weight is not None]
    return all(type(weight) is nn.Parameter and weight.dtype is dtype and weight.is_cpu for weight in weights)
