"""Sweeps: train variants of one configuration, one run each."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sepkit.config import SteeringConfig, TaskConfig, TrainConfig, to_dict
from sepkit.errors import UserError
from sepkit.files import write_yaml
from sepkit.owned import claim

_POLL_SECONDS = 0.2


def run_name(target_rate: float) -> str:
    """Return the name of the folder of the run towards this rate."""
    return f"rate_{target_rate:g}"


def towards_rates(config: Any, target_rates: Sequence[float]) -> dict[str, TrainConfig]:
    """Return name -> configuration of a run towards each target, as `objective.rates.steering.total`.

    Args:
        target_rates: of the sum of both rates, different from each other.
    """
    if not isinstance(config, TrainConfig):
        raise UserError(f"--target-rates: found task {config.name}, expected separation, whose rates can be steered")
    if not all(0 < rate < math.inf for rate in target_rates):
        found = ", ".join(f"{rate:g}" for rate in target_rates)
        raise UserError(f"--target-rates: found {found}, expected numbers above 0")
    names = [run_name(rate) for rate in target_rates]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise UserError(f"--target-rates: found several that would be named {repeated[0]}; expected different rates")
    steering = config.objective.rates.steering
    if steering is not None and (steering.encoding is not None or steering.masks is not None):
        raise UserError(
            "objective.rates.steering: found a target of one rate beside --target-rates, of their sum; remove it"
        )
    variants = {}
    for rate in target_rates:
        own = variants[run_name(rate)] = copy.deepcopy(config)
        own.objective.rates.steering = replace(steering or SteeringConfig(), total=rate)
    return variants


def over_seeds(variants: Mapping[str, TaskConfig], seeds: Sequence[int]) -> dict[str, TaskConfig]:
    """Return name -> configuration of each variant with each `trainer.seed`: seed_0, or rate_40_seed_0.

    Args:
        variants: name -> configuration. A name "" is left out of the new names.
    """
    if any(seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds: found {', '.join(map(str, seeds))}, expected different numbers of 0 or more")
    made = {}
    for name, config in variants.items():
        for seed in seeds:
            own = made[f"{name}_seed_{seed}" if name else f"seed_{seed}"] = copy.deepcopy(config)
            own.trainer.seed = seed
    return made


def sweep(variants: Mapping[str, TaskConfig], out: Path | str, jobs: int = 1, imports: Sequence[str] = ()) -> Path:
    """Train every variant and return the folder of the runs; another call resumes each.

    Every run is `sepkit train` in its own process: OUT/NAME is an ordinary experiment, made from OUT/NAME.yaml. If
    several run at once, each writes to OUT/NAME.log. A run that fails does not stop the others.

    Args:
        jobs: number of runs at once; give each its own cores or accelerator.
        imports: Python files that register a user's own choices.
    """
    if jobs < 1:
        raise UserError(f"--jobs: found {jobs}, expected at least 1")
    out = Path(out)
    commands: dict[str, list[str]] = {}
    for name, config in variants.items():
        file = write_yaml(out / f"{name}.yaml", to_dict(config))
        more = [word for path in imports for word in ("--import", path)]
        commands[name] = ["train", "--config", str(file), *more, "--out", str(out / name)]
    logs = {name: out / f"{name}.log" if jobs > 1 else None for name in commands}
    failed = [name for name, code in _run_all(commands, logs, jobs).items() if code]
    if failed:
        where = f"see {out / failed[0]}.log" if jobs > 1 else "see above"
        raise UserError(f"{', '.join(failed)}: training failed, {where}; the same command continues the others")
    return out


def _run_all(commands: Mapping[str, list[str]], logs: Mapping[str, Path | None], jobs: int) -> dict[str, int]:
    """Run `sepkit ARGUMENTS` for each command, `jobs` at once, and return the exit codes.

    An interrupt of this process reaches those that run; they save what they have, and this waits for it.
    """
    waiting, running, codes = list(commands), dict[str, subprocess.Popen[bytes]](), dict[str, int]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running[waiting[0]] = _start(commands[waiting[0]], logs[waiting[0]])
                del waiting[0]
            time.sleep(_POLL_SECONDS)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                codes[name] = running.pop(name).returncode
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    return codes


def _start(arguments: list[str], log: Path | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sepkit", *arguments]
    if log is None:
        return subprocess.Popen(command)
    claim(log)
    with log.open("ab") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=stream)
