"""Contrastive trainings: views, teacher, queue and prototypes, and that an interrupted one ends the same."""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.data import audio
from sepkit.data.segments import Segment, write_segments
from sepkit.errors import UserError
from sepkit.models import load_checkpoint
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.studies.speaker_clustering.config import SegmentDataConfig, SpeakerClusteringConfig, ViewConfig
from sepkit.studies.speaker_clustering.data import SpeechSegments, augment
from sepkit.studies.speaker_clustering.task import SpeakerClusteringTask, masked
from sepkit.training.run import train
from tests.complaint import complaint
from tests.training import runs
from tests.training.runs import weights, with_objective, with_trainer

# --------------------------------------------------------------------------------------------------------------- views


def test_views_follow_from_seed_epoch_instance_and_view(moco: SpeakerClusteringConfig) -> None:
    def stretches(seed: int = 0) -> SpeechSegments:
        return SpeechSegments(str(moco.data.train), moco.data, 8000, 3, seed)

    first, again, other = stretches(), stretches(), stretches(1)
    assert len(first) == 9 and [s.speaker for s in first.segments] == list("000111222")
    again[5, 1]
    for found, expected in zip(again[2, 4], first[2, 4], strict=True):
        np.testing.assert_array_equal(found, expected)
    waveforms, masks, _, number = first[2, 4]
    assert waveforms.shape == (3, 4000) and masks.shape == (3, 4) and number == 4
    for changed in (first[3, 4][0], first[2, 5][0], other[2, 4][0], waveforms[[1, 2, 0]]):
        assert not np.isclose(changed, waveforms).all(-1).any()


def segments(data: SegmentDataConfig, views: ViewConfig, count: int = 1) -> SpeechSegments:
    return SpeechSegments(str(data.train), replace(data, views=views), 8000, count, 0)


def test_noise_of_a_view_has_its_level(moco: SpeakerClusteringConfig) -> None:
    """Without color, room and gain, what a view adds to its crop is noise at the drawn ratio."""
    clean = replace(moco.data.views, gain_db=0.0, tilt_nepers=0.0, room_probability=0.0, snr_db=(200.0, 200.0))
    views = [segments(moco.data, v)[0, 0][0][0] for v in (clean, replace(clean, snr_db=(10.0, 10.0)))]
    ratio = np.square(views[0]).sum() / np.square(views[1] - views[0]).sum()
    assert 10 * np.log10(ratio) == pytest.approx(10, abs=0.7)


def test_a_share_of_views_has_the_band_of_a_telephone(moco: SpeakerClusteringConfig) -> None:
    """Noise through it keeps its level from 0.5 to 2.8 kHz, and loses at least 12 dB below 100 Hz."""
    noise = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    plain = replace(moco.data.views, gain_db=0.0, tilt_nepers=0.0, room_probability=0.0, clean_probability=1.0)
    frequencies, inside = np.fft.rfftfreq(16000, 1 / 8000), []
    for seed in range(40):
        view = augment(noise, replace(plain, telephone_probability=0.5), 8000, np.random.default_rng(seed))
        gains_db = 20 * np.log10(np.abs(np.fft.rfft(view) / np.fft.rfft(noise)))
        assert abs(gains_db[(frequencies > 500) & (frequencies < 2800)].mean()) < 0.5
        inside.append(bool(gains_db[frequencies < 100].max() < -12))
    assert 10 <= sum(inside) <= 30


def test_a_share_of_views_is_encoded_and_decoded(moco: SpeakerClusteringConfig) -> None:
    """Coded views resemble the same views before, at the same place and level; the others are as they were."""
    plain, changed = replace(moco.data.views, clean_probability=1.0, room_probability=0.0, gain_db=0.0), 0
    before = segments(moco.data, plain, 40)[0, 0][0]
    coded = segments(moco.data, replace(plain, codec_probability=0.5), 40)[0, 0][0]
    for one, other in zip(before, coded, strict=True):
        changed += not np.array_equal(one, other)
        assert one @ other > 0.6 * np.linalg.norm(one) * np.linalg.norm(other)
        assert 0.5 < np.linalg.norm(other) / np.linalg.norm(one) < 1.2
    assert 8 < changed < 32


