"""A model written in operations that an ONNX graph can hold. All lengths are computed inside the graph."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.filterbanks import Filterbank
from sepkit.models.maskers import SepFormerMasker
from sepkit.models.maskers.sudormrf import SlidingFilters


class GraphModel(nn.Module):
    """Mixtures (B, T) to estimates (B, n, T), and scores (B, n) where the model has them: for tracing alone.

    Padding and cropping are those of `EncoderMaskerDecoder`, written for lengths that are values of the graph: tensors
    are padded too far and then cut to such a length.

    Args:
        model: not changed; latents take their values at test (mean or median).
    """

    def __init__(self, model: EncoderMaskerDecoder) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).cpu().float().eval()
        _replace_sliding_filters(self.model)
        _replace_scalar_prelus(self.model)
        if isinstance(self.model.masker, SepFormerMasker):
            self.model.masker.network._padding = _pad_to_chunks  # type: ignore[assignment]
            # The number of frames is a value of the graph, which cannot be compared while it is traced.
            self.model.masker.max_frames = torch.iinfo(torch.int64).max

    def forward(self, mixture: Tensor) -> tuple[Tensor, ...]:
        """Estimates, and scores where there are any."""
        model = self.model
        bank = model.filterbank
        num_samples = mixture.shape[-1]
        left, total = _padded(bank, num_samples, model.pad)
        gain = model._gain(mixture) if model.input_norm == "mixture" else torch.ones(())
        mixture = mixture * gain
        standardized = (mixture - model.signal_mean) / model.signal_std
        # No padding on the right is longer than this.
        most = 2 * bank.kernel_size + bank.stride + bank.multiple
        raw = bank.encode(functional.pad(standardized, (left, most))[..., :total])
        encoding = model.encoding_family.posterior(raw.unflatten(-2, (-1, bank.full_dim)))
        z = model.encoding_family.at_test(encoding)
        masks = model.mask_posterior(model.masker(bank.features(z)))
        mask = model.mask_family.at_test(masks)
        decoded = bank.decode(bank.apply_mask(mask, z))
        # "asteroid" may fall short of the input by less than a stride.
        whole = functional.pad(decoded, (0, bank.stride))
        estimates = whole[..., left : num_samples + left] * (model.signal_std / gain.unsqueeze(-1))
        return (estimates,) if model.scoring_head is None else (estimates, model.scoring_head(mask))


def _padded(bank: Filterbank, num_samples: Any, pad: str) -> tuple[int, Any]:
    """Zeros on the left, and the padded length: `Filterbank.padding_for` for a length that is a tensor."""
    shortest = bank.kernel_size - 2 * bank.padding
    if pad == "asteroid":
        left, total = 0, torch.as_tensor(num_samples).clamp(min=shortest)
    else:
        left = bank.kernel_size - bank.stride - bank.padding
        frames = torch.as_tensor(num_samples + bank.kernel_size + bank.stride - 1) // bank.stride - 2
        total = frames * bank.stride + shortest
    return left, (total + bank.multiple - 1) // bank.multiple * bank.multiple


def _replace_sliding_filters(model: nn.Module) -> None:
    """Replace sliding filters by the convolution that computes them, with its matrix as a constant of the graph."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, SlidingFilters):
                with torch.no_grad():
                    dim = child.encoding_dim
                    unit = torch.eye(dim).unsqueeze(0)
                    response = child(unit)[0]
                    offset = child(torch.zeros(1, dim, 1))[0]
                    plain = nn.Conv1d(dim, len(response), 1)
                    plain.weight.copy_((response - offset).unsqueeze(-1))
                    assert plain.bias is not None
                    plain.bias.copy_(offset[:, 0])
                setattr(parent, name, plain)


def _replace_scalar_prelus(model: nn.Module) -> None:
    """Replace PReLUs of one slope by leaky ReLUs, which ONNX Runtime computes inside the convolution before them."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.PReLU) and child.num_parameters == 1:
                setattr(parent, name, nn.LeakyReLU(float(child.weight)))


def _pad_to_chunks(x: Tensor, chunk_size: int) -> tuple[Tensor, Any]:
    """speechbrain's padding of frames (B, N, F) to whole half-overlapping chunks, and how many frames it adds."""
    half, frames = chunk_size // 2, x.shape[-1]
    # 1 to chunk_size.
    added = chunk_size - (half + frames % chunk_size) % chunk_size
    return functional.pad(functional.pad(x, (0, chunk_size))[..., : frames + added], (half, half)), added


# ---------------------------------------------------------------------------------------------------- while tracing


class PlainOperations(TorchFunctionMode):
    """Inside this context, operations that torch's exporter lacks or gets wrong are computed by others.

    In torch 2.11, unflatten fixes every length to that of the example, movedim does not know negative dimensions, and
    unfold and fold do not accept lengths that are values of the graph.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _PLAIN.get(func, func)(*args, **(kwargs or {}))


def _unflatten(x: Tensor, dim: int, sizes: Any) -> Tensor:
    dim %= x.dim()
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _movedim(x: Tensor, source: int, destination: int) -> Tensor:
    order = list(range(x.dim()))
    order.insert(destination % x.dim(), order.pop(source % x.dim()))
    return x.permute(order)


def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    assert dimension in (-1, x.dim() - 1)
    count = torch.as_tensor(x.shape[-1] - size) // step + 1
    index = torch.arange(count).unsqueeze(-1) * step + torch.arange(size)  # type: ignore[call-overload]
    return x[..., index]


def _fold(
    x: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Overlap-add along time, as a transposed convolution with the unit matrix."""
    length, taps, hop, before = output_size[0], int(kernel_size[0]), int(stride[0]), int(padding[0])
    channels = int(x.shape[1]) // taps
    chunks = x.reshape(-1, taps, x.shape[-1])
    added = functional.conv_transpose1d(chunks, torch.eye(taps).unsqueeze(1), stride=hop)
    # The last frames may lie in no chunk.
    cut = functional.pad(added, (0, hop))[..., before : length + before]
    return cut.reshape(-1, channels, length).unsqueeze(-1)


_PLAIN: dict[Any, Any] = {
    Tensor.unflatten: _unflatten,
    Tensor.movedim: _movedim,
    Tensor.unfold: _unfold,
    functional.fold: _fold,
}
