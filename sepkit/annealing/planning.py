"""Plan the cooling of annealed MCL: the temperature at which hypotheses will be seen to part. No torch.

Around the merged state a gradient step multiplies the distance of two hypotheses along the top eigenvector by
1 + 2 eta (T_c / T - 1), with eta the step on one hypothesis. The split is seen once the distance has grown by the
factor e^Lambda. Below T_c this takes time, and a start above T_c delays it further, because distances shrink there.
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sepkit.errors import UserError
from sepkit.numbers import Between, Positive

# The distance has then grown so far that nine free hypotheses for three Gaussians are seen apart.
_SEEN = math.log(120.0)
# A split in this last share of a run leaves no time to train the separate hypotheses.
_LATE = 0.9
# A start this many times the critical temperature only delays the split.
_HOT = 1.5
_LARGEST_STEP = 1e6
# Epochs that are added up at once.
_BLOCK = 65_536


def shown(kind: str, data: dict[str, Any], lines: Sequence[str], warnings: Sequence[str], as_json: bool) -> str:
    """Return what `sepkit plan-schedule KIND` prints; warnings go to standard error.

    Args:
        kind: Kind of schedule.
        data: Every number by name, or None.
        lines: The same for a reader, and lines of a configuration for `sepkit train`.
        warnings: Warnings about the plan.
        as_json: Whether to print the data instead of the lines.
    """
    for warning in warnings:
        print(f"sepkit plan-schedule {kind}: {warning}", file=sys.stderr)
    return json.dumps(data, allow_nan=False) if as_json else "\n".join(lines)


@dataclass(frozen=True)
class Cooling:
    """Temperatures, constant within an epoch: "linear", T0 (1 - t / epochs), or "exponential", T0 decay^t."""

    kind: Literal["linear", "exponential"]
    initial: float
    epochs: float
    decay: float = 0.9

    def temperatures(self, epochs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the temperature at each epoch; 0 is the start."""
        if self.kind == "linear":
            return self.initial * np.maximum(1 - epochs / self.epochs, 0.0)
        return self.initial * self.decay**epochs

    def epoch_of(self, temperature: float) -> float:
        """Return the epoch at which the schedule has a temperature, at most T0."""
        if self.kind == "linear":
            return self.epochs * (1 - temperature / self.initial)
        return math.log(self.initial / temperature) / math.log(1 / self.decay)


def split_time(cooling: Cooling, critical: float, step_size: float, growth: float = _SEEN) -> float | None:
    """Return the epoch at which the split is seen: where sum_t ln |1 + 2 eta (T_c / T(t) - 1)| reaches Lambda.

    eta is the step size of one step an epoch. The result has a fraction; it is None if linear cooling ends before.
    """
    total, first = 0.0, 0
    while cooling.kind == "exponential" or first < cooling.epochs:
        sums = total + np.cumsum(_growth(cooling, critical, step_size, first, first + _BLOCK))
        reached = np.flatnonzero(sums >= growth)
        if len(reached):
            place = int(reached[0])
            before = sums[place - 1] if place else total
            return first + place + float((growth - before) / (sums[place] - before))
        total, first = float(sums[-1]), first + _BLOCK
    return None


def step_size_for_split(cooling: Cooling, critical: float, seen: float, growth: float = _SEEN) -> float:
    """Return the eta with which `split_time` is in the middle of the epoch that has the temperature `seen`.

    Args:
        cooling: Schedule of the run.
        critical: Critical temperature.
        seen: Temperature at which the run was seen to split.
        growth: Lambda, nats.

    Raises:
        UserError: no step size splits hypotheses there.
    """
    if seen >= critical:
        raise UserError(f"--observed-split: found {seen:g}, expected less than the critical temperature {critical:g}")
    end = cooling.epoch_of(seen) + 0.5
    # Only steps that jump over the minimum could part hypotheses before they have cooled for longer than they were hot.
    possible = float((critical / cooling.temperatures(np.arange(end, dtype=np.float64)) - 1).sum()) > 0

    def missing(step_size: float) -> float:
        grown = _growth(cooling, critical, step_size, 0, math.ceil(end))
        return growth - float(grown.sum() - (math.ceil(end) - end) * grown[-1])

    high = 1e-9
    while possible and missing(high) > 0:
        high *= 1.5
        possible = high < _LARGEST_STEP
    if not possible:
        raise UserError(f"--observed-split: found {seen:g}, too early for a run that begins at {cooling.initial:g}")
    # It takes most of a second, which `--help` does not have.
    from scipy.optimize import root_scalar

    return root_scalar(missing, bracket=(high / 1.5, high)).root if high > 1e-9 else high


