"""Read what training, evaluation and separation left in a folder: scores, log, configuration, curves, estimates."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, read_manifest
from sepkit.data.segments import EMBEDDINGS
from sepkit.errors import UserError, shown
from sepkit.evaluation.labels import PROPERTIES
from sepkit.evaluation.statistics import summarize_columns
from sepkit.files import file_text, parse_json, read_csv, read_json, read_text, read_yaml

_SPEAKER = re.compile(r"speaker_s\d+")
# Of a number in metrics.jsonl: beyond it axes have no ticks.
_LARGEST = 1e150

_ENDINGS = (".wav", ".flac")

Listed = dict[Path, dict[str, list[Path]]]
"""Folder -> its files by name, the ending in lower case."""

CURVE = "rate_distortion.csv"
"""File of curves beside summary.json, or in a folder of its own."""

# Kinds of values: a list stands for lists of its item, a mapping for mappings ("*" is any key, and a key that ends in ?
# may be absent), a tuple for alternatives. The summary may come from elsewhere, and tables are made of it.
_NUM, _TEXT = (float, None), (str, None)
_PLACE = {"id": str, "reason": str}
_SCORE = {"mean": _NUM, "std?": _NUM, "median?": _NUM, "ci95": ([float], None), "n": int, "n_speakers?": (int, None)}
_COUNTED = {
    **dict.fromkeys(("n", "n_without_number?"), int),
    **dict.fromkeys(("accuracy", "over_separation_rate", "under_separation_rate"), float),
    "confusion": {"*": {"*": int}},
}
_MATCHING = {
    **dict.fromkeys(("n_sources?", "missed_sources?"), int),
    **dict.fromkeys(("collapse_rate?", "missed_source_rate?"), _NUM),
    "hypothesis_usage?": [float],
    "extra_hypotheses?": float,
    "speaker_count?": _COUNTED,
}
_SUMMARY = {
    "n_utterances": int,
    **dict.fromkeys(("n_skipped?", "n_silent_sources?", "n_without_improvement?"), int),
    "skipped?": [_PLACE],
    "metrics": {"*": _SCORE},
    "interval_unit?": str,
    "failures?": {"*": {"n": int, "first": _PLACE}},
    "metrics_left_out?": ({"*": str}, None),
    "matching?": _MATCHING,
    "manifest?": (str, [str], None),
    **dict.fromkeys(("model?", "estimates?", "command?", "hardware?", "version?", "commit?"), _TEXT),
    **dict.fromkeys(("real_time_factor?", "wall_seconds?", "signal_std?"), _NUM),
}
_WORDS = {float: "a number", int: "a whole number of 0 or more", str: "text", None: "null"}


@dataclass
class EvaluationFolder:
    """One evaluation: the scores of every utterance, and their summary.

    Args:
        folder: Folder with utterances.csv and summary.json.
        name: Name for tables: that of the folder.
        summary: content of summary.json.
        rows: the lines of utterances.csv, column -> cell.
    """

    folder: Path
    name: str
    summary: dict[str, Any]
    rows: list[dict[str, str]]

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that have scores, in the summary's order."""
        return [name for name, score in self.summary.get("metrics", {}).items() if score.get("n")]

    @property
    def manifests(self) -> list[str]:
        """The manifests as the summary names them."""
        named = self.summary.get("manifest") or []
        return [named] if isinstance(named, str) else list(named)

    @property
    def columns(self) -> list[str]:
        """The columns of utterances.csv."""
        return list(self.rows[0]) if self.rows else []

    def mean(self, metric: str) -> float | None:
        """Return the summary's mean of a metric; None without it."""
        return self.summary.get("metrics", {}).get(metric, {}).get("mean")

    def scores(self, column: str) -> np.ndarray:
        """Return the numbers of a column in the order of rows, (N,); NaN for an empty cell or an absent column."""
        return np.array([_number(row.get(column)) for row in self.rows], dtype=np.float64)

    def keys(self) -> list[tuple[str, str]]:
        """Return (N,) keys of utterances, the same in every run: the manifest's file name and the identifier."""
        return [(Path(row.get("manifest", "")).name, row["id"]) for row in self.rows]

    def speakers(self, rows: Iterable[int] | None = None) -> list[list[str]] | None:
        """Return the names of the speakers of rows (None: all), "" for unknown ones; None if no column has them."""
        columns = [name for name in self.columns if _SPEAKER.fullmatch(name)]
        chosen = self.rows if rows is None else [self.rows[row] for row in rows]
        found: list[list[str]] = []
        for row in chosen:
            # A mixture of fewer speakers than others leaves its last cells empty.
            sources = _number(row.get("sources"))
            found.append([row[name] for name in (columns[: int(sources)] if sources > 0 else columns)])
        return found if columns else None

    def properties(self) -> dict[str, list[Any]]:
        """Return column -> (N,) values of properties that can group utterances: `PROPERTIES`, None where unknown.

        The number of sources and the sexes are words, the others numbers.
        """
        words = {name: [row.get(name) or None for row in self.rows] for name in ("sources", PROPERTIES[0])}
        numbers = {name: self.scores(name).tolist() for name in PROPERTIES[1:]}
        return words | {name: [x if math.isfinite(x) else None for x in column] for name, column in numbers.items()}

    def parts(self) -> list[EvaluationFolder]:
        """Return one evaluation for each manifest, named as it is; only this one if there are fewer than two."""
        if len(self.manifests) < 2:
            return [self]
        parts = []
        for manifest in self.manifests:
            rows = [row for row in self.rows if row.get("manifest") == manifest]
            part = EvaluationFolder(self.folder, Path(manifest).stem, {**self.summary, "manifest": [manifest]}, rows)
            scores = summarize_columns({name: part.scores(name) for name in self.metrics}, part.speakers())
            part.summary["metrics"] = {name: asdict(score) for name, score in scores.items()}
            part.summary["n_utterances"] = len(rows)
            parts.append(part)
        return parts

    @cached_property
    def entries(self) -> dict[tuple[str, str], MixtureEntry]:
        """Return key (see `keys`) -> line of the manifest.

        Raises:
            UserError: a manifest is neither at its path nor below a folder that this one is in.
        """
        paths = [find(name, self.folder) for name in self.manifests]
        return {(path.name, entry.id): entry for path in paths for entry in read_manifest(path)}


