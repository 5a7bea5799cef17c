"""Image sets: solutions of a Poisson equation with a known floor, and binarized MNIST."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sepkit.corpora.images import SPLITS, is_binary, read_mnist, read_npz
from sepkit.errors import UserError
from sepkit.files import atomic_output
from sepkit.studies.cdvae.config import ImagesOptions

FREQUENCIES = (1, 3)
"""a = b of the two sources of the Poisson set, half of the images each."""
_SHARES = (0.8, 0.9)


@dataclass
class ImageSet:
    """Images in memory; item (epoch, index) is an image (1, H, W), the same in every epoch.

    Args:
        images: (N, H, W) float32.
        noise: standard deviation of the noise in the units of the images; None where it is not known.
        solutions: Images without noise, (2, H, W); None: unknown.
    """

    images: np.ndarray
    kind: str
    noise: float | None
    solutions: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: tuple[int, int]) -> np.ndarray:
        return self.images[key[1]][None]

    @property
    def floor_nats(self) -> float | None:
        """The least negative evidence of any model, nats per image; None: unknown."""
        return None if self.noise is None else poisson_floor(self.images[0].size, self.noise)


def poisson_floor(pixels: int, noise: float) -> float:
    """Return ln 2 + the entropy of the noise, nats: the entropy of images that are one of two, plus noise.

    The two images are many deviations apart, so the two can always be distinguished.
    """
    return math.log(2) + pixels * (0.5 * math.log(2 * math.pi * math.e) + math.log(noise))


def poisson_solution(frequency: int, size: int) -> np.ndarray:
    """Return h with -laplace h = sin(a pi x) sin(a pi y), and h = 0 on the unit square's edge, (size, size).

    h = sin(a pi x) sin(a pi y) / (2 a^2 pi^2), at the centers of pixels.

    Args:
        frequency: Frequency a of the source.
        size: Height and width, pixels.

    Source: thesis, part C, appendix A.2.
    """
    places = (np.arange(size) + 0.5) / size
    wave = np.sin(frequency * math.pi * places)
    return np.outer(wave, wave) / (2 * frequency**2 * math.pi**2)


def poisson_images(options: ImagesOptions) -> tuple[np.ndarray, float, np.ndarray]:
    """Return noisy solutions in random order, (N, H, W), the deviation of their noise, and the solutions, all
    scaled."""
    generator = np.random.default_rng(options.seed)
    solutions = np.stack([poisson_solution(a, options.size) for a in FREQUENCIES])
    clean = solutions[generator.permutation(np.arange(options.images) % len(FREQUENCIES))]
    images = clean + options.noise * generator.standard_normal(clean.shape)
    scale = float(images.std())
    return images / scale, options.noise / scale, solutions / scale


def prepare_images(options: ImagesOptions) -> Path:
    """Write train.npz, dev.npz and test.npz, and return their folder."""
    folder = Path(options.out)
    if options.kind == "poisson":
        images, noise, solutions = poisson_images(options)
        ends = [round(share * len(images)) for share in _SHARES]
        parts = dict(zip(SPLITS, np.split(images.astype(np.float32), ends), strict=True))
        sets = {name: ImageSet(part, "poisson", noise, solutions=solutions) for name, part in parts.items()}
    else:
        assert options.source is not None
        sets = {name: ImageSet(part, "mnist", None) for name, part in read_mnist(options.source).items()}
    for name, images_of in sets.items():
        write_images(folder / f"{name}.npz", images_of)
        floor = images_of.floor_nats
        known = "" if floor is None else f", floor {floor:.2f} nats"
        print(
            f"{name}.npz: {len(images_of)} images of {images_of.images.shape[1]} x {images_of.images.shape[2]}{known}"
        )
    return folder


def write_images(path: Path, images: ImageSet) -> None:
    """Write a set of images as an .npz file, binary ones as packed bits."""
    values = images.images
    fields: dict[str, np.ndarray] = {"kind": np.array(images.kind), "shape": np.array(values.shape)}
    if images.kind == "mnist":
        fields["bits"] = np.packbits(values.reshape(len(values), -1).astype(np.uint8), axis=1)
    else:
        fields |= {"images": values, "noise": np.array(images.noise)}
        if images.solutions is not None:
            fields["solutions"] = images.solutions.astype(np.float32)
    with atomic_output(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **fields)


def read_images(path: str | Path, size: int, binary: bool) -> ImageSet:
    """Return the images that `sepkit prepare images` wrote, which must have this size and, if `binary`, be binary."""
    path = Path(path)
    fields = read_npz(path)
    if not {"kind", "shape"} <= fields.keys() or not {"bits", "images"} & fields.keys():
        raise UserError(
            f"{path}: found {', '.join(sorted(fields)) or 'nothing'}, expected what sepkit prepare images wrote"
        )
    kinds = {"kind": "U", "shape": "biu", "bits": "u", "images": "f", "noise": "f", "solutions": "f"}
    wrong = [name for name, kind in kinds.items() if name in fields and fields[name].dtype.kind not in kind]
    wrong += [name for name in ("kind", "noise") if name in fields and fields[name].ndim]
    if wrong:
        raise UserError(f"{path}: {wrong[0]} is of another type than sepkit prepare images wrote; prepare them again")
    shape, pixels = tuple(fields["shape"].ravel().tolist()), size * size
    if len(shape) != 3 or shape[1:] != (size, size) or shape[0] < 1:
        raise UserError(f"{path}: found images of shape {shape}, expected (N, {size}, {size}); see model.size")
    solutions = fields.get("solutions")
    expected = {"bits": (shape[0], -(-pixels // 8)), "images": shape}
    if solutions is not None:
        expected["solutions"] = (*solutions.shape[:1], size, size)
    for name, wanted in expected.items():
        if name in fields and fields[name].shape != wanted:
            raise UserError(f"{path}: found {name} of shape {fields[name].shape}, expected {wanted}")
    if "bits" in fields:
        images = np.unpackbits(fields["bits"], axis=1)[:, :pixels].reshape(shape).astype(np.float32)
    else:
        images = fields["images"].astype(np.float32)
    if not np.isfinite(images).all():
        raise UserError(f"{path}: found values that are not finite; prepare the images again")
    if binary and not is_binary(images):
        raise UserError(f"{path}: found values other than 0 and 1, expected binary images or model.likelihood gaussian")
    return ImageSet(images, str(fields["kind"]), float(fields["noise"]) if "noise" in fields else None, solutions)
