"""Check a prepared corpus and report everything that is wrong with it, so that training does not fail later.

    check_whole(path)                    # raises UserError for a file that ends early
    problems = verify(out, {"train": entries, ...}, {"train": 13900, ...})

`verify` prints a line per split and writes `OUT/verification.json`.
"""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sepkit.data import audio
from sepkit.data.headers import read_wav_header
from sepkit.data.manifest import MixtureEntry
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from sepkit.files import write_json
from sepkit.parallel import Failed, for_each

REPORT = "verification.json"

Rounding = Literal["floor", "nearest"]


def check_whole(path: Path) -> audio.AudioInfo:
    """Return the header of an audio file after checking, by decoding only its end, that the file is not cut short."""
    header = audio.info(path)
    if path.suffix.lower() != ".wav":
        audio.read(path, header.num_samples - 1, 1)
        return header
    # libsndfile would report such a wav as shorter.
    with open(path, "rb") as file:
        size = read_wav_header(file, str(path)).size_bytes if file.peek(4).startswith(b"RIFF") else None
        missing = 0 if size is None else file.tell() + size - os.fstat(file.fileno()).st_size
    if missing > 0:
        raise UserError(f"{path}: truncated ({missing} bytes of its samples are missing); get the file again")
    return header


def verify(
    out: Path,
    splits: Mapping[str, Sequence[MixtureEntry]],
    expected: Mapping[str, int],
    sample: int = 20,
    rounding: Rounding = "floor",
    may_share: Sequence[str] = (),
) -> list[str]:
    """Return the problems of a prepared corpus, one line each, and write `out/verification.json`.

    It checks the number of mixtures of each split, and that no two of train, dev and test share a speaker, but those
    that `may_share`. For an evenly spread sample of mixtures it checks that all their files can be read and have the
    right length, and reports the SHA-256 of the mixture's samples as PCM16. Equal checksums of written and of described
    mixtures mean that they agree in every sample.
    """
    problems: list[str] = []
    report: dict[str, Any] = {}
    for name, entries in splits.items():
        wanted = expected.get(name, len(entries))
        if len(entries) != wanted:
            problems.append(f"{name}: {len(entries)} of {wanted} mixtures prepared")
        checksums: dict[str, str] = {}
        places = np.linspace(0, len(entries) - 1, min(sample, len(entries))).astype(int)
        spread, work = [entries[place] for place in places], partial(_checksum, rounding)
        for entry, result in for_each(work, spread, 1, f"checking {name}", "mixture"):
            if isinstance(result, Failed):
                problems.append(f"{name}: mixture {entry.id!r}: {result.reason}")
            else:
                checksums[entry.id] = result
        found = {
            "mixtures": len(entries),
            "expected": wanted,
            "sources": max((len(entry.sources) for entry in entries), default=0),
            "speakers": len(_speakers(entries)),
            "hours": round(sum(entry.duration_seconds for entry in entries) / 3600, 3),
            "sha256": checksums,
        }
        report[name] = found
        print(
            f"{name}: {found['mixtures']} of {wanted} mixtures of {found['sources']}, {found['speakers']} speakers, "
            f"{found['hours']:.2f} h"
        )
    of_split: dict[str, set[str]] = {}
    for name, entries in splits.items():
        of_split.setdefault(name.split("-")[0], set()).update(_speakers(entries))
    problems += [
        f"{one} and {other} share {len(shared)} speaker(s): {', '.join(sorted(shared)[:5])}"
        for one, other in combinations(of_split, 2)
        if not (one in may_share and other in may_share) and (shared := of_split[one] & of_split[other])
    ]
    write_json(out / REPORT, {"splits": report, "problems": problems})
    if problems:
        print(f"warning: {len(problems)} problem(s), listed in {out / REPORT}; first: {problems[0]}", file=sys.stderr)
    return problems


def _checksum(rounding: Rounding, entry: MixtureEntry) -> str:
    parts = [*entry.sources, *([entry.noise] if entry.noise else [])]
    # All files of a recorded mixture have its length.
    written = [] if entry.mixture is None else [entry.mixture, *(part.path for part in parts)]
    for path in map(entry.resolve, written):
        header = check_whole(path)
        if header.sample_rate == entry.sample_rate and header.num_samples != entry.num_samples:
            raise UserError(f"{path}: {header.num_samples} samples, expected {entry.num_samples}; make the file again")
    return hashlib.sha256(audio.quantize_pcm16(mix_entry(entry).mixture, rounding).astype("<i2").tobytes()).hexdigest()


def _speakers(entries: Sequence[MixtureEntry]) -> set[str]:
    return {source.speaker for entry in entries for source in entry.sources if source.speaker}
