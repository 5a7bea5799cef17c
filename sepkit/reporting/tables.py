"""Tables of scores: one model, which a console, a Markdown file and an HTML page render."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sepkit.cleaning import escaped
from sepkit.evaluation.statistics import LEAST_UNITS

INTERVALS = (
    "Confidence intervals (95 %) are bootstrapped over the test speakers, or over mixtures if the speakers are "
    f"unknown (-). Intervals over mixtures do not cover other speakers. There is none for fewer than {LEAST_UNITS}."
)
"""Sentence below a table with intervals."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Args:
        text: Text that it shows.
        key: Key for sorting; None sorts last. A number makes the column numeric.
        small: Text below, in HTML alone.
        strong: Whether the text is emphasized.
    """

    text: str
    key: float | str | None = None
    small: str = ""
    strong: bool = False

    def markdown(self) -> str:
        """Return the cell as Markdown."""
        return f"**{self.text}**" if self.strong else self.text

    def html_cell(self, is_number: bool) -> str:
        """Return the cell as HTML; `is_number`: its column is numeric."""
        shown = f"<strong>{escape(self.text)}</strong>" if self.strong else escape(self.text)
        small = f"<small>{escape(self.small)}</small>" if self.small else ""
        key = "" if self.key is None else f' data-key="{escape(str(self.key))}"'
        return f"<td{_class(is_number)}{key}>{shown}{small}</td>"


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        header: Headings of the columns.
        rows: Cells of each row. A text is a word that may come from anywhere, a whole number a count, None unknown.
        caption: Caption, which a page shows.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str | int | None]]
    caption: str = ""

    def lines(self) -> list[str]:
        """Return aligned lines for a console: the first column to the left, others to the right."""
        rows = [list(self.header), *([cell_of(value).text for value in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        texts = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
        return ["  ".join(text).rstrip() for text in texts]

    def markdown(self, words: Sequence[int] = (0,)) -> str:
        """Return Markdown; columns whose index is in `words` align to the left, others to the right."""
        rows = [
            [escaped(value) if isinstance(value, str) else cell_of(value).markdown() for value in row]
            for row in self.rows
        ]
        return markdown_table(self.header, rows, words)

    def html(self) -> str:
        """Return HTML; columns sort when their heading, a button, is pressed."""
        rows = [[cell_of(value) for value in row] for row in self.rows]
        numeric = [any(isinstance(row[place].key, float | int) for row in rows) for place in range(len(self.header))]
        heads = "".join(
            f'<th scope="col" aria-sort="none"{_class(is_number)}><button type="button">{escape(text)}</button></th>'
            for text, is_number in zip(self.header, numeric, strict=True)
        )
        lines = "\n".join("<tr>" + "".join(map(Cell.html_cell, row, numeric)) + "</tr>" for row in rows)
        caption = escape(self.caption)
        return (
            f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}"><table><caption><span>{caption}'
            f"</span></caption><thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>"
        )


def cell_of(value: Cell | str | int | None) -> Cell:
    """Return a value of a table as a cell; a dash stands for None."""
    if isinstance(value, Cell):
        return value
    return Cell("-") if value is None else Cell(str(value), value)


def score_cell(
    value: float | None,
    digits: int,
    interval: Sequence[float] | None = None,
    *,
    signed: bool = False,
    strong: bool = False,
) -> Cell:
    """Return the cell of a score.

    Args:
        value: Score; a dash stands for None, NaN and infinity.
        digits: Number of digits after the point.
        interval: Ends of its interval, shown below; None: nothing.
        signed: Whether positive numbers have a plus.
        strong: Whether the score is emphasized.
    """
    if value is None or not math.isfinite(value):
        return Cell("-")
    small = "" if interval is None else ends_of(interval, digits, signed)
    return Cell(number(value, digits, signed), value, small, strong)


def number(value: float | None, digits: int = 2, signed: bool = False) -> str:
    """Return a number as text.

    Args:
        value: Number; a dash stands for None, NaN and infinity.
        digits: Number of digits after the point.
        signed: Whether positive numbers have a plus.
    """
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:{'+' if signed else ''}.{digits}f}"


def ends_of(interval: Sequence[float], digits: int, signed: bool = False) -> str:
    """Return the ends of an interval as text: "1.20 to 3.45"."""
    return " to ".join(number(end, digits, signed) for end in interval)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    """Return Markdown of cells that are Markdown; columns whose index is in `words` align to the left, others right."""
    alignments = ["---" if place in words else "---:" for place in range(len(header))]
    return "".join(f"| {' | '.join(line)} |\n" for line in [header, alignments, *rows])


def mean_and_deviation(values: Sequence[float | None], digits: int = 2) -> str:
    """Return "mean ± sample deviation" of the known values; a single one has no deviation, none an empty cell."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ""
    deviation = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.{digits}f}{deviation}"


def _class(is_number: bool) -> str:
    return ' class="number"' if is_number else ""
