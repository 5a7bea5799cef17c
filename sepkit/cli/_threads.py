"""Threads that wait sleep, so that a busy machine is not made busier.

Threads of OpenMP spin at the end of every parallel loop until the last one arrives. If another process holds that one's
core, they spin for as long as it does: six recordings of 4 s took minutes in place of seconds. OMP_WAIT_POLICY=PASSIVE
lets them sleep at once.

OMP_WAIT_POLICY=ACTIVE lets them spin. If GOMP_SPINCOUNT or KMP_BLOCKTIME is set, nothing is changed.
Only a process that is the `sepkit` command does this, and those it starts: never one that imports sepkit. It has to
happen before torch is imported.

Source: OpenMP 5.2, section 21.5.
"""

from __future__ import annotations

import os

VARIABLE = "OMP_WAIT_POLICY"
_CHOSEN_BY_USER = (VARIABLE, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def let_waiting_threads_sleep() -> None:
    """Set OMP_WAIT_POLICY to PASSIVE, unless the user has chosen how threads wait."""
    if not any(name in os.environ for name in _CHOSEN_BY_USER):
        os.environ[VARIABLE] = "PASSIVE"
