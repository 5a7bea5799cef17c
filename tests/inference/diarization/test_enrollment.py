"""Enrolled speakers: who is named, who is absent, and recordings that cannot be enrolled."""

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from sepkit.cli.main import main
from sepkit.config import DeterministicConfig, ModelConfig, RecurrentConfig, STFTFilterbankConfig
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.encoders import TorchEncoder, load_encoder
from sepkit.inference.diarization.enrollment import Enrolled, enroll, name_speakers, threshold_warning
from sepkit.inference.diarization.segments import group_estimates
from sepkit.inference.options import OutputOptions, read_names
from sepkit.models import build_model, save_model
from tests.complaint import complaint
from tests.noise_voices import RATE, noise_encoder, voice


def enrolled(embeddings: np.ndarray) -> list[Enrolled]:
    return [Enrolled(f"p{k}", Path(f"p{k}.wav"), "", 3.0, row, None) for k, row in enumerate(embeddings)]


@pytest.mark.parametrize(("people", "speakers"), [(3, 3), (4, 2), (1, 4), (2, 5)])
@pytest.mark.parametrize("seed", range(5))
def test_names_are_those_of_the_best_assignment(people: int, speakers: int, seed: int) -> None:
    """Of all ways to give names one to one, the one with the greatest likeness above the threshold."""
    generator, threshold = np.random.default_rng(seed), 0.1
    known, tracks = (unit_rows(generator.standard_normal((count, 4))) for count in (people, speakers))
    likeness = known @ tracks.T

    def gain(way: tuple[int | None, ...]) -> float:
        return sum(likeness[k, place] - threshold for k, place in enumerate(way) if place is not None)

    ways = set(permutations([*range(speakers), *[None] * people], people))
    ways = [way for way in ways if all(place is None or likeness[k, place] >= threshold for k, place in enumerate(way))]
    found = name_speakers(enrolled(known), tracks, threshold)
    assert tuple(one.speaker for one in found) == max(ways, key=gain)
    for k, one in enumerate(found):
        if one.speaker is not None:
            assert one.likeness == pytest.approx(likeness[k, one.speaker], abs=1e-3)


def test_a_short_enrollment_decides_only_who_is_far_from_the_threshold() -> None:
    """Likenesses of 0.5, 0.34 and 0.36 with a threshold of 0.5: named, absent, and too short below 5 s of speech."""
    cosines = np.array([0.5, 0.34, 0.36])
    known = enrolled(np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1))
    for seconds, undecided in ((4.99, [False, False, True]), (5.0, [False] * 3)):
        speakers = [[replace(one, speech_seconds=seconds)] for one in known]
        found = [name_speakers(one, np.array([[1.0, 0.0]]), 0.5)[0] for one in speakers]
        assert [one.speaker for one in found] == [0, None, None] and [one.too_short for one in found] == undecided


def test_the_nearest_track_is_told_of_who_is_absent_also_if_it_has_another_name() -> None:
    known = [replace(one, speech_seconds=10.0) for one in enrolled(np.array([[0.8, 0.6], [1.0, 0.0]]))]
    absent, named = name_speakers(known, np.array([[0.0, 0.0], [1.0, 0.0]]), 0.5)
    assert (named.speaker, named.nearest, named.likeness) == (1, 1, 1.0)
    assert (absent.speaker, absent.nearest, absent.likeness, absent.too_short) == (None, 1, 0.8, False)
    assert absent.to_plain()["nearest_speaker"] == 2


def test_one_recording_is_enrolled_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        audio.write(tmp_path / f"{name}.wav", voice(0, 2.0, 0), RATE)
    named = {"alice": tmp_path / "a.wav", "bob": tmp_path / "b.wav"}
    complaint(lambda: enroll(named, TorchEncoder(noise_encoder())), "b.wav: enrolled as alice and as bob, expected one")


