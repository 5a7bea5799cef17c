"""Speaker encoders map segments of speech to embeddings that are similar for the same speaker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError, shown
from sepkit.files import parse_json
from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.spectra import FRONTEND_RATE, FRONTENDS
from sepkit.inference.options import SpeakerFeatures
from sepkit.limits import SAMPLE_RATES
from sepkit.models.export.graph_description import METADATA
from sepkit.models.export.graph_file import Graph, Session, digest, read_graph
from sepkit.models.published.shipped import encoder_folder
from sepkit.models.storage.folders import GRAPH, find_checkpoint

COHORT = "cohort.npy"
"""File beside an encoder's graph: embeddings of other speakers, (C, D)."""

# Names in the metadata that sherpa-onnx's exporters write.
_FBANK_FRAMEWORKS = ("wespeaker", "3d-speaker")

if TYPE_CHECKING:
    from sepkit.models.speaker_encoder import SpeakerEncoder


# Section of what is saved beside weights -> what it may state, and between which numbers: the threshold of enrolled
# speakers, and the fields of `sepkit.inference.diarization.counting.CountingRule`.
_STATED = {
    "enrollment": (("threshold",), -1, 1),
    "counting": (("turn_distances", "distance", "length", "overlap"), 0, 10),
}


def numbers_in(info: Mapping[str, Any], section: str, source: str | Path = "the speaker encoder") -> dict[str, float]:
    """Return the numbers that an encoder states for a use of it, those it does not state left out.

    Args:
        info: Data saved beside the weights.
        section: enrollment or counting.
        source: File of the encoder.

    Raises:
        UserError: something else is there.
    """
    found, (names, lowest, highest) = info.get(section, {}), _STATED[section]
    if not isinstance(found, dict) or not all(
        name in names and type(value) in (int, float) and lowest <= value <= highest for name, value in found.items()
    ):
        raise UserError(
            f"{source}: {section}: found {shown(found)}, expected numbers among {', '.join(names)}, "
            f"from {lowest} to {highest}; export the encoder again with other values"
        )
    return found


