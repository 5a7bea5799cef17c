"""What the tool of worst cases makes and says of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sepkit.data import audio
from tools.worst_cases import (
    Counted,
    Example,
    Voices,
    between_marks,
    both_the_mixture,
    count_lines,
    count_table,
    halves,
    melody,
    one_empty,
    prediction_row,
    swapped_midway,
)


def test_separations_are_made_to_fail():
    mixture = np.arange(8000.0)
    estimates = np.stack([mixture, -mixture])
    assert np.corrcoef(both_the_mixture(mixture, estimates))[0, 1] > 0.99
    assert np.abs(one_empty(mixture, estimates)[1]).max() < 1e-2 * mixture.max()
    swapped = swapped_midway(mixture, estimates)
    np.testing.assert_array_equal(swapped[0], np.where(mixture < 4000, mixture, -mixture))
    cut = halves(mixture, np.zeros((2, 8000)))
    np.testing.assert_array_equal(cut.sum(0), mixture)
    assert not (cut[0] * cut[1]).any() and cut[0, :4000].any() and cut[1, 4000:].any()
    assert len(melody(0, 8000, 1.5)) == 12000


def test_voices_are_joined_and_drawn_in_pairs(tmp_path):
    for number in range(4):
        for k in range(2):
            wave = 0.1 * (1 + number) * np.random.default_rng(number).standard_normal(8000).astype(np.float32)
            audio.write(tmp_path / f"s{number}" / f"{k}.wav", np.clip(wave, -0.9, 0.9), 8000)
    voices = Voices(tmp_path, 8000)
    assert len(voices.of("s0")) == 2 * (8000 + 1200) and voices.with_seconds(2.4) == []
    assert np.std(voices.of("s3")[:8000]) == pytest.approx(0.05, rel=0.01)
    assert len(voices.pairs(2, 100, np.random.default_rng(0))) == 6


def test_a_number_is_right_wrong_or_not_given():
    said = iter([(2, False), (None, False), (1, False), (2, True), (3, True), (1, True)])

    def separate(wave, rate):
        speakers, or_more = next(said)
        return SimpleNamespace(speakers=speakers, or_more=or_more, out_of_domain=None)

    kind = Counted("two", 2, lambda: iter([np.zeros(8)] * 6))
    separator = SimpleNamespace(sample_rate=8000, separate=separate)
    assert count_lines(count_table(separator, [kind]))[-1] == "| two | 6 | 3 | 1 | 2 | 0 |"


def test_rows_tell_errors_that_nobody_was_warned_of():
    interval = np.array([[5.0, 11.0], [5.0, 11.0]])
    made = [
        Example(np.array([8.0, 8.0]), interval, np.array([8.0, true]), improved, out, False)
        for true, improved, out in ((9.0, 3.0, False), (1.0, -1.0, False), (1.0, -1.0, True), (13.0, 4.0, False))
    ]
    row = prediction_row(made)
    assert row["inside"] == 5 / 8 and row["misled"] == 1 / 8 and row["out_of_domain"] == 0.25 and row["worse"] == 0.5


def test_tables_go_between_their_marks():
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n"
    assert between_marks(page, "x", ["new"]) == page.replace("old", "new")
    assert between_marks(page, "y", ["new"]) == page.replace("y -->\n", "y -->\nnew\n")
