"""Models run as graphs by ONNX Runtime: what ships, and what a small install has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from sepkit.errors import UserError
from sepkit.inference.runners.base import ModelOutput, check_finite
from sepkit.inference.runners.level import BlockRunner, ModelLevel
from sepkit.models.export.graph_file import PROVIDERS, Graph

FIXED_DEPTH = "--depth-steps: a graph has one precision and depth; use the model it was made of, with torch"


class GraphRunner:
    """A graph; see `Runner`. That of a variational model also outputs rates, and the variance of masks.

    Args:
        graph: Graph of a separation model.

    Raises:
        UserError: a graph of another kind.
    """

    kind: Literal["graph", "torch"] = "graph"
    model = None
    views, small_steps = 1, False
    trained_steps: int | None = None

    def __init__(self, graph: Graph) -> None:
        if graph.kind != "separation":
            raise UserError(f"{graph.path}: found a graph of kind {graph.kind}, expected a model that separates")
        self.graph = graph
        self.device = next((name for name, of in PROVIDERS.items() if of in graph.providers), "cpu")
        self.sample_rate, self.hypotheses = graph.sample_rate, graph.hypotheses
        self.info: Mapping[str, Any] = graph.info
        self.signal_std = graph.signal_std
        self.level = ModelLevel(graph.sample_rate, graph.signal_std, graph.causal)
        self.scored, self.score_loss = "scores" in graph.outputs, graph.score_loss
        self.counts_speakers = graph.counts_speakers
        self.variational, self.has_rates = graph.variational, any("_rate_" in name for name in graph.features)
        self.depth = graph.steps

    def run(
        self, mixtures: np.ndarray, features: bool = False, rates: bool = False, evidence: bool = False
    ) -> ModelOutput:
        """Return the output for mixtures (B, T); a graph has no bound on the evidence."""
        wanted = [name for name in self.graph.features if features or (rates and "_rate_" in name)]
        names = ["estimates", *(["scores"] if self.scored else []), *wanted]
        standardized, factors = self.level.standardize(mixtures)
        found = self.graph.separate(standardized, names)
        estimates = (factors[:, None] * found["estimates"]).astype(np.float32)
        check_finite(estimates)
        told = {name: found[name].astype(np.float64) for name in wanted}
        return ModelOutput(estimates, found.get("scores"), told if features else {}, _rates(told, rates))

    def with_speakers(self, n: int) -> GraphRunner:
        """Return the same runner, unless the graph counts speakers.

        Args:
            n: Number of speakers.

        Raises:
            UserError: the graph counts speakers by itself.
        """
        if not self.counts_speakers:
            return self
        raise UserError(f"speakers: found {n}, but this graph counts, and cannot be told; use the model it was made of")

    def with_depth(self, n: int) -> GraphRunner:
        """Return the same runner if the graph has this depth.

        Args:
            n: Number of steps.

        Raises:
            UserError: the graph has another depth.
        """
        if n == self.depth:
            return self
        raise UserError(FIXED_DEPTH)

    def stream(self) -> BlockRunner:
        """Return a recording's way through a causal graph, which takes and returns its state."""
        return self.level.blocks(self.graph.stream())

    def batch_size(self, seconds: float) -> int:
        """Return 1: what a graph gains from several at once, it gains from several threads."""
        return 1

    def fingerprint(self) -> str:
        """Return the digest of the weights of the model that it was made of."""
        return self.graph.fingerprint


def _rates(features: dict[str, np.ndarray], wanted: bool) -> dict[str, float] | None:
    """Return the rates of latents, means over the batch; those of masks are of all estimates together."""
    rates = {name: values for name, values in features.items() if "_rate_" in name}
    if not wanted or not rates:
        return None
    of_masks = {name: values.sum(1) if name.startswith("mask_") else values[:, 0] for name, values in rates.items()}
    return {name: float(values.mean()) for name, values in of_masks.items()}
