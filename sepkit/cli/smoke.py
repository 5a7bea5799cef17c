"""Run two training steps, a validation, a save, a resume and a load of your configuration, in small.

Without data.train a small synthetic set is made. Nothing is left behind.

Example:
    sepkit smoke --config dual_path_rnn
"""

from sepkit.cli._configuration import parse_config
from sepkit.cli.train import ALIASES


def run(arguments: list[str]) -> str:
    """Return a line that says what passed."""
    config, _ = parse_config("sepkit smoke", str(__doc__), arguments, aliases=ALIASES)
    from sepkit.studies import import_task
    from sepkit.training.run import smoke

    import_task(config.name)
    return smoke(config)
