"""A model that needs no training: each hypothesis gets one half of the bins."""

from __future__ import annotations

import torch
from torch import nn

from sepkit.inference import Separator
from sepkit.inference.options import SeparatorOptions
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.latents import Deterministic
from sepkit.models.stft_filterbank import STFTFilterbank


class BandSplit(nn.Module):
    """Masks that give the lower half of the bins to the first hypothesis and the upper half to the second, scaled."""

    hypotheses = 2

    def __init__(self, scales=(1.0, 1.0)):
        super().__init__()
        self.scales = scales

    def forward(self, features):
        lower = (torch.arange(features.shape[1]) < features.shape[1] // 2).float()
        masks = torch.stack([self.scales[0] * lower, self.scales[1] * (1 - lower)])
        return masks[None, :, None, :, None].expand(len(features), -1, -1, -1, features.shape[2])


def band_split(scales=(1.0, 1.0), **options):
    """A separator that hears no more than a frame."""
    linear = Deterministic("linear")
    model = EncoderMaskerDecoder(STFTFilterbank(), BandSplit(scales), linear, linear, sample_rate=8000)
    return Separator(model, options=SeparatorOptions(**options))
