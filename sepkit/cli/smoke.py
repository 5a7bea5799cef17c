"""`sepkit smoke`: try a configuration before spending days on it."""

from __future__ import annotations

from sepkit.cli._configuration import parse_config
from sepkit.cli.train import ALIASES

DESCRIPTION = """Run two training steps, a validation, a save, a resume and a load of your configuration, in small.

Without data.train a small synthetic set is made. Nothing is left behind.
"""


def run(arguments: list[str]) -> str:
    """Return a line that says what passed."""
    config, _ = parse_config("sepkit smoke", DESCRIPTION, arguments, aliases=ALIASES)
    from sepkit.studies import import_task
    from sepkit.training.run import smoke

    import_task(config.name)
    return smoke(config)
