"""Segments of speech in recordings and in separated estimates, and their embeddings."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sepkit.data import audio
from sepkit.data.activity import FRAME_SECONDS, ActivityMeter
from sepkit.errors import UserError
from sepkit.files import file_text, parse_json
from sepkit.inference.diarization.activity import SAMPLE_RATE, detect_activity
from sepkit.inference.diarization.encoders import Encoder

WINDOW_SECONDS = 1.5
"""Longest segment; a longer turn is cut into equal ones."""

SHORTEST_SECONDS = 0.25
"""Shorter segments do not identify a speaker."""

# Segments of one speaker that are nearer than this are one turn.
_JOINED_PAUSE_SECONDS = 0.3
_BLOCK_SECONDS, _READ_SECONDS = 10.0, 30.0
# Differences of lengths that are no sign of files that do not belong together.
_LENGTH_SLACK = 0.01
# Segments of one turn touch each other; turns are at least 0.3 s apart.
_TURN_PAUSE_SECONDS = 0.1
# Clear segments: their least length, and least share without speech in another estimate.
_CLEAR_SECONDS, _CLEAR_SHARE = 1.0, 0.7
# Segments with a lower mean probability of speech are noise. Fewer than 1 % of the segments of dev meetings are.
_LEAST_SPEECH = 0.3
# Frames processed together, and their context before and after, of a single estimate and of several.
_FRAMES, _FRAMES_OF_ESTIMATES = (150, 12), (1000, 100)


@dataclass(frozen=True)
class Source:
    """A recording, or the estimates of one that was separated.

    Args:
        name: relative path of the recording, without ending.
        paths: one file, or one for each estimate.
        relative: the same, as tables write them.
    """

    name: Path
    paths: tuple[Path, ...]
    relative: tuple[str, ...]


@dataclass(frozen=True)
class SpeechSegment:
    """A part of one file, whose number in its source is `channel`."""

    channel: int
    start_seconds: float
    duration_seconds: float


class SpeechMeter:
    """Turns of estimates that come in blocks: only speech counts as a turn, unless the encoder has no detector.

    Args:
        count: Number of estimates, k.
        sample_rate: Sample rate of the estimates, Hz.
        encoder: Speaker encoder. Its voice activity detector decides what is speech in a single estimate; of several,
            `detect_activity` decides which are active. None, or one without a detector: all sound counts.
    """

    def __init__(self, count: int, sample_rate: int, encoder: Encoder | None) -> None:
        self._energy, self._rate, self._several = ActivityMeter(count, sample_rate), sample_rate, count > 1
        self._detector = encoder if encoder is not None and encoder.has_vad else None
        self._frames, self._context = _FRAMES_OF_ESTIMATES if self._several else _FRAMES
        # Zeros before the beginning. With several estimates, the last row is the recording.
        self._held = np.zeros((count + self._several, self._samples(self._context)), np.float32)
        self._power, self._taken = 0.0, 0
        self._found: list[np.ndarray] = []

    def _samples(self, frames: int) -> int:
        return round(frames * FRAME_SECONDS * self._rate)

    def add(self, block: np.ndarray, recording: np.ndarray | None = None) -> None:
        """Take the next samples of all k estimates, (k, t), and of the recording, (t,); None: the sum of estimates."""
        self._energy.add(block)
        if self._detector is None:
            return
        if self._several:
            block = np.concatenate([block, (block.sum(0) if recording is None else recording)[None]])
        self._held = np.concatenate([self._held, block.astype(np.float32)], axis=1)
        whole, step = self._samples(self._frames + 2 * self._context), self._samples(self._frames)
        while self._held.shape[1] >= whole:
            self._detect(self._held[:, :whole], step)
            self._held = self._held[:, step:]

    def _detect(self, samples: np.ndarray, new: int) -> None:
        """Append the probabilities of the frames between the contexts.

        Args:
            samples: Both contexts and what is between them, (n, t).
            new: How many samples after the first context are no padding.
        """
        assert self._detector is not None
        if self._several:
            first = self._samples(self._context)
            self._power += float(np.square(samples[-1, first : first + new], dtype=np.float64).sum())
            self._taken += new
            level = self._power / max(self._taken, 1)
            found = detect_activity(audio.resample(samples, self._rate, SAMPLE_RATE), level)
        else:
            found = self._detector.speech(audio.resample(samples, self._rate, self._detector.sample_rate))
        self._found.append(found[:, self._context : self._context + self._frames])

    def segments(self) -> list[list[tuple[float, float]]]:
        """Return beginnings and lengths, seconds, of the turns in each estimate, after the last block."""
        if self._detector is None:
            return self._energy.segments()
        missing = self._samples(self._frames + 2 * self._context) - self._held.shape[1]
        new = self._held.shape[1] - self._samples(self._context)
        self._detect(np.pad(self._held, ((0, 0), (0, max(0, missing)))), new)
        found = np.concatenate(self._found, axis=1)
        return self._energy.segments(active=found) if self._several else self._energy.segments(found)


def group_estimates(recordings: dict[Path, Path]) -> list[Source]:
    """Return recordings as sources, with the estimates that `sepkit separate` wrote of one recording as one source.

    Args:
        recordings: file -> relative path, see `find_recordings`.
    """
    together: dict[Path, list[Path]] = {}
    for path in recordings:
        together.setdefault(_description_of(path) or path, []).append(path)
    sources = []
    for key, paths in together.items():
        relative = [recordings[path] for path in paths]
        name = relative[0].with_suffix("") if key == paths[0] else relative[0].with_name(key.stem)
        sources.append(Source(name, tuple(paths), tuple(str(path) for path in relative)))
    return sources


def _description_of(path: Path) -> Path | None:
    """Return the JSON file beside an estimate that names it; None for other recordings."""
    parts = path.stem.split("_")
    for count in range(len(parts) - 1, 0, -1):
        description = path.with_name(f"{'_'.join(parts[:count])}.json")
        if not description.is_file():
            continue
        try:
            estimates = parse_json(file_text(description)).get("estimates")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(estimates, list) and path.name in estimates:
            return description
    return None


def cut_turns(meter: SpeechMeter) -> tuple[list[SpeechSegment], list[SpeechSegment]]:
    """Return the turns of several channels in equal segments, in order of time, and those that are too short to use.

    Args:
        meter: Meter that has taken all blocks of the channels.
    """
    segments, short = [], []
    for channel, own in enumerate(meter.segments()):
        for start, length in own:
            count = max(1, int(np.ceil(length / WINDOW_SECONDS - 1e-9)))
            cut = [SpeechSegment(channel, start + k * length / count, length / count) for k in range(count)]
            (segments if cut[0].duration_seconds >= SHORTEST_SECONDS else short).extend(cut)
    in_time = lambda segment: (segment.start_seconds, segment.channel)  # noqa: E731
    return sorted(segments, key=in_time), sorted(short, key=in_time)


def find_segments(source: Source, encoder: Encoder | None = None) -> tuple[list[SpeechSegment], list[SpeechSegment]]:
    """Return the active segments, in order of time, and those that are too short to use.

    Args:
        source: Recording, or the estimates of one.
        encoder: Speaker encoder that detects speech, see `SpeechMeter`.

    Raises:
        UserError: a file that cannot be read, or estimates of different rates or lengths.
    """
    paths = source.paths
    for path in paths:
        audio.check_mean(path)
    headers = [audio.info(path) for path in paths]
    rate, samples = headers[0].sample_rate, min(header.num_samples for header in headers)
    for path, header in zip(paths, headers, strict=True):
        if header.sample_rate != rate or header.num_samples > (1 + _LENGTH_SLACK) * samples + rate:
            raise UserError(
                f"{path}: found {header.num_samples} samples at {header.sample_rate} Hz, expected {samples} at {rate}, "
                f"as in {paths[0]}; separate the recording again"
            )
    meter = SpeechMeter(len(paths), rate, encoder)
    readers = [audio.read_blocks(path, max(1, round(_BLOCK_SECONDS * rate))) for path in paths]
    for blocks in zip(*readers, strict=False):
        length = min(map(len, blocks))
        meter.add(np.stack([block[:length] for block in blocks]))
    return cut_turns(meter)


def neighbors_in_turns(segments: Sequence[SpeechSegment]) -> np.ndarray:
    """Return which segments follow each other in the same turn, (P, 2) int.

    >>> neighbors_in_turns([SpeechSegment(0, 0.0, 1.5), SpeechSegment(0, 1.5, 1.5), SpeechSegment(0, 9.0, 1.0)])
    array([[0, 1]])

    Args:
        segments: Segments of one recording, in any order.
    """
    pairs = []
    order = sorted(range(len(segments)), key=lambda k: (segments[k].channel, segments[k].start_seconds))
    for a, b in itertools.pairwise(order):
        first, second = segments[a], segments[b]
        pause = second.start_seconds - first.start_seconds - first.duration_seconds
        if first.channel == second.channel and pause < _TURN_PAUSE_SECONDS:
            pairs.append((a, b))
    return np.array(pairs, int).reshape(-1, 2)


Overlaps = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Pairs of segments that overlap in time, (P, 2) int, for how long, (P,) seconds, and in which recording, (P,) int."""


