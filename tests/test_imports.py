"""No file of the package imports itself in a circle: at its top, in a function, or for types alone."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SEPKIT = Path(__file__).parent.parent / "sepkit"


def test_no_file_imports_itself_by_way_of_others():
    """In a function, or for types alone, too."""
    grimp = pytest.importorskip("grimp", reason="grimp is missing: pip install 'sepkit[dev]'")
    graph = grimp.build_graph("sepkit", cache_dir=None)
    try:
        TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
    except CycleError as error:
        raise AssertionError("imports run in a circle: " + " -> ".join(error.args[1][::-1])) from None


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
