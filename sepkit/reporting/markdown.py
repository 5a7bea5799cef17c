"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    """Return the table; columns whose indices are not in `words` hold numbers and align right."""
    alignments = ["---" if place in words else "---:" for place in range(len(header))]
    return "".join(f"| {' | '.join(line)} |\n" for line in [header, alignments, *rows])


def escaped(text: str) -> str:
    """Escape a text for a table."""
    return text.replace("|", "\\|")
