"""`sepkit smoke`: try a configuration before spending days on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sepkit.cli._parser import parse_config
from sepkit.cli.train import ALIASES, _imports, import_file

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

DESCRIPTION = """Two training steps, one validation, a save, a resume and a load on your own configuration, small scale.

Without data.train a small synthetic set is made. Nothing is left behind.
"""


def run(arguments: list[str]) -> str:
    """A line that says what passed.

    Raises:
        UserError: a bad option or configuration.
    """
    for path in _imports(arguments):
        import_file(path)
    config, _ = parse_config("sepkit smoke", DESCRIPTION, arguments, aliases=ALIASES, add_options=_add_options)
    from sepkit.studies import import_task
    from sepkit.training.smoke import smoke

    import_task(config.name)
    return smoke(config)


def _add_options(parser: ArgumentParser) -> None:
    text = "Python file that registers your own choices; executed"
    parser.add_argument("--import", dest="import_", action="append", type=str, help=text)
