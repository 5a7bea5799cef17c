"""What torchrun tells the processes that it starts."""

from __future__ import annotations

import os


def share() -> tuple[int, int]:
    """Rank and number of processes: 0 of 1 without torchrun."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def device_of_rank(device: str) -> str:
    """The device of this process: of several accelerators the one that is its own.

    Args:
        device: as the user named it; "cuda" means one for each process that torchrun starts on a machine.
    """
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device
