from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry, write_manifest
from sepkit.errors import UserError
from sepkit.evaluation.continuity import measure_continuity, score_chunks, summarize_chunks

RATE = 2000
CHUNK = 5 * RATE


@pytest.fixture
def conversation(tmp_path):
    """A minute of two noises, of which the second is silent from 20 to 30 s; (manifest, sources)."""
    sources = 0.1 * np.random.default_rng(0).standard_normal((2, 12 * CHUNK)).astype(np.float32)
    sources[1, 4 * CHUNK : 6 * CHUNK] = 0
    for number, source in enumerate(sources, start=1):
        audio.write(tmp_path / f"s{number}.wav", source, RATE)
    audio.write(tmp_path / "mixture.wav", sources.sum(0), RATE)
    parts = [SourceEntry(f"s{number}.wav", speaker=str(number)) for number in (1, 2)]
    entry = MixtureEntry("talk", RATE, 12 * CHUNK, parts, mode="max", mixture="mixture.wav")
    return write_manifest(tmp_path / "conversation.jsonl", [entry]), sources


def write(folder, estimates):
    for number, estimate in enumerate(estimates, start=1):
        audio.write(folder / f"talk_s{number}.wav", estimate, RATE)
    return folder


def leaky(sources, leak=0.1):
    return (1 - leak) * sources + leak * sources[::-1]


def test_changes_are_counted_where_both_speak(tmp_path, conversation):
    manifest, sources = conversation
    estimates = leaky(sources)
    # Chunks 2, 3 are given to the other; 4 and 5 have one speaker; 8 is not separated; 9 to 11 change over.
    for first, last in ((2, 6), (9, 12)):
        part = slice(first * CHUNK, last * CHUNK)
        estimates[:, part] = estimates[::-1, part].copy()
    estimates[:, 8 * CHUNK : 9 * CHUNK] = sources[:, 8 * CHUNK : 9 * CHUNK].sum(0)
    result = measure_continuity(manifest, write(tmp_path / "est", estimates), tmp_path / "out")
    (found,) = result["mixtures"]
    assert (found["n_chunks"], found["n_excluded"]) == (10, 1)
    # 0 0 1 1 . . 0 0 x 1 1 1
    assert found["changes"] == 3 and found["changes_per_minute"] == pytest.approx(3.0)
    assert found["minority_share"] == pytest.approx(4 / 9)
    # By hand: white noise with a tenth of the energy's root leaked is 20 log10(0.9 / 0.1) above 0 dB.
    separated, changed = 20 * np.log10(9), -20 * np.log10(9)
    assert found["oracle_si_sdri_db"] == pytest.approx((9 * separated + 0) / 10, abs=0.3)
    # The second assignment is the usual one: 5 of 9.
    usual = (5 * separated + 4 * changed) / 10
    assert found["fixed_si_sdri_db"] == pytest.approx(usual, abs=0.3)
    assert json.loads((tmp_path / "out" / "continuity.json").read_text()) == result
    with open(tmp_path / "out" / "continuity.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["start_seconds"]) for row in rows] == [0, 5, 10, 15, 30, 35, 40, 45, 50, 55]


def test_more_estimates_than_sources(tmp_path, conversation):
    manifest, sources = conversation
    noise = 0.1 * np.random.default_rng(1).standard_normal(sources.shape[1]).astype(np.float32)
    estimates = np.stack([noise, *leaky(sources)])
    (found,) = measure_continuity(manifest, write(tmp_path / "est", estimates), tmp_path / "out")["mixtures"]
    assert found["changes"] == 0 and found["minority_share"] == 0


def test_nobody_together():
    found = summarize_chunks([], 1.0)
    assert found["n_chunks"] == 0 and found["changes"] == 0 and found["minority_share"] is None


def test_bad_input_is_told_in_one_line(tmp_path, conversation):
    manifest, sources = conversation
    folder = write(tmp_path / "short", sources[:, :-1])
    with pytest.raises(UserError, match="expected 120000"):
        measure_continuity(manifest, folder, tmp_path / "out")
    with pytest.raises(UserError, match="no estimates"):
        measure_continuity(manifest, tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match="2 to 600"):
        measure_continuity(manifest, folder, tmp_path / "out", 0.5)
    entry = MixtureEntry("talk", RATE, 12 * CHUNK, [], mixture="mixture.wav", folder=tmp_path)
    assert score_chunks(entry, [], 70.0) == []
    alone = write_manifest(tmp_path / "alone.jsonl", [entry])
    with pytest.raises(UserError, match="expected at least 2"):
        measure_continuity(alone, folder, tmp_path / "out")


def test_command_line(tmp_path, conversation, capsys):
    manifest, sources = conversation
    write(tmp_path / "est", leaky(sources))
    line = ["continuity", "--manifest", str(manifest), "--chunk-seconds", "5", "--out", str(tmp_path / "out")]
    assert main([*line, "--estimates", str(tmp_path / "est")]) == 0
    out = capsys.readouterr().out
    assert "0 changes, 0.00 a minute" in out and out.splitlines()[-1] == str(tmp_path / "out")
    assert main([*line, "--model", "none"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
