"""Models that need no training: each hypothesis gets some of the bins."""

import numpy as np
import torch
from torch import nn

from sepkit.inference import Separator
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.latents import Deterministic
from sepkit.models.stft_filterbank import STFTFilterbank


class BandMasks(nn.Module):
    """Masks that are the same in every frame: the lower half of the bins, and the upper one, scaled."""

    hypotheses = 2

    def __init__(self, scales=(1.0, 1.0)):
        super().__init__()
        self.scales = scales

    def rows(self, lower, frames):
        """The mask of each hypothesis, (n, K), given where the lower half of the bins is."""
        return torch.stack([self.scales[0] * lower, self.scales[1] * (1 - lower)])

    def forward(self, features):
        masks = self.rows((torch.arange(features.shape[1]) < features.shape[1] // 2).float(), features.shape[2])
        return masks[None, :, None, :, None].expand(len(features), -1, -1, -1, features.shape[2])


class Scores(nn.Module):
    """The scores that it is told."""

    def __init__(self, scores):
        super().__init__()
        self.scores = torch.tensor(scores)

    def forward(self, masks):
        return self.scores.expand(len(masks), -1)


def masked(masker, **more):
    """A model that applies masks to a short-time spectrum at 8 kHz, and hears no more than a frame."""
    linear = Deterministic("linear")
    return EncoderMaskerDecoder(STFTFilterbank(), masker, linear, linear, sample_rate=8000, **more)


def band_split(scales=(1.0, 1.0), **options):
    return Separator(masked(BandMasks(scales)), **options)


def tones(sample_rate=8000, num_samples=8000, frequencies=(440.0, 3000.0)):
    """(2, T): one tone for each half of the bins."""
    time = np.arange(num_samples) / sample_rate
    return np.stack([0.3 * np.sin(2 * np.pi * f * time) for f in frequencies]).astype(np.float32)
