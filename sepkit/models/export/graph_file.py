"""Exported models: a graph in a file, checked and run by ONNX Runtime, without torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from sepkit import limits
from sepkit.errors import UserError, one_line, out_of_memory, shown
from sepkit.models.export.bounded_memory import HAS_LIMIT, bound_arena, bounded_memory, stacks
from sepkit.models.export.graph_description import DEPTH_KEY, EXPECTED, FEATURES, METADATA, read_description
from sepkit.models.storage.onnx_reader import OnnxContents, read_onnx
from sepkit.signals import ratio_db

OUTPUTS = ("estimates", "scores")
"""Outputs of a graph that separates, beside its features; `scores` where the model has a scoring head."""

_MISSING = "exported models need onnxruntime: pip install onnxruntime"
PROVIDERS = {"cuda": "CUDAExecutionProvider", "coreml": "CoreMLExecutionProvider", "cpu": "CPUExecutionProvider"}
"""Device -> ONNX Runtime's provider, the best first."""


# What torch's exporter makes of this package's models. None of them reads or writes files, or runs other code.
_NAMES = (
    "Abs Add And BatchNormalization Cast Ceil Clip Concat ConcatFromSequence Constant ConstantOfShape Conv "
    "ConvTranspose Cos CumSum Div Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gemm "
    "Greater GreaterOrEqual GRU Identity If InstanceNormalization IsNaN LayerNormalization LeakyRelu Less "
    "LessOrEqual Log LogSoftmax Loop LSTM MatMul Max Min Mod Mul Neg Not Or Pad Pow PRelu Range Reciprocal "
    "ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize RNN "
    "Round Scan ScatterND SequenceAt SequenceConstruct SequenceEmpty SequenceInsert Shape Sigmoid Sign Sin "
    "Size Slice Softmax Softplus Split Sqrt Squeeze Sub Sum Tanh Tile TopK Transpose Trilu Unsqueeze Upsample "
    "Where"
)
_OPERATORS = frozenset(_NAMES.split())
_PACKAGE = Path(__file__).resolve().parents[2]


