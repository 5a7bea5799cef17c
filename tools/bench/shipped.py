"""Default models against their own graphs in ONNX Runtime and OpenVINO, and an exported Conv-TasNet."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sepkit  # noqa: F401 - so that ONNX Runtime reports nothing
from sepkit.parallel import available_processes
from tools.bench import separate
from tools.bench.measure import Call, compare_apart, environment, measure_each, relative_gap, two_voices

TURNS = 7
# Graphs have the filters of the Fourier transform, rounded to float32, and we the fast transform. Compressed magnitudes
# make differences of 1e-7 in weak bins larger: 1e-5 of the largest sample in a minute of speech, 100 dB below it.
TOLERANCE = 1e-4

_GRAPH, _MIXTURE = "model.onnx", "mixture.npy"


@dataclass(frozen=True)
class Row:
    """A pair that is timed.

    Args:
        what: "graph": the model's estimates in torch, against its graph in `peer`. "export": the graph of `sepkit
            export` against that of the peer's own module, of the model, both in ONNX Runtime.
        peer: who is on the other side.
        seconds: of a mixture.
        threads: of each side; 0: all there are.
        model: that ships; of "export", a name of `separate.ASTEROID`.
        turns: their number.
    """

    what: str
    peer: str
    seconds: float
    threads: int
    model: str = "boxed_8k"
    turns: int = TURNS

    @property
    def described(self) -> str:
        """Description of the row."""
        way = ", exported, in ONNX Runtime" if self.what == "export" else ""
        return f"{self.model}, {self.seconds:g} s{way}"


ROWS = (
    *(Row("graph", "ONNX Runtime", seconds, threads) for seconds in (4, 60) for threads in (1, 0)),
    *(Row("graph", "OpenVINO", 4, threads) for threads in (1, 0)),
    Row("graph", "ONNX Runtime", 4, 1, "boxed_8k_causal"),
    Row("export", "asteroid's module, exported", 4, 1, "Conv-TasNet"),
)


def run(unfinished: Path | None, rows: Sequence[Row] = ROWS) -> dict[str, Any]:
    """Measure times and differences of pairs.

    Each side has its own process, and they are called in turns, without gradients.

    Args:
        unfinished: folder of rows of interrupted calls; None: nothing is kept.
        rows: the pairs.

    Raises:
        RuntimeError: estimates that ought to be equal differ.
    """
    found = measure_each("shipped", rows, _measured, unfinished)
    return {"rows": found, "environment": environment("onnxruntime", "openvino", "asteroid")}


def _measured(row: Row) -> dict[str, Any]:
    threads = row.threads or available_processes()
    with tempfile.TemporaryDirectory(prefix="sepkit-bench-") as name:
        folder = Path(name)
        times, found = compare_apart(_sides(row, folder, threads), threads, row.turns, row.seconds)
    difference = relative_gap(found["theirs"], found["ours"])
    if not difference <= TOLERANCE:
        raise RuntimeError(f"{row.described}: the estimates differ from those of {row.peer} by {difference:.2g}")
    record = {"what": row.described, "peer": row.peer, "threads": threads}
    return record | times | {"difference": difference, "unit": "of the peak"}


def _sides(row: Row, folder: Path, threads: int) -> list[tuple[Any, ...]]:
    """Write what both sides read; return maker and arguments of ours and theirs."""
    if row.what == "export":
        separate.prepare(folder, row.model, {}, row.seconds)
    else:
        np.save(folder / _MIXTURE, two_voices(row.seconds).sum(0))
    makers: dict[str, list[tuple[Any, ...]]] = {
        "export": [("exported", threads), ("exported_module", row.model, threads)],
        "graph": [("estimates", row.model), (row.peer.lower().replace(" ", "_"), row.model, threads)],
    }
    return [(f"{__name__}:{maker}", folder, *arguments) for maker, *arguments in makers[row.what]]


# ------------------------------------------------------------------------------------------------------------- makers


def estimates(folder: Path, model: str) -> Call:
    """Make a call that returns the estimates (n, T) of a model that ships, as `sepkit separate` computes them.

    Args:
        folder: with the mixture.
        model: its name.
    """
    loaded, mixture = _loaded(model), torch.from_numpy(_mixture(folder))
    if getattr(loaded.masker, "small_steps", False):
        # The command takes one thread for such models.
        torch.set_num_threads(1)
    return torch.inference_mode()(lambda: loaded.estimates(mixture)[0])


def onnx_runtime(folder: Path, model: str, threads: int) -> Call:
    """Make a call that runs the model's own graph in ONNX Runtime.

    Args:
        folder: with the mixture.
        model: its name.
        threads: of ONNX Runtime.
    """
    return _session_call(_export(_loaded(model), folder), threads, _mixture(folder))


def openvino(folder: Path, model: str, threads: int) -> Call:
    """Make a call that runs the model's own graph in OpenVINO, in float32.

    Args:
        folder: with the mixture.
        model: its name.
        threads: of OpenVINO.
    """
    from openvino import Core

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    graph = Core().compile_model(_export(_loaded(model), folder), "CPU", options)
    mixture = _mixture(folder)
    return lambda: torch.from_numpy(graph({"mixture": mixture})["estimates"][0].copy())


def exported(folder: Path, threads: int) -> Call:
    """Make a call that runs the graph of `sepkit export` in ONNX Runtime.

    Args:
        folder: see `separate.prepare`.
        threads: of ONNX Runtime.
    """
    from sepkit.models.bridges import from_asteroid

    model = from_asteroid(folder / "model" / "asteroid.pt").eval()
    return _session_call(_export(model, folder), threads, _mixture(folder))


def exported_module(folder: Path, name: str, threads: int) -> Call:
    """Make a call that runs the graph of asteroid's own module, for inputs of this length, in ONNX Runtime.

    Args:
        folder: see `separate.prepare`.
        name: of the model.
        threads: of ONNX Runtime.
    """
    module, mixture, path = separate.asteroid_module(folder, name, {}), _mixture(folder), folder / "theirs.onnx"
    names: dict[str, Any] = {"input_names": ["mixture"], "output_names": ["estimates"]}
    torch.onnx.export(module, (torch.from_numpy(mixture),), str(path), dynamo=False, opset_version=17, **names)
    return _session_call(path, threads, mixture)


def _loaded(model: str) -> Any:
    from sepkit.models import load_pretrained

    return load_pretrained(model).eval()


def _export(model: Any, folder: Path) -> Path:
    from sepkit.models.export.onnx_export import export_onnx

    export_onnx(model, folder / _GRAPH)
    return folder / _GRAPH


def _session_call(graph: Path, threads: int, mixture: np.ndarray) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session: Any = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    return lambda: torch.from_numpy(session.run(["estimates"], {"mixture": mixture})[0][0])


def _mixture(folder: Path) -> np.ndarray:
    return separate.mixture_of(folder).numpy()
