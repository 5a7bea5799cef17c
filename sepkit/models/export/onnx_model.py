"""Exported models: an ONNX graph, run by ONNX Runtime, that stands in for an `EncoderMaskerDecoder`."""

from __future__ import annotations

import os
from collections.abc import Set
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.errors import UserError
from sepkit.models.export.graph_file import Graph
from sepkit.models.latents import Deterministic, Point
from sepkit.models.storage.folders import is_onnx  # noqa: F401
from sepkit.types import Separation


class OnnxModel(nn.Module):
    """A separator whose forward pass is a graph run by ONNX Runtime on the CPU.

    It has the attributes that `sepkit.inference.Separator` and `sepkit.evaluation` read from a model. A graph does not
    output latents: the posteriors of a `Separation` are points without values, and nothing can be sampled.

    Attributes:
        description: plain data of the file: sample_rate, hypotheses, signal_mean, signal_std, info ...
        info: what was saved beside the weights.
        scoring_head: not None where the graph has scores.
        variational: False, for nothing can be sampled.

    Args:
        path: what `sepkit export` wrote.
    """

    signal_mean: Tensor
    signal_std: Tensor

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.graph = Graph(path, threads=torch.get_num_threads())
        self.path = self.graph.path
        self.description = self.graph.description
        self.sample_rate: int = self.graph.sample_rate
        self.hypotheses: int = self.graph.hypotheses
        self.info: dict[str, Any] = self.graph.info
        self.config = self.encoding_prior = self.mask_prior = None
        self.variational = False
        self.masker = ExportedGraph()
        self.scoring_head = nn.Identity() if "scores" in self.graph.outputs else None
        self.encoding_family = self.mask_family = Deterministic("linear")
        self.register_buffer("signal_mean", torch.tensor(self.graph.signal_mean))
        self.register_buffer("signal_std", torch.tensor(self.graph.signal_std))
        # The state dict holds no weights; the digest distinguishes models.
        self.register_buffer("digest", torch.tensor(list(bytes.fromhex(self.graph.fingerprint)), dtype=torch.uint8))

    def forward(
        self,
        mixture: Tensor,
        generator: torch.Generator | None = None,
        sources: Tensor | None = None,
        active: Tensor | None = None,
        wants: Set[str] = frozenset(),
        sample: bool | None = None,
    ) -> Separation:
        """The separation of a batch of mixtures (B, T), on their device; T >= 1.

        Args:
            generator: not used, because nothing is sampled.
            sources, active: must be None.
            wants: must be empty.
            sample: must not be True if the model was variational.

        Raises:
            ValueError: sources or reconstructions, which the graph does not have.
        """
        if sources is not None or wants:
            raise ValueError("an exported model has no encodings to decode, neither of the mixture nor of sources")
        if sample and self.description["variational"]:
            raise UserError(f"{self.path}: an exported model has no latents to sample; use the model it was made of")
        wanted = ["estimates"] if self.scoring_head is None else ["estimates", "scores"]
        values = self.graph.separate(mixture.detach().cpu().numpy(), wanted)
        outputs = {name: torch.from_numpy(value).to(mixture.device) for name, value in values.items()}
        nothing = Point(mixture.new_zeros(len(mixture), 0, 0))
        return Separation(outputs["estimates"], encoding=nothing, masks=nothing, scores=outputs.get("scores"))


class ExportedGraph(nn.Module):
    """Stands in for the masker, which nobody can reach inside the graph."""
