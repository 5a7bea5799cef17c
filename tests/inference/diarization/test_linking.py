"""Estimates linked to more speakers than there are outputs."""

import json

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.inference.batch.files import speakers_to_link
from sepkit.inference.diarization import linking
from sepkit.inference.diarization.encoders import TorchEncoder, load_encoder
from sepkit.inference.diarization.linking import LinkedSpeakers, _owners, _waveforms, link
from sepkit.inference.diarization.segments import SpeechSegment
from sepkit.inference.selection import Selection
from sepkit.inference.separated import Separated
from sepkit.models import build_model, save_model
from tests.complaint import complaint
from tests.noise_voices import RATE, buzz, noise_encoder, voice

# Two outputs, in which three speakers take turns of 2 s with pauses of half a second: (output, speaker) by turn.
TURNS = [(0, 0), (1, 1), (0, 2), (1, 0), (0, 1)]


@pytest.fixture(scope="module")
def estimates():
    turn, pause = 2 * RATE, RATE // 2
    made = np.zeros((2, len(TURNS) * (turn + pause)), np.float32)
    for number, (output, speaker) in enumerate(TURNS):
        begin = number * (turn + pause)
        made[output, begin : begin + turn] = voice(speaker, 2.0, 20 + number)
    return made


def linked(estimates, speakers, block=3001, recording=None, encoder=None) -> LinkedSpeakers:
    def blocks():
        return (estimates[:, start : start + block] for start in range(0, estimates.shape[1], block))

    whole = estimates.sum(0) if recording is None else recording
    encoder = encoder or TorchEncoder(noise_encoder())
    return link(blocks, len(estimates), RATE, encoder, speakers, lambda: iter([whole[None]]))  # type: ignore[arg-type]


@pytest.mark.parametrize("speakers", [3, "auto"])
def test_every_turn_goes_to_its_speaker(estimates, speakers):
    found = linked(estimates, speakers)
    assert found.speakers == 3 and (found.counted is None) is (speakers == 3)
    made = np.concatenate(list(found.blocks()), axis=1)
    for number, (output, speaker) in enumerate(TURNS):
        middle = slice(number * 20000 + 2000, number * 20000 + 14000)
        # Speakers are named in order of appearance, which is that of their numbers here.
        np.testing.assert_allclose(made[speaker, middle], estimates[output, middle], rtol=1e-6)
        assert not np.delete(made, speaker, axis=0)[:, middle].any()
    alone = [TorchEncoder(noise_encoder()).embed(track[track != 0][None])[0] for track in made]
    likeness = found.embeddings @ np.array(alone).T
    assert (likeness.argmax(1) == np.arange(3)).all() and np.allclose(np.linalg.norm(found.embeddings, axis=1), 1)


def test_speakers_add_up_to_estimates(estimates):
    noisy = estimates + 1e-3 * np.random.default_rng(0).standard_normal(estimates.shape).astype(np.float32)
    np.testing.assert_allclose(np.concatenate(list(linked(noisy, 3).blocks()), axis=1).sum(0), noisy.sum(0), atol=1e-6)


def test_blocks_do_not_matter(estimates):
    short, long = linked(estimates, 3, 777), linked(estimates, 3, 10**6)
    for a, b in zip(short.owners, long.owners, strict=True):
        np.testing.assert_array_equal(a, b)
    a, b = (np.concatenate(list(found.blocks()), axis=1) for found in (short, long))
    np.testing.assert_array_equal(a, b)


def test_noise_and_chords_are_tracks_of_nobody():
    """In estimates too, what the shipped encoder does not take for speech belongs to no speaker."""
    times = np.arange(8 * RATE) / RATE
    noise = 0.05 * np.random.default_rng(0).standard_normal(len(times))
    chord = 0.1 * sum(np.sin(2 * np.pi * hz * times) for hz in (262, 330, 392))
    for heard in (noise, chord):
        found = linked(np.stack([0.9 * heard, 0.1 * heard]).astype(np.float32), "auto", encoder=load_encoder())
        assert found.to_plain()["speakers"] == 0 and not any(found.turns)
    both = np.stack([np.pad(buzz(150, 3.0, RATE), (0, 5 * RATE)), np.roll(noise, 1)]).astype(np.float32)
    both[1, : 4 * RATE] = 0.0
    (turns,) = linked(both, "auto", encoder=load_encoder()).turns
    assert sum(length for _, length in turns) == pytest.approx(3.0, abs=0.3) and turns[-1][0] < 3.0


def test_silence_is_a_track_of_nobody():
    found = linked(np.zeros((2, RATE), np.float32), "auto")
    assert found.to_plain()["speakers"] == 0
    assert found.speakers == 1 and sum(block.shape[1] for block in found.blocks()) == RATE
    assert linked(np.zeros((2, RATE), np.float32), 4).speakers == 4


@pytest.mark.parametrize(("at_once", "expected"), [(1, 0.0), (2, 2.0), (3, 2.0)])
def test_time_in_which_one_more_would_not_be_separated(at_once, expected):
    """One, two or three voices for 2 s, which a model of two outputs puts into both."""
    outputs = np.zeros((2, 6 * RATE), np.float32)
    for number in range(at_once):
        outputs[number % 2, 2 * RATE : 4 * RATE] += voice(number, 2.0, number)
    outputs[0, :RATE] = voice(0, 1.0, 9)
    plain = linked(outputs, at_once).to_plain()
    assert plain["outputs"] == 2 and plain["seconds_with_all_outputs"] == pytest.approx(expected, abs=0.04)
    ends = [end for times in plain["times_with_all_outputs"] for end in times]
    assert ends == pytest.approx([2.0, 4.0] if expected else [], abs=0.04)


