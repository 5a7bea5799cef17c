"""Decode what libsndfile cannot (m4a, mp4, webm, joined mp3 ...) with the ffmpeg program, through a pipe.

Nothing is written to disk and memory does not grow with the length. Such files cannot be entered at an exact sample,
so a file is decoded from its beginning: reading the end of a long file takes as long as reading all of it.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.errors import UserError

FFMPEG_SUFFIXES = frozenset({
    ".3g2", ".3gp", ".aac", ".ac3", ".amr", ".ape", ".avi", ".eac3", ".flv", ".m4a", ".m4b", ".m4v", ".mka", ".mkv",
    ".mov", ".mp2", ".mp4", ".mts", ".tta", ".weba", ".webm", ".wma", ".wmv", ".wv",
})  # fmt: skip
"""File name endings, in lower case, of the formats that only ffmpeg decodes."""

# Containers that their first bytes show, and none that names other files, as playlists do.
_FORMATS = (
    "3g2,3gp,aac,ac3,aiff,amr,ape,asf,au,avi,caf,dts,eac3,flac,flv,gsm,m4a,matroska,mj2,mov,mp3,mp4,mpeg,mpegts,ogg,"
    "tta,voc,w64,wav,webm,wv"
)
_BLOCK_BYTES = 1 << 20
_HEADER = struct.Struct(">4sIIIII")
_SAMPLE_BYTES = 4
# What the program says about its input, and what may lack at the end of it: delays of coders, and rounding.
_TRACK = re.compile(r"^\[info\] {2,4}Stream #0:\d.*: (Audio|Video): (?!.*attached pic)", re.MULTILINE)
_LENGTH = re.compile(r"^\[info\]   Duration: (\d+):(\d+):([\d.]+)", re.MULTILINE)
_SLACK_SECONDS, _SLACK = 0.3, 1e-3
# Longest wait for the next bytes: ffmpeg may read a whole file before the first.
_WAIT_SECONDS, _WAIT_BYTES_PER_SECOND = 60, 2_000_000
# Longest work, seconds of a processor, also if nothing waits for it any more.
_WORK_SECONDS, _WORK_BYTES_PER_SECOND = 600, 20_000


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


class FFmpegFile:
    """The first audio stream of a file, with the methods of `soundfile.SoundFile` that `sepkit.data.audio` uses.

    A running ffmpeg writes it as 32-bit floats in an AU file, whose header needs no length.

    Args:
        source: path, or the content of a file, which is written to a temporary one meanwhile.
        name: Name of the file, for errors.
        in_parts: whether parts of the file may be no sound, such as the header of a second file that was appended;
            otherwise they are damage.
    """

    format = subtype = "FFMPEG"
    stated_frames = None

    def __init__(self, source: str | os.PathLike[str] | io.BytesIO, name: str, in_parts: bool = False) -> None:
        self._name, self._position, self._late, self._in_parts = name, 0, False, in_parts
        with ExitStack() as stack:
            if isinstance(source, io.BytesIO):
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                content, source = source, os.path.join(folder, "bytes")
                Path(source).write_bytes(content.getbuffer())
            self._wait_seconds = _WAIT_SECONDS + (size := os.path.getsize(source)) / _WAIT_BYTES_PER_SECOND
            work_seconds = _WORK_SECONDS + size // _WORK_BYTES_PER_SECOND
            self._messages = stack.enter_context(tempfile.TemporaryFile())
            options = f"-nostdin -hide_banner -timelimit {work_seconds} -v level+info -format_whitelist {_FORMATS}"
            options += " -err_detect crccheck" + " -xerror" * (not in_parts)
            command = ["ffmpeg", *options.split(), "-protocol_whitelist", "file,pipe", "-i", f"file:{source}"]
            command += ["-map", "0:a:0", "-c:a", "pcm_f32be", "-f", "au", "-"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._messages)
            self._process = stack.enter_context(process)
            stack.callback(self._process.kill)
            header = self._take(_HEADER.size)
            if len(header) < _HEADER.size:
                self._check_ended_well(opened=False)
                raise UserError(f"{name}: ffmpeg finds no audio in it; leave out the file")
            _, offset, _, _, self.samplerate, self.channels = _HEADER.unpack(header)
            self._take(offset - _HEADER.size)
            self.close = stack.pop_all().close

    def approach(self, position: int) -> int:
        """Return the position, 0, from which samples are read and dropped up to the one that is wanted."""
        return 0

    def read(self, count: int, dtype: str = "float32", always_2d: bool = True) -> np.ndarray:
        """Return the next samples, (T, C) float32; fewer than `count` at the end."""
        frame_bytes = self.channels * _SAMPLE_BYTES
        data = self._take(count * frame_bytes)
        num_samples = len(data) // frame_bytes
        self._position += num_samples
        if num_samples < count:
            self._check_ended_well()
        samples = np.frombuffer(data, ">f4", num_samples * self.channels).astype(np.float32)
        return samples.reshape(-1, self.channels)

    def __enter__(self) -> FFmpegFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _take(self, count: int) -> bytes:
        """Return the next bytes, fewer at the end; end the program if it is silent for too long."""
        assert self._process.stdout is not None
        parts = [b"none"]
        while count > 0 and parts[-1]:
            timer = threading.Timer(self._wait_seconds, self._give_up)
            timer.start()
            try:
                parts.append(self._process.stdout.read(min(count, _BLOCK_BYTES)))
            finally:
                timer.cancel()
            count -= len(parts[-1])
        return b"".join(parts[1:])

    def _give_up(self) -> None:
        self._late = True
        self._process.kill()

    def _check_ended_well(self, opened: bool = True) -> None:
        """Raise UserError if the program failed, or gave less than the container states, which it may leave unsaid."""
        failed = self._process.wait() != 0
        self._messages.seek(0)
        log = self._messages.read().decode(errors="replace")
        # ffmpeg decodes data with a wrong checksum and only logs a message.
        failed |= "] CRC " in log
        lines = [line for line in log.splitlines() if "[error] " in line or "[fatal] " in line]
        tracks = _TRACK.findall(log.partition("] Output #")[0])
        if not failed and not self._in_parts:
            stated = None if "Estimating duration" in log else _LENGTH.search(log)
            seconds = float(np.dot([3600, 60, 1], [float(part) for part in stated.groups()])) if stated else np.inf
            decoded = self._position / self.samplerate
            if is_short := decoded < (1 - _SLACK) * seconds - _SLACK_SECONDS:
                # Only another track can be longer.
                lines += [f"] ends after {decoded:.2f} of {seconds:.2f} s"] * (stated is not None and len(tracks) == 1)
            failed = is_short and bool(lines)
        if not failed:
            return _warn_of_tracks(self._name, tracks.count("Audio"))
        # Later lines are consequences of the first.
        line = (lines or log.splitlines() or ["without a reason"])[-1 if self._position else 0]
        reason = line.rpartition("] ")[2].rpartition(": ")[2]
        if "whitelist" in line:
            reason = "a format that can name other files, or a rare one"
        if self._late:
            reason = f"it gave nothing for {self._wait_seconds:.0f} s"
        if "matches no streams" in log:
            raise UserError(f"{self._name}: contains no sound; leave out the file")
        if not opened:
            raise ValueError(f"ffmpeg: {reason}")
        raise UserError(
            f"{self._name}: ffmpeg failed after sample {self._position} ({reason}); get the file again, or keep the "
            "rest (ffmpeg -i FILE -af aresample=async=1 REST.wav)"
        )


@lru_cache(maxsize=4096)
def _warn_of_tracks(name: str, tracks: int) -> None:
    if tracks > 1:
        line = f"{name}: has {tracks} audio tracks, and only the first is read; for the second"
        print(f"warning: {line}: ffmpeg -i FILE -map 0:a:1 SECOND.wav", file=sys.stderr)
