"""Seeded mutations: of bytes, and of plain data (what JSON and YAML hold)."""

from __future__ import annotations

import copy
import random
from typing import Any

NUMBERS = [
    0, -1, 1, 2**15, 2**31 - 1, 2**31, 2**63, -(2**63), 10**18, 10**400, 0.0, -0.0, 1e-320, 1e308, -1e308,
    float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
TEXTS = [
    "",
    " ",
    "\0",
    "../../x",
    "/etc/passwd",
    "a" * 300,
    "{0.__class__}",
    "%s",
    "\ud800",
    "\udce9",
    "é" * 130,
    "\n",
    "~",
    "-",
]
OTHERS: list[Any] = [None, True, [], {}, [[]], [1], {"name": [1]}, {"": {}}]
WORDS = [
    b"\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"!!python/object:os.system",
    b"&a [*a]",
    b"!!int 'x'",
    b"{",
    b"[",
]


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with one to four changes."""
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        data = draw.choice(_CHANGES)(data, draw)
    return data


def _at(data: bytes, draw: random.Random) -> int:
    # Headers decide most.
    return draw.randrange(1 + (min(len(data), 64) if draw.random() < 0.6 else len(data)))


def _flip(data: bytes, draw: random.Random) -> bytes:
    at = _at(data, draw)
    return data[:at] + bytes([byte ^ 1 << draw.randrange(8) for byte in data[at : at + 1]]) + data[at + 1 :]


def _replace(data: bytes, draw: random.Random) -> bytes:
    at, word = _at(data, draw), draw.choice([*WORDS, draw.randbytes(4), draw.randbytes(1)])
    return data[:at] + word + data[at + len(word) :]


def _insert(data: bytes, draw: random.Random) -> bytes:
    at = _at(data, draw)
    return data[:at] + draw.choice([*WORDS, draw.randbytes(16)]) + data[at:]


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: _at(data, draw)]


def _remove(data: bytes, draw: random.Random) -> bytes:
    at = _at(data, draw)
    return data[:at] + data[at + draw.randrange(64) :]


def _repeat(data: bytes, draw: random.Random) -> bytes:
    at = _at(data, draw)
    return data[:at] + data[at : at + 32] * draw.choice([2, 50, 2000]) + data[at:]


_CHANGES = [_flip, _flip, _replace, _replace, _insert, _cut, _remove, _repeat]


def mutate_tree(tree: Any, draw: random.Random) -> Any:
    """Return plain data with one to three changes: a value replaced, removed, nested, or under another key."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.choice([1, 1, 2, 3])):
        places = list(_places(tree))
        if not places:
            break
        parent, key = draw.choice(places)
        change = draw.randrange(10)
        if change == 0 and isinstance(parent, dict):
            del parent[key]
        elif change == 1 and isinstance(parent, dict):
            parent[draw.choice(TEXTS)] = parent.pop(key)
        elif change == 2:
            nested: Any = parent[key]
            for _ in range(draw.choice([1, 3, 200])):
                nested = [nested]
            parent[key] = nested
        else:
            parent[key] = copy.deepcopy(draw.choice(draw.choice([NUMBERS, NUMBERS, TEXTS, OTHERS])))
    return tree


def _places(tree: Any) -> Any:
    """Every (parent, key) below a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        yield from _places(value)