def overlaps_of(segments: Sequence[SpeechSegment]) -> Overlaps:
    """Return which segments of different channels overlap in time.

    >>> overlaps_of([SpeechSegment(0, 0.0, 1.5), SpeechSegment(1, 1.0, 1.0), SpeechSegment(0, 2.0, 1.5)])
    (array([[0, 1]]), array([0.5]), array([0]))

    Args:
        segments: Segments of one recording, in order of time.
    """
    pairs, seconds = [], []
    for i, first in enumerate(segments):
        end = first.start_seconds + first.duration_seconds
        for j in range(i + 1, len(segments)):
            if (start := segments[j].start_seconds) >= end:
                break
            if segments[j].channel != first.channel:
                pairs.append((i, j))
                seconds.append(min(end, start + segments[j].duration_seconds) - start)
    return np.array(pairs, int).reshape(-1, 2), np.array(seconds), np.zeros(len(pairs), int)


def clear_segments(segments: Sequence[SpeechSegment]) -> np.ndarray:
    """Return which segments identify a speaker best, (N,) bool: long ones, mostly without overlap.

    The separated parts of two overlapping speakers sound like a third.

    >>> clear_segments([SpeechSegment(0, 0.0, 1.5), SpeechSegment(1, 1.4, 1.0), SpeechSegment(0, 2.0, 1.5)])
    array([ True, False,  True])

    Args:
        segments: Segments of one recording, in order of time.
    """
    lengths = np.array([segment.duration_seconds for segment in segments])
    pairs, seconds, _ = overlaps_of(segments)
    shared = np.bincount(pairs.ravel(), np.repeat(seconds, 2), minlength=len(segments))
    return (lengths >= _CLEAR_SECONDS) & (lengths - shared >= _CLEAR_SHARE * lengths)


