"""Segments of speech as instances, views of them, and collections whose speakers are known, to measure clusters on.

A collection has recordings of some speakers of one split, each with noise of its own and a band tilt of its own, as if
every one had come through another telephone; or as they are; or as estimates of a separation, with the artifacts that
these have. `voices.csv` states who speaks in each. Clean read speech with one microphone for each speaker is too easy:
plain spectra distinguish such speakers by their microphones.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.corpora._recordings import Recording, check_provenance, find_recordings
from sepkit.data import audio
from sepkit.data.activity import FRAME_SECONDS, ActivityMeter
from sepkit.data.channels import band_gains, codecs_at, color, encode_and_decode
from sepkit.data.segments import Segment, read_segments, write_segments
from sepkit.errors import Bounds, UserError
from sepkit.evaluation.metrics import si_sdr_db
from sepkit.inference import Separator, load_model
from sepkit.studies.speaker_clustering.config import SegmentDataConfig, ViewConfig, VoicesOptions

# Levels of the utterances of a mixture differ by at most this.
_LEVEL_DB = 2.5
# With noise: share of mixtures that have it, and how far it is below the utterance.
_NOISY_SHARE, _NOISE_BELOW_DB = 0.5, (3.0, 20.0)
_ROOM_SECONDS = 0.3
_PAUSE_SHARES = 0.2, 0.6
# Cutoff frequencies and orders of the band limits of telephones.
_TELEPHONE_HZ, _FILTER_ORDERS = ((200.0, 350.0), (3000.0, 3500.0)), (4.0, 30.0)

# Of mp3. LAME refuses the very lowest bit rates.
_MOST_COMPRESSION = 0.99


@dataclass
class Views:
    """Views of a batch of instances.

    Args:
        waveforms: (B, V, T).
        masks: (B, V, 4) shares of time and of bands: where masks begin, and how long they are.
        heard: Frames of 20 ms with speech, (B, V, F) bool.
        instances: (B,) numbers.
    """

    waveforms: Any
    masks: Any
    heard: Any
    instances: Any


class SpeechSegments:
    """Segments of one speaker each, in memory as 16-bit integers; item (epoch, index) has views of one.

    Args:
        source: Folder of recordings, or CSV file of segments.
        config: Configuration of the data.
        sample_rate: Sample rate, Hz.
        views: Number of views of an item.
        seed: Seed of the views.
        separated: Folder with estimates of the recordings, from which a share of the views is cut; None: none.
        with_speech: Whether frames with speech are labeled, by energy.
        speeds: Speeds at which the segments are played, too, each as another speaker.

    Raises:
        UserError: silent recordings, or silent noise.
    """

    def __init__(
        self,
        source: str,
        config: SegmentDataConfig,
        sample_rate: int,
        views: int,
        seed: int,
        separated: str | None = None,
        with_speech: bool = False,
        speeds: Sequence[float] = (),
    ) -> None:
        if separated is not None and not Path(separated).is_dir():
            raise UserError(f"data.separated: {separated} is no folder, expected one with estimates of data.train")
        if config.views.codec_probability and "mp3" not in codecs_at(sample_rate):
            raise UserError(f"data.views.codec_probability: mp3 does not work at {sample_rate} Hz; set it to 0")
        self.config, self.sample_rate, self.views, self.seed = config, sample_rate, views, seed
        self.segments: list[Segment] = []
        self.waveforms: list[np.ndarray] = []
        self.estimates: list[np.ndarray] | None = None if separated is None else []
        skipped = 0
        for segment, path in _listed(Path(source)):
            both = self._read(segment, path, separated)
            skipped += self._add(segment, both)
            for speed in speeds:
                faster = audio.resample(both, round(speed * sample_rate), sample_rate)
                skipped += self._add(replace(segment, speaker=f"{segment.speaker} x{speed}"), faster)
        if skipped:
            from sepkit.training.task_definition import log

            log(f"{source}: {skipped} segments shorter than {config.min_seconds} s, or silent, are left out")
        if not self.segments:
            raise UserError(f"{source}: no segment of at least {config.min_seconds} s in which something is heard")
        noises = [] if config.noise is None else audio.find_audio_files(Path(config.noise))
        read = [_integers(audio.read(path, sample_rate=sample_rate)) for path in noises]
        self.noises = [noise for noise in read if np.ptp(noise) > 0]
        if config.noise is not None and not self.noises:
            raise UserError(f"data.noise: {config.noise} has no recording in which something is heard")
        self.speech = [speech_frames(w, sample_rate) for w in self.waveforms] if with_speech else None

    def _read(self, segment: Segment, path: Path, separated: str | None) -> np.ndarray:
        """A segment, and its estimate or again itself if there is a folder of estimates, (1 or 2, T)."""
        start = round(segment.start_seconds * self.sample_rate)
        whole = audio.info(path)
        total = audio.resampled_length(whole.num_samples, whole.sample_rate, self.sample_rate)
        stop = min(total, start + round(min(segment.duration_seconds, whole.duration_seconds) * self.sample_rate))
        start = min(start, stop)
        samples = audio.read(path, start, stop - start, self.sample_rate)
        if separated is None:
            return samples[None]
        estimate = Path(separated) / segment.path
        if not estimate.is_file():
            return np.stack([samples, samples])
        return np.stack([samples, audio.read(estimate, start, len(samples), self.sample_rate, pad_end=True)])

    def _add(self, segment: Segment, both: np.ndarray) -> int:
        """Add the parts of a recording and of its estimate, (1 or 2, T); return how many are left out."""
        skipped, config = 0, self.config
        parts = max(1, math.ceil(both.shape[1] / (config.max_seconds * self.sample_rate)))
        for part in np.array_split(both, parts, axis=1):
            if part.shape[1] < config.min_seconds * self.sample_rate or not np.ptp(part[0]) > 0:
                skipped += 1
                continue
            self.segments.append(segment)
            self.waveforms.append(_integers(part[0]))
            if self.estimates is not None:
                self.estimates.append(_integers(part[1]))
        return skipped

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Return (V, T) waveforms, (V, 4) masks, (V, F) where the speaker speaks, and the number of the instance."""
        views = [self._view(np.random.default_rng((self.seed, *key, view)), key[1]) for view in range(self.views)]
        waveforms, masks, heard = (np.stack(part) for part in zip(*views, strict=True))
        return waveforms, masks, heard, key[1]

    def _view(self, generator: np.random.Generator, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        views = self.config.views
        length = round(views.crop_seconds * self.sample_rate)
        samples = self.waveforms[index]
        if self.estimates is not None and generator.random() < views.separated_probability:
            samples = self.estimates[index]
        start = _place(samples, length, generator)
        crop = _part(samples, start, length)
        step = round(FRAME_SECONDS * self.sample_rate)
        places = (start + np.arange(0, length, step)) % len(samples) // step
        heard = self.speech[index][places] if self.speech is not None else np.ones(len(places), bool)
        if views.speechless_probability and generator.random() < views.speechless_probability:
            # Noise alone: a recording of it, or white.
            if self.noises and generator.random() < 0.5:
                crop = _crop(self.noises[int(generator.integers(len(self.noises)))], length, generator)
            else:
                crop = np.float32(0.05) * generator.standard_normal(length, np.float32)
            return self._finished(crop, np.zeros_like(heard), generator)
        if views.pause_probability and generator.random() < views.pause_probability:
            pause = round(generator.uniform(*_PAUSE_SHARES) * len(heard))
            first = 0 if generator.random() < 0.5 else len(heard) - pause
            crop[first * step : (first + pause) * step] = 0.0
            heard[first : first + pause] = False
        if generator.random() < views.other_probability and len(self) > 1:
            other = _crop(self.waveforms[int(generator.integers(len(self)))], length, generator)
            crop = crop + other * _ratio(crop, other, -generator.uniform(*views.other_db))
        if self.noises and generator.random() < views.noise_probability:
            noise = _crop(self.noises[int(generator.integers(len(self.noises)))], length, generator)
            crop = crop + noise * _ratio(crop, noise, -generator.uniform(*views.snr_db))
        return self._finished(crop, heard, generator)

    def _finished(
        self, crop: np.ndarray, heard: np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        views = self.config.views
        waveform = augment(crop, views, self.sample_rate, generator)
        if views.codec_probability and generator.random() < views.codec_probability:
            waveform = _as_mp3(waveform, self.sample_rate, generator)
        lengths = generator.random(2) * (views.longest_time_mask, views.longest_band_mask)
        begins = generator.random(2) * (1 - lengths)
        return waveform, np.array([begins[0], lengths[0], begins[1], lengths[1]], np.float32), heard


def _listed(source: Path) -> list[tuple[Segment, Path]]:
    if not source.is_dir():
        return [(segment, source.parent / segment.path) for segment in read_segments(source)]
    names = [(file.relative_to(source), file) for file in audio.find_audio_files(source)]
    return [(Segment(str(n), speaker=n.parts[0] if len(n.parts) > 1 else None), file) for n, file in names]


def _crop(waveform: np.ndarray, length: int, generator: np.random.Generator) -> np.ndarray:
    """Return (length,) float32 samples of 16-bit ones from a random place; a shorter one repeats."""
    return _part(waveform, _place(waveform, length, generator), length)


def _place(waveform: np.ndarray, length: int, generator: np.random.Generator) -> int:
    repeated = len(waveform) * -(-length // len(waveform)) if len(waveform) < length else len(waveform)
    return int(generator.integers(repeated - length + 1))


def _part(waveform: np.ndarray, start: int, length: int) -> np.ndarray:
    """Return (length,) float32 samples of 16-bit ones from a place in a waveform that repeats."""
    if start + length > len(waveform):
        waveform = np.tile(waveform, -(-(start + length) // len(waveform)))
    return waveform[start : start + length].astype(np.float32) / 32767


def _integers(waveform: np.ndarray) -> np.ndarray:
    return np.round(np.clip(waveform, -1, 1) * 32767).astype(np.int16)


def speech_frames(waveform: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return which 20 ms of a clean recording (T,) are active, (F,) bool, by energy."""
    frames = np.zeros(-(-len(waveform) // round(FRAME_SECONDS * sample_rate)), bool)
    meter = ActivityMeter(1, sample_rate)
    meter.add(waveform.astype(np.float32)[None] / 32767)
    for start, length in meter.segments()[0]:
        frames[round(start / FRAME_SECONDS) : round((start + length) / FRAME_SECONDS)] = True
    return frames


def _ratio(signal: np.ndarray, other: np.ndarray, level_db: float) -> np.float32:
    """Return the factor that puts `other` at a level relative to `signal`."""
    energies = [float(np.square(x, dtype=np.float64).sum()) for x in (signal, other)]
    return np.float32(10 ** (level_db / 20) * math.sqrt(energies[0] / energies[1]) if energies[1] > 0 else 0.0)


def augment(waveform: np.ndarray, views: ViewConfig, sample_rate: int, generator: np.random.Generator) -> np.ndarray:
    """Return a waveform with reverberation, color, noise, band limits and gain of its own, (T,).

    All is done to its spectrum, so that a view takes two Fourier transforms.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    has_room = generator.random() < views.room_probability
    tail = round(_ROOM_SECONDS * sample_rate)
    size = int(next_fast_len(len(waveform) + tail, real=True) or 0)
    spectrum = np.asarray(rfft(waveform, size)) * color(size, views.tilt_nepers, generator)
    if has_room:
        spectrum *= np.asarray(rfft(_room(tail, sample_rate, generator), size))
    has_noise = not views.clean_probability or generator.random() >= views.clean_probability
    noise = generator.standard_normal(2 * len(spectrum), np.float32).view(np.complex64)
    noise = noise * color(size, 2 * views.tilt_nepers, generator)
    power, noise_power = _energy(spectrum) / len(waveform), _energy(noise) / size
    level_db = -generator.uniform(*views.snr_db)
    if has_noise and noise_power > 0:
        spectrum += noise * np.float32(10 ** (level_db / 20) * math.sqrt(power / noise_power))
    if views.telephone_probability and generator.random() < views.telephone_probability:
        limits = [(generator.uniform(*cutoff_hz), generator.uniform(*_FILTER_ORDERS)) for cutoff_hz in _TELEPHONE_HZ]
        spectrum *= band_gains(size, sample_rate, *limits).astype(np.float32)
    gain = np.float32(10 ** (generator.uniform(-views.gain_db, views.gain_db) / 20))
    return (gain * np.asarray(irfft(spectrum, size))[: len(waveform)]).astype(np.float32)


def _as_mp3(waveform: np.ndarray, sample_rate: int, generator: np.random.Generator) -> np.ndarray:
    """Return a waveform (T,) encoded as mp3 and decoded, at its own level."""
    scale = max(float(np.abs(waveform).max()), 1e-5) / 0.9
    compression = float(generator.uniform(0, _MOST_COMPRESSION))
    return scale * encode_and_decode(waveform / scale, sample_rate, "mp3", compression)


def _energy(spectrum: np.ndarray) -> float:
    return float(np.vdot(spectrum, spectrum).real)


def _room(length: int, sample_rate: int, generator: np.random.Generator) -> np.ndarray:
    """Return the response of a room: a direct path, and noise that decays by 60 dB in 0.1 to 0.4 s."""
    seconds = generator.uniform(0.1, 0.4)
    decay = np.exp(-np.log(1000) * np.arange(length) / (seconds * sample_rate))
    response = (generator.standard_normal(length) * decay).astype(np.float32)
    response *= np.float32(generator.uniform(0.2, 0.8) / max(1e-6, float(np.sqrt(np.square(response).sum()))))
    response[0] = 1.0
    return response


def speakers_of(segments: Sequence[Segment]) -> list[str] | None:
    """Return who speaks in each segment; None unless that is known of all."""
    names = [segment.speaker for segment in segments if segment.speaker is not None]
    return names if len(names) == len(segments) else None


# ---------------------------------------------------------------------------------------------------------- collections


def prepare_voices(options: VoicesOptions) -> Path:
    """Write the utterances of a collection, and return its `voices.csv`.

    Args:
        options: Options of `sepkit prepare voices`.

    Raises:
        UserError: fewer speakers than asked for, --noise without --separated, or a folder that was made with other
            options.
    """
    chosen, names = _chosen(options)
    noises = [] if options.noise is None else audio.find_audio_files(Path(options.noise))
    if options.separated is not None and len(names) < 2:
        raise UserError("--separated: found 1 speaker, expected at least 2, whose utterances are mixed")
    if options.noise is not None and (options.separated is None or not noises):
        raise UserError(f"--noise {options.noise}: found {len(noises)} recordings, expected some, and --separated")
    out = Path(options.out)
    described = {
        "speech": str(options.speech),
        "split": options.split,
        "regex": options.regex,
        "speakers": names,
        "noise": {"snr_db": list(options.snr_db), "seed": options.seed} if options.noisy else None,
        "sample_rate": options.sample_rate,
        "separated": None if options.separated is None else {"model": options.separated, "seed": options.seed},
    }
    if options.recordings is not None:
        described["recordings"] = options.recordings
    if options.noise is not None:
        described["separated"]["noise"] = str(options.noise)
    check_provenance(out / "voices.json", described)
    separator = None if options.separated is None else load_model(options.separated, predict=False)
    rate, segments = options.sample_rate, []
    for number, recording in enumerate(chosen):
        path = out / recording.speaker / f"{recording.path.stem}.flac"
        if separator is None or not path.is_file():
            waveform = audio.read(recording.path, sample_rate=rate)
            if options.noisy:
                waveform = with_channel(waveform, options.snr_db, np.random.default_rng((options.seed, number)))
            if separator is not None:
                generator = np.random.default_rng((options.seed, number, 1))
                others = [other.path for other in chosen if other.speaker != recording.speaker]
                other, noise = audio.read(others[int(generator.integers(len(others)))], sample_rate=rate), None
                if noises and generator.random() < _NOISY_SHARE:
                    noise = audio.read(noises[int(generator.integers(len(noises)))], sample_rate=rate)
                waveform = through_mixture(waveform, other, noise, separator, rate, generator)
            audio.write(path, waveform, rate, subtype="PCM_16")
        seconds = audio.info(path).duration_seconds
        segments.append(Segment(str(path.relative_to(out)), 0.0, seconds, recording.speaker))
    return write_segments(out / "voices.csv", segments)


def _chosen(options: VoicesOptions) -> tuple[list[Recording], list[str]]:
    """The recordings of a collection, and its speakers."""
    try:
        pattern = re.compile(options.regex)
    except re.error as error:
        raise UserError(f"--regex {options.regex}: not a regular expression ({error})") from error
    recordings, _ = find_recordings(Path(options.speech), options.speaker_from)
    known = [r for r in recordings if r.split in (options.split, None) and pattern.search(r.speaker)]
    counts = Counter(recording.speaker for recording in known)
    wanted = len(counts) if options.speakers is None else options.speakers
    Bounds(ge=1, le=len(counts), note=f", the speakers of {options.split}").check("--speakers", wanted)
    names = sorted(sorted(counts, key=lambda name: (-counts[name], name))[:wanted])
    before = Counter[str]()
    chosen = []
    for recording in known:
        before[recording.speaker] += 1
        if recording.speaker in names and (
            options.recordings is None or before[recording.speaker] <= options.recordings
        ):
            chosen.append(recording)
    return chosen, names


def through_mixture(
    waveform: np.ndarray,
    other: np.ndarray,
    noise: np.ndarray | None,
    separator: Separator,
    sample_rate: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """Return the estimate of an utterance from its mixture with another one, (T,), below full scale.

    The other one begins anywhere, and in half of the mixtures is active only part of the time.

    Args:
        waveform: (T,) the utterance.
        other: (N,) an utterance of another speaker.
        noise: (N,) noise, at 3 to 20 dB below the utterance; None: without.
        separator: Model that separates.
        sample_rate: Sample rate, Hz.
        generator: Source of levels and places.
    """
    length = len(waveform)
    other = _from_anywhere(other, length, generator)
    other = other * _ratio(waveform, other, generator.uniform(-_LEVEL_DB, _LEVEL_DB))
    if generator.random() < 0.5:
        first, last = np.sort(generator.integers(length + 1, size=2))
        other[first:last] = 0.0
    mixture = waveform + other
    if noise is not None:
        level_db = -generator.uniform(*_NOISE_BELOW_DB)
        noise = _from_anywhere(noise, length, generator)
        mixture = mixture + noise * _ratio(waveform, noise, level_db)
    estimates = separator.separate(mixture.astype(np.float32), sample_rate).estimates
    return _below_full_scale(max(estimates, key=lambda estimate: si_sdr_db(estimate, waveform)))


def _from_anywhere(waveform: np.ndarray, length: int, generator: np.random.Generator) -> np.ndarray:
    """Return (length,) samples that begin at a random place; a shorter recording repeats."""
    return np.resize(np.roll(waveform, -int(generator.integers(len(waveform)))), length)


def with_channel(
    waveform: np.ndarray, snr_db: tuple[float, float], generator: np.random.Generator, tilt_nepers: float = 0.3
) -> np.ndarray:
    """Return a waveform with a smooth band tilt and white noise of its own, (T,), below full scale.

    Args:
        waveform: (T,) samples.
        snr_db: Range of the signal-to-noise ratio, dB.
        generator: Source of tilt and noise.
        tilt_nepers: Standard deviation of each of four cosines over frequency.
    """
    size = len(waveform)
    tilted = np.fft.irfft(np.fft.rfft(waveform) * color(size, tilt_nepers, generator), size)
    noise = generator.standard_normal(size)
    return _below_full_scale(tilted + noise * _ratio(tilted, noise, -generator.uniform(*snr_db)))


def _below_full_scale(waveform: np.ndarray) -> np.ndarray:
    return (waveform * min(1.0, 0.98 / max(1e-9, float(np.abs(waveform).max())))).astype(np.float32)
