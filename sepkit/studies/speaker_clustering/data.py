"""Stretches of speech as instances, and views of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.data.activity import FRAME_SECONDS, ActivityMeter
from sepkit.data.channels import color
from sepkit.data.segments import Segment, read_segments
from sepkit.errors import UserError
from sepkit.studies.speaker_clustering.config import StretchDataConfig, ViewConfig
from sepkit.training.task_definition import log

_ROOM_SECONDS = 0.3
_PAUSE_SHARES = 0.2, 0.6


@dataclass
class Views:
    """Views of a batch of instances.

    Args:
        waveforms: (B, V, T).
        masks: (B, V, 4) shares of time and of bands: where masks begin, and how long they are.
        heard: (B, V, F) bool, in which 20 ms the speaker speaks.
        instances: (B,) numbers.
    """

    waveforms: Any
    masks: Any
    heard: Any
    instances: Any


class Stretches:
    """Stretches of one speaker each, in memory; item (epoch, index) holds views of one, a share of which is cut from
    separated estimates if there are any."""

    def __init__(
        self,
        source: str,
        config: StretchDataConfig,
        sample_rate: int,
        views: int,
        seed: int,
        separated: str | None = None,
        with_speech: bool = False,
        speeds: Sequence[float] = (),
    ) -> None:
        self.config, self.sample_rate, self.views, self.seed = config, sample_rate, views, seed
        loaded = load_stretches(source, config, sample_rate, separated, speeds)
        self.segments, self.waveforms, self.estimates = loaded.segments, loaded.waveforms, loaded.estimates
        self.noises: list[np.ndarray] = []
        if config.noise is not None:
            paths = audio.find_audio_files(Path(config.noise))
            self.noises = [_integers(audio.read(path, sample_rate=sample_rate)) for path in paths]
            self.noises = [noise for noise in self.noises if np.ptp(noise) > 0]
            if not self.noises:
                raise UserError(f"data.noise: {config.noise} has no recording in which something is heard")
        self.speech = [speech_frames(w, sample_rate) for w in self.waveforms] if with_speech else None
        if loaded.skipped:
            log(f"{source}: {loaded.skipped} stretches shorter than {config.min_seconds} s, or silent, are left out")
        if not self.segments:
            raise UserError(f"{source}: no stretch of at least {config.min_seconds} s in which something is heard")

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Return (V, T) waveforms, (V, 4) masks, (V, F) where the speaker speaks, and the number of the instance."""
        epoch, index = key
        views = [
            self._view(np.random.default_rng((self.seed, epoch, index, view)), index) for view in range(self.views)
        ]
        waveforms, masks, heard = (np.stack(part) for part in zip(*views, strict=True))
        return waveforms, masks, heard, index

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
            return self._finished(self._noise_alone(length, generator), np.zeros_like(heard), generator)
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

    def _noise_alone(self, length: int, generator: np.random.Generator) -> np.ndarray:
        """Return (length,) samples of a recording of noise, or of white noise."""
        if self.noises and generator.random() < 0.5:
            return _crop(self.noises[int(generator.integers(len(self.noises)))], length, generator)
        return np.float32(0.05) * generator.standard_normal(length, np.float32)

    def _finished(
        self, crop: np.ndarray, heard: np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        views = self.config.views
        waveform = augment(crop, views, self.sample_rate, generator)
        lengths = generator.random(2) * (views.longest_time_mask, views.longest_band_mask)
        begins = generator.random(2) * (1 - lengths)
        masks = np.array([begins[0], lengths[0], begins[1], lengths[1]], np.float32)
        return waveform, masks, heard


@dataclass
class Loaded:
    """Stretches of a folder or CSV file: (T,) samples, 16-bit integers, also of separated estimates if there are
    any."""

    segments: list[Segment]
    waveforms: list[np.ndarray]
    estimates: list[np.ndarray] | None
    skipped: int


def load_stretches(
    source: str,
    config: StretchDataConfig,
    sample_rate: int,
    separated: str | None = None,
    speeds: Sequence[float] = (),
) -> Loaded:
    """Return the stretches of a folder or CSV file, and the same at other speeds, as other speakers."""
    if separated is not None and not Path(separated).is_dir():
        raise UserError(f"data.separated: {separated} is no folder, expected one with estimates of data.train")
    loaded = Loaded([], [], None if separated is None else [], 0)
    for segment, path in _listed(Path(source)):
        start = round(segment.start_seconds * sample_rate)
        whole = audio.info(path)
        total = audio.resampled_length(whole.num_samples, whole.sample_rate, sample_rate)
        stop = min(total, start + round(min(segment.duration_seconds, whole.duration_seconds) * sample_rate))
        samples = audio.read(path, min(start, stop), max(0, stop - start), sample_rate)
        both = samples[None]
        if separated is not None:
            both = np.stack([samples, _estimate_of(Path(separated), segment, start, samples, sample_rate)])
        _add_parts(loaded, segment, both, config, sample_rate)
        for speed in speeds:
            faster = audio.resample(both, round(speed * sample_rate), sample_rate)
            _add_parts(loaded, replace(segment, speaker=f"{segment.speaker} x{speed}"), faster, config, sample_rate)
    return loaded


def _add_parts(loaded: Loaded, segment: Segment, both: np.ndarray, config: StretchDataConfig, sample_rate: int) -> None:
    """Add the stretches of a recording, and of its estimate if there is one, (1 or 2, T)."""
    parts = max(1, math.ceil(both.shape[1] / (config.max_seconds * sample_rate)))
    for part in np.array_split(both, parts, axis=1):
        if part.shape[1] < config.min_seconds * sample_rate or not np.ptp(part[0]) > 0:
            loaded.skipped += 1
            continue
        integers = _integers(part)
        loaded.segments.append(segment)
        loaded.waveforms.append(integers[0])
        if loaded.estimates is not None:
            loaded.estimates.append(integers[1])


def _estimate_of(folder: Path, segment: Segment, start: int, samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return the estimate of a stretch (T,), or the stretch itself where there is none."""
    path = folder / segment.path
    return audio.read(path, start, len(samples), sample_rate, pad_end=True) if path.is_file() else samples


def _listed(source: Path) -> list[tuple[Segment, Path]]:
    if source.is_dir():
        files = audio.find_audio_files(source)
        names = [file.relative_to(source) for file in files]
        return [
            (Segment(str(name), speaker=name.parts[0] if len(name.parts) > 1 else None), file)
            for name, file in zip(names, files, strict=True)
        ]
    return [(segment, source.parent / segment.path) for segment in read_segments(source)]


def _crop(waveform: np.ndarray, length: int, generator: np.random.Generator) -> np.ndarray:
    """Return (length,) float32 samples of 16-bit ones from a random place; a shorter stretch repeats."""
    return _part(waveform, _place(waveform, length, generator), length)


def _place(waveform: np.ndarray, length: int, generator: np.random.Generator) -> int:
    repeated = len(waveform) * -(-length // len(waveform)) if len(waveform) < length else len(waveform)
    return int(generator.integers(repeated - length + 1))


def _part(waveform: np.ndarray, start: int, length: int) -> np.ndarray:
    """Return (length,) float32 samples of 16-bit ones from a place in a stretch that repeats."""
    if start + length > len(waveform):
        waveform = np.tile(waveform, -(-(start + length) // len(waveform)))
    return waveform[start : start + length].astype(np.float32) / 32767


def _integers(waveform: np.ndarray) -> np.ndarray:
    return np.round(np.clip(waveform, -1, 1) * 32767).astype(np.int16)


def speech_frames(waveform: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return in which 20 ms of a clean recording (T,) something is heard, (F,) bool, by its energy."""
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
    """Return a waveform with reverberation, color, noise and gain of its own, (T,).

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
    gain = np.float32(10 ** (generator.uniform(-views.gain_db, views.gain_db) / 20))
    return (gain * np.asarray(irfft(spectrum, size))[: len(waveform)]).astype(np.float32)


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
    """Return who speaks in each stretch; None unless that is known of all."""
    names = [segment.speaker for segment in segments]
    return None if any(name is None for name in names) else [str(name) for name in names]
