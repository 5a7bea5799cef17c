"""`sepkit audiogram ...`: choose the next threshold, play whole sessions on data, and make tables of them."""

from pathlib import Path
from typing import Annotated, Literal

from sepkit.errors import Bounds
from sepkit.numbers import Count, Positive, Seed


def next_(*, model: str, measured: list[str] | None = None, age: float | None = None, stop_at_db: float = 5.0) -> str:
    """Print as JSON what to measure next, what to expect of the rest, and whether to stop.

    Research software, not a medical device.

    Example:
        sepkit audiogram next --model exp/audiogram --measured right_1000=35

    Args:
        model: folder that `sepkit train --config audiogram` wrote (EXP or EXP/model)
        measured: thresholds so far, such as right_1000=35 left_4000=60 (dB HL); if one appears twice, the later counts
        age: age in years (default: unknown)
        stop_at_db: root mean squared error that is good enough, dB
    """
    import json

    from sepkit.studies.audiogram import load_model

    return json.dumps(load_model(model).session(age).measured_all(measured or []).answer(stop_at_db), indent=1)


def simulate(
    *,
    model: str,
    manifest: str,
    out: str,
    dev: str | None = None,
    strategies: list[Literal["largest_variance", "random", "single_best"]] | None = None,
    stop_at_db: list[Positive] | None = None,
    samples: Annotated[int, Bounds(ge=2)] = 64,
    first: Count | None = None,
    seed: Seed = 0,
) -> Path:
    """Play whole sessions with known audiograms: information curves, areas and stopping.

    Research software, not a medical device.

    Example:
        sepkit audiogram simulate --model exp/audiogram --manifest data/test.csv --out sessions

    Args:
        model: folder that `sepkit train --config audiogram` wrote
        manifest: audiograms to play (test.csv); errors are against test_truth.csv where that is beside it
        out: folder of simulation.json; for a stack of models, one folder each (DIR/seed_0 ...)
        dev: validation audiograms (dev.csv), for the single best order and for the rules of stopping
        strategies: strategies to play: largest_variance, random, single_best; stopping rules are shown for the first
            (default: largest_variance random, and single_best with --dev)
        stop_at_db: errors that are good enough, dB (default: 5 6 7)
        samples: number of samples of the latent variable
        first: number of audiograms of each file, from the first (default: all)
        seed: seed of random orders
    """
    import sys

    from sepkit.errors import UserError
    from sepkit.studies.audiogram.data import NOT_A_MEDICAL_DEVICE
    from sepkit.studies.audiogram.simulation import Settings, simulate

    chosen = strategies or ["largest_variance", "random", *["single_best"] * (dev is not None)]
    settings = Settings(chosen, stop_at_db or (5.0, 6.0, 7.0), samples, first, seed)
    folders, refused = simulate(model, {"manifest": manifest, "dev": dev}, out, settings)
    print(f"Models simulated: {len(folders)}. {NOT_A_MEDICAL_DEVICE}")
    if refused:
        print(*refused, sep="\n", file=sys.stderr)
        raise UserError(f"{len(refused)} rows are left out, see above; the others are in {out}")
    return Path(out)


def tables(simulations: list[str], *, out: str) -> Path:
    """Write tables of simulations, and a figure: information curves and stopping.

    They have means and deviations over the models of each folder.

    Example:
        sepkit audiogram tables sessions --out audiogram.md

    Args:
        simulations: folders that `sepkit audiogram simulate` wrote, or folders of such folders
        out: file to write, FILE.md; the figure goes beside it
    """
    from sepkit.studies.audiogram.results import write_tables

    print(write_tables(simulations, out))
    return Path(out)


COMMANDS = {"next": next_, "simulate": simulate, "tables": tables}


def calibrate(model: str, *, manifest: str, first: int | None = None) -> Path:
    """Fit the prediction of a model's own error, by which `sepkit audiogram next` decides when to stop.

    Writes stopping.yaml into the model's folder. Research software, not a medical device.

    Args:
        model: MODEL that `sepkit train` wrote (EXP, EXP/model)
        manifest: audiograms that the model was not trained on, dev.csv for example
        first: number of audiograms, from the beginning of the manifest (default: all)
    """
    from sepkit.studies.audiogram.data import NOT_A_MEDICAL_DEVICE
    from sepkit.studies.audiogram.simulation import calibrate

    rule, path = calibrate(model, manifest, first)
    correlation = "none" if rule.correlation is None else f"{rule.correlation:.2f}"
    print(
        f"fitted on {rule.sessions} sessions, errors against the {rule.reference} audiogram: expected errors are off "
        f"by {rule.error_db:.2f} dB (root mean square), correlation {correlation}. {NOT_A_MEDICAL_DEVICE}"
    )
    return path
