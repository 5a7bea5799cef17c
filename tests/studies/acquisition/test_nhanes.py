"""The reader of NHANES, on SAS transport files made here."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.errors import UserError
from sepkit.studies.acquisition.audiogram import read_audiograms
from sepkit.studies.acquisition.config import EARS, FREQUENCIES_HZ
from sepkit.studies.acquisition.nhanes import nhanes_column, read_nhanes

pytest.importorskip("pandas")

COLUMNS = [nhanes_column(ear, hz) for ear in EARS for hz in FREQUENCIES_HZ]


def _ibm(value: float) -> bytes:
    """A double in IBM's format: sign, exponent of 16 plus 64, 56 bits of fraction; a missing value is a point."""
    if np.isnan(value):
        return b"." + bytes(7)
    if value == 0:
        return bytes(8)
    exponent, fraction = 64, abs(value)
    while fraction >= 1:
        fraction, exponent = fraction / 16, exponent + 1
    while fraction < 1 / 16:
        fraction, exponent = fraction * 16, exponent - 1
    return bytes([(0x80 if value < 0 else 0) | exponent]) + int(fraction * 2**56).to_bytes(7, "big")


def _card(text: str) -> bytes:
    return text.encode().ljust(80)


def write_xpt(path: Path, table: Mapping[str, Sequence[float]]) -> Path:
    """A SAS transport file, version 5, of numbers (SAS technical note TS-140)."""
    header = "HEADER RECORD*******{} HEADER RECORD!!!!!!!{}"
    zeros = "0" * 30
    stamp = "01JAN20:00:00:00"
    parts = [
        _card(header.format("LIBRARY", zeros)),
        _card(f"{'SAS':8}{'SAS':8}{'SASLIB':8}{'9.4':8}{'X64':8}{'':24}{stamp}"),
        _card(stamp),
        _card(header.format("MEMBER ", "000000000000000001600000000140")),
        _card(header.format("DSCRPTR", zeros)),
        _card(f"{'SAS':8}{'DATA':8}{'SASDATA':8}{'9.4':8}{'X64':8}{'':24}{stamp}"),
        _card(f"{stamp}{'':16}{'':40}{'':8}"),
        _card(header.format("NAMESTR", f"000000{len(table):04d}00000000000000000000")),
    ]
    names = b""
    for number, name in enumerate(table):
        numbers = (1, 0, 8, number + 1, name.encode().ljust(8), b" " * 40, b" " * 8)
        fields = struct.pack(">hhhh8s40s8s", *numbers)
        fields += struct.pack(">hhh2s8shhl52s", 0, 0, 0, b"  ", b" " * 8, 0, 0, 8 * number, b"")
        names += fields
    parts.append(names.ljust(-(-len(names) // 80) * 80))
    parts.append(_card(header.format("OBS    ", zeros)))
    rows = b"".join(_ibm(value) for row in zip(*table.values(), strict=True) for value in row)
    parts.append(rows.ljust(-(-len(rows) // 80) * 80))
    path.write_bytes(b"".join(parts))
    return path


def _audiometry(path: Path, people: Sequence[int], **changes: Sequence[float]) -> Path:
    table: dict[str, Sequence[float]] = {"SEQN": people}
    table |= {column: [20.0 + 5 * (k % 7)] * len(people) for k, column in enumerate(COLUMNS)}
    return write_xpt(path, table | changes)


def _demographics(path: Path, people: Sequence[int], cycle: int = 1) -> Path:
    return write_xpt(
        path, {"SEQN": people, "SDDSRVYR": [cycle] * len(people), "RIDAGEYR": [20 + p % 60 for p in people]}
    )


def test_codes_are_missing_and_what_is_found_is_said(tmp_path: Path) -> None:
    people = [1, 2, 3, 4, 5]
    audiometry = _audiometry(
        tmp_path / "AUX1.XPT",
        people,
        AUXU500R=[0.0, 666.0, 35.0, 35.0, -10.0],
        AUXU8KL=[60.0, 60.0, 888.0, 60.0, float("nan")],
        AUXU1K2R=[25.0, 30.0, 888.0, 25.0, 25.0],
    )
    data, report = read_nhanes([audiometry], [_demographics(tmp_path / "DEMO.XPT", [1, 2, 3, 5, 9])])
    assert data.ids == ["nhanes_1"] and not np.isnan(data.values).any()
    assert data.values[0, 0] == 21 and data.values[0, 1] == 0.0 and data.values[0, 2] == 25.0
    text = "\n".join(report.lines)
    assert "5 people of 1999-2000" in text and "1 thresholds without response (666) and 1 not obtained (888)" in text
    assert "4 retests at 1 kHz" in text and "deviate by 2.5 dB" in text
    assert "4 people with demographics (1 without are left out), 1 complete" in text
    kept, _ = read_nhanes([audiometry], [tmp_path / "DEMO.XPT"], keep_incomplete=True)
    assert kept.ids == [f"nhanes_{p}" for p in (1, 2, 3, 5)]
    assert np.isnan(kept.values[1, 1]) and np.isnan(kept.values[2, 14]) and np.isnan(kept.values[3, 14])


def test_prepare_nhanes_from_several_years(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [_audiometry(tmp_path / "AUX1.XPT", range(1, 31)), _audiometry(tmp_path / "AUX_G.XPT", range(101, 131))]
    demo = [
        _demographics(tmp_path / "DEMO.XPT", range(1, 40)),
        _demographics(tmp_path / "DEMO_G.XPT", range(100, 140), 7),
    ]
    out = tmp_path / "out"
    command = ["prepare", "nhanes", "--audiometry", *files, "--demographics", *demo, "--out", out]
    assert main([str(word) for word in command]) == 0
    said = capsys.readouterr().out
    assert "1999-2000" in said and "2011-2012" in said and said.strip().split("\n")[-1] == str(out)
    assert sum(len(read_audiograms(out / f"{split}.csv")) for split in ("train", "dev", "test")) == 60


def test_bad_files_are_refused(tmp_path: Path) -> None:
    whole = _audiometry(tmp_path / "AUX1.XPT", range(1, 10))
    demo = _demographics(tmp_path / "DEMO.XPT", range(1, 10))
    content = whole.read_bytes()

    def refusal(audiometry: Path, demographics: Path = demo) -> str:
        with pytest.raises(UserError) as error:
            read_nhanes([audiometry], [demographics])
        assert "\n" not in str(error.value)
        return str(error.value)

    cut = tmp_path / "cut.XPT"
    cut.write_bytes(content[:-40])
    assert "is cut short" in refusal(cut)
    cut.write_bytes(content[:-240])
    assert "is cut short" in refusal(cut)
    cut.write_bytes(content[:400])
    assert "is cut short or damaged" in refusal(cut)
    cut.write_bytes(b"id,age\n1,2\n")
    assert "found no XPT header" in refusal(cut)
    assert "cannot be read" in refusal(tmp_path / "absent.XPT")
    assert "none of its people is in" in refusal(whole, _demographics(tmp_path / "D2.XPT", [77, 78]))
    assert "found no column SEQN" in refusal(write_xpt(tmp_path / "x.XPT", {"A": [1.0]}))
    missing = {"SEQN": [1.0]} | {key: [20.0] for key in COLUMNS[1:]}
    assert "found no column AUXU500R" in refusal(write_xpt(tmp_path / "y.XPT", missing))
    assert "person (SEQN) 2: right_500: found 300 dB" in refusal(
        _audiometry(tmp_path / "z.XPT", [1, 2], AUXU500R=[20.0, 300.0])
    )
    assert "found no complete row" in refusal(_audiometry(tmp_path / "w.XPT", [1, 2], AUXU500R=[666.0, 888.0]))
    with pytest.raises(UserError, match="stands twice"):
        read_nhanes([whole, whole], [demo])