def join_turns(turns: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return one speaker's turns, beginnings and lengths in seconds, joined where they have hardly a pause between.

    >>> join_turns([(2.0, 1.0), (0.0, 1.0), (1.1, 0.5)])
    [(0.0, 1.6), (2.0, 1.0)]

    Args:
        turns: Beginnings and lengths, seconds, in any order.
    """
    joined: list[tuple[float, float]] = []
    for start, length in sorted(turns):
        if joined and start <= joined[-1][0] + joined[-1][1] + _JOINED_PAUSE_SECONDS:
            first, before = joined[-1]
            joined[-1] = first, max(before, start + length - first)
        else:
            joined.append((start, length))
    return joined


def waveforms_of(source: Source, segments: Sequence[SpeechSegment], sample_rate: int) -> Iterator[np.ndarray]:
    """Yield the samples of segments, (T,) each; files are read in blocks.

    Args:
        source: Recording, or the estimates of one.
        segments: Segments of it, in order of time.
        sample_rate: Sample rate of the yielded samples, Hz.
    """
    held: dict[int, tuple[float, np.ndarray]] = {}
    for segment in segments:
        begin, block = held.get(segment.channel, (0.0, np.zeros(0, np.float32)))
        end = segment.start_seconds + segment.duration_seconds
        if not (begin <= segment.start_seconds and end <= begin + len(block) / sample_rate):
            begin = segment.start_seconds
            count = round(max(_READ_SECONDS, segment.duration_seconds + 1) * sample_rate)
            block = audio.read(
                source.paths[segment.channel], round(begin * sample_rate), count, sample_rate, pad_end=True
            )
            held[segment.channel] = begin, block
        first = round((segment.start_seconds - begin) * sample_rate)
        yield block[first : first + max(1, round(segment.duration_seconds * sample_rate))]


def embed(encoder: Encoder, waveforms: Iterator[np.ndarray] | Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings of segments, (N, D) float32, and which of them are speech, (N,) bool; computed one by one.

    Args:
        encoder: Speaker encoder. All segments count as speech for one that does not detect it.
        waveforms: Waveforms at the encoder's rate, (T,) each.
    """
    found = [encoder.embed_and_detect(waveform[None]) for waveform in waveforms]
    if not found:
        return np.zeros((0, encoder.embedding_size), np.float32), np.zeros(0, bool)
    embeddings, speech = zip(*found, strict=True)
    return np.concatenate(embeddings), np.array([frames.mean() >= _LEAST_SPEECH for frames in speech])
