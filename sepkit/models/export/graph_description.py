"""What an exported model says of itself: plain data in its graph's metadata, checked when it is opened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sepkit.errors import UserError, shown
from sepkit.files import parse_json
from sepkit.limits import SAMPLE_RATES
from sepkit.models.needs import needs_of

EXPECTED = "expected what `sepkit export` writes"

METADATA = "sepkit"
"""Key of the graph's metadata under which the model's description is kept, as JSON."""

FORMAT = 2
"""Of the description. Graphs of format 1 have neither features nor their weights by name."""

FEATURES_VERSION = 1
"""Of what `sepkit.models.features.latent_features` computes, and a graph with it."""

FEATURES = {
    "mask_spread_db": "mask_spread_energy",
    "encoding_rate_nats_per_frame": "encoding_rate_nats",
    "mask_rate_nats_per_frame": "mask_rate_nats",
}
"""Feature -> the sum over frames that a causal graph gives instead, see `sepkit.models.features.latent_sums`."""

# Of the state of a recording: values, and parts that hold them.
_MOST_STATE, _MOST_PARTS = 10_000_000, 10_000


def read_description(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the description in the metadata of an exported model's graph, once its values are found good.

    Args:
        path: of its file, for errors.
        metadata: with `METADATA` in it.
    """
    try:
        description = parse_json(metadata[METADATA])
    except ValueError as error:
        raise UserError(f"{path}: its description is damaged ({error}); {EXPECTED}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UserError(f"{path}: its description is not of format {FORMAT}; use the sepkit that wrote it")
    if (kind := description.get("kind")) not in ("separation", "speaker_encoder"):
        raise UserError(f"{path}: found a model of kind {shown(kind)}, expected separation or speaker_encoder")
    kinds: dict[str, Any] = {"sample_rate": int, "info": dict}
    kinds |= {"fingerprint": str, "features": list, "features_version": int}
    if kind == "separation":
        kinds |= {"hypotheses": int, "signal_mean": float, "signal_std": float, "variational": bool}
    else:
        kinds |= {"embedding_size": int}
    for name, expected in kinds.items():
        if not isinstance(description.get(name), expected):
            raise UserError(f"{path}: {name} in its description is {shown(description.get(name))}; {EXPECTED}")
    _check_values(path, description)
    return description


def _check_values(path: Path, description: Mapping[str, Any]) -> None:
    rate, kind = description["sample_rate"], description["kind"]
    needs_of(description["info"], str(path))
    if not SAMPLE_RATES[0] <= rate <= SAMPLE_RATES[1]:
        raise UserError(f"{path}: sample_rate in its description is {shown(rate)}; {EXPECTED}")
    if kind == "separation":
        deviation = description["signal_std"]
        finite = 0 < deviation < math.inf and math.isfinite(description["signal_mean"])
        if not finite or description["hypotheses"] < 1:
            raise UserError(f"{path}: its description has a deviation of {deviation}, or no hypotheses; {EXPECTED}")
    if (version := description["features_version"]) != FEATURES_VERSION:
        raise UserError(
            f"{path}: its features are of version {shown(version)}, expected {FEATURES_VERSION}; export the model again"
        )
    if unknown := [name for name in description.get("features", ()) if name not in FEATURES]:
        raise UserError(f"{path}: features in its description has {shown(unknown[0])}; {EXPECTED}")
    _check_causal(path, description.get("causal"))
    kinds: dict[str, Any] = {"score_loss": (str, type(None)), "depth_steps": (int, type(None)), "counts_speakers": bool}
    for name, allowed in kinds.items():
        if name in description and not isinstance(description[name], allowed):
            raise UserError(f"{path}: {name} in its description is {shown(description[name])}; {EXPECTED}")


def _check_causal(path: Path, causal: Any) -> None:
    """Raise UserError unless the part of a description about blocks and their state is none, or as it should be."""

    def size(value: Any, least: int = 1) -> bool:
        return isinstance(value, int) and least <= value <= _MOST_STATE

    if causal is None:
        return
    parts = causal.get("state") if isinstance(causal, dict) else None
    good = isinstance(parts, list) and 2 <= len(parts) <= _MOST_PARTS and all(isinstance(part, dict) for part in parts)
    good = good and size(causal.get("stride")) and size(causal.get("kernel_size"), causal["stride"])
    for part in parts if good and parts else []:
        shape, axis = part.get("shape"), part.get("batch_axis")
        good = good and isinstance(shape, list) and all(size(length, 0) for length in shape)
        good = good and math.prod(shape) <= _MOST_STATE and "batch_axis" in part
        good = good and (axis is None or (isinstance(axis, int) and axis in range(len(shape))))
    if not good:
        raise UserError(f"{path}: causal in its description is {shown(causal)}; {EXPECTED}")