def test_nobody_is_named_where_nobody_speaks() -> None:
    known = unit_rows(np.random.default_rng(0).standard_normal((2, 4)))
    for embeddings in (np.zeros((1, 4)), np.zeros((3, 4))):
        found = name_speakers(enrolled(known), embeddings, -2.0)
        assert [(one.speaker, one.likeness) for one in found] == [(None, None)] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["alice"], "enroll: found 'alice', expected NAME=FILE"), (["=a.wav"], "expected NAME=FILE"),
        (["alice="], "expected NAME=FILE"), (["a/b=a.wav"], "found the name 'a/b', expected letters"),
        (["..=a.wav"], "found the name '..', expected letters"),
        (["a b=a.wav"], "found the name 'a b', expected letters"), (["a\\b=a.wav"], "expected letters"),
        (["a" * 65 + "=a.wav"], "at most 64 bytes"), (["s2=a.wav"], "speakers without a name are called s1, s2"),
        (["al=a.wav", "al=b.wav"], "found the names al and al"),
        (["al=a.wav", "AL=b.wav"], "found the names al and AL"),
        (["ann=a.wav", "mary_ann=b.wav"], "found the names ann and mary_ann"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_used(words: list[str], message: str) -> None:
    complaint(lambda: OutputOptions(link_speakers="auto", enroll=words), message)


def test_names_of_any_language_can_be_used() -> None:
    found = read_names(["Zoë=a=b.wav", "José-María=c.wav"])
    assert list(found.items()) == [("Zoë", Path("a=b.wav")), ("José-María", Path("c.wav"))]


def test_options_that_do_not_go_together() -> None:
    assert OutputOptions(enroll=["a=a.wav"]).link_speakers == "auto"
    complaint(lambda: OutputOptions(enroll=["a=a.wav"], speakers=2), "enroll: needs link_speakers=auto")
    complaint(lambda: OutputOptions(speaker_encoder="a"), "speaker_encoder: needs link_speakers=auto")
    with pytest.raises(UserError, match="only: found bob, expected one of alice"):
        OutputOptions(link_speakers="auto", enroll=["alice=a.wav"], only="bob")
    with pytest.raises(UserError, match="only: found bob, which is not enrolled; add enroll bob=FILE"):
        OutputOptions(link_speakers="auto", only="bob")


@pytest.mark.parametrize(
    ("wave", "message"),
    [
        (np.zeros(3 * RATE), r"alice.wav: found 0.0 s of speech, expected a recording of alice alone with at"),
        (np.zeros(0), "alice.wav"), (voice(0, 0.9, 0), "found 0.9 s of speech"),
        (np.concatenate([voice(0, 0.7, 0), np.zeros(RATE)]), "found 0.7 s of speech"), (None, "alice.wav"),
    ],
    ids=["silence", "empty", "short", "short with silence", "no audio"],
)  # fmt: skip
def test_recordings_that_cannot_be_enrolled(wave: np.ndarray | None, message: str, tmp_path: Path) -> None:
    if wave is None:
        (tmp_path / "alice.wav").write_text("hello")
    else:
        audio.write(tmp_path / "alice.wav", wave.astype(np.float32), RATE)
    complaint(lambda: enroll({"alice": tmp_path / "alice.wav"}, TorchEncoder(noise_encoder())), message)
    with pytest.raises(UserError, match=r"none\.wav: no such file"):
        enroll({"alice": tmp_path / "none.wav"}, TorchEncoder(noise_encoder()))


def test_the_rate_of_an_enrollment_does_not_matter(tmp_path: Path) -> None:
    wave = voice(1, 4.0, 0)
    audio.write(tmp_path / "8.wav", wave, RATE)
    audio.write(tmp_path / "44.wav", np.stack([audio.resample(wave, RATE, 44100)] * 2), 44100)
    one, two = enroll({"a": tmp_path / "8.wav", "b": tmp_path / "44.wav"}, TorchEncoder(noise_encoder()))
    assert one.embedding @ two.embedding > 0.99


def test_two_speakers_in_an_enrollment_are_doubted(tmp_path: Path) -> None:
    takes = {"one": [(0, 4.5), (0, 4.5)], "two": [(0, 4.5), (2, 4.5)], "short": [(0, 1.5), (2, 1.5)]}
    for name, parts in takes.items():
        audio.write(tmp_path / f"{name}.wav", np.concatenate([voice(k, s, n) for n, (k, s) in enumerate(parts)]), RATE)
    found = enroll({name: tmp_path / f"{name}.wav" for name in takes}, TorchEncoder(noise_encoder()))
    assert [speaker.maybe_two for speaker in found] == [False, True, None]
    assert found[0].warning() is None and "two.wav: may contain two speakers" in str(found[1].warning())


@pytest.fixture
def command(meeting: Path, tmp_path: Path) -> list[str]:
    """Separate the meeting of speakers 2, 0, 2 and 1, with 0, 1 and a voice that is not there enrolled.

    Masks of one half everywhere leave the color of voices as it is.
    """
    masker, masks = RecurrentConfig(hidden_size=4, num_layers=1), DeterministicConfig(activation="sigmoid")
    model = build_model(ModelConfig(filterbank=STFTFilterbankConfig(), masker=masker, masks=masks))
    for weight in model.masker.parameters():
        torch.nn.init.zeros_(weight)
    save_model(model, tmp_path / "separator")
    save_model(noise_encoder(), tmp_path / "encoder", {"enrollment": {"threshold": 0.6}})
    for name, speaker in {"zero": 0, "one": 1, "nobody": 6}.items():
        audio.write(tmp_path / f"{name}.wav", voice(speaker, 3.0, 77), RATE)
    words = ["separate", meeting / "talk" / "meeting.wav", "--out", tmp_path / "out", "--model", tmp_path / "separator"]
    words += ["--link-speakers", "3", "--speaker-encoder", tmp_path / "encoder", "--rttm"]
    return [*map(str, words), "--enroll", *(f"{name}={tmp_path / name}.wav" for name in ("zero", "one", "nobody"))]


def test_tracks_have_names_and_who_is_absent_is_told(command: list[str], tmp_path: Path, printed) -> None:
    assert "written: s1, zero, one; not found: nobody" in printed(command)
    told = json.loads((tmp_path / "out/meeting.json").read_text())
    assert told["absent"] == ["nobody"] and told["enroll_threshold"] == 0.6
    assert told["estimates"] == ["meeting_s1.wav", "meeting_zero.wav", "meeting_one.wav"]
    assert [(one["name"], one["speaker"]) for one in told["enrolled"]] == [("zero", 2), ("one", 3), ("nobody", None)]
    # Each track is heard where its speaker speaks: 2.5 s each.
    for name, turn in (("zero", 1), ("one", 3)):
        energy = np.square(audio.read(tmp_path / f"out/meeting_{name}.wav")).reshape(4, -1).sum(1)
        assert energy.argmax() == turn and energy[turn] > 0.9 * energy.sum()
    names = [line.split()[7] for line in (tmp_path / "out/meeting.rttm").read_text().splitlines()]
    assert set(names) == {"s1", "zero", "one"}
    (source,) = group_estimates({tmp_path / "out" / name: Path(name) for name in told["estimates"]})
    assert source.name == Path("meeting") and len(source.paths) == 3


def test_another_encoder_without_a_threshold_is_doubted(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert threshold_warning(load_encoder()) is None
    encoder = Path(command[command.index("--speaker-encoder") + 1])
    assert main(command) == 0 and "states no threshold" not in capsys.readouterr().err
    save_model(noise_encoder(), encoder)
    assert main(command) == 0
    assert "states no threshold, so a cosine similarity of 0.73 decides who is absent" in capsys.readouterr().err


def test_only_one_track_is_written(command: list[str], tmp_path: Path, printed) -> None:
    assert main(command) == 0
    before = audio.read(tmp_path / "out/meeting_one.wav")
    assert main([*command, "--only", "one"]) == 0
    assert [path.name for path in (tmp_path / "out").glob("*.wav")] == ["meeting_one.wav"]
    np.testing.assert_array_equal(audio.read(tmp_path / "out/meeting_one.wav"), before)
    assert {line.split()[7] for line in (tmp_path / "out/meeting.rttm").read_text().splitlines()} == {"one"}
    assert "1 file already separated" in printed([*command, "--only", "one"])
    assert "written: none; not found: nobody" in printed([*command, "--only", "nobody"])
    told = json.loads((tmp_path / "out/meeting.json").read_text())
    assert told["estimates"] == [] and told["absent"] == ["nobody"] and not list((tmp_path / "out").glob("*.wav"))
    # Another recording of the same name is another enrollment.
    audio.write(tmp_path / "nobody.wav", voice(2, 3.0, 77), RATE)
    assert "written: nobody; not found: none" in printed([*command, "--only", "nobody"])


def test_an_enrollment_that_is_too_short_to_decide_is_told(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    *_, nobody = json.loads((tmp_path / "out/meeting.json").read_text())["enrolled"]
    save_model(noise_encoder(), tmp_path / "encoder", {"enrollment": {"threshold": nobody["likeness"] + 0.1}})
    command[command.index("--out") + 1] = str(tmp_path / "again")
    assert main(command) == 0
    line = "written: s1, zero, one; not found: none; enrollment too short to decide (less than 5 s of speech): nobody"
    assert line in capsys.readouterr().out
    told = json.loads((tmp_path / "again/meeting.json").read_text())
    assert told["absent"] == [] and told["too_short"] == ["nobody"]


def test_a_meeting_of_nobody_has_everybody_absent(command: list[str], tmp_path: Path) -> None:
    audio.write(tmp_path / "silence.wav", np.zeros(3 * RATE, np.float32), RATE)
    command[1] = str(tmp_path / "silence.wav")
    assert main(command) == 0
    assert json.loads((tmp_path / "out/silence.json").read_text())["absent"] == ["zero", "one", "nobody"]


@pytest.mark.parametrize(
    "info", [{"enrollment": {"threshold": "often"}}, {"enrollment": [1]}, {"counting": {"far": 1}}]
)
def test_what_an_encoder_cannot_mean_is_told_before_anything_is_separated(info, command, capsys) -> None:
    encoder, out = (Path(command[command.index(name) + 1]) for name in ("--speaker-encoder", "--out"))
    save_model(noise_encoder(), encoder, info)
    (section,) = info
    assert main(command) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"sepkit separate: {encoder}: {section}: found ")
    assert told.endswith("; export the encoder again with other values\n") and told.count("\n") == 1
    assert not out.exists()
