"""Files that are no checkpoint of torch, by what is wrong with each."""

import pytest
import torch

from sepkit.models.bridges._pickles import read_checkpoint
from tests.complaint import complaint


@pytest.fixture
def saved(tmp_path):
    torch.save({"weight": torch.arange(5)}, tmp_path / "a.ckpt")
    return tmp_path / "a.ckpt"


def test_a_checkpoint_is_read(saved):
    assert read_checkpoint(saved, "expected one")["weight"].tolist() == [0, 1, 2, 3, 4]


def grown(data: bytes) -> bytes:
    """The directory of the archive states a record of 16 MB."""
    at = data.index(b"PK\1\2")
    return data[: at + 20] + 2 * (1 << 24).to_bytes(4, "little") + data[at + 28 :]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: data.replace(b"PK\1\2", b"PK\1\3"), "no complete torch checkpoint"),
        (lambda data: data[: len(data) // 2], "no complete torch checkpoint"),
        (grown, "its records hold more bytes than the file"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "this is a Git LFS pointer"),
        (None, "no such file"),
        (lambda data: b"not a checkpoint", "refused, it is no file of tensors and plain data"),
        (lambda data: b"", "no complete torch checkpoint"),
        (lambda data: b"PK\x03\x04 truncated", "no complete torch checkpoint"),
    ],
    ids=["directory", "cut", "more than the file", "pointer", "none", "text", "nothing", "truncated"],
)
def test_what_is_none(saved, spoil, words):
    data = saved.read_bytes()
    if spoil is None:
        saved.unlink()
    else:
        saved.write_bytes(spoil(data))
    assert complaint(lambda: read_checkpoint(saved, "expected one"), words).endswith("expected one") or "LFS" in words
