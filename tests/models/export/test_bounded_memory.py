"""Graphs of some hundred bytes that ask for gigabytes, and what the bound on them leaves alone."""

import json
import os
import resource
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.diarization.encoders import load_encoder
from sepkit.limits import GRAPH_MEMORY
from sepkit.models.export import bounded_memory, graph_file
from sepkit.models.export.graph_description import FEATURES_VERSION, FORMAT, METADATA
from sepkit.models.export.graph_file import Graph
from sepkit.models.published.shipped import SHIPPED
from tests.complaint import complaint

onnx = pytest.importorskip("onnx", reason="onnx is missing: pip install 'sepkit[torch]'")

linux = pytest.mark.skipif(not bounded_memory.HAS_LIMIT, reason="only Linux bounds the memory of a process")
DESCRIPTION = {"format": FORMAT, "kind": "separation", "sample_rate": 8000, "info": {}, "fingerprint": "0" * 32}
DESCRIPTION |= {"features_version": FEATURES_VERSION, "features": [], "hypotheses": 2, "signal_mean": 0.0}
DESCRIPTION |= {"signal_std": 1.0, "variational": False, "score_loss": None, "counts_speakers": False}
DESCRIPTION |= {"depth_steps": None}
# Lines of ONNX's own text form, which make `c`. Sizes depend on the mixture, or else are constants.
SIDE = "side = Constant<value_ints=[32768, 32768]>()"
SIZE = "no = Constant<value_ints=[0]>() lengths = Shape(mixture) none = Mul(lengths, no) size = Add(none, side)"
HOSTILE = {
    "a tensor of 2^30 floats": [SIDE, SIZE, "c = ConstantOfShape<value = float[1] {1.0}>(size)"],
    "of constants": [SIDE, "c = ConstantOfShape<value = float[1] {1.0}>(side)"],
    "many tensors": [
        "side = Constant<value_ints=[4096, 8192]>()",
        SIZE,
        "c0 = ConstantOfShape<value = float[1] {1.0}>(size)",
        *(f"c{k + 1} = Neg(c{k})" for k in range(31)),
        f"c = Sum({', '.join(f'c{k}' for k in range(32))})",
    ],
    "a product": ["columns = Transpose<perm=[1, 0]>(mixture)", "c = MatMul(columns, mixture)"],
}


