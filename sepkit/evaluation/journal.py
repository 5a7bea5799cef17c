"""Write the rows of a long job one by one, so that the same command continues where it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from sepkit.errors import UserError
from sepkit.files import journal_line, journal_rows
from sepkit.owned import claim, command


class Journal:
    """Rows by key, one JSON object with a digest per line; damaged lines do not count.

    The last row of a key counts; a success counts before a failure.

    Ranks that share a job write one file each and read all of them.

    Args:
        folder: of the journal's files.
        rank: of this process; None: the job is not shared.
    """

    def __init__(self, folder: Path, rank: int | None = None) -> None:
        self.folder = folder
        self.path = folder / ("journal.jsonl" if rank is None else f"journal-{rank}.jsonl")
        self.rows: dict[str, dict[str, Any]] = {}
        self.reload()

    def reload(self) -> None:
        """Read the files again: other ranks may have added to theirs."""
        self.rows = {}
        for path in sorted(self.folder.glob("journal*.jsonl")):
            for row in {row["key"]: row for row in journal_rows(path)}.values():
                known = self.rows.get(row["key"])
                if known is None or "reason" in known or "reason" not in row:
                    self.rows[row["key"]] = row

    @contextmanager
    def writing(self) -> Iterator[Journal]:
        """While the block runs, `add` appends; yield this journal. Raise UserError if the file cannot be written to."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            claim(self.path)
            self._file: TextIO = self.path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot be written to ({error.strerror}); give an output folder that can"
            ) from error
        # A killed run may have left half a line, which must be ended first.
        self._before_next = "\n" if self._file.tell() else ""
        with self._file:
            yield self

    def add(self, row: dict[str, Any]) -> None:
        """Write a row to disk at once.

        Args:
            row: plain data with a `key`.
        """
        self.rows[row["key"]] = row
        self._file.write(self._before_next + journal_line(row))
        self._before_next = ""
        self._file.flush()
        command().finished = True
