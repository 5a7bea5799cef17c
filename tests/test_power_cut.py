"""A disk that fills up or fails at the n-th write, for every n, and kills: the next run ends as an undisturbed one."""

import errno
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.disturbed import COMMANDS, Disk, exit_code, in_fork, killed_at, tree, write_inputs

Undisturbed = Callable[[str], tuple[dict[str, Any], int]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Of a command's name -> what it writes, and in how many writes, syncs and renames."""
    known: dict[str, tuple[dict[str, Any], int]] = {}

    def of(name: str) -> tuple[dict[str, Any], int]:
        if name not in known:
            out = tmp_path_factory.mktemp(name) / "out"
            with pytest.MonkeyPatch.context() as patch:
                disk = Disk(patch, out, 0, errno.ENOSPC)
                assert exit_code(COMMANDS[name](inputs, out)) == 0
            known[name] = tree(out), disk.count
        return known[name]

    return of


ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO}
# A training takes ten times as long as the others.
FAST = [(name, error, 25 if name == "train" else 1) for name in COMMANDS for error in ERRORS]


@pytest.mark.parametrize(("name", "error", "step"), FAST)
def test_a_disk_that_fails_at_the_nth_write(name, error, step, inputs, undisturbed, tmp_path, capsys):
    _fails_at_every(step, name, ERRORS[error], inputs, undisturbed, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
def test_training_on_a_disk_that_fails_at_any_write(error, inputs, undisturbed, tmp_path, capsys):
    _fails_at_every(1, "train", ERRORS[error], inputs, undisturbed, tmp_path, capsys)


def _fails_at_every(
    step: int, name: str, number: int, inputs: Path, undisturbed: Undisturbed, tmp_path: Path, capsys: Any
) -> None:
    (expected, times), out = undisturbed(name), tmp_path / "out"
    command = COMMANDS[name](inputs, out)
    assert times >= (20 if name == "train" else 4)
    for n in range(1, times + 1, step):
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, out, n, number)
            code = exit_code(command)
        said = capsys.readouterr().err
        assert code in (1, 2) and "Traceback" not in said, (n, code, said)
        assert code == 2 or number == errno.EIO, (n, said)
        assert max(map(len, said.splitlines())) <= 2000
        assert exit_code(command) == 0, (n, capsys.readouterr().err)
        assert tree(out) == expected, n
        shutil.rmtree(out)


@pytest.mark.parametrize("name", COMMANDS)
def test_three_kills_at_writes(name, inputs, undisturbed, tmp_path):
    (expected, times), out = undisturbed(name), tmp_path / "out"
    command = COMMANDS[name](inputs, out)
    for n in (1, times // 4, times // 2):
        code, said = in_fork(command, killed_at(out, n))
        assert code == -signal.SIGKILL, said
    assert exit_code(command) == 0
    assert tree(out) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_kill_at_any_write(name, inputs, undisturbed, tmp_path):
    (expected, times), out = undisturbed(name), tmp_path / "out"
    command = COMMANDS[name](inputs, out)
    for n in range(1, times + 1):
        code, said = in_fork(command, killed_at(out, n))
        assert code == -signal.SIGKILL, (n, said)
        assert exit_code(command) == 0, n
        assert tree(out) == expected, n
        shutil.rmtree(out)
