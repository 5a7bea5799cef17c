"""Files in, files out: every recording becomes one wav an estimate and a JSON file that says how it came about."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tqdm import tqdm

from sepkit import __version__
from sepkit.data import audio
from sepkit.data._files import atomic_output
from sepkit.errors import UserError
from sepkit.inference.separator import Separated, Separator, Speakers
from sepkit.inference.uncertainty import check_samples, is_variational

__all__ = ["FilesReport", "failure_reason", "file_identity", "find_recordings", "separate_files", "write_failures"]

FAILED = "failed.jsonl"

Subtype = Literal["FLOAT", "PCM_16"]


@dataclass
class FilesReport:
    """What became of a list of recordings; printing it tells in one line.

    Args:
        out: folder of the outputs.
        separated: recordings separated by this call.
        already_done: recordings an earlier call had separated in the same way.
        failed: path -> reason; also written to OUT/failed.jsonl.
    """

    out: Path
    separated: int = 0
    already_done: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        done = f"separated {self.separated}, already done {self.already_done}"
        return f"{done}, failed {len(self.failed)} (listed in {self.out / FAILED})" if self.failed else done


def separate_files(
    inputs: Sequence[str | os.PathLike[str]],
    separator: Separator,
    out: str | os.PathLike[str],
    *,
    channel: int | None = None,
    speakers: Speakers = None,
    subtype: Subtype = "FLOAT",
    spread: bool = False,
    samples: int = 8,
    model_name: str = "",
) -> FilesReport:
    """What became of each recording; calling it again goes on where it stopped.

    Writes OUT/<relative path>_s1.wav, _s2.wav ... at the recording's rate and level, one for each hypothesis kept, then
    OUT/<relative path>.json; files that the JSON of an earlier call names and this one does not make are removed. A
    recording that cannot be separated is listed in OUT/failed.jsonl and the rest goes on.

    Args:
        inputs: audio files, and folders that are searched for them.
        separator: the model.
        out: folder of the outputs, made if absent.
        channel: which channel to separate, from 0; None: the mean of all.
        speakers: which hypotheses to keep, see `Separator.separate`.
        subtype: "FLOAT" keeps levels beyond full scale; "PCM_16" is used only where no estimate would clip.
        spread: also write OUT/<relative path>_s1_spread.npy ..., (T,) float32 in the unit of the wavs: the standard
            deviation of every sample of an estimate over samples of the latents.
        samples: how many of those.
        model_name: how the JSON files name the model.

    Raises:
        UserError: an input that does not exist, a folder without audio files, an output folder that cannot be
            written to or is an input, `speakers` that the model cannot tell, or a spread of a deterministic model or
            of fewer than two samples.
    """
    out = Path(out)
    separator.check_speakers(speakers)
    if spread:
        _check_spread(separator, samples)
    recordings = name_outputs(find_recordings(inputs, out))
    report = FilesReport(out)
    way = {
        "model": model_name,
        "weights": separator.fingerprint(),
        "model_sample_rate": separator.sample_rate,
        "levels": separator.levels,
        "channel": channel,
        "speakers": speakers,
        "score_threshold": separator.score_threshold if speakers == "auto" else None,
        "subtype": subtype,
        "spread_samples": samples if spread else None,
        "sepkit": __version__,
    }
    for path, stem in tqdm(recordings.items(), disable=None, unit="file"):
        target = out / stem
        description = {"input": str(path), **file_identity(path), **way}
        if _is_done(target, description):
            report.already_done += 1
            continue
        try:
            waveform = audio.read(path, channel=channel)
            rate = audio.info(path).sample_rate
            separated = separator.separate(waveform, rate, speakers=speakers, samples=samples if spread else None)
        except (UserError, torch.OutOfMemoryError) as error:
            report.failed[str(path)] = failure_reason(error, path)
            continue
        _write(target, separated, rate, description)
        report.separated += 1
    write_failures(out / FAILED, report.failed)
    return report


def _check_spread(separator: Separator, samples: int) -> None:
    check_samples(samples)
    if not is_variational(separator.model):
        raise UserError("spread: the model is deterministic, its estimates have none; use a variational one")


# ------------------------------------------------------------------------------------------------------------- inputs


def find_recordings(inputs: Iterable[str | os.PathLike[str]], out: Path) -> dict[Path, Path]:
    """Audio file -> its path relative to the input that led to it, in the order of `inputs`, folders sorted.

    Args:
        inputs: audio files and folders. Hidden files, and what lies under `out`, are passed over in folders.
        out: folder of the outputs.

    Raises:
        UserError: an input that does not exist, a folder without audio files, or `out` itself.
    """
    out = Path(os.path.abspath(out))
    found: dict[Path, Path] = {}
    for given in inputs:
        path = Path(os.path.abspath(given))
        if path == out:
            raise UserError(f"--out {out}: is also an input; choose another folder")
        if path.is_dir():
            files = [file for file in sorted(path.rglob("*")) if _is_recording(file, path, out)]
            if not files:
                raise UserError(f"{given}: no audio files in this folder, expected {_suffixes()}")
        elif path.exists():
            files = [path]
        else:
            raise UserError(f"{given}: no such file or folder; check the path")
        root = path if path.is_dir() else path.parent
        for file in files:
            found.setdefault(file, file.relative_to(root))
    return found


def _is_recording(file: Path, folder: Path, out: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return (
        file.suffix.lower() in audio.AUDIO_SUFFIXES and not hidden and not file.is_relative_to(out) and file.is_file()
    )


def _suffixes() -> str:
    return ", ".join(sorted(audio.AUDIO_SUFFIXES))


def name_outputs(recordings: dict[Path, Path]) -> dict[Path, Path]:
    """Recording -> output path without ending, different for each of them.

    That is the relative path where it is unambiguous, else the path below the folder that all recordings share, else
    that with the recording's own ending ("talk_flac").

    Raises:
        UserError: two recordings that even so would be written to one name.
    """
    if not recordings:
        return {}
    shared = Path(os.path.commonpath([path.parent for path in recordings]))

    def candidates(path: Path) -> tuple[Path, Path, Path]:
        below = path.relative_to(shared)
        return recordings[path].with_suffix(""), below.with_suffix(""), below.with_name(below.name.replace(".", "_"))

    level = dict.fromkeys(recordings, 0)
    while True:
        names = {path: candidates(path)[level[path]] for path in recordings}
        counts = Counter(names.values())
        ambiguous = [path for path in recordings if counts[names[path]] > 1]
        if not ambiguous:
            return names
        if all(level[path] == 2 for path in ambiguous):
            raise UserError(
                f"{ambiguous[0]} and {ambiguous[1]}: would be written to one name; separate them one by one"
            )
        for path in ambiguous:
            level[path] = min(level[path] + 1, 2)


# ------------------------------------------------------------------------------------------------------------ outputs


def _estimate_paths(target: Path, count: int) -> list[Path]:
    return [target.with_name(f"{target.name}_s{index + 1}.wav") for index in range(count)]


def _description_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.json")


def _write(target: Path, separated: Separated, sample_rate: int, description: dict[str, Any]) -> None:
    """The wavs first and the JSON last: where it stands, everything stands."""
    peak = float(abs(separated.estimates).max(initial=0.0))
    subtype = description["subtype"] if peak < 1.0 else "FLOAT"
    if subtype != description["subtype"]:
        print(
            f"{description['input']}: an estimate peaks at {peak:.2f} and would clip; written as 32-bit float",
            file=sys.stderr,
        )
    paths = _estimate_paths(target, len(separated.estimates))
    for path, estimate in zip(paths, separated.estimates, strict=True):
        audio.write(path, estimate, sample_rate, subtype=subtype)
    spread_paths = [] if separated.spread is None else [_spread_path(path) for path in paths]
    for path, deviation in zip(spread_paths, () if separated.spread is None else separated.spread, strict=True):
        with atomic_output(path) as temporary:
            np.save(temporary, deviation)
    for name in _names_of(_written_before(target)) - {path.name for path in (*paths, *spread_paths)}:
        if name.startswith(f"{target.name}_s") and Path(name).name == name:
            target.with_name(name).unlink(missing_ok=True)
    result = {
        **description,
        "sample_rate": sample_rate,
        "num_samples": int(separated.estimates.shape[-1]),
        "estimates": [path.name for path in paths],
        "written_as": subtype,
        "gains": _numbers(separated.gains),
        "scores": _numbers(separated.scores),
        "kept_hypotheses": [int(index) + 1 for index in separated.kept],
        "predicted_si_sdr_db": _numbers(separated.predicted_si_sdr_db),
        "predicted_interval_db": _pairs(separated.predicted_interval_db),
        "rates": separated.rates,
        "spreads": None if separated.spread is None else [path.name for path in spread_paths],
        "spread_db": _spread_db(separated),
    }
    with atomic_output(_description_path(target)) as temporary:
        temporary.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _numbers(values: Any) -> list[float | None] | None:
    """Plain numbers; None for what is not known."""
    return None if values is None else [float(value) if math.isfinite(value) else None for value in values]


def _pairs(values: Any) -> list[list[float | None] | None] | None:
    return None if values is None else [_numbers(pair) for pair in values]


def _spread_path(estimate: Path) -> Path:
    return estimate.with_name(f"{estimate.stem}_spread.npy")


def _spread_db(separated: Separated) -> list[float | None] | None:
    """Energy of the spread over that of the estimate, dB; None for a silent one."""
    if separated.spread is None:
        return None
    energies = np.square(separated.estimates, dtype=np.float64).sum(-1)
    spreads = np.square(separated.spread, dtype=np.float64).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _numbers(10 * np.log10(spreads / energies))


def _names_of(written: dict[str, Any]) -> set[str]:
    """The files that a JSON file names, beside which it stands."""
    lists = [written.get(key) for key in ("estimates", "spreads")]
    return {name for names in lists if isinstance(names, list) for name in names if isinstance(name, str)}


def _is_done(target: Path, description: dict[str, Any]) -> bool:
    """Whether all outputs stand and come from the same recording, model and options."""
    written = _written_before(target)
    if any(written.get(key) != value for key, value in description.items()):
        return False
    return isinstance(written.get("estimates"), list) and all(
        (target.parent / name).is_file() for name in _names_of(written)
    )


def _written_before(target: Path) -> dict[str, Any]:
    """What the JSON file of an earlier call holds; nothing where there is none that can be read."""
    try:
        written = json.loads(_description_path(target).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}


def file_identity(path: Path) -> dict[str, int]:
    """Size and time of change of an input, by which a later call knows that it is still the same file."""
    status = path.stat()
    return {"input_bytes": status.st_size, "input_modified_ns": status.st_mtime_ns}


def failure_reason(error: Exception, path: Path) -> str:
    """Why a recording could not be separated, in one line that names it."""
    if isinstance(error, torch.OutOfMemoryError):
        return f"{path}: too long for the device's memory; cut it into shorter files, or use another device"
    text = str(error)
    return text if str(path) in text else f"{path}: {text}"


def write_failures(path: Path, failed: dict[str, str]) -> None:
    """Write the list of what failed, name -> reason, or remove that of an earlier call if nothing did."""
    if not failed:
        path.unlink(missing_ok=True)
        return
    with atomic_output(path) as temporary:
        lines = [json.dumps({"input": name, "reason": reason}, ensure_ascii=False) for name, reason in failed.items()]
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
