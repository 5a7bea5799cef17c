"""More speakers than estimates: the parts of all estimates of a recording, linked to the speakers who speak in them.

A model with two outputs separates a meeting of six as long as no more than two speak at once. Each output then contains
one speaker after another. Turns of all outputs are embedded by a speaker encoder and clustered. Every sample of an
output goes to exactly one speaker, so the speakers add up to what the outputs add up to.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.diarization.clustering import in_order_of_appearance, mean_directions, unit_rows
from sepkit.inference.diarization.counting import SpeakerCount, group_speakers, rule_of
from sepkit.inference.diarization.encoders import Encoder
from sepkit.inference.diarization.segments import (
    SpeechMeter,
    SpeechSegment,
    clear_segments,
    cut_turns,
    embed,
    join_turns,
    neighbors_in_turns,
    overlaps_of,
)
from sepkit.inference.options import LinkSpeakers
from sepkit.inference.waveforms import BlockReader

Blocks = Callable[[], Iterator[np.ndarray]]
"""Estimates (n, t) from beginning to end, block by block, as often as it is called."""

# Where an output goes from one speaker to another, over half a frame on both sides.
_FADE_SECONDS = 0.02


@dataclass
class LinkedSpeakers:
    """A recording whose estimates are linked to speakers.

    Args:
        speakers: Number of speakers.
        counted: Result of counting; None: the number was given.
        embeddings: (speakers, D) unit vectors, the mean of those of their segments; zeros for one without segments.
        owners: For each estimate, ends of its parts, (E,) samples, and their speakers, (E,).
        turns: Beginnings and lengths of the turns of each speaker, seconds.
        recording: Blocks (1, t) of the recording; the track of a single speaker.
        weights: Gain of each estimate, (E,): those of the sum nearest to the recording, from 0 to 1. Two estimates of
            one voice are not added up to more than the voice.
        full: Beginnings and lengths, seconds, of times with speech in every estimate, where a further speaker would
            not be noticed.
    """

    speakers: int
    counted: SpeakerCount | None
    embeddings: np.ndarray
    owners: list[tuple[np.ndarray, np.ndarray]]
    sample_rate: int
    estimates: Blocks
    turns: list[list[tuple[float, float]]]
    recording: Blocks
    weights: np.ndarray
    full: Sequence[tuple[float, float]] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Number of speakers, and of samples of each track."""
        return self.speakers, int(self.owners[0][0][-1])

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield (speakers, t) float32; where a speaker is in no estimate, zeros. No track is louder than the recording.

        A single speaker has the recording itself.
        """
        if self.speakers == 1:
            yield from self.recording()
            return
        energies = sum((np.square(block, dtype=np.float64).sum(-1) for block in self._tracks()), np.zeros(1))
        most = sum(float(np.square(block, dtype=np.float64).sum()) for block in self.recording())
        limits = np.sqrt(most / np.maximum(energies, max(most, np.finfo(np.float64).tiny)))
        for block in self._tracks():
            yield (limits[:, None] * block).astype(np.float32)

    def _tracks(self) -> Iterator[np.ndarray]:
        done = 0
        for block in self.estimates():
            yield self._share(self.weights[:, None] * block, done)
            done += block.shape[-1]

    def _share(self, block: np.ndarray, start: int) -> np.ndarray:
        shared = np.zeros((self.speakers, block.shape[-1]), np.float32)
        fade = max(1, round(_FADE_SECONDS * self.sample_rate / 2))
        times = np.arange(start, start + block.shape[-1])
        for samples, (ends, owners) in zip(block, self.owners, strict=True):
            first = int(np.searchsorted(ends, start - fade))
            last = int(np.searchsorted(ends, start + block.shape[-1] + fade))
            for part in range(first, min(last + 1, len(ends))):
                # Every weight falls where the next one rises, so that they add up to 1.
                begin = 1.0 if part == 0 else np.clip((times - ends[part - 1]) / (2 * fade) + 0.5, 0.0, 1.0)
                end = 0.0 if part == len(ends) - 1 else np.clip((times - ends[part]) / (2 * fade) + 0.5, 0.0, 1.0)
                shared[owners[part]] += (samples * (begin - end)).astype(np.float32)
        return shared

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for the JSON file."""
        counted, outputs = self.counted, len(self.owners)
        return {
            "speakers": self.speakers if any(self.turns) else 0,
            "runner_up": None if counted is None else counted.runner_up,
            "uncertain": counted is not None and counted.uncertain,
            "outputs": outputs,
            "seconds_with_all_outputs": round(sum(length for _, length in self.full), 2),
            "times_with_all_outputs": [[round(start, 2), round(start + length, 2)] for start, length in self.full],
            "note": f"no more than {outputs} at once are separated; a further speaker is mixed into the other tracks",
        }


