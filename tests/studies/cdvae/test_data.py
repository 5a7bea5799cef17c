"""The Poisson set against the equation it solves, its floor, and the readers of binarized MNIST."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.corpora.images import read_mnist
from sepkit.studies.cdvae.config import ImagesOptions
from sepkit.studies.cdvae.data import poisson_floor, poisson_images, poisson_solution, read_images
from tests.complaint import complaint


@pytest.mark.parametrize(("frequency", "peak"), [(1, 0.0507), (3, 0.0056)])
def test_solutions_solve_the_equation(frequency: int, peak: float) -> None:
    h, step = poisson_solution(frequency, 200), 1 / 200
    laplace = (h[2:, 1:-1] + h[:-2, 1:-1] + h[1:-1, 2:] + h[1:-1, :-2] - 4 * h[1:-1, 1:-1]) / step**2
    places = (np.arange(1, 199) + 0.5) / 200
    wave = np.sin(frequency * math.pi * places)
    np.testing.assert_allclose(-laplace, np.outer(wave, wave), atol=3e-4 * frequency**2)
    assert h.max() == pytest.approx(peak, abs=5e-5) and abs(h[0]).max() < 0.02 * peak * frequency**2
    np.testing.assert_allclose(h, h[::-1, ::-1].T, atol=1e-15)


def test_the_floor_is_the_entropy_of_the_set() -> None:
    assert poisson_floor(256, 5e-3) == pytest.approx(-992.4, abs=0.1)
    images, noise, solutions = poisson_images(ImagesOptions(kind="poisson", out=Path()))
    assert images.shape == (1024, 16, 16) and images.std() == pytest.approx(1)
    assert noise == pytest.approx(5e-3 / 0.01552, rel=0.01)
    assert poisson_floor(256, noise) == pytest.approx(73.9, abs=0.3)
    # Every image is one of the solutions and noise of the deviation that is told.
    errors = np.stack([(images - solution).std((1, 2)) for solution in solutions]).min(0)
    assert errors.mean() == pytest.approx(noise, rel=0.01)
    # The log likelihood of the true mixture of both images meets the floor, up to its error over 1024 images.
    squares = np.square(images.reshape(1, 1024, -1) - solutions.reshape(2, 1, -1)).sum(-1)
    evidence = np.logaddexp(*(-0.5 * squares / noise**2)) - 256 * math.log(noise * math.sqrt(2 * math.pi)) - math.log(2)
    error = evidence.std() / 32
    assert -evidence.mean() == pytest.approx(poisson_floor(256, noise), abs=4 * error) and error < 0.5


def test_images_follow_from_the_seed() -> None:
    options = [ImagesOptions(kind="poisson", out=Path(), images=20, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (poisson_images(option)[0] for option in options)
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_mnist_in_every_form_the_field_has(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 2, (3, 4, 784)).astype(np.uint8)
    names = ("train", "valid", "test")
    np.savez(tmp_path / "packed.npz", **{n: np.packbits(part, axis=1) for n, part in zip(names, bits, strict=True)})
    np.savez(tmp_path / "plain.npz", **{n: part.reshape(4, 28, 28) for n, part in zip(names, bits, strict=True)})
    for name, part in zip(names, bits, strict=True):
        np.savetxt(tmp_path / f"binarized_mnist_{name}.amat", part, fmt="%d")
    for source in ("packed.npz", "plain.npz", "."):
        found = read_mnist(tmp_path / source)
        for split, part in zip(("train", "dev", "test"), bits, strict=True):
            assert np.array_equal(found[split].reshape(4, -1), part)
    out = tmp_path / "out"
    command = ["prepare", "images", "--kind", "mnist", "--source", str(tmp_path / "packed.npz"), "--out", str(out)]
    assert main(command) == 0
    images = read_images(out / "dev.npz", 28, binary=True)
    assert np.array_equal(images.images.reshape(4, -1), bits[1]) and images.floor_nats is None
    assert (out / "dev.npz").stat().st_size < 2000 and images[7, 2].shape == (1, 28, 28)


def test_bad_images_are_one_line(poisson: Path, tmp_path: Path, refused) -> None:
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    np.savez(tmp_path / "other.npz", something=np.zeros(3))
    np.savez(tmp_path / "short.npz", kind="poisson", shape=(3, 8, 8), images=np.zeros((2, 8, 8)))
    for path, size, binary, message in (
        (poisson / "train.npz", 16, False, r"found images of shape \(64, 8, 8\), expected \(N, 16, 16\)"),
        (poisson / "train.npz", 8, True, "found values other than 0 and 1, expected binary images"),
        (tmp_path / "broken.npz", 8, True, r"cannot be read as \.npz"),
        (tmp_path / "other.npz", 8, True, "found something, expected what sepkit prepare images wrote"),
        (tmp_path / "short.npz", 8, False, r"found images of shape \(2, 8, 8\), expected \(3, 8, 8\)"),
    ):
        complaint(partial(read_images, path, size, binary=binary), rf"{path.stem}\.npz: {message}")
    np.savez(tmp_path / "grey.npz", **{name: np.full((2, 784), 3, np.uint8) for name in ("train", "valid", "test")})
    for arguments, message in (
        (["--kind", "mnist"], "--source: nothing given"),
        (["--kind", "mnist", "--source", str(tmp_path / "grey.npz")], "found values like 3, expected binary images"),
        (["--kind", "mnist", "--source", str(tmp_path / "absent.npz")], "absent.npz: no such file"),
        (["--kind", "poisson", "--noise", "0"], "--noise: found 0.0, expected more than 0"),
    ):
        assert message in refused(["prepare", "images", *arguments, "--out", tmp_path / "out"])