def test_noise_can_be_left_out_of_views(moco: SpeakerClusteringConfig) -> None:
    plain = replace(moco.data.views, gain_db=0.0, tilt_nepers=0.0, room_probability=0.0, snr_db=(0.0, 0.0))
    made = segments(moco.data, replace(plain, clean_probability=0.5), 40)
    views, whole = made[0, 0][0], made.waveforms[0].astype(np.float32) / 32767
    places = np.lib.stride_tricks.sliding_window_view(whole, 4000)
    # The first samples of a crop tell where it is from.
    clean = [np.allclose(places[np.abs(places[:, :8] - view[:8]).sum(1).argmin()], view, atol=1e-5) for view in views]
    assert 8 < sum(clean) < 32


def test_views_come_from_separated_estimates_too(moco: SpeakerClusteringConfig, tmp_path: Path) -> None:
    """Estimates that are tones show which views are of them, at the same place in a recording."""
    for path in Path(str(moco.data.train)).rglob("*.wav"):
        tone = 0.3 * np.sin(np.arange(audio.info(path).num_samples, dtype=np.float32))
        audio.write(tmp_path / path.relative_to(str(moco.data.train)), tone, 8000)
    plain = replace(moco.data.views, gain_db=0.0, tilt_nepers=0.0, room_probability=0.0, clean_probability=1.0)
    data = replace(moco.data, views=replace(plain, separated_probability=0.4))
    views = SpeechSegments(str(moco.data.train), data, 8000, 50, 0, str(tmp_path))[0, 3][0]
    tonal = np.abs(np.fft.rfft(views * np.hanning(4000))).max(1) > 250
    assert 10 <= tonal.sum() <= 30
    # A recording without an estimate is heard as it is.
    (tmp_path / "1" / "0.wav").unlink()
    views = SpeechSegments(str(moco.data.train), data, 8000, 50, 0, str(tmp_path))[0, 3][0]
    assert not (np.abs(np.fft.rfft(views * np.hanning(4000))).max(1) > 250).any()
    with pytest.raises(UserError, match=r"data.separated: .*absent is no folder"):
        SpeechSegments(str(moco.data.train), data, 8000, 1, 0, str(tmp_path / "absent"))


def test_masks_hide_bands_and_frames() -> None:
    found = masked(torch.ones(2, 10, 20), torch.tensor([[0.5, 0.25, 0.0, 0.2], [0.0, 0.0, 0.0, 0.0]]))
    assert (found[0, :2] == 0).all() and (found[0, :, 10:15] == 0).all()
    assert found[0].sum() == 8 * 15 and (found[1] == 1).all()


# ------------------------------------------------------------------------------------------------------------ training


@pytest.fixture(params=["moco", "mice"])
def config(request: pytest.FixtureRequest) -> SpeakerClusteringConfig:
    return request.getfixturevalue(request.param)


def test_a_killed_training_ends_the_same(config: SpeakerClusteringConfig, tmp_path: Path) -> None:
    """Queue, teacher and prototypes go back to the saved state of the middle of an epoch, and a batch is repeated."""
    config = with_trainer(config, checkpoint_every_steps=3)
    train(config, tmp_path / "whole")
    assert runs.run_process(runs.train_interrupted, config, tmp_path / "cut", 7) == -signal.SIGKILL
    train(config, tmp_path / "cut")
    runs.assert_same_weights(tmp_path / "cut", tmp_path / "whole")
    paths = [tmp_path / name / "resume" / "last.ckpt" for name in ("whole", "cut")]
    states = [torch.load(path, weights_only=True)["state_dict"] for path in paths]
    for name in ("queue.embeddings", "queue.instances", "queue.position", "sums.sums", "teacher.heads.weight"):
        assert torch.equal(states[0][name], states[1][name]), name
    assert not torch.equal(states[0]["teacher.heads.weight"], states[0]["model.heads.weight"])


