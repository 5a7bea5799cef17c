"""`sepkit train`: the one training entry point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sepkit.cli._configuration import parse_config
from sepkit.cli._outputs import NAMES
from sepkit.cli._parser import Parser, reader
from sepkit.errors import UserError
from sepkit.owned import writing

DESCRIPTION = """Train a model. Running the same command again resumes from the last saved step.

Any key of the configuration is an option (--model.masker.name, --trainer.max_epochs ...). The options listed below are
those of the configuration that --config and --task pick. --target-rates trains one variational model per rate, in
EXP/rate_40 and so on, and --seeds one model per seed, in EXP/seed_0 and so on.
"""

ALIASES = {
    "--devices": "trainer.devices",
    "--num-nodes": "trainer.num_nodes",
    "--precision": "trainer.precision",
    "--checkpoint-every-steps": "trainer.checkpoint_every_steps",
    "--seed": "trainer.seed",
    "--init-from": "init_from",
}


def run(arguments: list[str]) -> Path | None:
    """Return the folder of the trained model (EXP/model), or of the runs of a sweep.

    Other ranks than the first return None and print nothing.
    """
    short = ", ".join(f"{option} is --{key}" for option, key in ALIASES.items())
    config, options = parse_config(
        "sepkit train", f"{DESCRIPTION}\nShort forms: {short}.", arguments, aliases=ALIASES, add_options=add_options
    )
    config.check()
    with writing(options["out"], (), NAMES["train"]):
        return _train(config, options)


def _train(config: Any, options: dict[str, Any]) -> Path | None:
    if options["target_rates"] is not None or options["seeds"] is not None:
        return _sweep(config, options)
    if options["jobs"] is not None:
        raise UserError("--jobs only applies with --target-rates or --seeds; to use several devices, see --devices")
    from sepkit.studies import import_task
    from sepkit.training.messages import is_first_process
    from sepkit.training.run import train

    import_task(config.name)
    model = train(config, Path(options["out"]))
    return model if is_first_process() else None


def _sweep(config: Any, options: dict[str, Any]) -> Path:
    from sepkit.studies import import_task
    from sepkit.training.run import task_type
    from sepkit.training.sweep import over_seeds, sweep, towards_rates

    import_task(config.name)
    out, rates, seeds = Path(options["out"]), options["target_rates"], options["seeds"]
    task = task_type(config)
    if task.has_own_sweep:
        if options["jobs"] is not None:
            raise UserError(f"--jobs: task {config.name} trains all models of a sweep at once; leave it out")
        return task.sweep(config, out, rates, seeds)
    variants = {"": config} if rates is None else towards_rates(config, rates)
    return sweep(
        variants if seeds is None else over_seeds(variants, seeds), out, options["jobs"] or 1, options["import_"]
    )


def add_options(parser: Parser) -> None:
    """Add the options of `sepkit train` that are no keys of the configuration."""
    parser.add("--out", required=True, type=reader(str, "--out"), metavar="EXP", help="folder of the experiment")
    text = "train once towards each of these sums of both rates, in the unit of objective.rates.steering.per"
    parser.add("--target-rates", nargs="+", type=reader(float, "--target-rates"), metavar="RATE", help=text)
    text = "train once with each of these values of trainer.seed"
    parser.add("--seeds", nargs="+", type=reader(int, "--seeds"), metavar="N", help=text)
    text = "how many runs of --target-rates and --seeds at once (default: 1)"
    parser.add("--jobs", type=reader(int, "--jobs"), metavar="N", help=text)
