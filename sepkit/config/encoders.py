"""Speaker encoders: from a stretch of speech to an embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Gate = Literal["none", "uniform", "fixed", "learned", "random"]


@dataclass
class SpeakerEncoderConfig:
    """A speaker encoder: log-mel spectrum, a trunk, mean and deviation over time, expert heads and a gate."""

    sample_rate: int = 8000
    """Hz."""
    trunk: Literal["convolutional", "resnet"] = "convolutional"
    """convolutional: four convolutions over time, 0.1 M parameters. resnet: residual blocks over time, 0.5 M."""
    bands: int = 40
    """Mel bands."""
    channels: int = 96
    """Width of the trunk."""
    pooled: int = 256
    """Channels whose mean and deviation over time are the features."""
    dimensions: int = 64
    """Of an embedding (D)."""
    experts: int = 1
    """Clusters of MiCE (K), at most `dimensions` + 1 with a fixed gate; 1 for MoCo."""
    one_head: bool = False
    """Whether all experts share one head (ablation of MiCE)."""
    prototypes: bool = True
    """Whether experts have prototypes, the class term; false: ablation of MiCE. MoCo has none."""
    gate: Gate = "none"
    """none: no gate (MoCo). fixed: prototypes of the gate are max-Mahalanobis centers, as in the paper. uniform,
    learned and random are ablations: no gate, prototypes that are trained, prototypes that are drawn."""
    speech: bool = False
    """Whether it also tells in which frames somebody speaks; needs loss speakers."""
    projected: int = 0
    """Dimensions that embeddings are mapped to, together with mean and deviation over time of the spectrum; 0: none.
    `sepkit voices project` fits that map to an encoder with one head."""
