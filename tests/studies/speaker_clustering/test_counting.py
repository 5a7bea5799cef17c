"""Calibration of counts: what dev meetings give, and which thresholds are chosen."""

from __future__ import annotations

import numpy as np

from sepkit.inference.diarization.clustering import unit_rows
from sepkit.inference.diarization.segments import SpeechSegment
from sepkit.studies.speaker_clustering.counting import Countable, Meeting, calibrate, sets_of_meetings


def meeting() -> Meeting:
    """Two people in turns of 60 s for five minutes; the second is also heard in the last 10 s of the first's turns."""
    generator = np.random.default_rng(0)
    centers = np.eye(2, 8)
    stretches = [SpeechSegment(0, 1.5 * k, 1.5) for k in range(200)]
    speakers = np.array([int(stretch.start_seconds // 60) % 2 for stretch in stretches])
    spoken = np.zeros((2, 15000), bool)
    for start in range(0, 300, 60):
        first = start // 60 % 2
        spoken[first, start * 50 : (start + 60) * 50] = True
        if first == 0:
            spoken[1, (start + 50) * 50 : (start + 60) * 50] = True
    return Meeting(stretches, unit_rows(centers[speakers] + 0.1 * generator.standard_normal((200, 8))), spoken)


def test_sets_of_a_meeting() -> None:
    sets = sets_of_meetings([meeting()])
    assert {name: len(own) for name, own in sets.items()} == {
        "meetings": 1,
        "parts of meetings": 4,
        "one person of a meeting": 2,
    }
    assert [item.speakers for item in sets["meetings"]] == [2]
    # A minute from 0 s holds both, as the second is heard at its end; so does that from 150 s.
    assert [item.speakers for item in sets["parts of meetings"]] == [2, 2, 2, 2]
    assert all(item.people(0.05, 0.02) == item.speakers for item in sets["meetings"] + sets["one person of a meeting"])


def test_the_middle_of_the_best_thresholds_is_chosen() -> None:
    items = [
        Countable(lambda low, high: 1 if low > 0.25 else 2, 1),
        Countable(lambda low, high: 1 if low > 0.85 else 2, 2),
    ]
    grid = [(float(low), 0.0) for low in np.round(np.arange(0.1, 1.0, 0.1), 3)]
    chosen, results = calibrate({"a": items[:1], "b": items[1:]}, grid)
    assert chosen == (0.6, 0.0) and results["a"]["exact"] == results["b"]["exact"] == 1.0
