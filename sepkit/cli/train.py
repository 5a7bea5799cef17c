"""Train a model. Running the same command again resumes from the last saved step.

Any key of the configuration is an option (--model.masker.name, --trainer.max_epochs ...). The options listed below are
those of the configuration that --config and --task pick. Short forms: {short}.

Example:
    sepkit train --config dual_path_rnn --data.train train.jsonl --data.dev dev.jsonl --out exp/dprnn
"""

from pathlib import Path

from sepkit import studies
from sepkit.cli._configuration import parse_config
from sepkit.cli._outputs import NAMES
from sepkit.cli._parser import Parser, reader
from sepkit.owned import writing

ALIASES = {
    "--devices": "trainer.devices",
    "--num-nodes": "trainer.num_nodes",
    "--precision": "trainer.precision",
    "--checkpoint-every-steps": "trainer.checkpoint_every_steps",
    "--seed": "trainer.seed",
    "--init-from": "init_from",
}


def run(arguments: list[str]) -> Path | None:
    """Return the folder of the trained model, EXP/model.

    Other ranks than the first return None and print nothing.
    """
    short = ", ".join(f"{option} is --{key}" for option, key in ALIASES.items())
    text = str(__doc__).format(short=short)
    config, options = parse_config("sepkit train", text, arguments, aliases=ALIASES, add_options=add_options)
    config.check()
    with writing(options["out"], (), NAMES["train"]):
        from sepkit.training.run import train
        from sepkit.training.task_definition import is_first_process

        studies.import_task(config.name)
        model = train(config, options["out"])
    return model if is_first_process() else None


def add_options(parser: Parser) -> None:
    """Add the options of `sepkit train` that are no keys of the configuration."""
    parser.add("--out", required=True, type=reader(str, "--out"), metavar="EXP", help="folder of the experiment")
