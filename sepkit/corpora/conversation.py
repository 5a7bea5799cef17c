"""Conversations of any length from recordings of single speakers, to test the separation of long recordings.

What it is: the recordings of each speaker laid end to end with pauses between them, so that speakers overlap, take
turns, and are silent for up to half a minute. They are written as s1.flac, s2.flac ... and their sum, mixture.flac,
with a manifest of one row and conversation.rttm, who speaks when. With --max-overlap N they take turns, and never
do more than N speak at once. With --texts, conversation.seglst.json contains the words. A seed determines speakers,
order of recordings, pauses and levels.
Size: 16-bit FLAC; an hour of two speakers at 8 kHz takes about 100 MB and less than a minute.
License: that of the recordings.
Traps: speakers do not react to each other. If a speaker's recordings do not fill the time, they repeat in another
order. The mixture is the sum of the sources to the last bit.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sepkit.choices import check_bounds
from sepkit.corpora._recordings import Utterance, check_provenance, examine, find_recordings, report_skipped
from sepkit.corpora.options import ConversationOptions
from sepkit.data import audio
from sepkit.data.activity import ActivityMeter, rttm_lines
from sepkit.data.audio import write_blocks
from sepkit.data.manifest import MixtureEntry, SourceEntry, write_manifest
from sepkit.data.seglst import SpokenSegment, write_seglst
from sepkit.errors import UserError
from sepkit.files import read_text, write_text

LONGEST_SILENCE_SECONDS = 30.0

# Pauses between two recordings of a speaker: mostly short, sometimes long enough for listening.
_SHORT_PAUSE_SECONDS, _LONG_PAUSE_SECONDS = (0.2, 4.0), (8.0, LONGEST_SILENCE_SECONDS)
_LONG_PAUSE_SHARE = 0.25
# Root mean square of speech, low enough for sums of speakers to stay below full scale; higher peaks are scaled down.
_LEVEL = 0.05
_BLOCK_SECONDS = 10.0
# With turn-taking: pauses of the first lane, of the others, and how long a speaker waits before the next turn.
_ANSWER_PAUSE_SECONDS, _INTERRUPTION_PAUSE_SECONDS, _ANSWER_SECONDS = (0.1, 1.5), (2.0, 12.0), 0.5


@dataclass(frozen=True)
class Turn:
    """A recording at its place: its first sample in the conversation."""

    utterance: Utterance
    offset: int
    gain: float

    @property
    def end(self) -> int:
        """The first sample after the recording."""
        return self.offset + self.utterance.num_samples


def prepare_conversation(options: ConversationOptions) -> Path:
    """Write one conversation, its recordings and the manifest beside them; return the manifest."""
    from tqdm import tqdm

    out, split, sample_rate = Path(options.out), options.split, options.sample_rate
    minutes, speakers = options.minutes, options.speakers
    check_bounds(options)
    texts = None if options.texts is None else _read_texts(options.texts)
    num_samples = round(60 * minutes * sample_rate)
    recordings, skipped = find_recordings(Path(options.speech), options.speaker_from)
    recordings = [recording for recording in recordings if recording.split in (split, None)]
    generator = np.random.default_rng(options.seed)
    names = _choose(Counter(recording.speaker for recording in recordings), speakers, split, generator)
    made_with = {
        "max_overlap": options.max_overlap, "texts": options.texts and str(options.texts),
        "speech": str(options.speech), "split": split, "num_samples": num_samples, "speakers": names,
        "sample_rate": sample_rate, "gain_range_db": options.gain_range_db, "seed": options.seed,
    }  # fmt: skip
    check_provenance(out / "conversation.json", {key: value for key, value in made_with.items() if value is not None})
    manifest = out / "conversation.jsonl"
    utterances, unusable = examine([r for r in recordings if r.speaker in names], sample_rate)
    report_skipped(out, skipped | unusable)
    of_speakers = []
    for name in names:
        of_speakers.append([utterance for utterance in utterances if utterance.speaker == name])
        if not of_speakers[-1]:
            raise UserError(f"speaker {name}: none of the recordings can be used; see {out / 'skipped.tsv'}")
    tracks: list[list[Turn]] = []
    gains = []
    for own in of_speakers:
        gains.append(10 ** (generator.uniform(-options.gain_range_db, options.gain_range_db) / 20))
        if options.max_overlap is None:
            tracks.append(draw_turns(own, num_samples, sample_rate, gains[-1], generator))
    tracks = tracks or take_turns(of_speakers, num_samples, sample_rate, gains, options.max_overlap or 1, generator)
    if texts is not None:
        # A recording that the end cuts has no text.
        tracks = [[turn for turn in track if turn.end <= num_samples] for track in tracks]
        _write_words(out, tracks, texts, sample_rate)
    paths = [f"s{number}.flac" for number in range(1, speakers + 1)]
    # With this factor the speakers' loudest peaks do not clip even if they coincide.
    peaks = []
    for track in tracks:
        gains = {turn.utterance: turn.gain for turn in track}
        own_peaks = [gain * float(np.abs(_samples(own, sample_rate)).max()) for own, gain in gains.items()]
        peaks.append(max(own_peaks, default=0.0))
    scale = min(1.0, 0.98 / max(sum(peaks), 1e-9))
    with ExitStack() as stack:
        layout = sample_rate, num_samples, "PCM_16"
        writers = [stack.enter_context(write_blocks(out / path, *layout)) for path in [*paths, "mixture.flac"]]
        size = round(_BLOCK_SECONDS * sample_rate)
        for start in tqdm(range(0, num_samples, size), desc="writing", unit="block", disable=None):
            stop = min(num_samples, start + size)
            sources = [_render(track, start, stop, sample_rate, scale) for track in tracks]
            # Rounded to 16-bit steps, so that the sum is whole steps too.
            sources = [np.round(source * 2.0**15) / 2.0**15 for source in sources]
            for writer, waveform in zip(writers, [*sources, np.sum(sources, axis=0)], strict=True):
                writer.write(waveform.astype(np.float32))
    segments = []
    for path in paths:
        meter = ActivityMeter(1, sample_rate)
        for block in audio.read_blocks(out / path, round(_BLOCK_SECONDS * sample_rate)):
            meter.add(block[None])
        segments += meter.segments()
    write_text(out / "conversation.rttm", "".join(rttm_lines("mixture", segments, names)))
    sexes = {utterance.speaker: utterance.recording.sex for utterance in utterances}
    entry = MixtureEntry(
        id="mixture",
        sample_rate=sample_rate,
        num_samples=num_samples,
        sources=[SourceEntry(path, speaker=name, sex=sexes[name]) for path, name in zip(paths, names, strict=True)],
        mode="max",
        mixture="mixture.flac",
        corpus="conversation",
    )
    return write_manifest(manifest, [entry])


def take_turns(
    of_speakers: Sequence[Sequence[Utterance]],
    num_samples: int,
    sample_rate: int,
    gains: Sequence[float],
    max_overlap: int,
    generator: np.random.Generator,
) -> list[list[Turn]]:
    """Return the turns of each speaker in a conversation in which at most N speak at once.

    Turns follow one another in N lanes. Whoever is not speaking may take the next turn of a lane. The first lane has
    short pauses; the others are mostly silent, so that speech overlaps now and then.
    """
    tracks: list[list[Turn]] = [[] for _ in of_speakers]
    free_from = np.zeros(len(of_speakers), np.int64)
    waiting: list[list[int]] = [[] for _ in of_speakers]
    # The first lane has other pauses than the others.
    pauses = [_ANSWER_PAUSE_SECONDS, *[_INTERRUPTION_PAUSE_SECONDS] * (max_overlap - 1)]
    lanes = [round(generator.uniform(*pause) * sample_rate) for pause in pauses]
    while min(lanes) < num_samples:
        lane = int(np.argmin(lanes))
        # No speaker takes two turns in a row, if there are others.
        able = np.flatnonzero(free_from + round(_ANSWER_SECONDS * sample_rate) <= lanes[lane])
        if not len(able):
            lanes[lane] = int(free_from.min()) + round(_ANSWER_SECONDS * sample_rate)
            continue
        speaker = int(generator.choice(able))
        waiting[speaker] = waiting[speaker] or generator.permutation(len(of_speakers[speaker])).tolist()
        utterance = of_speakers[speaker][waiting[speaker].pop()]
        turn = Turn(utterance, lanes[lane], gains[speaker] * _LEVEL / utterance.level)
        tracks[speaker].append(turn)
        free_from[speaker] = turn.end
        lanes[lane] = turn.end + round(generator.uniform(*pauses[lane]) * sample_rate)
    return tracks


def _read_texts(path: Path) -> dict[str, str]:
    """Return name -> words of lines 'NAME WORDS'."""
    lines = (line.split(maxsplit=1) for line in read_text(path, "lines of a name and words").splitlines())
    return {words[0]: words[1].strip() if len(words) > 1 else "" for words in lines if words}


def _write_words(out: Path, tracks: Sequence[Sequence[Turn]], texts: dict[str, str], sample_rate: int) -> None:
    segments = []
    paths: dict[str, Path] = {}
    for turn in sorted(itertools.chain(*tracks), key=lambda turn: turn.offset):
        name = turn.utterance.recording.label
        if name not in texts:
            raise UserError(f"texts: found no line for {name}, expected one for each recording")
        if (path := paths.setdefault(name, turn.utterance.recording.path)) != turn.utterance.recording.path:
            raise UserError(f"texts: {path} and {turn.utterance.recording.path} have one name, expected different ones")
        times = turn.offset / sample_rate, turn.end / sample_rate
        segments.append(SpokenSegment("mixture", turn.utterance.speaker, *times, texts[name]))
    write_seglst(out / "conversation.seglst.json", segments)


def draw_turns(
    utterances: Sequence[Utterance], num_samples: int, sample_rate: int, gain: float, generator: np.random.Generator
) -> list[Turn]:
    """Return one speaker's recordings in random order with pauses, repeated until the time is over, where the last is
    cut."""
    turns: list[Turn] = []
    position = round(generator.uniform(0, _SHORT_PAUSE_SECONDS[1]) * sample_rate)
    while True:
        for index in generator.permutation(len(utterances)):
            if position >= num_samples:
                return turns
            utterance = utterances[index]
            turns.append(Turn(utterance, position, gain * _LEVEL / utterance.level))
            is_long = generator.random() < _LONG_PAUSE_SHARE
            pause = generator.uniform(*(_LONG_PAUSE_SECONDS if is_long else _SHORT_PAUSE_SECONDS))
            position = turns[-1].end + math.floor(pause * sample_rate)


def _choose(known: Counter[str], count: int, split: str, generator: np.random.Generator) -> list[str]:
    if len(known) < count:
        raise UserError(f"split {split}: found {len(known)} speakers, expected at least {count}; try another split")
    heard_most = sorted(name for name, files in known.items() if 2 * files >= max(known.values()))
    # If these are too few, those with most recordings.
    names = heard_most if len(heard_most) >= count else [name for name, _ in known.most_common(count)]
    return [str(name) for name in generator.choice(names, count, replace=False)]


def _render(track: Sequence[Turn], start: int, stop: int, sample_rate: int, scale: float) -> np.ndarray:
    rendered = np.zeros(stop - start)
    for turn in track:
        low, high = max(start, turn.offset), min(stop, turn.end)
        if low < high:
            part = _samples(turn.utterance, sample_rate, low - turn.offset, high - low)
            rendered[low - start : high - start] = scale * turn.gain * part
    return rendered


def _samples(utterance: Utterance, sample_rate: int, start: int = 0, count: int | None = None) -> np.ndarray:
    count = utterance.num_samples - start if count is None else count
    return audio.read(utterance.recording.path, utterance.start + start, count, sample_rate)
