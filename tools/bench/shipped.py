"""The model that ships: against its own graph in ONNX Runtime and OpenVINO, and what predictions and batches cost."""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tools.bench import contestants
from tools.bench.inputs import SAMPLE_RATE, two_voices
from tools.bench.processes import Contestant, take_turns_apart
from tools.bench.timing import Ratio, environment
from tools.bench.unfinished import FOLDER, measure_each

if TYPE_CHECKING:
    from torch import Tensor

TURNS = 7
# Graphs have the filters of the Fourier transform, rounded to float32, and we the fast transform. Compressed magnitudes
# make differences of 1e-7 in weak bins larger: 1e-5 of the largest sample in a minute of speech, 100 dB below it.
TOLERANCE = 1e-4
RECORDINGS = 24

Call = Callable[[], Any]

_HERE = "tools.bench.shipped"
_GRAPH, _MIXTURE = "model.onnx", "mixture.npy"


@dataclass(frozen=True)
class Row:
    """A pair that is timed.

    Args:
        what: "graph": the model's estimates in torch, against its graph in `peer`. "predict": a separation with the
            predicted SI-SDR and the number of speakers, against one without. "batches": several recordings at once,
            against one by one. "export": the graph of `sepkit export` against that of the peer's own module, of the
            model, both in ONNX Runtime.
        peer: who is on the other side.
        seconds: of a mixture.
        threads: of each side; 0: all there are.
        least_ratio: target for times faster.
        most_real_time_factor: target for processing seconds a second of sound.
        model: that ships; of "export", a name of `contestants`.
        turns: number of turns.
    """

    what: str
    peer: str
    seconds: float
    threads: int
    least_ratio: float | None = None
    most_real_time_factor: float | None = None
    model: str = "boxed_8k"
    turns: int = TURNS

    @property
    def described(self) -> str:
        """Description of the row."""
        ways = {
            "graph": "whole file",
            "predict": "with the prediction and the number of speakers",
            "batches": f"{RECORDINGS} recordings in batches",
            "export": "exported, in ONNX Runtime",
        }
        return f"{self.model}, {self.seconds:g} s, {ways[self.what]}"


ROWS = (
    Row("graph", "ONNX Runtime", 4, 1, 1.0, 0.006),
    Row("graph", "ONNX Runtime", 4, 0, 1.0),
    Row("graph", "OpenVINO", 4, 1, 1.0),
    Row("graph", "OpenVINO", 4, 0, 1.0),
    Row("graph", "ONNX Runtime", 60, 1, 1.0, 0.006),
    Row("graph", "ONNX Runtime", 60, 0, 1.0),
    Row("graph", "OpenVINO", 60, 1, 1.0),
    Row("graph", "ONNX Runtime", 4, 1, 1.0, 0.006, model="boxed_8k_causal"),
    Row("graph", "ONNX Runtime", 60, 1, 1.0, 0.006, model="boxed_8k_causal"),
    Row("predict", "sepkit, without them", 4, 1, 1 / 1.25),
    Row("predict", "sepkit, without them", 4, 0, 1 / 1.25),
    Row("batches", "sepkit, one by one", 5, 1),
    Row("export", "asteroid's module, exported", 4, 1, 1.5, model="Conv-TasNet"),
)


def run(rows: Sequence[Row] = ROWS, unfinished: Path | None = FOLDER) -> dict[str, Any]:
    """Measure times and differences of pairs.

    Each side has its own process, and they are called in turns, without gradients. On one thread times are the
    processor's, else the wall clock's. `difference` is the largest of an estimate's samples between both sides,
    relative to the largest sample.

    Args:
        rows: the pairs.
        unfinished: folder of rows of interrupted calls, which are not measured again; None: nothing is kept.

    Raises:
        RuntimeError: estimates that ought to be equal differ.
    """
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="sepkit-bench-") as name:
        return {
            "rows": measure_each("shipped", rows, lambda row: _row(row, Path(name) / str(rows.index(row))), unfinished),
            "input": two_voices(1.0)[1],
            "environment": environment("onnxruntime", "openvino", "asteroid"),
        }