class Graph:
    """A model whose forward pass is a graph run by ONNX Runtime.

    Attributes:
        path: the file.
        description: plain data of the file: format, kind, sample_rate, hypotheses, signal_mean, signal_std, info ...
        kind: "separation" (`mixture` (B, T) to `OUTPUTS` and `features`), or "speaker_encoder" (`waveforms` (B, T) to
            `embeddings` (B, D), and to `speech` (B, F), probabilities for each 20 ms, if it detects speech).
        sample_rate: Hz.
        hypotheses: n; 0 for an encoder.
        embedding_size: D; 0 for a graph that separates.
        info: Data saved beside the weights.
        signal_mean, signal_std: mean and deviation of the training mixtures.
        outputs: Names of the outputs of `separate`.
        features: names of those that are (B, n) features of the separation, see
            `sepkit.models.features.latent_features`.
        variational: whether the model's latents have distributions. A graph does not sample from them.
        score_loss: Loss of the scores, as in `EncoderMaskerDecoder`.
        counts_speakers: whether the model counts speakers, and makes no more estimates than it counts.
        steps: number of steps of a masker of continuous depth, which the graph takes always; None: fixed depth.
        fingerprint: digest of the weights, as `sepkit.models.saved` gives it for the model in torch.
        causal: whether the model can run block by block, and so gets the level of the samples so far.
        stride, kernel_size: Stride and length of a causal model's synthesis windows, samples; 0: not causal.
        state: name and shape, for one recording, of each part of the state that a causal graph takes beside `mixture`
            (B, k * stride), and returns as `next_` and the name, see `first_state`; empty for another one.
        delay_samples: by which the estimates (B, n, k * stride) of a call are late, in samples: the first are of what
            lies before the recording.
        providers: names of ONNX Runtime's providers that run it.

    Args:
        path: File that `sepkit export` wrote.
        device: "cpu", "cuda" or "cuda:1", "coreml", or "auto": CUDA where ONNX Runtime has it, else the CPU.
        threads: Number of CPU threads; None: OMP_NUM_THREADS, as in torch, or else ONNX Runtime's choice.
    """

    def __init__(self, path: str | os.PathLike[str], device: str = "cpu", threads: int | None = None) -> None:
        self.path = path = Path(path)
        content, contents = read_graph(path, EXPECTED)
        if METADATA not in contents.metadata:
            raise UserError(f"{path}: found a graph without sepkit's description; {EXPECTED}")
        if unknown := contents.operators - _OPERATORS:
            raise UserError(f"{path}: contains the operator {shown(min(unknown))}, which no model has; {EXPECTED}")
        self.description = description = read_description(path, contents.metadata)
        self.kind: str = description["kind"]
        self.sample_rate: int = description["sample_rate"]
        self.info: dict[str, Any] = description["info"]
        self.hypotheses: int = description.get("hypotheses", 0)
        self.embedding_size: int = description.get("embedding_size", 0)
        self.signal_mean = float(description.get("signal_mean", 0.0))
        self.signal_std = float(description.get("signal_std", 1.0))
        self.variational: bool = description.get("variational", False)
        self.score_loss: str | None = description.get("score_loss")
        self.counts_speakers = bool(description.get("counts_speakers"))
        self.steps: int | None = description.get(DEPTH_KEY)
        self.features: tuple[str, ...] = tuple(description["features"])
        self.fingerprint: str = description["fingerprint"]
        self._opened = path, device, threads
        self._session = Session(path, content, device, threads)
        self.providers: list[str] = self._session.inner.get_providers()
        given = {output.name for output in self._session.inner.get_outputs()}
        known = OUTPUTS if self.kind == "separation" else ("embeddings", "speech")
        optional = tuple(name for name in known[1:] if name in given)
        self.outputs: tuple[str, ...] = (known[0], *optional, *self.features)
        self.causal: bool = bool(description.get("running_level", description.get("causal")))
        causal = description.get("causal") or {}
        self.stride: int = causal.get("stride", 0)
        self.kernel_size: int = causal.get("kernel_size", 0)
        self.delay_samples = self.kernel_size - self.stride
        parts = [(f"state_{number}", part) for number, part in enumerate(causal.get("state", []))]
        self.state = tuple((name, tuple(part["shape"])) for name, part in parts)
        self._batch_axes: dict[str, int | None] = {name: part["batch_axis"] for name, part in parts}
        self._check_signature()

    def __reduce__(self) -> Any:
        """Sessions cannot go to another process: it opens the file again."""
        return Graph, self._opened

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the outputs that are asked for, by name. The others cost next to nothing beside estimates.

        Args:
            inputs: Inputs by name, float32, the samples (B, T) first, T >= 1.
            outputs: Names of the outputs to return.

        Raises:
            UserError: as `Session.run`, or an output has another shape.
            MemoryError: the graph needs more memory than there is.
        """
        samples = next(iter(inputs.values()))
        values = self._session.run(inputs, outputs, samples.size, self.sample_rate)
        found = dict(zip(outputs, values, strict=True))
        for name, value in found.items():
            if value.shape != (expected := self._shape_of(name, samples.shape, value.shape)):
                raise UserError(f"{self.path}: gives {name} of shape {value.shape}, expected {expected}")
        return found

    def separate(self, mixtures: np.ndarray, outputs: Sequence[str] = ("estimates",)) -> dict[str, np.ndarray]:
        """Return estimates (B, n, T), scores (B, n) and features (B, n) of whole mixtures, those that are asked for.

        Args:
            mixtures: (B, T), T >= 1, in the units of recordings.
            outputs: names of `outputs` or `features`.
        """
        if not self.state:
            return self.run({"mixture": np.ascontiguousarray(mixtures, np.float32)}, outputs)
        batch, num_samples = mixtures.shape
        frames = self.frames_for(num_samples)
        padded = np.full((batch, frames * self.stride), self.signal_mean, np.float32)
        padded[:, :num_samples] = mixtures
        sums = {name: FEATURES[name] for name in outputs if name in FEATURES}
        found = self.run({"mixture": padded} | self.first_state(batch), ["estimates", *sums.values()])
        estimates = found["estimates"][..., self.delay_samples : self.delay_samples + num_samples]
        made = {"estimates": estimates}
        for name, source in sums.items():
            if name == "mask_spread_db":
                energies = np.square(estimates, dtype=np.float64).sum(-1)
                made[name] = ratio_db(found[source], energies).astype(np.float32)
            else:
                made[name] = found[source] / np.float32(frames)
        return {name: made[name] for name in outputs}

    def frames_for(self, num_samples: int) -> int:
        """Return the number of frames in which a causal graph processes a recording; padding at both ends is included.

        Args:
            num_samples: Length of the recording, samples.
        """
        return -(-(num_samples + self.kernel_size) // self.stride) - 1

    def first_state(self, batch: int = 1) -> dict[str, np.ndarray]:
        """Return the initial state of a causal graph, by name: zeros.

        Args:
            batch: Number of recordings.
        """
        state = {}
        for name, shape in self.state:
            axis = self._batch_axes[name]
            size = [batch * length if number == axis else length for number, length in enumerate(shape)]
            state[name] = np.zeros(size, self._state_types[name])
        return state

    def stream(self) -> GraphStream:
        """Return the way of a recording through a causal graph."""
        if not self.state:
            raise UserError(
                f"streaming: {self.path} needs the whole recording before its first output; "
                "export a causal model, such as boxed_8k_causal"
            )
        return GraphStream(self)

    def _shape_of(self, name: str, samples: tuple[int, ...], found: tuple[int, ...]) -> tuple[int, ...]:
        if name in ("speech", "embeddings"):
            return samples[0], found[-1] if name == "speech" else self.embedding_size
        if (part := name.removeprefix("next_")) in self._batch_axes:
            return self.first_state(samples[0])[part].shape
        return (samples[0], self.hypotheses, samples[-1]) if name == "estimates" else (samples[0], self.hypotheses)

    def _check_signature(self) -> None:
        """Raise UserError unless inputs and outputs have the names, ranks and types that the description promises."""
        inputs = {value.name: (value.type, len(value.shape)) for value in self._session.inner.get_inputs()}
        outputs = {value.name: (value.type, len(value.shape)) for value in self._session.inner.get_outputs()}
        name = "mixture" if self.kind == "separation" else "waveforms"
        made = [FEATURES.get(output, output) if self.state else output for output in self.outputs]
        wanted = {output: ("tensor(float)", 3 if output == "estimates" else 2) for output in made}
        # Sums of norms are float64; what is neither is refused below.
        parts = {part: (inputs.get(part, ("", 0))[0], len(shape)) for part, shape in self.state}
        types = {"tensor(float)": np.float32, "tensor(double)": np.float64}
        self._state_types = {part: types.get(found, np.float32) for part, (found, _) in parts.items()}
        parts = {part: (found if found in types else "tensor(float)", rank) for part, (found, rank) in parts.items()}
        wanted |= {f"next_{part}": value for part, value in parts.items()}
        for what, found, right in (
            ("inputs", inputs, {name: ("tensor(float)", 2)} | parts),
            ("outputs", outputs, wanted),
        ):
            if found != right:
                raise UserError(f"{self.path}: its {what} are {shown(found)}, expected {right}; {EXPECTED}")
        sizes = {value.name: value.shape[1] for value in self._session.inner.get_outputs() if len(value.shape) > 1}
        for output, size in (("estimates", self.hypotheses), ("embeddings", self.embedding_size)):
            if isinstance(found := sizes.get(output, size), int) and found != size:
                raise UserError(f"{self.path}: gives {found} {output}, its description states {size}; {EXPECTED}")


class GraphStream:
    """A recording that passes through a causal graph block by block; blocks may be of any size.

    Attributes:
        lookahead_samples: Largest number of samples that must follow one before its estimates are final.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._state = graph.first_state()
        self._waiting = np.zeros(0, np.float32)
        self._taken = self._given = 0
        self._late = graph.delay_samples
        self.lookahead_samples = graph.kernel_size - 1

    def push(self, mixture: np.ndarray) -> np.ndarray:
        """Take the next samples (T,); return the next final estimates (n, T'), float32."""
        self._taken += len(mixture)
        samples = np.concatenate([self._waiting, mixture.astype(np.float32)])
        whole = len(samples) // self._graph.stride * self._graph.stride
        self._waiting = samples[whole:]
        return self._advance(samples[:whole])

    def finish(self) -> np.ndarray:
        """End the recording; return the estimates (n, T') of all samples that still have none."""
        graph = self._graph
        if not self._taken:
            return self._advance(self._waiting)
        missing = graph.frames_for(self._taken) * graph.stride - (self._taken - len(self._waiting))
        rest = np.full(missing, graph.signal_mean, np.float32)
        rest[: len(self._waiting)] = self._waiting
        left = self._taken - self._given
        return self._advance(rest)[:, :left]

    def _advance(self, samples: np.ndarray) -> np.ndarray:
        """Return the estimates (n, T') that whole strides of samples make final."""
        if not len(samples):
            return np.zeros((self._graph.hypotheses, 0), np.float32)
        nexts = {name: f"next_{name}" for name in self._state}
        found = self._graph.run({"mixture": samples[None]} | self._state, ["estimates", *nexts.values()])
        self._state = {name: found[after] for name, after in nexts.items()}
        skipped = min(self._late, len(samples))
        self._late -= skipped
        estimates = found["estimates"][0, :, skipped:]
        self._given += estimates.shape[-1]
        return estimates


