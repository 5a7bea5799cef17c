"""Any tree of single-speaker recordings.

What it is: your own recordings, one speaker a file, in any format that libsndfile reads and at any sample rate. Folders
called train, dev and test (or like "train-clean-100") are the splits; without them the speakers are divided 80/10/10.
Traps: a speaker in two splits makes scores look better than they are (said when it happens); a wrong `speaker_from`
puts one person into a mixture twice (the number of speakers found is printed: look at it).
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sepkit.corpora._mixtures import MixtureStyle, draw_mixtures, draw_mixtures_of_several_sizes
from sepkit.corpora._recordings import (
    SPLITS,
    Recording,
    Utterance,
    check_writable,
    examine,
    find_audio_files,
    find_recordings,
    hold_out_speakers,
    read_speaker_sexes,
    split_of,
    write_skipped,
)
from sepkit.corpora.kaldi import read_kaldi
from sepkit.data.manifest import MixtureEntry, write_manifest
from sepkit.errors import UserError

__all__ = ["prepare_folder"]

# Where LibriSpeech and corpora laid out like it say who is a woman and who a man.
_SPEAKER_FILE = "SPEAKERS.TXT"


@dataclass(frozen=True)
class _Plan:
    """What the three manifests are to hold."""

    out: Path
    seed: int
    speakers: tuple[int, ...]
    style: MixtureStyle
    segment_samples: int
    counts: Mapping[str, int]
    groups: Mapping[str, re.Pattern[str]]
    noise: Mapping[str, tuple[Path, ...]]
    noisy_and_clean: bool


def prepare_folder(
    speech: str | Path | None,
    out: str | Path,
    noise: str | Path | None = None,
    speaker_from: str = "first",
    kaldi: str | Path | None = None,
    *,
    groups: Sequence[str] = (),
    train_group: str | None = None,
    speaker_info: str | Path | None = None,
    speakers: int | Sequence[int] = 2,
    sample_rate: int = 8000,
    segment_seconds: float = 4.0,
    train_mixtures: int | None = None,
    dev_mixtures: int = 200,
    test_mixtures: int = 300,
    gain_range_db: float = 2.5,
    noise_snr_db: Sequence[float] = (0.0, 15.0),
    noisy_and_clean: bool = False,
    seed: int = 0,
) -> Path:
    """The folder of the manifests written: `train.jsonl`, `dev.jsonl`, `test.jsonl`, and `test_GROUP.jsonl` per group.

    Mixtures are described, not written. All are in min mode, each source at -30 dB re full scale (the level where
    somebody speaks) plus a gain that is uniform in +-`gain_range_db`. Those of dev and test are crops of
    `segment_seconds` and do not change with what is in train; those of train are as long as their shortest utterance,
    and every utterance occurs. Files that cannot be used are listed in `skipped.tsv`.

    Args:
        speech: folder of recordings; None with `kaldi`.
        out: folder of the manifests.
        noise: folder of noise recordings, divided like the speech; each mixture gets one. None: no noise.
        speaker_from: see `find_recordings`.
        kaldi: Kaldi data folder to read in place of `speech`, see `sepkit.corpora.kaldi`.
        groups: "NAME=PATTERN" each; mixtures of test are of speakers of one group, those whose identifier
            matches the regular expression as a whole (the first one that does). `test_mixtures` are made of each group.
        train_group: name of the one of `groups` whose speakers alone are in train and dev; None: all speakers.
        speaker_info: CSV file with the columns speaker and sex, or a SPEAKERS.TXT; None: the SPEAKERS.TXT in `speech`
            or up to two folders above it, if there is one.
        speakers: sources in a mixture; several numbers: mixtures of each in equal shares, taking turns, where those of
            one number do not depend on the others.
        sample_rate: Hz of the mixtures; recordings at other rates are resampled as they are read.
        segment_seconds: length of the mixtures of dev and test.
        train_mixtures: how many; None: 3000, or more where there are more utterances than that.
        dev_mixtures: how many.
        test_mixtures: how many, of each group.
        gain_range_db: see above.
        noise_snr_db: range of the ratio of speech to noise, dB.
        noisy_and_clean: each manifest of test twice, `test_noisy.jsonl` and `test_clean.jsonl` in place of
            `test.jsonl`: the same mixtures with and without their noise.
        seed: of splits, choices, crops and gains.

    Raises:
        UserError: no recordings, fewer speakers than a mixture needs, or an argument out of range.
    """
    out = Path(out)
    sizes = (speakers,) if isinstance(speakers, int) else tuple(speakers)
    fewest = min(dev_mixtures, test_mixtures, 1 if train_mixtures is None else train_mixtures)
    _check(sizes, sample_rate, segment_seconds, fewest, noise_snr_db)
    patterns = _parse_groups(groups)
    if train_group is not None and train_group not in patterns:
        raise UserError(
            f"--train-group {train_group}: expected a name in --groups ({', '.join(patterns) or 'none given'})"
        )
    if noisy_and_clean and noise is None:
        raise UserError("--noisy-and-clean: without --noise all mixtures are clean; give --noise DIR")
    check_writable(out)
    recordings, skipped = _collect(speech, kaldi, speaker_from)
    recordings = _with_sexes(recordings, speaker_info, speech)
    utterances, unusable = examine(recordings, sample_rate)
    skipped |= unusable
    if not utterances:
        raise UserError(
            f"{speech or kaldi}: none of {len(recordings)} recordings can be used: {next(iter(unusable.values()))}"
        )
    splits, outside = _divide(utterances, max(sizes), seed)
    if train_group is not None:
        for name in ("train", "dev"):
            if name in splits:
                splits[name] = _by_group(splits[name], patterns)[train_group]
    _check_speakers(splits, max(sizes))
    noise_files, unusable = ({}, {}) if noise is None else _divide_noise(Path(noise), splits, seed, sample_rate)
    skipped |= outside | unusable
    _print_found(splits, sample_rate, skipped, write_skipped(out, skipped))
    plan = _Plan(
        out=out,
        seed=seed,
        speakers=sizes,
        style=MixtureStyle(
            out, sample_rate, "folder", max(sizes), None, gain_range_db, (), (noise_snr_db[0], noise_snr_db[1])
        ),
        segment_samples=round(segment_seconds * sample_rate),
        counts={
            "train": train_mixtures or max(3000, len(splits.get("train", ()))),
            "dev": dev_mixtures,
            "test": test_mixtures,
        },
        groups=patterns,
        noise=noise_files,
        noisy_and_clean=noisy_and_clean,
    )
    # All are made before any is written: what the user has to mend leaves no half of a corpus behind.
    manifests = {name: entries for split in splits for name, entries in _make(split, splits[split], plan).items()}
    for name, entries in manifests.items():
        write_manifest(out / f"{name}.jsonl", entries)
        print(f"{name}.jsonl: {_summary(entries)}")
    return out


def _check(
    speakers: Sequence[int], sample_rate: int, segment_seconds: float, fewest: int, noise_snr_db: Sequence[float]
) -> None:
    if not speakers or min(speakers) < 1 or len(set(speakers)) < len(speakers):
        raise UserError(f"--speakers {' '.join(map(str, speakers))}: expected one or more numbers from 1 up, each once")
    if sample_rate < 1:
        raise UserError(f"--sample-rate {sample_rate}: expected a rate in Hz, such as 8000")
    if not segment_seconds * sample_rate >= 1:
        raise UserError(f"--segment-seconds {segment_seconds}: expected more than 0")
    if fewest < 1:
        raise UserError(f"found {fewest} mixtures asked for, expected at least 1 each of train, dev and test")
    if len(noise_snr_db) != 2 or not noise_snr_db[0] <= noise_snr_db[1]:
        raise UserError(f"--noise-snr-db {noise_snr_db}: expected the lowest and the highest ratio, in dB")


def _parse_groups(groups: Sequence[str]) -> dict[str, re.Pattern[str]]:
    patterns: dict[str, re.Pattern[str]] = {}
    for group in groups:
        name, equals, pattern = group.partition("=")
        if not equals or not re.fullmatch(r"[\w.-]+", name) or name in patterns:
            raise UserError(f"--groups {group}: expected NAME=PATTERN, names of letters and digits, each once")
        try:
            patterns[name] = re.compile(pattern)
        except re.error as error:
            raise UserError(f"--groups {group}: not a regular expression ({error})") from None
    return patterns


def _collect(
    speech: str | Path | None, kaldi: str | Path | None, speaker_from: str
) -> tuple[list[Recording], dict[str, str]]:
    if (speech is None) == (kaldi is None):
        raise UserError("--speech and --kaldi: expected exactly one of them")
    if kaldi is not None:
        return read_kaldi(Path(kaldi))
    return find_recordings(Path(speech or ""), speaker_from)


def _with_sexes(
    recordings: list[Recording], speaker_info: str | Path | None, speech: str | Path | None
) -> list[Recording]:
    path = Path(speaker_info) if speaker_info else _find_speaker_file(speech)
    if path is None:
        return recordings
    sexes = read_speaker_sexes(path)
    return [replace(r, sex=r.sex or sexes.get(r.speaker)) for r in recordings]


def _find_speaker_file(speech: str | Path | None) -> Path | None:
    if speech is None:
        return None
    folder = Path(speech).resolve()
    return next((d / _SPEAKER_FILE for d in (folder, *folder.parents[:2]) if (d / _SPEAKER_FILE).is_file()), None)


Splits = dict[str, list[Utterance]]
Noise = dict[str, tuple[Path, ...]]


def _divide(utterances: Sequence[Utterance], speakers: int, seed: int) -> tuple[Splits, dict[str, str]]:
    """The utterances of each split, and with the reason those that lie outside the splits' folders."""
    named = sorted({utterance.recording.split for utterance in utterances if utterance.recording.split})
    splits: Splits = defaultdict(list)
    outside: dict[str, str] = {}
    for utterance in utterances:
        if utterance.recording.split or not named:
            splits[utterance.recording.split or "train"].append(utterance)
        else:
            path = str(utterance.recording.path)
            outside[path] = f"{path}: lies in none of the folders {', '.join(named)}"
    if "train" in splits:
        missing = [name for name in ("dev", "test") if name not in splits]
        splits |= hold_out_speakers(splits["train"], missing, speakers, seed)
        if missing:
            print(f"no folders called {' or '.join(missing)}: a tenth of the speakers each, by seed {seed}")
    return {name: splits[name] for name in SPLITS if name in splits}, outside


