"""Indexes of shards that no `sepkit` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from sepkit.data import audio
from sepkit.data._tar_index import read_index
from sepkit.data.shards import read_shard
from sepkit.errors import UserError


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"[]\n",
        b"[1, 2]\na\t0\t1\n",
        b"null\n",
        b"17\n",
        b'"bytes"\n',
        b"{}\na\t0\t1\n",
        b'{"bytes": "many"}\na\t0\t1\n',
        b'{"bytes": [1024]}\na\t0\t1\n',
        b'{"bytes": {}}\na\t0\t1\n',
        b'{"bytes": null}\na\t0\t1\n',
        b'{"bytes": 1023}\na\t0\t1\n',
        b'{"bytes": Infinity}\na\t0\t1\n',
        b'{"bytes": 1024}\na\t0\n',
        b'{"bytes": 1024}\na\t0\t1\t2\n',
        b'{"bytes": 1024}\na\tx\t1\n',
        b'{"bytes": 1024}\na\t-1\t1\n',
        b'{"bytes": 1024}\na\t0\t1025\n',
        b'{"bytes": 1024}\na\t0\t' + b"9" * 5000 + b"\n",
        b'{"bytes": ' + b"9" * 5000 + b"}\n",
        b"[" * 100_000,
        b'{"bytes": 1024}\n\xff\xfe\t0\t1\n',
        b"\0" * 100,
    ],
)
def test_indexes_that_are_none(content: bytes, tmp_path: Path) -> None:
    shard = tmp_path / "train-000000.tar"
    shard.write_bytes(bytes(1024))
    (tmp_path / "train-000000.tar.index").write_bytes(content)
    with pytest.raises(UserError) as caught:
        audio.read(f"{shard}::a")
    line = str(caught.value)
    assert line.startswith(str(shard)) and "\n" not in line and len(line) < 600


def test_members_that_are_no_recording_and_no_line(tmp_path: Path) -> None:
    shard = tmp_path / "train-000000.tar"
    shard.write_bytes(b"\xff" * 1024)
    (tmp_path / "train-000000.tar.index").write_text('{"bytes": 1024}\na.json\t0\t1024\nb.wav\t0\t0\n')
    assert set(read_index(shard)[1]) == {"a.json", "b.wav"}
    with pytest.raises(UserError, match=r"tar::a\.json: not JSON"):
        list(read_shard(shard))
    for member in ("a.json", "b.wav"):
        with pytest.raises(UserError, match="cannot be read as audio"):
            audio.read(f"{shard}::{member}")
