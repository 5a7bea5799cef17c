"""Speaker encoders: from a stretch of speech to an embedding."""

from dataclasses import dataclass
from typing import Literal

from sepkit.numbers import SampleRate, Size

Gate = Literal["none", "uniform", "fixed", "learned", "random"]


@dataclass
class SpeakerEncoderConfig:
    """A speaker encoder: log-mel spectrum, a trunk, mean and deviation over time, expert heads and a gate.

    Args:
        sample_rate: Sample rate, Hz.
        trunk: convolutional: four convolutions over time, 0.1 M parameters. resnet: residual blocks over time, 0.5 M.
            campplus: CAM++ up to its first block, 1.2 M with 56 bands, 128 channels and 192 dimensions.
        bands: Mel bands.
        channels: Width of the trunk.
        pooled: Channels whose mean and deviation over time are the features.
        dimensions: Size of an embedding (D).
        experts: Clusters of MiCE (K), at most `dimensions` + 1 with a fixed gate; 1 for MoCo.
        one_head: Whether all experts share one head (ablation of MiCE).
        prototypes: Whether experts have prototypes, the class term; false: ablation of MiCE. MoCo has none.
        gate: none: no gate (MoCo). fixed: prototypes of the gate are max-Mahalanobis centers, as in the paper. uniform,
            learned and random are ablations: no gate, prototypes that are trained, prototypes that are drawn.
        speech: Whether the encoder also detects speech in each frame; needs loss speakers.
    """

    sample_rate: SampleRate = 8000
    trunk: Literal["convolutional", "resnet", "campplus"] = "convolutional"
    bands: Size = 40
    channels: Size = 96
    pooled: Size = 256
    dimensions: Size = 64
    experts: Size = 1
    one_head: bool = False
    prototypes: bool = True
    gate: Gate = "none"
    speech: bool = False
