"""A small linear Gaussian data set, and a partial VAE trained on it: fixtures shared by the tests of the study."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.models import save_model
from sepkit.studies.audiogram.config import AudiogramOptions, DimensionConfig, MissingnessConfig, PartialVAEConfig
from sepkit.studies.audiogram.data import Audiograms, latent_noise, observed_in, synthetic_audiograms
from sepkit.studies.audiogram.model import TrainedVAE
from sepkit.studies.audiogram.task import PartialVAE


@dataclass
class LinearGaussian:
    """Data N(mean, factor factor^T + noise^2), whose conditional distributions are known."""

    mean: np.ndarray
    factor: np.ndarray
    noise: float
    names: list[str]

    @property
    def covariance(self) -> np.ndarray:
        return self.factor @ self.factor.T + self.noise**2 * np.eye(len(self.mean))

    def draw(self, count: int, seed: int) -> Audiograms:
        rng = np.random.default_rng(seed)
        truth = self.mean + rng.standard_normal((count, self.factor.shape[1])) @ self.factor.T
        values = truth + self.noise * rng.standard_normal(truth.shape)
        return Audiograms(self.names, [str(place) for place in range(count)], values, truth)

    def conditional(self, values: np.ndarray, observed: np.ndarray) -> np.ndarray:
        """(B, D) exact means given what is observed (the same dimensions for all)."""
        seen = np.flatnonzero(observed)
        gain = self.covariance[:, seen] @ np.linalg.inv(self.covariance[np.ix_(seen, seen)])
        return self.mean + (values[:, seen] - self.mean[seen]) @ gain.T


@pytest.fixture(scope="session")
def linear() -> LinearGaussian:
    factor = np.linalg.qr(np.random.default_rng(7).standard_normal((5, 2)))[0] * [25.0, 18.0]
    return LinearGaussian(np.array([40.0, 10.0, 20.0, 30.0, 50.0]), factor, 10.0, ["known", "a", "b", "c", "d"])


@pytest.fixture(scope="session")
def linear_config(linear: LinearGaussian) -> PartialVAEConfig:
    dimensions = [DimensionConfig(n, linear.noise, 0.0, -500.0, 500.0, known=n == "known") for n in linear.names]
    return PartialVAEConfig(dimensions, latent=2, embedding=4, features=24, hidden=[32])


@pytest.fixture(scope="session")
def linear_vae(linear: LinearGaussian, linear_config: PartialVAEConfig) -> TrainedVAE:
    """Trained for some seconds on the linear Gaussian data."""
    data = linear.draw(4096, seed=1).values.astype(np.float32)
    model = PartialVAE(linear_config)
    model.set_statistics(data.mean(0), data.std(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    steps, size = 1000, 128
    for step in range(steps):
        rows = np.random.default_rng(step).integers(0, len(data), size)
        observed = observed_in(MissingnessConfig(), size, data.shape[1], 0, step)
        noise = torch.from_numpy(latent_noise(size, 2, 0, step)).float()[None]
        parts = model(torch.from_numpy(data[rows])[None], torch.from_numpy(observed)[None], noise)
        beta = min(1.0, 0.05 + step / 300)
        optimizer.param_groups[0]["lr"] = 1e-2 if step < 600 else 1e-3
        optimizer.zero_grad()
        (parts.distortion + beta * parts.rate).mean().backward()
        optimizer.step()
    return model.trained()[0]


@pytest.fixture(scope="session")
def audiograms() -> Audiograms:
    return synthetic_audiograms(AudiogramOptions(out=Path(), examples=96, seed=3))[0]


@pytest.fixture(scope="session")
def audiogram_vae(audiograms: Audiograms) -> PartialVAE:
    """An untrained model of audiograms that knows their mean and deviation."""
    model = PartialVAE(PartialVAEConfig(latent=2, embedding=3, features=6, hidden=[8]), [5])
    model.set_statistics(audiograms.values.mean(0), audiograms.values.std(0))
    return model


@pytest.fixture
def model_folder(audiogram_vae: PartialVAE, tmp_path: Path) -> Path:
    """The same, saved."""
    return save_model(audiogram_vae, tmp_path / "EXP" / "model")
