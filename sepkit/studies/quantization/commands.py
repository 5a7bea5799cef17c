"""`sepkit quantize EXPERIMENT`: what matching does where the truth is known (aMCL paper, CCLVQ paper)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sepkit.files import write_json
from sepkit.studies.quantization.config import read_config

Selection = Literal["last", "held_out", "reference"]
Rows = Sequence[Mapping[str, Any]]


def uci(
    *,
    data: str,
    out: str,
    sets: list[str] | None = None,
    methods: list[str] | None = None,
    select: list[Selection] | None = None,
    config: str | None = None,
) -> Path:
    """Train five hypotheses on UCI regression sets, all splits of a set at once, and write distortion and RMSE.

    Methods: mcl, amcl_linear, amcl_exponential, relaxed_wta_EPSILON (relaxed_wta_0.1), relaxed_wta_annealed.
    Selections of the checkpoint: last: end of training; held_out: least hard distortion on training rows that were held
    out; reference: least loss on the test part, as in the published code, which is a leak. Writes DIR/table.json and
    DIR/table.md and DIR/figures (figure 6 of the annealed MCL paper); the same command again continues.

    Example:
        sepkit quantize uci --data UCI_Datasets --out exp/uci --sets concrete

    Args:
        data: folder of the sets, see `sepkit prepare uci`
        out: folder of the results
        sets: sets to train on (default: all in the folder)
        methods: methods to run (default: MCL, both annealed ones, relaxed WTA with .1, .5 and annealed)
        select: checkpoints to measure (default: all three)
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section uci is read
    """
    from sepkit.studies.quantization import uci
    from sepkit.studies.quantization.uci_sets import set_names

    source, folder = Path(data), Path(out)
    names, methods = sets or set_names(source), methods or [*uci.DEFAULT_METHODS]
    rows = uci.uci(source, names, methods, select or [*uci.SELECTIONS], read_config(config).uci, folder)
    _write_figures(uci.uci_figures(rows), folder)
    return uci.write_uci_tables(rows, folder)


def gaussians(*, out: str, config: str | None = None) -> Path:
    """Train 49 hypotheses on three Gaussians, fixed and moving with the input, by MCL, relaxed and annealed MCL.

    Beside them are quantizers of the law at each input: Lloyd's algorithm, competitive learning (CLVQ) and LBG. Writes
    DIR/gaussians.json and DIR/figures, figures 1 to 5 of the annealed MCL paper; the same command again continues.

    Example:
        sepkit quantize gaussians --out exp/gaussians

    Args:
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section gaussians is read
    """
    from sepkit.studies.quantization.gaussians import gaussians, gaussians_figures

    table = gaussians(read_config(config).gaussians, Path(out))
    _print_means([*table["rows"], *table["quantizers"]], ["kind", "method"], ["distortion", "used"])
    return _write("gaussians", table, gaussians_figures(table), out)


def free(*, out: str, config: str | None = None) -> Path:
    """Compare free hypotheses with theory: rate and distortion of a Gaussian, temperatures at which groups split.

    Writes DIR/free.json and DIR/figures/annealing.png, hypotheses that split as the temperature falls. The same command
    again continues.

    Example:
        sepkit quantize free --out exp/free

    Args:
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section free is read
    """
    from sepkit.studies.quantization.gaussians import annealing_figure, free

    table = free(read_config(config).free, Path(out))
    measures = ["distortion", "expected_distortion", "bits", "bound_bits", "hard_distortion"]
    _print_means(table["rate"], ["temperature"], measures)
    measures = ["temperature", "predicted_temperature"]
    _print_means(table["annealing"]["splits"], ["groups_before", "groups_after"], measures)
    return _write("free", table, {"annealing": annealing_figure(table["annealing"])}, out)


def sines(*, out: str, config: str | None = None) -> Path:
    """Train three experts on a mixture of three sines: plain, with noisy assignment, grown by splitting, annealed.

    Writes DIR/sines.json: for each run the share of samples in the majority mode of their expert (purity), the
    distortion, and the total variation between the classifier and the true probabilities of modes; and DIR/figures,
    figures 2 and 3 of the CCLVQ paper for the first run. The same command again continues.

    Example:
        sepkit quantize sines --out exp/sines

    Args:
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section sines is read
    """
    from sepkit.studies.quantization.experts import sines, sines_figures

    table = sines(read_config(config).sines, Path(out))
    _print_means(table["rows"], ["kind", "target"], ["merged", "distortion", "total_variation"])
    return _write("sines", table, sines_figures(table), out)


def _print_means(rows: Rows, labels: Sequence[str], measures: Sequence[str]) -> None:
    """Print a line for each combination of labels: mean ± sample deviation of each measure, which has one number a
    seed, in a list or in rows of their own; a row may lack labels and measures."""
    import numpy as np

    from sepkit.reporting.tables import markdown_table

    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(label, "")) for label in labels), []).append(row)
    lines = [list(words) for words in groups]
    for measure in measures:
        for line, part in zip(lines, groups.values(), strict=True):
            values = np.array([value for row in part for value in np.ravel(row.get(measure, []))])
            spread = f" ± {values.std(ddof=1):.2g}" if len(values) > 1 else ""
            line.append(f"{values.mean():.4g}{spread}" if len(values) else "")
    print(markdown_table([name.replace("_", " ") for name in (*labels, *measures)], lines, words=range(len(labels))))


def _write(name: str, table: Mapping[str, Any], figures: Mapping[str, Any], out: str) -> Path:
    """Write DIR/NAME.json and DIR/figures."""
    _write_figures(figures, Path(out))
    return write_json(Path(out) / f"{name}.json", table)


def _write_figures(figures: Mapping[str, Any], folder: Path) -> None:
    from sepkit.reporting.figures import save_figure

    for name, figure in figures.items():
        save_figure(figure, folder / "figures" / f"{name}.png")


COMMANDS = {"uci": uci, "gaussians": gaussians, "free": free, "sines": sines}
