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
little.
Citation: Cosentino, Pariente, Cornell, Deleforge, Vincent, "LibriMix: An Open-Source Dataset for Generalizable Speech
Separation", arXiv:2005.11262, 2020; Panayotov, Chen, Povey, Khudanpur, "LibriSpeech", ICASSP 2015; Wichern et al.,
"WHAM!: Extending Speech Separation to Noisy Environments", Interspeech 2019.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sepkit.corpora._metadata import SOURCE_RATE, Layout, Part, Recipe, find_tables, prepare_parts, read_table
from sepkit.corpora._recordings import corpus_root, speaker_sexes, split_of
from sepkit.corpora.options import LibriMixOptions, check_variant
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.files import check_writable
from sepkit.parallel import Failed, for_each

_SPEEDS = {"sp08": 0.8, "sp12": 1.2}
_AT_SPEED = re.compile(r"(sp08|sp12)(?=\.\w+$)")


def prepare_librimix(options: LibriMixOptions) -> Path:
    """Write the manifests and return their folder.

    `train.jsonl`, `dev.jsonl` and `test.jsonl` hold mix_clean; `train_noisy.jsonl` and so on hold mix_both,
    `train_single.jsonl` and so on mix_single. If there are several training sets, each also has manifests of its own.

    Mixtures that cannot be made are listed in `skipped.tsv`; `verification.json` describes the result. The same call
    again makes what is missing.
    """
    speakers, processes = options.speakers, options.processes
    check_variant(options)
    out, metadata = Path(options.out), Path(options.metadata)
    check_writable(out)
    speech = corpus_root(Path(options.librispeech), ("LibriSpeech",), ("train", "dev", "test"))
    noise = corpus_root(Path(options.wham_noise), ("wham_noise",), ("tr", "cv", "tt"))
    skipped: dict[str, str] = {}
    prefix, nested = f"libri{speakers}mix_", (f"Libri{speakers}Mix", f"metadata/Libri{speakers}Mix")
    sexes = speaker_sexes(speech)
    tree = f"Libri{speakers}Mix"
    layout = Layout(
        "librimix", tree, speech, noise, out, options.sample_rate, options.mode, extend_noise=True, sexes=sexes
    )
    parts: list[Part] = []
    for name, table in find_tables(metadata, prefix, nested).items():
        split, _ = split_of(Path(name, "x"))
        if split is None:
            raise UserError(f"{table}: expected a name that goes on with train, dev or test, as {prefix}dev-clean.csv")
        recipes, bad = read_table(table, speakers)
        skipped |= bad
        recipes = _with_noise(recipes, noise, out, processes)
        parts.append(Part(name.replace("-clean", ""), split, recipes, len(recipes) + len(bad)))
    prepare_parts(parts, layout, skipped, options.write, processes)
    return out


def _with_noise(recipes: Sequence[Recipe], noise: Path, out: Path, processes: int | None) -> list[Recipe]:
    """Return the recipes, with missing noise at other speeds made below `out`."""
    absent = sorted({r.noise for r in recipes if _AT_SPEED.search(r.noise) and not (noise / r.noise).is_file()})
    # What cannot be made fails later.
    work = partial(_change_speed, noise=noise, folder=(out / "wham_noise").absolute())
    results = for_each(work, absent, processes, "noise at speed")
    made = {name: result for name, result in results if not isinstance(result, Failed)}
    if made:
        print(
            f"warning: {len(made)} noises at other speeds are not in {noise} and are taken from {out / 'wham_noise'}: "
            "their samples differ a little from those of sox, and mixtures with them from the official ones",
            file=sys.stderr,
        )
    return [replace(recipe, noise=made.get(recipe.noise, recipe.noise)) for recipe in recipes]


def _change_speed(name: str, noise: Path, folder: Path) -> str:
    path = folder / name
    if not path.is_file():
        speed = _AT_SPEED.findall(name)[0]
        waveform = audio.read(noise / _AT_SPEED.sub("", name), channel=0)
        faster = audio.resample(waveform, round(SOURCE_RATE * _SPEEDS[speed]), SOURCE_RATE)
        audio.write(path, faster, SOURCE_RATE, "PCM_16", "floor")
    return str(path)
