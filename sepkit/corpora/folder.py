"""Any tree of single-speaker recordings.

What it is: your own recordings, one speaker per file, any format of libsndfile, any sample rate. Folders
called train, dev and test (or like "train-clean-100") are the splits; without them the speakers are divided 80/10/10.
Traps: a speaker in two splits makes scores look better than they are (a warning says so). A wrong `speaker_from` puts
one speaker into a mixture twice; check the printed number of speakers.
"""

import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sepkit.choices import check_bounds
from sepkit.corpora._mixtures import MixtureStyle, draw_mixtures, draw_mixtures_of_several_sizes, summary
from sepkit.corpora._recordings import (
    SPLITS,
    Recording,
    Utterance,
    examine,
    find_recordings,
    hold_out_speakers,
    report_skipped,
    speaker_sexes,
    split_of,
)
from sepkit.corpora.kaldi import read_kaldi
from sepkit.corpora.options import FolderOptions
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, write_manifest
from sepkit.errors import UserError
from sepkit.files import check_writable


def prepare_folder(options: FolderOptions) -> Path:
    """Write `train.jsonl`, `dev.jsonl`, `test.jsonl`, and `test_GROUP.jsonl` for each group; return their folder.

    Mixtures are described, not written. All are in min mode, each source at -30 dB re full scale (the level
    during speech) plus a gain that is uniform in +-`gain_range_db`. Those of dev and test are crops of
    `segment_seconds` and do not depend on what is in train; those of train are as long as their shortest utterance,
    and every utterance occurs. With several numbers of `speakers`, mixtures take turns, and those of one number do not
    depend on the others. A speaker belongs to the first group whose pattern matches. Recordings at other rates are
    resampled as they are read. Files that cannot be used are listed in `skipped.tsv`.
    """
    out, sample_rate, most_speakers = Path(options.out), options.sample_rate, max(options.speakers, default=0)
    check_bounds(options)
    if not options.speakers or len(set(options.speakers)) < len(options.speakers):
        raise UserError(f"--speakers {' '.join(map(str, options.speakers))}: expected one or more numbers, each once")
    low, high = options.noise_snr_db
    if not -math.inf < low <= high < math.inf:
        raise UserError(f"--noise-snr-db: found {low:g} and {high:g}, expected two finite numbers, the lower one first")
    patterns = _parse_groups(options.groups or ())
    train_group = options.train_group
    if train_group is not None and train_group not in patterns:
        known = ", ".join(patterns) or "none given"
        raise UserError(f"--train-group {train_group}: expected a name in --groups ({known})")
    if options.noisy_and_clean and options.noise is None:
        raise UserError("--noisy-and-clean: without --noise all mixtures are clean; give --noise DIR")
    check_writable(out)
    if (options.speech is None) == (options.kaldi is None):
        raise UserError("--speech and --kaldi: expected exactly one of them")
    if options.speech is None:
        recordings, skipped = read_kaldi(Path(options.kaldi or ""))
    else:
        recordings, skipped = find_recordings(Path(options.speech), options.speaker_from)
        sexes = speaker_sexes(Path(options.speech))
        recordings = [replace(one, sex=one.sex or sexes.get(one.speaker)) for one in recordings]
    utterances, unusable = examine(recordings, sample_rate)
    skipped |= unusable
    if not utterances:
        where, reason = options.speech or options.kaldi, next(iter(unusable.values()))
        raise UserError(f"{where}: none of {len(recordings)} recordings can be used: {reason}")
    splits, outside = _divide(utterances, most_speakers, options.seed)
    if train_group is not None:
        for name in ("train", "dev"):
            if name in splits:
                splits[name] = _by_group(splits[name], patterns)[train_group]
    _check_speakers(splits, most_speakers)
    noise_files, unusable = ({}, {}) if options.noise is None else _divide_noise(options, splits)
    skipped |= outside | unusable
    _print_found(splits, sample_rate)
    report_skipped(out, skipped)
    style = MixtureStyle(out, sample_rate, "folder", most_speakers, None, options.gain_range_db)
    manifests: dict[str, list[MixtureEntry]] = {}
    # All manifests are made before any is written, so that a user's mistake leaves no half of a corpus behind.
    for split, members in splits.items():
        of_split = replace(style, noise=noise_files.get(split, ()), noise_snr_db=options.noise_snr_db)
        manifests |= _make(split, members, options, patterns, of_split)
    for name, entries in manifests.items():
        write_manifest(out / f"{name}.jsonl", entries)
        print(f"{name}.jsonl: {summary(entries)}")
    return out


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


