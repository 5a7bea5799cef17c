"""Binarized MNIST as it is; tests/studies/cdvae reads its other forms."""

from pathlib import Path

from sepkit.corpora.images import read_mnist


def test_real_mnist(data_folder: Path) -> None:
    found = read_mnist(data_folder / "mnist_binarized" / "mnist_binarized.npz")
    assert {name: images.shape for name, images in found.items()} == {
        "train": (50000, 28, 28), "dev": (10000, 28, 28), "test": (10000, 28, 28),
    }  # fmt: skip
    assert 0.12 < found["test"].mean() < 0.14
