"""Export of models to ONNX. Nothing is written unless the graph gives what torch gives."""

import copy
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sepkit.errors import UserError
from sepkit.files import atomic_output, file_digest, remove, write_text
from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.export.graph import CausalGraphModel, GraphEncoder, GraphModel, PlainOperations
from sepkit.models.export.graph_description import DEPTH_KEY, FEATURES, FEATURES_VERSION, FORMAT, METADATA
from sepkit.models.export.graph_file import Graph
from sepkit.models.export.rewriting import rewrite
from sepkit.models.features import latent_features
from sepkit.models.saved import SavedModel, weights_fingerprint
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.models.storage.checkpoints import constants_left_out, description_of
from sepkit.models.storage.folders import DESCRIPTION, GRAPH, SUFFIX, WEIGHTS
from sepkit.version import __version__

TOLERANCE = 1e-4
"""Largest difference from torch that an export may have, see `difference`."""

BATCHES = (1, 2, 3)
"""Batch sizes at which an export is compared; the graph is traced at 2, so that 1 and 3 show what tracing has fixed."""

FEATURES_SECONDS = 0.1
"""Features of shorter mixtures are not compared: the energy of a few samples may be next to nothing."""

OPSET = 18


@dataclass
class ExportReport:
    """The result of an export.

    Args:
        differences: samples in a mixture -> largest difference from what torch gives, at any of `BATCHES`, see
            `difference`.
    """

    path: Path
    differences: dict[int, float]
    num_bytes: int


def export_onnx(model: SavedModel, path: str | os.PathLike[str], lengths: Sequence[int] | None = None) -> ExportReport:
    """Write the graph of a model if it gives what torch gives, within `TOLERANCE`; return how far they differ.

    The graph of a separator takes `mixture` (B, T) of any B and T at the model's rate, in the units of recordings. It
    gives `estimates` (B, n, T), `scores` (B, n) if the model has a scoring head, and (B, n) of each feature that
    `latent_features` has in closed form. That of a speaker encoder takes `waveforms` (B, T) and gives `embeddings`
    (B, D), and `speech` (B, F) for each 20 ms if it detects speech.

    All weights lie in the file by their names in torch, so that torch can load the model from it; those that half
    precision holds exactly are stored in it.

    Args:
        model: a separator, whose latents take their values at test (mean or median), or a `SpeakerEncoder`.
        path: a file that ends in .onnx; an older one is replaced.
        lengths: samples in the noises on which torch and ONNX Runtime are compared, at each of `BATCHES`; None: six
            lengths from one sample to a few seconds, only one of them a multiple of a stride.
    """
    path = Path(path)
    if path.suffix.lower() != SUFFIX:
        raise UserError(f"--out {path}: expected a file that ends in {SUFFIX}")
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UserError("exporting needs onnx and onnxruntime: pip install 'sepkit[torch]'") from error
    with tempfile.TemporaryDirectory() as temporary:
        draft = Path(temporary) / f"model{SUFFIX}"
        _finish(draft, model, _trace(model, draft))
        exported = Graph(draft)
        differences = {
            length: max(difference(model, exported, length, batch) for batch in BATCHES)
            for length in lengths or _lengths(model)
        }
        worst = max(differences, key=lambda length: differences[length])
        if not differences[worst] <= TOLERANCE:
            raise UserError(
                f"{path}: not written: ONNX Runtime differs from torch by {differences[worst]:.1e} of the largest "
                f"value in a mixture of {worst} samples, expected at most {TOLERANCE:.0e}"
            )
        with atomic_output(path) as kept:
            kept.write_bytes(draft.read_bytes())
    return ExportReport(path, differences, path.stat().st_size)


def save_graph(model: SavedModel, folder: str | os.PathLike[str]) -> ExportReport:
    """Write a model as it ships: `model.yaml`, and in place of weights `model.onnx`, with weights in half precision.

    `load_checkpoint` reads the folder, as one with `model.safetensors`.

    Args:
        model: Model with its configuration; not changed.

    Raises:
        UserError: a weight that half precision cannot hold, or a model that has no graph.
    """
    folder, rounded = Path(folder), copy.deepcopy(model).cpu().float().eval()
    for name, parameter in rounded.named_parameters():
        parameter.data = parameter.data.half().float()
        if not torch.isfinite(parameter).all():
            raise UserError(f"{name}: contains values that are not finite in half precision; use the model as it is")
    report = export_onnx(rounded, folder / GRAPH)
    more = {"left_out": constants_left_out(rounded), "weights_sha256": file_digest(folder / GRAPH)}
    write_text(folder / DESCRIPTION, description_of(rounded, rounded.info, **more))
    remove(folder / WEIGHTS)
    return report


def difference(model: SavedModel, exported: Graph, num_samples: int, batch: int = 1) -> float:
    """Return the largest difference between the outputs of a model in torch and of a graph, for noise.

    Estimates and embeddings count relative to the largest value of torch's, features and scores relative to their own
    values, or absolutely where these are below 1.

    Args:
        model: put into evaluation mode.
    """
    noise = torch.randn(batch, num_samples, generator=torch.Generator().manual_seed(num_samples))
    if isinstance(model, EncoderMaskerDecoder):
        noise = model.signal_mean.cpu() + model.signal_std.cpu() * noise
        found = exported.separate(noise.numpy(), exported.outputs)
    else:
        found = exported.run({"waveforms": noise.numpy()}, exported.outputs)
    device = next(model.parameters()).device
    with torch.inference_mode():
        expected = _outputs(model.eval(), noise.to(device))
    worst = 0.0
    if num_samples < FEATURES_SECONDS * exported.sample_rate:
        found = {name: values for name, values in found.items() if name not in exported.features}
    for name, values in found.items():
        wanted = expected[name].double().cpu().numpy()
        whole = wanted.ndim > 2 or name == "embeddings"
        scale = (np.abs(wanted).max() or 1.0) if whole else np.fmax(np.abs(wanted), 1.0)
        off = np.where(np.isnan(wanted) & np.isnan(values), 0.0, np.abs(values - wanted)) / scale
        # A comparison with NaN is never true, and would hide it.
        worst = max(worst, float(np.nan_to_num(off.max(), nan=np.inf)))
    return worst


