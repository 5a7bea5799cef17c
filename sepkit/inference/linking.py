"""More people than estimates: the parts of all estimates of a recording, linked to the people who speak in them.

A model with two outputs separates a meeting of six as long as no more than two speak at once. Each output then holds
one person after another. Turns of all outputs are embedded by an encoder of voices and clustered. Every sample of an
output goes to exactly one person, so the people add up to what the outputs add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.data.activity import ActivityMeter
from sepkit.inference.counting import Counted, count_speakers
from sepkit.inference.options import LinkSpeakers
from sepkit.inference.stretches import Stretch, blend_turns, cut_turns, embed
from sepkit.inference.voices import in_order_of_appearance, spherical_k_means
from sepkit.models.speaker_encoder import SpeakerEncoder

Blocks = Callable[[], Iterator[np.ndarray]]
"""Estimates (n, t) from beginning to end, block by block, as often as it is called."""

# Where an output goes from one person to another, over half a frame on both sides.
_FADE_SECONDS = 0.02


@dataclass
class Linked:
    """A recording whose estimates are linked to people.

    Args:
        people: how many.
        counted: how that was found; None if it was given.
        owners: of each estimate, (E,) ends of its parts, in samples, and (E,) whose they are.
        sample_rate: Hz.
        estimates: them, block by block.
    """

    people: int
    counted: Counted | None
    owners: list[tuple[np.ndarray, np.ndarray]]
    sample_rate: int
    estimates: Blocks

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield (people, t) float32; where a person is in no estimate, zeros."""
        done = 0
        for block in self.estimates():
            yield self._share(block, done)
            done += block.shape[-1]

    def _share(self, block: np.ndarray, start: int) -> np.ndarray:
        shared = np.zeros((self.people, block.shape[-1]), np.float32)
        fade = max(1, round(_FADE_SECONDS * self.sample_rate / 2))
        times = np.arange(start, start + block.shape[-1])
        for samples, (ends, owners) in zip(block, self.owners, strict=True):
            first = int(np.searchsorted(ends, start - fade))
            last = int(np.searchsorted(ends, start + block.shape[-1] + fade))
            for part in range(first, min(last + 1, len(ends))):
                # Every weight falls where the next one rises, so that they add up to 1.
                begin = 1.0 if part == 0 else _ramp(times, ends[part - 1], fade)
                end = 0.0 if part == len(ends) - 1 else _ramp(times, ends[part], fade)
                shared[owners[part]] += (samples * (begin - end)).astype(np.float32)
        return shared

    def told(self) -> dict[str, Any]:
        """Return what the JSON file tells."""
        counted = self.counted
        return {"people": self.people, "runner_up": None if counted is None else counted.runner_up}


def _ramp(times: np.ndarray, edge: int, fade: int) -> np.ndarray:
    """Return 0 before an edge and 1 after it, and a line in between."""
    return np.clip((times - edge) / (2 * fade) + 0.5, 0.0, 1.0)


def link(
    estimates: Blocks, count: int, sample_rate: int, encoder: SpeakerEncoder, people: LinkSpeakers, seed: int = 0
) -> Linked:
    """Return which part of which estimate of a recording belongs to which person.

    Args:
        estimates: them, block by block; read twice here.
        count: n, how many.
        sample_rate: Hz.
        encoder: of voices.
        people: their number; auto: it is found.
        seed: of k-means.

    Raises:
        UserError: fewer stretches of speech than people.
    """
    meter = ActivityMeter(count, sample_rate)
    length = 0
    for block in estimates():
        meter.add(block)
        length += block.shape[-1]
    stretches, _ = cut_turns(meter.segments())
    counted = None
    if not stretches:
        known = 1 if people == "auto" else people
        owner = np.array([length]), np.array([0])
        return Linked(known, None, [owner] * count, sample_rate, estimates)
    alone = embed(encoder, _waveforms(estimates, stretches, sample_rate, encoder.sample_rate))
    embeddings = blend_turns(alone, stretches)
    if people == "auto":
        seconds = np.array([stretch.duration_seconds for stretch in stretches])
        counted = count_speakers(embeddings, seconds, encoder.info.get("counting"), separated=count > 1)
        people = counted.speakers
    # Estimates that are heard at once may still be one person: where one speaks alone, the others hold what is left.
    found = spherical_k_means(embeddings, people, seed)
    labels = in_order_of_appearance(found.labels.tolist())
    owners = [_owners(stretches, labels, track, length, sample_rate) for track in range(count)]
    return Linked(people, counted, owners, sample_rate, estimates)


def _owners(
    stretches: Sequence[Stretch], labels: Sequence[int], track: int, length: int, sample_rate: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return ends of the parts of one estimate, samples, and whose they are; pauses are divided in the middle."""
    own = [(stretch, label) for stretch, label in zip(stretches, labels, strict=True) if stretch.track == track]
    ends: list[int] = []
    owners: list[int] = []
    for stretch, label in own:
        if owners and owners[-1] == label:
            ends[-1] = round((stretch.start_seconds + stretch.duration_seconds) * sample_rate)
            continue
        begin = round(stretch.start_seconds * sample_rate)
        if ends:
            ends[-1] = (ends[-1] + begin) // 2
        ends.append(round((stretch.start_seconds + stretch.duration_seconds) * sample_rate))
        owners.append(label)
    if not owners:
        return np.array([length]), np.array([0])
    ends[-1] = length
    return np.array(ends), np.array(owners)


def _waveforms(
    estimates: Blocks, stretches: Sequence[Stretch], sample_rate: int, wanted_rate: int
) -> Iterator[np.ndarray]:
    """Yield the samples of stretches, in order of time, at another rate; only those begun and not ended are held."""
    spans = [
        (s.track, round(s.start_seconds * sample_rate), round((s.start_seconds + s.duration_seconds) * sample_rate))
        for s in stretches
    ]
    held: dict[int, list[np.ndarray]] = {}
    ready: dict[int, np.ndarray] = {}
    given, begun, done = 0, 0, 0
    for block in estimates():
        stop = done + block.shape[-1]
        while begun < len(spans) and spans[begun][1] < stop:
            held[begun] = []
            begun += 1
        for number in list(held):
            track, first, last = spans[number]
            held[number].append(block[track, max(0, first - done) : max(0, last - done)])
            if last <= stop:
                ready[number] = np.concatenate(held.pop(number))
        while given in ready:
            yield audio.resample(ready.pop(given), sample_rate, wanted_rate)
            given += 1
        done = stop
    for number in range(given, len(spans)):
        rest = ready[number] if number in ready else np.concatenate(held[number])
        yield audio.resample(rest if len(rest) else np.zeros(1, np.float32), sample_rate, wanted_rate)
