"""The scan of a recurrence that is linear in its state, with its own gradient and a form that exported graphs keep."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.jit._trace import is_tracing

from sepkit.models.runtime import at_least_float32


def gated_scan(forget: Tensor, value: Tensor, initial: Tensor | None = None) -> Tensor:
    """Return h_t = f_t h_(t-1) + (1 - f_t) v_t for t = 0 ... T - 1, (T, ...), in float32 at least.

    Args:
        forget: f, (T, ...), between 0 and 1.
        value: v, (T, ...).
        initial: h_(-1), (...); None: zeros.
    """
    forget, value = at_least_float32(forget), at_least_float32(value)
    if initial is None:
        initial = torch.zeros_like(value[0])
    initial = initial.to(value.dtype)
    return (_scan_for_graphs if is_tracing() else _Scan.apply)(forget, value, initial)


def two_way_scan(forget: Tensor, value: Tensor) -> Tensor:
    """Return the scan of which one half of the units goes forwards and the other backwards, (T, ..., 2 U).

    Both go side by side, so that it takes as many operations as one.

    Args:
        forget: f, (T, ..., 2 U), between 0 and 1; the first U units go forwards.
        value: v, (T, ..., 2 U).
    """
    forwards, backwards = gated_scan(_side_by_side(forget), _side_by_side(value)).unbind(1)
    return torch.cat([forwards, backwards.flip(0)], dim=-1)


def _side_by_side(sequence: Tensor) -> Tensor:
    """The halves of the units, (T, 2, ..., U), the second with its steps in reverse order."""
    first, second = sequence.chunk(2, dim=-1)
    return torch.stack([first, second.flip(0)], dim=1)


class _Scan(torch.autograd.Function):
    """`gated_scan` from the first step to the last, with its own gradient."""

    @staticmethod
    def forward(ctx: Any, forget: Tensor, value: Tensor, initial: Tensor) -> Tensor:
        hidden = _linear_scan(forget, torch.addcmul(value, forget, value, value=-1), initial)
        ctx.save_for_backward(forget, value, initial, hidden)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        forget, value, initial, hidden = ctx.saved_tensors
        total = grad.clone(memory_format=torch.contiguous_format)
        gradients, gates = total.unbind(0), forget.unbind(0)
        for step in range(len(gradients) - 1, 0, -1):
            gradients[step - 1].addcmul_(gates[step], gradients[step])
        before = torch.cat([initial.unsqueeze(0), hidden[:-1]])
        return before.sub_(value).mul_(total), torch.addcmul(total, forget, total, value=-1), gates[0] * gradients[0]


def _linear_scan(factor: Tensor, addend: Tensor, initial: Tensor) -> Tensor:
    """Return h_t = a_t h_(t-1) + b_t for t = 0 ... T - 1, (T, ...), in about 3 sqrt(T) operations instead of T.

    About sqrt(T) stretches of as many steps advance side by side, each from zero. Then each gets what the one before
    it ended with, times the product of its factors up to there.

    Args:
        factor: a, (T, ...).
        addend: b, (T, ...); the result is written into it.
        initial: h_(-1), (...).
    """
    steps = math.isqrt(len(addend))
    stretches = len(addend) // steps
    whole = stretches * steps
    hidden = addend[:whole].unflatten(0, (stretches, steps))
    products = factor[:whole].unflatten(0, (stretches, steps)).clone(memory_format=torch.contiguous_format)
    states, passed = hidden.unbind(1), products.unbind(1)
    for step in range(1, steps):
        # `passed[step]` is still the factor of this step alone.
        states[step].addcmul_(passed[step], states[step - 1])
        passed[step].mul_(passed[step - 1])
    ends = torch.empty_like(hidden[:, 0])
    last = initial
    for end, state, product in zip(ends.unbind(0), states[-1].unbind(0), passed[-1].unbind(0), strict=True):
        end.copy_(last)
        last = torch.addcmul(state, product, last)
    hidden.addcmul_(products, ends.unsqueeze(1))
    for step in range(whole, len(addend)):
        addend[step].addcmul_(factor[step], addend[step - 1])
    return addend


def _scan_for_graphs(forget: Tensor, value: Tensor, initial: Tensor) -> Tensor:
    """`gated_scan` for as many steps as there are when a traced graph runs, in about 3 sqrt(T) steps of its loops.

    The end of each stretch follows from its end without what came before it, and from the product of its factors. Then
    all stretches advance once more, each from where the one before it ended.
    """
    length = torch.as_tensor(value.shape[0])
    steps = length.float().sqrt().ceil().long()
    stretches = (length + steps - 1) // steps

    def side_by_side(sequence: Tensor) -> Tensor:
        rest = sequence.new_zeros(stretches * steps - length, *sequence.shape[1:])  # type: ignore[call-overload]
        return torch.cat([sequence, rest]).reshape(stretches, steps, *sequence.shape[1:]).transpose(0, 1)  # type: ignore[arg-type]

    factor, addend = side_by_side(forget), side_by_side(value - forget * value)
    ends = _MarkedScan.apply(factor, addend, torch.zeros_like(addend[0]))[-1]
    after = _MarkedScan.apply(factor.prod(0), ends, initial)
    before = torch.cat([initial.unsqueeze(0), after[:-1]])
    return _MarkedScan.apply(factor, addend, before).transpose(0, 1).flatten(0, 1)[:length]


class _MarkedScan(torch.autograd.Function):
    """h_t = a_t h_(t-1) + b_t as one operator of a traced graph, of which an export makes a loop."""

    @staticmethod
    def forward(ctx: Any, factor: Tensor, addend: Tensor, initial: Tensor) -> Tensor:
        return _linear_scan(factor, addend.clone(memory_format=torch.contiguous_format), initial)

    @staticmethod
    def symbolic(graph: Any, factor: Any, addend: Any, initial: Any) -> Any:
        """Return the operator's node."""
        return graph.op("sepkit::LinearScan", factor, addend, initial).setType(addend.type())
