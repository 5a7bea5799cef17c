"""Dynamic mixing: new mixtures of the training recordings in every epoch."""

import math
import re
import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sepkit.choices import check_bounds
from sepkit.config import DynamicMixingConfig
from sepkit.data import audio
from sepkit.data.bank import WaveformBank
from sepkit.data.channels import RandomChannel, colored
from sepkit.data.manifest import Manifest, MixtureEntry, SourceEntry
from sepkit.data.mixing import Mixed, place
from sepkit.data.reverberation import RoomBank, early_and_late, reverberate
from sepkit.errors import UserError
from sepkit.signals import active_level

# Levels are measured on at most this length, so that hour-long recordings cost little.
_LEVEL_SECONDS = 30
# Speeds fall on a grid of 0.5 %: with a large common divisor of the rates, resampled crops need little context.
_SPEED_STEPS = 200


@dataclass(frozen=True)
class _Recording:
    """Material for new mixtures: a file, or the part of one that the manifest assigns to this source.

    Positions are in samples at the manifest's rate. `name` identifies a recording that is stored several times.
    """

    speaker: str
    name: str
    start: int
    num_samples: int | None
    channel: int | None
    resampler: str
    path: Path = field(compare=False)


class DynamicMixer:
    """Random mixtures of a manifest's recordings, each a function of the random generator that is passed in.

    A mixture starts from a random mixture of the manifest. It settles the number of speakers, the mode ("min" cuts to
    the shortest source, "max" extends to the longest), and, through one of its sources, the level. Speakers are drawn
    from the whole manifest, all equally likely unless `speaker_weights` says otherwise, then a recording of each, which
    is scaled to that level. Each source gets its own gain and speed, and optionally coloring and a room; noise comes
    last. Sources include all that, so that the mixture is their sum plus the noise. If only early sound is the target,
    late reverberation belongs to the noise.

    The ratio of speech to noise compares the energies of the summed sources and of the noise over the mixture. Noise
    shorter than the mixture is repeated.

    With a bank, recordings are read once and kept in memory at a few speeds, one of which is drawn.

    Args:
        segment_samples: length of the mixtures; None: that of the utterances. Shorter utterances make shorter mixtures.
    """

    def __init__(self, manifest: Manifest, config: DynamicMixingConfig, segment_samples: int | None = None) -> None:
        self.config = config
        self.segment_samples = segment_samples
        self.sample_rate = manifest[0].sample_rate
        self._entries = [entry for entry in manifest if entry.sources]
        found = dict.fromkeys(_recording(entry, source) for entry in self._entries for source in entry.sources)
        self._recordings = sorted(found, key=lambda r: (r.speaker, r.name, r.start, r.channel or 0))
        names = [recording.speaker for recording in self._recordings]
        self._speaker_blocks = [(bisect_left(names, name), bisect_right(names, name)) for name in dict.fromkeys(names)]
        self._noise_paths = [] if config.noise is None else audio.find_audio_files(Path(config.noise))
        self._infos: dict[Path, audio.AudioInfo] = {}
        self._levels: dict[_Recording, float] = {}
        if len(self._speaker_blocks) < max(1, manifest.max_sources):
            raise UserError(
                f"{manifest.path}: names {len(self._speaker_blocks)} speaker(s), but has mixtures of "
                f"{manifest.max_sources} sources; dynamic mixing needs at least as many speakers"
            )
        _check(config)
        self._shares = self._speaker_shares(manifest)
        self._bank_rates = self._speed_rates() if config.bank_gib else []
        self._bank_rows = {recording: row for row, recording in enumerate(self._recordings)} if config.bank_gib else {}
        lengths = [self._span(recording, rate)[1] for recording in self._recordings for rate in self._bank_rates]
        self._bank = WaveformBank(lengths, config.bank_gib) if config.bank_gib else None

    def _speaker_shares(self, manifest: Manifest) -> np.ndarray | None:
        """Return the probability of each speaker, (number of speakers,); None if all are equally likely."""
        field, rules = "data.dynamic_mixing.speaker_weights", []
        for text in self.config.speaker_weights:
            pattern, separator, number = text.rpartition("=")
            try:
                if not separator:
                    raise ValueError("no =")
                rules.append((re.compile(pattern), float(number)))
            except (re.error, ValueError) as error:
                raise UserError(
                    f"{field}: found {text!r} ({error}), expected PATTERN=WEIGHT, such as 'vctk_.*=1.5'"
                ) from error
            if not 0 <= rules[-1][1] < math.inf:
                raise UserError(f"{field}: found {text!r}, expected a weight of 0 or more")
        if not rules:
            return None
        speakers = [self._recordings[start].speaker for start, _ in self._speaker_blocks]
        weights = np.array([next((w for rule, w in rules if rule.fullmatch(name)), 1.0) for name in speakers])
        if np.count_nonzero(weights) < max(1, manifest.max_sources):
            raise UserError(
                f"{field}: leaves {np.count_nonzero(weights)} of {len(speakers)} speakers of {manifest.path}, but it "
                f"has mixtures of {manifest.max_sources} sources; give more speakers a weight above 0"
            )
        return weights / weights.sum()

    def _speed_rates(self) -> list[int]:
        """Return the rates to resample to for the speeds of the bank, from the slowest to the fastest."""
        count, width = self.config.bank_speeds, self.config.speed_range
        if count % 2 == 0:
            raise UserError(f"data.dynamic_mixing.bank_speeds: found {count}, expected an odd number: one speed is 1")
        if width == 0 or count == 1:
            return [self.sample_rate]
        return [self._rate_of(1 + width * (2 * index / (count - 1) - 1)) for index in range(count)]

    def mix(self, generator: np.random.Generator) -> Mixed:
        """Return a new mixture; raise UserError for a file that cannot be read."""
        entry = self._entries[generator.integers(len(self._entries))]
        first = entry.sources[generator.integers(len(entry.sources))]
        reference = first.gain * self._level(_recording(entry, first))
        is_alone = self.config.one_speaker_share and generator.random() < self.config.one_speaker_share
        recordings = self._draw_recordings(1 if is_alone else len(entry.sources), generator)
        rates = [self._draw_rate(generator) for _ in recordings]
        spans = [self._span(recording, rate) for recording, rate in zip(recordings, rates, strict=True)]
        lengths = [num_samples for _, num_samples in spans]
        count = min(min(lengths) if entry.mode == "min" else max(lengths), self.segment_samples or sys.maxsize)
        offsets = [0] * len(recordings)
        if generator.random() >= self.config.overlap_probability:
            # Not fully overlapping sources start within the first half of the mixture.
            offsets[1:] = [int(generator.integers(count // 2 + 1)) for _ in recordings[1:]]
        gains_db = generator.uniform(-self.config.gain_range_db, self.config.gain_range_db, len(recordings))
        responses: list[np.ndarray | None] = [None] * len(recordings)
        if generator.random() < self.config.reverberation_probability:
            rooms = RoomBank(self.config.reverberation_cache, self.sample_rate, len(recordings))
            responses = list(rooms.impulse_responses(int(generator.integers(rooms.num_rooms))))

        sources = np.zeros((len(recordings), count), dtype=np.float32)
        late = None
        for row, recording, rate, span, offset, gain_db, response in zip(
            sources, recordings, rates, spans, offsets, gains_db, responses, strict=True
        ):
            level = self._level(recording)
            gain = reference / level * 10 ** (gain_db / 20) if level > 0 else 0.0
            segments = self._read_segments(recording, rate, span, count - offset, response, generator)
            placed = [place(segment, offset, count) * np.float32(gain) for segment in segments]
            row[:] = placed[0]
            if len(placed) > 1:
                late = placed[1] if late is None else late + placed[1]
        if responses[0] is None and self.config.turns_probability:
            self._take_turns(sources, generator)
        speech = sources.sum(axis=0)
        noise = self._draw_noise(entry, speech if late is None else speech + late, generator)
        if late is not None:
            noise = late if noise is None else noise + late
        mixed = Mixed(speech if noise is None else speech + noise, sources, noise)
        return self._transmit(mixed, generator) if self.config.channel_probability else mixed

    def _take_turns(self, sources: np.ndarray, generator: np.random.Generator) -> None:
        """In a share of the mixtures, silence all sources (m, T) but the one whose turn it is."""
        if generator.random() >= self.config.turns_probability:
            return
        count = sources.shape[1]
        edges = np.sort(generator.integers(0, count + 1, generator.integers(1, 4)))
        turns = np.searchsorted(edges, np.arange(count), side="right") + generator.integers(len(sources))
        sources *= turns % len(sources) == np.arange(len(sources))[:, None]

    def _transmit(self, mixed: Mixed, generator: np.random.Generator) -> Mixed:
        """Return a mixture as it sounds through a random channel, at the level that it has."""
        if generator.random() >= self.config.channel_probability:
            return mixed
        channel = RandomChannel(self.config, self.sample_rate, generator)
        limited = channel.limit_band(np.concatenate([mixed.sources, mixed.mixture[None]]))
        before, after = (float(np.linalg.norm(mixture)) for mixture in (mixed.mixture, limited[-1]))
        if after == 0:
            return mixed
        limited *= np.float32(before / after)
        sources, mixture = limited[:-1], channel.distort(limited[-1])
        return Mixed(mixture, sources, mixture - sources.sum(axis=0))

    def _draw_recordings(self, num_sources: int, generator: np.random.Generator) -> list[_Recording]:
        speakers = generator.choice(len(self._speaker_blocks), num_sources, replace=False, p=self._shares).tolist()
        blocks = (self._speaker_blocks[speaker] for speaker in speakers)
        return [self._recordings[generator.integers(start, stop)] for start, stop in blocks]

    def _draw_rate(self, generator: np.random.Generator) -> int:
        """Draw a speed; return the rate to resample to so that playing at the manifest's rate gives that speed."""
        if self._bank_rates:
            return self._bank_rates[generator.integers(len(self._bank_rates))]
        if self.config.speed_range == 0:
            return self.sample_rate
        return self._rate_of(1 + generator.uniform(-self.config.speed_range, self.config.speed_range))

    def _rate_of(self, speed: float) -> int:
        step = max(1, self.sample_rate // _SPEED_STEPS)
        return self.sample_rate + step * round(self.sample_rate * (1 / speed - 1) / step)

    def _span(self, recording: _Recording, rate: int) -> tuple[int, int]:
        header = self._info(recording.path)
        total = audio.resampled_length(header.num_samples, header.sample_rate, rate, recording.resampler)
        begin = recording.start * rate // self.sample_rate
        if recording.num_samples is not None:
            total = min(total, begin + recording.num_samples * rate // self.sample_rate)
        if total <= begin:
            raise UserError(f"{recording.path}: ends before sample {begin}, where a source starts in the manifest")
        return begin, total - begin

    def _read_segments(
        self,
        recording: _Recording,
        rate: int,
        span: tuple[int, int],
        count: int,
        response: np.ndarray | None,
        generator: np.random.Generator,
    ) -> list[np.ndarray]:
        """Read a random segment of `count` samples, or all of a shorter recording, with the room's reverberation.

        The source comes first; then its late reverberation, if that is not part of it.
        """
        begin, available = span
        count = min(count, available)
        position = begin + int(generator.integers(available - count + 1))
        # Sound from before the segment still reverberates in it.
        history = 0 if response is None else min(position - begin, len(response) - 1)
        segment = self._read(recording, rate, span, position - history, count + history)
        if self.config.coloring_db:
            segment = colored(segment, self.config.coloring_db, generator)
        if response is None:
            return [segment]
        parts = [response] if self.config.reverberation_target == "all" else early_and_late(response, self.sample_rate)
        return [reverberate(segment, part)[history:] for part in parts]

    def _read(self, recording: _Recording, rate: int, span: tuple[int, int], position: int, count: int) -> np.ndarray:
        def read(start: int, length: int) -> np.ndarray:
            return audio.read(recording.path, start, length, rate, recording.resampler, recording.channel)

        if self._bank is None or rate not in self._bank_rates:
            return read(position, count)
        row = self._bank_rows[recording] * len(self._bank_rates) + self._bank_rates.index(rate)
        return self._bank.read(row, position - span[0], count, lambda: read(*span))

    def _draw_noise(self, entry: MixtureEntry, speech: np.ndarray, generator: np.random.Generator) -> np.ndarray | None:
        if not self._noise_paths:
            if entry.noise is None:
                return None
            path, channel = entry.resolve(entry.noise.path), entry.noise.channel
            return self._read_noise(path, channel, len(speech), generator) * np.float32(entry.noise.gain)
        if generator.random() >= self.config.noise_probability:
            return None
        path = self._noise_paths[generator.integers(len(self._noise_paths))]
        noise = self._read_noise(path, None, len(speech), generator)
        if self.config.coloring_db:
            noise = colored(noise, self.config.coloring_db, generator)
        snr_db = generator.uniform(*self.config.noise_snr_db)
        speech_norm, noise_norm = np.linalg.norm(speech), np.linalg.norm(noise)
        return None if noise_norm == 0 else noise * np.float32(speech_norm / noise_norm * 10 ** (-snr_db / 20))

    def _read_noise(self, path: Path, channel: int | None, count: int, generator: np.random.Generator) -> np.ndarray:
        """Read a random segment; repeat a file that is shorter, from a random sample on."""
        header = self._info(path)
        total = audio.resampled_length(header.num_samples, header.sample_rate, self.sample_rate)
        if total >= count:
            start = int(generator.integers(total - count + 1))
            return audio.read(path, start, count, self.sample_rate, channel=channel)
        whole = audio.read(path, sample_rate=self.sample_rate, channel=channel)
        return np.resize(np.roll(whole, -int(generator.integers(len(whole)))), count)

    def _info(self, path: Path) -> audio.AudioInfo:
        if path not in self._infos:
            self._infos[path] = audio.info(path)
        return self._infos[path]

    def _level(self, recording: _Recording) -> float:
        if recording not in self._levels:
            span = self._span(recording, self.sample_rate)
            count = min(span[1], _LEVEL_SECONDS * self.sample_rate)
            waveform = self._read(recording, self.sample_rate, span, span[0], count)
            self._levels[recording] = active_level(waveform, self.sample_rate)
        return self._levels[recording]


def _recording(entry: MixtureEntry, source: SourceEntry) -> _Recording:
    # A start without num_samples is the corpus's crop for this mixture; the whole file is this speaker.
    start = source.start if source.num_samples is not None else 0
    path = entry.resolve(source.path)
    return _Recording(source.speaker, source.path, start, source.num_samples, source.channel, entry.resampler, path)


def _check(config: DynamicMixingConfig) -> None:
    where = "data.dynamic_mixing"
    check_bounds(config, where)
    for name in ("highpass_hz", "lowpass_hz", "filter_order"):
        low, high = getattr(config, name)
        if low > high:
            raise UserError(f"{where}.{name}: found {low} and {high}, expected two rising numbers")
    if config.reverberation_target == "early" and config.reverberation_probability == 0:
        raise UserError(
            f"{where}.reverberation_target: found early, which does nothing without "
            f"{where}.reverberation_probability; give it a share, or leave it out"
        )
    if config.noise is None and config.noise_probability != 1:
        raise UserError(
            f"{where}.noise_probability: found {config.noise_probability}, which does nothing without {where}.noise; "
            "name a folder of noise, or leave it out"
        )
