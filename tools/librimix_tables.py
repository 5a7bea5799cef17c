"""A small corpus in LibriMix's layout, from the recordings of the tables (python -m tools.recordings).

    python -m tools.librimix_tables RECORDINGS --out CORPUS

writes CORPUS/LibriSpeech, CORPUS/wham_noise and CORPUS/metadata, which egs/librimix/run.sh takes by --librispeech,
--wham-noise and --metadata. Utterances and noises are those of `speech_mini` and `noise_mini`, resampled to LibriMix's
16 kHz. Pairs and levels are drawn by LibriMix's rules (Cosentino et al. 2020): two readers, speech between -33 and -25
and noise between -38 and -30, in LUFS there, in dB of power here. Nothing of it is Libri2Mix: no official mixture has
both utterances here.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import soxr

from sepkit.errors import UserError

# Split of ours, part of LibriSpeech and folder of WHAM whose names it takes, and mixtures.
SPLITS = (("train", "train-clean-100", "tr", 4000), ("dev", "dev-clean", "cv", 150), ("test", "test-clean", "tt", 300))
RATE_HZ, OURS_HZ = 16000, 8000
SHORTEST_SECONDS = 3.0
COLUMNS = (
    "mixture_ID", "source_1_path", "source_1_gain", "source_2_path", "source_2_gain", "noise_path", "noise_gain",
)  # fmt: skip


class Recording(NamedTuple):
    """A recording of the corpus; its path is relative to LibriSpeech or wham_noise."""

    path: str
    reader: str
    seconds: float
    rms: float

    def gain(self, level_db: float) -> float:
        """The factor that brings it to a level, in dB of full scale."""
        return 10 ** (level_db / 20) / self.rms


def main(arguments: list[str] | None = None) -> int:
    """Write the corpus; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, help="what `python -m tools.recordings` made")
    parser.add_argument("--out", type=Path, required=True, help="folder of the corpus")
    options = parser.parse_args(arguments)
    try:
        for split, part, noise_part, mixtures in SPLITS:
            _write_split(options.recordings, options.out, split, part, noise_part, mixtures)
    except UserError as error:
        print(f"librimix_tables: {error}", file=sys.stderr)
        return 2
    return 0


def _write_split(recordings: Path, out: Path, split: str, part: str, noise_part: str, mixtures: int) -> None:
    draw = random.Random(split)
    speech = []
    speech_folder = recordings / "speech_mini" / "wav8k" / split
    for file in _files(speech_folder):
        reader = file.parent.parent.name
        # speechocean762's speakers have numbers from 90001 on.
        if len(reader) < 5:
            path = Path(part, reader, file.parent.name, file.name)
            speech.append(_resampled(file, out / "LibriSpeech", path, reader))
    speech = [recording for recording in speech if recording.seconds >= SHORTEST_SECONDS]
    noise_folder = recordings / "noise_mini" / "wav8k" / split
    noises = [
        _resampled(file, out / "wham_noise", Path(noise_part, f"{file.parent.name}_{file.stem}.wav"), "")
        for file in _files(noise_folder)
    ]
    pairs = len(speech) ** 2 - sum(count**2 for count in Counter(recording.reader for recording in speech).values())
    if pairs < mixtures:
        raise UserError(f"{speech_folder}: {pairs} pairs of two readers, expected {mixtures} or more")
    rows: dict[str, tuple[object, ...]] = {}
    while len(rows) < mixtures:
        first, second = draw.sample(speech, 2)
        if first.reader == second.reader:
            continue
        noise = draw.choice(noises)
        name = f"{Path(first.path).stem}_{Path(second.path).stem}"
        gains = [source.gain(draw.uniform(-33, -25)) for source in (first, second)]
        noise_gain = noise.gain(draw.uniform(-38, -30))
        rows.setdefault(name, (name, first.path, gains[0], second.path, gains[1], noise.path, noise_gain))
    table = out / "metadata" / f"libri2mix_{part}.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows.values()])
    readers = len({recording.reader for recording in speech})
    print(f"{table}: {len(rows)} mixtures of {len(speech)} utterances of {readers} readers, {len(noises)} noises")


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.flac"))
    if not files:
        raise UserError(f"{folder}: no FLAC file, expected the recordings that `python -m tools.recordings` makes")
    return files


def _resampled(file: Path, root: Path, path: Path, reader: str) -> Recording:
    samples, rate = soundfile.read(file, dtype="float32")
    if rate != OURS_HZ or samples.ndim != 1:
        raise UserError(f"{file}: {rate} Hz, shape {samples.shape}; expected {OURS_HZ} Hz and one channel")
    samples = np.clip(soxr.resample(samples, OURS_HZ, RATE_HZ), -1, 1)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(root / path, samples, RATE_HZ, subtype="PCM_16")
    return Recording(str(path), reader, len(samples) / RATE_HZ, math.sqrt(float(np.mean(samples**2))))


if __name__ == "__main__":
    sys.exit(main())
