"""Rank and device of processes that torchrun starts."""

import os


def share() -> tuple[int, int]:
    """Return rank and number of processes: 0 of 1 without torchrun."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def device_of_rank(device: str) -> str:
    """Return the device of this process; with several accelerators each process has its own.

    `device` is the user's; "cuda" means one for each process that torchrun starts on a machine.
    """
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device
