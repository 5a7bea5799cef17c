"""Loss of an encoder that learns labels of speakers, a teacher's embeddings, and in which frames somebody speaks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sepkit.data import audio
from sepkit.inference.diarization.encoders import Encoder

# Of the classifier: cosines are multiplied by the scale, after the margin is taken off that of the own speaker.
_SCALE, _MARGIN = 20.0, 0.15
_TEACHER_WEIGHT = 10.0
_TEACHER_SECONDS = 1.6


class KnownSpeakers(nn.Module):
    """What is known of the stretches of a training: numbers of speakers (N,) and targets (N, D), unit vectors or zeros.

    Args:
        speakers: of each stretch.
        dimensions: D, of an embedding.
    """

    numbers: Tensor
    targets: Tensor

    def __init__(self, speakers: Sequence[str], dimensions: int) -> None:
        super().__init__()
        numbers = {name: number for number, name in enumerate(sorted(set(speakers)))}
        self.register_buffer("numbers", torch.tensor([numbers[name] for name in speakers]), persistent=False)
        self.register_buffer("targets", torch.zeros(len(speakers), dimensions))
        self.centers = nn.Parameter(functional.normalize(torch.randn(len(numbers), dimensions), dim=-1))

    @torch.no_grad()
    def take_targets(self, targets: Tensor) -> None:
        """Take a teacher's embeddings of the stretches, (N, D), and begin with speakers at their means."""
        self.targets.copy_(targets)
        sums = torch.zeros_like(self.centers).index_add_(0, self.numbers, targets)
        self.centers.copy_(functional.normalize(sums, dim=-1))

    def terms(self, embeddings: Tensor, instances: Tensor) -> dict[str, Tensor]:
        """Return the losses of embeddings (B, D) of numbered stretches, (B,) each.

        speakers: cross-entropy of a classifier by cosines with a margin; teacher: 1 - cosine to the target.

        Source: Wang et al., "Additive margin softmax for face verification", 2018; Hinton et al., "Distilling the
        knowledge in a neural network", 2015.
        """
        numbers = self.numbers[instances]
        cosines = embeddings @ functional.normalize(self.centers, dim=-1).T
        margins = _MARGIN * functional.one_hot(numbers, len(self.centers))
        classified = functional.cross_entropy(_SCALE * (cosines - margins), numbers, reduction="none")
        return {"speakers": classified, "teacher": 1 - (embeddings * self.targets[instances]).sum(-1)}

    def loss(self, terms: dict[str, Tensor]) -> Tensor:
        """Return the weighted sum of the losses, (B,)."""
        return terms["speakers"] + (_TEACHER_WEIGHT * terms["teacher"] if bool(self.targets.any()) else 0.0)


def teacher_targets(teacher: Encoder, waveforms: Sequence[np.ndarray], sample_rate: int, dimensions: int) -> Tensor:
    """Return a teacher's embeddings of stretches, 16-bit integers, (N, D) unit vectors.

    Embeddings of all have much in common, and lie in fewer directions than they have numbers. Targets are the D
    principal components of the means over windows of 1.6 s, around the mean of all stretches.
    """
    rows = []
    for waveform in waveforms:
        samples = audio.resample(waveform.astype(np.float32) / 32767, sample_rate, teacher.sample_rate)
        length = round(_TEACHER_SECONDS * teacher.sample_rate)
        samples = np.resize(samples, max(length, len(samples)))
        starts = np.linspace(0, len(samples) - length, -(-len(samples) // length)).astype(int)
        windows = np.stack([samples[start : start + length] for start in starts])
        rows.append(teacher.embed(windows).mean(0))
    values = np.array(rows, np.float64)
    centered = values - values.mean(0)
    axes = np.linalg.eigh(centered.T @ centered)[1][:, ::-1][:, :dimensions]
    return functional.normalize(torch.from_numpy(centered @ axes).float(), dim=-1)
