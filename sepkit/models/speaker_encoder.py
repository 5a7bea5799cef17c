"""Speaker encoders: stretches of speech become unit vectors that are alike if the speaker is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sepkit.choices import check_bounds
from sepkit.config import SpeakerEncoderConfig
from sepkit.errors import UserError
from sepkit.models.saved import SavedModel
from sepkit.signals import hz_to_mel, mel_bands

_FRAME_SECONDS, _HOP_SECONDS, _LOWEST_HZ = 0.032, 0.01, 60.0
# Power below a stretch's strongest band; what is weaker is noise of the recording.
_FLOOR = 1e-6
_SHORTEST_FRAMES = 24
# Weight of frames without speech in means and deviations over time.
_SILENT_WEIGHT = 0.05
# CAM++ divides this range into 80 mel bands. Trunk campplus takes the lowest ones, as many as the sample rate has.
_CAMPPLUS_HZ, _CAMPPLUS_BANDS = (20.0, 8000.0), 80
# Channels of its convolutions over bands and frames, and number and new channels of its dense layers.
_SPECTRAL_CHANNELS, _LAYERS, _GROWTH = 32, 12, 32


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.first = _convolution(channels, channels, 3, dilation)
        self.second = nn.Conv1d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(self.first(x)))


class _SpectralBlock(nn.Module):
    """Two convolutions over bands and frames (B, C, bands, F), added to the input."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_spectral_convolution(channels, stride), *_spectral_convolution(channels)[:2])
        skip = nn.Conv2d(channels, channels, 1, (stride, 1), bias=False), nn.BatchNorm2d(channels)
        self.skip = nn.Sequential(*skip) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def _spectral_convolution(channels: int, stride: int = 1, inputs: int | None = None) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs or channels, channels, 3, (stride, 1), 1, bias=False)
    return convolution, nn.BatchNorm2d(channels), nn.ReLU()


