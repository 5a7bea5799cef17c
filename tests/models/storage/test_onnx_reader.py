"""What the reader of ONNX's bytes counts, and that it stops before junk takes long."""

import time

import numpy as np
import pytest

from sepkit.limits import GRAPH_FIELDS
from sepkit.models.storage.onnx_reader import read_onnx

onnx = pytest.importorskip("onnx", reason="onnx is missing: pip install 'sepkit[torch]'")


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def inside(number: int, content: bytes) -> bytes:
    """A field that holds bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


SMALL = b"\x08\x01"  # field 1, the number 1
JUNK = {
    "numbers": SMALL * 1_000_000,
    "empty parts": b"\x0a\x00" * 1_000_000,
    "metadata": inside(14, SMALL * 1_000_000),
    "nodes": inside(7, b"\x0a\x00" * 1_000_000),
    "attributes": inside(7, inside(1, b"\x2a\x00" * 1_000_000)),
    "dimensions": inside(7, inside(5, SMALL * 1_000_000)),
    "packed dimensions": inside(7, inside(5, inside(1, b"\x01" * 1_000_000))),
}


@pytest.mark.parametrize("kind", JUNK)
def test_junk_is_refused_in_seconds(kind):
    began = time.process_time()
    with pytest.raises(ValueError, match="more than 500,000 fields"):
        read_onnx(JUNK[kind])
    assert time.process_time() - began < 5


def test_large_weights_are_few_fields():
    values = np.zeros((2**10, 2**13), np.float32)
    graph = onnx.helper.make_graph([], "g", [], [], [onnx.numpy_helper.from_array(values, "w")])
    contents = read_onnx(onnx.helper.make_model(graph).SerializeToString())
    assert contents.tensors["w"].shape == values.shape
    assert contents.num_fields < 50 < GRAPH_FIELDS


def nested(depth: int) -> bytes:
    """A graph in an attribute of a node of a graph, and so on."""
    return inside(1, inside(5, inside(6 + 5 * (depth % 2), nested(depth - 1)))) if depth else b""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (inside(7, inside(15, b"")), "sparse tensors"),
        *((inside(7, inside(1, inside(5, inside(number, b"")))), "sparse tensors") for number in (22, 23)),
        (b"\x38\x01", "a number stands where a part belongs"),
        (inside(25, b""), "defines operators of its own"),
        (inside(7, nested(9)), "nested too deeply"),
        (inside(20, inside(2, nested(9))), "nested too deeply"),
        *(
            (content, "ends too early")
            for content in (b"\x3a", b"\x3a\x02\x0a", b"\x09" + bytes(7), b"\x0d" + bytes(3))
        ),
        *((content, "ends too early") for content in (b"\x0b\x00", b"\x08" + b"\xff" * 10 + b"\x01")),
    ],
)
def test_what_is_no_graph(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_onnx(content)


def test_what_is_passed_over() -> None:
    """Numbers of 8 and of 4 bytes, of up to 70 bits, domains of others, and graphs that are nested less deeply."""
    domains = b"".join(inside(8, inside(1, domain) + b"\x10" + varint(version)) for domain, version in DOMAINS)
    rest = b"\x09" + bytes(8) + b"\x0d" + bytes(4) + b"\x08" + b"\xff" * 9 + b"\x01"
    contents = read_onnx(inside(7, nested(8)) + rest + domains + inside(14, inside(1, b"key") + inside(2, b"text")))
    assert (contents.opset, contents.metadata, contents.operators) == (17, {"key": "text"}, {""})


DOMAINS = ((b"my.ops", 3), (b"ai.onnx", 17), (b"ai.onnx.ml", 4))
