"""`sepkit train`: the one training entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sepkit.cli._parser import parse_config
from sepkit.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from jsonargparse import ArgumentParser

DESCRIPTION = """Train a model. Running the same command again resumes from the last saved step.

Any key of the configuration is an option (--model.masker.name, --trainer.max_epochs ...); the options listed below
are those of the configuration that --config picks. With --target-rates a variational model is trained once for each of
them, OUT/rate_40 and so on; with --seeds once for each seed, OUT/seed_0 and so on.
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
    """Folder of the trained model (EXP/model), or of the runs of a sweep.

    None in the processes that other ranks run in, which print nothing.

    Raises:
        UserError: a bad option, configuration, manifest or output folder.
    """
    from pathlib import Path

    for path in _imports(arguments):
        import_file(path)
    short = ", ".join(f"{option} is --{key}" for option, key in ALIASES.items())
    config, options = parse_config(
        "sepkit train", f"{DESCRIPTION}\nShort forms: {short}.", arguments, aliases=ALIASES, add_options=_add_options
    )
    config.check()
    if options.target_rates is not None or options.seeds is not None:
        return _sweep(config, options, _imports(arguments))
    if options.jobs is not None:
        raise UserError("--jobs only applies with --target-rates or --seeds; to use several devices, see --devices")
    from sepkit.studies import import_task
    from sepkit.training.messages import is_first_process
    from sepkit.training.run import train

    import_task(config.name)
    model = train(config, Path(options.out))
    return model if is_first_process() else None


def _sweep(config: Any, options: Any, imports: list[str]) -> Path:
    """The folder of the runs towards all target rates and with all seeds."""
    from pathlib import Path

    from sepkit.studies import import_task
    from sepkit.training.run import task_type
    from sepkit.training.sweep import over_seeds, sweep, towards_rates

    import_task(config.name)
    out = Path(options.out)
    done = task_type(config).sweep(config, out, options.target_rates, options.seeds)
    if done is not None:
        if options.jobs is not None:
            raise UserError(f"--jobs: task {config.name} trains all models of a sweep at once; leave it out")
        return done
    variants = {"": config} if options.target_rates is None else towards_rates(config, options.target_rates)
    if options.seeds is not None:
        variants = over_seeds(variants, options.seeds)
    return sweep(variants, out, options.jobs or 1, imports)


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--out", required=True, type=str, help="folder of the experiment (EXP)")
    parser.add_argument(
        "--target-rates",
        nargs="+",
        type=float,
        help="train once towards each of these sums of both rates, in the unit of objective.rates.steering.per",
    )
    parser.add_argument("--seeds", nargs="+", type=int, help="train once with each of these values of trainer.seed")
    parser.add_argument("--jobs", type=int, help="runs of --target-rates and --seeds at once (default 1)")
    parser.add_argument(
        "--import",
        dest="import_",
        action="append",
        type=str,
        help="Python file that registers your own choices; executed",
    )


def _imports(arguments: list[str]) -> list[str]:
    from sepkit.cli._parser import _values

    return list(_values(arguments, "--import"))


def import_file(path: str) -> Any:
    """Execute a user's Python file, which registers maskers or other choices of its own.

    Raises:
        UserError: no such file.
    """
    import importlib.util
    import sys
    from pathlib import Path

    file = Path(path)
    if not file.is_file():
        raise UserError(f"--import {path}: no such file, expected a Python file")
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module
    specification.loader.exec_module(module)
    return module
