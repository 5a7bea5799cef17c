"""LibriMix: mixtures of two or three readers of LibriSpeech, in the noise of WHAM.

What it is: Libri2Mix and Libri3Mix, each with train-360 (50,800 mixtures of two, 212 h), train-100 (13,900, 58 h), dev
and test (3,000, 11 h each), at 8 or 16 kHz, cut to the shortest utterance ("min") or padded to the longest ("max"), as
mix_clean, mix_both (with noise) and mix_single (the first speaker with noise).
Size: LibriSpeech's clean parts 30 GB, WHAM noise 18 GB; written out, all variants together take 430 GB (two speakers)
and 332 GB (three). Descriptions take some MB, and the mixtures made from them while training are the same in every bit
before they are rounded to 16 bits.
License: LibriSpeech CC BY 4.0, WHAM noise CC BY-NC 4.0, the metadata MIT.
Traps: mixtures are written to PCM16 rounded downwards, so a mixture differs from the sum of its written sources by up
to two steps, and loud samples saturate. "Shortest" and "longest" include the noise, also for mix_clean. Noise named
*sp08 and *sp12 (only in train-360) was made with sox; where it is absent it is made here, and its samples differ a
little. Metadata made anew (`make_metadata`) give another corpus than the published one.
Citation: Cosentino, Pariente, Cornell, Deleforge, Vincent, "LibriMix: An Open-Source Dataset for Generalizable Speech
Separation", arXiv:2005.11262, 2020; Panayotov, Chen, Povey, Khudanpur, "LibriSpeech", ICASSP 2015; Wichern et al.,
"WHAM!: Extending Speech Separation to Noisy Environments", Interspeech 2019.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from sepkit.corpora._loudness_draws import Draws, Spoken, combine, list_recordings, write_new_tables
from sepkit.corpora._metadata_mixing import SOURCE_RATE, Layout, Part, prepare_parts, speaker_of
from sepkit.corpora._metadata_tables import Recipe, find_tables, read_info, read_table
from sepkit.corpora._recordings import SPLITS, check_writable, find_audio_files, read_speaker_sexes, split_of
from sepkit.corpora.options import LibriMixOptions, check_variant
from sepkit.corpora.sharding import shard_folder
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.parallel import Failed, for_each

_NOISE_FOLDERS = {"train": "tr", "dev": "cv", "test": "tt"}
_SPEEDS = {"sp08": 0.8, "sp12": 1.2}
_AT_SPEED = re.compile(r"(sp08|sp12)(?=\.\w+$)")
_SEED = 72
_HELD_OUT_MIXTURES = 3000


def prepare_librimix(options: LibriMixOptions) -> Path:
    """Write the manifests and return their folder.

    `train.jsonl`, `dev.jsonl` and `test.jsonl` hold mix_clean; `train_noisy.jsonl` and so on hold mix_both,
    `train_single.jsonl` and so on mix_single. If there are several training sets, each also has manifests of its own.

    Mixtures that cannot be made are listed in `skipped.tsv`; `verification.json` describes the result. The same call
    again makes what is missing.

    Args:
        options: the folders of the corpora and of the tables, and which variant is made.

    Raises:
        UserError: a folder or table is missing or is something else, no mixture can be made, or the disk is full.
    """
    speakers, processes = options.speakers, options.processes
    check_variant(range(2, 10), speakers, options.sample_rate, options.mode)
    out, metadata = Path(options.out), Path(options.metadata)
    check_writable(out)
    speech = _root(Path(options.librispeech), ("LibriSpeech",), ("train", "dev", "test"))
    noise = _root(Path(options.wham_noise), ("wham_noise",), ("tr", "cv", "tt"))
    skipped: dict[str, str] = {}
    prefix, nested = f"libri{speakers}mix_", (f"Libri{speakers}Mix", f"metadata/Libri{speakers}Mix")
    if options.make_metadata:
        _make_tables(speech, noise, metadata, prefix, speakers, out, skipped, processes)
    layout = Layout(
        "librimix", f"Libri{speakers}Mix", speech, noise, out, options.sample_rate, options.mode, extend_noise=True
    )
    sexes = _sexes(speech)
    parts: list[Part] = []
    for name, table in find_tables(metadata, prefix, nested).items():
        split, _ = split_of(Path(name, "x"))
        if split is None:
            raise UserError(
                f"{table}: expected a name that goes on with train, dev or test, like {prefix}dev-clean.csv"
            )
        recipes, bad = read_table(table, speakers)
        skipped |= bad
        people = read_info(table.with_name(f"{table.stem}_info.csv"), speakers)
        people = people or {r.id: [(s := speaker_of(path), sexes.get(s)) for path in r.sources] for r in recipes}
        recipes = _with_noise(recipes, noise, out, skipped, processes)
        parts.append(Part(name.replace("-clean", ""), split, recipes, len(recipes) + len(bad), people))
    prepare_parts(parts, layout, skipped, options.write, processes)
    return shard_folder(out, processes) if options.shards else out


def _root(folder: Path, nested: Sequence[str], holds: Sequence[str]) -> Path:
    """Return the folder, or one nested in it, that holds folders whose names begin with `holds`."""
    for candidate in (folder, *(folder / name for name in nested)):
        if candidate.is_dir() and any(
            path.is_dir() and path.name.startswith(tuple(holds)) for path in candidate.iterdir()
        ):
            return candidate
    found = "holds none" if folder.is_dir() else "no such folder"
    raise UserError(f"{folder}: {found}; expected a folder that holds {', '.join(f'{name}.../' for name in holds)}")


def _sexes(speech: Path) -> dict[str, str]:
    path = speech / "SPEAKERS.TXT"
    return read_speaker_sexes(path) if path.is_file() else {}


def _with_noise(
    recipes: Sequence[Recipe], noise: Path, out: Path, skipped: dict[str, str], processes: int | None
) -> list[Recipe]:
    """Return the recipes, with missing noise at other speeds made below `out`."""
    absent = sorted({r.noise for r in recipes if _AT_SPEED.search(r.noise) and not (noise / r.noise).is_file()})
    made = _change_speeds(absent, noise, out, processes)
    if made:
        print(
            f"warning: {len(made)} noises at other speeds are not in {noise} and are taken from {out / 'wham_noise'}: "
            "their samples differ a little from those of sox, and mixtures with them from the official ones",
            file=sys.stderr,
        )
    return [replace(recipe, noise=made.get(recipe.noise, recipe.noise)) for recipe in recipes]


def _change_speeds(names: Sequence[str], noise: Path, out: Path, processes: int | None) -> dict[str, str]:
    """Return name -> absolute path of each noise at another speed that could be made; others fail later."""
    folder = (out / "wham_noise").absolute()
    made: dict[str, str] = {}
    for name, result in for_each(
        partial(_change_speed, noise=noise, folder=folder), names, processes, "noise at speed"
    ):
        if not isinstance(result, Failed):
            made[name] = result
    return made


def _change_speed(name: str, noise: Path, folder: Path) -> str:
    path = folder / name
    if not path.is_file():
        speed = _AT_SPEED.findall(name)[0]
        waveform = audio.read(noise / _AT_SPEED.sub("", name), channel=0)
        faster = audio.resample(waveform, round(SOURCE_RATE * _SPEEDS[speed]), SOURCE_RATE)
        audio.write(path, faster, SOURCE_RATE, "PCM_16", "floor")
    return str(path)


def _make_tables(
    speech: Path,
    noise: Path,
    metadata: Path,
    prefix: str,
    speakers: int,
    out: Path,
    skipped: dict[str, str],
    processes: int | None,
) -> None:
    """Make the table of each folder of speech that has none. Each table's draws start from the same seed."""
    sexes = _sexes(speech)
    for folder in sorted(path for path in speech.iterdir() if path.is_dir()):
        split, _ = split_of(Path(folder.name, "x"))
        table = metadata / f"{prefix}{folder.name}.csv"
        if split not in SPLITS or table.is_file():
            continue
        try:
            _make_table(table, speech, noise, folder.name, speakers, sexes, out, skipped, processes)
        except UserError as error:
            skipped[str(table)] = str(error)
    if skipped and not any(metadata.glob(f"{prefix}*.csv")):
        raise UserError(f"{speech}: no table can be made of it: {next(iter(skipped.values()))}")


