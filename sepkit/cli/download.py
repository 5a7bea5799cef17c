"""`sepkit download`: the corpora that may be downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Name = Literal["librispeech", "wham-noise", "vctk", "librimix-metadata", "vctk-2mix-metadata", "wsj0-mix-lists"]


def main(
    name: Name,
    *,
    cache: str,
    parts: list[str] | None = None,
    mirror: str | None = None,
    checksums: str | None = None,
    processes: int = 2,
    remove_archives: bool = False,
) -> Path:
    """Fetch a corpus into a cache and unpack it; the same command again continues. WSJ0 is licensed: buy LDC93S6A.

    Args:
        name: what to fetch; sizes are said before
        cache: folder that all corpora may share
        parts: which archives, for example train-clean-100 train-clean-360 dev-clean test-clean; default: those of 100
            hours of training
        mirror: address of a folder that holds the archives under their own names; default: their publishers
        checksums: file as md5sum or sha256sum write it, for a mirror whose archives are not the published ones
        processes: how many archives at a time
        remove_archives: delete each archive when it is unpacked

    Returns:
        The cache.
    """
    from sepkit.corpora.download import download

    return download(
        name,
        cache,
        parts or (),
        mirror=mirror,
        checksums=checksums,
        processes=processes,
        remove_archives=remove_archives,
    )
