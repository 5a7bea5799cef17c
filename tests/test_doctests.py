"""The examples in docstrings give what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

SEPKIT = Path(__file__).resolve().parent.parent / "sepkit"
SHOWING = [path for path in sorted(SEPKIT.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
NAMES = [".".join(path.relative_to(SEPKIT.parent).with_suffix("").parts) for path in SHOWING]
MODULES = [name.removesuffix(".__init__") for name in NAMES]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testmod(importlib.import_module(name), optionflags=options)
    assert found.attempted and not found.failed