@dataclass
class TrainingLog:
    """The records of metrics.jsonl.

    Args:
        records: one mapping per line; "kind" is "step" or "epoch".
    """

    records: list[dict[str, Any]]

    def names(self, kind: str = "epoch") -> list[str]:
        """Return names of the quantities that records of a kind hold, ("step" or "epoch") in order of appearance."""
        found = (name for record in self.records if record.get("kind") == kind for name in record)
        return [name for name in dict.fromkeys(found) if name not in ("kind", "epoch", "step")]

    def series(self, name: str, kind: str = "epoch") -> tuple[np.ndarray, np.ndarray]:
        """Return steps and values of a quantity, (R,) each; NaN where the record says null."""
        chosen = [record for record in self.records if record.get("kind") == kind and name in record]
        values = [math.nan if record[name] is None else float(record[name]) for record in chosen]
        return np.array([record["step"] for record in chosen], dtype=np.float64), np.array(values, dtype=np.float64)


@dataclass
class Curve:
    """Curves of a CSV file with a header: every further column over the first, one for each value of "curve".

    Args:
        x_name: header of the first column.
        panels: header of a further column -> name of a curve -> ((R,) x, (R,) y); curves of a panel have one unit.
    """

    x_name: str
    panels: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]


@dataclass
class Run:
    """Everything known about one experiment.

    Args:
        folder: Folder of the experiment, or of the evaluation if there is nothing else.
        name: Name for tables.
        evaluations: sorted by name.
        log: Log of the training, or None.
        config: Configuration of the training as plain data, or None.
        curves: name of the evaluation, or of the folder -> curves of its file `CURVE`, where it has one.
        separated: recording -> its tracks, of a folder that `sepkit separate` wrote.
    """

    folder: Path
    name: str
    evaluations: list[EvaluationFolder] = field(default_factory=list)
    log: TrainingLog | None = None
    config: dict[str, Any] | None = None
    curves: dict[str, Curve] = field(default_factory=dict)
    separated: dict[Path, list[Path]] = field(default_factory=dict)

    def evaluation(self, name: str) -> EvaluationFolder | None:
        """Return an evaluation; None without it."""
        return next((evaluation for evaluation in self.evaluations if evaluation.name == name), None)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the leaves of the configuration by their dotted keys; empty without a configuration."""
        return {} if self.config is None else flatten(self.config)


def load_run(folder: str | os.PathLike[str], name: str | None = None) -> Run:
    """Return everything known about an experiment.

    `folder` is the experiment itself (config.yaml, metrics.jsonl and, below evaluation/, one folder for each test set),
    or one evaluation, or a folder of evaluations, or what `sepkit cluster` or `sepkit separate` wrote, or a folder with
    curves of several experiments. For an evaluation that
    lies in no experiment, configuration and log are those beside the model that its summary names.

    Args:
        folder: see above.
        name: Name for tables; default: that of the folder.

    Raises:
        UserError: no such folder, nothing in it, or a file that cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder, expected an experiment or an evaluation")
    patterns = ("summary.json", "evaluation/summary.json", "evaluation/*/summary.json")
    found = [path.parent for pattern in patterns for path in sorted(folder.glob(pattern))]
    found = found or [path.parent for path in sorted(folder.glob("*/summary.json"))]
    # Summaries of `sepkit cluster`, which has no mixtures.
    clusters = [path for path in found if (path / EMBEDDINGS).is_file()]
    evaluations = [load_evaluation(path) for path in found if path not in clusters]
    home = _experiment_of(folder, evaluations)
    places = {folder.name: folder} | {evaluation.name: evaluation.folder for evaluation in evaluations}
    curves = {label: read_curve(place / CURVE) for label, place in places.items() if (place / CURVE).is_file()}
    separated = {} if found or home else _separated(folder)
    if not (home or found or separated or curves):
        raise UserError(f"{folder}: no metrics.jsonl or summary.json, expected what sepkit train or evaluate wrote")
    return Run(
        folder,
        name or (folder if folder.name else folder.resolve()).name,
        evaluations,
        _read_log(home / "metrics.jsonl") if home else None,
        _read_config(home / "config.yaml") if home else None,
        curves,
        separated,
    )


