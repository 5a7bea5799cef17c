"""Work in other processes: order, errors, and a process that dies."""

import importlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from sepkit import parallel
from sepkit.files import atomic_output
from sepkit.interrupts import Stopped
from sepkit.parallel import Failed, Pool, ProcessDied, available_processes, for_each
from tests.complaint import complaint

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
    if number == 0:
        raise ZeroDivisionError("of 0")
    return number


class Model:

    def __init__(self, log):
        self.log = log
        with open(log, "a") as file:
            file.write(f"{os.getpid()} ")

    def __reduce__(self):
        return Model, (self.log,)


def use(model: Model, number: int) -> int:
    return -number
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


def test_what_a_function_holds_is_opened_once_in_each_process(work, tmp_path):
    log = tmp_path / "opened"
    results = list(for_each(partial(work.use, work.Model(log)), range(64), 2))
    assert [result for _, result in results] == [-number for number in range(64)]
    opened = log.read_text().split()
    assert opened[0] == str(os.getpid()) and 2 <= len(opened) == len(set(opened)) <= 3


def test_no_items_are_no_work(work):
    assert list(for_each(work.double, [], 2)) == []
    assert available_processes() >= 1


def test_an_item_that_brings_its_process_down_fails_alone(work):
    results = dict(for_each(work.die, range(12), 2))
    assert isinstance(results[5], Failed) and "crashed" in results[5].reason
    assert [result for item, result in results.items() if item != 5] == [-n for n in range(12) if n != 5]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_stops_with_one_line(processes, tmp_path, work):
    items = for_each(partial(work.fill_disk, tmp_path), range(20), processes)
    complaint(lambda: list(items), r"full.wav: no space left on the disk .*same command again")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_defect_fails_its_item_alone(processes, work, monkeypatch):
    results = dict(for_each(work.defect, range(3), processes))
    assert results == {0: Failed("failed: ZeroDivisionError: of 0"), 1: 1, 2: 2}
    monkeypatch.setenv("SEPKIT_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        list(for_each(work.defect, range(3), 1))


def test_processes_below_one_are_refused(work):
    complaint(lambda: list(for_each(work.double, [1], 0)), "--processes: found 0, expected at least 1")


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


def test_workers_end_when_their_parent_is_killed(tmp_path) -> None:
    (tmp_path / "sleeping.py").write_text("import time\ndef sleep(_):\n    time.sleep(60)\n")
    program = "from sleeping import sleep\nfrom sepkit.parallel import for_each\nlist(for_each(sleep, [1, 2], 2))"
    places = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    environment = os.environ | {"PYTHONPATH": places}
    parent = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, env=environment)
    try:
        workers = _wait(lambda: _of_session(parent.pid), at_least=4, seconds=60)
        assert len(workers) >= 4  # the parent, the server, and two workers
        time.sleep(1)
        parent.kill()
        parent.wait()
        began = time.monotonic()
        while _of_session(parent.pid) and time.monotonic() - began < 20:
            time.sleep(0.1)
        assert time.monotonic() - began < 5, "workers outlive their parent"
    finally:
        for process in _of_session(parent.pid):
            os.kill(process, signal.SIGKILL)


def _of_session(session: int) -> list[int]:
    """Processes of a session that do more than keep count of others' semaphores."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z" and b"resource_tracker" not in command:
            found.append(int(status.parent.name))
    return found


def _wait(look, at_least: int, seconds: float) -> list[int]:
    end = time.monotonic() + seconds
    while len(found := look()) < at_least and time.monotonic() < end:
        time.sleep(0.1)
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Windows end a process at once")
def test_a_second_signal_does_not_interrupt_cleanup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(parallel, "_works", True)
    before = signal.signal(signal.SIGTERM, parallel._stop)
    try:
        with pytest.raises(Stopped), atomic_output(tmp_path / "x") as path:
            path.write_text("half")
            # The second one comes while the file is removed.
            monkeypatch.setattr(Path, "unlink", lambda path, missing_ok: (os.kill(os.getpid(), 15), os.unlink(path)))
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(tmp_path.iterdir())


def test_a_signal_on_the_way_out_of_a_file_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may come between the last line of a `with` block and the method that ends it."""

    def write() -> None:
        output = atomic_output(tmp_path / "x")
        output.__enter__().write_text("all")
        raise Stopped

    left: list[list[Path]] = []
    monkeypatch.setattr(os, "_exit", lambda code: left.append(list(tmp_path.iterdir())))
    parallel._task(write, ())
    assert left == [[]]
