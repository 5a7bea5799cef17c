"""Describe mixtures drawn from utterances by seed: fixed crops to test on, whole utterances to train on."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from sepkit.corpora._recordings import Utterance
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, NoiseEntry, SourceEntry
from sepkit.data.mixing import mix_entry
from sepkit.errors import counted, one_line
from sepkit.limits import ID_BYTES
from sepkit.signals import active_level

NOMINAL_LEVEL_DB = -30.0
"""Level of a source before its gain, dB re full scale: sums of several stay below full scale."""

# Attempts at a new combination, and at a crop that is not mostly pause.
_MOST_ATTEMPTS = 50
_CROP_ATTEMPTS = 8
# Below it, a change of the mean may be chance.
_FEW = 20
# A crop whose level is this far below its recording's is mostly pause.
_PAUSE_DROP_DB = 6.0


@dataclass(frozen=True)
class MixtureStyle:
    """How mixtures are made of utterances. Each source's gain is uniform in +- `gain_range_db`, relative to equal
    level. With `segment_samples` mixtures are crops of that length, else as long as the shortest utterance."""

    out: Path
    sample_rate: int
    corpus: str = ""
    speakers: int = 2
    segment_samples: int | None = None
    gain_range_db: float = 2.5
    noise: tuple[Path, ...] = ()
    noise_snr_db: tuple[float, float] = (0.0, 15.0)


Accept = Callable[[Sequence[Utterance], int], bool]
"""(utterances, number of the mixture) -> whether they may be mixed."""


def draw_mixtures(
    utterances: Sequence[Utterance],
    count: int,
    style: MixtureStyle,
    generator: np.random.Generator,
    first_number: int = 0,
    accept: Accept = lambda chosen, number: True,
) -> list[MixtureEntry]:
    """Describe up to `count` mixtures, no two of the same utterances; fewer if combinations run out.

    Every utterance is the first source of a mixture in its turn, so that all occur if there are at least as many
    mixtures; each further source is a random utterance of a random other speaker. `accept` says whether these
    utterances may be the mixture with this number, counted from 0.
    """
    from tqdm import tqdm

    drawn = tqdm(_combinations(utterances, count, style.speakers, generator, accept), total=count, disable=None)
    drawn.set_description("mixing")
    return [_describe(chosen, number, style, generator) for number, chosen in enumerate(drawn, start=first_number)]


def draw_mixtures_of_several_sizes(
    utterances: Sequence[Utterance],
    count: int,
    speakers: Sequence[int],
    style: MixtureStyle,
    seeds: Sequence[int],
    first_number: int = 0,
) -> list[MixtureEntry]:
    """Describe up to `count` mixtures, in turn of each number of speakers, in equal shares.

    If the shares cannot be equal, the numbers named first get one more. Mixtures of one number do not depend on the
    others. A share is smaller if its combinations run out (for one speaker, its utterances). `style` gives everything
    but the number of speakers; see `draw_mixtures` for the other arguments.
    """
    base, more = divmod(count, len(speakers))
    parts = [
        draw_mixtures(utterances, base + (k < more), replace(style, speakers=n), np.random.default_rng([*seeds, n]))
        for k, n in enumerate(speakers)
    ]
    turns = [entry for turn in zip_longest(*parts) for entry in turn if entry is not None]
    return [replace(entry, id=f"{first_number + k:05d}_{entry.id.partition('_')[2]}") for k, entry in enumerate(turns)]


def manifest_path(path: Path, folder: Path) -> str:
    """Return the path as a manifest in `folder` names it: relative if it lies below, absolute elsewhere."""
    absolute, base = os.path.abspath(path), os.path.abspath(folder)
    return os.path.relpath(absolute, base) if absolute.startswith(base + os.sep) else absolute


def summary(entries: Sequence[MixtureEntry]) -> str:
    """Return a line that says how many mixtures, speakers, hours and recordings there are."""
    hours = sum(entry.duration_seconds for entry in entries) / 3600
    sources = [source for entry in entries for source in entry.sources]
    sizes = Counter(len(entry.sources) for entry in entries)
    of = "; ".join(f"{count} of {size}" for size, count in sorted(sizes.items()))
    mixtures = counted(len(entries), "mixture") + (f" of {next(iter(sizes))}" if len(sizes) == 1 else f" ({of})")
    files, speakers = len({source.path for source in sources}), len({source.speaker for source in sources})
    return f"{mixtures}, {hours:.2f} h, from {files} recordings of {speakers} speakers{few(entries)}"


def few(entries: Sequence[MixtureEntry]) -> str:
    """Return a warning about a manifest of few mixtures; "" if there are enough."""
    return f"; warning: fewer than {_FEW} mixtures measure little" if len(entries) < _FEW else ""


def _combinations(
    utterances: Sequence[Utterance], count: int, speakers: int, generator: np.random.Generator, accept: Accept
) -> Iterator[list[Utterance]]:
    of_speaker: dict[str, list[int]] = defaultdict(list)
    for index, utterance in enumerate(utterances):
        of_speaker[utterance.speaker].append(index)
    names = sorted(of_speaker)
    seen: set[frozenset[int]] = set()
    exhausted: set[int] = set()
    while len(seen) < count and len(exhausted) < len(utterances):
        for first in generator.permutation(len(utterances)).tolist():
            if len(seen) == count:
                return
            if first in exhausted:
                continue
            others = [name for name in names if name != utterances[first].speaker]
            for _ in range(_MOST_ATTEMPTS):
                drawn = generator.choice(len(others), size=speakers - 1, replace=False)
                choices = [of_speaker[others[k]] for k in drawn]
                chosen = [first, *(own[generator.integers(len(own))] for own in choices)]
                if frozenset(chosen) not in seen and accept([utterances[i] for i in chosen], len(seen)):
                    seen.add(frozenset(chosen))
                    yield [utterances[i] for i in chosen]
                    break
            else:
                exhausted.add(first)


def _describe(
    chosen: Sequence[Utterance], number: int, style: MixtureStyle, generator: np.random.Generator
) -> MixtureEntry:
    count = style.segment_samples or min(utterance.num_samples for utterance in chosen)
    sources = []
    for utterance in chosen:
        recording = utterance.recording
        start, level = _draw_crop(utterance, count, style, generator)
        num_samples = None
        if recording.part_seconds and style.segment_samples is None:
            # Without a length, dynamic mixing takes a file from the start on as this speaker's.
            start, num_samples = utterance.start, utterance.num_samples
        gain_db = NOMINAL_LEVEL_DB + generator.uniform(-style.gain_range_db, style.gain_range_db)
        sources.append(
            SourceEntry(
                path=manifest_path(recording.path, style.out),
                speaker=recording.speaker,
                sex=recording.sex,
                start=start,
                gain=_rounded(10 ** (gain_db / 20) / level),
                num_samples=num_samples,
            )
        )
    # File names can be long or contain line breaks; ids must not.
    room = min(40, (ID_BYTES - len("00000")) // len(chosen) - len("_"))
    labels = (one_line(utterance.recording.label).encode()[:room].decode(errors="ignore") for utterance in chosen)
    entry = MixtureEntry(
        id="_".join([f"{number:05d}", *labels]),
        sample_rate=style.sample_rate,
        num_samples=count,
        sources=sources,
        corpus=style.corpus,
        task="sep_noisy" if style.noise else "sep_clean",
        folder=style.out,
    )
    if style.noise:
        entry.noise = _describe_noise(entry, style, generator)
    return entry


def _draw_crop(
    utterance: Utterance, count: int, style: MixtureStyle, generator: np.random.Generator
) -> tuple[int, float]:
    """Return where a crop of `count` samples begins, if possible not mostly in a pause, and the level that its gain
    refers to."""
    spare = utterance.num_samples - count
    if style.segment_samples is None:
        return utterance.start + int(generator.integers(spare + 1)), utterance.level
    crops = []
    for _ in range(_CROP_ATTEMPTS if spare else 1):
        start = utterance.start + int(generator.integers(spare + 1))
        waveform = audio.read(utterance.recording.path, start, count, style.sample_rate)
        power = float(np.mean(np.square(waveform, dtype=np.float64)))
        crops.append((power, start, active_level(waveform, style.sample_rate)))
        if power >= (utterance.level * 10 ** (-_PAUSE_DROP_DB / 20)) ** 2:
            break
    else:
        crops.sort()
    _, start, level = crops[-1]
    return start, level or utterance.level


def _describe_noise(entry: MixtureEntry, style: MixtureStyle, generator: np.random.Generator) -> NoiseEntry:
    path = style.noise[generator.integers(len(style.noise))]
    header = audio.info(path)
    available = audio.resampled_length(header.num_samples, header.sample_rate, style.sample_rate)
    start = int(generator.integers(max(0, available - entry.num_samples) + 1))
    extend = "repeat" if available < entry.num_samples else None
    unscaled = NoiseEntry(manifest_path(path, style.out), start=start, gain=1.0, extend=extend)
    snr_db = generator.uniform(*style.noise_snr_db)
    mixed = mix_entry(replace(entry, noise=unscaled))
    speech_norm = np.linalg.norm(mixed.sources.sum(axis=0))
    noise_norm = np.linalg.norm(mixed.noise) if mixed.noise is not None else 0.0
    gain = speech_norm / noise_norm * 10 ** (-snr_db / 20) if noise_norm > 0 else 0.0
    return replace(unscaled, gain=_rounded(gain))


def _rounded(gain: float) -> float:
    """Round to six significant digits: inaudible, and the same bytes on every machine."""
    return float(f"{gain:.6g}")
