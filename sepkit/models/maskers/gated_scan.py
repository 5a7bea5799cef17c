"""The scan of a recurrence that is linear in its state, with its own gradient and a form that exported graphs keep."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sepkit.models.maskers.fast.guard import is_tracing


def gated_scan(forget: Tensor, value: Tensor, initial: Tensor | None = None, backwards: bool = False) -> Tensor:
    """Return h_t = f_t h_(t-1) + (1 - f_t) v_t for t = 0 ... T - 1, (T, ...), in float32 at least.

    Args:
        forget: f, (T, ...), between 0 and 1.
        value: v, (T, ...).
        initial: h_(-1), (...); None: zeros.
        backwards: go from the last step to the first, h_t = f_t h_(t+1) + (1 - f_t) v_t.
    """
    if value.dtype in (torch.float16, torch.bfloat16):
        forget, value = forget.float(), value.float()
    if initial is None:
        initial = torch.zeros_like(value[0])
    if is_tracing():
        return _loop()(forget, value, initial, backwards)
    return _Scan.apply(forget, value, initial.to(value.dtype), backwards)


class _Scan(torch.autograd.Function):
    """`gated_scan` with one operation a step in either pass."""

    @staticmethod
    def forward(ctx: Any, forget: Tensor, value: Tensor, initial: Tensor, backwards: bool) -> Tensor:
        hidden = torch.empty_like(value, memory_format=torch.contiguous_format)
        last = initial
        for f, v, h in _steps(backwards, forget, value, hidden):
            torch.lerp(v, last, f, out=h)
            last = h
        ctx.backwards = backwards
        ctx.save_for_backward(forget, value, initial, hidden)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        forget, value, initial, hidden = ctx.saved_tensors
        total = grad.clone(memory_format=torch.contiguous_format)
        after: tuple[Tensor, Tensor] | None = None
        for f, g in _steps(not ctx.backwards, forget, total):
            if after is not None:
                g.addcmul_(*after)
            after = (f, g)
        assert after is not None
        if ctx.backwards:
            before = torch.cat([hidden[1:], initial.unsqueeze(0)])
        else:
            before = torch.cat([initial.unsqueeze(0), hidden[:-1]])
        return before.sub_(value).mul_(total), torch.addcmul(total, forget, total, value=-1), after[0] * after[1], None


def _steps(backwards: bool, *sequences: Tensor) -> Any:
    """The steps of sequences side by side, first or last step first."""
    steps = zip(*(sequence.unbind(0) for sequence in sequences), strict=True)
    return reversed(list(steps)) if backwards else steps


@functools.cache
def _loop() -> Callable[[Tensor, Tensor, Tensor, bool], Tensor]:
    """`_scan_for_graphs` compiled, so that a trace keeps its loop and does not unroll it."""
    with warnings.catch_warnings():
        # Deprecated, but a trace, which the export is, can hold a loop in no other way.
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(_scan_for_graphs)


def _scan_for_graphs(forget: Tensor, value: Tensor, initial: Tensor, backwards: bool) -> Tensor:
    """`gated_scan` for as many steps as there are when it runs."""
    if backwards:
        forget, value = forget.flip(0), value.flip(0)
    last = initial
    steps: list[Tensor] = []
    for step in range(value.shape[0]):
        last = value[step] + forget[step] * (last - value[step])
        steps.append(last)
    hidden = torch.stack(steps)
    return hidden.flip(0) if backwards else hidden
