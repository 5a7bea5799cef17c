"""Make the recordings that results on real speech are about, from the published archives.

    python -m tools.recordings --out data
    export SEPKIT_DATA=data

`recordings.csv` lists each file of the tree: the archive and its member, the first and the last sample of a cut, the
gain where the level was changed, and the MD5 of the samples that come out, little-endian int16. Only listed members are
unpacked. The same command again continues.
"""

import argparse
import hashlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile

from sepkit.corpora.archives import DOWNLOADS
from sepkit.corpora.download import download
from sepkit.corpora.options import DownloadOptions
from sepkit.errors import UserError
from sepkit.files import atomic_output, cache_folder, read_csv

LIST = Path(__file__).with_suffix(".csv")
RATES_HZ = {"wav8k": 8000, "wav16k": 16000}
# Resampling overshoots: a louder recording is scaled to this peak.
_PEAK = 0.99
# Part of an archive -> corpus of `sepkit download`, and the folder that unpacking makes.
_ARCHIVES = {
    archive.part: (name, archive.folder)
    for name in ("librispeech", "speechocean762", "esc-10", "speech-commands-noise")
    for archive in DOWNLOADS[name]
}
_COLUMNS = ("path", "archive", "member", "first", "last", "gain", "md5", "file_md5")
# Who is a woman and who is a man: files of LibriSpeech and of speechocean762.
_SPEAKER_FILES = ("SPEAKERS.TXT", "spk2gender")


@dataclass(frozen=True)
class Listed:
    """A line of the list.

    Args:
        path: of the file to write, in the tree.
        archive: part that holds it.
        member: its path in the folder that unpacking makes.
        first, last: samples of the cut, at the rate of the member; None: the whole member.
        gain: factor.
        md5: of the samples.
        file_md5: of the member's bytes, where it is compressed with loss and decoders differ in rounding; else empty.
    """

    path: str
    archive: str
    member: str
    first: int | None
    last: int | None
    gain: float
    md5: str
    file_md5: str

    @property
    def tree(self) -> str:
        """Folder of the tree, such as speech_mini."""
        return self.path.partition("/")[0]


