"""Methods of maskers that a faster function may stand in for.

A masker marks the method and knows nothing of what replaces it; the function registers itself, in
`sepkit.models.maskers.fast`:

    class MyMasker(Masker):
        @replaceable
        def trunk(self, features: Tensor) -> Tensor: ...

    @replaces(MyMasker.trunk, when=in_evaluation(MyMasker))
    def my_trunk(masker: MyMasker, features: Tensor) -> Tensor: ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch import Tensor

Method = TypeVar("Method", bound=Callable[..., Tensor])

Condition = Callable[[Any, Tensor], bool]
"""Takes the masker and the input of the method."""

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
        when: decides at every call. It must be false wherever anybody could see a difference but in time and memory.
    """

    def register(function: Method) -> Method:
        _replacements[method].append((when, function))
        return function

    return register
