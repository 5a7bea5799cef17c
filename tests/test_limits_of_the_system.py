"""Real limits of the system (`ulimit -f`, `ulimit -n`): a line and exit code 2, and the same command continues."""

import resource
from pathlib import Path

import pytest

from tests.disturbed import COMMANDS, exit_code, in_fork, lower, tree, write_inputs

# Standard streams, and where standard output goes.
OPEN_FILES = 4


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module", params=COMMANDS)
def command(request, inputs, tmp_path_factory):
    """A command's name, and what it writes; everything that it imports is imported then."""
    out = tmp_path_factory.mktemp(request.param) / "out"
    assert exit_code(COMMANDS[request.param](inputs, out)) == 0
    return request.param, tree(out)


@pytest.mark.parametrize(
    ("kind", "limits", "words", "least"),
    [
        (resource.RLIMIT_FSIZE, (0, 100, 1000, 3000), ("ulimit -f", "File too large"), 2),
        (resource.RLIMIT_NOFILE, range(OPEN_FILES, OPEN_FILES + 6), ("ulimit -n", "Too many open files"), 1),
    ],
    ids=["size", "number"],
)
def test_files_may_not_be_larger_or_more(command, kind, limits, words, least, inputs, tmp_path):
    name, expected = command
    line = COMMANDS[name](inputs, tmp_path / "out")
    refused = 0
    for limit in limits:
        code, said = in_fork(line, lower(kind, limit))
        if code != 0:
            _check(code, said, limit)
            assert any(word in said for word in words), said
            refused += 1
    assert refused >= least
    assert exit_code(line) == 0 and tree(tmp_path / "out") == expected


def _check(code: int, said: str, limit: int) -> None:
    last = said.splitlines()[-1] if said else ""
    assert code == 2, (limit, code, said)
    assert last.startswith("sepkit ") and "failed:" not in last and "Traceback" not in said, (limit, said)


def test_data_workers_that_cannot_open_files(inputs, tmp_path):
    """Whichever of them meets the limit, and where: one line, and an end."""
    assert exit_code(COMMANDS["train"](inputs, tmp_path / "out")) == 0
    refused = 0
    for more in range(4, 18, 3):
        line = [*COMMANDS["train"](inputs, tmp_path / f"out_{more}"), "--data.workers", "2"]
        code, said = in_fork(line, lower(resource.RLIMIT_NOFILE, OPEN_FILES + more))
        if code != 0:
            _check(code, said, more)
            assert "ulimit -n" in said, said
            refused += 1
    assert refused >= 2
