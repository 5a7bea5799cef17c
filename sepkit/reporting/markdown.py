"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    """Return a table.

    Args:
        header: of the columns.
        rows: as long as the header.
        words: indices of columns that hold words; others hold numbers and align right.
    """
    alignments = ["---" if place in words else "---:" for place in range(len(header))]
    return "".join(f"| {' | '.join(line)} |\n" for line in [header, alignments, *rows])


def escaped(text: str) -> str:
    """Return a text as a cell of a table can hold it.

    Args:
        text: without line breaks.
    """
    return text.replace("|", "\\|")
