"""Copy another toolkit's weights into a sepkit model, by a table of names."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import DeterministicConfig, MaskerConfig, ModelConfig, STFTFilterbankConfig
from sepkit.errors import UserError, one_line
from sepkit.models.emd import EncoderMaskerDecoder, build_model
from sepkit.models.storage.layout import build_on_meta


def mapping_model(
    sample_rate: int,
    hypotheses: int,
    window: int,
    stride: int,
    masker: MaskerConfig,
    *,
    like_torch: bool,
    **options: Any,
) -> ModelConfig:
    """Return a model that maps Fourier coefficients, as they are, to those of the estimates.

    Args:
        sample_rate: Sample rate, Hz.
        hypotheses: Number of estimates.
        masker: Configuration of the masker.
        window: samples.
        stride: samples.
        like_torch: the transform is torch.stft; else SR-CorrNet's.
        options: fields of `ModelConfig`.
    """
    filterbank = STFTFilterbankConfig(
        window,
        stride,
        compression=1.0,
        features="real_imaginary",
        complex_masks=True,
        mapping=True,
        like_torch=like_torch,
        like_sr_corrnet=not like_torch,
    )
    linear = DeterministicConfig(activation="linear")
    return ModelConfig(sample_rate, hypotheses, filterbank, linear, masker, linear, **options)


def frames_beyond(window: int, stride: int) -> int:
    """Return how many frames at either end torch.stft lacks: its first frame has the first sample in its middle.

    Args:
        window: Samples of a window.
        stride: Samples between windows.
    """
    return 0 if window % (2 * stride) else window // (2 * stride) - 1


Names = Iterable[tuple[str, str | Callable[[re.Match[str]], str]]]
"""Regular expressions, and what takes the place of what they find in a name of ours."""


def renamed(name: str, patterns: Names) -> str:
    """Return a name after all substitutions, one after another.

    Args:
        name: Name of one of our tensors.
        patterns: Substitutions.
    """
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


def _pieces(masker: nn.Module, theirs: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the other toolkit's names of a tensor of ours and its places, which are views.

    Blocks of Conv-TasNet end in one convolution, in other toolkits in two.

    Args:
        masker: Conv-TasNet, if the tensor is of such a convolution.
        theirs: The other toolkit's name, with "{part}" in place of "res" and "skip" if there are two; empty if none.
        tensor: Ours.
    """
    if "{part}" not in theirs:
        return {theirs: tensor} if theirs else {}
    parts = tensor.split([masker.bottleneck_channels, masker.skip_channels])  # type: ignore[list-item]
    return {theirs.format(part=name): part for name, part in zip(("res", "skip"), parts, strict=True) if len(part)}


def build_with(
    where: str, config: ModelConfig, weights: Mapping[str, Tensor], names: Names, needs: Mapping[str, Any] | None = None
) -> EncoderMaskerDecoder:
    """Build a model and give every tensor the values of the other toolkit's tensors; return it in evaluation mode.

    Args:
        where: Name of the weights, for messages.
        config: Configuration of our model.
        weights: the other toolkit's tensors by name, see `check_plain`; all must be used.
        names: Substitutions that make the other toolkit's names of ours, see `all_pieces`.
        needs: Requirements of the model, see `sepkit.models.needs`.
    """
    shapes = build_on_meta(lambda: build_model(config), where, len(weights))
    assert shapes is not None
    wanted = all_pieces(shapes, names)
    left = sorted(set(weights).difference(wanted))
    if left:
        raise UserError(f"{where}: {one_line(left[0])[:100]} is unexpected; the weights are of another model")
    for name, tensor in wanted.items():
        _check_fit(where, name, weights.get(name), tensor)
    model = build_model(config)
    with torch.no_grad():
        for name, tensor in all_pieces(model, names).items():
            tensor.copy_(weights[name].reshape(tensor.shape))
    model.info = {"needs": dict(needs)} if needs else {}
    return model.eval()


def all_pieces(model: EncoderMaskerDecoder, names: Names) -> dict[str, Tensor]:
    """Return the other toolkit's names and the places of their tensors in a model.

    Other toolkits lack the buffers outside the masker: signal statistics, and the filters of a Fourier transform.

    Args:
        model: Model whose tensors are returned.
        names: Substitutions in a name of ours; the result has "{part}" where Conv-TasNet has one tensor for two, and is
            empty for what the other toolkit lacks.
    """
    learned = dict(model.named_parameters())
    return {
        theirs: piece
        for name, tensor in model.state_dict().items()
        if name in learned or name.startswith("masker.")
        for theirs, piece in _pieces(model.masker, renamed(name, names), tensor).items()
    }


def _check_fit(where: str, name: str, found: Tensor | None, wanted: Tensor) -> None:
    if found is None:
        raise UserError(f"{where}: {name} is missing; the weights are of another model")
    # A linear layer is a convolution over one frame, and a gain may have dimensions of one.
    if [size for size in found.shape if size != 1] != [size for size in wanted.shape if size != 1]:
        raise UserError(f"{where}: {name} has shape {tuple(found.shape)}, expected {tuple(wanted.shape)}")
    if found.is_floating_point() and not torch.isfinite(found).all():
        raise UserError(f"{where}: {name} contains values that are not finite numbers; get the file again")
