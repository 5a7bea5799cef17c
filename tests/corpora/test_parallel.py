from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from types import ModuleType

import pytest

from sepkit.errors import UserError
from sepkit.parallel import Failed, available_processes, for_each

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
