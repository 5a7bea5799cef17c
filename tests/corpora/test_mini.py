from pathlib import Path

import numpy as np
import pytest

from sepkit.corpora.mini import ACCENTS, VOICES
from sepkit.corpora.mini import prepare_mini as _prepare_mini
from sepkit.corpora.options import MiniOptions
from sepkit.data import audio
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.data.tts import find_synthesizer
from sepkit.errors import UserError
from tests.complaint import complaint
from tests.corpora.calling import by_place

prepare_mini = by_place(_prepare_mini, MiniOptions, "out", "speakers")
SPEECH = {"train_voices": 4, "train_sentences": 2, "heldout_sentences": 2, "segment_seconds": 2.0}
TINY = SPEECH | {"train_mixtures": 8, "dev_mixtures": 4, "test_mixtures": 20}


@pytest.fixture(scope="module", autouse=True)
def _espeak_ng() -> None:
    try:
        find_synthesizer()
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def mini(tmp_path_factory) -> Path:
    return prepare_mini(tmp_path_factory.mktemp("mini"), **TINY)


def speakers_of(mini: Path, split: str) -> set[str]:
    return {source.speaker for entry in read_manifest(mini / f"{split}.jsonl") for source in entry.sources}


def test_no_voice_stands_in_two_splits():
    names = [name for by_sex in VOICES.values() for text in by_sex.values() for name in text.split()]
    assert len(names) == len(set(names))
    held_out = {split: sum(len(text.split()) for text in VOICES[split].values()) for split in VOICES}
    assert held_out["test"] == 16 and held_out["train"] >= 36


def test_every_voice_and_accent_is_there():
    synthesizer = find_synthesizer()
    names = {name for by_sex in VOICES.values() for text in by_sex.values() for name in text.split()}
    assert names <= synthesizer.variants()
    files = {path.name.lower() for path in synthesizer.data_folder.glob("lang/**/*")}
    assert {accent.lower() for accent in ACCENTS} <= files


def test_the_tiny_set(mini):
    assert len(speakers_of(mini, "train")) == 4
    assert not speakers_of(mini, "test") & (speakers_of(mini, "train") | speakers_of(mini, "dev"))
    test = read_manifest(mini / "test.jsonl")
    assert len(test) == 20 and len(speakers_of(mini, "test")) == 16
    one_sex = [len({source.sex for source in entry.sources}) == 1 for entry in test]
    assert sum(one_sex) == 10
    assert all(not Path(source.path).is_absolute() for entry in test for source in entry.sources)
    for entry in test:
        mixed = mix_entry(entry)
        assert mixed.mixture.shape == (16000,) and np.abs(mixed.mixture).max() < 1


def test_running_again_makes_no_recording_again_and_the_same_manifests(mini):
    before = {path: path.stat().st_mtime_ns for path in mini.rglob("*.wav")}
    manifests = {path: path.read_bytes() for path in mini.glob("*.jsonl")}
    victim = next(iter(before))
    samples = victim.read_bytes()
    victim.unlink()
    prepare_mini(mini, **TINY)
    assert {path for path in before if path.stat().st_mtime_ns != before[path]} == {victim}
    assert victim.read_bytes() == samples
    assert {path: path.read_bytes() for path in mini.glob("*.jsonl")} == manifests


def test_recordings_that_are_there_need_no_synthesizer(mini, monkeypatch):
    monkeypatch.setattr("sepkit.corpora.mini.find_synthesizer", lambda: pytest.fail("asked for espeak-ng"))
    prepare_mini(mini, **TINY)


def test_recordings_of_two_versions_are_not_mixed(tmp_path):
    (tmp_path / "mini.json").write_text('{"espeak_ng": "1.0"}')
    complaint(lambda: prepare_mini(tmp_path, **TINY), r"made with espeak_ng 1\.0, not")


def test_recordings_of_another_seed_are_not_mixed_in(mini):
    complaint(lambda: prepare_mini(mini, seed=1, **TINY), r"mini\.json: made with seed 0, not 1")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"speakers": 9}, "--speakers: found 9, expected 1 to 4"), ({"train_voices": 99}, "--train-voices: found 99")],
)
def test_arguments_out_of_range(tmp_path, options, message):
    complaint(lambda: prepare_mini(tmp_path / "out", **(TINY | options)), message)
    assert not (tmp_path / "out" / "mini.json").exists()


def test_three_speakers_at_16_khz(tmp_path):
    out = prepare_mini(
        tmp_path, 3, train_voices=3, train_sentences=1, heldout_sentences=1, train_mixtures=1, dev_mixtures=1,
        test_mixtures=2, sample_rate=16000, segment_seconds=1.0,
    )  # fmt: skip
    test = read_manifest(out / "test.jsonl")
    assert [len({source.sex for source in entry.sources}) for entry in test] == [1, 2]
    assert mix_entry(test[0]).sources.shape == (3, 16000)
    assert audio.info(next(out.rglob("*.wav"))).sample_rate == 16000


@pytest.mark.slow
def test_the_demonstration_set(tmp_path, capsys):
    """100 mixtures of 16 unseen voices, half of one sex, mean input SI-SDR near 0 dB."""
    test = read_manifest(prepare_mini(tmp_path) / "test.jsonl")
    assert len(test) == 100 and len(speakers_of(tmp_path, "test")) == 16
    assert sum(len({source.sex for source in entry.sources}) == 1 for entry in test) >= 50
    ratios_db = []
    for entry in test:
        mixed = mix_entry(entry)
        for source in mixed.sources.astype(float):
            along = (mixed.mixture @ source) / (source @ source) * source
            ratios_db.append(10 * np.log10((along @ along) / np.sum((mixed.mixture - along) ** 2)))
    assert abs(np.mean(ratios_db)) < 0.5
    assert "of 16 speakers" in capsys.readouterr().out
