"""`sepkit report`: one HTML page about a run, or comparing several."""

from pathlib import Path

from sepkit.cli._parser import DEVICE


def main(
    runs: list[str],
    *,
    out: str,
    names: list[str] | None = None,
    title: str | None = None,
    examples: int = 1,
    device: str = DEVICE,
) -> Path:
    """Write one self-contained HTML page about a run, or comparing several: scores, figures, sound, training.

    Example:
        sepkit report exp/pit exp/amcl --out report.html

    Args:
        runs: Folders that `sepkit train` or `sepkit evaluate` wrote, one or more; or `sepkit cluster`, to show who
            spoke when; or `sepkit separate`, to listen to tracks.
        out: File to write, FILE.html.
        names: Names of the runs on the page, one each (default: the names of their folders).
        title: Title of the page.
        examples: Number of the worst, median and best mixtures of each test set to show; 0: none.
        device: Device for a MODEL whose estimates are not on disk: cpu, cuda, cuda:1 ..., auto.
    """
    from collections.abc import Callable
    from typing import Any

    from sepkit.errors import UserError

    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: expected a file that ends in .html")
    if names is not None and len(names) != len(runs):
        raise UserError(f"--names: found {len(names)}, expected one for each of {len(runs)} runs")
    if examples < 0:
        raise UserError(f"--examples: found {examples}, expected 0 or more")

    from sepkit.evaluation.run_folder import load_run
    from sepkit.reporting.report import write_report

    def load_separator(model: str) -> Callable[[Any, int], Any]:
        from sepkit.cli._threads import limit_small_models_to_one_thread
        from sepkit.inference.loading import load_model

        separator = load_model(model, device, predict=False)
        limit_small_models_to_one_thread(separator)
        return lambda mixture, sample_rate: separator.separate(mixture, sample_rate).estimates

    loaded = [load_run(folder, name) for folder, name in zip(runs, names or [None] * len(runs), strict=True)]
    return write_report(loaded, out, examples=examples, load_separator=load_separator, title=title)