def test_queue_teacher_and_prototypes_move_with_steps_alone(mice: SpeakerClusteringConfig, tmp_path: Path) -> None:
    torch.manual_seed(0)
    task = SpeakerClusteringTask(mice, tmp_path)
    batch = task.collate([task.train_data[0, index] for index in (3, 7)])
    queue, teacher = task.queue.embeddings.clone(), task.teacher.heads.weight.clone()
    task.scores(task.model.eval(), batch)
    task.losses(task.model.train(), batch)
    assert torch.equal(task.queue.embeddings, queue) and int(task.queue.position) == 0
    before = task.model.heads.weight.detach().clone()
    with torch.no_grad():
        task.model.heads.weight += 1
    task.after_step({})
    assert task.queue.instances.tolist() == [3, 7, -1, -1, -1] and task.sums.sums.any()
    torch.testing.assert_close(task.teacher.heads.weight, 0.9 * teacher + 0.1 * (before + 1))
    sums = task.sums.sums.clone()
    task.after_epoch({})
    members = sums.norm(dim=-1) > 0
    found = task.model.prototypes.detach()
    torch.testing.assert_close(found[members], torch.nn.functional.normalize(sums[members], dim=-1))


@pytest.mark.parametrize(
    ("changes", "moves"),
    [
        ({}, True),
        ({"prototype_gradient": False}, True),
        ({"prototype_gradient": False, "analytical_update": False}, False),
    ],
)
def test_how_prototypes_learn(mice, tmp_path, changes, moves) -> None:
    config = with_trainer(with_objective(mice, **changes), max_epochs=1, seed=3)
    begin = SpeakerClusteringTask(config, tmp_path / "begin").model.prototypes.detach().clone()
    train(config, tmp_path / "out")
    assert torch.equal(weights(tmp_path / "out")["prototypes"], begin) is not moves


def test_steps_on_one_batch_lower_its_loss(config: SpeakerClusteringConfig, tmp_path: Path) -> None:
    task = SpeakerClusteringTask(config, tmp_path)
    batch = task.collate([task.train_data[0, index] for index in range(4)])
    optimizer = torch.optim.SGD(task.model.parameters(), 0.1)
    values = []
    for _ in range(15):
        loss = task.losses(task.model, batch).loss.mean()
        values.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert values[-1] < values[0] - 0.3


def test_mice_starts_from_the_clusters_of_moco(moco, mice, tmp_path) -> None:
    source = train(with_trainer(moco, max_epochs=1), tmp_path / "moco")
    started = replace(with_objective(mice, start_from_clusters=True), init_from=str(source))
    task, encoder = SpeakerClusteringTask(started, tmp_path / "mice"), load_checkpoint(source, of=SpeakerEncoder)
    for head in task.model.heads.weight.detach().unflatten(0, (3, 6)):
        torch.testing.assert_close(head, encoder.heads.weight.detach())
    waveforms = torch.stack([torch.from_numpy(w[:8000] / 32767).float() for w in task.train_data.waveforms])
    model = task.model.eval()
    gate = model.gate_embedding(model.features(model.log_mel(waveforms))) @ model.unit_centers().T
    class_term = encoder(waveforms) @ model.unit_prototypes().T
    assert (gate.argmax(-1) == class_term.argmax(-1)).float().mean() > 0.8


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"loss": "mice"}, "mice needs a gate"), ({"data": None}, "data.train: nothing given"),
        ({"batch_size": 1}, "batch_size: found 1"), ({"trainer": {"devices": 2}}, "trains on one device"),
        ({"model": {"experts": 8, "gate": "fixed"}, "loss": "mice"}, r"model\.experts: found 8, expected at most 7"),
    ],
)  # fmt: skip
def test_configurations_that_cannot_be_trained(moco, changes, line) -> None:
    if "views" in changes:
        moco.data.views = replace(moco.data.views, **changes["views"])
    for part in ("objective", "trainer", "model"):
        setattr(moco, part, replace(getattr(moco, part), **changes.get(part, {})))
    moco.loss = changes.get("loss", moco.loss)
    moco.data.batch_size = changes.get("batch_size", 2)
    if "data" in changes:
        moco.data.train = None
    complaint(lambda: moco.check(), line)


def test_one_stretch_is_refused(moco: SpeakerClusteringConfig, tmp_path: Path) -> None:
    moco.data.train = str(write_segments(tmp_path / "one.csv", [Segment(f"{moco.data.train}/0/0.wav")]))
    complaint(lambda: SpeakerClusteringTask(moco, tmp_path), "found one segment")


def test_a_long_queue_is_shortened_and_said(moco, tmp_path, capsys) -> None:
    assert len(SpeakerClusteringTask(with_objective(moco, queue=100), tmp_path).queue) == 9
    printed = capsys.readouterr()
    assert "found 100, shortened to the 9 segments" in printed.out + printed.err
