from __future__ import annotations

import numpy as np

from sepkit.data.activity import ActivityMeter, rttm_lines


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
    assert [line.split()[:3] + line.split()[7:8] for line in lines] == [
        ["SPEAKER", "my_talk", "1", "s1"],
        ["SPEAKER", "my_talk", "1", "s2"],
    ]
    assert all(len(line.split()) == 10 for line in lines)
