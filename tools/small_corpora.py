"""Small corpora in the layouts of LibriMix and VCTK-2mix, from what `python -m tools.recordings` makes.

    python -m tools.small_corpora RECORDINGS --out CORPUS

writes CORPUS/LibriSpeech, CORPUS/VCTK-Corpus, CORPUS/wham_noise and tables in CORPUS/metadata/libri2mix and
CORPUS/metadata/vctk2mix, which egs/librimix/run.sh and egs/vctk/run.sh take. Readers of LibriSpeech stand for
LibriMix's, the test speakers of speechocean762 for VCTK's, and `noise_mini` for the noise of WHAM, all resampled to the
rates that the recipes expect. Pairs and levels are drawn by LibriMix's rules (Cosentino et al. 2020): two speakers,
speech between -33 and -25 and noise between -38 and -30, in LUFS there, in dB of power here. Nothing of it is Libri2Mix
or VCTK-2mix: no official mixture has both utterances here.
"""

import argparse
import math
import random
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.files import check_writable, write_csv

# Split of ours, part of LibriSpeech and folder of WHAM whose names it takes, and mixtures.
SPLITS = (("train", "train-clean-100", "tr", 4000), ("dev", "dev-clean", "cv", 150), ("test", "test-clean", "tt", 300))
VCTK_MIXTURES = 300
OURS_HZ, LIBRIMIX_HZ, VCTK_HZ = 8000, 16000, 48000
SHORTEST_SECONDS = 3.0
COLUMNS = ("mixture_ID", *(f"{part}_{what}" for part in ("source_1", "source_2", "noise") for what in ("path", "gain")))


class Recording(NamedTuple):
    """A recording of the corpus, by the path that tables give it."""

    path: str
    speaker: str
    rms: float

    def gain(self, level_db: float) -> float:
        """The factor that brings it to a level, in dB of full scale."""
        return 10 ** (level_db / 20) / self.rms


def main(arguments: list[str] | None = None) -> int:
    """Write the corpora; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, help="what `python -m tools.recordings` made")
    parser.add_argument("--out", type=Path, required=True, help="folder of the corpora")
    options = parser.parse_args(arguments)
    speech, noise, out = options.recordings / "speech_mini/wav8k", options.recordings / "noise_mini/wav8k", options.out
    noises: list[Recording] = []
    try:
        check_writable(out)
        for split, part, noise_part, mixtures in SPLITS:
            utterances = _utterances(speech / split, out, part)
            noises = [
                _resampled(file, out / "wham_noise" / path, LIBRIMIX_HZ, str(path), "")
                for file in _files(noise / split)
                for path in [Path(noise_part, f"{file.parent.name}_{file.stem}.wav")]
            ]
            table = out / "metadata/libri2mix" / f"libri2mix_{part}.csv"
            _write_table(table, utterances, noises, mixtures, seed=split)
        utterances = _utterances(speech / "test", out, None)
        table = out / "metadata/vctk2mix/VCTK2mix_VCTK_md.csv"
        _write_table(table, utterances, noises, VCTK_MIXTURES, seed="vctk")
    except UserError as error:
        print(f"small_corpora: {error}", file=sys.stderr)
        return 2
    return 0


def _utterances(folder: Path, out: Path, part: str | None) -> list[Recording]:
    """Write readers of LibriSpeech as its `part`, or, for None, speakers of speechocean762 as VCTK's."""
    written = []
    for file in _files(folder):
        speaker = file.parent.parent.name
        # speechocean762's speakers have numbers from 90001 on.
        if (len(speaker) < 5) != (part is not None) or audio.info(file).duration_seconds < SHORTEST_SECONDS:
            continue
        if part is None:
            name = f"p{speaker}_{int(file.stem.split('-')[-1]):03d}.wav"
            place, path, rate = Path("VCTK-Corpus/wav48", f"p{speaker}", name), f"wav16_cut/{name}", VCTK_HZ
        else:
            path = f"{part}/{speaker}/{file.parent.name}/{file.name}"
            place, rate = Path("LibriSpeech", path), LIBRIMIX_HZ
        written.append(_resampled(file, out / place, rate, path, speaker))
    return written


def _write_table(table: Path, utterances: list[Recording], noises: list[Recording], mixtures: int, seed: str) -> None:
    draw = random.Random(seed)
    counts = Counter(utterance.speaker for utterance in utterances)
    pairs = len(utterances) ** 2 - sum(count**2 for count in counts.values())
    if pairs < mixtures:
        raise UserError(f"{table}: {pairs} pairs of two speakers, expected {mixtures} or more")
    rows: dict[str, tuple[object, ...]] = {}
    while len(rows) < mixtures:
        first, second = draw.sample(utterances, 2)
        if first.speaker == second.speaker:
            continue
        noise = draw.choice(noises)
        name = f"{Path(first.path).stem}_{Path(second.path).stem}"
        gains = [source.gain(draw.uniform(-33, -25)) for source in (first, second)]
        noise_gain = noise.gain(draw.uniform(-38, -30))
        rows.setdefault(name, (name, first.path, gains[0], second.path, gains[1], noise.path, noise_gain))
    write_csv(table, COLUMNS, rows.values())
    print(
        f"{table}: {mixtures} mixtures of {len(utterances)} utterances by {len(counts)} speakers, {len(noises)} noises"
    )


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.flac"))
    if not files:
        raise UserError(f"{folder}: no FLAC file, expected the recordings that `python -m tools.recordings` makes")
    return files


def _resampled(file: Path, place: Path, rate_hz: int, path: str, speaker: str) -> Recording:
    header = audio.info(file)
    if (header.sample_rate, header.channels) != (OURS_HZ, 1):
        found = f"{header.sample_rate} Hz and {header.channels} channels"
        raise UserError(f"{file}: found {found}, expected {OURS_HZ} Hz and one channel")
    samples = np.clip(audio.read(file, sample_rate=rate_hz), -1, 1)
    audio.write(place, samples, rate_hz, subtype="PCM_16")
    return Recording(path, speaker, math.sqrt(float(np.mean(samples**2))))


if __name__ == "__main__":
    sys.exit(main())