def _separated(folder: Path) -> dict[Path, list[Path]]:
    """Return recording -> tracks of the descriptions in a folder that `sepkit separate` wrote."""
    found: dict[Path, list[Path]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            told = parse_json(file_text(path))
        except (OSError, ValueError):
            continue
        names = told.get("estimates") if isinstance(told, dict) else None
        if isinstance(names, list) and isinstance(told.get("input"), str):
            # Names of files beside the description, and nothing else that it may say.
            tracks = [path.with_name(name) for name in names if isinstance(name, str) and Path(name).name == name]
            found[Path(told["input"])] = [track for track in tracks if track.is_file()]
    return found


def load_evaluation(folder: str | os.PathLike[str]) -> EvaluationFolder:
    """Return an evaluation.

    Args:
        folder: Folder as in `sepkit evaluate --out`.

    Raises:
        UserError: a file is absent or cannot be read.
    """
    folder = Path(folder)
    summary = read_json(folder / "summary.json", "evaluate again")
    rows = read_rows(folder / "utterances.csv")
    check_summary(summary, str(folder / "summary.json"))
    if rows and "id" not in rows[0]:
        raise UserError(f"{folder / 'utterances.csv'}: found no column id; evaluate again")
    return EvaluationFolder(folder, folder.resolve().name, summary, rows)


def check_summary(summary: Any, where: str) -> None:
    """Check that plain data is the summary of an evaluation; fields that tables do not use may be anything.

    Args:
        summary: Content of summary.json.
        where: Path of the file, for the message.

    Raises:
        UserError: It is not; the message names the field.
    """
    _check(summary, _SUMMARY, where, "")
    for name, score in summary["metrics"].items():
        if score["n"] and score["mean"] is None:
            raise UserError(f"{where}: metrics.{name}.mean is null for {shown(score['n'])} utterances; evaluate again")
        if score["ci95"] is not None and len(score["ci95"]) != 2:
            raise UserError(f"{where}: metrics.{name}.ci95 is {shown(score['ci95'])}, expected two; evaluate again")


def _check(value: Any, shape: Any, where: str, name: str) -> None:
    alternatives = shape if isinstance(shape, tuple) else (shape,)
    fitting = [one for one in alternatives if _fits(value, one)]
    if not fitting:
        expected = " or ".join(
            "a list" if isinstance(one, list) else "a mapping" if isinstance(one, dict) else _WORDS[one]
            for one in alternatives
        )
        raise UserError(f"{where}: {name or 'its content'} is {shown(value)}, expected {expected}; evaluate again")
    if isinstance(value, list):
        for place, item in enumerate(value):
            _check(item, fitting[0][0], where, f"{name}[{place}]")
    elif isinstance(value, dict):
        for key, inner in fitting[0].items():
            plain = key.removesuffix("?")
            if plain not in ("*", *value) and plain == key:
                raise UserError(f"{where}: {f'{name}.{key}'.lstrip('.')} is missing; evaluate again")
            for known in value if plain == "*" else {plain} & value.keys():
                _check(value[known], inner, where, f"{name}.{known}".lstrip("."))


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, list | dict):
        return isinstance(value, type(kind))
    if kind in (str, None):
        return value is None if kind is None else isinstance(value, str) and "\0" not in value
    if type(value) is float:
        return kind is float and math.isfinite(value)
    return type(value) is int and (0 if kind is int else -(2**63)) <= value < 2**63


