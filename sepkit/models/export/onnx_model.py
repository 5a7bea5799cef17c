"""Exported models: an ONNX graph, run by ONNX Runtime, that stands in for an `EncoderMaskerDecoder`."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sepkit.errors import UserError, one_line, shown
from sepkit.files import parse_json
from sepkit.limits import ONNX_SECONDS, ONNX_SECONDS_PER_SECOND, SAMPLE_RATES
from sepkit.models.latents import Deterministic, Point
from sepkit.models.storage.folders import is_onnx  # noqa: F401
from sepkit.types import Separation

METADATA = "sepkit"
"""Key of the graph's metadata under which the model's description is kept, as JSON."""

FORMAT = 1
_EXPECTED = "expected what `sepkit export` writes"
_MISSING = "ONNX models need onnxruntime: pip install 'sepkit[export]'"


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
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{path}: no such file; {_EXPECTED}")
        self.session = _session(path)
        description = _description(path, self.session.get_modelmeta().custom_metadata_map)
        _check_signature(path, self.session, description["hypotheses"])
        self.path = path
        self.description = description
        self.sample_rate: int = description["sample_rate"]
        self.hypotheses: int = description["hypotheses"]
        self.info: dict[str, Any] = description["info"]
        self.config = self.encoding_prior = self.mask_prior = None
        self.variational = False
        self.masker = ExportedGraph()
        self.scoring_head = nn.Identity() if "scores" in self._outputs() else None
        self.encoding_family = self.mask_family = Deterministic("linear")
        self.register_buffer("signal_mean", torch.tensor(float(description["signal_mean"])))
        self.register_buffer("signal_std", torch.tensor(float(description["signal_std"])))
        # The state dict holds no weights; the digest of the file distinguishes models.
        digest = hashlib.blake2b(path.read_bytes(), digest_size=16).digest()
        self.register_buffer("digest", torch.tensor(list(digest), dtype=torch.uint8))

    def _outputs(self) -> list[str]:
        return [output.name for output in self.session.get_outputs()]

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
        waveform = np.ascontiguousarray(mixture.detach().cpu().numpy(), dtype=np.float32)
        values = self._run(waveform)
        expected: dict[str, tuple[int, ...]] = {"estimates": (len(waveform), self.hypotheses, waveform.shape[-1])}
        expected["scores"] = expected["estimates"][:2]
        outputs: dict[str, Tensor] = {}
        for name, value in zip(self._outputs(), values, strict=True):
            if value.shape != expected[name]:
                raise UserError(f"{self.path}: gives {name} of shape {value.shape}, expected {expected[name]}")
            outputs[name] = torch.from_numpy(value).to(mixture.device)
        nothing = Point(mixture.new_zeros(len(mixture), 0, 0))
        return Separation(outputs["estimates"], encoding=nothing, masks=nothing, scores=outputs.get("scores"))

    def _run(self, waveform: np.ndarray) -> list[np.ndarray]:
        """What the graph makes of mixtures (B, T), in the time that `sepkit.limits` gives it."""
        import onnxruntime

        seconds = ONNX_SECONDS + ONNX_SECONDS_PER_SECOND * waveform.size / self.sample_rate
        options = onnxruntime.RunOptions()
        timer = threading.Timer(seconds, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            return self.session.run(None, {"mixture": waveform}, options)
        except Exception as error:  # ONNX Runtime's exceptions have no common base but this.
            reason = f"stopped after {seconds:.0f} s" if options.terminate else one_line(str(error))[:200]
            raise UserError(
                f"{self.path}: ONNX Runtime failed on a mixture of {waveform.shape[-1]} samples ({reason})"
            ) from error
        finally:
            timer.cancel()


class ExportedGraph(nn.Module):
    """Stands in for the masker, which nobody can reach inside the graph."""


def _session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(_MISSING) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Log only fatal errors: others are raised, and reported in one line.
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: no graph that ONNX Runtime can run ({reason}); {_EXPECTED}") from error


def _check_signature(path: Path, session: Any, hypotheses: int) -> None:
    """Raise UserError unless a graph's inputs and outputs have the names, ranks and types of an exported model's."""
    inputs = {value.name: (value.type, len(value.shape)) for value in session.get_inputs()}
    outputs = {value.name: (value.type, len(value.shape)) for value in session.get_outputs()}
    wanted = {"estimates": ("tensor(float)", 3)}
    wanted |= {"scores": ("tensor(float)", 2)} if "scores" in outputs else {}
    for what, found, expected in (
        ("inputs", inputs, {"mixture": ("tensor(float)", 2)}),
        ("outputs", outputs, wanted),
    ):
        if found != expected:
            raise UserError(f"{path}: its {what} are {shown(found)}, expected {expected}; {_EXPECTED}")
    size = next(value.shape[1] for value in session.get_outputs() if value.name == "estimates")
    if isinstance(size, int) and size != hypotheses:
        raise UserError(f"{path}: gives {size} estimates, its description says {hypotheses}; {_EXPECTED}")


def _description(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if METADATA not in metadata:
        raise UserError(f"{path}: found a graph without sepkit's description; {_EXPECTED}")
    try:
        description = parse_json(metadata[METADATA])
    except ValueError as error:
        raise UserError(f"{path}: its description is damaged ({error}); {_EXPECTED}") from error
    kinds = {
        "sample_rate": int,
        "hypotheses": int,
        "signal_mean": float,
        "signal_std": float,
        "info": dict,
        "variational": bool,
    }
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UserError(f"{path}: its description is not of format {FORMAT}; use the sepkit that wrote it")
    for name, kind in kinds.items():
        if not isinstance(description.get(name), kind):
            raise UserError(f"{path}: {name} in its description is {shown(description.get(name))}; {_EXPECTED}")
    deviation, rate = description["signal_std"], description["sample_rate"]
    if not 0 < deviation < math.inf or not math.isfinite(description["signal_mean"]) or description["hypotheses"] < 1:
        raise UserError(f"{path}: its description has a deviation of {deviation}, or no hypotheses; {_EXPECTED}")
    if not SAMPLE_RATES[0] <= rate <= SAMPLE_RATES[1]:
        raise UserError(f"{path}: sample_rate in its description is {shown(rate)}; {_EXPECTED}")
    return description
