"""Speakers that change channels in a long recording, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry, write_manifest
from sepkit.evaluation.continuity import continuity

RATE = 2000
CHUNK = 5 * RATE


@pytest.fixture
def sources() -> np.ndarray:
    """A minute of two noises, of which the second is silent from 20 to 30 s."""
    sources = 0.1 * np.random.default_rng(0).standard_normal((2, 12 * CHUNK)).astype(np.float32)
    sources[1, 4 * CHUNK : 6 * CHUNK] = 0
    return sources


def leaky(sources: np.ndarray, leak: float = 0.1) -> np.ndarray:
    return (1 - leak) * sources + leak * sources[::-1]


def swapped(sources: np.ndarray) -> np.ndarray:
    """Chunks 2, 3 are given to the other; 4 and 5 have one speaker; 8 is not separated; 9 to 11 change over."""
    estimates = leaky(sources)
    for first, last in ((2, 6), (9, 12)):
        part = slice(first * CHUNK, last * CHUNK)
        estimates[:, part] = estimates[::-1, part].copy()
    estimates[:, 8 * CHUNK : 9 * CHUNK] = sources[:, 8 * CHUNK : 9 * CHUNK].sum(0)
    return estimates


def test_changes_are_counted_where_both_speak(sources: np.ndarray) -> None:
    counted, changes, minority, best, fixed = continuity(swapped(sources), sources, sources.sum(0), RATE)
    # 0 0 1 1 . . 0 0 x 1 1 1
    assert counted == 9 and changes == pytest.approx(3.0) and minority == pytest.approx(4 / 9)
    # White noise with a tenth of the energy's root leaked is 20 log10(0.9 / 0.1) above 0 dB.
    right, wrong = 20 * np.log10(9), -20 * np.log10(9)
    assert best == pytest.approx((9 * right + 0) / 10, abs=0.3)
    # The second assignment is the usual one: 5 of 9.
    assert fixed == pytest.approx((5 * right + 4 * wrong) / 10, abs=0.3)


def test_more_estimates_than_sources(sources: np.ndarray) -> None:
    noise = 0.1 * np.random.default_rng(1).standard_normal((1, sources.shape[1])).astype(np.float32)
    found = continuity(np.concatenate([noise, leaky(sources)]), sources, sources.sum(0), RATE)
    assert found[:3] == (10, 0, 0)


def test_nobody_together(sources: np.ndarray) -> None:
    for signals in (sources[:, :RATE], sources[:1], sources * np.array([[1], [0]], np.float32)):
        found = continuity(signals, signals, signals.sum(0), RATE)
        assert found[:2] == (0, 0) and np.isnan(found[2:]).all()


def test_the_command_measures_it_beside_other_metrics(sources: np.ndarray, tmp_path: Path) -> None:
    for k in (0, 1):
        audio.write(tmp_path / f"s{k + 1}.wav", sources[k], RATE)
        audio.write(tmp_path / "estimates" / f"talk_s{k + 1}.wav", swapped(sources)[k], RATE)
    parts = [SourceEntry(f"s{k}.wav", speaker=str(k)) for k in (1, 2)]
    manifest = write_manifest(tmp_path / "talk.jsonl", [MixtureEntry("talk", RATE, 12 * CHUNK, parts, mode="max")])
    line = ["evaluate", "--estimates", str(tmp_path / "estimates"), "--manifest", str(manifest)]
    assert main([*line, "--metrics", "si_sdr", "continuity", "--out", str(tmp_path / "out")]) == 0
    metrics = json.loads((tmp_path / "out" / "summary.json").read_text())["metrics"]
    assert metrics["speaker_changes_per_minute"]["mean"] == pytest.approx(3.0)
    assert metrics["si_sdr_db"]["n"] == metrics["fixed_si_sdri_db"]["n"] == 1