def hostile(path: Path, lines: list[str]) -> Path:
    """Write a graph whose estimates are the mixture twice, plus nothing of what the lines make as `c`."""
    proto = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[B, T] mixture) => (float[B, 2, T] estimates) {{
            {" ".join(lines)}
            largest = ReduceMax<keepdims=0>(c)
            zero = Constant<value_float=0.0>()
            z = Mul(largest, zero)
            axis = Constant<value_ints=[1]>()
            row = Unsqueeze(mixture, axis)
            rows = Concat<axis=1>(row, row)
            estimates = Add(rows, z)
        }}""")
    onnx.helper.set_model_props(proto, {METADATA: json.dumps(DESCRIPTION)})
    path.write_bytes(proto.SerializeToString())
    assert path.stat().st_size < 2000
    return path


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@linux
@pytest.mark.parametrize("kind", HOSTILE)
def test_graphs_that_ask_for_gigabytes_are_refused(kind, tmp_path):
    path, limit = hostile(tmp_path / "x.onnx", HOSTILE[kind]), soft_limit()
    mixture = np.full((1, 33_000 if kind == "a product" else 8000), 0.1, np.float32)
    before = peak_kib()
    assert "x.onnx: takes more memory" in complaint(lambda: Graph(path).separate(mixture))
    assert peak_kib() - before < 1_400_000 and soft_limit() == limit


def test_systems_without_the_limit_bound_the_arena(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_file, "HAS_LIMIT", False)
    monkeypatch.setattr(bounded_memory, "HAS_LIMIT", False)
    path, before = hostile(tmp_path / "x.onnx", HOSTILE["a tensor of 2^30 floats"]), peak_kib()
    assert "x.onnx: takes more memory" in complaint(lambda: Graph(path).separate(np.ones((1, 8000), np.float32)))
    assert peak_kib() - before < 1_400_000
    assert Graph(SHIPPED / "boxed_8k" / "model.onnx").separate(np.ones((1, 800), np.float32))


@linux
def test_the_command_says_so_in_one_line(tmp_path, capsys):
    path = hostile(tmp_path / "x.onnx", HOSTILE["a tensor of 2^30 floats"])
    recording = audio.write(tmp_path / "x.wav", np.full(8000, 0.1), 8000)
    with pytest.raises(SystemExit, match="1"):
        main(["separate", str(recording), "--model", str(path), "--out", str(tmp_path / "out")])
    first, *rest = capsys.readouterr().err.strip().splitlines()
    assert "x.onnx: takes more memory for 1.0 s of sound" in first and len(rest) == 1


@linux
def test_encoders_of_other_toolkits_are_bounded_too(tmp_path):
    text = """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[B, T] samples) => (float[B, 1] embeddings) {
            columns = Constant<value_ints=[2]>()
            sizes = Shape(samples)
            repeats = Mul(sizes, columns)
            many = Tile(samples, repeats)
            last = Constant<value_ints=[1]>()
            embeddings = ReduceMax(many, last)
        }"""
    (tmp_path / "x.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    before = peak_kib()
    assert "x.onnx: takes more memory" in complaint(lambda: load_encoder(tmp_path / "x.onnx", "waveform"))
    assert peak_kib() - before < 1_400_000


@linux
def test_a_graph_that_takes_little_gives_the_same_to_the_last_bit(tmp_path):
    """The default model is not bounded, a copy of its file is."""
    shipped = SHIPPED / "boxed_8k" / "model.onnx"
    copied = Graph(shutil.copy(shipped, tmp_path / "copy.onnx"), threads=1)
    mixture = np.random.default_rng(0).normal(0, 0.1, (1, 40_000)).astype(np.float32)
    limit = soft_limit()
    found, expected = (graph.separate(mixture, graph.outputs) for graph in (copied, Graph(shipped, threads=1)))
    assert found.keys() == expected.keys() and soft_limit() == limit
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_what_ships_is_not_bounded(monkeypatch):
    def refuse(num_bytes):
        raise AssertionError

    monkeypatch.setattr(graph_file, "bounded_memory", refuse)
    assert Graph(SHIPPED / "boxed_8k" / "model.onnx").separate(np.ones((1, 800), np.float32))


@contextmanager
def bounded_in_another_thread():
    entered, leave = threading.Event(), threading.Event()

    def run():
        with bounded_memory.bounded_memory(2**30):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait()
    yield
    leave.set()
    thread.join()


@linux
def test_blocks_side_by_side_add_up_and_the_last_one_restores_the_limit():
    limit = soft_limit()
    with bounded_in_another_thread():
        alone = soft_limit()
        with pytest.raises(UserError), bounded_memory.bounded_memory(2**30):
            both = soft_limit()
            raise UserError
        assert both - alone > 2**29 and soft_limit() == both
        np.ones(2**28, np.uint8)  # what a thread beside them takes
    assert soft_limit() == limit and limit not in (alone, both)


@linux
def test_a_process_that_is_forked_meanwhile_has_no_limit():
    limit = soft_limit()
    with bounded_in_another_thread():
        child = os.fork()
        if child == 0:
            os._exit(0 if soft_limit() == limit else 1)
    assert os.waitpid(child, 0)[1] == 0


@linux
def test_a_lower_limit_of_the_user_stays():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    lower = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize() + 2**29
    resource.setrlimit(resource.RLIMIT_DATA, (lower, before[1]))
    try:
        with bounded_memory.bounded_memory(GRAPH_MEMORY):
            assert soft_limit() == lower
        assert soft_limit() == lower
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
