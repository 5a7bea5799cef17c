"""The page of public names: each can be imported, and other pages import no others."""

import ast
import importlib
import inspect
import re

import pytest

import sepkit
from tests.docs.blocks import DOCUMENTS, REPOSITORY, blocks

PAGE = REPOSITORY / "docs" / "reference" / "public.md"
ROWS = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
NAMES = {module: re.findall(r"`(\w+)`", names) for module, names in ROWS}


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_can_be_imported(module: str) -> None:
    if module == "sepkit.config":
        assert sepkit.config.TrainConfig and NAMES[module] == ["Config"]
        return
    assert NAMES[module]
    for name in NAMES[module]:
        exec(f"from {module} import {name}", {})


@pytest.mark.parametrize("module", NAMES)
def test_every_parameter_of_a_public_name_is_documented(module: str) -> None:
    found = vars(importlib.import_module(module)).items()
    public = [value for name, value in found if name in NAMES[module] or name.endswith("Config")]
    classes = filter(inspect.isclass, public)
    methods = [value for kind in classes for name, value in vars(kind).items() if not name.startswith("_")]
    for documented in (getattr(value, "__func__", value) for value in [*public, *methods]):
        if callable(documented) and documented is not sepkit.errors.UserError:
            args = "".join(re.findall(r"^Args:\n((?:(?: .*)?\n)+)", f"{inspect.getdoc(documented)}\n", re.MULTILINE))
            entries = ", ".join(re.findall(r"^ {4}(\S[^:]*):", args, re.MULTILINE)).replace("*", "").split(", ")
            assert set(inspect.signature(documented).parameters) <= {"self", "cls", *entries}, documented


def test_what_sepkit_exports_is_public() -> None:
    assert set(sepkit.__all__) <= set(NAMES["sepkit"])


def test_pages_import_public_names_only() -> None:
    others = []
    for block in (block for page in DOCUMENTS for block in blocks(page) if block.language == "python"):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sepkit":
                public = NAMES.get(node.module or "", [])
                found = [alias.name for alias in node.names if alias.name not in public]
                if node.module == "sepkit.config":
                    found = [name for name in found if not name.endswith("Config")]
                others += [f"{block.page}: from {node.module} import {name}" for name in found]
    assert not others


def test_modules_of_the_page_are_no_private_ones() -> None:
    assert not [module for module in NAMES if "._" in module or not importlib.import_module(module)]
