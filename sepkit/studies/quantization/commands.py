"""`sepkit quantize EXPERIMENT`: what matching does where the truth is known (aMCL paper, CCLVQ paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Selection = Literal["last", "held_out", "reference"]


def uci(
    *,
    data: str,
    out: str,
    sets: list[str] | None = None,
    methods: list[str] | None = None,
    select: list[Selection] | None = None,
    config: str | None = None,
    drop_constant: bool = False,
) -> Path:
    """Train five hypotheses on UCI regression sets, all splits of a set at once, and write distortion and RMSE.

    Methods: mcl, amcl_linear, amcl_exponential, relaxed_wta_EPSILON (relaxed_wta_0.1), relaxed_wta_annealed.
    Selections of the checkpoint: last: end of training; held_out: least hard distortion on training rows that were held
    out; reference: least loss on the test part, as in the published code, which is a leak. Writes OUT/table.json and
    OUT/table.md and OUT/figures (figure 6 of the annealed MCL paper); the same command again continues.

    Args:
        data: folder of the sets, see `sepkit prepare uci`
        out: folder of the results
        sets: which sets; default: all that are there
        methods: which methods; default: MCL, both annealed ones, relaxed WTA with .1, .5 and annealed
        select: which checkpoint counts; default: all three
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section uci is read
        drop_constant: leave out features that never change instead of refusing them
    """
    from sepkit.studies.quantization import report
    from sepkit.studies.quantization.config import UCIConfig, read_config
    from sepkit.studies.quantization.uci import DEFAULT_METHODS, SELECTIONS, uci
    from sepkit.studies.quantization.uci_data import set_names

    source, folder = Path(data), Path(out)
    settings = read_config(UCIConfig, config)
    names, methods = sets or set_names(source), methods or [*DEFAULT_METHODS]
    rows = uci(source, names, methods, select or SELECTIONS, settings, folder, drop_constant)
    report.write_figures(report.uci_figures(rows), folder / "figures")
    return report.write_uci_tables(rows, folder)


def gaussians(*, out: str, config: str | None = None) -> Path:
    """Train 49 hypotheses on three Gaussians, fixed and moving with the input, by MCL, relaxed and annealed MCL.

    Writes OUT/gaussians.json and OUT/figures, figures 1 to 5 of the annealed MCL paper; the same command again
    continues.

    Args:
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section gaussians is read
    """
    from sepkit.studies.quantization.config import GaussiansConfig, read_config
    from sepkit.studies.quantization.gaussians import gaussians
    from sepkit.studies.quantization.report import gaussians_figures

    table = gaussians(read_config(GaussiansConfig, config), Path(out))
    measures = {"distortion": "hard distortion", "used": "hypotheses used"}
    return _finished("gaussians", table, out, [(table["rows"], ["kind", "method"], measures)], gaussians_figures(table))


def free(*, out: str, config: str | None = None) -> Path:
    """Compare free hypotheses with theory: rate and distortion of a Gaussian, temperatures at which splits are seen.

    Writes OUT/free.json and OUT/figures/annealing.png, hypotheses that part as the temperature falls. The same command
    again continues.

    Args:
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section free is read
    """
    from sepkit.studies.quantization.config import FreeConfig, read_config
    from sepkit.studies.quantization.gaussians import free
    from sepkit.studies.quantization.report import annealing_figure

    table = free(read_config(FreeConfig, config), Path(out))
    rate = {"distortion": "distortion", "expected_distortion": "theory", "bits": "bits", "bound_bits": "bound, bits"}
    parted = {"temperature": "hypotheses part at", "predicted_temperature": "theory, eq. 13"}
    split = {"predicted": "split predicted at", "predicted_by_steps": "summed over steps", "seen": "seen"}
    shown = [
        (table["rate"], ["temperature"], rate),
        (table["annealing"]["splits"], ["groups_before", "groups_after"], parted),
        (table["splits"], ["schedule"], split),
    ]
    return _finished("free", table, out, shown, {"annealing": lambda: annealing_figure(table["annealing"])})


def sines(*, out: str, config: str | None = None) -> Path:
    """Train three experts on a mixture of three sines: plain, with noisy assignment, grown by splitting, annealed.

    Writes OUT/sines.json: for each run the share of samples in the majority mode of their expert (purity), the
    distortion, and the total variation between the classifier and the true probabilities of modes; and OUT/figures,
    figures 2 and 3 of the CCLVQ paper for the first run. The same command again continues.

    Args:
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section sines is read
    """
    from sepkit.studies.quantization.config import SinesConfig, read_config
    from sepkit.studies.quantization.mixtures import sines
    from sepkit.studies.quantization.report import sines_figures

    table = sines(read_config(SinesConfig, config), Path(out))
    measures = {"merged": "runs that merge modes", "distortion": "distortion", "total_variation": "total variation"}
    return _finished("sines", table, out, [(table["rows"], ["kind", "target"], measures)], sines_figures(table))


def flows(*, out: str, config: str | None = None) -> Path:
    """Train mixtures of 1 to 16 RealNVPs by hard assignment, and write how much mass lies between the modes.

    Writes OUT/flows.json: for each run the share of samples off every mode, modes hit, squared transport distance to
    samples of the truth, and negative log-likelihood. The same command again continues.

    Args:
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section flows is read
    """
    from sepkit.studies.quantization.config import FlowsConfig, read_config
    from sepkit.studies.quantization.mixtures import flows

    table = flows(read_config(FlowsConfig, config), Path(out))
    measures = {
        "off_modes": "share off every mode",
        "modes_hit": "modes hit",
        "squared_wasserstein": "W2^2",
        "nll_nats": "negative log-likelihood, nats",
    }
    return _finished("flows", table, out, [(table["rows"], ["target", "experts"], measures)])


def digits(*, images: str, out: str, config: str | None = None) -> Path:
    """Train experts that restore digits with missing rows or under noise, beside independent networks.

    Writes OUT/digits.json, squared distances of restored from unseen digits: of the nearest expert (distortion), of
    the classifier's choices, of the best of several independent networks; and OUT/figures, with figure 1 of the
    CCLVQ paper. The same command again continues.

    Args:
        images: binarized MNIST, an .npz file or a folder, see `sepkit prepare images --source`
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section digits is read
    """
    from sepkit.studies.quantization.config import DigitsConfig, read_config
    from sepkit.studies.quantization.digits import digits
    from sepkit.studies.quantization.report import digits_figures

    table = digits(read_config(DigitsConfig, config), Path(images), Path(out))
    measures = {"distortion": "nearest", "drawn": "drawn", "likeliest": "likeliest", "mean": "mean of all"}
    shown = [(table["rows"], ["task", "experts", "independent"], measures)]
    return _finished("digits", table, out, shown, digits_figures(table))


def generators(*, out: str, config: str | None = None) -> Path:
    """Train several generators under one hinge discriminator, on modes in the plane.

    Writes OUT/generators.json: for each run precision, recall, the share of samples off every mode, modes hit, the
    entropy of which generator makes a sample, and how often each was updated. The same command again continues.

    Args:
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section generators is read
    """
    from sepkit.studies.quantization.config import GeneratorsConfig, read_config
    from sepkit.studies.quantization.generators import generators

    table = generators(read_config(GeneratorsConfig, config), Path(out))
    measures = {
        "off_modes": "share off every mode",
        "modes_hit": "modes hit",
        "precision": "precision",
        "recall": "recall",
        "entropy": "entropy / log n",
    }
    return _finished("generators", table, out, [(table["rows"], ["target", "generators", "independent"], measures)])


def _finished(
    name: str,
    table: Mapping[str, Any],
    out: str,
    shown: Sequence[tuple[Sequence[Mapping[str, Any]], list[str], dict[str, str]]],
    figures: Mapping[str, Any] | None = None,
) -> Path:
    """Write OUT/NAME.json and OUT/figures, and print means over seeds: of rows, by their labels and measures."""
    from sepkit.files import write_json
    from sepkit.studies.quantization import report

    report.write_figures(dict(figures or {}), Path(out) / "figures")
    path = write_json(Path(out) / f"{name}.json", table)
    for rows, labels, measures in shown:
        print(report.seeds_table(rows, labels, measures))
    return path


COMMANDS = {
    "uci": uci,
    "gaussians": gaussians,
    "free": free,
    "sines": sines,
    "flows": flows,
    "digits": digits,
    "generators": generators,
}