Splits = dict[str, list[Utterance]]
Noise = dict[str, tuple[Path, ...]]


def _divide(utterances: Sequence[Utterance], speakers: int, seed: int) -> tuple[Splits, dict[str, str]]:
    """Return the utterances of each split, and with the reason those that lie outside the splits' folders."""
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
    """Refuse splits with too few speakers for a mixture, and warn of speakers in more than one."""
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


def _divide_noise(options: FolderOptions, splits: Splits) -> tuple[Noise, dict[str, str]]:
    """Return the noise files of each split, by folder name as for speech or else by seed, and those left out."""
    folder = Path(options.noise or "")
    files = [Recording(path, "", split_of(path.relative_to(folder))[0]) for path in audio.find_audio_files(folder)]
    usable, unusable = examine(files, options.sample_rate)
    named: dict[str | None, list[Path]] = defaultdict(list)
    for noise in usable:
        named[noise.recording.split].append(noise.recording.path)
    if len(named) == 1 and None in named:
        for position, index in enumerate(np.random.default_rng([options.seed, 1]).permutation(len(usable))):
            named[{0: "dev", 1: "test"}.get(position % 10, "train")].append(named[None][index])
    for split in splits:
        if not named[split]:
            raise UserError(
                f"{folder}: no usable noise for {split}; expected a folder {split}, or no folders of splits and "
                "at least 3 files"
            )
    return {split: tuple(sorted(named[split])) for split in splits}, unusable


def _make(
    split: str,
    members: Sequence[Utterance],
    options: FolderOptions,
    groups: Mapping[str, re.Pattern[str]],
    style: MixtureStyle,
) -> dict[str, list[MixtureEntry]]:
    """Return the manifests of a split by name; with groups, that of test has the mixtures of all groups."""
    seeds = [options.seed, 2 + SPLITS.index(split)]
    if split != "train":
        style = replace(style, segment_samples=round(options.segment_seconds * style.sample_rate))
    if split != "test":
        return {split: _draw(split, members, options, style, seeds)}
    manifests: dict[str, list[MixtureEntry]] = {split: []}
    for number, (name, part) in enumerate(_by_group(members, groups).items()):
        label = f"{split}_{name}"
        manifests[label] = _draw(label, part, options, style, [*seeds, number], len(manifests[split]))
        manifests[split] += manifests[label]
    if not groups:
        manifests[split] = _draw(split, members, options, style, seeds)
    if not options.noisy_and_clean:
        return manifests
    noisy = {f"{name}_noisy": entries for name, entries in manifests.items()}
    return noisy | {
        f"{name}_clean": [replace(entry, noise=None, task="sep_clean") for entry in entries]
        for name, entries in manifests.items()
    }


def _by_group(members: Sequence[Utterance], groups: Mapping[str, re.Pattern[str]]) -> Splits:
    parts: Splits = {name: [] for name in groups}
    for utterance in members:
        name = next((name for name, pattern in groups.items() if pattern.fullmatch(utterance.speaker)), None)
        if name is not None:
            parts[name].append(utterance)
    return parts


def _draw(
    label: str,
    members: Sequence[Utterance],
    options: FolderOptions,
    style: MixtureStyle,
    seeds: Sequence[int],
    first_number: int = 0,
) -> list[MixtureEntry]:
    """Return as many mixtures as the options say, of utterances that are long enough."""
    members = [utterance for utterance in members if utterance.num_samples >= (style.segment_samples or 1)]
    if (found := len({utterance.speaker for utterance in members})) < style.speakers:
        raise UserError(
            f"{label}: {found} speaker(s) with recordings of at least {options.segment_seconds:g} s, "
            f"expected {style.speakers} or more; give a smaller --segment-seconds, or more speakers"
        )
    count = getattr(options, f"{label.partition('_')[0]}_mixtures")
    count = max(3000, len(members)) if count is None else count
    if len(options.speakers) == 1:
        entries = draw_mixtures(members, count, style, np.random.default_rng(seeds), first_number)
    else:
        entries = draw_mixtures_of_several_sizes(members, count, options.speakers, style, seeds, first_number)
    if not entries:
        raise UserError(f"{label}: no mixtures can be made of its recordings; give more speakers")
    return entries


def _print_found(splits: Splits, sample_rate: int) -> None:
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
