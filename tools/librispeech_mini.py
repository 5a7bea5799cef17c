"""Make the LibriSpeech recordings that results on real speech are about, from the published archives.

    python -m tools.librispeech_mini --out librispeech_mini

`librispeech_mini.csv` lists 341 utterances of train-clean-100 (6.4 GB) and test-other (0.3 GB), with the MD5 of their
samples at 8 kHz, little-endian. Splits are disjoint in speakers, and are not LibriSpeech's. Only listed files are
unpacked. The tree is one for `sepkit prepare folder --speech`; the same command again continues.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepkit.corpora.download import download
from sepkit.corpora.options import DownloadOptions
from sepkit.errors import UserError
from sepkit.files import atomic_output, cache_folder, read_csv

LIST = Path(__file__).with_suffix(".csv")
RATE_HZ = 8000
# Resampling overshoots: a louder recording is scaled to this peak.
_PEAK = 0.99


@dataclass(frozen=True)
class Listed:
    """A line of the list: `md5` is that of the samples at 8 kHz."""

    split: str
    part: str
    utterance: str
    md5: str

    @property
    def place(self) -> str:
        """Path below a part of LibriSpeech, and below a split of the tree."""
        reader, chapter, _ = self.utterance.split("-")
        return f"{reader}/{chapter}/{self.utterance}.flac"


def main(argv: list[str] | None = None) -> int:
    """Make the tree; return the exit code."""
    parser = argparse.ArgumentParser(prog="librispeech_mini", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the tree: train, dev, test, SPEAKERS.TXT")
    parser.add_argument("--cache", type=Path, default=cache_folder("librispeech_mini"), help="folder of the archives")
    parser.add_argument("--list", type=Path, default=LIST, help="the utterances; default: librispeech_mini.csv")
    parser.add_argument("--mirror", help="address of a folder that holds the archives; default: openslr.org")
    parser.add_argument("--checksums", type=Path, help="file as md5sum writes it, for a mirror with other archives")
    arguments = parser.parse_args(argv)
    try:
        listed = read_list(arguments.list)
        options = DownloadOptions(
            name="librispeech",
            cache=arguments.cache,
            parts=sorted({line.part for line in listed}),
            mirror=arguments.mirror,
            checksums=arguments.checksums,
        )
        names = frozenset(Path(line.place).name for line in listed) | {"SPEAKERS.TXT"}
        make_tree(listed, download(options, names) / "LibriSpeech", arguments.out)
    except UserError as error:
        print(f"librispeech_mini: {error}", file=sys.stderr)
        return 2
    return 0


def read_list(path: Path) -> list[Listed]:
    """Read the list.

    Raises:
        UserError: a line without one of its four cells.
    """
    listed = []
    for number, row in read_csv(path)[1]:
        cells = [row.get(name) or "" for name in ("split", "part", "utterance", "md5_8khz")]
        if not all(cells) or cells[2].count("-") != 2:
            raise UserError(f"{path}:{number}: found {cells}, expected split, part, utterance and md5_8khz")
        listed.append(Listed(*cells))
    return listed


def make_tree(listed: list[Listed], librispeech: Path, out: Path) -> None:
    """Write what is listed at 8 kHz, as 16-bit FLAC, and LibriSpeech's SPEAKERS.TXT; keep files that are right.

    Raises:
        UserError: a file that the archives lack, other samples than those listed, or no room.
    """
    import soundfile

    for line in listed:
        source, target = librispeech / line.part / line.place, out / line.split / line.place
        if target.is_file() and _md5_of(target) == line.md5:
            continue
        if not source.is_file():
            raise UserError(
                f"{source}: listed, but not unpacked from {line.part}.tar.gz; remove {librispeech} and run it again, "
                "and if that does not help, it is not the published archive"
            )
        samples = at_8_khz(source)
        if (found := _md5(samples)) != line.md5:
            raise UserError(
                f"{source}: at 8 kHz its samples have the MD5 {found}, expected {line.md5}; it was changed, or this "
                "soxr computes otherwise"
            )
        buffer = io.BytesIO()
        soundfile.write(buffer, samples, RATE_HZ, format="FLAC", subtype="PCM_16")
        _write(target, buffer.getvalue())
    speakers = librispeech / "SPEAKERS.TXT"
    if not speakers.is_file():
        raise UserError(f"{speakers}: not in the archives; they are not the published ones")
    _write(out / "SPEAKERS.TXT", speakers.read_bytes())
    print(f"{out}: {len(listed)} recordings, {RATE_HZ} Hz, all samples as listed")


def at_8_khz(path: Path) -> Any:
    """Return a recording at 8 kHz, int16: soxr VHQ in float64, peaks above 0.99 scaled to it, round(32767 x).

    Raises:
        UserError: a file that is no mono recording at 16 kHz.
    """
    import numpy as np
    import soundfile
    import soxr

    try:
        samples, rate = soundfile.read(path, dtype="float64")
    except soundfile.LibsndfileError as error:
        raise UserError(f"{path}: cannot be read ({error}); it is not the published file") from None
    if rate != 2 * RATE_HZ or samples.ndim != 1:
        raise UserError(f"{path}: found {rate} Hz, shape {samples.shape}, expected 16000 Hz, mono")
    resampled = soxr.resample(samples, rate, RATE_HZ, "VHQ")
    if (peak := np.abs(resampled).max(initial=0)) > _PEAK:
        resampled = resampled * (_PEAK / peak)
    return np.rint(32767 * resampled).astype(np.int16)


def _md5_of(path: Path) -> str:
    import soundfile

    try:
        return _md5(soundfile.read(path, dtype="int16")[0])
    except soundfile.LibsndfileError:
        return ""


def _md5(samples: Any) -> str:
    return hashlib.md5(samples.astype("<i2").tobytes(), usedforsecurity=False).hexdigest()


def _write(path: Path, content: bytes) -> None:
    with atomic_output(path) as temporary:
        try:
            temporary.write_bytes(content)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror}); make room") from error


if __name__ == "__main__":
    sys.exit(main())
