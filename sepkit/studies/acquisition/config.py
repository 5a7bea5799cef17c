"""The configuration of a partial VAE and of its training; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "AGE",
    "EARS",
    "FREQUENCIES_HZ",
    "DimensionConfig",
    "MissingnessConfig",
    "PartialVAEConfig",
    "audiogram_dimensions",
    "threshold_name",
]

EARS = ("right", "left")
FREQUENCIES_HZ = (500, 1000, 2000, 3000, 4000, 6000, 8000)
AGE = "age"


@dataclass
class DimensionConfig:
    """One number of a datum, such as the threshold of one ear at one frequency."""

    name: str
    """Its column in the CSV file."""
    noise: float = 5.0
    """Standard deviation of one measurement; the decoder's deviation is never below it."""
    step: float = 5.0
    """Distance of the values that an instrument gives; 0: any value."""
    lowest: float = -10.0
    """The least value that is possible."""
    highest: float = 120.0
    """The largest value that is possible."""
    known: bool = False
    """Whether it is given from the beginning (age), and so is never the next to be measured."""
    unit: str = "dB"
    """For messages."""


def threshold_name(ear: str, frequency_hz: int) -> str:
    """Name of a threshold: `right_1000`."""
    return f"{ear}_{frequency_hz}"


def audiogram_dimensions() -> list[DimensionConfig]:
    """Age, and the thresholds of both ears from 500 Hz to 8 kHz, dB HL: 15 dimensions."""
    age = DimensionConfig(AGE, noise=5.0, step=0.0, lowest=0.0, highest=120.0, known=True, unit="years")
    return [age, *(DimensionConfig(threshold_name(ear, hz)) for ear in EARS for hz in FREQUENCIES_HZ)]


@dataclass
class PartialVAEConfig:
    """A variational autoencoder of data of which any part may be missing (Ma et al. 2019, PointNet-plus encoder)."""

    dimensions: list[DimensionConfig] = field(default_factory=audiogram_dimensions)
    latent: int = 4
    """Dimensions of the latent variable."""
    embedding: int = 16
    """Learned values that describe each dimension (e_d)."""
    features: int = 20
    """Width of the layer that all observed dimensions share, whose outputs are summed (K)."""
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    """Widths of the hidden layers of the encoder; the decoder has them in reverse order."""


@dataclass
class MissingnessConfig:
    """Which values training hides: each with probability rho, and rho ~ U(0, 1) for each datum (thesis, 3.1)."""

    kind: Literal["dynamic", "static"] = "dynamic"
    """dynamic: drawn anew every epoch. static: drawn once, as if the data had been collected so."""
    nothing_observed: float = 0.1
    """Share of data of which everything is hidden."""
    everything_observed: float = 0.1
    """Share of data of which nothing is hidden."""
    dequantize: bool = True
    """Add uniform noise as wide as a dimension's step, drawn anew every epoch."""
