"""Models that version 0.1.0 saved load, and return what they returned then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import sepkit
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.models.storage.checkpoints import load_checkpoint
from sepkit.studies.audiogram.model import PartialVAE
from sepkit.studies.cdvae.model import ImageVAE, Noise

FOLDER = Path(__file__).resolve().parent / "fixtures" / "saved_by_0_1_0"
GUESTS = ("partial_vae", "image_vae", "speaker_encoder", "speaker_encoder_mice")
SEPARATORS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and path.name not in GUESTS)


def expected(name: str) -> dict[str, Tensor]:
    return load_file(FOLDER / name / "expected.safetensors")


def mixture() -> Tensor:
    return load_file(FOLDER / "mixture.safetensors")["mixture"]


def check(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", SEPARATORS)
def test_separators(name: str) -> None:
    wanted = expected(name)
    found = sepkit.load_model(str(FOLDER / name)).separate(mixture(), 8000)
    check(torch.as_tensor(found.estimates), wanted["estimates"])
    assert (found.scores is not None) == ("scores" in wanted)
    if found.scores is not None:
        check(torch.as_tensor(found.scores), wanted["scores"])


@pytest.mark.parametrize("name", ["speaker_encoder", "speaker_encoder_mice"])
def test_speaker_encoders(name: str) -> None:
    with torch.no_grad():
        found = load_checkpoint(FOLDER / name, of=SpeakerEncoder)(mixture().view(2, -1))
    check(found, expected(name)["embeddings"])


def test_partial_vae() -> None:
    wanted = expected("partial_vae")
    with torch.no_grad():
        found = load_checkpoint(FOLDER / "partial_vae", of=PartialVAE)(wanted["values"], wanted["observed"].bool())
    check(found.distortion, wanted["distortion"])
    check(found.rate, wanted["rate"])


def test_image_vae() -> None:
    wanted, noise = expected("image_vae"), Noise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = load_checkpoint(FOLDER / "image_vae", of=ImageVAE)(wanted["images"], noise)
    check(found.distortion, wanted["distortion"])
    check(found.initial_rate, wanted["initial_rate"])
    check(torch.stack([rate.flatten(1).sum(1) for rate in found.path_rates]), wanted["path_rates"])
