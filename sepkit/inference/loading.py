"""A saved model as a separator, with its prediction of SI-SDR."""

import os
import platform
import sys
from ctypes.util import find_library
from dataclasses import replace
from pathlib import Path
from typing import Any

from sepkit.errors import UserError
from sepkit.extras import is_installed, missing
from sepkit.inference.options import SeparatorOptions
from sepkit.inference.quality.predictor import QUALITY, read_quality
from sepkit.inference.runners.base import Runner
from sepkit.inference.separator import Separator
from sepkit.models.export.graph_file import Graph, has_accelerator
from sepkit.models.published.names import model_folder
from sepkit.models.published.shipped import DEFAULT_MODEL
from sepkit.models.storage.folders import GRAPH, is_onnx

# Of NVIDIA's and AMD's drivers for Linux, and of Windows' for Linux inside it.
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def load_model(
    model: str | os.PathLike[str] | None = None,
    device: Any = "auto",
    options: SeparatorOptions | None = None,
    *,
    predict: bool = True,
    **changed: Any,
) -> Separator:
    """Return a separator for a saved model, with its predictor of SI-SDR if `sepkit calibrate` has fitted one.

    Args:
        model: Folder or file that `sepkit train` wrote (EXP, EXP/model), file that `sepkit export` wrote, or any MODEL
            of `sepkit.models.load_pretrained`; None: the default model of the package.
        device: Device of torch (cpu, cuda:0), or "auto": an accelerator if there is one.
        options: Options of the separator; None: the defaults.
        predict: Whether to predict SI-SDR. False saves time; speakers are still counted, unless the predictor's file is
            damaged or belongs to another model.
        **changed: Fields of `SeparatorOptions` that differ from `options` (levels="model").

    Raises:
        UserError: no such model or device, an option out of range, or a predictor that is damaged or belongs to another
            model.
    """
    options = replace(options or SeparatorOptions(), **changed)
    model = DEFAULT_MODEL if model is None else model
    # A predictor needs a folder, which another toolkit's checkpoint does not have.
    folder = model_folder(model)
    graph = Path(model) if is_onnx(model) else None if folder is None else folder / GRAPH
    there = graph is not None and (folder is None or graph.is_file())
    runner: Runner
    if there and graph is not None and _runs_as_graph(options, device, alone=folder is None):
        from sepkit.inference.runners.graph_runner import GraphRunner

        runner = GraphRunner(Graph(graph, str(device)))
    else:
        model = model if folder is None else folder
        if options.runner == "graph":
            raise UserError(f"--runner graph: {model} has no graph; make one: sepkit export {model} --out FILE.onnx")
        if not is_installed("torch"):
            raise UserError(missing("torch", f"{model} has no graph and"))
        from sepkit.inference.runners.torch_runner import TorchRunner
        from sepkit.models import load_pretrained

        runner = TorchRunner(load_pretrained(model), device, options.precision)
    quality = None
    if folder is not None and (folder / QUALITY).is_file():
        try:
            quality = read_quality(folder, runner.fingerprint(), runner.hypotheses)
        except UserError:
            if predict:
                raise
    separator = Separator(runner, options=options, quality=quality)
    if not predict:
        separator.quality = None
    return separator


def _runs_as_graph(options: SeparatorOptions, device: Any, alone: bool) -> bool:
    """Whether a graph runs a model; `alone`: there is nothing but the graph."""
    needs = options.torch_only
    if needs and (alone or options.runner == "graph"):
        raise UserError(f"{needs[0]}: a graph has one precision and depth; use the model it was made of, with torch")
    if options.runner != "auto":
        return options.runner == "graph"
    return alone or not (needs or (is_installed("torch") and _on_accelerator(str(device)) and not has_accelerator()))


def _on_accelerator(device: str) -> bool:
    """Whether a device is an accelerator, or auto where there may be one; avoids the slow import of torch."""
    if device != "auto":
        return device != "cpu"
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    if sys.platform == "win32":
        return find_library("nvcuda") is not None
    return any(os.path.exists(driver) for driver in _DRIVERS)