def read_graph(path: Path, expected: str) -> tuple[bytes, OnnxContents]:
    """Return the bytes of a graph's file and their parsed content.

    Args:
        expected: Expected kind of file, for errors.

    Raises:
        UserError: no such file, too large, no graph, or tensors in other files.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; {expected}")
    if (size := path.stat().st_size) > limits.GRAPH_BYTES:
        raise UserError(f"{path}: has {size:,} bytes, expected at most {limits.GRAPH_BYTES:,}; {expected}")
    content = path.read_bytes()
    try:
        return content, read_onnx(content)
    except ValueError as error:
        raise UserError(f"{path}: no graph that can be read ({one_line(str(error))[:200]}); {expected}") from error


def digest(content: bytes) -> str:
    """Return a digest of a graph's file."""
    import hashlib

    return hashlib.blake2b(content, digest_size=16).hexdigest()


class Session:
    """ONNX Runtime's session of a graph, which gets the time and memory that `sepkit.limits` gives one.

    Shipped graphs, and graphs on other devices than the CPU, have no bound on their memory.

    Attributes:
        inner: `onnxruntime.InferenceSession`.

    Args:
        path: Path of the file, for errors.
        content: Content of the file.
        device: see `Graph`.
        threads: see `Graph`.

    Raises:
        UserError: ONNX Runtime cannot run it, or it takes more memory to open than it may.
    """

    def __init__(self, path: Path, content: bytes, device: str = "cpu", threads: int | None = None) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise UserError(_MISSING) from error
        options = onnxruntime.SessionOptions()
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        options.intra_op_num_threads = threads or (int(wanted) if wanted.isdecimal() else 0)
        # As `sepkit.cli._threads` says of torch: threads that spin keep a busy machine from those that work.
        spinning = os.environ.get("OMP_WAIT_POLICY", "").upper() == "ACTIVE"
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        # Log only fatal errors: others are raised, and reported in one line.
        options.log_severity_level = 4
        # What follows from constants alone is computed before any check of the graph.
        largest = limits.FOLDED_BYTES + limits.FOLDED_BYTES_PER_BYTE * len(content)
        options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(largest))
        providers = _providers(device, onnxruntime.get_available_providers())
        shipped = path.resolve().is_relative_to(_PACKAGE)
        self.path, self._bounded = path, not shipped and providers == [PROVIDERS["cpu"]]
        self._bound = limits.GRAPH_MEMORY + min(
            limits.GRAPH_MEMORY_PER_BYTE * len(content), limits.MOST_GRAPH_MEMORY_OF_BYTES
        )
        if self._bounded and not HAS_LIMIT:
            bound_arena(options)
        need = limits.GRAPH_MEMORY + limits.OPENED_BYTES_PER_BYTE * len(content) + stacks(options.intra_op_num_threads)
        try:
            with self._bounded_by(need):
                self.inner: Any = onnxruntime.InferenceSession(content, options, providers=providers)
        except Exception as error:  # ONNX Runtime's exceptions have no common base but this.
            if self._bounded and out_of_memory(error):
                raise UserError(_too_large(path, "to open it", need)) from error
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{path}: no graph that ONNX Runtime can run ({reason}); {EXPECTED}") from error

    def run(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], num_samples: int, sample_rate: int
    ) -> list[np.ndarray]:
        """Return the outputs of the graph.

        Args:
            inputs: Inputs by name.
            outputs: names.
            num_samples: Samples of sound that the inputs represent, summed over mixtures.
            sample_rate: Hz, of that sound.

        Raises:
            UserError: ONNX Runtime failed, or the graph takes longer or more memory than it may.
            MemoryError: a graph without a bound needs more memory than there is.
        """
        import onnxruntime

        sound = num_samples / sample_rate
        seconds = limits.ONNX_SECONDS + limits.ONNX_SECONDS_PER_SECOND * sound
        bound = self._bound + limits.GRAPH_MEMORY_PER_SAMPLE * num_samples
        options = onnxruntime.RunOptions()
        timer = threading.Timer(seconds, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            with self._bounded_by(bound):
                return self.inner.run(list(outputs), dict(inputs), options)
        except Exception as error:  # ONNX Runtime's exceptions have no common base but this.
            if out_of_memory(error) and self._bounded:
                raise UserError(_too_large(self.path, f"for {sound:.1f} s of sound", bound)) from error
            if out_of_memory(error):
                raise MemoryError(f"{self.path}: {one_line(str(error))[:200]}") from error
            reason = f"stopped after {seconds:.0f} s" if options.terminate else one_line(str(error))[:200]
            raise UserError(f"{self.path}: ONNX Runtime failed on {num_samples} samples ({reason})") from error
        finally:
            timer.cancel()

    def _bounded_by(self, num_bytes: int) -> AbstractContextManager[None]:
        return bounded_memory(num_bytes) if self._bounded else nullcontext()


def _too_large(path: Path, what: str, bound: int) -> str:
    return (
        f"{path}: takes more memory {what} than there is, or than the {bound / 1e9:.1f} GB that a graph may take; use "
        "another model, or separate less at once (--whole-seconds, --chunk-seconds)"
    )


def _providers(device: str, available: Sequence[str]) -> list[Any]:
    """Return ONNX Runtime's providers for a device, the best first; the CPU runs what another one lacks."""
    name, _, number = device.partition(":")
    if device == "auto":
        name = "cuda" if PROVIDERS["cuda"] in available else "cpu"
    if PROVIDERS.get(name) not in available or (number and not (name == "cuda" and number.isdecimal())):
        there = ", ".join(name for name, provider in PROVIDERS.items() if provider in available)
        raise UserError(f"device: found {device!r}, which ONNX Runtime does not have here; use {there} or auto")
    if name == "cpu":
        return [PROVIDERS["cpu"]]
    return [(PROVIDERS[name], {"device_id": number} if number else {}), PROVIDERS["cpu"]]


def has_accelerator() -> bool:
    """Whether ONNX Runtime has a provider for an accelerator that "auto" takes: CoreML has to be named."""
    try:
        import onnxruntime
    except ImportError:
        return False
    return PROVIDERS["cuda"] in onnxruntime.get_available_providers()
