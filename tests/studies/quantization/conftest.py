"""Small UCI sets with splits, written as the published ones are."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


def write_uci_set(folder: Path, name: str, rows: int = 40, splits: int = 2, seed: int = 0) -> Path:
    """SET/data with two features and a target; of odd splits the training part is one row shorter."""
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((rows, 2))
    target = np.sign(generator.standard_normal(rows)) * (1 + features[:, 0]) + 0.1 * generator.standard_normal(rows)
    data = folder / name / "data"
    data.mkdir(parents=True)
    np.savetxt(data / "data.txt", np.column_stack([features, target]))
    (data / "index_features.txt").write_text("0\n1\n")
    (data / "index_target.txt").write_text("2\n")
    (data / "n_splits.txt").write_text(f"{splits}\n")
    for number in range(splits):
        order = generator.permutation(rows)
        tested = rows // 5 + number % 2
        np.savetxt(data / f"index_test_{number}.txt", order[:tested], fmt="%d")
        np.savetxt(data / f"index_train_{number}.txt", order[tested:])
    return data


@pytest.fixture
def write_set() -> Callable[..., Path]:
    """write_set(folder, name, rows, splits, seed) -> the folder of its files."""
    return write_uci_set
