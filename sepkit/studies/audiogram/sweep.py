"""Sweeps of partial VAEs over seeds and target rates, trained as stacks; each model gets an experiment folder."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sepkit.choices import to_dict
from sepkit.errors import UserError
from sepkit.files import parse_json, write_text, write_yaml
from sepkit.models.storage.checkpoints import load_checkpoint, save_model
from sepkit.models.storage.folders import read_description
from sepkit.studies.audiogram.config import AudiogramTaskConfig
from sepkit.studies.audiogram.model import PartialVAE
from sepkit.training.task_definition import say

LARGEST_STACK = 48
"""Beyond this a step waits for memory, and a larger stack saves nothing."""

_OWN = re.compile(r"(.*_nats)_(\d+)")


class Member(NamedTuple):
    """One model of a sweep: its seed, the rate that it is steered to (nats; None: by the configuration), its folder."""

    seed: int
    rate: float | None
    name: str


def members_of(seeds: Sequence[int], rates: Sequence[float] | None) -> list[Member]:
    """Return the models of a sweep: each seed with each rate; raise UserError for those twice or out of range."""
    for name, values in (("--seeds", seeds), ("--target-rates", rates or [])):
        texts = [f"{value:g}" for value in values]
        repeated = [text for text in texts if texts.count(text) > 1]
        if repeated:
            raise UserError(f"{name}: found {repeated[0]} twice, expected different ones")
    if not all(0 < rate < math.inf for rate in rates or []):
        raise UserError(f"--target-rates: found {', '.join(f'{r:g}' for r in rates or [])}, expected numbers above 0")
    if any(seed < 0 for seed in seeds):
        raise UserError("--seeds: expected numbers of 0 or more")
    several = len(seeds) > 1 or not rates
    named = [(seed, rate) for seed in seeds for rate in (rates or [None])]
    return [
        Member(seed, rate, "_".join([*([f"rate_{rate:g}"] if rate else []), *([f"seed_{seed}"] if several else [])]))
        for seed, rate in named
    ]


def train_stacks(
    config: AudiogramTaskConfig, out: str | Path, seeds: Sequence[int] | None, rates: Sequence[float] | None
) -> Path:
    """Train the runs OUT/seed_0, OUT/rate_2_seed_0 ... and return their folder; another call resumes.

    Models are trained together in stacks (OUT/stacks/stack_0 ...), whose state is kept there. Seeds default to
    `trainer.seed` alone, target rates (nats) to that of the configuration.
    """
    from sepkit.training.run import train

    folder = Path(out)
    members = members_of(seeds or [config.trainer.seed], rates)
    count = -(-len(members) // LARGEST_STACK)
    size = -(-len(members) // count)
    for number in range(count):
        chunk = members[number * size : (number + 1) * size]
        stack = folder / "stacks" / f"stack_{number}"
        say(f"stack {number + 1} of {count}: {len(chunk)} models")
        together = copy.deepcopy(config)
        together.model.models, together.trainer.seed = len(chunk), chunk[0].seed
        together.stack.seeds = [member.seed for member in chunk]
        together.stack.target_rates = [member.rate for member in chunk if member.rate is not None]
        train(together, stack)
        _take_apart(stack, folder, config, chunk)
    return folder


def _take_apart(stack: Path, out: Path, config: AudiogramTaskConfig, members: Sequence[Member]) -> None:
    """Make an experiment folder of each model of a trained stack: config.yaml, metrics.jsonl, model and last_model."""
    lines = (stack / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [parse_json(line) for line in lines if line.strip()]
    for kind in ("model", "last_model"):
        info = read_description(stack / kind).get("info") or {}
        models = load_checkpoint(stack / kind, of=PartialVAE).unstack()
        for place, (member, model) in enumerate(zip(members, models, strict=True)):
            save_model(model, out / member.name / kind, _own(info, place) | {"stack": str(stack.name)})
    for place, member in enumerate(members):
        folder, alone = out / member.name, copy.deepcopy(config)
        alone.trainer.seed = member.seed
        if member.rate is not None:
            alone.objective.steering = config.steered_to(member.rate)
        write_yaml(folder / "config.yaml", to_dict(alone))
        write_text(folder / "metrics.jsonl", "".join(json.dumps(_own(record, place)) + "\n" for record in records))


def _own(record: dict[str, Any], place: int) -> dict[str, Any]:
    """Return one model's part of a stack's record: `train_rate_nats_3` becomes `train_rate_nats` for model 3."""
    matches = {name: _OWN.fullmatch(name) for name in record}
    return {
        match[1] if match else name: record[name]
        for name, match in matches.items()
        if match is None or int(match[2]) == place
    }