def main(argv: list[str] | None = None) -> int:
    """Make the tree; return the exit code."""
    parser = argparse.ArgumentParser(prog="recordings", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the trees, to be named by SEPKIT_DATA")
    parser.add_argument("--trees", nargs="*", help="speech_mini, noise_mini, speech_more; default: all")
    parser.add_argument("--cache", type=Path, default=cache_folder("recordings"), help="folder of the archives")
    parser.add_argument("--list", type=Path, default=LIST, help="the files; default: recordings.csv")
    parser.add_argument("--mirror", help="address of a folder that holds the archives; default: their publishers")
    parser.add_argument("--checksums", type=Path, help="file as md5sum writes it, for a mirror with other archives")
    arguments = parser.parse_args(argv)
    try:
        listed = read_list(arguments.list)
        trees = {line.tree for line in listed}
        if missing := sorted(set(arguments.trees or ()) - trees):
            raise UserError(f"--trees {missing[0]}: expected some of {', '.join(sorted(trees))}")
        chosen = [line for line in listed if line.tree in (arguments.trees or trees)]
        _unpack(listed, {line.archive for line in chosen}, arguments)
        make_trees(chosen, arguments.cache, arguments.out)
    except UserError as error:
        print(f"recordings: {error}", file=sys.stderr)
        return 2
    return 0


def read_list(path: Path) -> list[Listed]:
    """Read the list.

    Raises:
        UserError: a line with a missing or unreadable cell.
    """
    listed = []
    for number, row in read_csv(path)[1]:
        cells = [row.get(name) or "" for name in _COLUMNS]
        place, archive, member, *cut, gain, md5, file_md5 = cells
        known = archive in _ARCHIVES and set(Path(place).parts) & set(RATES_HZ)
        try:
            if not known or not member or not md5 or ".." in Path(place).parts or Path(place).is_absolute():
                raise ValueError(place)
            first, last = (int(cell) if cell else None for cell in cut)
            listed.append(Listed(place, archive, member, first, last, float(gain or 1), md5, file_md5))
        except ValueError:
            expected = f"{', '.join(_COLUMNS)} as in {LIST.name}"
            raise UserError(f"{path}:{number}: found {cells}, expected {expected}") from None
    return listed


def _unpack(listed: Sequence[Listed], archives: set[str], arguments: argparse.Namespace) -> None:
    """Fetch archives, and unpack whatever the list names in them, for trees that are made later too."""
    for corpus in dict.fromkeys(name for part, (name, _) in _ARCHIVES.items() if part in archives):
        parts = [part for part in sorted(archives) if _ARCHIVES[part][0] == corpus]
        options: dict[str, Any] = {name: getattr(arguments, name) for name in ("cache", "mirror", "checksums")}
        names = {Path(line.member).name for line in listed if line.archive in parts}
        options |= {"name": corpus, "parts": parts}
        download(DownloadOptions(**options), frozenset({*names, *_SPEAKER_FILES}))


def make_trees(listed: Sequence[Listed], cache: Path, out: Path) -> None:
    """Write what is listed as 16-bit FLAC, and who is a woman and who is a man; keep files that are right.

    Raises:
        UserError: a file that the archives lack, other samples than those listed, or no room.
    """
    from tqdm import tqdm

    decoded_otherwise = 0
    for line in tqdm(listed, desc="recordings", unit="file", disable=None):
        folder = cache / _ARCHIVES[line.archive][1]
        source, target = folder / line.member, out / line.path
        if target.is_file() and _md5_of(target) == line.md5:
            continue
        if not source.is_file():
            raise UserError(
                f"{source}: listed, but not unpacked from {line.archive}; remove {folder} and run it again, "
                "and if that does not help, it is not the published archive"
            )
        rate = next(RATES_HZ[part] for part in Path(line.path).parts if part in RATES_HZ)
        samples = converted(source, rate, line.first, line.last, line.gain)
        if (found := _md5(samples)) != line.md5:
            if hashlib.md5(source.read_bytes(), usedforsecurity=False).hexdigest() != line.file_md5:
                raise UserError(
                    f"{source}: at {rate} Hz its samples have the MD5 {found}, expected {line.md5}; it was changed, or "
                    "this soxr computes otherwise"
                )
            decoded_otherwise += 1
        encoded = io.BytesIO()
        soundfile.write(encoded, samples, rate, format="FLAC", subtype="PCM_16")
        _write(target, encoded.getvalue())
    sexes = _sexes(cache)
    for tree in sorted({line.tree for line in listed if line.tree.startswith("speech")}):
        speakers = sorted({Path(line.path).parts[3] for line in listed if line.tree == tree}, key=int)
        lines = [f"{speaker} | {sexes[speaker]}\n" for speaker in speakers if speaker in sexes]
        _write(out / tree / "SPEAKERS.TXT", "".join(["; speaker | sex\n", *lines]).encode())
    other = f"; {decoded_otherwise} are as listed before decoding, and their decoder rounds otherwise here"
    print(f"{out}: {len(listed)} recordings, samples as listed{other if decoded_otherwise else ''}")


def converted(source: Path, rate: int, first: int | None = None, last: int | None = None, gain: float = 1.0) -> Any:
    """Return a recording at a rate, int16: the cut times the gain, soxr VHQ in float64, peaks above 0.99 scaled to it,
    round(32767 x).

    Raises:
        UserError: a file that is no mono recording, or ends before the cut does.
    """
    import numpy as np
    import soxr

    try:
        samples, found = soundfile.read(source, dtype="float64")
    except soundfile.LibsndfileError as error:
        raise UserError(f"{source}: cannot be read ({error}); it is not the published file") from None
    if samples.ndim != 1 or len(samples) < (last or 0):
        raise UserError(f"{source}: found shape {samples.shape}, expected {last or 'N'} samples or more, mono")
    resampled = soxr.resample(gain * samples[first:last], found, rate, "VHQ")
    if (peak := np.abs(resampled).max(initial=0)) > _PEAK:
        resampled = resampled * (_PEAK / peak)
    return np.rint(32767 * resampled).astype(np.int16)


def _sexes(cache: Path) -> dict[str, str]:
    """Speaker of the tree -> F or M. Those of speechocean762 have a 9 before their number."""
    from sepkit.corpora._recordings import speaker_sexes

    sexes = speaker_sexes(cache / "LibriSpeech")
    for path in sorted((cache / "speechocean762").glob("*/spk2gender")):
        pairs = [line.split() for line in path.read_text("utf-8").splitlines()]
        sexes |= {f"9{pair[0]}": pair[1].upper() for pair in pairs if len(pair) == 2}
    return sexes


def _md5_of(path: Path) -> str:
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
            raise UserError(f"{path}: cannot be written ({error.strerror}); free disk space") from error


if __name__ == "__main__":
    sys.exit(main())
