"""Small corpora in the layouts of LibriMix and VCTK-2mix, read by the commands that read those."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sepkit.cli.main import main as sepkit
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from tools import small_corpora


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Three readers and two others in every split, two utterances each, the last reader's too short; noises."""
    random = np.random.default_rng(0)
    for number, split in enumerate(("train", "dev", "test")):
        readers = {f"{number}1": 3.1, f"{number}2": 3.4, f"{number}3": 2.0, "90001": 3.5, "90002": 3.5}
        for reader, seconds in readers.items():
            for take in range(2):
                path = tmp_path / "speech_mini" / "wav8k" / split / reader / "7" / f"{reader}-7-{take}.flac"
                path.parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(path, 0.1 * random.standard_normal(int(8000 * seconds)), 8000)
        path = tmp_path / "noise_mini" / "wav8k" / split / "rain" / f"{number}.flac"
        path.parent.mkdir(parents=True)
        soundfile.write(path, 0.1 * random.standard_normal(40000), 8000)
    return tmp_path


def test_the_recipes_commands_read_it(recordings, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(small_corpora, "SPLITS", [(*names, 6) for *names, _ in small_corpora.SPLITS])
    monkeypatch.setattr(small_corpora, "VCTK_MIXTURES", 2)
    corpus = tmp_path / "corpus"
    assert small_corpora.main([str(recordings), "--out", str(corpus)]) == 0
    assert "6 mixtures of 4 utterances by 2 speakers, 1 noises" in capsys.readouterr().out
    noise = ["--wham-noise", str(corpus / "wham_noise"), "--sample-rate", "8000"]
    read = {
        "librimix": ["--librispeech", str(corpus / "LibriSpeech"), "--metadata", str(corpus / "metadata/libri2mix")],
        "vctk-2mix": ["--vctk", str(corpus / "VCTK-Corpus"), "--metadata", str(corpus / "metadata/vctk2mix")],
    }
    for name, options in read.items():
        assert sepkit(["prepare", name, *options, *noise, "--out", str(tmp_path / name)]) == 0
    report = json.loads((tmp_path / "librimix" / "verification.json").read_text())
    assert [split["mixtures"] for split in report["splits"].values()] == [6, 6, 6]
    unseen = read_manifest(tmp_path / "vctk-2mix" / "test.jsonl")
    assert len(unseen) == 2 and {source.speaker for line in unseen for source in line.sources} == {"p90001", "p90002"}
    for line in read_manifest(tmp_path / "librimix" / "test_noisy.jsonl"):
        example = mix_entry(line)
        levels_db = [10 * np.log10(np.mean(np.square(source))) for source in example.sources]
        noise_db = 10 * np.log10(np.mean(np.square(example.noise)))
        assert all(-33.5 < level < -24.5 for level in levels_db) and -38.5 < noise_db < -29.5
        assert {source.speaker for source in line.sources} == {"21", "22"}


def test_too_few_recordings_are_one_line(recordings: Path, tmp_path: Path, capsys) -> None:
    assert small_corpora.main([str(recordings), "--out", str(tmp_path / "corpus")]) == 2
    assert "libri2mix_train-clean-100.csv: 8 pairs of two speakers, expected 4000 or more" in capsys.readouterr().err
    assert small_corpora.main([str(tmp_path / "none"), "--out", str(tmp_path / "corpus")]) == 2
    assert "no FLAC file" in capsys.readouterr().err
