"""What calibration hears beside mixtures: one speaker alone, and two in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry
from sepkit.data.mixing import Mixed
from sepkit.inference.calibration import _in_turn, _more_of_first, _single

T = 400


@pytest.fixture
def mixed() -> Mixed:
    """Two steady sources, and noise that rises."""
    sources = np.stack([np.full(T, 0.5), np.full(T, -0.25), np.zeros(T)]).astype(np.float32)
    return Mixed(sources.sum(0) + np.linspace(0, 0.1, T, dtype=np.float32), sources)


def test_two_take_turns_for_half_or_all_of_their_time(mixed):
    noise = np.linspace(0, 0.1, T)
    short, long = _in_turn(mixed, False), _in_turn(mixed, True)
    np.testing.assert_allclose(short, np.repeat([0.5, -0.25], T // 2) + noise, atol=1e-6)
    np.testing.assert_allclose(long, np.repeat([0.5, -0.25], T) + np.concatenate([noise, noise[::-1]]), atol=1e-6)


def test_one_is_alone_as_long_as_two_in_turn(mixed, tmp_path: Path):
    np.testing.assert_allclose(_single(mixed, None), 0.5 + np.linspace(0, 0.1, T), atol=1e-6)
    audio.write(tmp_path / "more.wav", np.full(T, 0.1, np.float32), 8000)
    more = MixtureEntry(
        id="more",
        sample_rate=8000,
        num_samples=T,
        sources=[SourceEntry(path=str(tmp_path / "more.wav"), speaker="a")],
    )
    # At the level of the first utterance.
    quiet = Mixed(mixed.sources.sum(0), mixed.sources)
    np.testing.assert_allclose(_single(quiet, more), np.full(2 * T, 0.5), atol=1e-3)


def test_more_of_a_speaker_is_another_recording_of_them():
    def entry(name: str, *sources: tuple[str, str]) -> MixtureEntry:
        named = [SourceEntry(path=path, speaker=speaker) for path, speaker in sources]
        return MixtureEntry(id=name, sample_rate=8000, num_samples=T, sources=named)

    entries = [
        entry("0", ("a1", "a"), ("b1", "b")),
        entry("1", ("b1", "b"), ("a1", "a")),
        entry("2", ("c1", "c"), ("a2", "a")),
        entry("3", ("d1", ""), ("d2", "")),
    ]
    more = _more_of_first(entries, 0)
    assert more is not None and [source.path for source in more.sources] == ["a2"]
    assert all(_more_of_first(entries, number) is None for number in (1, 2, 3))
