"""What counts as missed, confused and falsely named in trials of enrolled speakers."""

from pathlib import Path

import numpy as np

from sepkit.inference.diarization.enrollment import Enrolled
from tools.enrollment import Trial


def test_every_enrolled_speaker_counts_once():
    rows = np.eye(6)
    known = [Enrolled(name, Path(name), "", 3.0, rows[k], None) for k, name in enumerate("abcxy")]
    # Tracks of a, of b where c is heard most, and of nobody; x, who is absent, sounds like the last but one.
    trial = Trial(known, rows[[0, 1, 5, 3]], ["a", "c", "c", "b"], {"a", "b", "c"})
    assert trial.counts(0.5).tolist() == [1, 0, 1, 3, 1, 0, 2]
    # From 3 s, whoever is at most 0.15 below the threshold is undecided.
    assert trial.counts(1.1).tolist() == [1, 2, 0, 3, 0, 1, 2]
    assert trial.counts(1.5).tolist() == [3, 0, 0, 3, 0, 0, 2]
