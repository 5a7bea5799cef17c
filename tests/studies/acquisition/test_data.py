"""Audiograms as data: CSV files and what is refused in them, synthetic ones, and masks."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.errors import UserError
from sepkit.studies.acquisition import masks
from sepkit.studies.acquisition.audiogram import Audiograms, named_values, read_audiograms, write_audiograms
from sepkit.studies.acquisition.config import MissingnessConfig, audiogram_dimensions
from sepkit.studies.acquisition.options import AudiogramOptions
from sepkit.studies.acquisition.prepare import prepare_audiograms
from sepkit.studies.acquisition.synthetic import archetype_correlation, synthetic_audiograms

NAMES = [dimension.name for dimension in audiogram_dimensions()]


def _write(path: Path, rows: list[dict[str, object]], columns: list[str] | None = None) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns or ["id", *NAMES], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def _row(identifier: str, **changes: object) -> dict[str, object]:
    return {"id": identifier, "age": 50} | dict.fromkeys(NAMES[1:], 30) | changes


# ---------------------------------------------------------------------------------------------------------------- masks


def test_masks_are_functions_of_seed_epoch_and_index() -> None:
    config = MissingnessConfig()
    whole = masks.observed_in(config, 500, 15, seed=3, epoch=7)
    assert (masks.observed_in(config, 90, 15, 3, 7) == whole[:90]).all()
    assert (masks.observed_in(config, 500, 15, 3, 8) != whole).any()
    assert (masks.observed_in(config, 500, 15, 4, 7) != whole).any()
    static = MissingnessConfig("static")
    first, later = (masks.observed_in(static, 500, 15, 3, epoch) for epoch in (0, 9))
    assert (first == later).all()
    steps = np.array([0.0, 5.0, 5.0])
    noise = masks.dequantization(steps, 400, 1, 2)
    assert (masks.dequantization(steps, 10, 1, 2) == noise[:10]).all()
    assert (
        (noise[:, 0] == 0).all()
        and np.abs(noise).max() <= 2.5
        and noise[:, 1].std() == pytest.approx(5 / 12**0.5, rel=0.1)
    )


def test_missingness_has_the_shares_of_the_thesis() -> None:
    observed = masks.observed_in(MissingnessConfig(), 20_000, 15, 0, 0)
    count = observed.sum(1)
    # Uniform rho leaves every number of the 16 equally likely; a tenth each is moved to none and to all.
    assert (count == 0).mean() == pytest.approx(0.1 + 0.8 / 16, abs=0.01)
    assert (count == 15).mean() == pytest.approx(0.1 + 0.8 / 16, abs=0.01)
    for number in range(1, 15):
        assert (count == number).mean() == pytest.approx(0.8 / 16, abs=0.01)
    assert observed.mean(0) == pytest.approx(0.5, abs=0.02)


# ------------------------------------------------------------------------------------------------------------ synthetic


def test_correlation_of_archetypes() -> None:
    correlation = archetype_correlation()
    np.testing.assert_allclose(np.diag(correlation), 1)
    np.testing.assert_allclose(correlation, correlation.T)
    assert np.linalg.eigvalsh(correlation).min() > 0
    neighbors, far, across = correlation[1, 2], correlation[1, 7], correlation[1, 8]
    assert neighbors > far and across > correlation[1, 14] and correlation[0, 3] > 0.3


def test_synthetic_audiograms_lie_in_the_hull_and_are_those_of_their_seed() -> None:
    data, corners = synthetic_audiograms(examples=300, seed=4)
    assert data.truth is not None and corners.shape == (5, 15)
    assert (data.truth <= corners.max(0) + 1e-9).all() and (data.truth >= corners.min(0) - 1e-9).all()
    noise = data.values - data.truth
    assert noise.std() == pytest.approx(5.0, rel=0.05)
    again, _ = synthetic_audiograms(examples=300, seed=4)
    assert (again.values == data.values).all()
    shifted, moved = synthetic_audiograms(examples=300, seed=4, corruption=0.05)
    assert 0 < np.abs(moved - corners).mean() < 3 and shifted.truth is not None
    far, _ = synthetic_audiograms(examples=300, seed=4, corruption=0.5)
    assert far.truth is not None
    assert np.abs(far.truth - data.truth).mean() > 3 * np.abs(shifted.truth - data.truth).mean()


@pytest.mark.parametrize(
    ("option", "value"), [("examples", 3), ("archetypes", 1), ("spread_db", -1.0), ("noise_db", -1.0)]
)
def test_impossible_numbers_are_refused(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')}: found {value:g}"):
        synthetic_audiograms(**{option: value})  # type: ignore[arg-type]


def test_prepare_synthetic_writes_splits_with_their_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare_audiograms(AudiogramOptions(out=tmp_path, examples=64, seed=1))
    assert "train 48 (48 complete), dev 8 (8 complete), test 8 (8 complete)" in capsys.readouterr().out
    parts = [read_audiograms(tmp_path / f"{split}.csv") for split in ("train", "dev", "test")]
    assert all(part.truth is not None for part in parts)
    assert len({name for part in parts for name in part.ids}) == 64
    expected, corners = synthetic_audiograms(64, seed=1)
    place = expected.ids.index(parts[2].ids[0])
    np.testing.assert_allclose(parts[2].values[0], expected.values[place], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(read_audiograms(tmp_path / "archetypes.csv").values, corners, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------------------------- the file


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    values = np.array([[50.0, *range(10, 150, 10)], [np.nan, *range(0, 70, 5)]])[:, :15].clip(None, 120)
    data = Audiograms(NAMES, ["a", "b"], values, splits=["train", "test"])
    read = read_audiograms(write_audiograms(tmp_path / "x.csv", data))
    np.testing.assert_array_equal(read.values, values)
    assert read.ids == ["a", "b"] and read.splits == ["train", "test"] and read.truth is None
    assert read.complete.tolist() == [True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"right_500": "loud"}, "right_500: found 'loud', expected a number"),
        ({"right_500": 666}, "right_500: found 666 dB, expected -10 to 120 dB"),
        ({"left_8000": -15}, "left_8000: found -15 dB"),
        ({"age": 130}, "age: found 130 years, expected 0 to 120 years"),
        ({"age": "nan", "right_500": "inf"}, "right_500: found inf"),
        ({"id": "a"}, "id 'a' stands twice"),
        ({"id": ""}, "id '' is empty"),
        (dict.fromkeys(NAMES[1:], ""), "found nothing measured"),
    ],
)
def test_bad_rows_are_named_and_the_others_go_on(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    file = _write(tmp_path / "x.csv", [_row("a"), _row("b", **changes), _row("c")])
    with pytest.raises(UserError, match=f"line 3: {message}"):
        read_audiograms(file)
    refused: list[str] = []
    assert read_audiograms(file, refused=refused).ids == ["a", "c"]
    assert len(refused) == 1 and message in refused[0]


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent.csv: cannot be read"):
        read_audiograms(tmp_path / "absent.csv")
    short = [name for name in ("id", *NAMES) if name != "left_3000"]
    with pytest.raises(UserError, match="found no column left_3000"):
        read_audiograms(_write(tmp_path / "a.csv", [_row("a")], short))
    with pytest.raises(UserError, match="found no complete row among 2"):
        read_audiograms(_write(tmp_path / "b.csv", [_row("a", age=""), _row("b", right_1000="")]))
    (tmp_path / "c.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match="cannot be read"):
        read_audiograms(tmp_path / "c.csv")
    write_audiograms(tmp_path / "d.csv", Audiograms(NAMES, ["a"], np.full((1, 15), 30.0), np.full((1, 15), 31.0)))
    _write(tmp_path / "d_truth.csv", [_row("other")])
    with pytest.raises(UserError, match=r"d_truth.csv: its ids are not those of d.csv"):
        read_audiograms(tmp_path / "d.csv")


def test_values_off_the_grid_are_taken_and_said(tmp_path: Path) -> None:
    data = read_audiograms(_write(tmp_path / "x.csv", [_row("a", right_2000=33, age=50.5)]))
    assert data.values[0, 3] == 33
    assert data.notes == [f"{tmp_path / 'x.csv'}, line 2: right_2000: 33 dB is off the 5 dB grid; taken"]


def _prepare(out: Path, file: Path) -> Path:
    return prepare_audiograms(AudiogramOptions(out=out, csv=file))


def test_own_audiograms_are_divided_or_keep_their_splits(tmp_path: Path) -> None:
    rows = [_row(str(number), right_500=5 * (number % 9)) for number in range(40)]
    folder = _prepare(tmp_path / "out", _write(tmp_path / "x.csv", rows))
    sizes = {split: len(read_audiograms(folder / f"{split}.csv")) for split in ("train", "dev", "test")}
    assert sizes == {"train": 30, "dev": 5, "test": 5}
    # Whatever the order of the rows, a person stays in its split.
    again = _prepare(tmp_path / "again", _write(tmp_path / "y.csv", rows[::-1]))
    for split in sizes:
        assert set(read_audiograms(folder / f"{split}.csv").ids) == set(read_audiograms(again / f"{split}.csv").ids)
    given = [row | {"split": split} for row, split in zip(rows, ["test", "train", "dev"] * 13, strict=False)]
    kept = _prepare(tmp_path / "kept", _write(tmp_path / "z.csv", given, ["id", *NAMES, "split"]))
    assert read_audiograms(kept / "test.csv").ids == [str(number) for number in range(0, 39, 3)]


def test_prepare_csv_writes_the_good_rows_and_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [_row(str(number)) for number in range(20)] + [_row("bad", right_500=700), _row("3")]
    code = main(
        ["prepare", "audiograms", "--csv", str(_write(tmp_path / "x.csv", rows)), "--out", str(tmp_path / "out")]
    )
    error = capsys.readouterr().err
    assert code == 2
    assert "line 22: right_500: found 700 dB" in error and "line 23: id '3' stands twice" in error
    assert error.strip().split("\n")[-1].startswith("sepkit prepare") and "2 rows are left out" in error
    assert sum(len(read_audiograms(tmp_path / "out" / f"{split}.csv")) for split in ("train", "dev", "test")) == 20
    assert len((tmp_path / "out" / "refused.txt").read_text().split("\n")) == 3


# ------------------------------------------------------------------------------------------------------------- by hand


def test_typed_values_and_what_is_refused() -> None:
    values, notes = named_values(["right_1000=35", "left_4000=61", "right_1000=40"], audiogram_dimensions())
    assert values == {"right_1000": 40.0, "left_4000": 61.0}
    assert notes == ["left_4000: 61 dB is off the 5 dB grid; taken", "right_1000: measured twice, 40 dB replaces 35"]
    for word, message in (
        ("right_1001=30", "found frequency '1001', expected one of 500"),
        ("middle_1000=30", "found ear 'middle', expected right or left"),
        ("right_1000=125", "found 125 dB, expected -10 to 120 dB"),
        ("right_1000=nan", "found nan dB"),
        ("right_1000", "expected NAME=NUMBER"),
        ("right_1000=low", "expected NAME=NUMBER"),
        ("age=30", "given from the beginning"),
    ):
        with pytest.raises(UserError, match=message):
            named_values([word], audiogram_dimensions())
