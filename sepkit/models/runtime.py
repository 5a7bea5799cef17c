"""What computes: abilities of the processor, and whether an operation runs now as it stands.

Only this file and `maskers/fast/guard.py` read torch's private state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.jit._trace import is_tracing
from torch.utils._python_dispatch import _get_current_dispatch_mode

__all__ = [
    "has_bfloat16",
    "has_bfloat16_recurrence",
    "is_amd_with_avx512",
    "is_observed",
    "is_traced",
    "is_tracing",
    "runs_plainly_on_cpu",
    "widest",
]


def has_bfloat16() -> bool:
    """Whether this processor computes in bfloat16; in emulation that would be slower than float32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def has_bfloat16_recurrence() -> bool:
    """Whether recurrent layers compute in bfloat16 on this processor; on others they fail."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def is_amd_with_avx512() -> bool:
    """Whether this is a processor of AMD with AVX-512; False where torch (before 2.10) does not tell."""
    has = getattr(torch.cpu, "get_capabilities", dict)()
    # sse4a is AMD's alone, and stays where a virtual machine hides the name.
    return bool(has.get("sse4a") and has.get("avx512_f"))


def widest(x: Tensor) -> torch.dtype:
    """Return the widest type that the device of a tensor computes in: Apple's accelerators have no float64."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def is_traced() -> bool:
    """Whether the model is being traced, exported or compiled: operations recorded now are run elsewhere later."""
    return is_tracing() or torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()


def is_observed() -> bool:
    """Whether something sees or counts each operation, as torch's counter of operations does."""
    return _get_current_dispatch_mode() is not None


def runs_plainly_on_cpu(x: Tensor) -> bool:
    """Whether an operation on `x` is run on a CPU and not transformed, recorded or cast on its way."""
    return (
        type(x) is Tensor
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not is_traced()
        and not torch.overrides._get_current_function_mode_stack()
        and not is_functorch_wrapped_tensor(x)
    )
