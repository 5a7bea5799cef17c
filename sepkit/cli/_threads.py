"""Threads that wait sleep, at once or soon, so that a busy machine is not made busier.

Threads of OpenMP spin at the end of every parallel loop until the last one arrives. If another process holds that one's
core, they spin for as long as it does: six recordings of 4 s took minutes in place of seconds. OMP_WAIT_POLICY=PASSIVE
lets them sleep at once.

Falling asleep and waking up takes longer than a step of a small recurrent network. Such a model therefore runs on one
thread: on two quiet cores, 60 s took an LSTM of three layers of 208 cells each way 5.2 s on one thread, 19.5 s on two
that sleep and 4.7 s on two that spin; the six recordings took 7.3 s on one thread and 7.7 s on two that spin.
Conv-TasNet took 0.71 s on two threads that sleep and 0.58 s on two that spin.

Commands that separate do this. Training and the studies let threads spin 10,000 times before they sleep, in place of
libgomp's 300,000: 100 steps of egs/mini took 10 s on two quiet cores either way, 15 s beside six busy processes, and
108 to 292 s there with 300,000.

OMP_WAIT_POLICY=ACTIVE lets them spin. If GOMP_SPINCOUNT or KMP_BLOCKTIME is set, nothing is changed.
Only a process that is the `sepkit` command does it, and those it starts: never one that imports sepkit. The policy
has to be set before torch is imported.

Source: OpenMP 5.2, section 21.5.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sepkit.inference.separator import Separator

VARIABLE = "OMP_WAIT_POLICY"
_CHOSEN_BY_USER = (VARIABLE, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_SET_HERE = False


def use_passive_waiting() -> None:
    """Set OMP_WAIT_POLICY to PASSIVE, unless the user has chosen how threads wait."""
    global _SET_HERE
    if not any(name in os.environ for name in _CHOSEN_BY_USER):
        os.environ[VARIABLE] = "PASSIVE"
        _SET_HERE = True


def use_short_waiting() -> None:
    """Let waiting threads spin for a moment before they sleep, unless the user has chosen how threads wait."""
    if not any(name in os.environ for name in _CHOSEN_BY_USER):
        os.environ["GOMP_SPINCOUNT"] = "10000"


def limit_small_models_to_one_thread(separator: Separator) -> None:
    """Let torch use one thread if threads sleep and the model's steps are too small to be shared."""
    if _SET_HERE and separator.device == "cpu" and separator.runner.small_steps:
        # The model has imported it; the command line itself starts without.
        sys.modules["torch"].set_num_threads(1)
