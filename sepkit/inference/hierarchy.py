"""Anneal again at inference: run the models kept along a training's cooling, one after the other, on one recording.

At a high temperature all hypotheses are at one place, and they part as it falls. The groups of hypotheses at each
temperature form a tree over the sources of a recording.

Source: aMCL paper, appendix B.1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.files import atomic_output, parse_json, write_json
from sepkit.inference.inputs import find_recordings, name_outputs
from sepkit.inference.loading import load_model
from sepkit.inference.options import Levels, Subtype
from sepkit.inference.outputs import file_identity
from sepkit.inference.reports import FAILED, FilesReport, failure_reason, write_failures
from sepkit.inference.separator import Separator
from sepkit.models.storage.checkpoints import read_description
from sepkit.version import __version__

SAME_SI_SDR_DB = 20.0
"""Two hypotheses are at one place where the SI-SDR of one to the other is at least this: they differ by 1 % of their
energy. Less than for duplicates of a speaker, since here the beginning of a split is looked for."""


@dataclass(frozen=True)
class KeptModel:
    """A model of a run after some epoch.

    Args:
        folder: of the model.
        epoch: from 1.
        temperature: in the cost's unit, of that epoch; 0 where the minimum was hard.
    """

    folder: Path
    epoch: int
    temperature: float


@dataclass
class Level:
    """The hypotheses at one temperature.

    Args:
        epoch: of the model.
        temperature: of the model.
        groups: n group numbers, in order of the lowest member; hypotheses of one group are at one place.
        estimates: (g, T) one for each group, the mean of its members, at the rate and level of the recording.
        similarity_db: (n, n) SI-SDR of each hypothesis to each other one, dB.
    """

    epoch: int
    temperature: float
    groups: list[int]
    estimates: np.ndarray
    similarity_db: np.ndarray


@dataclass
class Hierarchy:
    """The levels of one recording.

    Args:
        levels: in the order of the run.
    """

    levels: list[Level]

    def splits(self) -> list[dict[str, Any]]:
        """Return each split of a group: temperatures before and after, members, and their parts."""
        found = []
        for before, after in zip(self.levels, self.levels[1:], strict=False):
            for group in range(max(before.groups) + 1):
                members = [k for k, number in enumerate(before.groups) if number == group]
                parts = sorted({after.groups[k] for k in members})
                if len(parts) > 1:
                    found.append(
                        {
                            "temperature_above": before.temperature,
                            "temperature_below": after.temperature,
                            "hypotheses": _from_one(members),
                            "into": [_from_one([k for k in members if after.groups[k] == part]) for part in parts],
                        }
                    )
        return found


def find_kept_models(experiment: str | os.PathLike[str]) -> list[KeptModel]:
    """Return the models in EXP/models, first epoch first, and EXP/last_model if it is later than all of them.

    Of those at temperature 0, where nothing cools any more, only the last one is returned.

    Args:
        experiment: EXP, a folder that `sepkit train` wrote with `trainer.keep_every_epochs`.

    Raises:
        UserError: no kept models, or models of a run without temperatures.
    """
    folder = Path(experiment)
    kept = [_describe(path) for path in sorted(folder.glob("models/*/")) if path.is_dir()]
    if not kept:
        raise UserError(
            f"{folder}: found no models/epoch_*, expected models kept along the cooling; "
            "train with --trainer.keep_every_epochs 10 --objective.assignment.name amcl"
        )
    kept.sort(key=lambda model: model.epoch)
    if (folder / "last_model").is_dir():
        last = _describe(folder / "last_model")
        kept += [last] if last.epoch > kept[-1].epoch else []
    return [model for model in kept if model.temperature > 0 or model is kept[-1]]


def _describe(folder: Path) -> KeptModel:
    info = read_description(folder)["info"]
    if not isinstance(info.get("temperature"), int | float) or not isinstance(info.get("epoch"), int):
        raise UserError(
            f"{folder}: found no temperature in model.yaml, expected a model of annealed multiple choice learning"
        )
    return KeptModel(folder, info["epoch"], float(info["temperature"]))


# ------------------------------------------------------------------------------------------------------ one recording


def mutual_si_sdr_db(estimates: np.ndarray) -> np.ndarray:
    """Return the SI-SDR of each estimate to each other one less their means, (n, n) dB.

    It is 10 log10(r^2 / (1 - r^2)) with their correlation r, and symmetric. It is infinite on the diagonal. Two silent
    estimates are the same; a silent and another one are infinitely far.

    Args:
        estimates: (n, T).
    """
    centered = estimates.astype(np.float64) - estimates.mean(1, keepdims=True, dtype=np.float64)
    norms = np.linalg.norm(centered, axis=1, keepdims=True)
    directions = np.divide(centered, norms, out=np.zeros_like(centered), where=norms > 0)
    shared = np.clip((directions @ directions.T) ** 2, 0, 1)
    silent = norms[:, 0] == 0
    shared[np.ix_(silent, silent)] = 1
    np.fill_diagonal(shared, 1)
    with np.errstate(divide="ignore"):
        return 10 * (np.log10(shared) - np.log10(1 - shared))


def group_hypotheses(similarity_db: np.ndarray, same_db: float = SAME_SI_SDR_DB) -> list[int]:
    """Return n group numbers in order of appearance; hypotheses that are alike share one.

    They may be connected directly or through others.

    Args:
        similarity_db: (n, n), of `mutual_si_sdr_db`.
        same_db: hypotheses with an SI-SDR of at least this are alike.
    """
    from scipy.sparse.csgraph import connected_components

    labels = connected_components(similarity_db >= same_db, directed=False)[1]
    numbers: dict[int, int] = {}
    return [numbers.setdefault(int(label), len(numbers)) for label in labels]


def replay(
    waveform: np.ndarray, sample_rate: int, separators: Sequence[Separator], models: Sequence[KeptModel]
) -> Hierarchy:
    """Return what each of the models makes of a recording, with its hypotheses in groups.

    Args:
        waveform: (T,) or (C, T).
        sample_rate: Hz, of the waveform.
        separators: of the models, as many.
        models: in the order of the run.

    Raises:
        UserError: a waveform that cannot be separated.
    """
    levels = []
    for separator, model in zip(separators, models, strict=True):
        estimates = separator.separate(waveform, sample_rate).estimates
        similarity = mutual_si_sdr_db(estimates)
        groups = group_hypotheses(similarity)
        means = [estimates[[k for k, g in enumerate(groups) if g == group]].mean(0) for group in range(max(groups) + 1)]
        levels.append(Level(model.epoch, model.temperature, groups, np.stack(means), similarity))
    return Hierarchy(levels)


# --------------------------------------------------------------------------------------------------------------- files


def separate_hierarchy(
    inputs: Sequence[str | os.PathLike[str]],
    experiment: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    device: str = "cpu",
    channel: int | None = None,
    levels: Levels = "mixture",
    subtype: Subtype = "FLOAT",
    draw: Callable[[Hierarchy, Path], None] | None = None,
) -> FilesReport:
    """Separate recordings with all kept models, and return what became of each; another call continues.

    It writes OUT/<relative path>_hierarchy/epoch_0010_g1.wav, _g2.wav ..., one wav for each group of hypotheses of each
    model, OUT/<relative path>_hierarchy.png, and last OUT/<relative path>_hierarchy.json. A recording that cannot be
    separated is listed in OUT/failed.jsonl, and the others continue.

    Args:
        inputs: audio files, and folders that are searched for them.
        experiment: EXP with EXP/models.
        out: folder of the outputs, made if absent.
        device: where the models compute.
        channel: which channel to separate, from 0; None: the mean of all.
        levels: see `Separator`.
        subtype: sample format of the wavs; "PCM_16" is used only if nothing clips.
        draw: writes the picture of a hierarchy to a path; None: no picture.

    Raises:
        UserError: no kept models, a device or input that does not exist, or an output folder that cannot be written to.
    """
    out, models = Path(out), find_kept_models(experiment)
    recordings = name_outputs(find_recordings(inputs, out))
    separators = [load_model(model.folder, device, levels=levels) for model in models]
    if len({separator.hypotheses for separator in separators}) > 1:
        raise UserError(
            f"{experiment}: its kept models have different numbers of hypotheses; expected those of one run"
        )
    way = {
        "model": str(experiment),
        "weights": [separator.fingerprint() for separator in separators],
        "same_si_sdr_db": SAME_SI_SDR_DB,
        "levels_of_estimates": levels,
        "channel": channel,
        "subtype": subtype,
        "sepkit": __version__,
    }
    report = FilesReport(out)
    for path, stem in tqdm(recordings.items(), disable=None, unit="file"):
        target = out / stem
        way_here = {"input": str(path), **file_identity(path), **way}
        if _is_done(target, way_here):
            report.already_done += 1
            continue
        try:
            waveform = audio.read(path, channel=channel)
            rate = audio.info(path).sample_rate
            hierarchy = replay(waveform, rate, separators, models)
        except (UserError, torch.OutOfMemoryError) as error:
            report.failed[str(path)] = failure_reason(error, path)
            continue
        _write(target, hierarchy, rate, way_here, draw)
        report.separated += 1
    write_failures(out / FAILED, report.failed)
    return report


def _json_path(target: Path) -> Path:
    return target.with_name(f"{target.name}_hierarchy.json")


def _write(
    target: Path,
    hierarchy: Hierarchy,
    sample_rate: int,
    way: dict[str, Any],
    draw: Callable[[Hierarchy, Path], None] | None,
) -> None:
    """Write the files, the JSON last: if it exists, all exist."""
    folder = target.with_name(f"{target.name}_hierarchy")
    subtype = way["subtype"] if max(np.abs(level.estimates).max() for level in hierarchy.levels) < 1 else "FLOAT"
    described = []
    for level in hierarchy.levels:
        names = []
        for group, estimate in enumerate(level.estimates, start=1):
            names.append(f"{folder.name}/epoch_{level.epoch:04d}_g{group}.wav")
            audio.write(target.parent / names[-1], estimate, sample_rate, subtype=subtype)
        groups = [[k for k, g in enumerate(level.groups) if g == group] for group in range(len(names))]
        described.append(
            {
                "epoch": level.epoch,
                "temperature": level.temperature,
                "groups": [_from_one(members) for members in groups],
                "estimates": names,
                "similarity_db": [
                    [float(value) if np.isfinite(value) else None for value in row] for row in level.similarity_db
                ],
            }
        )
    if draw is not None:
        with atomic_output(target.with_name(f"{target.name}_hierarchy.png")) as temporary:
            draw(hierarchy, temporary)
    result = way | {"sample_rate": sample_rate, "levels": described, "splits": hierarchy.splits()}
    write_json(_json_path(target), result)


def _is_done(target: Path, way: dict[str, Any]) -> bool:
    try:
        written = parse_json(_json_path(target).read_text(encoding="utf-8"))
        same = all(written.get(key) == value for key, value in way.items())
        names = [name for level in written["levels"] for name in level["estimates"]]
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return False
    return same and bool(names) and all((target.parent / name).is_file() for name in names)


def _from_one(hypotheses: Sequence[int]) -> list[int]:
    """Number hypotheses from 1, as the outputs do."""
    return [k + 1 for k in hypotheses]
