"""WSJ0-mix: mixtures of 2 to 5 readers of the Wall Street Journal, the benchmark of the field since 2016.

What it is: 20,000 training, 5,000 validation and 3,000 test mixtures of utterances of WSJ0 at relative levels of up to
+-2.5 dB re each other's active speech level, without noise. `tr` and `cv` are of the 101 speakers of si_tr_s, `tt` of
18 others (si_dt_05, si_et_05). Rates 8 and 16 kHz; "min" cuts to the shortest source, "max" pads to the longest.
Size: at 8 kHz in min mode, 2 speakers, about 45 h (30, 10 and 5): some 8 GB when written, nothing when described.
License: WSJ0 is licensed by the LDC (LDC93S6A, CSR-I WSJ0 Complete) and cannot be downloaded; the lists and the table
of active levels are free text (directory `metadata` of the public Python port, github.com/mpariente/pywsj0-mix).

    --wsj0    the folder `wsj0` with si_tr_s, si_dt_05, si_et_05 (or the folder above it), as wav, flac or sphere
    --lists   mix_2_spk_tr.txt, mix_2_spk_cv.txt, mix_2_spk_tt.txt ..., and activlev/*.txt if there are any

Limits: levels come from the published tables; without them they are measured here by ITU-T P.56, with the filter that
the tables were made with, but not with the same code. The samples are those of the Python port, which agrees with the
MATLAB original to about 70 dB; the names of 2 and 3 speakers may have a digit fewer than MATLAB's.
Traps:
- Each sentence was recorded by two microphones at once: .wv1 (close) and .wv2 (far). The benchmark is wv1; results
  from wv2 are 1 to 4 dB lower. wv2 is refused, and levels that do not fit the table give a warning.
- `cv` has the speakers of `tr`: it validates, but does not measure performance on unseen speakers. `tt` does.
- The lists of 4 and 5 speakers hold mixtures in which a speaker occurs twice.
- "min" and "max" mixtures differ in level: the peak that is scaled to 0.9 is taken after cutting.
- Two versions of the level tables exist (activlev_tr.txt, activlev_si_tr_s.txt), 0.004 dB apart: keep one.

Citation: Hershey, Chen, Le Roux, Watanabe: Deep clustering: Discriminative embeddings for segmentation and separation,
ICASSP 2016 (2 speakers); Isik et al., Interspeech 2016 (3); Nachmani, Adi, Wolf, ICML 2020 (4 and 5).
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sepkit.corpora._mixtures import manifest_path
from sepkit.corpora._recordings import report_skipped
from sepkit.corpora._verify import verify
from sepkit.corpora._wsj0_inputs import CONDITIONS, WSJ0_RATE, Line, Recording, find_recordings, read_levels, read_lists
from sepkit.corpora.options import Mode, WSJ0MixOptions, check_variant
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry, read_manifest, write_manifest
from sepkit.errors import UserError
from sepkit.files import check_writable, file_text, parse_json, remove, write_json
from sepkit.parallel import Failed, for_each

_PEAK = 0.9
_STAMPS = "wsj0-mix.json"


@dataclass(frozen=True)
class _Plan:
    out: Path
    condition: str
    speakers: int
    sample_rate: int
    mode: Mode
    write: bool
    fingerprint: str

    @property
    def tree(self) -> Path:
        return Path(f"{self.speakers}speakers", f"wav{self.sample_rate // 1000}k", self.mode, self.condition)

    @property
    def manifest(self) -> Path:
        return self.out / f"{CONDITIONS[self.condition]}.jsonl"


def prepare_wsj0_mix(options: WSJ0MixOptions) -> Path:
    """Write the manifests `train.jsonl`, `dev.jsonl` and `test.jsonl`, for each list that exists; return their folder.

    With `write` also make the wavs, `out/2speakers/wav8k/min/tr/{mix,s1,s2}/`, as the public Python port does, sample
    for sample. Without it, describe the mixtures, to be mixed on the fly: they equal the wavs to one PCM16 step. What
    cannot be made is listed in `skipped.tsv`. The same command again makes only what is missing.
    """
    out, lists, processes = Path(options.out), Path(options.lists), options.processes
    speakers, sample_rate, mode = options.speakers, options.sample_rate, options.mode
    check_variant(options)
    lines = read_lists(lists, speakers)
    table = read_levels(lists / "activlev")
    check_writable(out)
    skipped: dict[str, str] = {}
    recordings = find_recordings(Path(options.wsj0), lines, table, processes, skipped)
    plans = {
        condition: _Plan(out, condition, speakers, sample_rate, mode, options.write, _fingerprint(members, table))
        for condition, members in lines.items()
    }
    earlier = {condition: _earlier_entries(plan) for condition, plan in plans.items()}
    jobs: list[_Job] = []
    for condition, plan in plans.items():
        seen: dict[str, str] = {}
        for line in lines[condition]:
            found = [recordings[part.listed] for part in line.parts]
            usable = tuple(recording for recording in found if isinstance(recording, Recording))
            where = line.where
            if line.name in seen:
                skipped[where] = f"{where}: mixture {line.name} is that of {seen[line.name]} already; left out"
            elif len(usable) < len(found):
                skipped[where] = f"{where}: {next(reason for reason in found if isinstance(reason, str))}"
            else:
                jobs.append(_Job(plan, line, usable))
            seen.setdefault(line.name, where)
    entries: dict[_Job, MixtureEntry] = {}
    for job in jobs:
        entry = earlier[job.plan.condition].get(job.line.name)
        if entry is not None and [source.path for source in entry.sources] == job.paths:
            entries[job] = entry
    missing = [job for job in jobs if job not in entries]
    for job, result in for_each(_make, missing, processes, "writing" if options.write else "describing", "mixture"):
        if isinstance(result, Failed):
            skipped[job.line.where] = f"{job.line.where}: {result.reason}"
        else:
            entries[job] = result
    manifests: dict[str, list[MixtureEntry]] = {}
    for condition, plan in plans.items():
        made = [replace(entries[job], folder=out) for job in jobs if job.plan is plan and job in entries]
        manifests[CONDITIONS[condition]] = made
        if made:
            write_manifest(plan.manifest, made)
            stamp = "written" if plan.write else f"{plan.tree.as_posix()} {plan.fingerprint}"
            write_json(plan.out / _STAMPS, _stamps(plan) | {plan.manifest.name: stamp})
        else:
            remove(plan.manifest)
    failure = "" if any(manifests.values()) else f"{lists}: no mixture of its lists can be made"
    report_skipped(out, skipped, failure)
    expected = {CONDITIONS[condition]: len(members) for condition, members in lines.items()}
    verify(out, manifests, expected, rounding="nearest", may_share=("train", "dev"))
    return out


def mix_sources(
    sources: Sequence[np.ndarray], levels: Sequence[float], snrs_db: Sequence[float], mode: str
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the mixture (T,), its sources (m, T), both float64, and the gain that all were multiplied by; levels are
    powers.

    Each source is divided by the root of its level and multiplied by 10^(snr/20). If the mixture or a source then
    exceeds full scale, the largest sample is scaled to 0.9, else all are multiplied by 0.9.

    Args:
        mode: "min" cuts to the shortest, "max" pads with zeros to the longest, both before the peak is taken.

    Source: pywsj0-mix, generate_wsjmix.py (the order of the operations decides the last bit).
    """
    lengths = [len(source) for source in sources]
    scaled = np.zeros((len(sources), max(lengths)))
    for row, source, level, snr_db in zip(scaled, sources, levels, snrs_db, strict=True):
        row[: len(source)] = source
        row /= np.sqrt(level)
        row *= 10 ** (snr_db / 20)
    mixture = scaled.sum(axis=0)
    if mode == "min":
        scaled, mixture = scaled[:, : min(lengths)], mixture[: min(lengths)]
    divisor = max(1.0, float(np.abs(mixture).max()), float(np.abs(scaled).max())) / _PEAK
    return mixture / divisor, scaled / divisor, 1 / divisor


