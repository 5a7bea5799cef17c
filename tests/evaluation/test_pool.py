"""Work in other processes: order, errors, and a process that dies."""

from __future__ import annotations

import math
import os

import pytest

from sepkit.evaluation.pool import Pool, ProcessDied


@pytest.mark.parametrize("processes", [0, 1])
def test_results_and_errors_come_back(processes: int) -> None:
    with Pool(processes) as pool:
        good, bad = pool.submit(math.sqrt, 4.0), pool.submit(math.sqrt, -1.0)
        assert good.result() == 2.0
        with pytest.raises(ValueError):
            bad.result()
        assert good.done() and bad.done()


def test_a_process_that_dies_takes_no_other_task_with_it() -> None:
    with Pool(1) as pool:
        tasks = [pool.submit(os._exit, 3), pool.submit(math.sqrt, 9.0)]
        with pytest.raises(ProcessDied):
            tasks[0].result()
        assert tasks[1].result() == 3.0
        assert pool.submit(math.sqrt, 16.0).result() == 4.0
