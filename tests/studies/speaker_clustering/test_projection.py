"""The projection of an encoder: against another solver, and from the command to the encoder that uses it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import eigh

from sepkit.cli.main import main
from sepkit.config import SpeakerEncoderConfig
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.models import load_checkpoint, save_model
from sepkit.models.speaker_encoder import SpeakerEncoder, beside_spectra
from sepkit.studies.speaker_clustering.measures import listen
from sepkit.studies.speaker_clustering.projection import discriminants
from tests.noise_voices import RATE, noise_encoder, voice


def draws(shift: float) -> tuple[np.ndarray, list[int], list[int]]:
    """Twenty classes with six members, which differ along the first axis; two domains, apart along the second."""
    generator = np.random.default_rng(0)
    classes = np.repeat(np.arange(20), 6)
    values = generator.standard_normal((120, 5)) * [0.5, 0.5, 2.0, 1.0, 1.0]
    values[:, 0] += 3 * generator.standard_normal(20)[classes]
    values[:, 1] += shift * (classes % 2)
    return values, classes.tolist(), (classes % 2).tolist()


def test_directions_are_those_of_the_generalized_eigenproblem() -> None:
    values, classes, _ = draws(0.0)
    mean, found = discriminants(values, classes, [0] * len(classes), 2)
    inside = values - np.stack([values[np.array(classes) == c].mean(0) for c in classes])
    within = inside.T @ inside / (120 - 20)
    within = 0.9 * within + 0.1 * np.diag(np.diag(within))
    _, expected = eigh(np.cov(values.T, bias=True), within)
    np.testing.assert_allclose(mean, values.mean(0))
    for k in range(2):
        cosine = found[:, k] @ expected[:, -1 - k] / np.linalg.norm(found[:, k]) / np.linalg.norm(expected[:, -1 - k])
        assert abs(cosine) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(found.T @ within @ found, np.eye(2), atol=1e-6)


def test_differences_between_domains_do_not_count() -> None:
    values, classes, domains = draws(30.0)
    apart = []
    for given in ([0] * len(classes), domains):
        _, found = discriminants(values, classes, given, 1)
        places = (values @ found)[:, 0]
        apart.append(abs(places[np.array(domains) == 1].mean() - places[np.array(domains) == 0].mean()))
    # In units of the spread within a class.
    assert apart[0] > 20 and apart[1] < 1
    assert np.abs(found[:, 0]).argmax() == 0


def test_recordings_of_one_segment_tell_nothing() -> None:
    with pytest.raises(UserError, match="found no recording with two segments"):
        discriminants(np.eye(3), [0, 1, 2], [0, 0, 0], 1)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collections")
    for speaker in range(3):
        for take in range(3):
            audio.write(folder / "speech" / f"{speaker}" / f"{take}.wav", voice(speaker, 3.2, take), RATE)
    assert main(["prepare", "voices", "--speech", str(folder / "speech"), "--out", str(folder / "out")]) == 0
    return folder / "out"


def test_project(collection: Path, encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "projected"
    words = ["voices", "project", str(encoder), "--collections", str(collection), "--domains", "^0"]
    assert main([*words, "--dimensions", "4", "--out", str(out)]) == 0
    made, before = (load_checkpoint(path, of=SpeakerEncoder) for path in (out, encoder))
    assert made.config.projected == made.embedding_size == 4
    waveform = torch.from_numpy(voice(1, 1.5, 9))[None]
    spectra = before.log_mel(waveform)
    assert made.projection is not None
    with torch.no_grad():
        expected = made.projection(beside_spectra(before(waveform), spectra))
        torch.testing.assert_close(made(waveform), expected / expected.norm(), atol=2e-3, rtol=0)
    np.testing.assert_allclose(listen(made, [waveform[0].numpy()])["embedding"], made(waveform).detach(), atol=1e-6)


def test_what_cannot_be_projected(collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(noise_encoder(), tmp_path / "encoder")
    words = ["voices", "project", str(tmp_path / "encoder"), "--collections", str(collection), "--out", "x"]
    assert main([*words, "--dimensions", "1000"]) == 2
    assert "found 1000, expected 1 to 88" in capsys.readouterr().err
    with pytest.raises(UserError, match="projected: found 4 with 2 experts"):
        SpeakerEncoder(SpeakerEncoderConfig(experts=2, projected=4))
