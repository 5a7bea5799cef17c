"""The description of an exported model: plain data in its graph's metadata, checked on opening."""

import math
from collections.abc import Callable, Mapping
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
"""Format of the description. Graphs of format 1 have neither features nor their weights by name."""

FEATURES_VERSION = 1
"""Version of the features that `sepkit.models.features.latent_features` and graphs compute."""

DEPTH_KEY = "depth_steps"
"""Field of the description: number of steps of a masker of continuous depth."""

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
        path: Path of the file, for errors.
        metadata: Metadata that contain `METADATA`.
    """
    try:
        description = parse_json(metadata[METADATA])
    except ValueError as error:
        raise UserError(f"{path}: its description is damaged ({error}); {EXPECTED}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UserError(f"{path}: its description is not of format {FORMAT}; use the sepkit that wrote it")
    if not isinstance(kind := description.get("kind"), str) or kind not in _OF_KIND:
        raise UserError(f"{path}: found a model of kind {shown(kind)}, expected separation or speaker_encoder")
    if (version := description.get("features_version")) != FEATURES_VERSION:
        raise UserError(
            f"{path}: its features are of version {shown(version)}, expected {FEATURES_VERSION}; export the model again"
        )
    for name, is_right in (_OF_ALL | _OF_KIND[kind]).items():
        if not is_right(description.get(name)):
            raise UserError(f"{path}: {name} in its description is {shown(description.get(name))}; {EXPECTED}")
    needs_of(description["info"], str(path))
    return description


def _size(value: Any, least: int = 1, largest: int = _MOST_STATE) -> bool:
    return isinstance(value, int) and least <= value <= largest


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _are_features(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name in FEATURES for name in value)


def _is_causal(value: Any) -> bool:
    """Whether the part of a description about blocks and their state is absent, or as it should be."""
    if value is None:
        return True
    parts = value.get("state") if isinstance(value, dict) else None
    if not isinstance(parts, list) or not 2 <= len(parts) <= _MOST_PARTS or not all(map(_is_state, parts)):
        return False
    return _size(value.get("stride")) and _size(value.get("kernel_size"), value["stride"])


def _is_state(part: Any) -> bool:
    """Whether a part of the state has a shape, and names the axis of the recordings."""
    shape = part.get("shape") if isinstance(part, dict) else None
    if not isinstance(shape, list) or "batch_axis" not in part or not all(_size(length, 0) for length in shape):
        return False
    axis = part["batch_axis"]
    return math.prod(shape) <= _MOST_STATE and (axis is None or (isinstance(axis, int) and axis in range(len(shape))))


# Field -> whether its value is allowed.
_OF_ALL: dict[str, Callable[[Any], bool]] = {
    "sample_rate": lambda value: _size(value, *SAMPLE_RATES),
    "info": _is(dict),
    "fingerprint": _is(str),
    "features": _are_features,
    "causal": _is_causal,
    "score_loss": _is(str, type(None)),
    DEPTH_KEY: _is(int, type(None)),
    "counts_speakers": _is(bool, type(None)),
}
_OF_KIND: dict[str, dict[str, Callable[[Any], bool]]] = {
    "separation": {
        "hypotheses": _size,
        "signal_mean": lambda value: isinstance(value, float) and math.isfinite(value),
        "signal_std": lambda value: isinstance(value, float) and 0 < value < math.inf,
        "variational": _is(bool),
    },
    "speaker_encoder": {"embedding_size": _is(int)},
}
