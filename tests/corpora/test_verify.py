import hashlib
import json

import numpy as np
import pytest

from sepkit.corpora._verify import check_whole, verify
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry
from tests.complaint import complaint

RATE = 8000


@pytest.fixture
def entries(tmp_path) -> dict[str, list[MixtureEntry]]:
    generator = np.random.default_rng(0)
    splits: dict[str, list[MixtureEntry]] = {}
    for split, speakers in [("train", "abcd"), ("dev", "ef"), ("test", "gh")]:
        splits[split] = []
        for number in range(6):
            sources = 0.1 * generator.standard_normal((2, 900))
            name = f"{split}{number}"
            audio.write(tmp_path / "mix" / f"{name}.wav", sources.sum(axis=0), RATE, "PCM_16", "floor")
            for index, source in enumerate(sources, start=1):
                audio.write(tmp_path / f"s{index}" / f"{name}.wav", source, RATE, "PCM_16", "floor")
            chosen = [speakers[number % len(speakers)], speakers[(number + 1) % len(speakers)]]
            parts = [SourceEntry(f"s{i}/{name}.wav", speaker) for i, speaker in enumerate(chosen, start=1)]
            splits[split].append(MixtureEntry(name, RATE, 900, parts, mixture=f"mix/{name}.wav", folder=tmp_path))
    return splits


def expected(entries: dict[str, list[MixtureEntry]]) -> dict[str, int]:
    return {name: len(split) for name, split in entries.items()}


def test_a_good_corpus_has_no_problems_and_its_report_says_what_it_holds(entries, tmp_path, capsys):
    assert verify(tmp_path, entries, expected(entries), sample=3) == []
    train = json.loads((tmp_path / "verification.json").read_text())["splits"]["train"]
    assert [train[name] for name in ("mixtures", "expected", "speakers", "sources")] == [6, 6, 4, 2]
    samples = audio.read(tmp_path / "mix" / "train0.wav")
    checksum = hashlib.sha256((samples * 32768).astype("<i2").tobytes()).hexdigest()
    assert train["sha256"]["train0"] == checksum and len(train["sha256"]) == 3
    assert "train: 6 of 6 mixtures of 2, 4 speakers" in capsys.readouterr().out


def test_what_is_wrong_is_said_and_not_raised(entries, tmp_path, capsys):
    entries["dev"][2].sources[0].speaker = "a"
    (tmp_path / "s1" / "test1.wav").unlink()
    audio.write(tmp_path / "s2" / "test3.wav", np.ones(7), RATE, "PCM_16")
    problems = verify(tmp_path, entries, expected(entries) | {"dev": 9})
    of_files = ("test1.wav: no such file", "test3.wav: 7 samples, expected 900")
    for pattern in ("dev: 6 of 9 mixtures", *of_files, "train and dev share 1 speaker(s): a"):
        assert sum(pattern in problem for problem in problems) == 1, pattern
    assert len(problems) == 4
    assert "warning: 4 problem(s)" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_a_file_that_was_cut_short_is_refused(suffix, tmp_path):
    path = tmp_path / f"x{suffix}"
    audio.write(path, 0.1 * np.random.default_rng(1).standard_normal(40000), RATE, "PCM_16")
    assert check_whole(path).num_samples == 40000
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    complaint(lambda: check_whole(path), r"truncated")
