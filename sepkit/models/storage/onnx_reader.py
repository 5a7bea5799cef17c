"""Parse an ONNX file without a library: operators, tensors by name, metadata.

An ONNX file is a protobuf message: a sequence of fields. A field has a number and a kind, and then an integer or a
string of bytes, which may be a message itself.

Source: onnx.proto of ONNX, and protobuf's description of its wire format.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sepkit.limits import GRAPH_FIELDS

# Numbers of fields: of a model, its training, a graph, a node, an attribute, a tensor, and a pair of strings.
_OPSETS, _GRAPH, _METADATA, _TRAINING, _FUNCTIONS = 8, 7, 14, 20, 25
_TRAINING_GRAPH = 2
_NODES, _INITIALIZERS, _SPARSE_INITIALIZERS = 1, 5, 15
_OPERATOR, _ATTRIBUTES, _DOMAIN = 4, 5, 7
_ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS, _ATTRIBUTE_SPARSE = (5, 10), (6, 11), (22, 23)
_DIMENSIONS, _TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_KEY, _VALUE = 1, 2

_TYPES = {1: "<f4", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2", 11: "<f8"}
_DEEPEST_GRAPH = 8


@dataclass
class OnnxContents:
    """The content of an ONNX file.

    Args:
        operators: names of all operators, of subgraphs too; those outside ONNX's own domain as "domain::name".
        tensors: initializers by name, of the graph and of what it keeps for training, as far as their values lie in the
            file as they are in memory.
        metadata: the texts beside the graph, by name.
        opset: version of ONNX's own operators.
        num_fields: fields that were read, and numbers in packed ones.
    """

    operators: set[str] = field(default_factory=set)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    opset: int = 0
    num_fields: int = 0

    def count(self) -> None:
        """Count a field.

        Raises:
            ValueError: the file has more than `GRAPH_FIELDS`.
        """
        self.num_fields += 1
        if self.num_fields > GRAPH_FIELDS:
            raise ValueError(f"it has more than {GRAPH_FIELDS:,} fields")


def read_onnx(content: bytes) -> OnnxContents:
    """Return the content of an ONNX file; its tensors share the memory of `content`.

    Raises:
        ValueError: the bytes are no ONNX file, or one with tensors in other files or functions of its own.
    """
    contents = OnnxContents()
    for number, value in _fields(memoryview(content), contents):
        if number == _GRAPH:
            _read_graph(_message(value), contents, 0)
        elif number == _TRAINING:
            for inner, part in _fields(_message(value), contents):
                if inner == _TRAINING_GRAPH:
                    _read_graph(_message(part), contents, 0)
        elif number == _METADATA:
            key, text = _pair(_message(value), contents)
            contents.metadata[key] = text
        elif number == _OPSETS:
            domain, version = _pair(_message(value), contents)
            if domain in ("", "ai.onnx"):
                contents.opset = int(version)
        elif number == _FUNCTIONS:
            raise ValueError("it defines operators of its own")
    return contents


def _read_graph(graph: memoryview, contents: OnnxContents, depth: int) -> None:
    if depth > _DEEPEST_GRAPH:
        raise ValueError("its graphs are nested too deeply")
    for number, value in _fields(graph, contents):
        if number == _NODES:
            _read_node(_message(value), contents, depth)
        elif number == _INITIALIZERS:
            name, tensor = _tensor(_message(value), contents)
            if depth == 0 and tensor is not None:
                contents.tensors.setdefault(name, tensor)
        elif number == _SPARSE_INITIALIZERS:
            raise ValueError("it contains sparse tensors")


def _read_node(node: memoryview, contents: OnnxContents, depth: int) -> None:
    operator = domain = ""
    for number, value in _fields(node, contents):
        if number == _OPERATOR:
            operator = _text(value)
        elif number == _DOMAIN:
            domain = _text(value)
        elif number == _ATTRIBUTES:
            for inner, part in _fields(_message(value), contents):
                if inner in _ATTRIBUTE_GRAPHS:
                    _read_graph(_message(part), contents, depth + 1)
                elif inner in _ATTRIBUTE_TENSORS:
                    _tensor(_message(part), contents)
                elif inner in _ATTRIBUTE_SPARSE:
                    raise ValueError("it contains sparse tensors")
    contents.operators.add(operator if domain in ("", "ai.onnx") else f"{domain}::{operator}")


def _tensor(message: memoryview, contents: OnnxContents) -> tuple[str, np.ndarray | None]:
    """Return name and values of a tensor; no values where they do not lie in the file as they are in memory."""
    name, kind, raw, shape = "", 0, None, []
    for number, value in _fields(message, contents):
        if number == _DIMENSIONS:
            shape += [value] if isinstance(value, int) else list(_varints(value, contents))
        elif number == _TYPE:
            kind = value
        elif number == _NAME:
            name = _text(value)
        elif number == _RAW:
            raw = _message(value)
        elif number == _EXTERNAL or (number == _LOCATION and value != 0):
            raise ValueError("it names other files for its tensors")
    if raw is None or kind not in _TYPES:
        return name, None
    return name, np.frombuffer(raw, _TYPES[kind]).reshape(shape)


def _pair(message: memoryview, contents: OnnxContents) -> tuple[str, str]:
    """Return the first two fields of a message as texts: a key and its value, or a domain and its version."""
    found = {key: str(value) if isinstance(value, int) else _text(value) for key, value in _fields(message, contents)}
    return found.get(_KEY, ""), found.get(_VALUE, "")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number stands where a part belongs")
    return value


def _text(value: int | memoryview) -> str:
    return str(_message(value), "utf-8")


def _fields(message: memoryview, contents: OnnxContents) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of every field of a message."""
    at, end = 0, len(message)
    while at < end:
        contents.count()
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(message, at)
        if size is None or at + size > end:
            raise ValueError("it ends too early, or is no ONNX file")
        yield number, message[at : at + size]
        at += size


def _varints(packed: memoryview, contents: OnnxContents) -> Iterator[int]:
    at = 0
    while at < len(packed):
        contents.count()
        value, at = _varint(packed, at)
        yield value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return an integer of 7 bits a byte, the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("it ends too early, or is no ONNX file")
