"""Known speakers, a teacher's embeddings, and where somebody speaks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.models import load_checkpoint
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.studies.speaker_clustering.config import SpeakerClusteringConfig
from sepkit.studies.speaker_clustering.data import SpeechSegments, speech_frames
from sepkit.studies.speaker_clustering.losses import KnownSpeakers, teacher_targets
from sepkit.studies.speaker_clustering.task import SpeakerClusteringTask
from sepkit.training.run import train
from tests.complaint import complaint

PLAIN = {"gain_db": 0.0, "tilt_nepers": 0.0, "room_probability": 0.0, "clean_probability": 1.0}


@pytest.fixture
def speakers(moco: SpeakerClusteringConfig) -> SpeakerClusteringConfig:
    """A training of a second on known speakers, with pauses."""
    data = replace(moco.data, views=replace(moco.data.views, pause_probability=0.5, shortest_seconds=0.3))
    return replace(moco, loss="speakers", model=replace(moco.model, speech=True), data=data)


class Teacher:
    """Embeddings with much in common: four levels and a constant."""

    sample_rate, embedding_size = 4000, 5

    def embed(self, waveforms: np.ndarray) -> np.ndarray:
        levels = np.abs(waveforms.reshape(len(waveforms), 4, -1)).mean(-1)
        return np.concatenate([levels, np.full((len(levels), 1), 9.0)], axis=1)


def test_terms_are_those_of_torch() -> None:
    torch.manual_seed(0)
    known = KnownSpeakers(["b", "a", "b"], 4)
    targets = torch.nn.functional.normalize(torch.randn(3, 4), dim=-1)
    known.take_targets(targets)
    # Speakers begin where their teacher's embeddings lie.
    torch.testing.assert_close(known.centers[0], targets[1])
    embeddings = torch.nn.functional.normalize(torch.randn(2, 4), dim=-1)
    terms = known.terms(embeddings, torch.tensor([2, 1]))
    for row, (speaker, instance) in enumerate(((1, 2), (0, 1))):
        cosines = [float(torch.cosine_similarity(embeddings[row], center, dim=0)) for center in known.centers.detach()]
        cosines[speaker] -= 0.15
        powers = np.exp(20 * np.array(cosines))
        assert terms["speakers"][row].item() == pytest.approx(-np.log(powers[speaker] / powers.sum()), abs=1e-4)
        assert terms["teacher"][row].item() == pytest.approx(1 - float(embeddings[row] @ targets[instance]), abs=1e-6)


def test_targets_are_around_their_mean() -> None:
    """Two dimensions hold what differs between stretches of two shapes, at 4 kHz."""
    rises, falls = np.repeat([1, 2, 3, 4], 4000), np.repeat([4, 3, 2, 1], 4000)
    waveforms = [(1000 * shape * sign).astype(np.int16) for shape in (rises, falls) for sign in (1, -1)]
    found = teacher_targets(Teacher(), waveforms, 8000, 2).numpy()  # type: ignore[arg-type]
    assert np.allclose(np.linalg.norm(found, axis=1), 1)
    signs = np.array([1, 1, -1, -1])
    np.testing.assert_allclose(found @ found.T, np.outer(signs, signs), atol=0.02)


def test_frames_of_a_view_are_where_its_samples_are(speakers: SpeakerClusteringConfig, tmp_path: Path) -> None:
    """A tone, half a second of silence, a tone: without color and noise, what is heard in a view is what is labeled."""
    tone = 0.3 * np.sin(np.arange(8000, dtype=np.float32))
    wave = np.concatenate([tone, np.zeros(4000, np.float32), tone])
    audio.write(tmp_path / "a" / "0.wav", wave, 8000)
    views = replace(speakers.data.views, **PLAIN, crop_seconds=1.0)
    stretches = SpeechSegments(str(tmp_path), replace(speakers.data, views=views), 8000, 40, 0, with_speech=True)
    waveforms, _, heard, _ = stretches[0, 0]
    frames = np.square(waveforms.reshape(40, 50, 160)).mean(-1) > 1e-3
    # A crop begins anywhere in a frame, so one at each edge may differ.
    assert heard.shape == (40, 50) and np.mean(frames != heard) < 0.03 and 0.2 < heard.mean() < 0.9
    assert speech_frames((32767 * wave).astype(np.int16), 8000).sum() == pytest.approx(100, abs=2)


def test_other_speeds_are_other_speakers(speakers: SpeakerClusteringConfig, tmp_path: Path) -> None:
    """A tone of 1 kHz, played at 1.1, is one of 1.1 kHz and shorter by a tenth, also in the estimate."""
    tone = 0.3 * np.sin(2 * np.pi * 1000 / 8000 * np.arange(8800, dtype=np.float32))
    audio.write(tmp_path / "speech" / "a" / "0.wav", tone, 8000)
    audio.write(tmp_path / "estimates" / "a" / "0.wav", 0.5 * tone, 8000)
    source, separated = str(tmp_path / "speech"), str(tmp_path / "estimates")
    made = SpeechSegments(source, speakers.data, 8000, 1, 0, separated, speeds=[1.1])
    assert [segment.speaker for segment in made.segments] == ["a", "a x1.1"] and made.estimates is not None
    for waveform in (made.waveforms[1], made.estimates[1]):
        assert len(waveform) == 8000 and np.abs(np.fft.rfft(waveform * np.hanning(8000))).argmax() == 1100
    with pytest.raises(UserError, match=r"data\.speeds: found 3\.0, expected 0\.5 to 2"):
        replace(speakers, data=replace(speakers.data, speeds=[3.0])).check()


def test_views_of_noise_alone_teach_no_speaker(speakers: SpeakerClusteringConfig, tmp_path: Path) -> None:
    data = replace(speakers.data, views=replace(speakers.data.views, speechless_probability=1.0, shortest_seconds=None))
    task = SpeakerClusteringTask(replace(speakers, data=data), tmp_path)
    batch = task.collate([task.train_data[0, index] for index in range(3)])
    assert not batch.heard.any() and batch.waveforms.any(-1).all()
    terms = task.losses(task.model, batch).terms
    assert not terms["speakers"].any() and not terms["teacher"].any() and (terms["speech"] > 0).all()
    complaint(replace(speakers, model=replace(speakers.model, speech=False), data=data).check, r"needs model\.speech")


def test_noise_has_its_level(speakers: SpeakerClusteringConfig, tmp_path: Path) -> None:
    audio.write(tmp_path / "hum.wav", np.float32(0.1) * np.ones(8000, np.float32) * np.tile([1, -1], 4000), 8000)
    plain = replace(speakers.data.views, **PLAIN, pause_probability=0.0, snr_db=(10.0, 10.0))
    data, source = replace(speakers.data, noise=str(tmp_path)), str(speakers.data.train)
    both = (plain, replace(plain, noise_probability=1.0))
    made = [SpeechSegments(source, replace(data, views=v), 8000, 1, 0)[0, 0][0][0] for v in both]
    assert 10 * np.log10(np.square(made[0]).sum() / np.square(made[1] - made[0]).sum()) == pytest.approx(10, abs=0.1)


def test_speakers_and_speech_are_learned(speakers: SpeakerClusteringConfig, tmp_path: Path) -> None:
    trainer = replace(speakers.trainer, max_epochs=60, optimizer="adam", learning_rate=0.01, halve_patience=100)
    views = replace(speakers.data.views, clean_probability=1.0, room_probability=0.0, tilt_nepers=0.0)
    train(replace(speakers, trainer=trainer, data=replace(speakers.data, views=views, batch_size=3)), tmp_path)
    model = load_checkpoint(tmp_path / "last_model", of=SpeakerEncoder)
    waveforms = [audio.read(path, sample_rate=8000) for path in sorted(Path(str(speakers.data.train)).rglob("*.wav"))]
    wave = np.concatenate([waveforms[0][:8000], np.zeros(8000, np.float32)])
    with torch.inference_mode():
        points = torch.cat([model(torch.from_numpy(w)[None]) for w in waveforms])
        speech = model.speech_of(torch.from_numpy(wave)[None])[0]
    likeness = points @ points.T
    same = torch.arange(9)[:, None] // 3 == torch.arange(9) // 3
    assert likeness[same].mean() > likeness[~same].mean() + 0.3
    assert speech[5:45].mean() > 0.5 and speech[5:45].mean() > speech[55:95].mean() + 0.3


def test_what_cannot_be_learned(speakers: SpeakerClusteringConfig, voices: Path, tmp_path: Path) -> None:
    complaint(lambda: replace(speakers, loss="moco").check(), "need loss speakers")
    audio.write(tmp_path / "flat.wav", audio.read(voices / "0" / "0.wav"), 8000)
    audio.write(tmp_path / "other.wav", audio.read(voices / "1" / "0.wav"), 8000)
    with pytest.raises(UserError, match="segments without a speaker"):
        SpeakerClusteringTask(replace(speakers, data=replace(speakers.data, train=str(tmp_path), dev=None)), tmp_path)
