"""Sanitize strings of unknown origin (summaries, manifests, models, file names) before they are shown.

A terminal obeys control characters, Markdown and HTML obey markup, spreadsheets compute cells, and marks of the
direction of writing show any text as another one.
"""

import html
import re

# Control characters but tabs and line breaks, other ends of lines, and marks of the direction of writing.
_OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_MARKUP = re.compile(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))")
_FORMULA = re.compile(r"[=+\-@\t]")
# Numbers, and lists of whole numbers and hyphens, such as an assignment without the first source.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)|-( -| \d+)+", re.IGNORECASE)


def plain(text: str) -> str:
    """Return a text for a terminal, or any file: control characters are escaped."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def escaped(text: str) -> str:
    """Return a text as Markdown that shows it, in one line, in a cell of a table too."""
    return _MARKUP.sub(r"\\\1", html.escape(plain(" ".join(text.split())), quote=False))


def code(text: str) -> str:
    """Return a text as code in Markdown, in a cell of a table too; as other text if it has what could end the code."""
    return escaped(text) if re.search(r"[`<>\\\n]", text) else f"`{plain(text)}`".replace("|", "\\|")


def cell(value: object) -> object:
    """Return a value as a cell of CSV: a text that a spreadsheet would compute gets an apostrophe in front."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def uncell(text: str | None) -> str | None:
    """Return the text that `cell` made a cell of."""
    return text[1:] if text and text[0] == "'" and _FORMULA.match(text, 1) else text
