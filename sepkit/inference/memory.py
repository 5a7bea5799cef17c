"""Measure the memory of a separation in a separate process."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from sepkit.errors import UserError


def peak_memory_mib(model: str, seconds: float) -> float:
    """Return the peak of a process that loads a model and separates noise, MiB above one that imports what it needs.

    Raises:
        UserError: the system does not report a process's peak, or the process ended without an answer.
    """
    try:
        import resource  # noqa: F401
    except ImportError as error:
        raise UserError("--measure: this system does not tell how much memory a process took at most") from error
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(model, seconds, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise UserError(f"{model}: the process that measures its memory ended; is there enough of it?") from None
    finally:
        process.join()


def _measure(model: str, seconds: float, sender: Connection) -> None:
    from sepkit.inference.loading import load_model

    before = resident_peak_mib()
    separator = load_model(model, "cpu", predict=False)
    rate = separator.sample_rate
    noise = 0.1 * np.random.default_rng(0).standard_normal(round(seconds * rate))
    separator.separate(noise.astype(np.float32), rate)
    sender.send(resident_peak_mib() - before)


def resident_peak_mib() -> float:
    """Return this process's peak resident memory, MiB."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Unlike getrusage's, this peak excludes that of the parent process.
        lines = status.read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