def _growth(cooling: Cooling, critical: float, step_size: float, first: int, end: int) -> NDArray[np.float64]:
    """Return the growth of distances in each of these epochs, in nats; linear cooling ends on its own."""
    stop = min(end, math.ceil(cooling.epochs)) if cooling.kind == "linear" else end
    temperatures = np.maximum(cooling.temperatures(np.arange(first, stop, dtype=np.float64)), sys.float_info.min)
    with np.errstate(over="ignore"):
        factors = np.abs(1 + 2 * step_size * (critical / temperatures - 1))
    return np.log(np.clip(factors, sys.float_info.min, sys.float_info.max))


def plan_amcl(
    *,
    critical_temperature: Positive,
    initial_temperature: Positive,
    epochs: Positive,
    kind: Literal["linear", "exponential"] = "exponential",
    decay: Between = 0.9,
    step_size: Positive = 0.05,
    observed_split: Positive | None = None,
    observed_decay: Between | None = None,
    json: bool = False,
) -> str:
    """Predict the temperature and epoch at which hypotheses of annealed multiple choice learning split.

    Example:
        sepkit plan-schedule amcl --critical-temperature 0.4 --initial-temperature 2 --epochs 50

    Args:
        critical_temperature: T_c, as `sepkit find-temperature` prints it
        initial_temperature: T0, in the same unit
        epochs: number of epochs of annealing
        kind: shape of the cooling
        decay: factor on the temperature per epoch, with --kind exponential
        step_size: eta, size of a gradient step on one hypothesis, one step per epoch
        observed_split: temperature at which a run split; replaces --step-size, which --json prints
        observed_decay: decay of that run (default: --decay)
        json: print all numbers as JSON
    """
    if initial_temperature < critical_temperature:
        raise UserError(
            f"--initial-temperature: found {initial_temperature:g}, below the critical temperature"
            f" {critical_temperature:g}, at which hypotheses split from the first step on; expected"
            f" {critical_temperature:g} or more"
        )
    cooling = Cooling(kind, initial_temperature, epochs, decay)
    if observed_split is not None:
        run = replace(cooling, decay=decay if observed_decay is None else observed_decay)
        step_size = step_size_for_split(run, critical_temperature, observed_split)
    elif observed_decay is not None:
        raise UserError("--observed-split: missing, the temperature at which the observed run was seen to split")
    temperature, epoch = _seen(cooling, critical_temperature, step_size)
    best = replace(cooling, initial=critical_temperature)
    best_temperature, best_epoch = _seen(best, critical_temperature, step_size)
    warnings = []
    if initial_temperature > _HOT * critical_temperature:
        warnings.append(
            f"initial temperature {initial_temperature:g} is far above the critical one, {critical_temperature:g}: a"
            " hotter start makes the split later"
        )
    if epoch is None or epoch > _LATE * epochs:
        warnings.append(f"the split comes too late to train parted hypotheses: cool more slowly than {epochs:g} epochs")
    data = {
        "critical_temperature": critical_temperature,
        "initial_temperature": initial_temperature,
        "epochs": epochs,
        "kind": kind,
        "decay": decay if kind == "exponential" else None,
        "step_size": step_size,
        "delay_epochs": _SEEN / (2 * step_size),
        "split_temperature": temperature,
        "split_epoch": epoch,
        "recommended_initial_temperature": critical_temperature,
        "recommended_split_temperature": best_temperature,
        "recommended_split_epoch": best_epoch,
    }
    inner = f"end: {epochs:.6g}" if kind == "linear" else f"decay: {decay:.6g}, end: {epochs:g}"
    lines = [
        f"split                 at temperature {temperature:.4g}, {_epoch_words(epoch)}",
        f"recommended           initial temperature {critical_temperature:.4g}, split at {best_temperature:.4g},"
        f" {_epoch_words(best_epoch)}",
        "objective:",
        "  assignment:",
        "    name: amcl",
        f"    temperature: {{name: truncated_{kind}, initial: {critical_temperature:.6g}, {inner}}}",
    ]
    return shown("amcl", data, lines, warnings, json)


def _seen(cooling: Cooling, critical: float, step_size: float) -> tuple[float, float | None]:
    time = split_time(cooling, critical, step_size)
    if time is None:
        return 0.0, None
    epoch = float(math.floor(time))
    return float(cooling.temperatures(np.array(epoch))), epoch if epoch < cooling.epochs else None


def _epoch_words(epoch: float | None) -> str:
    return "after the end" if epoch is None else f"epoch {epoch:.4g}"
