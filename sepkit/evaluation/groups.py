"""Properties of a mixture, and scores by property."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sepkit.data.manifest import MixtureEntry
from sepkit.evaluation.metrics import si_sdr_db
from sepkit.evaluation.statistics import Speakers, summarize_columns
from sepkit.signals import active_frames, frame_powers

PROPERTIES = ("sex_pair", "overlap_ratio", "level_difference_db", "duration_seconds", "input_si_sdr_db")
"""Columns of utterances.csv that describe the mixture."""

_FRAME_SECONDS = 0.032
# References are clean, so their quiet sounds count as speech too.
_HEARD_DB = 40.0
# Groups of fewer utterances have intervals too wide to be useful.
_LEAST_IN_QUANTILE = 10


def describe_mixture(entry: MixtureEntry, sources: np.ndarray, mixture: np.ndarray) -> dict[str, Any]:
    """Return the `PROPERTIES` of a mixture, None for unknown ones.

    sex_pair: the sexes of all speakers in alphabetical order (F-M). overlap_ratio: that of the manifest's line, or else
    of the 32 ms frames in which anybody is within 40 dB of their loudest, the share in which two or more are.
    level_difference_db: the strongest source over the weakest. input_si_sdr_db: of the mixture, mean over sources.
    Silent sources only enter sex_pair.

    Args:
        entry: line of the manifest.
        sources: (m, T).
        mixture: (T,).
    """
    sexes = [source.sex for source in entry.sources]
    energies = np.square(sources, dtype=np.float64).sum(axis=1)
    energies = energies[energies > 0]
    inputs = si_sdr_db(np.asarray(mixture)[None], sources)
    inputs = inputs[~np.isnan(inputs)]
    several = len(energies) > 1
    return {
        "sex_pair": "-".join(sorted(sex for sex in sexes if sex)) if all(sexes) else None,
        "overlap_ratio": _overlap_ratio(entry, sources),
        "level_difference_db": float(10 * np.log10(energies.max() / energies.min())) if several else None,
        "duration_seconds": entry.duration_seconds,
        "input_si_sdr_db": float(inputs.mean()) if len(inputs) else None,
    }


def by_group(
    properties: Mapping[str, Sequence[Any]], columns: Mapping[str, Sequence[float]], speakers: Speakers | None
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return property -> group -> column -> mean, ci95, n and n_speakers.

    Each word is a group. Numbers are cut into four groups of equal size, or two if a group would have fewer than 10
    utterances. Properties with one group are left out.

    Args:
        properties: name -> (N,) values, None where not known.
        columns: name -> (N,) scores.
        speakers: of the N utterances; None: not known.
    """
    scores = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, values in properties.items():
        groups = _groups(values)
        if len(groups) > 1:
            found[name] = {label: _short(scores, speakers, rows) for label, rows in groups.items()}
    return found


def _short(columns: Mapping[str, np.ndarray], speakers: Speakers | None, rows: np.ndarray) -> dict[str, Any]:
    own = None if speakers is None else [speakers[int(row)] for row in rows]
    summaries = summarize_columns({name: scores[rows] for name, scores in columns.items()}, own)
    kept = ("mean", "ci95", "n", "n_speakers")
    return {name: {key: getattr(summary, key) for key in kept} for name, summary in summaries.items()}


def _groups(values: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return label -> indices of the utterances in that group, in the order of labels or of numbers."""
    known = [i for i, value in enumerate(values) if value is not None]
    if not known or isinstance(values[known[0]], str):
        labels = sorted({values[i] for i in known})
        return {label: np.array([i for i in known if values[i] == label]) for label in labels}
    numbers = np.array([values[i] for i in known], dtype=np.float64)
    count = 4 if len(numbers) >= 4 * _LEAST_IN_QUANTILE else 2 if len(numbers) >= 2 * _LEAST_IN_QUANTILE else 1
    edges = _rounded(np.unique(np.quantile(numbers, np.linspace(0, 1, count + 1))))
    places = np.searchsorted(edges[1:-1], numbers, side="right")
    parts = [np.array(known)[places == place] for place in range(max(1, len(edges) - 1))]
    labels = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    return {label: rows for label, rows in zip(labels, parts, strict=False) if len(rows)}


def _rounded(edges: np.ndarray) -> np.ndarray:
    """Round edges as far as their least distance allows, the outer ones outwards: 0 to 0.6, not 0.00512 to 0.594."""
    if len(edges) < 2:
        return edges
    step = 10.0 ** math.floor(math.log10(float(np.diff(edges).min())))
    rounded = np.round(edges / step)
    rounded[0], rounded[-1] = math.floor(edges[0] / step), math.ceil(edges[-1] / step)
    return rounded * step


def _overlap_ratio(entry: MixtureEntry, sources: np.ndarray) -> float | None:
    stated = entry.extra.get("overlap_ratio")
    if isinstance(stated, int | float) and not isinstance(stated, bool):
        return float(stated)
    frame = max(1, round(_FRAME_SECONDS * entry.sample_rate))
    if sources.shape[1] < frame or len(sources) < 2:
        return None
    speaking = active_frames(frame_powers(sources, frame), _HEARD_DB).sum(axis=0)
    return float((speaking > 1).sum() / (speaking > 0).sum()) if speaking.any() else None
