"""Plan the cooling of annealed MCL: the temperature at which hypotheses will be seen to part. No torch."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Literal

from sepkit.annealing.planning import Plan, inside, positive
from sepkit.annealing.split_delay import (
    Cooling,
    Steps,
    cooling_for_split,
    cooling_for_split_by_steps,
    delay_of_split,
    split_epoch,
    split_temperature,
    split_time,
    step_size_for_split,
)
from sepkit.errors import UserError

# A split in this last share of a run leaves no time to train the separate hypotheses.
_LATE = 0.9
# A start this many times the critical temperature only delays the split.
_HOT = 1.5


def plan_amcl(
    critical_temperature: float,
    initial_temperature: float,
    epochs: float,
    *,
    kind: Literal["linear", "exponential"] = "exponential",
    decay: float = 0.9,
    step_size: float = 0.05,
    spread_growth: float = 120.0,
    steps_per_epoch: int = 1,
    observed_split: float | None = None,
    observed: Cooling | None = None,
    floor: bool = False,
    wanted_split: float | None = None,
    closed_form: bool = False,
) -> Plan:
    """Return the temperature and epoch at which hypotheses are seen to split, and the best initial temperature, T_c.

    The speed of the split either follows from the step size and the factor by which distances must grow, or is fitted
    to one observed split. What each step does is added up, unless the closed form is asked for, which takes steps to be
    small.

    Args:
        critical_temperature: T_c, as `sepkit find-temperature` reports it.
        initial_temperature: T0, in the same unit.
        epochs: of annealing.
        kind: of cooling.
        decay: of the temperature in an epoch, exponential cooling.
        step_size: eta, of one hypothesis.
        spread_growth: factor by which the distance of hypotheses grows until the split is seen.
        steps_per_epoch: of the training.
        observed_split: temperature at which another run was seen to split.
        observed: schedule of that run; None: the planned one.
        floor: whether noise keeps hypotheses apart above T_c.
        wanted_split: temperature at which the split should be seen; the plan then says how slowly to cool for that.
        closed_form: by Lambert's W.

    Returns:
        The plan.

    Raises:
        UserError: a number out of its range, an initial temperature below the critical one, or an observed or wanted
            split above the temperatures of its run.
    """
    positive(
        critical_temperature=critical_temperature, initial_temperature=initial_temperature, epochs=epochs,
        step_size=step_size, steps_per_epoch=steps_per_epoch,
    )  # fmt: skip
    inside("decay", decay)
    if not 1 < spread_growth < math.inf:
        raise UserError(f"--spread-growth: found {spread_growth:g}, expected more than 1")
    if initial_temperature < critical_temperature:
        raise UserError(
            f"--initial-temperature: found {initial_temperature:g}, below the critical temperature"
            f" {critical_temperature:g}, where hypotheses part from the first step on; expected"
            f" {critical_temperature:g} or more"
        )
    cooling = Cooling(kind, initial_temperature, epochs, decay, floor)
    steps = Steps(step_size, math.log(spread_growth), steps_per_epoch)
    delay = steps.growth / (2 * step_size * steps_per_epoch)
    if observed_split is not None:
        steps, delay = _fitted(observed or cooling, critical_temperature, observed_split, steps, closed_form)
    see = partial(_see, critical=critical_temperature, delay=delay, steps=None if closed_form else steps)
    temperature, epoch = see(cooling)
    best = Cooling(kind, critical_temperature, epochs, decay, floor)
    best_temperature, best_epoch = see(best)
    warnings = []
    if initial_temperature > _HOT * critical_temperature:
        warnings.append(
            f"initial temperature {initial_temperature:g} is far above the critical one, {critical_temperature:g}: a"
            " hotter start makes the split later"
        )
    if epoch is None or epoch > _LATE * epochs:
        warnings.append(
            f"the split comes too late to train the parted hypotheses: cool more slowly than {epochs:g} epochs"
        )
    data = {
        "critical_temperature": critical_temperature,
        "initial_temperature": initial_temperature,
        "epochs": epochs,
        "kind": kind,
        "decay": decay if kind == "exponential" else None,
        "delay_epochs": delay,
        "method": "closed_form" if closed_form else "steps",
        "split_temperature": temperature,
        "split_epoch": epoch,
        "closed_form_split_temperature": split_temperature(cooling, critical_temperature, delay),
        "recommended_initial_temperature": critical_temperature,
        "recommended_split_temperature": best_temperature,
        "recommended_split_epoch": best_epoch,
    }
    lines = [
        f"split                 at temperature {temperature:.4g}, {_epoch_words(epoch)}",
        f"recommended           initial temperature {critical_temperature:.4g}, split at {best_temperature:.4g},"
        f" {_epoch_words(best_epoch)}",
    ]
    if wanted_split is not None:
        found = _for_wanted_split(best, critical_temperature, delay, None if closed_form else steps, wanted_split)
        seen = split_epoch(found, wanted_split)
        data |= {
            "wanted_split_temperature": wanted_split,
            "required_epochs": found.epochs if kind == "linear" else None,
            "required_decay": found.decay if kind == "exponential" else None,
            "wanted_split_epoch": seen,
        }
        needed = f"{found.epochs:.4g} epochs" if kind == "linear" else f"decay {found.decay:.6g}"
        lines.append(
            f"for a split at {wanted_split:<7.4g}{needed} from {critical_temperature:.4g}, {_epoch_words(seen)}"
        )
        epochs, decay = (found.epochs, decay) if kind == "linear" else (epochs, found.decay)
    inner = f"end: {epochs:.6g}" if kind == "linear" else f"decay: {decay:.6g}, end: {epochs:g}"
    yaml = [
        "objective:",
        "  assignment:",
        "    name: amcl",
        f"    temperature: {{name: truncated_{kind}, initial: {critical_temperature:.6g}, {inner}}}",
    ]
    return Plan(data, lines, warnings, yaml)


def _fitted(
    watched: Cooling, critical: float, observed_split: float, steps: Steps, closed_form: bool
) -> tuple[Steps, float]:
    """Return the steps, and Lambda / (2 eta) in epochs, with which a split is seen where one was."""
    positive(observed_split=observed_split)
    first = min(watched.initial, critical)
    if observed_split >= first:
        raise UserError(
            f"--observed-split: found {observed_split:g}, expected less than {first:g}, the critical or the initial"
            " temperature of its run"
        )
    try:
        delay = delay_of_split(watched, critical, observed_split)
        if not delay > 0:
            raise ValueError
        if not closed_form:
            steps = replace(steps, step_size=step_size_for_split(watched, critical, observed_split, steps))
            delay = steps.growth / (2 * steps.step_size * steps.per_epoch)
    except ValueError:
        raise UserError(
            f"--observed-split: found {observed_split:g}, too early for a run that begins at {watched.initial:g};"
            " with noisy training, add --noise-floor"
        ) from None
    return steps, delay


def _see(cooling: Cooling, critical: float, delay: float, steps: Steps | None) -> tuple[float, float | None]:
    """Return the temperature and the epoch at which a split is seen, the latter None if the run ends before.

    `steps` are None for the closed form.
    """
    if steps is None:
        temperature = split_temperature(cooling, critical, delay)
        return temperature, _before(cooling, temperature, cooling.epochs)
    time = split_time(cooling, critical, steps)
    if time is None:
        return 0.0, None
    epoch = math.floor(time)
    return cooling.temperature(epoch), float(epoch) if epoch < cooling.epochs else None


def _for_wanted_split(best: Cooling, critical: float, delay: float, steps: Steps | None, wanted: float) -> Cooling:
    """How slowly to cool from the critical temperature."""
    if not 0 < wanted < critical:
        raise UserError(
            f"--wanted-split: found {wanted:g}, expected a number between 0 and the critical temperature, {critical:g}"
        )
    if steps is None:
        return cooling_for_split(best, critical, delay, wanted)
    return cooling_for_split_by_steps(best, critical, steps, wanted)


def _before(cooling: Cooling, temperature: float, epochs: float) -> float | None:
    """Return the epoch of the split; None if the run ends before it."""
    if temperature <= 0:
        return None
    epoch = split_epoch(cooling, temperature)
    return epoch if epoch < epochs else None


def _epoch_words(epoch: float | None) -> str:
    return "after the end" if epoch is None else f"epoch {epoch:.4g}"
