from functools import partial

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.corpora.conversation import LONGEST_SILENCE_SECONDS
from sepkit.corpora.conversation import prepare_conversation as _prepare_conversation
from sepkit.corpora.options import ConversationOptions
from sepkit.data import audio
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.data.seglst import read_seglst
from tests.complaint import complaint
from tests.corpora.calling import by_place

prepare_conversation = by_place(_prepare_conversation, ConversationOptions, "speech", "out")
RATE = 8000


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """Three speakers of test with two recordings, one of train."""
    folder = tmp_path_factory.mktemp("speech")
    generator = np.random.default_rng(0)
    for name in ("test/a", "test/b", "test/c", "train/d"):
        for number in range(2):
            samples = 0.1 * generator.standard_normal(3 * RATE + 100 * number).astype(np.float32)
            audio.write(folder / name / f"{number}.wav", samples, RATE)
    return folder


def test_a_conversation_is_the_sum_of_its_sources(tmp_path, speech):
    (entry,) = read_manifest(prepare_conversation(speech, tmp_path / "out", minutes=2.005, seed=3))
    mixed = mix_entry(entry)
    assert mixed.mixture.shape == (round(120.3 * RATE),) and len(entry.sources) == 2
    np.testing.assert_array_equal(mixed.sources.sum(0), mixed.mixture)
    assert {source.speaker for source in entry.sources} < {"a", "b", "c"}
    assert np.abs(mixed.mixture).max() < 1
    # Silences of one speaker, turns, and both at once.
    speaks = np.abs(mixed.sources[:, : 120 * RATE].reshape(2, -1, RATE // 10)).max(-1) > 0
    for row in speaks:
        edges = np.flatnonzero(np.diff(np.concatenate([[True], row, [True]]).astype(int)))
        silences = np.diff(edges)[::2] / 10
        assert silences.max() <= LONGEST_SILENCE_SECONDS and 0.05 < row.mean() < 0.95
    assert speaks.all(0).any() and (speaks[0] & ~speaks[1]).any() and (speaks[1] & ~speaks[0]).any()


def test_the_same_seed_makes_the_same_and_another_another(tmp_path, speech):
    made = {}
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        prepare_conversation(speech, tmp_path / name, minutes=0.5, seed=seed)
        made[name] = (tmp_path / name / "mixture.flac").read_bytes()
    assert made["one"] == made["same"] != made["other"]
    complaint(lambda: prepare_conversation(speech, tmp_path / "one", minutes=0.5, seed=5), "made with")


def test_another_rate(tmp_path, speech):
    options = {"minutes": 0.2, "speakers": 3, "sample_rate": 11025}
    (entry,) = read_manifest(prepare_conversation(speech, tmp_path / "out", **options))
    assert {source.speaker for source in entry.sources} == set("abc") and entry.sample_rate == 11025
    assert audio.info(tmp_path / "out" / "s3.flac").num_samples == (12 * 11025)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"minutes": 0}, "minutes"), ({"minutes": float("nan")}, "minutes"), ({"speakers": 0}, "speakers"),
        ({"speakers": 4}, "expected at least 4"), ({"split": "dev"}, "found 0 speakers"),
    ],
)  # fmt: skip
def test_bad_arguments_are_told_in_one_line(tmp_path, speech, options, word):
    complaint(lambda: prepare_conversation(speech, tmp_path / "out", **({"minutes": 0.1} | options)), word)


def test_command_line(tmp_path, speech, capsys):
    assert main(["prepare", "conversation", "--speech", str(speech), "--out", str(tmp_path), "--minutes", "0.1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "conversation.jsonl")


@pytest.mark.parametrize("most", [1, 2])
def test_turn_taking(tmp_path, speech, most):
    options = dict(minutes=3, speakers=3, max_overlap=most, seed=1)
    manifest = prepare_conversation(speech, tmp_path / "out", **options)
    (entry,) = read_manifest(manifest)
    speaks = mix_entry(entry).sources != 0
    assert speaks.sum(0).max() == most and speaks.mean(1).min() > 0.1
    lines = [line.split() for line in (tmp_path / "out" / "conversation.rttm").read_text().splitlines()]
    assert {line[7] for line in lines} == {"a", "b", "c"}
    names = [source.speaker for source in entry.sources]
    told = np.zeros_like(speaks)
    for line in lines:
        start, length = (round(float(word) * RATE) for word in line[3:5])
        told[names.index(line[7]), start : start + length] = True
    assert (told != speaks).mean() < 0.01
    again = prepare_conversation(speech, tmp_path / "again", **options)
    assert again.read_text() == manifest.read_text()
    assert (again.parent / "conversation.rttm").read_text() == (tmp_path / "out" / "conversation.rttm").read_text()


def test_nobody_at_once_is_refused(tmp_path, speech):
    complaint(lambda: prepare_conversation(speech, tmp_path / "out", max_overlap=0), "max_overlap: found 0")


def test_what_is_said_is_told_with_its_time(tmp_path, speech):
    """Each text stands where its recording is heard; what the end cuts is neither heard nor told."""
    for name in "abc":
        for number in range(2):
            wave = audio.read(speech / f"test/{name}/{number}.wav")
            audio.write(tmp_path / f"speech/test/{name}/{name}{number}.wav", wave, RATE)
    (tmp_path / "text").write_text("".join(f"{name}{k} word of  {name}{k}\n" for name in "abc" for k in range(2)))
    options = {"minutes": 0.5, "speakers": 2, "max_overlap": 1, "texts": tmp_path / "text"}
    prepare_conversation(tmp_path / "speech", tmp_path / "out", **options)
    segments = read_seglst(tmp_path / "out/conversation.seglst.json")
    mixture = audio.read(tmp_path / "out/mixture.flac")
    heard = np.zeros(len(mixture), bool)
    for segment in segments:
        begin, end = round(segment.start_seconds * RATE), round(segment.end_seconds * RATE)
        heard[max(0, begin - 16) : end + 16] = True
        assert segment.session == "mixture" and segment.words.startswith(f"word of  {segment.speaker}")
        # Its length tells which of both recordings it is. Times are in whole milliseconds.
        assert abs(end - begin - 3 * RATE - 100 * int(segment.words[-1])) <= 16
    assert len(segments) > 3 and np.abs(mixture[heard]).mean() > 0.01 and not mixture[~heard].any()
    (tmp_path / "text").write_text("a0 word\n")
    makes = partial(prepare_conversation, tmp_path / "speech", tmp_path / "other", **options)
    complaint(makes, "texts: found no line for")
    (tmp_path / "text").write_text("0 word\n1 word\n")
    complaint(lambda: prepare_conversation(speech, tmp_path / "third", **options), "have one name")
