"""A Poisson set, and a small model trained on it by the command line."""

from pathlib import Path

import pytest

from sepkit.cli.main import main

TINY = ["--model.width", "4", "--model.drift_width", "4", "--model.latent_channels", "2", "--model.size", "8"]
TINY += ["--model.levels", "2", "--model.depth_steps", "4", "--trainer.max_epochs", "2"]
TINY += ["--trainer.validate_every_epochs", "1", "--data.batch_size", "8", "--trainer.decay_share", "0"]


@pytest.fixture(scope="session")
def poisson(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("poisson")
    assert main(["prepare", "images", "--kind", "poisson", "--images", "80", "--size", "8", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def trained(poisson: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cdvae") / "exp"
    data = ["--data.train", str(poisson / "train.npz"), "--data.dev", str(poisson / "dev.npz")]
    assert main(["train", "--config", "cdvae", *data, *TINY, "--out", str(out)]) == 0
    return out