def read_curve(path: Path) -> Curve:
    """Return the curves of a file.

    Args:
        path: CSV with a column of numbers for the axis, and more for its curves; a column "curve" names the curve of a
            row.

    Raises:
        UserError: it cannot be read, or has fewer than two columns.
    """
    rows = read_rows(path)
    names = [name for name in rows[0] if name != "curve"] if rows else []
    if len(names) < 2:
        raise UserError(f"{path}: found columns {', '.join(names) or 'none'}, expected two of numbers or more")
    panels: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {name: {} for name in names[1:]}
    for curve in dict.fromkeys(row.get("curve") or "" for row in rows):
        numbers = [[_number(row[name]) for name in names] for row in rows if (row.get("curve") or "") == curve]
        x, *columns = np.array(numbers, dtype=np.float64).T
        for name, y in zip(names[1:], columns, strict=True):
            if not np.isnan(y).all():
                panels[name][curve] = x, y
    return Curve(names[0], {name: series for name, series in panels.items() if series})


def find(name: str, near: Path) -> Path:
    """Return a path that was named when another folder was the working one: here, or above a folder.

    Raises:
        UserError: it is nowhere.
    """
    for base in (Path(), *near.resolve().parents):
        if (base / name).exists():
            return base / name
    raise UserError(f"{name}: no such file or folder, looked for here and above {near}")


