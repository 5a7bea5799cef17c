"""`sepkit leaderboard`: one table of several evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def main(folders: list[str], *, out: str, format: Literal["md", "latex", "csv"] = "md") -> Path:
    """Write one table of several evaluations, with the command that made each row.

    Args:
        folders: folders that `sepkit evaluate` wrote
        out: file of the table
        format: of the table
    """
    from sepkit.files import write_text
    from sepkit.reporting.leaderboard import leaderboard

    table = leaderboard(folders, format)
    print(table)
    return write_text(out, table)