class Encoder(Protocol):
    """A speaker encoder.

    Attributes:
        sample_rate: Hz, of the waveforms.
        embedding_size: D.
        has_vad: whether it has `speech`.
        info: Data saved beside the weights, see `numbers_in`.
        cohort: Speakers that others are compared with, (C, D) unit vectors, see `clustering.likeness`; None: none.
    """

    sample_rate: int
    embedding_size: int
    has_vad: bool
    info: Mapping[str, Any]
    cohort: np.ndarray | None

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        """Return unit vectors (B, D) float32 of waveforms (B, T) float32."""
        ...

    def speech(self, waveforms: np.ndarray) -> np.ndarray:
        """Return speech probabilities of waveforms (B, T) float32 for each 20 ms, (B, F)."""
        ...

    def embed_and_detect(self, waveforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `embed`, and `speech` or ones without a detector, of waveforms (B, T) float32."""
        embeddings = self.embed(waveforms)
        return embeddings, self.speech(waveforms) if self.has_vad else np.ones((len(waveforms), 1), np.float32)

    def fingerprint(self) -> str:
        """Return a digest of the weights."""
        ...


def _cohort_beside(graph: Path, size: int) -> np.ndarray | None:
    path = graph.with_name(COHORT)
    if not path.is_file():
        return None
    try:
        voices = np.lib.format.open_memmap(path, mode="r").astype(np.float64, casting="same_kind")
    except (OSError, OverflowError, TypeError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); copy it again") from error
    if voices.ndim != 2 or voices.shape[1] != size or not len(voices) or not np.isfinite(voices).all():
        raise UserError(
            f"{path}: found an array {voices.shape}, expected finite numbers (voices, {size}); copy it again"
        )
    return unit_rows(voices)


class GraphEncoder(Encoder):
    """An encoder as a graph.

    Raises:
        UserError: a graph of another kind.
    """

    def __init__(self, graph: Graph) -> None:
        if graph.kind != "speaker_encoder":
            raise UserError(f"{graph.path}: found a graph of kind {graph.kind}, expected a speaker encoder")
        self.graph = graph
        self.sample_rate, self.embedding_size = graph.sample_rate, graph.embedding_size
        self.has_vad = "speech" in graph.outputs
        self.info: Mapping[str, Any] = graph.info
        self.cohort = _cohort_beside(graph.path, graph.embedding_size)

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        """Return unit vectors (B, D) of waveforms (B, T)."""
        return self._outputs(waveforms, "embeddings")[0]

    def speech(self, waveforms: np.ndarray) -> np.ndarray:
        """Return probabilities of speech (B, F) of waveforms (B, T)."""
        return self._outputs(waveforms, "speech")[0]

    def embed_and_detect(self, waveforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return unit vectors (B, D), and probabilities of speech (B, F) or ones, of waveforms (B, T), by one run."""
        if not self.has_vad:
            return super().embed_and_detect(waveforms)
        embeddings, speech = self._outputs(waveforms, "embeddings", "speech")
        return embeddings, speech

    def _outputs(self, waveforms: np.ndarray, *names: str) -> list[np.ndarray]:
        found = self.graph.run({"waveforms": np.ascontiguousarray(waveforms, np.float32)}, list(names))
        return [found[name] for name in names]

    def fingerprint(self) -> str:
        """Return the digest of the weights of the encoder that the graph was made of."""
        return self.graph.fingerprint


class TorchEncoder(Encoder):
    """An encoder in torch, such as `sepkit train --config speaker_encoder` writes.

    Args:
        model: Model in evaluation mode.
    """

    cohort: np.ndarray | None = None

    def __init__(self, model: SpeakerEncoder) -> None:
        self.model = model
        self.sample_rate, self.embedding_size = model.sample_rate, model.embedding_size
        self.has_vad = model.speech is not None
        self.info: Mapping[str, Any] = model.info

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        """Return unit vectors (B, D) of waveforms (B, T)."""
        return self._given(self.model, waveforms)

    def speech(self, waveforms: np.ndarray) -> np.ndarray:
        """Return probabilities of speech (B, F) of waveforms (B, T)."""
        return self._given(self.model.speech_of, waveforms)

    @staticmethod
    def _given(function: Callable[[Any], Any], waveforms: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            return function(torch.from_numpy(np.ascontiguousarray(waveforms, np.float32))).numpy()

    def fingerprint(self) -> str:
        """Return a digest of the weights."""
        from sepkit.models.saved import weights_fingerprint

        return weights_fingerprint(self.model)


class OtherEncoder(Encoder):
    """An encoder of another toolkit as a graph: spectra (B, F, bands) or samples (B, T) to embeddings (B, D).

    The shipped encoder detects speech. The graph's metadata may state `counting` and `enrollment` as JSON,
    see `numbers_in`.

    Args:
        path: FILE.onnx with one input and one output that is a matrix.
        features: Input of the graph; None: fbank, if its metadata name the framework wespeaker or 3d-speaker.

    Raises:
        UserError: no such graph, a graph whose input is not stated, or metadata that are no such numbers.
    """

    has_vad = True
    cohort: np.ndarray | None = None

    def __init__(self, path: Path, features: SpeakerFeatures | None = None) -> None:
        expected = "expected a speaker encoder with one input, spectra or samples, and embeddings (B, D) as its output"
        content, contents = read_graph(path, expected)
        if other := sorted(name for name in contents.operators if "::" in name):
            raise UserError(f"{path}: contains the operator {shown(other[0])}, which is none of ONNX's own; {expected}")
        if features is None and contents.metadata.get("framework") in _FBANK_FRAMEWORKS:
            features = "fbank"
        if features is None:
            raise UserError(
                f"{path}: its metadata do not state its input features; give --speaker-features: fbank (WeSpeaker, "
                "3D-Speaker), mel (Resemblyzer) or waveform"
            )
        self.path, self.features, self._fingerprint = path, features, f"{digest(content)}-{features}"
        self._session = Session(path, content)
        inputs, outputs = self._session.inner.get_inputs(), self._session.inner.get_outputs()
        matrices = [value for value in outputs if len(value.shape) == 2]
        if len(inputs) != 1 or len(matrices) != 1 or inputs[0].type != "tensor(float)":
            found = [f"{value.name} {value.shape}" for value in (*inputs, *outputs)]
            raise UserError(f"{path}: found {shown(found)}; {expected}")
        wanted: list[int] = [FRONTENDS[features][0]] if features in FRONTENDS else []
        shape = inputs[0].shape
        if len(shape) != 2 + len(wanted) or (wanted and isinstance(shape[2], int) and shape[2] != wanted[0]):
            sizes = f"(B, F, {wanted[0]})" if wanted else "(B, T)"
            raise UserError(f"{path}: its input is {shown(shape)}, expected {sizes} for --speaker-features {features}")
        self._input, self._output = inputs[0].name, matrices[0].name
        self.sample_rate = FRONTEND_RATE
        rate = contents.metadata.get("sample_rate", str(FRONTEND_RATE))
        if features == "waveform" and rate.isdecimal() and SAMPLE_RATES[0] <= int(rate) <= SAMPLE_RATES[1]:
            self.sample_rate = int(rate)
        elif rate != str(FRONTEND_RATE):
            raise UserError(f"{path}: sample_rate in its metadata is {shown(rate)}, expected {FRONTEND_RATE}")
        try:
            self.info: Mapping[str, Any] = {
                key: parse_json(value) for key, value in contents.metadata.items() if key in _STATED
            }
        except ValueError as error:
            raise UserError(
                f"{path}: {' or '.join(_STATED)} in its metadata is no JSON ({error}); export it again"
            ) from error
        self._detector = load_encoder()
        self.embedding_size = self.embed(np.zeros((1, self.sample_rate), np.float32)).shape[1]

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        """Return unit vectors (B, D) of waveforms (B, T)."""
        values = np.asarray(waveforms, np.float32)
        if self.features in FRONTENDS:
            values = np.stack([FRONTENDS[self.features][1](waveform) for waveform in values])
        (found,) = self._session.run({self._input: values}, [self._output], waveforms.size, self.sample_rate)
        return unit_rows(np.asarray(found, np.float32))

    def speech(self, waveforms: np.ndarray) -> np.ndarray:
        """Return probabilities of speech (B, F) of waveforms (B, T), those of the encoder that ships."""
        return self._detector.speech(audio.resample(waveforms, self.sample_rate, self._detector.sample_rate))

    def fingerprint(self) -> str:
        """Return a digest of the file and its input."""
        return self._fingerprint

    def __reduce__(self) -> Any:
        """Sessions cannot go to another process: it opens the file again."""
        return OtherEncoder, (self.path, self.features)


def load_encoder(model: str | Path | None = None, features: SpeakerFeatures | None = None) -> Encoder:
    """Return a speaker encoder.

    Args:
        model: the name of one that ships, a folder that `sepkit train` wrote, or FILE.onnx of any toolkit; None: the
            default one.
        features: Input of a graph of another toolkit; None: as its metadata say.

    Raises:
        UserError: no encoder, one that states what it cannot mean, or features for one of sepkit's own.
    """
    encoder: Encoder
    other = False
    if model is not None and Path(model).suffix.lower() == ".onnx":
        graph = path = Path(model)
        other = METADATA not in read_graph(path, "expected a speaker encoder")[1].metadata
    else:
        path = encoder_folder(model)
        graph = (path if (path / GRAPH).is_file() else find_checkpoint(path)) / GRAPH
    if features is not None and not other:
        raise UserError(f"--speaker-features: {path} is an encoder of sepkit's, which takes samples; leave it out")
    if other:
        encoder = OtherEncoder(path, features)
    elif graph.is_file():
        encoder = GraphEncoder(Graph(graph))
    else:
        from sepkit.models import load_checkpoint
        from sepkit.models.speaker_encoder import SpeakerEncoder

        encoder = TorchEncoder(load_checkpoint(path, of=SpeakerEncoder))
    for section in _STATED:
        numbers_in(encoder.info, section, path)  # A mistake in it is reported before an hour is separated.
    return encoder
