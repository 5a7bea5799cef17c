"""`sepkit summarize`: runs that belong together in one table, over seeds, over rates, from seen to unseen data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def main(
    runs: list[str],
    *,
    out: str,
    metric: list[str] | None = None,
    group: str | None = None,
    figure: list[Literal["boxes", "temperature", "rate-distortion", "evidence", "depth"]] | None = None,
    drop_from: list[str] | None = None,
    test_set: list[str] | None = None,
) -> Path:
    """Write a table of runs over training seeds: mean and standard deviation, best and worst seed, a row a group.

    With --figure rate-distortion it is a table of variational models trained towards different rates, a row a run:
    target and reached rates, distortion and SI-SDR on each test set, and the best model of each.

    Args:
        runs: folders that `sepkit train` wrote and `sepkit evaluate --out EXP/evaluation/NAME` measured
        out: the file, FILE.md; figures go beside it, FILE_boxes.png and so on, and with rate-distortion the file
            rate_distortion.csv, which `sepkit report` draws from the folder
        metric: columns, the first ranks the seeds; default: si_sdr_db, si_sdri_db, mcl_si_sdr_db where there are any
        group: regular expression that finds a group's name in its runs' names, by its first group in parentheses where
            there is one; default: the name without _seed and the number after it
        figure: boxes: the first metric's scores of all mixtures, a box a group; temperature: SI-SDR on dev of each
            source's best hypothesis, negative, against temperature, a curve a run; rate-distortion: distortion and
            SI-SDR against the rate, a curve a test set; evidence: how well each mixture was separated against the
            bound on the mixture's evidence, which needs no references, with their rank correlation; depth: SI-SDR
            improvement against the real-time factor of models of continuous depth, by number of steps
        drop_from: test sets that are like the training data (names of the folders below evaluation): tables of the
            drop from each to all others, or with SEEN=UNSEEN to that one, and the differences between groups, paired by
            seed; of si_sdri_db and blr_nats_per_sample, or of
            what --metric names. With rate-distortion: the one that comes first, by default "test"
        test_set: only these (names of the folders below evaluation); default: all that there are
    """
    from sepkit.errors import UserError
    from sepkit.evaluation.run_folder import load_run

    drops = drop_from or []
    over_seeds: list[Literal["boxes", "temperature"]] = [k for k in figure or [] if k in ("boxes", "temperature")]
    rates, evidence = ("rate-distortion" in (figure or []), "evidence" in (figure or []))
    if rates and (over_seeds or evidence or metric or group or len(drops) > 1):
        raise UserError(
            "--figure rate-distortion: makes tables of its own, found another figure, --metric, --group or several "
            "--drop-from beside it; summarize twice"
        )
    if evidence and (over_seeds or metric or group or drops):
        raise UserError(
            "--figure evidence: makes a table of its own, found another figure, --metric, --group or --drop-from "
            "beside it; summarize twice"
        )
    depth = "depth" in (figure or [])
    if depth and (len(figure or []) > 1 or metric or group or drops):
        raise UserError(
            "--figure depth: makes a table of its own, found another figure, --metric, --group or --drop-from beside "
            "it; summarize twice"
        )
    loaded = [load_run(folder) for folder in runs]
    if test_set is not None:
        sets = list(dict.fromkeys(evaluation.name for run in loaded for evaluation in run.evaluations))
        unknown = [name for name in test_set if name not in sets]
        if unknown:
            raise UserError(f"--test-set: found {', '.join(unknown)}, expected of {', '.join(sets) or 'none'}")
        for run in loaded:
            run.evaluations = [evaluation for evaluation in run.evaluations if evaluation.name in test_set]
    if rates:
        from sepkit.reporting.rate_distortion import write_rate_distortion

        print(write_rate_distortion(loaded, out, drops[0] if drops else None))
        return Path(out)
    if depth:
        from sepkit.reporting.depth import write_depth_table

        print(write_depth_table(loaded, out))
        return Path(out)
    if evidence:
        from sepkit.reporting.evidence import write_evidence

        print(write_evidence(loaded, out))
        return Path(out)

    from sepkit.reporting.seeds import write_seed_table

    print(write_seed_table(loaded, out, metrics=metric, pattern=group, figures=over_seeds, drop_from=drops))
    return Path(out)