def link(
    estimates: Blocks, count: int, sample_rate: int, encoder: Encoder, speakers: LinkSpeakers, recording: Blocks
) -> LinkedSpeakers:
    """Return which part of which estimate of a recording belongs to which speaker.

    Args:
        estimates: Blocks (n, t) of the estimates, which are read twice.
        count: Number of estimates, n.
        sample_rate: Sample rate of the estimates and the recording, Hz.
        encoder: Speaker encoder.
        speakers: Number of speakers; auto: it is found.
        recording: Blocks (1, t) of the recording that the estimates are of.

    Raises:
        UserError: fewer segments than speakers.
    """
    meter = SpeechMeter(count, sample_rate, encoder)
    length, gram, cross = 0, np.zeros((count, count)), np.zeros(count)
    mixture = BlockReader(block[0] for block in recording())
    for block in estimates():
        heard = mixture.take(block.shape[-1])
        meter.add(block, heard)
        length += block.shape[-1]
        exact = block.astype(np.float64)
        gram += exact @ exact.T
        cross += exact @ heard
    weights = np.clip(np.linalg.lstsq(gram, cross, rcond=1e-6)[0], 0.0, 1.0)
    segments, _ = cut_turns(meter)
    known, counted, labels = 1 if speakers == "auto" else speakers, None, []
    means = np.zeros((known, encoder.embedding_size))
    if segments:
        alone, spoken = embed(encoder, _waveforms(estimates, segments, sample_rate, encoder.sample_rate))
        segments, alone = list(itertools.compress(segments, spoken)), alone[spoken]
    if segments:
        if speakers != "auto" and speakers > len(segments):
            raise UserError(
                f"found {len(segments)} segments of speech, expected at least {speakers}, one per speaker; use "
                "--link-speakers auto, or fewer speakers"
            )
        seconds = np.array([segment.duration_seconds for segment in segments])
        turns, rule, clear = neighbors_in_turns(segments), rule_of(encoder.info), clear_segments(segments)
        found, counted = group_speakers(alone, turns, seconds, speakers, rule, clear, overlaps_of(segments))
        known, labels = len(found.centers), in_order_of_appearance(found.labels.tolist())
        means = mean_directions(unit_rows(alone), np.array(labels), np.zeros((known, alone.shape[1])))
    owners = [_owners(segments, labels, channel, length, sample_rate) for channel in range(count)]
    spans = [(segment.start_seconds, segment.duration_seconds) for segment in segments]
    channels = [segment.channel for segment in segments]
    in_use, said = (
        [join_turns([span for span, own in zip(spans, whose, strict=True) if own == k]) for k in range(number)]
        for whose, number in ((channels, count), (labels, known))
    )
    return LinkedSpeakers(
        known, counted, means, owners, sample_rate, estimates, said, recording, weights, times_of_all(in_use)
    )


def times_of_all(turns: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return beginnings and lengths, seconds, of the times in which all of some channels have a turn.

    >>> times_of_all([[(0.0, 3.0)], [(1.0, 1.0), (2.5, 2.0)]])
    [(1.0, 1.0), (2.5, 0.5)]

    Args:
        turns: Beginnings and lengths of the turns of each channel, seconds; those of one channel do not overlap.
    """
    edges = [(at, step) for own in turns for start, length in own for at, step in ((start, 1), (start + length, -1))]
    times, active, last = [], 0, 0.0
    for time, step in sorted(edges):
        if active == len(turns) and time > last:
            times.append((last, time - last))
        active, last = active + step, time
    return times


def _owners(
    segments: Sequence[SpeechSegment], labels: Sequence[int], channel: int, length: int, sample_rate: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return ends of the parts of one estimate, samples, and whose they are; pauses are divided in the middle."""
    ends: list[int] = []
    owners: list[int] = []
    for segment, label in zip(segments, labels, strict=True):
        if segment.channel != channel:
            continue
        end = round((segment.start_seconds + segment.duration_seconds) * sample_rate)
        if owners and owners[-1] == label:
            ends[-1] = end
            continue
        if ends:
            ends[-1] = (ends[-1] + round(segment.start_seconds * sample_rate)) // 2
        ends.append(end)
        owners.append(label)
    if not owners:
        return np.array([length]), np.array([0])
    ends[-1] = length
    return np.array(ends), np.array(owners)


def _waveforms(
    estimates: Blocks, segments: Sequence[SpeechSegment], sample_rate: int, wanted_rate: int
) -> Iterator[np.ndarray]:
    """Yield the samples of segments, in order of time, at another rate; only those begun and not ended are held."""
    spans = [
        (s.channel, round(s.start_seconds * sample_rate), round((s.start_seconds + s.duration_seconds) * sample_rate))
        for s in segments
    ]
    nothing, given, done = np.zeros(0, np.float32), 0, 0
    held = [nothing] * len(spans)
    for block in estimates():
        stop = done + block.shape[-1]
        for number in range(given, len(spans)):
            channel, first, last = spans[number]
            if first >= stop:
                break
            if last > done:
                held[number] = np.concatenate([held[number], block[channel, max(0, first - done) : last - done]])
        while given < len(spans) and spans[given][2] <= stop:
            yield audio.resample(held[given], sample_rate, wanted_rate)
            held[given] = nothing
            given += 1
        done = stop
    # Rounding may put the end of a segment behind that of the recording.
    for rest in held[given:]:
        yield audio.resample(rest if len(rest) else np.zeros(1, np.float32), sample_rate, wanted_rate)