def _check_speakers(splits: Splits, speakers: int) -> None:
    """Refuses splits with too few speakers for a mixture, and warns of speakers in more than one."""
    for split, members in splits.items():
        found = sorted({utterance.speaker for utterance in members})
        if len(found) < speakers:
            raise UserError(
                f"{split}: found {len(found)} speaker(s) ({', '.join(found)}), expected at least {speakers} for "
                f"mixtures of {speakers}; give more speakers, fewer --speakers or another --speaker-from"
            )
    training = {utterance.speaker for utterance in splits.get("train", ())}
    for split in ("dev", "test"):
        shared = sorted(training & {utterance.speaker for utterance in splits.get(split, ())})
        if shared:
            print(
                f"warning: {len(shared)} speaker(s) of {split} are in train too ({', '.join(shared[:5])}): its scores "
                "are not those of unseen speakers",
                file=sys.stderr,
            )


def _divide_noise(folder: Path, splits: Splits, seed: int, sample_rate: int) -> tuple[Noise, dict[str, str]]:
    """Noise files of each split, by folder name as for speech or else by seed, and those left out with the reason."""
    files = [Recording(path, "", split_of(path.relative_to(folder))[0]) for path in find_audio_files(folder)]
    usable, unusable = examine(files, sample_rate)
    named: dict[str | None, list[Path]] = defaultdict(list)
    for noise in usable:
        named[noise.recording.split].append(noise.recording.path)
    if len(named) == 1 and None in named:
        for position, index in enumerate(np.random.default_rng([seed, 1]).permutation(len(usable))):
            named[{0: "dev", 1: "test"}.get(position % 10, "train")].append(named[None][index])
    for split in splits:
        if not named[split]:
            raise UserError(
                f"{folder}: no usable noise for {split}; expected a folder {split}, or no folders of splits and "
                "at least 3 files"
            )
    return {split: tuple(sorted(named[split])) for split in splits}, unusable


