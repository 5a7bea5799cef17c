"""Work in other processes: order, errors, and a process that dies."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType

import pytest

from sepkit.errors import UserError
from sepkit.parallel import Failed, Pool, ProcessDied, available_processes, for_each

MODULE = """
import errno
import os
import signal

from sepkit.errors import UserError


def double(number: int) -> int:
    if number == 13:
        raise UserError("thirteen: unlucky; expected another number")
    return 2 * number


def die(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return -number


def fill_disk(folder, number: int) -> int:
    if number == 7:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "full.wav"))
    (folder / str(number)).write_text("")
    return number


def defect(number: int) -> int:
    raise ZeroDivisionError
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Iterator[ModuleType]:
    """The functions above as a module: the tests themselves are none that another process can import."""
    folder = tmp_path_factory.mktemp("module")
    (folder / "work_of_tests.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("work_of_tests")
    del sys.modules["work_of_tests"]


@pytest.mark.parametrize("processes", [1, 2, None])
def test_results_come_in_order_and_a_bad_item_fails_alone(processes, work):
    results = list(for_each(work.double, range(40), processes))
    assert [item for item, _ in results] == list(range(40))
    assert results[13][1] == Failed("thirteen: unlucky; expected another number")
    assert [result for item, result in results if item != 13] == [2 * n for n in range(40) if n != 13]


def test_no_items_are_no_work(work):
    assert list(for_each(work.double, [], 2)) == []
    assert available_processes() >= 1


def test_an_item_that_brings_its_process_down_fails_alone(work):
    results = dict(for_each(work.die, range(12), 2))
    assert isinstance(results[5], Failed) and "crashed" in results[5].reason
    assert [result for item, result in results.items() if item != 5] == [-n for n in range(12) if n != 5]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_stops_with_one_line(processes, tmp_path, work):
    with pytest.raises(UserError, match=r"full.wav: no room left on the disk .*same command again") as caught:
        list(for_each(partial(work.fill_disk, tmp_path), range(20), processes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_defect_is_raised(processes, work):
    with pytest.raises(ZeroDivisionError):
        list(for_each(work.defect, range(3), processes))


def test_processes_below_one_are_refused(work):
    with pytest.raises(UserError, match="--processes 0"):
        list(for_each(work.double, [1], 0))


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
