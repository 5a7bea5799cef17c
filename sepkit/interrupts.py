"""Signals that ask a command to end: it stops as after Ctrl-C, and its exit code is 128 and the signal's number."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Of Ctrl-C, of `kill` and schedulers, and of a terminal that closes (not on Windows)."""

_received: list[int] = []


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end."""


def received() -> int | None:
    """Return the number of the signal that asked this process to end; None: none did."""
    return _received[0] if _received else None


def on_stop(handle: Callable[[int], Any]) -> None:
    """Call `handle` with the number of the first signal that asks this process to end.

    The same signal again ends the process at once.

    A hang-up that whoever started this process wants ignored, as nohup does, stays ignored. Threads other than the main
    one cannot handle signals; there this does nothing.
    """

    def first(number: int, frame: Any) -> None:
        if postponed(number, frame):
            return
        _received.append(number)
        for each in SIGNALS:
            # Another one comes with it: what starts commands passes on what the terminal has sent them already.
            signal.signal(each, lambda second, _: end_now(second) if second == number else None)
        # What ends in the middle of its work has nothing to say.
        sys.unraisablehook = threading.excepthook = lambda _: None
        handle(number)

    if threading.current_thread() is threading.main_thread():
        for each in SIGNALS:
            if each == signal.SIGINT or signal.getsignal(each) != signal.SIG_IGN:
                signal.signal(each, first)


def postponed(number: int, frame: Any) -> bool:
    """Return whether a signal came in a callback of libsndfile, which loses exceptions. If so, resend it in 5 ms."""
    while frame is not None:
        if frame.f_code.co_name.startswith("vio_"):
            threading.Timer(0.005, signal.raise_signal, (number,)).start()
            return True
        frame = frame.f_back
    return False


def stop(number: int) -> NoReturn:
    """Raise `Stopped`, for `on_stop`."""
    raise Stopped(signal.Signals(number).name)


def ignore_terminal() -> None:
    """Leave what a terminal sends to all of its processes, Ctrl-C and its end, to the process that started this one."""
    for each in SIGNALS:
        if each != signal.SIGTERM:
            signal.signal(each, signal.SIG_IGN)


@contextmanager
def shielded() -> Iterator[None]:
    """Let the helpers of `multiprocessing` that are started here outlive a terminal, and end without a word."""
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    from multiprocessing import resource_tracker

    before, warnings = signal.signal(signal.SIGHUP, signal.SIG_IGN), os.environ.get("PYTHONWARNINGS")
    try:
        os.environ["PYTHONWARNINGS"] = "ignore"
        resource_tracker.ensure_running()
    finally:
        os.environ["PYTHONWARNINGS"] = warnings or ""
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def end_now(number: int) -> NoReturn:
    """End this process and those that it started, without another word."""
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.kill()
    os._exit(128 + number)
