"""Messages are one line of bounded length, whatever was found."""

import errno
import os
from pathlib import Path

import pytest

from sepkit.choices import convert
from sepkit.cli import main as command_line
from sepkit.errors import UserError, exhausted, one_line, out_of_reach, shown
from sepkit.limits import MESSAGE_CHARACTERS, VALUE_CHARACTERS
from tests.complaint import complaint

HUGE = {
    "text": "x" * 10**6,
    "list": list(range(10**5)),
    "deep": {str(number): [[[[number]]]] for number in range(1000)},
    "number": 10**400,
    "longer than Python converts": 1 << 10**6,
    "bytes": b"\0" * 9999,
}


@pytest.mark.parametrize("kind", HUGE)
def test_any_value_is_shown_briefly(kind):
    text = shown(HUGE[kind])
    assert 0 < len(text) <= VALUE_CHARACTERS and text.isprintable()


def test_short_values_are_shown_as_they_are():
    values = (3, "a b", [1, 2], {"a": None}, -1.5)
    assert [shown(value) for value in values] == ["3", "'a b'", "[1, 2]", "{'a': None}", "-1.5"]


def test_a_message_is_one_printable_line():
    assert one_line("a\n b\tc") == "a b c"
    assert one_line("bell\a, escape\x1b[2J, half a pair \ud800") == r"bell\x07, escape\x1b[2J, half a pair \ud800"
    long = one_line("file: " + "x" * 10**7 + "; remedy")
    assert len(long) <= MESSAGE_CHARACTERS and long.startswith("file: ") and long.endswith("; remedy")


OUT_OF = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE]
REFUSED = [errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG]
OUT_OF_MEMORY = [
    MemoryError("Unable to allocate 5.00 GiB for an array"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
]
NAMES = ("out/a.wav", b"out/a.wav", Path("out/a.wav"))
RAISED = [
    (UserError("a.wav: broken"), 2, "a.wav: broken"),
    (UserError("x\n" * 10**6), 2, "x x"),
    (ValueError("two\nlines"), 1, "ValueError: two lines"),
    (ValueError("x\n" * 10**6), 1, "ValueError: x x"),
    (KeyError("\x1b"), 1, "KeyError"),
    (KeyboardInterrupt(), 130, "interrupted"),
    *[(OSError(n, os.strerror(n), name), 2, "run the same command again") for n in OUT_OF for name in NAMES],
    *[(OSError(n, os.strerror(n), "out/a.wav"), 2, "out/a.wav: ") for n in REFUSED],
    *[(error, 2, "not enough memory") for error in OUT_OF_MEMORY],
]


@pytest.mark.parametrize(("raised", "code", "words"), RAISED)
def test_an_exception_becomes_one_line_and_an_exit_code(raised, code, words, monkeypatch, capsys):
    def fail(*arguments):
        raise raised

    monkeypatch.setattr(command_line, "_run", fail)
    assert command_line.main(["models"]) == code
    error = capsys.readouterr().err
    assert error.startswith("sepkit models: ") and words in error and "enforce fail" not in error
    assert not isinstance(raised, OSError) or error.startswith("sepkit models: out/a.wav: ")
    assert error.count("\n") == 1 and len(error) <= MESSAGE_CHARACTERS + 1 and error.strip().isprintable()


def test_paths_out_of_reach_are_the_users_mistake(tmp_path, monkeypatch, capsys):
    """`Path.is_file` and the like raise for them, in Python 3.10 to 3.13."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for name in ("n" * 300, str(tmp_path / "a" / "x"), "n/" * 3000):
        for line in (
            ["separate", name, "--out", str(tmp_path / "out")],
            ["separate", str(tmp_path), "--model", name],
            ["evaluate", "--manifest", name, "--out", str(tmp_path / "out")],
            ["train", "--config", name, "--out", str(tmp_path / "out")],
            ["train", "--import", name, "--out", str(tmp_path / "out")],
            ["train", "--data.train", name, "--out", str(tmp_path / "out")],
            ["prepare", "folder", "--speech", name, "--out", str(tmp_path / "out")],
            ["prepare", "wavs", "--manifest", name, "--out", str(tmp_path / "out")],
        ):
            assert command_line.main(line) == 2, line
            error = capsys.readouterr().err
            assert error.count("\n") == 1 and len(error) <= MESSAGE_CHARACTERS + 1, error


def test_other_errors_are_not_for_the_machine():
    assert exhausted(OSError(errno.EIO, "x")) == exhausted(ValueError("x")) == ""
    for number in REFUSED:
        assert out_of_reach(OSError(number, "x")) == out_of_reach(OSError(errno.ENOENT, "x", "a")) == ""


@pytest.mark.parametrize("kind", ["text", "list", "number"])
def test_values_of_a_wrong_type_are_shown_briefly(kind):
    message = complaint(lambda: convert(float, HUGE[kind], "field"))
    assert message.startswith("field: found") and len(message) < 300
