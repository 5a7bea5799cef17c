"""Collections of utterances whose speakers are known, to measure clusters on.

What it is: recordings of some speakers of one split, each with noise of its own and a band tilt of its own, as if every
one had come through another telephone; or as they are; or as estimates of a separation, with the artifacts that these
have. `voices.csv` says who speaks in each.
Traps: clean read speech with one microphone for each speaker is too easy. Plain spectra tell such speakers apart by
their microphones.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import numpy as np

from sepkit.corpora._recordings import check_provenance, find_recordings
from sepkit.data import audio
from sepkit.data.channels import color
from sepkit.data.segments import Segment, write_segments
from sepkit.errors import UserError
from sepkit.evaluation.metrics import si_sdr_db
from sepkit.inference import Separator, load_model
from sepkit.studies.speaker_clustering.config import VoicesOptions

# Levels of the utterances of a mixture differ by at most this.
_LEVEL_DB = 2.5
# With noise: share of mixtures that have it, and how far it is below the utterance.
_NOISY_SHARE, _NOISE_BELOW_DB = 0.5, (3.0, 20.0)


def prepare_voices(options: VoicesOptions) -> Path:
    """Write the utterances and return `voices.csv`."""
    out = Path(options.out)
    try:
        pattern = re.compile(options.regex)
    except re.error as error:
        raise UserError(f"--regex {options.regex}: not a regular expression ({error})") from error
    recordings, _ = find_recordings(Path(options.speech), options.speaker_from)
    known = [r for r in recordings if r.split in (options.split, None) and pattern.search(r.speaker)]
    counts = Counter(recording.speaker for recording in known)
    wanted = len(counts) if options.speakers is None else options.speakers
    if not 1 <= wanted <= len(counts):
        raise UserError(f"--speakers: found {wanted}, expected 1 to {len(counts)}, the speakers of {options.split}")
    names = {name for name, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:wanted]}
    described = {
        "speech": str(options.speech),
        "split": options.split,
        "regex": options.regex,
        "speakers": sorted(names),
    }
    chosen = [recording for recording in known if recording.speaker in names]
    if options.recordings is not None:
        described["recordings"] = options.recordings
        before = Counter[str]()
        chosen = [r for r in chosen if before.update([r.speaker]) or before[r.speaker] <= options.recordings]
    if options.separated is not None and wanted < 2:
        raise UserError("--separated: found 1 speaker, expected at least 2, whose utterances are mixed")
    noise = {"snr_db": list(options.snr_db), "seed": options.seed} if options.noisy else None
    mixed = None if options.separated is None else {"model": options.separated, "seed": options.seed}
    noises = [] if options.noise is None else audio.find_audio_files(Path(options.noise))
    if options.noise is not None:
        if mixed is None or not noises:
            raise UserError(f"--noise {options.noise}: found {len(noises)} recordings, expected some, and --separated")
        mixed["noise"] = str(options.noise)
    check_provenance(
        out / "voices.json", described | {"noise": noise, "sample_rate": options.sample_rate, "separated": mixed}
    )
    separator = None if options.separated is None else load_model(options.separated, predict=False)
    segments = []
    for number, recording in enumerate(chosen):
        path = out / recording.speaker / f"{recording.path.stem}.flac"
        if separator is not None and path.is_file():
            seconds = audio.info(path).duration_seconds
            segments.append(Segment(str(path.relative_to(out)), 0.0, seconds, recording.speaker))
            continue
        waveform = audio.read(recording.path, sample_rate=options.sample_rate)
        if options.noisy:
            waveform = with_channel(waveform, options.snr_db, np.random.default_rng((options.seed, number)))
        if separator is not None:
            generator = np.random.default_rng((options.seed, number, 1))
            others = [other for other in chosen if other.speaker != recording.speaker]
            other = audio.read(others[int(generator.integers(len(others)))].path, sample_rate=options.sample_rate)
            noise = None
            if noises and generator.random() < _NOISY_SHARE:
                path_of_noise = noises[int(generator.integers(len(noises)))]
                noise = audio.read(path_of_noise, sample_rate=options.sample_rate)
            waveform = through_mixture(waveform, other, noise, separator, options.sample_rate, generator)
        audio.write(path, waveform, options.sample_rate, subtype="PCM_16")
        seconds = len(waveform) / options.sample_rate
        segments.append(Segment(str(path.relative_to(out)), 0.0, seconds, recording.speaker))
    return write_segments(out / "voices.csv", segments)


def through_mixture(
    waveform: np.ndarray,
    other: np.ndarray,
    noise: np.ndarray | None,
    separator: Separator,
    sample_rate: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """Return the estimate of an utterance from its mixture with another one, (T,), below full scale.

    The other one begins anywhere, and in half of the mixtures is heard in a part of the time only.

    Args:
        noise: (N,), at 3 to 20 dB below the utterance; None: without.
    """
    length = len(waveform)
    scaled = _at_level(_from_anywhere(other, length, generator), waveform, generator.uniform(-_LEVEL_DB, _LEVEL_DB))
    if generator.random() < 0.5:
        first, last = np.sort(generator.integers(length + 1, size=2))
        scaled[first:last] = 0.0
    mixture = waveform + scaled
    if noise is not None:
        level_db = -generator.uniform(*_NOISE_BELOW_DB)
        mixture = mixture + _at_level(_from_anywhere(noise, length, generator), waveform, level_db)
    estimates = separator.separate(mixture.astype(np.float32), sample_rate).estimates
    best = max(estimates, key=lambda estimate: si_sdr_db(estimate, waveform))
    return (best * min(1.0, 0.98 / max(1e-9, float(np.abs(best).max())))).astype(np.float32)


def _from_anywhere(waveform: np.ndarray, length: int, generator: np.random.Generator) -> np.ndarray:
    """Return (length,) samples that begin at a random place; a shorter recording repeats."""
    return np.resize(np.roll(waveform, -int(generator.integers(len(waveform)))), length)


def _at_level(waveform: np.ndarray, reference: np.ndarray, level_db: float) -> np.ndarray:
    """Return a waveform at a level relative to another one's."""
    powers = [float(np.square(x, dtype=np.float64).mean()) for x in (reference, waveform)]
    return 10 ** (level_db / 20) * math.sqrt(powers[0] / max(powers[1], 1e-20)) * waveform


def with_channel(
    waveform: np.ndarray, snr_db: tuple[float, float], generator: np.random.Generator, tilt_nepers: float = 0.3
) -> np.ndarray:
    """Return a waveform (T,) with a smooth band tilt (four cosines) and white noise of its own, below full scale."""
    size = len(waveform)
    tilted = np.fft.irfft(np.fft.rfft(waveform) * color(size, tilt_nepers, generator), size)
    noise = generator.standard_normal(size)
    ratio = 10 ** (-generator.uniform(*snr_db) / 20)
    power = math.sqrt(float(np.square(tilted).mean()) / float(np.square(noise).mean()))
    noisy = tilted + ratio * power * noise
    return (noisy * min(1.0, 0.98 / max(1e-9, float(np.abs(noisy).max())))).astype(np.float32)
