"""No file of the package imports itself in a circle: at its top, in a function, or for types alone."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SEPKIT = Path(__file__).parent.parent / "sepkit"


def import_graph(package: Path) -> dict[str, set[str]]:
    """Module -> modules of the package that its source names in an import.

    `from a import b` means the module a.b where there is one, else the file of a.
    """
    files = {_name(path, package): path for path in package.rglob("*.py")}
    return {
        module: {target for name in _imported(path, module) if (target := _nearest(name, files)) is not None}
        for module, path in files.items()
    }


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, module: str) -> list[str]:
    """Full names of all that a file imports."""
    here = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = here.split(".")[: len(here.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names += [f"{source}.{alias.name}" for alias in node.names]
    return names


def _nearest(name: str, files: dict[str, Path]) -> str | None:
    """The module that holds `name`."""
    while name and name not in files:
        name = name.rpartition(".")[0]
    return name or None


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules of a circle in the graph, the first of them again at the end; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def test_no_file_imports_itself_by_way_of_others():
    found = circle(import_graph(SEPKIT))
    assert not found, "imports run in a circle: " + " -> ".join(found)


@pytest.mark.parametrize(
    "lines",
    [
        "from package import b",
        "import package.b",
        "from .b import thing",
        "from . import b",
        "def function():\n    from package.b import thing",
        "if TYPE_CHECKING:\n    from package.b import thing",
    ],
)
def test_a_circle_is_found_however_it_is_written(tmp_path, lines):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(lines)
    (package / "b.py").write_text("import os")
    assert circle(import_graph(package)) == []
    (package / "b.py").write_text("from package.a import function")
    assert sorted(set(circle(import_graph(package)))) == ["package.a", "package.b"]
    assert import_graph(package)["package.a"] == {"package.b"}


@pytest.mark.parametrize("room", ["models", "objectives", "data", "inference"])
def test_scipy_is_imported_where_it_is_used(room):
    """Importing scipy's parts takes seconds of processor time, which loading a model need not wait for."""
    early = [
        f"{path.relative_to(SEPKIT)}:{node.lineno}"
        for path in sorted((SEPKIT / room).rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name.partition(".")[0] == "scipy" for name in _named(node))
    ]
    assert not early, f"scipy at the top of {', '.join(early)}: import it in the function that needs it"


def _named(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
