"""Collections of utterances whose speakers are known, to measure clusters on.

What it is: recordings of some speakers of one split, each with noise of its own and a band tilt of its own, as if every
one had come through another telephone; or as they are. `voices.csv` says who speaks in each.
Traps: clean read speech with one microphone for each speaker is too easy. Plain spectra tell such speakers apart by
their microphones.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import numpy as np

from sepkit.corpora._made_with import claim
from sepkit.corpora._recordings import find_recordings
from sepkit.data import audio
from sepkit.data.segments import Segment, write_segments
from sepkit.errors import UserError
from sepkit.studies.clustering.data import color
from sepkit.studies.clustering.options import VoicesOptions


def prepare_voices(options: VoicesOptions) -> Path:
    """Write the utterances and return `voices.csv`.

    Args:
        options: the recordings, and whose are taken.

    Raises:
        UserError: a bad argument, too few speakers, recordings that cannot be read, or `out` holds other ones.
    """
    out = Path(options.out)
    try:
        pattern = re.compile(options.like)
    except re.error as error:
        raise UserError(f"--like {options.like}: not a regular expression ({error})") from error
    recordings, _ = find_recordings(Path(options.speech), options.speaker_from)
    known = [r for r in recordings if r.split in (options.split, None) and pattern.search(r.speaker)]
    counts = Counter(recording.speaker for recording in known)
    wanted = len(counts) if options.speakers is None else options.speakers
    if not 1 <= wanted <= len(counts):
        raise UserError(f"--speakers: found {wanted}, expected 1 to {len(counts)}, the speakers of {options.split}")
    names = {name for name, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:wanted]}
    described = {"speech": str(options.speech), "split": options.split, "like": options.like, "speakers": sorted(names)}
    noise = {"snr_db": list(options.snr_db), "seed": options.seed} if options.noisy else None
    claim(out / "voices.json", described | {"noise": noise, "sample_rate": options.sample_rate})
    segments = []
    for number, recording in enumerate(r for r in known if r.speaker in names):
        waveform = audio.read(recording.path, sample_rate=options.sample_rate)
        if options.noisy:
            waveform = with_channel(waveform, options.snr_db, np.random.default_rng((options.seed, number)))
        path = out / recording.speaker / f"{recording.path.stem}.flac"
        audio.write(path, waveform, options.sample_rate, subtype="PCM_16")
        seconds = len(waveform) / options.sample_rate
        segments.append(Segment(str(path.relative_to(out)), 0.0, seconds, recording.speaker))
    return write_segments(out / "voices.csv", segments)


def with_channel(
    waveform: np.ndarray, snr_db: tuple[float, float], generator: np.random.Generator, tilt_nepers: float = 0.3
) -> np.ndarray:
    """Return a waveform with a smooth band tilt and white noise of its own, below full scale.

    Args:
        waveform: (T,).
        snr_db: range of the signal-to-noise ratio, dB.
        generator: of the draws.
        tilt_nepers: standard deviation of each of the tilt's four cosines.
    """
    size = len(waveform)
    tilted = np.fft.irfft(np.fft.rfft(waveform) * color(size, tilt_nepers, generator), size)
    noise = generator.standard_normal(size)
    ratio = 10 ** (-generator.uniform(*snr_db) / 20)
    power = math.sqrt(float(np.square(tilted).mean()) / float(np.square(noise).mean()))
    noisy = tilted + ratio * power * noise
    return (noisy * min(1.0, 0.98 / max(1e-9, float(np.abs(noisy).max())))).astype(np.float32)
