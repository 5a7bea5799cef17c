"""Networks for images of 28 x 28 pixels: experts that restore them, and a classifier of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Norm = Literal["group", "batch"]

# Channels of a group. Group norm sees one image, batch norm the images that an expert has won.
_GROUP = 8


class RestoringExpert(nn.Sequential):
    """An image of pixels in (0, 1), (B, 1, 28, 28), from a spoiled one.

    Two convolutions, the first with stride 2, two of the bottleneck, a transposed one, and a sigmoid. The bottleneck's
    are dilated by 2 and 4, so that a pixel depends on 33 x 33 others, nearly all of the image: without dilation it is
    17 x 17, and where more is missing an expert can only paint one gray.

    Args:
        channels: of the first convolution, and of the bottleneck.
        norm: after each hidden layer.

    Source: CCLVQ paper, appendix B.1, where widths, strides and dilations are not given.
    """

    def __init__(self, channels: Sequence[int] = (32, 64), norm: Norm = "group") -> None:
        first, inner = channels
        super().__init__(
            _layer(nn.Conv2d(1, first, 3, stride=2, padding=1, bias=False), first, norm),
            _layer(nn.Conv2d(first, inner, 3, padding=1, bias=False), inner, norm),
            _layer(nn.Conv2d(inner, inner, 3, padding=2, dilation=2, bias=False), inner, norm),
            _layer(nn.Conv2d(inner, inner, 3, padding=4, dilation=4, bias=False), inner, norm),
            _layer(nn.ConvTranspose2d(inner, first, 2, stride=2, bias=False), first, norm),
            nn.Conv2d(first, 1, 3, padding=1),
            nn.Sigmoid(),
        )
        # A third less time on processors with so few channels.
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


class ResNet9(nn.Module):
    """Logits (B, n) of images (B, 1, 28, 28): eight convolutions in three stages, the last two residual.

    Args:
        classes: n.
        channels: of the stages.
        norm: after each convolution.

    Source: CCLVQ paper, appendix B.1, where the widths are not given.
    """

    def __init__(self, classes: int, channels: Sequence[int] = (16, 32, 64), norm: Norm = "group") -> None:
        super().__init__()
        first, second, third = channels
        self.stem = nn.Sequential(_convolution(1, first, norm), nn.MaxPool2d(2))
        self.second = nn.Sequential(_convolution(first, second, norm), nn.MaxPool2d(2))
        self.second_residual = nn.Sequential(_convolution(second, second, norm), _convolution(second, second, norm))
        self.third = _convolution(second, third, norm)
        self.third_residual = nn.Sequential(_convolution(third, third, norm), _convolution(third, third, norm))
        self.last = nn.Linear(third, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logits, (B, n).

        Args:
            images: (B, 1, 28, 28).
        """
        x = self.second(self.stem(images))
        x = x + self.second_residual(x)
        x = self.third(x)
        x = x + self.third_residual(x)
        return self.last(x.amax((2, 3)))


def _convolution(inputs: int, outputs: int, norm: Norm) -> nn.Sequential:
    return _layer(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), outputs, norm)


def _layer(convolution: nn.Module, channels: int, norm: Norm) -> nn.Sequential:
    between = nn.GroupNorm(max(1, channels // _GROUP), channels) if norm == "group" else nn.BatchNorm2d(channels)
    return nn.Sequential(convolution, between, nn.ReLU())


class ImageGenerator(nn.Sequential):
    """Images (B, 1, 28, 28) of pixels in (-1, 1) from latents (B, d): a small DCGAN.

    Args:
        latent: d.
        channels: of the two inner layers.
    """

    def __init__(self, latent: int, channels: Sequence[int] = (64, 32)) -> None:
        first, second = channels
        super().__init__(
            nn.Linear(latent, 7 * 7 * first),
            nn.Unflatten(1, (first, 7, 7)),
            nn.ReLU(),
            nn.ConvTranspose2d(first, second, 4, stride=2, padding=1),
            nn.GroupNorm(max(1, second // _GROUP), second),
            nn.ReLU(),
            nn.ConvTranspose2d(second, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )


class ImageDiscriminator(nn.Sequential):
    """How real images (B, 1, 28, 28) look, (B, 1).

    Args:
        channels: of the two convolutions.
    """

    def __init__(self, channels: Sequence[int] = (32, 64)) -> None:
        first, second = channels
        super().__init__(
            nn.Conv2d(1, first, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(first, second, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(7 * 7 * second, 1),
        )
