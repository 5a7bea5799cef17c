"""Descriptions and weights that older versions saved: the one place that knows older names and parts that are gone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


# Fields that are gone, with the values at which they did nothing; ...: any.
_GONE: dict[str, tuple[Any, ...]] = {
    "model.encoding.at_test": ("mean", "median"),
    "model.masks.at_test": ("mean", "median"),
    "model.masker.embedding_dim": (...,),
    "model.masker.training_steps": (...,),
    "model.masker.stochastic": (False,),
    "model.masker.initial_diffusion": (...,),
    "objective.cost.limit_db": (math.inf,),
    "objective.scoring.kind": ("binary",),
    "objective.rates.path": (...,),
    "objective.rates.steering.path": (None,),
}


def translated_run(config: Any) -> Any:
    """Return the configuration of a run with today's fields; anything but a mapping is returned as it is."""
    config = _without_gone(config)
    return config | {"model": translated(config["model"])} if isinstance(config, dict) and "model" in config else config


def translated(model: Any) -> Any:
    """Return the configuration of a saved model with today's fields; anything but a mapping is returned as it is."""
    if not isinstance(model, dict):
        return model
    model = _with_one_depth({"input_norm" if name == "level" else name: value for name, value in model.items()})
    model = _without_gone(model, "model.")
    for family in ("encoding", "masks"):
        if isinstance(fields := model.get(family), dict):
            model[family] = {"activation" if name == "link" else name: value for name, value in fields.items()}
    masker = model.get("masker")
    if isinstance(masker, dict) and masker.get("name") == "continuous_depth":
        model["masker"] = _with_one_depth(masker)
    return model


def _without_gone(part: Any, prefix: str = "") -> Any:
    if not isinstance(part, dict):
        return part
    kept = {}
    for name, value in part.items():
        allowed = _GONE.get(f"{prefix}{name}", ())
        if value not in allowed and ... not in allowed:
            kept[name] = _without_gone(value, f"{prefix}{name}.")
    return kept


def _with_one_depth(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part whose steps were drawn in training with the middle number of steps, which it used."""
    steps = part.get("depth_steps")
    if isinstance(steps, list) and steps and all(isinstance(step, int) for step in steps):
        return part | {"depth_steps": sorted(steps)[len(steps) // 2]}
    return part


def renamed(tensors: Mapping[str, T], model: Any) -> dict[str, T]:
    """Return tensors by today's names, without those of parts that are gone.

    Args:
        model: its configuration, as it was saved.
    """
    masker = model.get("masker") if isinstance(model, dict) else None
    embeds = isinstance(masker, dict) and bool(masker.get("embedding_dim"))
    return {
        "masker." + name if name.startswith("stage_decoders.") else name: tensor
        for name, tensor in tensors.items()
        if not (embeds and name.startswith("masker.embedding."))
    }


def with_frames(data: Any) -> Any:
    """Return plain data in which the names of rates say "frame", as they do today, where they said "tick"."""
    if isinstance(data, dict):
        return {with_frames(key): with_frames(value) for key, value in data.items()}
    if isinstance(data, list):
        return [with_frames(value) for value in data]
    return data.replace("_nats_per_tick", "_nats_per_frame") if isinstance(data, str) else data


def quality_of_format_1(data: dict[str, Any]) -> dict[str, Any]:
    """Return the content of quality.yaml of format 1 in format 2: other names, no intervals by likeness, and no rule
    that tells one speaker alone, which listens to other things by now."""

    def logistic(old: dict[str, Any] | None) -> dict[str, Any] | None:
        if old is None:
            return None
        return {name: old[name] for name in old if name not in ("flagged", "limit_db")} | {"found": old["flagged"]}

    def ridge(old: dict[str, Any]) -> dict[str, Any]:
        return {name: old[name] for name in old if name != "by_likeness"}

    names = {"not_separated": "failure", "silence": "activity"}
    new = {names.get(name, name): value for name, value in data.items() if name != "alone"}
    new |= {"format": 2, "model": ridge(data["model"]), "baseline": ridge(data["baseline"])}
    new["failure"] = logistic(data.get("not_separated"))
    return new
