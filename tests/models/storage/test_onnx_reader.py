"""What the reader of ONNX's bytes counts, and that it stops before junk takes long."""

import time

import numpy as np
import pytest

from sepkit.limits import GRAPH_FIELDS
from sepkit.models.storage.onnx_reader import read_onnx

onnx = pytest.importorskip("onnx", reason="onnx is missing: pip install 'sepkit[torch]'")


def inside(number: int, content: bytes) -> bytes:
    """A field that holds bytes."""
    size, length = len(content), b""
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


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
