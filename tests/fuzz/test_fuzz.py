"""Changed files of every kind: an exit code and a line, whatever they hold. `make fuzz` tries more, by coverage."""

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.fuzz.oracle import falls_of, run_here
from tests.fuzz.reader import Files, Reader
from tests.fuzz.readers import READERS

FOUND = sorted(path for path in (Path(__file__).parent / "cases").glob("*/*") if path.is_dir())

NUMBERS = st.one_of(st.sampled_from([0, -1, 2**31, 2**63, 10**400, 1e-320, 1e308]), st.integers(), st.floats())
ODD = ["../../x", "/etc/passwd", "a" * 300, "{0.__class__}", "%s", "\ud800", "\udce9", "~", "-"]
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=40))
LEAVES = st.one_of(NUMBERS, NUMBERS, TEXTS, st.none(), st.booleans())
DEEPER = lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)  # noqa: E731
VALUES = st.recursive(LEAVES, DEEPER, max_leaves=4)
TAGS = [b"\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"!!python/object:os.system", b"&a [*a]", b"{"]
WORDS = st.one_of(st.sampled_from(TAGS), st.binary(min_size=1, max_size=16))


@st.composite
def changed_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with one to four parts replaced, put in, left out or repeated; headers decide most."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, min(len(data), 64)) | st.integers(0, len(data)))
        length = draw(st.integers(0, 32))
        part = data[start : start + length]
        put = draw(st.one_of(WORDS, st.just(b""), st.sampled_from([2, 50, 2000]).map(part.__mul__)))
        data = data[:start] + put + draw(st.sampled_from([data[start + length :], data[start:], b""]))
    return data


@st.composite
def changed_plain(draw: st.DrawFn, tree: Any) -> Any:
    """Plain data with one to three values replaced, left out, nested or under another key."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        if not (places := list(_places(tree))):
            break
        parent, key = draw(st.sampled_from(places))
        change = draw(st.sampled_from(["value", "value", "value", "remove", "rename", "nest"]))
        if change == "nest":
            for _ in range(draw(st.sampled_from([1, 3, 200]))):
                parent[key] = [parent[key]]
        elif change == "value" or isinstance(parent, list):
            parent[key] = draw(VALUES)
        else:
            value = parent.pop(key)
            if change == "rename":
                parent[draw(TEXTS)] = value
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (parent, key) below a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        yield from _places(value)


def _read(name: str, data: bytes) -> Any:
    # YAML holds JSON.
    return [json.loads(line) for line in data.splitlines()] if name.endswith(".jsonl") else yaml.safe_load(data)


def _written(name: str, tree: Any) -> bytes:
    # Numbers of more digits than Python writes come as JSON would hold them.
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        lines = tree if name.endswith(".jsonl") and isinstance(tree, list) else [tree]
        return "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    finally:
        sys.set_int_max_str_digits(before)


@st.composite
def changed_files(draw: st.DrawFn, reader: Reader) -> Files:
    """The files of a reader, of which one is changed."""
    name = draw(st.sampled_from(list(reader.files)))
    data = reader.files[name]
    if name in reader.plain and draw(st.booleans()):
        return reader.files | {name: _written(name, draw(changed_plain(_read(name, data))))}
    return reader.files | {name: draw(changed_bytes(data))}


@pytest.mark.parametrize("name", READERS)
def test_changed_files(name: str) -> None:
    reader = READERS[name]()
    # Here, so that no process of a change spends its time on the imports of the command.
    assert run_here(reader, reader.files) == (reader.passes, [])

    @settings(
        max_examples=reader.examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(changed_files(reader))
    def takes(files: Files) -> None:
        changed = {name: data[:2000] for name, data in files.items() if data != reader.files[name]}
        note(f"changed: {changed}")
        assert falls_of(reader, files) == []

    takes()


@pytest.mark.parametrize("folder", FOUND, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_what_was_found_before(folder: Path) -> None:
    reader = READERS[folder.parent.name]()
    assert falls_of(reader, reader.files | {path.name: path.read_bytes() for path in folder.iterdir()}) == []
