"""Where a model computes."""

from __future__ import annotations

import os

import torch

from sepkit.errors import UserError


def device_of(name: str | torch.device) -> torch.device:
    """Return a device by its name.

    Args:
        name: as torch has it, or "auto": an accelerator if there is one.

    Raises:
        UserError: no such device here.
    """
    if name == "auto":
        # With several accelerators, each process of torchrun has its own.
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"device: found {str(name)!r}, which is not there ({reason}); use cpu or auto") from error
    return device