# ---------------------------------------------------------------------------------------------------------- mixtures


@dataclass(frozen=True)
class _Job:
    plan: _Plan
    line: Line
    recordings: tuple[Recording, ...]

    @property
    def paths(self) -> list[str]:
        return [manifest_path(recording.path, self.plan.out) for recording in self.recordings]


def _make(job: _Job) -> MixtureEntry:
    plan, parts, names = job.plan, job.line.parts, [f"s{number}" for number, _ in enumerate(job.recordings, start=1)]
    paths = {name: plan.tree / name / f"{job.line.name}.wav" for name in [*names, "mix"]}
    gains = [1.0] * len(parts)
    # The mixture is written last, so its presence means that the sources exist.
    if plan.write and all((plan.out / path).is_file() for path in paths.values()):
        num_samples = audio.info(plan.out / paths["mix"]).num_samples
    else:
        sources = [
            audio.resample(audio.read(recording.path), WSJ0_RATE, plan.sample_rate, "scipy_poly")
            for recording in job.recordings
        ]
        snrs_db, levels = [part.snr_db for part in parts], [recording.level for recording in job.recordings]
        mixture, scaled, gain = mix_sources(sources, levels, snrs_db, plan.mode)
        num_samples = len(mixture)
        if plan.write:
            for name, waveform in zip(paths, [*scaled, mixture], strict=True):
                audio.write(plan.out / paths[name], waveform, plan.sample_rate, "PCM_16", "nearest")
        else:
            gains = [10 ** (snr / 20) / math.sqrt(level) * gain for snr, level in zip(snrs_db, levels, strict=True)]
    files = [paths[name].as_posix() for name in names] if plan.write else job.paths
    return MixtureEntry(
        id=job.line.name,
        sample_rate=plan.sample_rate,
        num_samples=num_samples,
        sources=[
            SourceEntry(path, speaker=part.speaker, gain=gain)
            for path, part, gain in zip(files, parts, gains, strict=True)
        ],
        mode=plan.mode,
        mixture=paths["mix"].as_posix() if plan.write else None,
        resampler="scipy_poly",
        corpus=f"wsj0-{plan.speakers}mix",
    )


