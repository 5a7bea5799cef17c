"""What strangers hand over beside files of one form: playlists and containers of sound, and answers of a mirror."""

import hashlib
import io
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from sepkit import fetching
from sepkit.cli.main import main
from tests.file_server import answering
from tests.fuzz.reader import Reader, model_files, separate_command, sound, write_files

PLAYLIST = b"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nnothing.ts\n#EXT-X-ENDLIST\n"
LISTS = {
    "hls.m4a": PLAYLIST,
    "hls.mp4": PLAYLIST.replace(b"nothing.ts", b"file:///dev/zero"),
    "concat.mkv": b"ffconcat version 1.0\nfile nothing.wav\n",
    "session.m4a": b"v=0\nc=IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\n",
    "pls.ogg": b"[playlist]\nFile1=nothing.ogg\nNumberOfEntries=1\n",
}
"""Texts that name other files, under the endings of sound."""
ENCODED = {
    "aac.m4a": ["-c:a", "aac"],
    "flac.mka": ["-c:a", "flac"],
    "pcm.mov": ["-c:a", "pcm_s16le"],
    "opus.webm": ["-c:a", "libopus"],
    "adpcm.wav": ["-c:a", "adpcm_ima_wav"],
    "mp3.mp3": ["-c:a", "libmp3lame"],
    "vorbis.ogg": ["-c:a", "libvorbis"],
}
"""Containers and what ffmpeg writes them with."""


def _containers() -> Reader:
    files = {name: _encoded(name, options) for name, options in ENCODED.items()} | LISTS

    def command(folder: Path) -> list[str]:
        # What a case leaves as it was need not be tried.
        changed = [name for name, data in files.items() if (folder / "in" / name).read_bytes() != data]
        source = folder / "in" / changed[0] if changed else folder / "in"
        return separate_command(source, write_files(folder / "whole", model_files()), folder)

    # The lists are refused.
    return Reader(files, command, passes=1)


def _encoded(name: str, options: list[str]) -> bytes:
    """Half a second of noise as ffmpeg encodes it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.wav").write_bytes(sound(".wav", "PCM_16", samples=4000))
        subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-i", "x.wav", *options, name], check=True, cwd=folder)
        return (Path(folder) / name).read_bytes()


def _mirrors() -> Reader:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("wham_noise/tr/a.wav", b"x" * 900)
    body = packed.getvalue()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nContent-Type: application/zip\r\n\r\n"

    def command(folder: Path) -> list[str]:
        (folder / "sums.txt").write_text(f"{hashlib.sha256(body).hexdigest()}  wham_noise.zip\n")
        return ["download", "wham-noise", "--cache", str(folder / "out"), "--checksums", str(folder / "sums.txt")]

    return Reader({"answer": head.encode() + body}, command, program=_from_mirror, examples=25)


def _from_mirror(arguments: list[str]) -> int:
    """Run a command with a mirror that gives the file `in/answer` of the present folder as its answer to everything."""
    answer = Path("in/answer").read_bytes()
    with answering(answer) as url, mock.patch.object(fetching, "_PAUSE_SECONDS", 0.0):
        return main([*arguments, "--mirror", url])


_IF_INSTALLED = {"containers": _containers} if shutil.which("ffmpeg") else {}
READERS: dict[str, Callable[[], Reader]] = {**_IF_INSTALLED, "mirrors": _mirrors}
"""Name -> what makes the reader."""
