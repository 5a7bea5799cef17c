"""`sepkit summarize`: runs that differ in their seed as one row of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def main(
    runs: list[str],
    *,
    out: str,
    metric: list[str] | None = None,
    group: str | None = None,
    figure: list[Literal["boxes", "temperature"]] | None = None,
) -> Path:
    """Write a table of runs over training seeds: mean and standard deviation, best and worst seed, a row a group.

    Args:
        runs: folders that `sepkit train` wrote and `sepkit evaluate --out EXP/evaluation/NAME` measured
        out: the file, FILE.md; figures go beside it, FILE_boxes.png and FILE_temperature.png
        metric: columns, the first ranks the seeds; default: si_sdr_db, si_sdri_db, mcl_si_sdr_db where there are any
        group: regular expression that finds a group's name in its runs' names, by its first group in parentheses where
            there is one; default: the name without _seed and the number after it
        figure: boxes: the first metric's scores of all mixtures, a box a group; temperature: SI-SDR on dev of each
            source's best hypothesis, negative, against temperature, a curve a run

    Returns:
        The file.

    Raises:
        UserError: no such run, nothing measured, an unknown metric, or no temperature to draw.
    """
    from sepkit.evaluation.run_folder import load_run
    from sepkit.evaluation.seeds import write_seed_table

    loaded = [load_run(folder) for folder in runs]
    print(write_seed_table(loaded, out, metrics=metric, pattern=group, figures=figure or ()))
    return Path(out)
