"""Export of models to ONNX. Nothing is written unless the graph gives the same estimates as torch."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.errors import UserError
from sepkit.files import atomic_output
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.export.graph import GraphModel, PlainOperations
from sepkit.models.export.onnx_model import FORMAT, METADATA, OnnxModel
from sepkit.models.storage.folders import SUFFIX
from sepkit.version import __version__

TOLERANCE = 1e-4
"""Largest difference from torch, relative to the largest sample of torch's estimates, that an export may have."""

BATCHES = (1, 2, 3)
"""Batch sizes at which an export is compared; the graph is traced at 2, so that 1 and 3 show what tracing has fixed."""

OPSET = 18
_MISSING = "exporting needs onnx and onnxruntime: pip install 'sepkit[export]'"


@dataclass
class ExportReport:
    """What an export came to.

    Args:
        differences: samples in a mixture -> largest difference from torch's estimates, relative to their largest, at
            any of `BATCHES`.
    """

    path: Path
    differences: dict[int, float]
    num_bytes: int


def export_onnx(
    model: EncoderMaskerDecoder, path: str | os.PathLike[str], lengths: Sequence[int] | None = None
) -> ExportReport:
    """Write the graph of a model if its estimates equal torch's within `TOLERANCE`; return how far they differ.

    The graph takes `mixture` (B, T) of any B and T at the model's rate, in the units of recordings. It gives
    `estimates` (B, n, T), and `scores` (B, n) if the model has a scoring head.

    Args:
        model: latents take their values at test (mean or median).
        path: a file that ends in .onnx; an older one is replaced.
        lengths: samples in the noises on which torch and ONNX Runtime are compared, at each of `BATCHES`; None: six
            lengths from one sample to a few seconds, only one of them a multiple of a stride.
    """
    path = Path(path)
    _require_onnx(path)
    with tempfile.TemporaryDirectory() as temporary:
        draft = Path(temporary) / f"model{SUFFIX}"
        _trace(model, draft)
        _describe(draft, _description(model))
        exported = OnnxModel(draft)
        differences = {
            length: max(difference(model, exported, length, batch) for batch in BATCHES)
            for length in lengths or _lengths(model)
        }
        worst = max(differences, key=lambda length: differences[length])
        if not differences[worst] <= TOLERANCE:
            raise UserError(
                f"{path}: not written: ONNX Runtime differs from torch by {differences[worst]:.1e} of the largest "
                f"sample in a mixture of {worst} samples, expected at most {TOLERANCE:.0e}"
            )
        _keep(draft, path)
    return ExportReport(path, differences, path.stat().st_size)


def difference(model: EncoderMaskerDecoder, exported: OnnxModel, num_samples: int, batch: int = 1) -> float:
    """Return the largest difference between two models' estimates of noise, relative to the first's largest sample.

    Args:
        model: put into evaluation mode.
    """
    noise = torch.randn(batch, num_samples, generator=torch.Generator().manual_seed(num_samples))
    mixture = model.signal_mean.cpu() + model.signal_std.cpu() * noise
    with torch.inference_mode():
        expected = model.eval()(mixture.to(model.signal_mean.device)).estimates.cpu()
    found = exported(mixture).estimates
    largest = float(expected.abs().max())
    return float((found - expected).abs().max()) / (largest or 1.0)


def _lengths(model: EncoderMaskerDecoder) -> list[int]:
    rate, kernel_size = model.sample_rate, model.filterbank.kernel_size
    return [1, kernel_size + 1, rate // 9 + 5, 4 * kernel_size, rate + 31, 5 * rate // 2 + 17]


def _require_onnx(path: Path) -> None:
    if path.suffix.lower() != SUFFIX:
        raise UserError(f"--out {path}: expected a file that ends in {SUFFIX}")
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UserError(_MISSING) from error


def _trace(model: EncoderMaskerDecoder, path: Path) -> None:
    names = ["estimates"] if model.scoring_head is None else ["estimates", "scores"]
    axes = {"mixture": {0: "batch", 1: "samples"}, "estimates": {0: "batch", 2: "samples"}, "scores": {0: "batch"}}
    example = torch.randn(2, model.sample_rate, generator=torch.Generator().manual_seed(0))
    try:
        trace(GraphModel(model), example, path, ["mixture"], names, {name: axes[name] for name in ("mixture", *names)})
    except Exception as error:  # anything that an operation without a counterpart in ONNX may raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"this model has no ONNX graph ({type(error).__name__}: {reason}); use it as it is") from error


def trace(
    module: nn.Module, example: Tensor, path: Path, inputs: list[str], outputs: list[str], axes: dict[str, Any]
) -> None:
    """Write the graph of a module of one input.

    Args:
        module: put into evaluation mode.
        example: its input; a batch of 2, so that no size of 1 is taken for a constant.
        axes: of each of them, the names of the axes whose lengths may change.

    Raises:
        Exception: whatever torch raises for an operation without a counterpart in ONNX.
    """
    with torch.no_grad(), _quietly(), _without_fused_attention(), PlainOperations():
        torch.onnx.export(
            module.eval(),
            (example,),
            str(path),
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=OPSET,
            # torch's other exporter needs a package more, and fixes lengths that networks over time depend on.
            dynamo=False,
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence warnings about shapes taken as constants. The comparison with torch finds those that must not be."""
    import logging

    logger = logging.getLogger()
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    # The fused operation that torch takes for attention in evaluation has no counterpart in ONNX.
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _description(model: EncoderMaskerDecoder) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "sepkit": __version__,
        "sample_rate": model.sample_rate,
        "hypotheses": model.hypotheses,
        "signal_mean": float(model.signal_mean),
        "signal_std": float(model.signal_std),
        "info": model.info,
        "variational": model.variational,
    }


def _describe(path: Path, description: dict[str, Any]) -> None:
    """Write the description into the graph's metadata."""
    import onnx

    graph = onnx.load(str(path))
    del graph.metadata_props[:]
    onnx.helper.set_model_props(graph, {METADATA: json.dumps(description)})
    onnx.save(graph, str(path))


def _keep(draft: Path, path: Path) -> None:
    with atomic_output(path) as temporary:
        temporary.write_bytes(draft.read_bytes())
