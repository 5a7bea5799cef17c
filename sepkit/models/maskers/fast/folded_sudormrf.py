"""SuDoRM-RF with its norms folded into the layers that follow them, as `folded` explains: for evaluation on CPUs."""

from typing import Any

import torch
from torch import Tensor, nn

from sepkit.models.maskers.fast.folded import (
    Moments,
    accumulate,
    activate,
    depthwise,
    folded_bottleneck,
    of_each,
    pointwise,
    tiles,
)
from sepkit.models.maskers.replaceable import in_evaluation, replaces
from sepkit.models.maskers.sudormrf import (
    ImprovedSuDoRMRFBlock,
    ImprovedSuDoRMRFMasker,
    Resolutions,
    SlidingFilters,
    SuDoRMRFBlock,
    SuDoRMRFMasker,
)


@replaces(SuDoRMRFMasker.trunk, when=in_evaluation(SuDoRMRFMasker, SuDoRMRFBlock, Resolutions, SlidingFilters))
@replaces(ImprovedSuDoRMRFMasker.trunk, when=in_evaluation(ImprovedSuDoRMRFMasker, ImprovedSuDoRMRFBlock, Resolutions))
def sudormrf_trunk(masker: SuDoRMRFMasker | ImprovedSuDoRMRFMasker, features: Tensor) -> Tensor:
    """Return the result of `trunk` for both versions of SuDoRM-RF, (B, C, F)."""
    return of_each(features, lambda utterance: _sudormrf(masker, utterance))


def _sudormrf(masker: SuDoRMRFMasker | ImprovedSuDoRMRFMasker, features: Tensor) -> Tensor:
    """(F, C) of features (K, F)."""
    x = features.new_empty(features.shape[-1], masker.bottleneck.out_channels)
    folded_bottleneck(masker.norm, masker.bottleneck, features, x)
    carried = features.new_zeros(x.shape[-1])
    hidden = features.new_empty(len(x), masker.hidden_channels)
    blocks: list[Any] = list(masker.blocks)
    for block in blocks:
        merged = Moments()
        _resolve(block.resolutions, x, carried, hidden, merged)
        norm, activation = block.resolutions.merge
        scale, shift = merged.affine(norm, hidden)
        if isinstance(block.project, nn.Conv1d):
            _project(block, hidden, scale, shift, activation, x)
            if block.project.bias is not None:
                carried += block.project.bias
        else:
            _project_and_normalize(block, hidden, scale, shift, activation, x)
    return x.add_(carried)


def _resolve(resolutions: Resolutions, x: Tensor, constant: Tensor, hidden: Tensor, merged: Moments) -> None:
    """Sum all resolutions of x + constant into `hidden`, before the norm of the sum, and add to that norm's moments."""
    parts: Any = resolutions
    widen, norm, activation = parts.expand
    moments = Moments()
    for rows in tiles(len(x)):
        pointwise(widen, x[rows], constant, hidden[rows])
        moments.add(hidden[rows])
    scale, shift = moments.affine(norm, hidden)
    for rows in tiles(len(x)):
        torch.addcmul(shift, hidden[rows], scale, out=hidden[rows])
        activate(activation, hidden[rows], hidden[rows])
    levels: list[Tensor] = [hidden]
    scales: list[Tensor] = []
    shifts: list[Tensor] = []
    for index, (convolution, norm) in enumerate(parts.levels):
        source = levels[-1]
        # The first resolution takes the place of its source.
        if index > 0:
            levels.append(source.new_empty(-(-len(source) // convolution.stride[0]), source.shape[1]))
        moments = Moments()
        before = (scales[-1], shifts[-1]) if index > 0 else (None, None)
        for rows, tile in depthwise(convolution, source, *before, len(levels[-1])):
            moments.add(levels[-1][rows].copy_(tile))
        scale, shift = moments.affine(norm, levels[-1])
        scales.append(scale)
        shifts.append(shift)
    # The offsets of all norms are added once, to the coarsest resolution, and are upsampled with it.
    coarser = torch.addcmul(sum(shifts[1:], shifts[0]), levels[-1], scales[-1], out=levels[-1])
    for finer, scale in zip(levels[-2::-1], scales[-2::-1], strict=True):
        for phase in range(2):
            rows = finer[phase::2]
            torch.addcmul(coarser[: len(rows)], rows, scale, out=rows)
        coarser = finer
    for rows in tiles(len(hidden)):
        merged.add(hidden[rows])


def _project(
    block: ImprovedSuDoRMRFBlock, hidden: Tensor, scale: Tensor, shift: Tensor, activation: nn.PReLU, x: Tensor
) -> None:
    """Add the block's projection, without its bias, to x."""
    matrix = block.project.weight[..., 0].t()
    for rows in tiles(len(x)):
        tile = torch.addcmul(shift, hidden[rows], scale, out=hidden[rows])
        activate(activation, tile, tile)
        accumulate(x[rows], tile, matrix)


def _project_and_normalize(
    block: SuDoRMRFBlock, hidden: Tensor, scale: Tensor, shift: Tensor, activation: nn.PReLU, x: Tensor
) -> None:
    """Overwrite the input x of a block of the first version with its output."""
    parts: Any = block
    project, project_norm = parts.project
    norm, output_activation = parts.output
    projected, moments = torch.empty_like(x), Moments()
    for rows in tiles(len(x)):
        tile = torch.addcmul(shift, hidden[rows], scale, out=hidden[rows])
        activate(activation, tile, tile)
        pointwise(project, tile, None, projected[rows])
        moments.add(projected[rows])
    scale, shift = moments.affine(project_norm, projected)
    moments = Moments()
    for rows in tiles(len(x)):
        x[rows].add_(shift).addcmul_(projected[rows], scale)
        moments.add(x[rows])
    scale, shift = moments.affine(norm, x)
    for rows in tiles(len(x)):
        torch.addcmul(shift, x[rows], scale, out=x[rows])
        activate(output_activation, x[rows], x[rows])
