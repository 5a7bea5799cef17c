"""Everything public says what it is for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SEPKIT = Path(__file__).resolve().parent.parent / "sepkit"
FILES = [path for path in sorted(SEPKIT.rglob("*.py")) if not path.stem.startswith("_") or path.stem == "__init__"]

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(node: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, Definition]]:
    """Functions, classes and methods whose names, and whose classes' names, begin with no underscore."""
    for child in node.body:
        if isinstance(child, Definition) and not child.name.startswith("_"):
            yield f"{name}.{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{name}.{child.name}")


def documented_elsewhere(node: Definition) -> bool:
    """Whether it is the setter of a property, or one signature of several."""
    return any(ast.unparse(decorator).endswith((".setter", "overload")) for decorator in node.decorator_list)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SEPKIT).as_posix())
def test_public_names_have_docstrings(path: Path) -> None:
    module = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(module)
    assert [
        name for name, node in public(module, path.stem) if not (ast.get_docstring(node) or documented_elsewhere(node))
    ] == []


def test_what_is_public_is_found() -> None:
    source = "class A:\n def b(self): pass\n def _c(self): pass\ndef d(): pass\nclass _E:\n def f(self): pass\n"
    assert [name for name, _ in public(ast.parse(source), "m")] == ["m.A", "m.A.b", "m.d"]
