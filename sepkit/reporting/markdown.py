"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    """The table, numbers to the right.

    Args:
        header: of the columns.
        rows: as many cells each.
        words: places of the columns that are no numbers.
    """
    alignments = ["---" if place in words else "---:" for place in range(len(header))]
    return "".join(f"| {' | '.join(line)} |\n" for line in [header, alignments, *rows])


def escaped(text: str) -> str:
    """The text as it can stand in a table."""
    return text.replace("|", "\\|")
