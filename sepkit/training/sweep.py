"""A sweep: one configuration trained towards several target rates, each a run of its own."""

from __future__ import annotations

import copy
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sepkit.config import SteeringConfig, TrainConfig, to_dict
from sepkit.errors import UserError
from sepkit.files import write_yaml

__all__ = ["run_name", "sweep"]

_POLL_SECONDS = 0.2


def run_name(target_rate: float) -> str:
    """Name of the folder of the run towards this rate."""
    return f"rate_{target_rate:g}"


def sweep(
    config: TrainConfig, out: Path | str, target_rates: Sequence[float], jobs: int = 1, imports: Sequence[str] = ()
) -> Path:
    """The folder of runs towards each target rate; run again, each goes on where it stopped.

    Every run is `sepkit train` in a process of its own, on `config` with `objective.rates.steering.total` set to its
    rate: OUT/rate_40 is an experiment like any other, made from OUT/rate_40.yaml. With several at once each writes to
    OUT/rate_40.log. A run that fails does not stop the others.

    Args:
        config: what all have in common; its steering says what a target is nats of, and how weights change.
        out: folder of the runs, made if absent.
        target_rates: of the sum of both rates, different from each other.
        jobs: how many run at once; give each its own cores or accelerator.
        imports: Python files that register a user's own choices.

    Raises:
        UserError: rates that are no positive numbers or name the same folder, targets of single rates beside them, a
            model without rates, or runs that failed, by name.
    """
    out = Path(out)
    _check(config, target_rates, jobs)
    commands: dict[str, list[str]] = {}
    for rate in target_rates:
        own = copy.deepcopy(config)
        steering = own.objective.rates.steering or SteeringConfig()
        steering.total = rate
        own.objective.rates.steering = steering
        file = out / f"{run_name(rate)}.yaml"
        write_yaml(file, to_dict(own))
        more = [word for path in imports for word in ("--import", path)]
        commands[run_name(rate)] = ["train", "--config", str(file), *more, "--out", str(out / run_name(rate))]
    logs = {name: out / f"{name}.log" if jobs > 1 else None for name in commands}
    failed = [name for name, code in _run_all(commands, logs, jobs).items() if code]
    if failed:
        where = f"see {out / failed[0]}.log" if jobs > 1 else "see above"
        raise UserError(f"{', '.join(failed)}: training failed, {where}; the same command continues the others")
    return out


def _check(config: TrainConfig, target_rates: Sequence[float], jobs: int) -> None:
    if not all(0 < rate < math.inf for rate in target_rates):
        found = ", ".join(f"{rate:g}" for rate in target_rates)
        raise UserError(f"--target-rates: found {found}, expected numbers above 0")
    names = [run_name(rate) for rate in target_rates]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise UserError(f"--target-rates: found several that would be {repeated[0]}; expected different rates")
    if jobs < 1:
        raise UserError(f"--jobs: found {jobs}, expected at least 1")
    steering = config.objective.rates.steering
    if steering is not None and (steering.encoding is not None or steering.masks is not None):
        raise UserError(
            "objective.rates.steering: a target of one rate beside --target-rates, which are of their sum; remove it"
        )


def _run_all(commands: Mapping[str, list[str]], logs: Mapping[str, Path | None], jobs: int) -> dict[str, int]:
    """Exit status of `sepkit ARGUMENTS` for each of the commands, that many at once.

    An interrupt of this process reaches those that run; they save what they have, and this waits for it.
    """
    waiting, running, codes = list(commands), dict[str, subprocess.Popen[bytes]](), dict[str, int]()
    with _termination_interrupts():
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
    with log.open("ab") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=stream)


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """SIGTERM, as schedulers send it, ends this process the way Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