def _make(split: str, members: Sequence[Utterance], plan: _Plan) -> dict[str, list[MixtureEntry]]:
    """Name -> mixtures of the manifests of a split."""
    style = replace(plan.style, noise=plan.noise.get(split, ()))
    seeds = [plan.seed, 2 + SPLITS.index(split)]
    if split == "train":
        return {split: _draw(split, members, plan, style, seeds)}
    style = replace(style, segment_samples=plan.segment_samples)
    if split == "dev":
        return {split: _draw_crops(split, members, plan, style, seeds)}
    manifests = _make_tests(split, members, plan, style, seeds)
    if not plan.noisy_and_clean:
        return manifests
    noisy = {f"{name}_noisy": entries for name, entries in manifests.items()}
    clean = {f"{name}_clean": [_without_noise(entry) for entry in entries] for name, entries in manifests.items()}
    return noisy | clean


def _make_tests(
    split: str, members: Sequence[Utterance], plan: _Plan, style: MixtureStyle, seeds: Sequence[int]
) -> dict[str, list[MixtureEntry]]:
    """Name -> mixtures of the manifests of test: all of it, and of each group."""
    if not plan.groups:
        return {split: _draw_crops(split, members, plan, style, seeds)}
    manifests: dict[str, list[MixtureEntry]] = {split: []}
    for number, (name, part) in enumerate(_by_group(members, plan.groups).items()):
        label = f"{split}_{name}"
        entries = _draw_crops(label, part, plan, style, [*seeds, number], len(manifests[split]))
        manifests[label] = entries
        manifests[split] += entries
    return manifests


