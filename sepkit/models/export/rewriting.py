"""Changes to the graph that torch's exporter writes: loops, and weights by their names, in half precision."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

SCAN = "LinearScan"
"""Operator, of this domain, by which `sepkit.models.maskers.gated_scan` marks a recurrence."""

SCAN_DOMAIN = "sepkit"
_PREFIX = "model."


def rewrite(proto: Any, weights: Mapping[str, np.ndarray], halved: set[str]) -> None:
    """Give a traced graph loops for its recurrences, and initializers named as the weights of the model.

    Args:
        proto: onnx's form of the graph of a module that holds the model as `model`; changed in place.
        weights: the tensors of the model by name that the file has to hold, also those that the graph does not use.
        halved: names of those to store in half precision, which the graph turns into single precision.
    """
    graph = proto.graph
    for part in _graphs(graph):
        _expand_scans(part)
    for opset in [opset for opset in proto.opset_import if opset.domain == SCAN_DOMAIN]:
        proto.opset_import.remove(opset)
    names = {tensor.name: tensor.name.removeprefix(_PREFIX) for tensor in graph.initializer}
    # A module that stands in for another one while the model is traced may have weights of another shape.
    shapes = {name: values.shape for name, values in weights.items()}
    same = [tensor.name for tensor in graph.initializer if shapes.get(names[tensor.name]) == tuple(tensor.dims)]
    _rename(graph, {name: names[name] for name in same})
    _store(proto, weights, halved)


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and all inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _graphs(inner)


def _expand_scans(graph: Any) -> None:
    """Replace marks of recurrences (factor, addend, initial) by loops over the first axis: h_t = a_t h_(t-1) + b_t."""
    from onnx import TensorProto, helper

    for node in graph.node:
        if (node.op_type, node.domain) != (SCAN, SCAN_DOMAIN):
            continue
        factor, addend, initial = node.input
        (result,) = node.output
        parts = ("before", "factor", "addend", "kept", "after", "hidden", "last")
        before, a, b, kept, after, hidden, last = (f"{result}.{part}" for part in parts)
        steps = [
            helper.make_node("Mul", [a, before], [kept]),
            helper.make_node("Add", [kept, b], [after]),
            helper.make_node("Identity", [after], [hidden]),
        ]
        inputs, outputs = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
            for names in ((before, a, b), (after, hidden))
        )
        body = helper.make_graph(steps, f"{result}.step", inputs, outputs)
        node.CopyFrom(helper.make_node("Scan", [initial, factor, addend], [last, result], num_scan_inputs=2, body=body))


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename initializers, wherever they are used."""
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for part in _graphs(graph):
        for node in part.node:
            for index, name in enumerate(node.input):
                node.input[index] = names.get(name, name)


def _store(proto: Any, weights: Mapping[str, np.ndarray], halved: set[str]) -> None:
    """Hold every weight under its name; single precision, where it is used, comes out of a cast.

    ONNX Runtime warns about each initializer that no node takes, so weights that only torch needs lie in the part of
    the file that it ignores.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = proto.graph
    taken = {name for part in _graphs(graph) for node in part.node for name in node.input}
    taken |= {value.name for part in _graphs(graph) for value in part.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in taken - set(weights)]
    single = {name: f"{name}.single" for name in weights if name in taken & halved}
    _rename(graph, single)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for_training = proto.training_info.add().algorithm
    for name, values in weights.items():
        stored = values.astype(np.float16) if name in halved else values
        (graph if name in taken else for_training).initializer.append(numpy_helper.from_array(stored, name))
    casts = [helper.make_node("Cast", [name], [cast], to=TensorProto.FLOAT) for name, cast in single.items()]
    nodes = casts + list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
