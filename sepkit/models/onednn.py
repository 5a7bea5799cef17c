"""Products with matrices of weights, by the library that is fastest on this CPU.

torch leaves products of float32 to MKL. On AMD CPUs, MKL uses no instructions beyond AVX2: on those with
AVX-512 it runs at half of their speed. oneDNN, which torch has as well, takes them. Estimates are then computed by
oneDNN, in full float32 precision; gradients are left to torch.
"""

import functools

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from sepkit.models.runtime import runs_plainly_on_cpu

# Fewer rows are multiplied as fast by MKL, which needs no other layout of the matrix.
_LEAST_ROWS = 16


class Linear(nn.Linear):
    """A linear layer, see `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return x W' + b, (..., out_features)."""
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W' + b, (..., C'), as `torch.nn.functional.linear` does, except for rounding.

    Args:
        x: Input, (..., C).
        weight: Matrix W, (C', C).
        bias: Offset b, (C',); None: zero.
    """
    if uses_onednn(x):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return nn.functional.linear(x, weight, bias)


def uses_onednn(x: Tensor) -> bool:
    """Whether `linear` of x is computed by oneDNN."""
    return (
        not torch.is_grad_enabled()
        and runs_plainly_on_cpu(x)
        # Something that sees or counts each operation, as torch's counter of operations does.
        and _get_current_dispatch_mode() is None
        # Last of what is not about shapes: what it tries once would become part of a trace.
        and onednn_is_faster()
        and x.dtype == torch.float32
        and x.numel() >= _LEAST_ROWS * x.shape[-1]
    )


def is_amd_with_avx512() -> bool:
    """Whether this is an AMD CPU with AVX-512; False if torch (before 2.10) does not report it."""
    has = getattr(torch.cpu, "get_capabilities", dict)()
    # sse4a is AMD's alone, and stays where a virtual machine hides the name.
    return bool(has.get("sse4a") and has.get("avx512_f"))


@functools.cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies float32 matrices faster than MKL here, and torch hands them to it as expected."""
    if not is_amd_with_avx512():
        return False
    # torch means this operation for its compiler. It is tried, in case another version of torch changes it.
    x = 1 + torch.arange(32 * 96).view(32, 96) / 2**20
    weight, bias = 1 - torch.arange(48 * 96).view(48, 96) / 2**20, torch.arange(48.0)
    try:
        found = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    except (RuntimeError, AttributeError):
        return False
    # Factors of fewer digits, as in bfloat16 or TF32, would miss it by 5e-4.
    return torch.allclose(found.double(), nn.functional.linear(x.double(), weight.double(), bias.double()), rtol=1e-5)
