"""Methods of maskers that a faster function may replace, and conditions for it.

A masker marks the method and does not depend on its replacement; the function registers itself, in
`sepkit.models.maskers.fast`, for the conditions under which no difference is visible:

    class MyMasker(Masker):
        @replaceable
        def trunk(self, features: Tensor) -> Tensor: ...

    @replaces(MyMasker.trunk, when=in_evaluation(MyMasker))
    def my_trunk(masker: MyMasker, features: Tensor) -> Tensor: ...
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from sepkit.models.norms import GlobalLayerNorm
from sepkit.models.runtime import runs_plainly_on_cpu

Method = TypeVar("Method", bound=Callable[..., Tensor])

Condition = Callable[[Any, Tensor], bool]
"""Takes the masker and the input of the method."""

_DTYPES = (torch.float32, torch.float64)
_SHARED = (nn.Conv1d, nn.PReLU, nn.Sequential, nn.ModuleList, nn.Identity, GlobalLayerNorm)

_replacements: dict[Callable[..., Tensor], list[tuple[Condition, Callable[..., Tensor]]]] = {}


def replaceable(method: Method) -> Method:
    """Return the method, for a decorator: it runs unless a registered function applies.

    Args:
        method: takes one tensor and, optionally, the state of a stream. Streams always run the method.
    """
    replacements: list[tuple[Condition, Callable[..., Tensor]]] = []

    @functools.wraps(method)
    def call(masker: Any, x: Tensor, state: Any = None) -> Tensor:
        if state is not None:
            return method(masker, x, state)
        for applies, function in replacements:
            if applies(masker, x):
                return function(masker, x)
        return method(masker, x)

    _replacements[call] = replacements
    return cast(Method, call)


def replaces(method: Callable[..., Tensor], when: Condition) -> Callable[[Method], Method]:
    """Return a decorator: its function runs instead of a `replaceable` method of a class wherever `when` is true.

    Args:
        method: `Class.method`.
        when: Condition, checked at every call. It must be false wherever more than time and memory would differ.
    """

    def register(function: Method) -> Method:
        _replacements[method].append((when, function))
        return function

    return register


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