def _outputs(model: SavedModel, waveforms: Tensor) -> dict[str, Tensor]:
    if not isinstance(model, EncoderMaskerDecoder):
        assert isinstance(model, SpeakerEncoder)
        speech = {} if model.speech is None else {"speech": model.speech_of(waveforms)}
        return {"embeddings": model(waveforms)} | speech
    separation = model(waveforms)
    scores = {} if separation.scores is None else {"scores": separation.scores}
    return {"estimates": separation.estimates} | scores | latent_features(model, separation, estimated=False)


def _lengths(model: Any) -> list[int]:
    rate = model.sample_rate
    is_separator = isinstance(model, EncoderMaskerDecoder)
    kernel_size = model.filterbank.kernel_size if is_separator else len(model.window)
    # The first sample of a window gives an encoder nothing but the rounding of silence.
    shortest = 1 if is_separator else kernel_size
    return [shortest, kernel_size + 1, rate // 9 + 5, 4 * kernel_size, rate + 31, 5 * rate // 2 + 17]


def _trace(model: SavedModel, path: Path) -> GraphModel | GraphEncoder:
    """Write the graph as torch's exporter makes it; return the module that it is of."""
    if isinstance(model, SpeakerEncoder):
        module: GraphModel | GraphEncoder = GraphEncoder(model)
    else:
        assert isinstance(model, EncoderMaskerDecoder)
        module = CausalGraphModel(model) if CausalGraphModel.fits(model) else GraphModel(model)
    try:
        # A batch of 2, so that no size of 1 is taken for a constant.
        example = module.example(2)
        with torch.no_grad():
            module(*example)
        with torch.no_grad(), _as_the_exporter_needs(), PlainOperations():
            torch.onnx.export(
                module.eval(),
                example,
                str(path),
                input_names=module.inputs,
                output_names=module.outputs,
                dynamic_axes=module.axes,
                opset_version=OPSET,
                # Weights keep their names and shapes: ONNX Runtime folds and fuses them when it opens the file.
                training=torch.onnx.TrainingMode.PRESERVE,
                do_constant_folding=False,
                # torch's other exporter needs a package more, and fixes lengths that networks over time depend on.
                dynamo=False,
            )
    except Exception as error:  # anything that an operation without a counterpart in ONNX may raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"this model has no ONNX graph ({type(error).__name__}: {reason}); use it as it is") from error
    return module


@contextmanager
def _as_the_exporter_needs() -> Iterator[None]:
    """Silence warnings about shapes taken as constants, and leave out fused attention, which ONNX lacks.

    The comparison with torch finds the shapes that must not be constants.
    """
    logger, mha = logging.getLogger(), torch.backends.mha
    level, fused = logger.level, mha.get_fastpath_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            logger.setLevel(level)
            mha.set_fastpath_enabled(fused)


def _finish(path: Path, model: SavedModel, module: GraphModel | GraphEncoder) -> None:
    """Write weights by their names, loops, and the description into a traced graph."""
    import onnx

    proto = onnx.load(str(path))
    left_out = constants_left_out(model)
    weights = {name: value.detach().cpu().numpy() for name, value in model.state_dict().items() if name not in left_out}
    single = {name: weight.detach() for name, weight in model.named_parameters() if weight.dtype == torch.float32}
    halved = {name for name, weight in single.items() if torch.equal(weight.half().float(), weight)}
    rewrite(proto, weights, halved & set(weights))
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {METADATA: json.dumps(_description(model, module))})
    onnx.save(proto, str(path))


def _description(model: SavedModel, module: GraphModel | GraphEncoder) -> dict[str, Any]:
    description: dict[str, Any] = {
        "format": FORMAT,
        "sepkit": __version__,
        "kind": model.kind,
        "sample_rate": model.sample_rate,
        "info": model.info,
        "fingerprint": weights_fingerprint(model),
        "features_version": FEATURES_VERSION,
        "features": [name for name, source in FEATURES.items() if {name, source} & set(module.outputs)],
    }
    if isinstance(module, CausalGraphModel):
        bank = module.model.filterbank
        description["causal"] = {
            "stride": bank.stride,
            "kernel_size": bank.synthesis_size,
            "state": [{"shape": shape, "batch_axis": axis} for shape, axis in module.state],
        }
    if isinstance(model, EncoderMaskerDecoder):
        return description | {
            "hypotheses": model.hypotheses,
            "signal_mean": float(model.signal_mean),
            "signal_std": float(model.signal_std),
            "variational": model.variational,
            "running_level": model.causal,
            "score_loss": model.score_loss,
            "counts_speakers": model.counts_speakers,
            DEPTH_KEY: model.steps,
        }
    return description | {"embedding_size": model.embedding_size}