def _row(row: Row, folder: Path) -> dict[str, Any]:
    threads = row.threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    clock = "process_time" if threads == 1 else "perf_counter"
    sides = _prepare(row, folder, threads)
    with ExitStack() as stack:
        ours, theirs = (
            stack.enter_context(Contestant(f"{_HERE}:{maker}", folder, *arguments, threads=threads))
            for maker, *arguments in sides
        )
        times = take_turns_apart({"ours": ours, "theirs": theirs}, row.turns, clock)
        memory = {"ours": ours.memory().peak, "theirs": theirs.memory().peak}
        for name, side in (("ours", ours), ("theirs", theirs)):
            side.save(folder / f"{name}.npy")
    estimates = [np.load(folder / f"{name}.npy") for name in ("ours", "theirs")]
    difference = contestants.largest_difference(estimates[1], estimates[0])
    # Whoever counts speakers may put the estimates of one together.
    if row.what != "predict" and not difference <= TOLERANCE:
        raise RuntimeError(f"{row.described}: the estimates differ from those of {row.peer} by {difference:.2g}")
    medians = {who: statistics.median(values) for who, values in times.items()}
    sound = row.seconds * (RECORDINGS if row.what == "batches" else 1)
    ratio = Ratio.of(times["ours"], times["theirs"])
    print(f"{row.described}, threads {threads}: {ratio} {row.peer}; difference {difference:.0e}", flush=True)
    return {
        "what": row.described,
        "peer": row.peer,
        "threads": threads,
        "least_ratio": row.least_ratio,
        "most_real_time_factor": row.most_real_time_factor,
        "ratio": asdict(ratio),
        "turns": row.turns,
        "clock": clock,
        "median_seconds": medians,
        "real_time_factor": {who: median / sound for who, median in medians.items()},
        "difference": None if row.what == "predict" else {"ours": difference},
        "peak_memory_mb": memory,
    }


def _prepare(row: Row, folder: Path, threads: int) -> list[tuple[Any, ...]]:
    """Write what both sides read; return maker and arguments of ours and theirs."""
    folder.mkdir()
    if row.what == "export":
        contestants.prepare(folder, row.model, {}, row.seconds)
        return [("exported", row.model, threads), ("exported_module", row.model, threads)]
    np.save(folder / _MIXTURE, two_voices(row.seconds)[0].sum(0))
    if row.what == "predict":
        return [("separated", row.model, True), ("separated", row.model, False)]
    if row.what == "batches":
        return [("batches", row.model), ("one_by_one", row.model)]
    return [("estimates", row.model), (row.peer.lower().replace(" ", "_"), row.model, threads)]


# ------------------------------------------------------------------------------------------------------------- makers


def estimates(folder: Path, model: str) -> Call:
    """Make a call that returns the estimates (n, T) of a model that ships, as `sepkit separate` computes them.

    Args:
        folder: with the mixture.
        model: its name.
    """
    import torch

    loaded, mixture = _loaded(model), torch.from_numpy(_mixture(folder))
    if getattr(loaded.masker, "small_steps", False):
        # The command takes one thread for such models, see `sepkit.cli._threads`.
        torch.set_num_threads(1)

    def call() -> Tensor:
        with torch.inference_mode():
            return loaded.estimates(mixture)[0]

    return call


def onnx_runtime(folder: Path, model: str, threads: int) -> Call:
    """Make a call that runs the model's own graph in ONNX Runtime.

    Args:
        folder: with the mixture.
        model: its name.
        threads: of ONNX Runtime.
    """
    from sepkit.models.export.onnx_export import export_onnx

    export_onnx(_loaded(model), folder / _GRAPH)
    return _session_call(folder, threads, _mixture(folder))


