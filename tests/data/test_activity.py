from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sepkit.data.activity import ActivityMeter, _means, milliseconds, rttm_lines
from sepkit.data.segments import Segment, write_segments
from sepkit.errors import UserError


def test_who_speaks_when(tmp_path):
    """Tones that start and stop, at one level, with one estimate that leaks into the other."""
    rate = 8000
    time = np.arange(10 * rate) / rate
    first = 0.1 * np.sin(2 * np.pi * 300 * time) * ((time > 1) & (time < 4) | (time > 4.1) & (time < 5))
    second = 0.1 * np.sin(2 * np.pi * 900 * time) * ((time > 3) & (time < 6) | (time > 8) & (time < 8.1)) + 0.05 * first
    meter = ActivityMeter(2, rate)
    for start in range(0, len(time), 777):
        meter.add(np.stack([first, second])[:, start : start + 777].astype(np.float32))
    turns = meter.segments()
    np.testing.assert_allclose(turns[0], [(1, 4)], atol=0.05)
    np.testing.assert_allclose(turns[1], [(3, 3)], atol=0.05)
    lines = rttm_lines("my talk", turns)
    heads = [line.split()[:3] + line.split()[7:8] for line in lines]
    assert heads == [["SPEAKER", "my_talk", "1", "s1"], ["SPEAKER", "my_talk", "1", "s2"]]
    assert all(len(line.split()) == 10 for line in lines)


def test_probabilities_decide_and_divided_speech_is_active_in_the_likeliest_estimate() -> None:
    """1 s each: the first alone, both, neither, and 0.3 and 0.4, which sum up to more than the limit of 0.65."""
    meter = ActivityMeter(2, 8000)
    meter.add(np.zeros((2, 4 * 8000), np.float32))
    active = np.repeat([[0.7, 0.9, 0.1, 0.3], [0.2, 0.7, 0.3, 0.4]], 50, axis=1)
    assert meter.segments(active=active) == [[(0.0, 2.0)], [(1.0, 1.0), (3.0, 1.0)]]


@pytest.mark.parametrize(("rate", "length"), [(8000, 24077), (11025, 33160), (16000, 48050), (44100, 132313)])
def test_no_turn_ends_after_the_recording(rate: int, length: int, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal((1, length)).astype(np.float32)
    meter = ActivityMeter(1, rate)
    meter.add(noise)
    (((start, seconds),),) = meter.segments()
    assert start == 0 and seconds == pytest.approx(length / rate, abs=1e-9)
    # Neither does one that is written, and what is cut into three has no gaps of more than a rounding.
    parts = [(k * seconds / 3, seconds / 3) for k in range(3)]
    lines = [line.split() for line in rttm_lines("a", [parts])]
    (tmp_path / "x.csv").write_text("")
    rows = write_segments(tmp_path / "x.csv", [Segment("a", *part) for part in parts]).read_text().splitlines()[1:]
    for written in ([line[3:5] for line in lines], [row.split(",")[1:3] for row in rows]):
        milliseconds = [[round(1000 * float(word)) for word in words] for words in written]
        assert sum(milliseconds[-1]) == int(1000 * length / rate)
        assert all(sum(one) == two[0] for one, two in pairwise(milliseconds))


def test_times_are_rounded_down_but_for_the_rounding_of_floats() -> None:
    """0.3 + 0.6 is a little less than 0.9, and ends are those of the recording."""
    found = [milliseconds(*times) for times in ((0.3, 0.6), (1.0009, 0.0002), (0.0014, 0.0005), (2.0, np.inf))]
    assert found == [("0.300", "0.600"), ("1.000", "0.001"), ("0.001", "0.000"), ("2.000", "")]
    turns = [[(1.0, 1.0), (3.0, 1.0)], [(2.0, 1.0), (0.5, 0.25)]]
    found = [line.split()[3] + line.split()[7] for line in rttm_lines("a", turns)]
    assert found == ["0.500s2", "1.000s1", "2.000s2", "3.000s1"]
    assert _means(np.array([[1.0, 2.0, 6.0, 0.0]]), 1).tolist() == [[4 / 3, 3.0, 8 / 3, 2.0]]


def test_speakers_in_rttm_have_no_spaces_and_are_told_apart() -> None:
    (line,) = rttm_lines("a", [[(0.0, 1.0)], []], ["Ann Lee", "Bo"])
    assert line.split()[7] == "Ann_Lee" and len(line.split()) == 10
    with pytest.raises(UserError, match="names that differ by more than spaces"):
        rttm_lines("a", [[(0.0, 1.0)], []], ["Ann Lee", "Ann_Lee"])
