"""Runs commands of sepkit for the tools."""

from sepkit.cli.main import main


def run(*words: object) -> None:
    """Run a command line; end this process, with the same exit code, if it fails."""
    if code := main([str(word) for word in words]):
        raise SystemExit(code)
