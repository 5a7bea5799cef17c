"""VCTK-2mix: mixtures of two readers of VCTK in the test noise of WHAM, a test set unlike the usual training sets.

What it is: 3,000 mixtures (9 h) of 108 speakers with British, American and other accents, at 8 or 16 kHz, "min" or
"max", as mix_clean, mix_both and mix_single: the test set for models trained on WSJ0-mix or LibriMix.
Size: VCTK 0.80 11 GB, WHAM noise 18 GB; the utterances that occur, cut and at 16 kHz, 0.6 GB.
License: VCTK 0.80 ODC-By 1.0, WHAM noise CC BY-NC 4.0, the metadata MIT.
Traps: it is made of VCTK 0.80 (`wav48/`, one microphone), not of 0.92 (`wav48_silence_trimmed/`, two). Only silence at
the beginning of an utterance is cut, and samples are rounded downwards to PCM16 before mixing and again after. Speaker
p280, who has no entry in the speaker table, does not occur. Noise is read as far as the longest source, as in LibriMix,
but never extended: shorter noise ends before a "max" mixture does, and cuts a "min" mixture.
Citation: Yamagishi, Veaux, MacDonald, "CSTR VCTK Corpus", University of Edinburgh, 2019; Cosentino et al., "LibriMix",
arXiv:2005.11262, 2020; Wichern et al., "WHAM!", Interspeech 2019.
"""

from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np

from sepkit.corpora._metadata import SOURCE_RATE, Layout, Part, find_tables, prepare_parts, read_table
from sepkit.corpora._recordings import corpus_root
from sepkit.corpora._verify import check_whole
from sepkit.corpora.options import VCTK2MixOptions, check_variant
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.files import check_writable, file_text
from sepkit.parallel import Failed, for_each

_PREFIX = "VCTK2mix_"
_CUT_FOLDER = "wav16_cut"
_RATE = 48000
_SILENCE_DB = 20
_FRAME, _HOP = 2048, 512
_LEAST_POWER = 1e-10


def prepare_vctk2mix(options: VCTK2MixOptions) -> Path:
    """Write `test.jsonl` (mix_clean), `test_noisy.jsonl` and `test_single.jsonl`; return their folder.

    The utterances that occur are cut and resampled to 16 kHz in `out/wav16_cut`, also if mixtures are not written.
    Failures are listed in `skipped.tsv`; the same call again makes missing ones.
    """
    check_variant(options)
    out, metadata, processes = Path(options.out), Path(options.metadata), options.processes
    check_writable(out)
    vctk = Path(options.vctk)
    if (vctk / "wav48_silence_trimmed").is_dir() and not (vctk / "wav48").is_dir():
        raise UserError(f"{vctk}: VCTK 0.92 (wav48_silence_trimmed/), expected 0.80 (wav48/): get VCTK-Corpus.zip")
    corpus = corpus_root(vctk, ("VCTK-Corpus", "VCTK-Corpus/VCTK-Corpus"), ("wav48",))
    noise = corpus_root(Path(options.wham_noise), ("wham_noise",), ("tt",))
    originals: dict[str, list[Path]] = defaultdict(list)
    for path in audio.find_audio_files(corpus / "wav48"):
        originals[f"{path.stem}.wav"].append(path)
    info = corpus / "speaker-info.txt"
    rows = [line.split() for line in file_text(info, errors="replace").splitlines()[1:]] if info.is_file() else []
    sexes = {"p" + row[0].lstrip("p"): row[2] for row in rows if len(row) > 2 and row[2] in ("F", "M")}
    skipped: dict[str, str] = {}
    parts: list[Part] = []
    for name, table in find_tables(metadata, _PREFIX, ("VCTK-2mix", "metadata/VCTK-2mix")).items():
        recipes, bad = read_table(table, 2)
        skipped |= bad
        expected = len(recipes) + len(bad)
        paths = sorted({path for recipe in recipes for path in recipe.sources})
        jobs = [(path, tuple(originals.get(Path(path).name, ()))) for path in paths if not (out / path).is_file()]
        results = for_each(partial(_cut, out=out), jobs, processes, "cutting")
        failed = {path: result.reason for (path, _), result in results if isinstance(result, Failed)}
        for recipe in recipes:
            reason = next((failed[path] for path in recipe.sources if path in failed), None)
            if reason is not None:
                skipped[f"{name}/{recipe.id}"] = reason
        recipes = [recipe for recipe in recipes if not any(path in failed for path in recipe.sources)]
        parts.append(Part(name, "test", recipes, expected))
    layout = Layout(
        "vctk-2mix", "VCTK2Mix", out, noise, out, options.sample_rate, options.mode, extend_noise=False, sexes=sexes
    )
    prepare_parts(parts, layout, skipped, options.write, processes)
    return out


def _cut(job: tuple[str, tuple[Path, ...]], out: Path) -> None:
    """Make `out/PATH` of the original; the job is the path, and the originals of its name."""
    path, found = job
    if Path(path).parent != Path(_CUT_FOLDER):
        raise UserError(f"{path}: expected a path like {_CUT_FOLDER}/p225_001.wav in the metadata")
    if len(found) != 1:
        what = f"two files of that name ({found[0]}, {found[1]})" if found else "no such file in wav48/"
        raise UserError(f"{Path(path).name}: {what}; expected one")
    header = check_whole(found[0])
    if header.sample_rate != _RATE:
        raise UserError(f"{found[0]}: {header.sample_rate} Hz, expected {_RATE}; it is not that of VCTK 0.80")
    waveform = audio.read(found[0]).astype(np.float64)
    cut = audio.resample(waveform[first_sound(waveform) :], _RATE, SOURCE_RATE, "scipy_poly")
    audio.write(out / path, cut, SOURCE_RATE, "PCM_16", "floor")


def first_sound(waveform: np.ndarray) -> int:
    """Return the first sample of the first frame within 20 dB of the loudest, where the scripts cut.

    That is the beginning of the first interval of `librosa.effects.split(waveform, top_db=20)`, librosa 0.10 and later:
    frames of 2048 samples every 512, the first centered on sample 0, zeros outside.
    """
    padded = np.pad(waveform.astype(np.float32), _FRAME // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[::_HOP]
    power = np.maximum(np.square(frames).mean(axis=1), _LEAST_POWER)
    loud = 10 * np.log10(power) - 10 * np.log10(power.max()) > -_SILENCE_DB
    return min(int(np.argmax(loud)) * _HOP, len(waveform))