# ------------------------------------------------------------------------------------------------------ earlier runs
#
# `out/wsj0-mix.json` notes which lists and levels the wavs of a folder and the descriptions of a manifest belong to.


def _fingerprint(lines: Sequence[Line], table: Mapping[str, float]) -> str:
    used = [[line.name, *([part.listed, table.get(part.utterance)] for part in line.parts)] for line in lines]
    return hashlib.sha256(json.dumps(used).encode()).hexdigest()


def _earlier_entries(plan: _Plan) -> dict[str, MixtureEntry]:
    """Return the mixtures of an earlier run with the same lists and levels; refuse wavs made with others."""
    stamps, tree = _stamps(plan), plan.tree.as_posix()
    if not plan.write:
        is_known = stamps.get(plan.manifest.name) == f"{tree} {plan.fingerprint}" and plan.manifest.is_file()
        return {entry.id: entry for entry in read_manifest(plan.manifest)} if is_known else {}
    if (plan.out / tree).is_dir() and stamps.get(tree) != plan.fingerprint:
        raise UserError(
            f"{plan.out / tree}: contains wavs that are not known to be of these lists and levels; remove the "
            "folder, or give another --out"
        )
    write_json(plan.out / _STAMPS, stamps | {tree: plan.fingerprint})
    return {}


def _stamps(plan: _Plan) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in parse_json(file_text(plan.out / _STAMPS)).items()}
    except (OSError, ValueError, AttributeError):
        return {}