def _make_table(
    table: Path,
    speech: Path,
    noise: Path,
    folder: str,
    speakers: int,
    sexes: Mapping[str, str],
    out: Path,
    skipped: dict[str, str],
    processes: int | None,
) -> None:
    split, _ = split_of(Path(folder, "x"))
    utterances = [
        Spoken(path.as_posix(), length, speaker := speaker_of(path.as_posix()), sexes.get(speaker))
        for path, length in list_recordings(speech, find_audio_files(speech / folder), skipped, processes)
    ]
    training = split == "train"
    noises, faster = _noises(noise, noise / _NOISE_FOLDERS[split or "train"], skipped, processes)
    random = Random(_SEED)
    draws = Draws(speakers, None if training else _HELD_OUT_MIXTURES, again=not training, longest_noise=training)
    combinations = combine(utterances, noises, faster if training else [], draws, random)
    absent = sorted({n.path for _, n in combinations if not (noise / n.path).is_file()})
    made = _change_speeds(absent, noise, out, processes)
    count = write_new_tables(table, combinations, speech, noise, random, skipped, processes, made)
    print(f"{table}: {count} mixtures of {len(utterances)} utterances and {len(noises)} noises, seed {_SEED}")


def _noises(
    noise: Path, folder: Path, skipped: dict[str, str], processes: int | None
) -> tuple[list[Spoken], list[Spoken]]:
    """Return the noises of a folder, and those at other speeds, whether they exist or could be made."""
    listed = list_recordings(noise, find_audio_files(folder), skipped, processes)
    found = [Spoken(path.as_posix(), length) for path, length in listed]
    plain = [spoken for spoken in found if not _AT_SPEED.search(spoken.path)]
    if not plain:
        raise UserError(f"{folder}: no noise of at least 3 s at {SOURCE_RATE} Hz; expected that of WHAM")
    there = {spoken.path: spoken for spoken in found}
    faster: list[Spoken] = []
    for spoken in plain:
        for tag, speed in _SPEEDS.items():
            path = str(Path(spoken.path).with_suffix("")) + tag + Path(spoken.path).suffix
            length = audio.resampled_length(spoken.num_samples, round(SOURCE_RATE * speed), SOURCE_RATE)
            faster.append(there.get(path, Spoken(path, length)))
    return plain, [spoken for spoken in faster if spoken.num_samples >= 3 * SOURCE_RATE]
