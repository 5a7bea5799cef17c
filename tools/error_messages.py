"""The page of error messages: every `UserError` of the code, with what its own text says to do.

Messages are read from the source, so that the page cannot say what the code does not. Parts that are filled in when
the message is printed stand in capitals.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent

_HEADINGS = {
    "Command lines": ["cli"],
    "Configurations": ["config", "choices", "registry", "errors"],
    "Files": ["files", "fetching", "parallel", "owned"],
    "Recordings and manifests": ["data"],
    "Corpora: download and prepare": ["corpora"],
    "Models, checkpoints and export": ["models"],
    "Objectives": ["objectives"],
    "Temperatures and plans": ["annealing"],
    "Training": ["training"],
    "Separating, streaming and predicting": ["inference"],
    "Measuring": ["evaluation"],
    "Reports and figures": ["reporting"],
    "Studies": ["studies"],
}
AREAS = {area: heading for heading, areas in _HEADINGS.items() for area in areas}
"""Package or module of sepkit -> heading on the page."""

HEAD = """# Error messages

sepkit reports bad input in one line and exits with 2. The line names the file or field, what was found, what \
was expected, and what to do. This page has all {count} of them, made from the code. Words in capitals are \
placeholders: `PATH` is your file. Search this page (Ctrl+F) for the other words.

Exit code 1 means that a file failed in a batch (the others are done), or that sepkit itself failed. A line that \
begins with `failed:` and a Python error name is a bug: `SEPKIT_TRACEBACK=1` shows where it happened. Please report it.
"""


class Message(NamedTuple):
    """A message of the code.

    Args:
        area: package or module below sepkit.
        module: path below sepkit.
        told: what was found.
        remedy: what was expected, or what to do; may be empty.
    """

    area: str
    module: str
    told: str
    remedy: str


def errors_page() -> str:
    """The page, in Markdown."""
    found = list(messages())
    parts = [HEAD.format(count=len(found))]
    for heading in dict.fromkeys(AREAS.values()):
        of_area = [message for message in found if AREAS[message.area] == heading]
        parts.append(f"## {heading}\n")
        for module in dict.fromkeys(message.module for message in of_area):
            rows = sorted({(m.told, m.remedy) for m in of_area if m.module == module}, key=lambda row: row[0].lower())
            parts.append(f"### {about(module)}\n\n| message | what to do |\n|---|---|")
            parts += [f"| {_cell(told)} | {_escaped(remedy)} |" for told, remedy in rows] + [""]
    return "\n".join(parts)


def messages() -> Iterator[Message]:
    """All messages, by file; those that another function makes are left out."""
    for path in sorted((REPOSITORY / "sepkit").rglob("*.py")):
        module = path.relative_to(REPOSITORY / "sepkit").as_posix()
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.Call) and _name(node.func).endswith("UserError") and node.args:
                text = fixed_words(node.args[0])
                if re.search(r"[a-z]{2}", re.sub(r"\b[A-Z_]+\b", "", text)):
                    yield Message(module.partition("/")[0].removesuffix(".py"), module, *divided(text))


@lru_cache(None)
def _tree(module: str) -> ast.Module:
    return ast.parse((REPOSITORY / "sepkit" / module).read_text(encoding="utf-8"))


def about(module: str) -> str:
    """The first line of a module's docstring, as a heading."""
    return (ast.get_docstring(_tree(module)) or module).split("\n")[0].rstrip(".").replace("`", "")


def fixed_words(node: ast.expr) -> str:
    """The text of a message, with capitals for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(fixed_words(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return placeholder(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return fixed_words(node.left) + fixed_words(node.right)
    return placeholder(node)


def placeholder(node: ast.expr) -> str:
    """A name in capitals for an expression: of the variable, the attribute, or the first argument of a call."""
    if isinstance(node, ast.Call):
        joined = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)
        if node.args and (joined or _name(node.func) in ("shown", "str", "repr", "len", "sorted")):
            return placeholder(node.args[0])
        # did_you_mean adds a suggestion, or nothing.
        return "" if _name(node.func) == "did_you_mean" else "VALUE"
    if isinstance(node, ast.Subscript | ast.Starred):
        return placeholder(node.value)
    return _name(node).strip("_").upper() or "VALUE"


def divided(text: str) -> tuple[str, str]:
    """What was found, and what was expected or is to be done."""
    for mark in ("; ", ", expected ", ": expected ", ", but "):
        told, found, remedy = text.rpartition(mark)
        if found and len(told.split()) > 1:
            return told, remedy if mark in ("; ",) else f"{mark.strip(',: ')} {remedy}"
    return text, ""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _cell(text: str) -> str:
    """A message as code; Markdown has no other way to keep its characters."""
    return f"`{text.replace('`', chr(39)).replace('|', '/').strip()}`"


def _escaped(text: str) -> str:
    return re.sub(r"([|<>*_\[\]{}])", r"\\\1", " ".join(text.split()))
