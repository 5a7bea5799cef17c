"""Numbers for comparing models: cost, latency and scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepkit.errors import UserError
from sepkit.models.export.graph_file import Graph
from sepkit.models.published.card import card_scores
from sepkit.models.storage.folders import GRAPH, read_description

if TYPE_CHECKING:
    import torch

    from sepkit.models.emd import EncoderMaskerDecoder


@dataclass(frozen=True)
class ModelFacts:
    """Numbers of a model.

    Args:
        latency_ms: Lag of a causal model's estimate behind its input, ms; None for a model that needs the whole
            recording.
        giga_multiply_adds_per_second: 1e9 per second of audio; operations on single samples and Fourier
            transforms are not counted. None: it takes torch to count them.
        scores: test set -> SI-SDRi in dB, as its card has them.
    """

    sample_rate: int
    estimates: int
    latency_ms: float | None
    parameters: int
    giga_multiply_adds_per_second: float | None
    scores: dict[str, float]


def model_facts(model: EncoderMaskerDecoder, folder: Path | None = None) -> ModelFacts:
    """Return the numbers of a model.

    Args:
        model: Model in evaluation mode, on the CPU.
        folder: may hold its card, README.md; None: there are no scores.
    """
    import torch

    rate, seconds = model.sample_rate, 4
    waveform = torch.randn(1, seconds * rate, generator=torch.Generator().manual_seed(0))
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Where a module is given a parameter, torch's counter would ask for its gradient.
    model.requires_grad_(False)
    with torch.inference_mode():
        operations = multiply_adds(lambda: model(waveform))
    for parameter in wanted:
        parameter.requires_grad_(True)
    return ModelFacts(
        sample_rate=rate,
        estimates=model.hypotheses,
        latency_ms=_latency_ms(model),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        giga_multiply_adds_per_second=operations / seconds / 1e9,
        scores={} if folder is None else card_scores(folder),
    )


def graph_facts(folder: Path) -> ModelFacts:
    """Return the numbers of a model whose folder holds a graph, without torch."""
    description, graph = read_description(folder), Graph(folder / GRAPH)
    return ModelFacts(
        sample_rate=graph.sample_rate,
        estimates=graph.hypotheses,
        latency_ms=1000 * (graph.kernel_size - 1) / graph.sample_rate if graph.state else None,
        parameters=description["parameters"],
        giga_multiply_adds_per_second=None,
        scores=card_scores(folder),
    )


def _latency_ms(model: EncoderMaskerDecoder) -> float | None:
    from sepkit.models.streaming import ModelStream

    try:
        return 1000 * ModelStream(model).lookahead_samples / model.sample_rate
    except UserError:
        return None


def multiply_adds(function: Callable[[], Any]) -> int:
    """Return the multiply-adds of convolutions, matrix products, attention and LSTMs in a call."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    # torch's counter does not cover these on CPUs; other recurrent layers appear as matrix products.
    more = {
        torch.ops.aten.mkldnn_rnn_layer: _lstm_operations,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_operations,
    }
    with FlopCounterMode(display=False, custom_mapping=more) as counter:
        function()
    return counter.get_total_flops() // 2


def _attention_operations(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    from torch.utils.flop_counter import sdpa_flop_count

    return sdpa_flop_count(query, key, value)


def _lstm_operations(
    input_shape: torch.Size, input_weights: torch.Size, hidden_weights: torch.Size, *_: Any, **__: Any
) -> int:
    """Count those of one layer in one direction, which torch passes to oneDNN as a whole. Input (T, B, features)."""
    frames, batch = input_shape[:2]
    return 2 * frames * batch * (input_weights[0] * input_weights[1] + hidden_weights[0] * hidden_weights[1])