def test_more_speakers_than_segments_are_refused(estimates):
    complaint(lambda: linked(estimates, 40), "found 10 segments of speech, expected at least 40, one")


@pytest.mark.parametrize("seconds", [3.0, 8.0], ids=["whole", "long"])
def test_separate_writes_a_file_for_each_speaker(estimates, tiny_model_config, tmp_path, seconds):
    save_model(build_model(tiny_model_config), tmp_path / "separator")
    save_model(noise_encoder(), tmp_path / "encoder")
    mixture = estimates.sum(0)[: round(seconds * RATE)]
    audio.write(tmp_path / "in" / "talk.wav", mixture, RATE)
    command = ["separate", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "separator")]
    command += ["--link-speakers", "3", "--speaker-encoder", str(tmp_path / "encoder"), "--mixture-consistency"]
    command += ["--whole-seconds", "4", "--chunk-seconds", "2", "--overlap-seconds", "1", "--rttm"]
    assert main(command) == 0
    told = json.loads((tmp_path / "out" / "talk.json").read_text())
    assert told["estimates"] == ["talk_s1.wav", "talk_s2.wav", "talk_s3.wav"]
    assert told["linked"].items() >= {"speakers": 3, "runner_up": None, "uncertain": False, "outputs": 2}.items()
    assert "no more than 2 at once" in told["linked"]["note"]
    speakers = np.stack([audio.read(tmp_path / "out" / name) for name in told["estimates"]])
    np.testing.assert_allclose(speakers.sum(0), mixture, atol=1e-4)
    assert (tmp_path / "out" / "talk.rttm").read_text().startswith("SPEAKER talk 1")
    before = (tmp_path / "out" / "talk.json").stat().st_mtime_ns
    assert main(command) == 0 and (tmp_path / "out" / "talk.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("wanted", "is_speaker", "scores", "expected"),
    [
        ("auto", [True, False], None, 1),
        ("auto", [True, True], None, "auto"),
        ("auto", None, None, "auto"),
        # Outputs that are heard are no speakers: one output may hold several in turn.
        ("auto", [True, False], np.zeros(2), "auto"),
        (3, [True, False], None, 3),
    ],
)
def test_a_detector_of_one_speaker_counts(wanted, is_speaker, scores, expected):
    is_speaker = None if is_speaker is None else np.array(is_speaker)
    separated = Separated(np.zeros((2, 8)), 8, Selection(np.ones(2), np.arange(2), is_speaker), scores)
    assert speakers_to_link(wanted, separated) == expected


def test_speakers_are_grouped_by_their_overlaps(monkeypatch):
    given, group = [], linking.group_speakers
    monkeypatch.setattr(linking, "group_speakers", lambda *named: given.append(named[-1]) or group(*named))
    found = linked(np.stack([voice(0, 6.0, 1), voice(1, 6.0, 2)]), 2)
    assert len(found.turns) == 2 and given[0][1].sum() == pytest.approx(6.0, abs=0.2)


def test_a_single_speaker_has_the_recording_itself(estimates):
    noise = 1e-3 * np.random.default_rng(0).standard_normal(estimates.shape[1])
    recording = estimates.sum(0) + noise.astype(np.float32)
    made = np.concatenate(list(linked(estimates, 1, recording=recording).blocks()), axis=1)
    np.testing.assert_array_equal(made, recording[None])


def test_a_voice_in_both_estimates_is_not_added_up_to_more_than_itself():
    """Each estimate has the whole voice of either speaker, as a model leaves it that does not separate."""
    whole = np.concatenate([voice(0, 3.0, 1), voice(1, 3.0, 2)])
    made = np.concatenate(list(linked(np.stack([whole, whole]), 2, recording=whole).blocks()), axis=1)
    middle = np.r_[2000 : 3 * RATE - 2000]
    np.testing.assert_allclose(made[0, middle], whole[middle], rtol=1e-5, atol=1e-7)
    assert np.square(made).sum(-1).max() <= np.square(whole).sum()


# At 10 Hz: (channel, start, duration) by start, overlapping across channels; the last is rounded to beyond the end.
SEGMENTS = [SpeechSegment(*row) for row in ((0, 0.2, 0.3), (1, 0.3, 1.5), (0, 1.1, 0.4), (0, 2.1, 1))]


@pytest.mark.parametrize("block", [1, 4, 7, 100])
def test_segments_are_cut_out_of_the_blocks_in_order_of_time(block):
    whole = np.arange(60, dtype=np.float32).reshape(2, 30)
    blocks = lambda: (whole[:, start : start + block] for start in range(0, 30, block))  # noqa: E731
    cut = [samples.tolist() for samples in _waveforms(blocks, [*SEGMENTS, SpeechSegment(1, 3.0, 0.1)], 10, 10)]
    spans = [(0, 2, 5), (1, 3, 18), (0, 11, 15), (0, 21, 30)]
    assert cut == [*(whole[channel, first:last].tolist() for channel, first, last in spans), [0.0]]


def test_pauses_are_divided_in_the_middle_and_turns_of_one_speaker_joined():
    """Channel 0 has speech at 2 to 5 and 11 to 15 samples, then at 21 to its end."""
    for labels, ends, owners in (([7, 9, 8, 8], [8, 30], [7, 8]), ([7, 9, 7, 8], [18, 30], [7, 8])):
        assert [part.tolist() for part in _owners(SEGMENTS, labels, 0, 30, 10)] == [ends, owners]
    assert [part.tolist() for part in _owners(SEGMENTS[1:2], [9], 0, 30, 10)] == [[30], [0]]
