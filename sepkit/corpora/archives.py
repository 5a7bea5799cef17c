"""The archives that may be downloaded, from the table `archives.csv`: publishers, sizes, digests, folders, licenses.

ESC-10 is the last commit that holds the clips; ESC-50 has them as WAV, under other names. Archives of one commit on
GitHub may differ in their bytes, so those have no digest. gzip does not make FLAC smaller.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepkit.files import read_csv


@dataclass(frozen=True)
class Archive:
    """One file to fetch and unpack: a row of the table.

    Args:
        name: Name for `sepkit download`, such as "librispeech"; it may have several archives.
        part: Name for `--parts`.
        default: Whether it is fetched if no parts are asked for.
        size_bytes: Size of the file; 0: unknown.
        exact: Whether `size_bytes` is published, and compared, or rough.
        unpacked_bytes: Rough size of the folder.
        digest: "md5:..." or "sha256:..." as published; "": none is published.
        folder: Folder that unpacking makes in the cache; if it exists, nothing is left to do.
        members: The folder within the archive that becomes `folder`, possibly a pattern; "": `folder` itself, and the
            files beside it go beside it.
        names: File names to unpack; empty: all.
        file: Name of the file in the cache and on mirrors.
        url: Address at the publisher.
        license: License of the contents.
    """

    name: str
    part: str
    default: bool
    size_bytes: int
    exact: bool
    unpacked_bytes: int
    digest: str
    folder: str
    members: str
    names: frozenset[str]
    file: str
    url: str
    license: str


def _read_archives() -> dict[str, list[Archive]]:
    """Return name -> archives. The table is part of the package, so nothing in it is checked."""
    found: dict[str, list[Archive]] = {}
    for _, row in read_csv(Path(__file__).with_suffix(".csv"))[1]:
        fields: dict[str, Any] = {name: text or "" for name, text in row.items()}
        fields |= {name: int(fields[name]) for name in ("size_bytes", "unpacked_bytes")}
        fields |= {name: fields[name] == "yes" for name in ("default", "exact")}
        fields["names"] = frozenset(fields["names"].split())
        found.setdefault(fields["name"], []).append(Archive(**fields))
    return found


DOWNLOADS = _read_archives()
"""Archives by the name that they are asked for by."""

_WEB_RUNTIME = DOWNLOADS["onnxruntime-web"][0]

WEB_RUNTIME = _WEB_RUNTIME.folder
"""Folder of the program that computes ONNX graphs in browsers; see `sepkit web`."""

WEB_RUNTIME_FILES = _WEB_RUNTIME.names
"""Its files that a page needs: WebAssembly on the CPU, without WebGPU."""