def _without_noise(entry: MixtureEntry) -> MixtureEntry:
    return replace(entry, noise=None, task="sep_clean")


def _by_group(members: Sequence[Utterance], groups: Mapping[str, re.Pattern[str]]) -> Splits:
    parts: Splits = {name: [] for name in groups}
    for utterance in members:
        name = next((name for name, pattern in groups.items() if pattern.fullmatch(utterance.speaker)), None)
        if name is not None:
            parts[name].append(utterance)
    return parts


def _draw_crops(
    label: str,
    members: Sequence[Utterance],
    plan: _Plan,
    style: MixtureStyle,
    seeds: Sequence[int],
    first_number: int = 0,
) -> list[MixtureEntry]:
    long_enough = [utterance for utterance in members if utterance.num_samples >= plan.segment_samples]
    found = len({utterance.speaker for utterance in long_enough})
    if found < style.speakers:
        seconds = plan.segment_samples / style.sample_rate
        raise UserError(
            f"{label}: {found} speaker(s) with recordings of at least {seconds:g} s, expected {style.speakers} or "
            "more; give a smaller --segment-seconds, or more speakers"
        )
    return _draw(label, long_enough, plan, style, seeds, first_number)


def _draw(
    label: str,
    members: Sequence[Utterance],
    plan: _Plan,
    style: MixtureStyle,
    seeds: Sequence[int],
    first_number: int = 0,
) -> list[MixtureEntry]:
    count = plan.counts[label.partition("_")[0]]
    if len(plan.speakers) == 1:
        entries = draw_mixtures(members, count, style, np.random.default_rng(seeds), first_number)
    else:
        entries = draw_mixtures_of_several_sizes(members, count, plan.speakers, style, seeds, first_number)
    if not entries:
        raise UserError(f"{label}: no mixtures can be made of its recordings; give more speakers")
    return entries


def _print_found(splits: Splits, sample_rate: int, skipped: Mapping[str, str], listed: Path | None) -> None:
    for split, members in splits.items():
        sexes = Counter({u.speaker: u.recording.sex for u in members}.values())
        known = f" ({sexes['F']} F, {sexes['M']} M)" if sexes["F"] + sexes["M"] else ""
        hours = sum(utterance.num_samples for utterance in members) / sample_rate / 3600
        print(f"{split}: {sum(sexes.values())} speakers{known}, {len(members)} recordings, {hours:.2f} h")
    slower = [u for members in splits.values() for u in members if u.file_sample_rate < sample_rate]
    if slower:
        print(
            f"warning: {len(slower)} recording(s) have less than {sample_rate} Hz, so nothing in the upper band "
            f"(the first: {slower[0].recording.path} at {slower[0].file_sample_rate} Hz)",
            file=sys.stderr,
        )
    if listed is not None:
        print(
            f"warning: {len(skipped)} file(s) left out, listed in {listed}; the first: {next(iter(skipped.values()))}",
            file=sys.stderr,
        )


def _summary(entries: Sequence[MixtureEntry]) -> str:
    hours = sum(entry.duration_seconds for entry in entries) / 3600
    used = len({source.path for entry in entries for source in entry.sources})
    sizes = Counter(len(entry.sources) for entry in entries)
    of = "; ".join(f"{count} of {size}" for size, count in sorted(sizes.items()))
    mixtures = f"{len(entries)} mixtures" + (f" of {next(iter(sizes))}" if len(sizes) == 1 else f" ({of})")
    return f"{mixtures}, {hours:.2f} h, from {used} recordings"