class _MaskedLayer(nn.Module):
    """Adds channels to the input (B, C, F): a convolution over time, masked by a function of the mean over time."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            *(nn.BatchNorm1d(inputs), nn.ReLU(), nn.Conv1d(inputs, channels, 1, bias=False)),
            *(nn.BatchNorm1d(channels), nn.ReLU()),
        )
        self.local = nn.Conv1d(channels, _GROWTH, 3, padding=1, bias=False)
        narrow = nn.Conv1d(channels, channels // 2, 1), nn.ReLU(), nn.Conv1d(channels // 2, _GROWTH, 1), nn.Sigmoid()
        self.mask = nn.Sequential(*narrow)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        return torch.cat([x, self.local(hidden) * self.mask(hidden.mean(-1, keepdim=True))], 1)


def _convolution(inputs: int, outputs: int, kernel: int, dilation: int = 1, stride: int = 1) -> nn.Sequential:
    """Return a convolution over time with normalization, without which large learning rates end in dead units."""
    padding = dilation * (kernel - 1) // 2
    convolution = nn.Conv1d(inputs, outputs, kernel, stride, padding, dilation)
    return nn.Sequential(convolution, nn.BatchNorm1d(outputs), nn.ReLU())


def _trunk(config: SpeakerEncoderConfig) -> nn.Sequential:
    width, pooled = config.channels, config.pooled
    if config.trunk != "campplus":
        first, last = _convolution(config.bands, width, 5, stride=2), _convolution(width, pooled, 1)
        if config.trunk == "resnet":
            return nn.Sequential(first, *(_ResidualBlock(width, dilation) for dilation in (1, 2, 3, 1)), last)
        return nn.Sequential(first, *(_convolution(width, width, 3, dilation) for dilation in (2, 3)), last)
    spectral = nn.Sequential(
        nn.Unflatten(1, (1, config.bands)),
        *_spectral_convolution(_SPECTRAL_CHANNELS, inputs=1),
        *(_SpectralBlock(_SPECTRAL_CHANNELS, stride) for stride in (2, 1, 2, 1)),
        *_spectral_convolution(_SPECTRAL_CHANNELS, stride=2),
        nn.Flatten(1, 2),
    )
    first = _convolution(_SPECTRAL_CHANNELS * config.bands // 8, width, 5, stride=2)
    layers = [_MaskedLayer(width + number * _GROWTH, width) for number in range(_LAYERS)]
    dense = width + _LAYERS * _GROWTH
    last = nn.Sequential(nn.BatchNorm1d(dense), nn.ReLU(), *_convolution(dense, pooled, 1))
    return nn.Sequential(spectral, first, *layers, last)


def _end_of_bands(bands: int) -> float:
    """Return where the last of the first `bands` bands of CAM++ ends, Hz."""
    first, last = (float(hz_to_mel(hz)) for hz in _CAMPPLUS_HZ)
    return 700 * (10 ** ((first + (bands + 1) * (last - first) / (_CAMPPLUS_BANDS + 1)) / 2595) - 1)


class SpeakerEncoder(SavedModel):
    """A speaker encoder, with K expert heads, their prototypes and a gate where it was trained with MiCE.

    Source: MiCE paper, section 4; trunk and statistics as in x-vectors (Snyder et al. 2018). Trunk campplus: the first
    block of H. Wang et al., "CAM++: a fast and efficient network for speaker verification using context-aware masking",
    Interspeech 2023, for stretches of up to 2 s, in which all of its contexts are the mean over time.
    """

    kind = "speaker_encoder"
    config_type = SpeakerEncoderConfig

    bands: Tensor
    window: Tensor
    centers: Tensor | None

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        check_bounds(config, "model")
        self.config = config
        self.sample_rate = config.sample_rate
        frame = round(_FRAME_SECONDS * config.sample_rate)
        self.hop = round(_HOP_SECONDS * config.sample_rate)
        lowest_hz, highest_hz = _LOWEST_HZ, None
        if config.trunk == "campplus":
            lowest_hz, highest_hz = _CAMPPLUS_HZ[0], _end_of_bands(config.bands)
            if config.bands % 8 or highest_hz > config.sample_rate / 2:
                raise UserError(
                    f"model.bands: found {config.bands}, expected a multiple of 8 whose last band ends below "
                    f"{config.sample_rate / 2:g} Hz with trunk campplus, such as 56 at 8000 Hz"
                )
        bands = mel_bands(frame, config.sample_rate, config.bands, lowest_hz, highest_hz)
        self.register_buffer("bands", torch.from_numpy(bands.astype(np.float32)), persistent=False)
        self.register_buffer("window", torch.hann_window(frame), persistent=False)
        self.trunk = _trunk(config)
        self.norm = nn.BatchNorm1d(2 * config.pooled)
        self.heads = nn.Linear(2 * config.pooled, (1 if config.one_head else config.experts) * config.dimensions)
        shape = config.experts, config.dimensions
        has_prototypes = config.prototypes and config.gate != "none"
        self.prototypes = nn.Parameter(functional.normalize(torch.randn(shape), dim=-1)) if has_prototypes else None
        self.gate = None if config.gate in ("none", "uniform") else nn.Linear(2 * config.pooled, config.dimensions)
        self.speech = nn.Conv1d(config.pooled, 1, 1) if config.speech else None
        drawn = functional.normalize(torch.randn(config.experts, config.dimensions), dim=-1)
        if config.gate == "learned":
            self.centers = nn.Parameter(drawn)
        else:
            # For a fixed gate, training computes the centers.
            self.register_buffer("centers", drawn if config.gate in ("fixed", "random") else None)

    def prototypes_follow_gradient(self, wanted: bool) -> None:
        """Set whether the gradient reaches the prototypes of experts."""
        if self.prototypes is not None:
            self.prototypes.requires_grad_(wanted)

    def facts(self) -> dict[str, Any]:
        """Return the rate and the dimensions of an embedding."""
        return {"sample_rate": self.sample_rate, "dimensions": self.embedding_size}

    def log_mel(self, waveforms: Tensor) -> Tensor:
        """Return log mel spectra, (B, bands, F), each minus its mean over time and bands.

        That removes the level, but not the mean spectrum, which distinguishes voices. In trunk campplus, means are over
        time only, as in CAM++, which removes what a microphone does.

        Args:
            waveforms: (B, T); short ones are padded with zeros.
        """
        power = self.power_spectra(waveforms) @ self.bands.T
        floor = _FLOOR * power.amax((-2, -1), keepdim=True) + 1e-20
        logs = (power + floor).log().transpose(1, 2)
        return logs - logs.mean(2 if self.config.trunk == "campplus" else (1, 2), keepdim=True)

    @property
    def shortest(self) -> int:
        """Samples to which shorter waveforms are padded."""
        return len(self.window) + (_SHORTEST_FRAMES - 1) * self.hop

    def power_spectra(self, waveforms: Tensor) -> Tensor:
        """Return the powers of windows, (B, F, K), of waveforms (B, T)."""
        if (short := self.shortest - waveforms.shape[-1]) > 0:
            waveforms = functional.pad(waveforms, (0, short))
        return torch.fft.rfft(waveforms.unfold(-1, len(self.window), self.hop) * self.window, dim=-1).abs().square()

    def features(self, spectra: Tensor) -> Tensor:
        """Return normalized means and deviations over time of the trunk's output, (B, 2 pooled).

        `spectra` is (B, bands, F), of `log_mel`.
        """
        return self.pool(self.trunk(spectra))

    def pool(self, hidden: Tensor) -> Tensor:
        """Return normalized means and deviations over time of the trunk's output (B, C, F), (B, 2 pooled).

        Frames without speech hardly count, if the encoder detects speech.
        """
        if self.speech is None:
            mean = hidden.mean(-1)
            deviation = (hidden.var(-1, unbiased=False) + 1e-5).sqrt()
        else:
            weights = torch.sigmoid(self.speech(hidden)) + _SILENT_WEIGHT
            weights = weights / weights.sum(-1, keepdim=True)
            mean = (weights * hidden).sum(-1)
            deviation = ((weights * (hidden - mean[..., None]).square()).sum(-1) + 1e-5).sqrt()
        return self.norm(torch.cat([mean, deviation], dim=-1))

    def expert_embeddings(self, features: Tensor) -> Tensor:
        """Return unit vectors of the heads, (B, H, D); H is 1 or the number of experts.

        `features` are (B, 2 pooled), of `features`.
        """
        return functional.normalize(self.heads(features).unflatten(-1, (-1, self.config.dimensions)), dim=-1)

    def gate_embedding(self, features: Tensor) -> Tensor | None:
        """Return unit vectors of the gate, (B, D); None without a gate or with a uniform one.

        `features` are (B, 2 pooled), of `features`.
        """
        return None if self.gate is None else functional.normalize(self.gate(features), dim=-1)

    def unit_prototypes(self) -> Tensor | None:
        """Return (K, D) prototypes of the experts at unit length."""
        return None if self.prototypes is None else functional.normalize(self.prototypes, dim=-1)

    def unit_centers(self) -> Tensor | None:
        """Return (K, D) prototypes of the gate at unit length."""
        return None if self.centers is None else functional.normalize(self.centers, dim=-1)

    def embed_features(self, features: Tensor) -> Tensor:
        """Return embeddings, unit vectors, (B, D): the head's, or with several heads the features themselves.

        Each of several heads sees a voice as one cluster of its training does. Features are what they share, and are
        good for voices that are in none.

        Args:
            features: (B, 2 pooled), of `features`.
        """
        if self.config.experts == 1 or self.config.one_head:
            return self.expert_embeddings(features)[:, 0]
        return functional.normalize(features, dim=-1)

    @property
    def embedding_size(self) -> int:
        """Dimensions of the output of `forward`."""
        one_head = self.config.experts == 1 or self.config.one_head
        return self.config.dimensions if one_head else 2 * self.config.pooled

    def forward(self, waveforms: Tensor) -> Tensor:
        """Return embeddings, (B, D), see `embed_features`; waveforms are (B, T), all of one length."""
        return self.embed_features(self.features(self.log_mel(waveforms)))

    def speech_of(self, waveforms: Tensor) -> Tensor:
        """Return speech probabilities for each 20 ms, (B, F), of an encoder that detects speech."""
        assert self.speech is not None
        return torch.sigmoid(self.speech(self.trunk(self.log_mel(waveforms)))[:, 0])
