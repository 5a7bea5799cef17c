"""Decode formats that libsndfile cannot read (m4a, mp4, webm ...) with the ffmpeg program, through a pipe.

Nothing is written to disk and memory does not grow with the length. Such formats cannot be entered at an exact sample,
so a file is decoded from its beginning: reading the end of a long file takes as long as reading all of it.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.errors import UserError

FFMPEG_SUFFIXES = frozenset({".m4a", ".m4b", ".mp4", ".mov", ".mkv", ".webm", ".aac", ".wma", ".caf", ".amr", ".3gp"})
"""File name endings, in lower case, of the formats that ffmpeg decodes."""

_BLOCK_FRAMES = 1 << 16
_HEADER = struct.Struct(">4sIIIII")
_SAMPLE_BYTES = 4


def has_ffmpeg() -> bool:
    """Return whether the program is installed."""
    return shutil.which("ffmpeg") is not None


def without_undecodable(paths: Iterable[Path]) -> list[Path]:
    """Leave out paths that need ffmpeg if it is not installed, and say so in one line on standard error."""
    paths = list(paths)
    if has_ffmpeg():
        return paths
    skipped = [path for path in paths if path.suffix.lower() in FFMPEG_SUFFIXES]
    if skipped:
        suffixes = ", ".join(sorted({path.suffix.lower() for path in skipped}))
        print(f"warning: {len(skipped)} file(s) skipped: {suffixes}; install ffmpeg", file=sys.stderr)
    return [path for path in paths if path.suffix.lower() not in FFMPEG_SUFFIXES]


@dataclass(frozen=True)
class _Stream:
    sample_rate: int
    channels: int
    num_samples: int


class FFmpegFile:
    """The first audio stream of a file, with the methods of `soundfile.SoundFile` that `sepkit.data.audio` uses."""

    format = subtype = "FFMPEG"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._process: _Process | None = None
        status = os.stat(path)
        stream = _measure(self._path, status.st_mtime_ns, status.st_size)
        self.samplerate, self.channels, self.frames = stream.sample_rate, stream.channels, stream.num_samples

    def seek(self, position: int) -> None:
        """Go to a sample, counted from 0."""
        if self._process is None or self._process.position > position:
            self._restart()
        process = self._restart() if self._process is None else self._process
        while process.position < position and len(process.read(min(_BLOCK_FRAMES, position - process.position))):
            pass

    def read(self, count: int, dtype: str = "float32", always_2d: bool = True) -> np.ndarray:
        """Return the next samples, (T, C) float32; fewer than `count` at the end."""
        process = self._restart() if self._process is None else self._process
        return process.read(count)

    def close(self) -> None:
        """End the program."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def __enter__(self) -> FFmpegFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _restart(self) -> _Process:
        self.close()
        self._process = _Process(self._path)
        return self._process


class _Process:
    """A running ffmpeg that writes 32-bit floats as an AU file, whose header needs no length."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        command = ["ffmpeg", "-nostdin", "-v", "error", "-xerror", "-protocol_whitelist", "file,pipe"]
        command += ["-i", f"file:{path}", "-map", "0:a:0", "-c:a", "pcm_f32be", "-f", "au", "-"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._messages)
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        self.position = 0
        header = self._pipe.read(_HEADER.size)
        if len(header) < _HEADER.size:
            self._check_ended_well()
            raise UserError(f"{path}: ffmpeg finds no audio in it; leave out the file")
        _, offset, _, _, self.sample_rate, self.channels = _HEADER.unpack(header)
        self._pipe.read(offset - _HEADER.size)

    def read(self, count: int) -> np.ndarray:
        frame_bytes = self.channels * _SAMPLE_BYTES
        data = self._pipe.read(count * frame_bytes)
        self.position += len(data) // frame_bytes
        if len(data) < count * frame_bytes:
            self._check_ended_well()
        whole = data[: len(data) // frame_bytes * frame_bytes]
        return np.frombuffer(whole, dtype=">f4").astype(np.float32).reshape(-1, self.channels)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._messages.close()

    def _check_ended_well(self) -> None:
        if self._process.wait() == 0:
            return
        self._messages.seek(0)
        lines = self._messages.read().decode(errors="replace").strip().splitlines()
        self.close()
        if any("matches no streams" in line for line in lines):
            raise UserError(f"{self._path}: holds no sound; leave out the file")
        raise UserError(
            f"{self._path}: ffmpeg failed after sample {self.position} ({lines[-1] if lines else 'without a reason'}); "
            "get the file again, or leave it out"
        )


@lru_cache(maxsize=4096)
def _measure(path: Path, mtime_ns: int, size: int) -> _Stream:
    """Decode the file once to count its samples, because lengths in such headers are not exact."""
    process = _Process(path)
    try:
        while len(process.read(_BLOCK_FRAMES)):
            pass
        return _Stream(process.sample_rate, process.channels, process.position)
    finally:
        process.close()
