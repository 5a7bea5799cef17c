"""Abilities of the CPU, and whether an operation runs eagerly.

Only this file, `onednn.py` and `maskers/replaceable.py` read torch's private state.
"""

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.jit._trace import is_tracing


def has_bfloat16() -> bool:
    """Whether this CPU computes in bfloat16; in emulation that would be slower than float32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def has_bfloat16_recurrence() -> bool:
    """Whether recurrent layers compute in bfloat16 on this CPU; on others they fail."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def widest(x: Tensor) -> torch.dtype:
    """Return the widest type that the device of a tensor computes in: Apple's accelerators have no float64."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def at_least_float32(x: Tensor) -> Tensor:
    """Return a tensor of half precision in float32, and any other as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def is_traced() -> bool:
    """Whether the model is being traced, exported or compiled: operations recorded now are run elsewhere later."""
    return is_tracing() or torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()


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
