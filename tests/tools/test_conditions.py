"""Recordings of each condition: what they contain, and what a row of the table states."""

from pathlib import Path

import numpy as np
import pytest

from sepkit.data import audio
from tools import conditions

RATE = 8000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(4):
        generator = np.random.default_rng(number)
        for utterance in range(2):
            path = folder / "speech" / f"s{number}" / f"{utterance}.wav"
            audio.write(path, 0.1 * generator.standard_normal(6000), RATE)
    audio.write(folder / "noise" / "n.wav", 0.1 * np.random.default_rng(9).standard_normal(4000), RATE)
    return folder


def made(corpus: Path, condition: conditions.Condition, count: int = 3) -> list:
    noise = conditions.recordings_in(corpus / "noise")
    return list(conditions.record(condition, conditions.Voices(corpus / "speech", RATE), noise, count, 1.0, 7))


def named(name: str) -> conditions.Condition:
    return next(one for one in conditions.CONDITIONS if one.name == name)


def power(signal: np.ndarray) -> float:
    return float(np.square(signal, dtype=np.float64).mean())


def test_clean_mixtures_are_the_sum_of_two_speakers_within_five_decibels(corpus: Path) -> None:
    for one in made(corpus, named("clean")):
        np.testing.assert_allclose(one.mixture, one.sources.sum(0), atol=1e-6)
        assert one.sources.shape == (2, RATE) and len(set(one.speakers)) == 2
        assert abs(10 * np.log10(power(one.sources[0]) / power(one.sources[1]))) <= 5


def test_noise_has_its_ratio_and_belongs_to_no_target(corpus: Path) -> None:
    for one in made(corpus, named("noise at 5 dB")):
        speech = one.sources.sum(0)
        assert 10 * np.log10(power(speech) / power(one.mixture - speech)) == pytest.approx(5, abs=1e-3)


def test_a_telephone_limits_targets_and_mixture_and_its_codec_is_no_target(corpus: Path) -> None:
    names = ("clean", "telephone band, steep filters", "telephone band, mu-law")
    clean, steep, coded = (made(corpus, named(name)) for name in names)
    for plain, limited, quantized in zip(clean, steep, coded, strict=True):
        assert plain.speakers == limited.speakers
        np.testing.assert_allclose(limited.mixture, limited.sources.sum(0), atol=1e-6)
        spectrum = np.abs(np.fft.rfft(limited.sources[0] * np.hanning(RATE))) ** 2
        assert spectrum[:280].sum() + spectrum[3450:].sum() < 1e-3 * spectrum.sum()
        np.testing.assert_array_equal(quantized.sources, limited.sources)
        assert 25 < 10 * np.log10(power(limited.mixture) / power(quantized.mixture - limited.mixture)) < 45


def test_turns_do_not_overlap_and_rooms_leave_the_late_part_to_the_noise(corpus: Path) -> None:
    for one in made(corpus, conditions.Condition("turns", in_turns=True, seconds=1.2)):
        assert not np.any((one.sources != 0).all(axis=0))
        np.testing.assert_allclose(one.mixture, one.sources.sum(0), atol=1e-6)
    for one in made(corpus, named("room, T60 0.5 s"), 1):
        assert 0.01 < power(one.mixture - one.sources.sum(0)) / power(one.mixture) < 0.9


def test_one_speaker_and_noise_alone(corpus: Path) -> None:
    short = [conditions.Condition("one", speakers=1), conditions.Condition("none", speakers=0, snr_db=0)]
    (one,), (none,) = (made(corpus, condition, 1) for condition in short)
    np.testing.assert_array_equal(one.mixture, one.sources[0])
    assert none.sources.shape == (0, RATE) and power(none.mixture) == pytest.approx(0.05**2, rel=1e-4)
    assert power(conditions.at_level(one.mixture)) == pytest.approx(0.05**2, rel=1e-4)


def test_a_row_by_hand() -> None:
    rows = [
        {"said": 2, "at_least": True, "out": False, "si_sdr_db": [5.0, 7.0], "before_db": [0.0, 0.0]},
        {"said": None, "at_least": False, "out": True, "si_sdr_db": [-3.0, -1.0], "before_db": [0.0, 0.0]},
        {"said": 1, "at_least": False, "out": None, "si_sdr_db": [1.0, 3.0], "before_db": [0.0, 0.0]},
    ]
    rows[0] |= {"predicted_db": [6.0, 9.0], "interval_db": [[4.0, 8.0], [8.0, 10.0]]}
    rows[1] |= {"predicted_db": [6.0, 9.0], "interval_db": [[4.0, 8.0], [8.0, 10.0]]}
    found = conditions.summarize(conditions.Condition("two"), rows)
    assert (found["right"], found["not_given"], found["wrong"]) == (1, 1, 1)
    assert found["si_sdri_db"] == pytest.approx((6 - 2 + 2) / 3) and found["worse"] == pytest.approx(1 / 3)
    # The second is out of domain.
    assert (found["predicted"], found["inside"], found["error_db"]) == (1, 0.5, 1.5)
    assert conditions.table_of({"two": found})[2] == "| two | 2.0 | 33 % | 50 % (1) | +1.5 | 1 / 1 / 1 |"
    uncounted = found | {"right": 0, "wrong": 0}
    assert conditions.table_of({"two": uncounted})[2] == "| two | 2.0 | 33 % | 50 % (1) | +1.5 |"
    left_out = {
        "two": found | {"left_out": uncounted},
        "none": {"right": 0, "not_given": 2, "wrong": 1, "left_out": {}},
    }
    assert conditions.table_of(left_out)[2].endswith("| 1 / 1 / 1 | 50 % (1) | +1.5 | 0 / 1 / 0 |")
    assert conditions.table_of(left_out)[3] == "| none |  |  |  |  | 0 / 2 / 1 |  |  |  |"
    assert conditions.summarize(conditions.Condition("three", speakers=3), rows[:1])["right"] == 1
    assert conditions.summarize(conditions.Condition("one", speakers=1), rows[:1])["wrong"] == 1
    alone = [rows[0] | {"si_sdr_db": [40.0], "before_db": [60.0]}]
    clean = conditions.summarize(conditions.Condition("one", speakers=1), alone)
    assert "si_sdri_db" not in clean and clean["wrong"] == 1


def test_tables_go_between_their_marks() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n"
    assert conditions.between_marks(page, "x", ["new"]) == page.replace("old", "new")
