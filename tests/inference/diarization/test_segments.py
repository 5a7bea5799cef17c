"""Segments and turns by hand, at the bounds and beside them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sepkit.data import audio
from sepkit.inference.diarization import segments as module
from sepkit.inference.diarization.segments import Source, SpeechSegment, find_segments
from tests.complaint import complaint
from tests.noise_voices import RATE


def segments(*rows: tuple[int, float, float]) -> list[SpeechSegment]:
    return [SpeechSegment(*row) for row in rows]


@pytest.mark.parametrize(
    ("rows", "clear"),
    [
        # A second is long enough; overlap within a channel does not count.
        ([(0, 0.0, 1.0), (0, 0.5, 1.0), (0, 5.0, 0.99)], [True, True, False]),
        # A quarter of the first and an eighth of the second, then half of the third and a quarter of the fourth.
        ([(0, 0.0, 1.0), (1, 0.75, 2.0), (0, 4.0, 1.0), (1, 4.5, 2.0)], [True, True, False, True]),
        # Two overlaps add up: a quarter each.
        ([(0, 0.0, 2.0), (1, 0.0, 0.5), (2, 1.5, 3.0)], [False, False, True]),
        # One that ends where the other begins, and one inside another.
        ([(0, 0.0, 1.0), (1, 1.0, 4.0), (0, 2.0, 1.0)], [True, True, False]),
    ],
)
def test_clear_segments_are_long_and_mostly_alone(rows: list, clear: list[bool]) -> None:
    assert module.clear_segments(segments(*rows)).tolist() == clear


def test_turns_are_joined_over_short_pauses_alone() -> None:
    assert module.join_turns([(1.25, 1.0), (0.0, 1.0), (2.75, 0.5)]) == [(0.0, 2.25), (2.75, 0.5)]
    assert module.join_turns([(0.0, 5.0), (1.0, 1.0)]) == [(0.0, 5.0)] and module.join_turns([]) == []
    apart = segments((0, 1.5, 1.0), (0, 0.0, 1.4375), (0, 2.625, 1.0), (1, 2.5, 1.0))
    assert module.neighbors_in_turns(apart).tolist() == [[1, 0]] and module.neighbors_in_turns([]).shape == (0, 2)


def test_waveforms_of_long_files_are_those_of_their_times(tmp_path: Path) -> None:
    """Two channels of 70 s at 1000 Hz, a number a sample; the last segment is longer than the file."""
    whole = np.arange(140_000, dtype=np.float32).reshape(2, -1) / 2**18
    paths = tuple(audio.write(tmp_path / f"{k}.wav", channel, 1000) for k, channel in enumerate(whole))
    parts = segments((1, 0.5, 1.0), (0, 1.0, 35.0), (1, 20.0, 0.25), (1, 30.25, 1.0), (0, 69.5, 1.0), (0, 69.75, 0.0))
    found = list(module.waveforms_of(Source(Path("x"), paths, ("0", "1")), parts, 1000))
    for samples, (channel, first, last) in zip(
        found,
        [(1, 500, 1500), (0, 1000, 36000), (1, 20000, 20250), (1, 30250, 31250), (0, 69500, 70000), (0, 69750, 69751)],
        strict=True,
    ):
        np.testing.assert_array_equal(samples[: last - first], whole[channel, first:last])
    assert len(found[4]) == 1000 and not found[4][500:].any()


def test_estimates_that_do_not_belong_together(tmp_path: Path) -> None:
    """They may differ by a second and a hundredth."""
    tone = 0.5 * np.sin(np.arange(10_000)).astype(np.float32)
    paths = {
        name: audio.write(tmp_path / f"{name}.wav", tone[:count], rate)
        for name, count, rate in (("a", 8000, 1000), ("slack", 9080, 1000), ("long", 9081, 1000), ("rate", 8000, 1001))
    }
    found, short = find_segments(Source(Path("x"), (paths["a"], paths["slack"]), ("a", "b")))
    assert {segment.channel for segment in found} == {0, 1} and not short
    assert max(segment.start_seconds + segment.duration_seconds for segment in found) == pytest.approx(8.0, abs=0.02)
    for other, words in (("long", "found 9081 samples at 1000 Hz, expected 8000 at 1000"), ("rate", "at 1001 Hz")):
        complaint(lambda other=other: find_segments(Source(Path("x"), (paths["a"], paths[other]), ("a", "b"))), words)


def test_nothing_has_no_embeddings() -> None:
    class Encoder:
        embedding_size = 7

    embeddings, speech = module.embed(Encoder(), [])  # type: ignore[arg-type]
    assert embeddings.shape == (0, 7) and speech.shape == (0,)


def test_turns_are_cut_into_equal_segments(meeting):
    segments, short = find_segments(Source(Path("meeting"), (meeting / "talk" / "meeting.wav",), ("meeting.wav",)))
    assert len(segments) == 8 and not short
    assert all(s.duration_seconds == pytest.approx(1.0, abs=0.05) for s in segments)


@pytest.mark.parametrize(("below_db", "kept"), [(11.0, [0, 1]), (15.0, [0])])
def test_segments_far_below_all_estimates_are_left_out(tmp_path, below_db, kept):
    share = 10 ** (-below_db / 10)
    noise = 0.1 * np.random.default_rng(0).standard_normal((2, RATE)).astype(np.float32)
    levels = np.sqrt([1 - share, share])
    paths = [audio.write(tmp_path / f"{k}.wav", level * noise[k], RATE) for k, level in enumerate(levels)]
    found, _ = find_segments(Source(Path("a"), tuple(paths), ("0.wav", "1.wav")))
    assert [segment.channel for segment in found] == kept


@pytest.mark.parametrize(("seconds", "count"), [(1.5, 1), (3.0, 2), (3.001, 3)])
def test_a_turn_of_whole_windows_has_no_segment_more(seconds, count):
    segments, short = module.cut_turns(SimpleNamespace(segments=lambda: [[(0.5, seconds)]]))
    expected = [SpeechSegment(0, 0.5 + k * seconds / count, seconds / count) for k in range(count)]
    assert segments == expected and not short