def _experiment_of(folder: Path, evaluations: Sequence[EvaluationFolder]) -> Path | None:
    candidates = [folder]
    if any(evaluation.folder == folder for evaluation in evaluations):
        candidates += list(folder.resolve().parents)[:2]
    for evaluation in evaluations:
        model = evaluation.summary.get("model")
        if model:
            try:
                candidates += [find(model, evaluation.folder), find(model, evaluation.folder).parent]
            except UserError:
                continue  # the scores are usable even if the model is gone, or is no path
    return next((path for path in candidates if (path / "metrics.jsonl").is_file()), None)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file, column -> cell; cells that a line lacks are empty, surplus ones left out."""
    _, lines = read_csv(path, "a CSV file that sepkit wrote")
    return [{name: cell or "" for name, cell in line.items() if name is not None} for _, line in lines]


def _read_log(path: Path) -> TrainingLog:
    records = []
    lines = read_text(path, "the log of a training; remove it, or get it again").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = parse_json(line)
        except ValueError as error:
            if number < len(lines):
                raise UserError(f"{path}:{number}: not JSON ({error}); remove the line") from error
            # A run in progress, or a killed one, may have written half of its last line.
            continue
        _check_record(record, f"{path}:{number}")
        records.append(record)
    return TrainingLog(records)


def _check_record(record: Any, where: str) -> None:
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise UserError(f"{where}: found {shown(record)}, expected a record with its kind; remove the line")
    for name, value in record.items():
        is_number = isinstance(value, int | float) and -_LARGEST <= value <= _LARGEST
        if name == "kind" or is_number or (value is None and name not in ("epoch", "step")):
            continue
        raise UserError(f"{where}: {name} is {shown(value)}, expected a finite number; remove the line")
    if "step" not in record:
        raise UserError(f"{where}: step is missing; remove the line")


def _read_config(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    config = read_yaml(path, "remove it, or get it again")
    if not isinstance(config, dict | None):
        raise UserError(f"{path}: found {shown(config)}, expected a configuration; remove it, or get it again")
    return config


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their dotted keys; `prefix` goes before each key."""
    if not isinstance(tree, Mapping):
        return {prefix[:-1]: tree}
    return {key: value for name, part in tree.items() for key, value in flatten(part, f"{prefix}{name}.").items()}


def _number(cell: str | None) -> float:
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        return math.nan


def find_estimates(folder: Path, entry: MixtureEntry, listed: Listed | None = None) -> list[Path]:
    """Return the files with the estimates of a mixture, s1 first.

    They are `folder/NAME_s1.wav, NAME_s2.wav ...` as `sepkit separate` writes them, `folder/s1/NAME.wav, s2/NAME.wav
    ...`, or either with .flac, endings in upper or lower case; NAME is the entry's id or the name of its recorded
    mixture.

    Args:
        folder: Folder of all estimates.
        entry: line of the manifest.
        listed: folders that were listed before, which are not listed again; None: none.

    Raises:
        UserError: there are none, or two files differ by the case of their ending alone.
    """
    listed = {} if listed is None else listed
    names = [entry.id] + ([Path(entry.mixture).stem] if entry.mixture else [])
    for name in names:
        for before, after in ((f"{name}_s", ""), ("s", f"/{name}")):
            if found := _numbered(folder, before, after, listed):
                return found
    raise UserError(f"{folder}: no estimates; expected {names[0]}_s1.wav or s1/{names[0]}.wav and so on")


def read_estimates(paths: list[Path], sample_rate: int) -> np.ndarray:
    """Return estimates from one file per hypothesis, (n, T) float32.

    Args:
        paths: Paths of the files, s1 first.
        sample_rate: Hz of the result.

    Raises:
        UserError: a file that cannot be read, or files of different lengths.
    """
    waveforms = [audio.read(path, sample_rate=sample_rate) for path in paths]
    for path, waveform in zip(paths, waveforms, strict=True):
        if len(waveform) != len(waveforms[0]):
            raise UserError(
                f"{path}: contains {len(waveform)} samples, {paths[0].name} {len(waveforms[0])}; expected equal lengths"
            )
    return np.stack(waveforms)


def _numbered(folder: Path, before: str, after: str, listed: Listed) -> list[Path]:
    """The files BEFORE1AFTER, BEFORE2AFTER ... in a folder, each with one of the endings; the parts may hold any
    character."""
    found: list[Path] = []
    while files := next(
        filter(None, (_files(folder / f"{before}{len(found) + 1}{after}{ending}", listed) for ending in _ENDINGS)), []
    ):
        if len(files) > 1:
            names = " and ".join(file.name for file in files)
            raise UserError(f"{files[0].parent}: found {names}, which differ by case alone; remove all but one")
        found += files
    return found


def _files(path: Path, listed: Listed) -> list[Path]:
    """Return the files of a name, whatever the case of their ending."""
    if path.parent not in listed:
        by_name = listed[path.parent] = {}
        for file in sorted(path.parent.iterdir()) if path.parent.is_dir() else ():
            stem, ending = os.path.splitext(file.name)
            by_name.setdefault(stem + ending.lower(), []).append(file)
    return [file for file in listed[path.parent].get(path.name, ()) if file.is_file()]
