"""Facts that results depend on besides data and model: commit and hardware."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch


def commit() -> str | None:
    """Return the commit of the source tree that this runs from; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def hardware(device: str) -> str:
    """Return CPU, accelerator if one is used, threads, and torch's version, in one line.

    Args:
        device: where the model ran, as torch names it.
    """
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [
            line.partition(":")[2].strip() for line in cpuinfo.read_text().split("\n") if line.startswith("model name")
        ]
        name = models[0] if models else name
    if device.startswith("cuda"):
        name = f"{torch.cuda.get_device_name(device)}, {name}"
    return f"{name}, {os.cpu_count()} CPUs, {torch.get_num_threads()} threads, torch {torch.__version__}"
