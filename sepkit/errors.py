"""The one exception that means "the user can fix this", and how messages show what was found.

The command line turns a `UserError` into one line and exit code 2.
"""

import errno
import math
import os
import re
import reprlib
from dataclasses import dataclass
from typing import Any

from sepkit.limits import MESSAGE_CHARACTERS, VALUE_CHARACTERS


class UserError(Exception):
    """Bad input, said in one line: the file or field, what was found, what was expected, what to do.

    Functions that read or write files of a user raise it where a file is missing, damaged, too large or cannot be
    written; their docstrings name only what else they refuse. Everything else that reaches the command line is a
    failure of ours (exit code 1).
    """


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100
        self.maxlong = 40
        self.maxlevel = 3

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # beyond the digits that Python converts
            return f"an integer of {x.bit_length()} bits"


_SHOWN = _Shown()


def shown(value: Any) -> str:
    """Return the `repr` of a value for a message: long and deep ones are abbreviated."""
    text = _SHOWN.repr(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 3]}..."


def counted(number: int, what: str) -> str:
    """Return a number of things in words: 1 speaker, 2 speakers."""
    return f"{number} {what}{'s' * (number != 1)}"


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number: in the type of a field or a parameter, or for one value.

    `seed: Annotated[int, Bounds(ge=0)] = 0` bounds a field, a parameter, or each item of a list or tuple.

    >>> Bounds(gt=0, le=1).check("--share", 0.5)
    >>> Bounds(ge=1).check("--epochs", 0)
    Traceback (most recent call last):
    sepkit.errors.UserError: --epochs: found 0, expected at least 1

    Configurations are checked when they are read, and options of commands when they are parsed;
    `sepkit.choices.check_bounds` checks a dataclass that was made in Python.

    Args:
        ge: Smallest number allowed; None: no limit.
        le: Largest number allowed.
        gt: Number that all allowed ones are greater than.
        lt: Number that all allowed ones are less than.
        note: Text that follows in the message, such as a remedy.
    """

    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None
    note: str = ""

    def __contains__(self, value: Any) -> bool:
        """Return whether a number lies within the bounds; NaN never does."""
        return (
            (self.ge is None or value >= self.ge)
            and (self.le is None or value <= self.le)
            and (self.gt is None or value > self.gt)
            and (self.lt is None or value < self.lt)
            and value == value
        )

    def __str__(self) -> str:
        """Return the words of a message: "at least 1", "0 to 1", "more than 0, at most 1"."""
        if self.ge is not None and self.le is not None:
            return f"{_plain(self.ge)} to {_plain(self.le)}{self.note}"
        words = {"at least": self.ge, "more than": self.gt, "at most": self.le, "less than": self.lt}
        finite = {word: bound for word, bound in words.items() if bound is not None and abs(bound) < math.inf}
        return ", ".join(f"{word} {_plain(bound)}" for word, bound in finite.items()) + self.note

    def check(self, name: str, value: Any) -> None:
        """Raise UserError if a number, or an item of a list or tuple, is out of bounds; None is not checked.

        Args:
            name: Option or key of the configuration, for the message.
            value: Number, list or tuple of numbers, or None.
        """
        items = value if isinstance(value, list | tuple) else [] if value is None else [value]
        for item in items:
            if item not in self:
                words = ["a finite number"] if self.lt == math.inf and not abs(item) < math.inf else []
                expected = ", ".join([*words, *filter(None, [str(self)])])
                raise UserError(f"{name}: found {shown(item)}, expected {expected}")


def _plain(bound: float) -> str:
    return f"{bound:.0f}" if bound == int(bound) else f"{bound:g}"


def failure(error: BaseException) -> str:
    """Return the line about an error that is no mistake of the user: its kind and message."""
    return f"{type(error).__name__}: {str(error)[:MESSAGE_CHARACTERS] or 'no message'}"


def one_line(text: str) -> str:
    """Return a message as one line that a terminal can print, of at most `MESSAGE_CHARACTERS` characters.

    The middle of a longer one is left out, because the file stands at the beginning and the remedy at the end.
    """
    if len(text) > 4 * MESSAGE_CHARACTERS:
        text = f"{text[: 2 * MESSAGE_CHARACTERS]} {text[-2 * MESSAGE_CHARACTERS :]}"
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    if len(line) <= MESSAGE_CHARACTERS:
        return line
    half = (MESSAGE_CHARACTERS - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"


_EXHAUSTED = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "no space left in your quota of the disk",
    errno.EFBIG: "a file would be larger than this system or `ulimit -f` allows",
    errno.EMFILE: "too many files are open; raise `ulimit -n`",
    errno.ENFILE: "too many files are open on this machine",
}


_NO_THREADS = ("can't start new thread", "pthread_create", "resource temporarily unavailable")


def exhausted(error: BaseException) -> str:
    """Return the line for an error that means that the machine has run out of something; empty for any other.

    It stops a whole command, because the next file would meet it too.
    """
    cause: BaseException | None = error
    while cause is not None:
        # Libraries say it in errors of their own, which others are raised from.
        if any(sign in str(cause).lower() for sign in _NO_THREADS):
            return (
                "no more threads or processes may be started; raise `ulimit -u`, end other programs or take fewer "
                "--processes"
            )
        cause = cause.__cause__ or cause.__context__
    if not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
        return ""
    where = f"{_named(error)}: " if _named(error) else ""
    return (
        f"{where}{_EXHAUSTED[error.errno]} ({error.strerror}); what is written is whole: free disk space, and run the "
        "same command again"
    )


_NO_MEMORY = (
    "failed to allocate memory", "bad_alloc", "bad allocation", "out of memory", "can't allocate memory",
    "could not allocate", "unable to allocate", "smaller than requested bytes",
)  # fmt: skip


def out_of_memory(error: BaseException) -> str:
    """Return the line for an error that means too little memory, of a device too; empty for any other."""
    text = str(error).lower()
    if not isinstance(error, MemoryError) and not any(sign in text for sign in _NO_MEMORY):
        return ""
    reason = re.search(r"(unable|tried|trying) to allocate [\d.]+ ?\w+", text)
    return (
        f"not enough memory{f' ({reason[0]})' if reason else ''}; take a smaller model, batch or segment, or end other "
        "programs"
    )


_OUT_OF_REACH = {
    errno.ENAMETOOLONG: "the name is too long for the file system; give another",
    errno.ELOOP: "its symbolic links lead in a circle; name the file itself",
    errno.EACCES: "permission denied; see to your rights on the file and the folders above it",
    errno.EPERM: "the system does not permit it; see to your rights on the file and its folder",
    errno.EROFS: "the file system is read-only; name a folder that can be written to",
}


def out_of_reach(error: BaseException) -> str:
    """Return the line for an OSError about a path that this user cannot reach; empty for any other."""
    if not isinstance(error, OSError) or error.errno not in _OUT_OF_REACH or not _named(error):
        return ""
    return f"{_named(error)}: {_OUT_OF_REACH[error.errno]}"


def _named(error: OSError) -> str:
    return os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else ""
