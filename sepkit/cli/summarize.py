"""`sepkit summarize`: evaluations, or runs over training seeds, in one table."""

from pathlib import Path
from typing import Literal


def main(
    runs: list[str],
    *,
    out: str,
    metric: list[str] | None = None,
    figure: list[Literal["boxes", "temperature", "rate-distortion", "depth"]] | None = None,
    reference_set: list[str] | None = None,
    test_set: list[str] | None = None,
) -> Path:
    """Write one table of several runs or evaluations, and the figures asked for below it.

    Runs that differ in their seed are one row: mean and standard deviation over seeds, best and worst seed. Folders of
    single evaluations are a row each, best first, with half the 95 % interval and the command that made it.

    Example:
        sepkit summarize exp/seed_0 exp/seed_1 --out summary.md

    Args:
        runs: folders that `sepkit train` wrote and `sepkit evaluate --out EXP/evaluation/NAME` measured, or folders
            that `sepkit evaluate` wrote
        out: file to write, FILE.md; figures go beside it, FILE_boxes.png and so on, and with rate-distortion
            rate_distortion.csv, which `sepkit report` plots
        metric: columns; rows are ranked by the first (default: for runs si_sdr_db, si_sdri_db, mcl_si_sdr_db if
            measured; for evaluations all)
        figure: boxes: the first metric's scores of all mixtures, a box a group; temperature: SI-SDR on dev of each
            source's best hypothesis, negative, against temperature, a curve a run; rate-distortion: distortion and
            SI-SDR against the rate of variational models, a curve a test set, with tables of target and reached rates
            and the best model of each test set; depth: score against the real-time factor of models of continuous
            depth, with a table by number of steps
        reference_set: pairs of test sets (names of folders below evaluation): tables of the drop from SEEN, which is
            like the training data, to UNSEEN, of si_sdri_db and blr_nats_per_sample, or of what --metric names
        test_set: test sets to include, names of folders below evaluation (default: all)
    """
    from sepkit.errors import UserError
    from sepkit.evaluation.run_folder import load_run
    from sepkit.reporting.summary import write_summary

    if Path(out).suffix.lower() != ".md":
        raise UserError(f"--out {out}: expected a file that ends in .md")
    loaded = [load_run(folder) for folder in runs]
    if test_set is not None:
        sets = list(dict.fromkeys(evaluation.name for run in loaded for evaluation in run.evaluations))
        unknown = [name for name in test_set if name not in sets]
        if unknown:
            raise UserError(f"--test-set: found {', '.join(unknown)}, expected of {', '.join(sets) or 'none'}")
        for run in loaded:
            run.evaluations = [evaluation for evaluation in run.evaluations if evaluation.name in test_set]
    chosen = {"metrics": metric, "figures": figure or [], "reference_sets": reference_set or []}
    print(write_summary(loaded, out, **chosen))
    return Path(out)