def openvino(folder: Path, model: str, threads: int) -> Call:
    """Make a call that runs the model's own graph in OpenVINO, in float32.

    Args:
        folder: with the mixture.
        model: its name.
        threads: of OpenVINO.
    """
    import torch
    from openvino import Core

    from sepkit.models.export.onnx_export import export_onnx

    export_onnx(_loaded(model), folder / _GRAPH)
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    graph, mixture = Core().compile_model(folder / _GRAPH, "CPU", options), _mixture(folder)
    return lambda: torch.from_numpy(graph({"mixture": mixture})["estimates"][0].copy())


def separated(folder: Path, model: str, predict: bool) -> Call:
    """Make a call that separates the mixture, levels included.

    Args:
        folder: with the mixture.
        model: its name.
        predict: whether with the prediction of SI-SDR and the number of speakers.
    """
    import torch

    from sepkit.inference import load_model

    separator, mixture = load_model(model, predict=predict), _mixture(folder)[0]
    return lambda: torch.from_numpy(separator.separate(mixture, SAMPLE_RATE).estimates)


def batches(folder: Path, model: str) -> Call:
    """Make a call that separates several recordings of one length, in batches of the size that the package takes.

    Args:
        folder: with the mixture, of which the recordings are rotations.
        model: its name.
    """
    import torch

    from sepkit.inference import load_model

    separator, recordings = load_model(model, predict=False), _recordings(folder)
    size = separator.batch_size(recordings.shape[-1] / SAMPLE_RATE)

    def call() -> Tensor:
        portions = [recordings[start : start + size] for start in range(0, len(recordings), size)]
        found = itertools.chain(*(separator.separate_equal(list(portion), SAMPLE_RATE) for portion in portions))
        return torch.from_numpy(np.stack([one.estimates for one in found]))

    return call


def one_by_one(folder: Path, model: str) -> Call:
    """Make a call that separates what `batches` does, one recording after another.

    Args:
        folder: with the mixture.
        model: its name.
    """
    import torch

    from sepkit.inference import load_model

    separator, recordings = load_model(model, predict=False), _recordings(folder)
    return lambda: torch.from_numpy(np.stack([separator.separate(one, SAMPLE_RATE).estimates for one in recordings]))


def exported(folder: Path, name: str, threads: int) -> Call:
    """Make a call that runs the graph of `sepkit export` in ONNX Runtime.

    Args:
        folder: see `contestants.prepare`.
        name: of `contestants`.
        threads: of ONNX Runtime.
    """
    from sepkit.models.bridges import from_asteroid
    from sepkit.models.export.onnx_export import export_onnx

    export_onnx(from_asteroid(folder / "model" / "asteroid.pt").eval(), folder / _GRAPH)
    return _session_call(folder, threads, _mixture(folder))


def exported_module(folder: Path, name: str, threads: int) -> Call:
    """Make a call that runs the graph of asteroid's own module, for inputs of this length, in ONNX Runtime.

    Args:
        folder: see `contestants.prepare`.
        name: of `contestants`.
        threads: of ONNX Runtime.
    """
    import torch

    module, mixture = contestants.asteroid_module(folder, name, {}), _mixture(folder)
    path = folder / "theirs.onnx"
    torch.onnx.export(
        module,
        (torch.from_numpy(mixture),),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=["mixture"],
        output_names=["estimates"],
    )
    return _session_call(folder, threads, mixture, path.name)


def _loaded(model: str) -> Any:
    from sepkit.models import load_pretrained

    return load_pretrained(model).eval()


def _session_call(folder: Path, threads: int, mixture: np.ndarray, graph: str = _GRAPH) -> Call:
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session: Any = onnxruntime.InferenceSession(str(folder / graph), options, providers=["CPUExecutionProvider"])
    return lambda: torch.from_numpy(session.run(["estimates"], {"mixture": mixture})[0][0])


def _mixture(folder: Path) -> np.ndarray:
    return np.load(folder / _MIXTURE)[None]


def _recordings(folder: Path) -> np.ndarray:
    mixture = _mixture(folder)[0]
    return np.stack([np.roll(mixture, shift) for shift in np.linspace(0, len(mixture), RECORDINGS, False).astype(int)])
