"""Copy another toolkit's weights into a sepkit model, by a table of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import DeterministicConfig, MaskerConfig, ModelConfig, STFTFilterbankConfig
from sepkit.errors import UserError, one_line
from sepkit.models.emd import EncoderMaskerDecoder, build_model
from sepkit.models.storage.layout import build_on_meta

OWN = ("signal_mean", "signal_std")
"""Tensors of a model that other toolkits do not have."""

OWN_OF_FOURIER = (
    *OWN,
    *(
        f"filterbank.{bank}.filterbank.{name}"
        for bank in ("encoder", "decoder")
        for name in ("_filters", "torch_window")
    ),
)
"""The same for a model whose filters are a Fourier transform."""


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


Pieces = Callable[[nn.Module, str, Tensor], Mapping[str, Tensor]]
"""Of a model's masker, name and tensor: the names of the other toolkit's tensors, and their places in ours: views."""


def one_by_one(names: Names) -> Pieces:
    """Return the pieces of a toolkit that has one tensor for each of ours."""
    return lambda masker, name, tensor: {renamed(name, names): tensor}


def residual_and_skip(masker: nn.Module, theirs: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the pieces of a tensor of Conv-TasNet, whose blocks end in one convolution, in other toolkits in two.

    Args:
        masker: Conv-TasNet, if the tensor is of such a convolution.
        theirs: The other toolkit's name, with "{part}" in place of "res" and "skip" if there are two.
        tensor: Ours.
    """
    if "{part}" not in theirs:
        return {theirs: tensor}
    parts = tensor.split([masker.bottleneck_channels, masker.skip_channels])  # type: ignore[list-item]
    return {theirs.format(part=name): part for name, part in zip(("res", "skip"), parts, strict=True) if len(part)}


def build_with(
    where: str,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    pieces_of: Pieces,
    own: Collection[str] = OWN,
    needs: Mapping[str, Any] | None = None,
) -> EncoderMaskerDecoder:
    """Build a model and give every tensor the values of the other toolkit's tensors; return it in evaluation mode.

    Args:
        where: Name of the weights, for messages.
        config: Configuration of our model.
        pieces_of: Names and places of the other toolkit's tensors.
        weights: the other toolkit's tensors by name; all must be used.
        own: our names that the other toolkit does not have.
        needs: what the model needs of separation, see `sepkit.models.needs`.
    """
    check_plain(where, weights)
    shapes = build_on_meta(lambda: build_model(config), where, len(weights))
    assert shapes is not None
    wanted = _pieces(shapes, pieces_of, own)
    left = sorted(set(weights).difference(wanted))
    if left:
        raise UserError(f"{where}: {one_line(left[0])[:100]} is unexpected; the weights are of another model")
    for name, tensor in wanted.items():
        _check_fit(where, name, weights.get(name), tensor)
    model = build_model(config)
    with torch.no_grad():
        for name, tensor in _pieces(model, pieces_of, own).items():
            tensor.copy_(weights[name].reshape(tensor.shape))
    model.info = {"needs": dict(needs)} if needs else {}
    return model.eval()


def _pieces(model: EncoderMaskerDecoder, pieces_of: Pieces, own: Collection[str]) -> dict[str, Tensor]:
    """Return the other toolkit's names and the places of their tensors in a model."""
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in own}
    return {
        theirs: piece
        for name, tensor in tensors.items()
        for theirs, piece in pieces_of(model.masker, name, tensor).items()
    }


def check_plain(where: str, weights: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not simply real numbers in memory, whose shapes or values other code cannot ask for."""
    for name, tensor in weights.items():
        special = not isinstance(tensor, Tensor) or tensor.is_nested or tensor.is_quantized or tensor.is_complex()
        if special or tensor.is_meta or tensor.layout != torch.strided:
            raise UserError(f"{where}: {one_line(name)[:100]} is no plain tensor of real numbers; get the file again")


def _check_fit(where: str, name: str, found: Tensor | None, wanted: Tensor) -> None:
    if found is None:
        raise UserError(f"{where}: {name} is missing; the weights are of another model")
    # A linear layer is a convolution over one frame, and a gain may have dimensions of one.
    if [size for size in found.shape if size != 1] != [size for size in wanted.shape if size != 1]:
        raise UserError(f"{where}: {name} has shape {tuple(found.shape)}, expected {tuple(wanted.shape)}")
    if found.is_floating_point() and not torch.isfinite(found).all():
        raise UserError(f"{where}: {name} holds values that are not finite numbers; get the file again")
