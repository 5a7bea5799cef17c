"""Draw new tables by the rules of LibriMix and VCTK-2mix: which utterances and noise are mixed, and how loud each is.

The published tables cannot be made again, because their draws depend on the order in which a file system lists files.
Use the published tables for the published corpora, and this module for your own. The rules are the published ones:

* Utterances and noise last at least 3 s.
* Training utterances occur once; development and test combinations are drawn until there are 3000.
* Noise is as long as the longest utterance if such noise is left, and each recording is used once before any repeats.
  Noise at other speeds is used only if there are more mixtures than recordings.
* Speech is uniform in -33 to -25 LUFS, noise in -38 to -30 (the second of the two numbers drawn for it counts).
* A part that would clip is scaled to 0.9 of full scale, and all parts alike if their sum exceeds 0.9.

Unlike the scripts this ends on small corpora, with the combinations that there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from sepkit.corpora._metadata_mixing import SOURCE_RATE
from sepkit.corpora._metadata_tables import recipe_columns, write_csv
from sepkit.corpora._verify import check_whole
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.parallel import Failed, for_each

if TYPE_CHECKING:
    import pyloudnorm

_SHORTEST_SAMPLES = 3 * SOURCE_RATE
_SPEECH_LUFS = (-33.0, -25.0)
_NOISE_LUFS = (-38.0, -30.0)
_MOST_AMPLITUDE = 0.9
_MOST_FAILURES = 200
# After this many rounds over all utterances without a new combination we assume that there are no more.
_BARREN_ROUNDS = 20
_ROUND_NUMBER = 100


@dataclass(frozen=True)
class Spoken:
    """A recording that mixtures may be made of.

    Args:
        path: absolute, or relative to its corpus.
        num_samples: at 16 kHz.
        speaker: empty for noise.
        sex: "F", "M" or None.
    """

    path: str
    num_samples: int
    speaker: str = ""
    sex: str | None = None


@dataclass(frozen=True)
class Draws:
    """How the combinations of one table are drawn.

    Args:
        speakers: sources in a mixture.
        most: upper limit of the number of mixtures; None: as many as there are utterances for.
        again: whether utterances may repeat until there are `most`.
        longest_noise: if no noise is long enough, whether to take the longest or to make no mixture.
        fitting_noise: whether noise has to be as long as the speech.
    """

    speakers: int
    most: int | None
    again: bool
    longest_noise: bool = True
    fitting_noise: bool = True


def list_recordings(
    root: Path, paths: Iterable[Path], skipped: dict[str, str], processes: int | None
) -> list[tuple[Path, int]]:
    """Return relative path and length of each recording of 3 s or more, the shortest first, ties by path."""
    found: list[tuple[int, str]] = []
    ordered = sorted(paths)
    for path, result in for_each(check_whole, ordered, processes, "listing"):
        if isinstance(result, Failed):
            skipped[str(path)] = result.reason
        elif result.sample_rate != SOURCE_RATE:
            skipped[str(path)] = f"{path}: {result.sample_rate} Hz, expected {SOURCE_RATE}"
        elif result.num_samples >= _SHORTEST_SAMPLES:
            found.append((result.num_samples, path.relative_to(root).as_posix()))
    return [(Path(name), length) for length, name in sorted(found)]


def combine(
    utterances: Sequence[Spoken], noises: Sequence[Spoken], more_noises: Sequence[Spoken], draws: Draws, random: Random
) -> list[tuple[list[Spoken], Spoken]]:
    """Return the utterances and the noise of each mixture.

    All lists are ordered by length; `noises` is not empty, and `more_noises` are used if there are more mixtures.
    """
    combinations: list[tuple[list[Spoken], Spoken]] = []
    seen: set[tuple[int, ...]] = set()
    barren = 0
    while barren < _BARREN_ROUNDS and (draws.most is None or len(combinations) < draws.most):
        groups = _groups(utterances, draws.speakers, random)
        if not draws.again and draws.most is not None:
            groups = groups[: draws.most]
        before = len(combinations)
        for group, noise in draw_noise(groups, utterances, noises, more_noises, draws, random):
            key = tuple(sorted(group))
            if key not in seen:
                seen.add(key)
                combinations.append(([utterances[index] for index in group], noise))
        barren = barren + 1 if len(combinations) == before else 0
        if not draws.again:
            break
    combinations = combinations[: draws.most]
    if len(combinations) >= _ROUND_NUMBER:
        combinations = combinations[: len(combinations) // _ROUND_NUMBER * _ROUND_NUMBER]
    return combinations


def draw_noise(
    groups: Sequence[Sequence[int]],
    utterances: Sequence[Spoken],
    noises: Sequence[Spoken],
    more_noises: Sequence[Spoken],
    draws: Draws,
    random: Random,
) -> list[tuple[Sequence[int], Spoken]]:
    """Return a noise for each group of utterances; groups for which there is none are left out."""
    pool = list(noises)
    if len(groups) > len(pool) and more_noises:
        pool = sorted([*noises, *more_noises], key=lambda noise: (noise.num_samples, noise.path))
    left = list(pool)
    chosen: list[tuple[Sequence[int], Spoken]] = []
    for group in groups:
        # The scripts fail where the noise runs out; here it is taken from the start.
        left = left or list(pool)
        longest = max(utterances[index].num_samples for index in group) if draws.fitting_noise else 0
        first = next((i for i, noise in enumerate(left) if noise.num_samples >= longest), len(left))
        if first < len(left):
            chosen.append((group, left.pop(random.sample(range(first, len(left)), 1)[0])))
        elif draws.longest_noise:
            chosen.append((group, left.pop()))
    return chosen


def write_new_tables(
    table: Path,
    combinations: Sequence[tuple[list[Spoken], Spoken]],
    speech: Path,
    noise: Path,
    random: Random,
    skipped: dict[str, str],
    processes: int | None,
    elsewhere: Mapping[str, str] | None = None,
) -> int:
    """Write a table, and `..._info.csv` beside it; return its number of lines. Combinations that fail are left out.

    Args:
        table: path of the table.
        combinations: what to mix, see `combine`; their noise exists.
        speech: folder of the utterances.
        noise: folder of the noise.
        random: draws loudness.
        skipped: failures are added here, with the reason.
        processes: see `for_each`.
        elsewhere: path of noise in the table -> its real path.

    Raises:
        UserError: none of the combinations can be used, or the folder cannot be written to.
    """
    jobs: list[_Job] = []
    for group, accompanying in combinations:
        file = noise / (elsewhere or {}).get(accompanying.path, accompanying.path)
        targets = [random.uniform(*_SPEECH_LUFS) for _ in group]
        random.uniform(*_SPEECH_LUFS)
        jobs.append(_Job(tuple(group), accompanying, file, (*targets, random.uniform(*_NOISE_LUFS))))
    rows: list[list[str | float]] = []
    info: list[list[str | float]] = []
    seen: set[str] = set()
    work = partial(_measure_gains, speech=speech)
    for job, gains in for_each(work, jobs, processes, f"{table.stem}: loudness", "mixture"):
        if isinstance(gains, Failed):
            skipped[f"{table.name}/{job.id}"] = gains.reason
        elif job.id in seen:
            skipped[f"{table.name}/{job.id}"] = f"{job.id}: two mixtures of one name: files of equal names in {speech}"
        else:
            seen.add(job.id)
            parts: list[Spoken] = [*job.group, job.noise]
            rows.append(
                [job.id, *(cell for part, gain in zip(parts, gains, strict=True) for cell in (part.path, gain))]
            )
            info.append([job.id, *(cell for part in job.group for cell in (part.speaker, part.sex or ""))])
    if not rows:
        raise UserError(
            f"{speech}: no mixture can be made for {table.name}: {next(iter(skipped.values()), 'no pairs')}"
        )
    speakers = len(combinations[0][0])
    people = [f"speaker_{number}_{what}" for number in range(1, speakers + 1) for what in ("ID", "sex")]
    write_csv(table.with_name(f"{table.stem}_info.csv"), ["mixture_ID", *people], info)
    # Written last, so that its presence means that the other table exists too.
    write_csv(table, recipe_columns(speakers), rows)
    return len(rows)


@dataclass(frozen=True)
class _Job:
    group: tuple[Spoken, ...]
    noise: Spoken
    noise_file: Path
    targets: tuple[float, ...]

    @property
    def id(self) -> str:
        return "_".join(Path(part.path).stem for part in self.group)


def _groups(utterances: Sequence[Spoken], speakers: int, random: Random) -> list[list[int]]:
    """Return groups of utterances of different speakers, each utterance in one at most."""
    left = list(range(len(utterances)))
    groups: list[list[int]] = []
    failures = 0
    while len(left) >= speakers and failures < _MOST_FAILURES:
        group = random.sample(left, speakers)
        if len({utterances[index].speaker for index in group}) < speakers:
            failures += 1
            continue
        failures = 0
        for index in group:
            left.remove(index)
        groups.append(group)
    return groups


def _measure_gains(job: _Job, speech: Path) -> list[float]:
    import pyloudnorm

    meter = pyloudnorm.Meter(SOURCE_RATE)
    parts = [audio.read(speech / part.path, channel=0) for part in job.group]
    longest = max(len(part) for part in parts)
    parts.append(audio.read(job.noise_file, 0, longest, channel=0, pad_end=True))
    parts = [np.pad(part, (0, longest - len(part))) for part in parts]
    paths = [*(speech / part.path for part in job.group), job.noise_file]
    before = [_loudness(meter, part, path) for part, path in zip(parts, paths, strict=True)]
    scaled: list[np.ndarray] = []
    for part, loudness, target in zip(parts, before, job.targets, strict=True):
        louder = part * 10 ** ((target - loudness) / 20)
        if np.abs(louder).max() >= 1:
            louder = part * (_MOST_AMPLITUDE / float(np.abs(part).max()))
        scaled.append(louder)
    peak = float(np.abs(np.sum(scaled, axis=0)).max())
    weight = _MOST_AMPLITUDE / peak if peak > _MOST_AMPLITUDE else 1.0
    after = [_loudness(meter, part * weight, path) for part, path in zip(scaled, paths, strict=True)]
    return [10 ** ((new - old) / 20) for new, old in zip(after, before, strict=True)]


def _loudness(meter: pyloudnorm.Meter, waveform: np.ndarray, path: Path) -> float:
    loudness = float(meter.integrated_loudness(waveform))
    if not np.isfinite(loudness):
        raise UserError(f"{path}: too quiet for its loudness to be measured; leave out the file")
    return loudness
