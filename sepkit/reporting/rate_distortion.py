"""Compare variational models trained towards different rates: the rates reached, and the distortion there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sepkit.cleaning import escaped
from sepkit.errors import UserError
from sepkit.evaluation.labels import RATES, short_label_of
from sepkit.evaluation.run_folder import EvaluationFolder, Run, read_curve
from sepkit.files import write_csv
from sepkit.reporting.compared_runs import digits_of
from sepkit.reporting.curve_figures import optimum, rate_distortion_curve
from sepkit.reporting.figures import save_png
from sepkit.reporting.tables import markdown_table

_STEERING = "objective.rates.steering"
_REACHED = 0.1
# Steered quantity -> the latents whose rates it sums.
_STEERED = {"total": ("encoding", "mask"), "encoding": ("encoding",), "masks": ("mask",)}
_MET = {None: "", True: "yes", False: "no"}
_MEASURES = ("blr_nll_nats_per_sample", "si_sdr_db")


@dataclass
class Target:
    """A rate that a training was steered towards.

    Args:
        name: "total", "encoding" or "masks".
        target: nats.
        reached: nats, over the training mixtures of the last epoch; None without a log of it.
        per: unit that the nats are counted per.
    """

    name: str
    target: float
    reached: float | None
    per: str

    @property
    def met(self) -> bool | None:
        """Whether the rate reached is within 10 % of the target; None if unknown."""
        return None if self.reached is None else abs(self.reached - self.target) <= _REACHED * self.target


@dataclass
class Point:
    """One model on one test set: means over mixtures, NaN for missing measurements.

    Args:
        run: its name.
        rate_nats_per_frame: Rate of encoding and masks together, nats per frame.
        rate_nats_per_dimension: the same over the number of latent values of a frame.
        blr_nll_nats_per_sample: the distortion: the negative log evidence of the references.
        si_sdr_db: SI-SDR of the estimates, dB.
    """

    run: str
    rate_nats_per_frame: float
    rate_nats_per_dimension: float
    blr_nll_nats_per_sample: float
    si_sdr_db: float


def rate_distortion_section(runs: Sequence[Run], path: Path) -> str:
    """Return Markdown of rates and distortions; write FILE_rate_distortion.png and rate_distortion.csv beside `path`.

    Tables show the target rates and those reached, and the best model of each test set with the loss of the model with
    the highest rate. The CSV file has all models on all test sets; the report draws it.

    Args:
        runs: experiments, measured on one test set or more.
        path: FILE.md.

    Raises:
        UserError: nothing measured, or a model without rates or neither distortion nor SI-SDR.
    """
    names = dict.fromkeys(evaluation.name for run in runs for evaluation in run.evaluations)
    sets = sorted(names, key=lambda name: name != "test")
    points = {name: points_of(runs, name) for name in sets}
    csv_path = path.with_name("rate_distortion.csv")
    tables = f"### Rates\n\n{_rate_table(runs, points)}", f"### Best models\n\n{_optimum_table(points)}"
    columns = ["rate_nats_per_dimension", *_MEASURES]
    curves = ((name, [getattr(point, c) for c in columns]) for name, models in points.items() for point in models)
    rows = ([*("" if math.isnan(number) else repr(number) for number in numbers), name] for name, numbers in curves)
    write_csv(csv_path, [*columns, "curve"], rows)
    file = save_png(rate_distortion_curve(read_curve(csv_path)), path, "rate_distortion")
    return "\n".join(
        [
            *tables,
            "The distortion is the negative log evidence a sample. Worse by: the model with the highest rate on the "
            "set, against the best.\n",
            f"![Distortion and SI-SDR against rate]({file})\n",
            "A dot is a model, lines are running means over three models in order of rate, stars the best.\n",
        ]
    )


def targets_of(run: Run) -> list[Target]:
    """Return the rates that the training of a run was steered towards; empty if it was not."""
    settings = run.settings
    per = str(settings.get(f"{_STEERING}.per", "frame"))
    epochs = [record for record in (run.log.records if run.log else ()) if record.get("kind") == "epoch"]
    targets = []
    for name, latents in _STEERED.items():
        target = settings.get(f"{_STEERING}.{name}")
        if target is None:
            continue
        columns = [f"train_{what}_rate_nats_per_{per}" for what in latents]
        rates = [epochs[-1][column] for column in columns if epochs and epochs[-1].get(column) is not None]
        targets.append(Target(name, float(target), math.fsum(rates) if rates else None, per))
    return targets


def points_of(runs: Sequence[Run], test_set: str) -> list[Point]:
    """Return the models that were measured on a test set, ordered by their rate there.

    Raises:
        UserError: an evaluation without rates, or with neither distortion nor SI-SDR.
    """
    found = [(run, evaluation) for run in runs if (evaluation := run.evaluation(test_set)) is not None]
    return sorted((_point(run, evaluation) for run, evaluation in found), key=lambda p: p.rate_nats_per_dimension)


def _point(run: Run, evaluation: EvaluationFolder) -> Point:
    *of_latents, per_dimension = (evaluation.mean(name) for name in RATES)
    if per_dimension is None:
        raise UserError(
            f"{evaluation.folder}: found no rate_nats_per_dimension, expected it of a model with variational latents; "
            "leave the run out, or evaluate it again"
        )
    means = (evaluation.mean(name) for name in ("blr_nats_per_sample", "si_sdr_db"))
    blr, si_sdr = (math.nan if mean is None else mean for mean in means)
    if math.isnan(blr) and math.isnan(si_sdr):
        raise UserError(
            f"{evaluation.folder}: found neither blr_nats_per_sample nor si_sdr_db; evaluate with --metrics si_sdr blr"
        )
    per_frame = math.fsum(rate for rate in of_latents if rate is not None)
    return Point(run.name, per_frame, per_dimension, -blr, si_sdr)


def _rate_table(runs: Sequence[Run], points: dict[str, list[Point]]) -> str:
    """Return a table of the targets, a row for each, the rates that training reached, and those on every test set."""
    targets = {run.name: targets_of(run) for run in runs}
    units = sorted({target.per for of_run in targets.values() for target in of_run}) or ["frame"]
    if len(units) > 1:
        raise UserError(f"runs: found targets in nats per {' and per '.join(units)}; summarize them separately")
    rows = []
    for run in sorted(runs, key=lambda run: math.fsum(target.target for target in targets[run.name])):
        found = (next((point for point in models if point.run == run.name), None) for models in points.values())
        on_sets = ["" if p is None else f"{p.rate_nats_per_frame:.4g} ({p.rate_nats_per_dimension:.3f})" for p in found]
        of_targets = [
            [t.name, f"{t.target:.4g}", "" if t.reached is None else f"{t.reached:.4g}", _MET[t.met]]
            for t in targets[run.name]
        ]
        rows += [[escaped(run.name), *cells, *on_sets] for cells in of_targets or [[""] * 4]]
    reached = sum(all(target.met for target in mine) for mine in targets.values() if mine)
    steered = sum(bool(mine) for mine in targets.values())
    head = f"[nats per {units[0]}]"
    header = ["model", "rate", f"target {head}", f"training, last epoch {head}", "within 10 %", *map(escaped, points)]
    note = f"\nIn parentheses: nats per dimension. {reached} of {steered} steered models are within 10 %.\n"
    return markdown_table(header, rows, words=(0, 1)) + note


def _optimum_table(points: dict[str, list[Point]]) -> str:
    header = ["test set"]
    for name in _MEASURES:
        label = "distortion [nats per sample]" if name == _MEASURES[0] else short_label_of(name)
        header += [label, "model", "nats per dimension", "highest rate: worse by"]
    rows = []
    for test_set, models in points.items():
        cells = []
        for name in _MEASURES:
            values = np.array([getattr(point, name) for point in models])
            best = optimum(name, values)
            if best is None:
                cells += [""] * 4
                continue
            digits, of_best = digits_of(name), models[best]
            # Ordered by rate, so the last measured value has the highest rate.
            worse = abs(values[np.isfinite(values)][-1] - values[best])
            cells += [f"{values[best]:.{digits}f}", escaped(of_best.run), f"{of_best.rate_nats_per_dimension:.3f}"]
            cells.append(f"{worse:.{digits}f}")
        rows.append([escaped(test_set), *cells])
    return markdown_table(header, rows, words=(0, 2, 6))
