"""Audiograms as data: CSV files, synthetic ones, masks; and what is refused in them."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.studies.audiogram import data as masks
from sepkit.studies.audiogram import data as tables
from sepkit.studies.audiogram.config import THRESHOLDS, AudiogramOptions, MissingnessConfig, audiogram_dimensions
from tests.complaint import complaint

NAMES = [dimension.name for dimension in audiogram_dimensions()]


def _write(path: Path, rows: list[dict[str, object]], columns: Sequence[str] = ("id", *NAMES)) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def _row(identifier: object, **changes: object) -> dict[str, object]:
    return {"id": identifier, "age": 50} | dict.fromkeys(THRESHOLDS, 30) | changes


# ---------------------------------------------------------------------------------------------------------------- masks


def test_masks_are_functions_of_seed_epoch_and_index() -> None:
    config = MissingnessConfig()
    whole = masks.observed_in(config, 500, 15, seed=3, epoch=7)
    assert (masks.observed_in(config, 90, 15, 3, 7) == whole[:90]).all()
    assert (masks.observed_in(config, 500, 15, 3, 8) != whole).any()
    assert (masks.observed_in(config, 500, 15, 4, 7) != whole).any()
    noise = masks.dequantization(np.array([0.0, 5.0, 5.0]), 400, 1, 2)
    assert (noise[:, 0] == 0).all() and np.abs(noise).max() <= 2.5
    assert noise[:, 1].std() == pytest.approx(5 / 12**0.5, rel=0.1)


def test_missingness_has_the_shares_of_the_thesis() -> None:
    observed = masks.observed_in(MissingnessConfig(), 20_000, 15, 0, 0)
    shares = np.bincount(observed.sum(1), minlength=16) / len(observed)
    # Uniform rho leaves every number of the 16 equally likely; a tenth each is moved to none and to all.
    expected = np.full(16, 0.8 / 16)
    expected[[0, 15]] += 0.1
    np.testing.assert_allclose(shares, expected, atol=0.01)
    assert observed.mean(0) == pytest.approx(0.5, abs=0.02)


# ------------------------------------------------------------------------------------------------------------ synthetic


def test_synthetic_audiograms_lie_in_the_hull_and_are_those_of_their_seed() -> None:
    correlation = tables.archetype_correlation()
    np.testing.assert_allclose(correlation, correlation.T)
    np.testing.assert_allclose(np.diag(correlation), 1)
    assert np.linalg.eigvalsh(correlation).min() > 0
    data, corners = tables.synthetic_audiograms(AudiogramOptions(out=Path(), examples=300, seed=4))
    assert data.truth is not None and corners.shape == (5, 15)
    assert (data.truth <= corners.max(0) + 1e-9).all() and (data.truth >= corners.min(0) - 1e-9).all()
    assert (data.values - data.truth).std() == pytest.approx(5.0, rel=0.05)
    again, _ = tables.synthetic_audiograms(AudiogramOptions(out=Path(), examples=300, seed=4))
    assert (again.values == data.values).all()


def test_prepare_synthetic_writes_splits_with_their_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables.prepare_audiograms(AudiogramOptions(out=tmp_path, examples=64, seed=1))
    assert "train 48 (48 complete), dev 8 (8 complete), test 8 (8 complete)" in capsys.readouterr().out
    parts = [tables.read_audiograms(tmp_path / f"{split}.csv") for split in tables.SPLITS]
    assert all(part.truth is not None for part in parts)
    assert len({name for part in parts for name in part.ids}) == 64
    expected, _ = tables.synthetic_audiograms(AudiogramOptions(out=Path(), examples=64, seed=1))
    place = expected.ids.index(parts[2].ids[0])
    np.testing.assert_allclose(parts[2].values[0], expected.values[place], rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------------------------- the file


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    values = np.array([[50.0, *range(10, 150, 10)], [np.nan, *range(0, 70, 5)]])[:, :15].clip(None, 120)
    data = tables.Audiograms(NAMES, ["a", "b"], values, splits=["train", "test"])
    read = tables.read_audiograms(tables.write_audiograms(tmp_path / "x.csv", data))
    np.testing.assert_array_equal(read.values, values)
    assert read.ids == ["a", "b"] and read.splits == ["train", "test"] and read.truth is None
    assert read.complete.tolist() == [True, False] and read.complete_ones().ids == ["a"]
    assert tables.read_audiograms(_write(tmp_path / "y.csv", [_row("a", right_2000=33, age=50.5)])).values[0, 3] == 33


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"right_500": "loud"}, "right_500: found 'loud'"), ({"right_500": 666}, "right_500: found 666 dB"),
        ({"age": 130}, "age: found 130 years"), ({"age": "nan", "right_500": "inf"}, "right_500: found inf"),
        ({"id": "a"}, "id 'a'"), ({"id": ""}, "id ''"), (dict.fromkeys(THRESHOLDS, ""), "nothing measured"),
    ],
)  # fmt: skip
def test_bad_rows_are_named_and_the_others_go_on(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    file = _write(tmp_path / "x.csv", [_row("a"), _row("b", **changes), _row("c")])
    complaint(lambda: tables.read_audiograms(file), f"line 3: .*{message}")
    refused: list[str] = []
    assert tables.read_audiograms(file, refused=refused).ids == ["a", "c"]
    assert len(refused) == 1 and message in refused[0]


def test_bad_files_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "column.csv", [_row("a")], [name for name in ("id", *NAMES) if name != "left_3000"])
    _write(tmp_path / "incomplete.csv", [_row("a", age=""), _row("b", right_1000="")])
    for name, truth in (("other", _row("other")), ("text", _row("a", age="old"))):
        tables.write_audiograms(tmp_path / f"{name}.csv", tables.Audiograms(NAMES, ["a"], np.full((1, 15), 30.0)))
        _write(tmp_path / f"{name}_truth.csv", [truth])
    for name, message in (
        ("column", "found no column left_3000"),
        ("incomplete", "no complete row among 2"),
        ("other", "its ids are not those of"),
        ("text", "_truth.csv: found 'old'"),
    ):
        complaint(lambda name=name: tables.read_audiograms(tmp_path / f"{name}.csv"), message)


def test_own_audiograms_are_divided_or_keep_their_splits(tmp_path: Path) -> None:
    def prepare(name: str, rows: list[dict[str, object]], *columns: str) -> dict[str, list[str]]:
        file = _write(tmp_path / f"{name}.csv", rows, ["id", *NAMES, *columns])
        folder = tables.prepare_audiograms(AudiogramOptions(out=tmp_path / name, csv=file))
        return {split: tables.read_audiograms(folder / f"{split}.csv").ids for split in tables.SPLITS}

    rows = [_row(number, right_500=5 * (number % 9)) for number in range(40)]
    divided, again = prepare("once", rows), prepare("reversed", rows[::-1])
    assert [len(ids) for ids in divided.values()] == [30, 5, 5]
    assert all(set(divided[split]) == set(again[split]) for split in tables.SPLITS)
    given = [row | {"split": split} for row, split in zip(rows, ["test", "train", "dev"] * 13, strict=False)]
    assert prepare("given", given, "split")["test"] == [str(number) for number in range(0, 39, 3)]


def test_prepare_csv_writes_the_good_rows_and_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _write(tmp_path / "x.csv", [_row(number) for number in range(20)] + [_row("bad", right_500=700), _row(3)])
    assert main(["prepare", "audiograms", "--csv", str(file), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "line 22: right_500: found 700 dB" in error and "line 23: id '3'" in error and "2 rows" in error
    assert sum(len(tables.read_audiograms(tmp_path / "out" / f"{split}.csv")) for split in tables.SPLITS) == 20
    assert len((tmp_path / "out" / "refused.txt").read_text().splitlines()) == 2


def test_typed_values_and_what_is_refused() -> None:
    values, notes = tables.named_values(["right_1000=35", "left_4000=61", "right_1000=40"], audiogram_dimensions())
    assert values == {"right_1000": 40.0, "left_4000": 61.0}
    assert notes == ["left_4000: 61 dB is off the 5 dB grid; taken", "right_1000: measured twice, 40 dB replaces 35"]
    for word, message in (
        ("right_1001=30", r"unknown \(did you mean right_1000\?\), expected one of right_500, "),
        ("right_1000=125", "found 125 dB, expected -10 to 120 dB"),
        ("right_1000=nan", "found nan dB"),
        ("right_1000", "expected NAME=NUMBER"),
        ("right_1000=low", "expected NAME=NUMBER"),
        ("age=30", "given from the beginning"),
    ):
        complaint(lambda word=word: tables.named_values([word], audiogram_dimensions()), message)
    for option, value in (("examples", "3"), ("archetypes", "1"), ("spread-db", "-1"), ("noise-db", "inf")):
        assert main(["prepare", "audiograms", "--out", "x", f"--{option}", value]) == 2
