"""Speaker encoders: what turns segments of speech into vectors that are alike if the speaker is the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sepkit.errors import UserError
from sepkit.models.export.graph_file import Graph
from sepkit.models.published.shipped import encoder_folder
from sepkit.models.storage.folders import GRAPH

if TYPE_CHECKING:
    from sepkit.models.speaker_encoder import SpeakerEncoder


class Encoder(Protocol):
    """A speaker encoder.

    Attributes:
        sample_rate: Hz, of the waveforms.
        embedding_size: D.
        info: what was saved beside the weights; `counting` has its thresholds.
    """

    sample_rate: int
    embedding_size: int
    info: Mapping[str, Any]

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        """Return unit vectors (B, D) float32 of waveforms (B, T) float32."""
        ...

    def fingerprint(self) -> str:
        """Return a digest of the weights."""
        ...


class GraphEncoder:
    """An encoder as a graph.

    Raises:
        UserError: a graph of another kind.
    """

    def __init__(self, graph: Graph) -> None:
        if graph.kind != "speaker_encoder":
            raise UserError(f"{graph.path}: found a graph of kind {graph.kind}, expected a speaker encoder")
        self.graph = graph
        self.sample_rate, self.embedding_size = graph.sample_rate, graph.embedding_size
        self.info: Mapping[str, Any] = graph.info

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        """Return unit vectors (B, D) of waveforms (B, T)."""
        return self.graph.run({"waveforms": np.ascontiguousarray(waveforms, np.float32)}, ["embeddings"])["embeddings"]

    def fingerprint(self) -> str:
        """Return the digest of the weights of the encoder that the graph was made of."""
        return self.graph.fingerprint


class TorchEncoder:
    """An encoder in torch, such as `sepkit train --config speaker_encoder` writes.

    Args:
        model: in evaluation mode.
    """

    def __init__(self, model: SpeakerEncoder) -> None:
        self.model = model
        self.sample_rate, self.embedding_size = model.sample_rate, model.embedding_size
        self.info: Mapping[str, Any] = model.info

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        """Return unit vectors (B, D) of waveforms (B, T)."""
        import torch

        with torch.inference_mode():
            return self.model(torch.from_numpy(np.ascontiguousarray(waveforms, np.float32))).numpy()

    def fingerprint(self) -> str:
        """Return a digest of the weights."""
        from sepkit.models.storage.fingerprint import weights_fingerprint

        return weights_fingerprint(self.model)


def load_encoder(model: str | Path | None = None) -> Encoder:
    """Return a speaker encoder.

    Args:
        model: the name of one that ships, or a folder that `sepkit train` wrote; None: the default one.
    """
    folder = encoder_folder(model)
    if (folder / GRAPH).is_file():
        return GraphEncoder(Graph(folder / GRAPH))
    from sepkit.models import load_checkpoint
    from sepkit.models.speaker_encoder import SpeakerEncoder

    return TorchEncoder(load_checkpoint(folder, of=SpeakerEncoder))
