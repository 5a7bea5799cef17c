"""`sepkit quantize EXPERIMENT`: what matching does where the truth is known (aMCL paper, CCLVQ paper)."""

from __future__ import annotations

from collections.abc import Mapping
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
        config: YAML file, as egs/uci/conf/cpu.yaml
        drop_constant: leave out features that never change instead of refusing them

    Returns:
        The table.

    Raises:
        UserError: a bad set, file or number.
    """
    from sepkit.studies.quantization.config import UCIConfig, read_section
    from sepkit.studies.quantization.figures import uci_figures, write_figures
    from sepkit.studies.quantization.uci import DEFAULT_METHODS, SELECTIONS, uci
    from sepkit.studies.quantization.uci_data import set_names
    from sepkit.studies.quantization.uci_tables import write_tables

    folder = Path(data)
    rows = uci(
        folder,
        sets or set_names(folder),
        methods or DEFAULT_METHODS,
        select or SELECTIONS,
        read_section(UCIConfig, config),
        Path(out),
        drop_constant,
    )
    write_figures(uci_figures(rows), Path(out) / "figures")
    return write_tables(rows, Path(out))


def gaussians(*, out: str, config: str | None = None) -> Path:
    """Train 49 hypotheses on three Gaussians, fixed and moving with the input, by MCL, relaxed and annealed MCL.

    Writes OUT/gaussians.json and OUT/figures, figures 1, 2, 3 and 5 of the annealed MCL paper; the same command again
    continues.

    Args:
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section gaussians is read

    Returns:
        The table.

    Raises:
        UserError: a bad file or number.
    """
    from sepkit.studies.quantization.config import GaussiansConfig, read_section
    from sepkit.studies.quantization.figures import gaussians_figures, write_figures
    from sepkit.studies.quantization.gaussians import gaussians

    folder = Path(out)
    table = gaussians(read_section(GaussiansConfig, config, "gaussians"), folder)
    write_figures(gaussians_figures(table), folder / "figures")
    measures = {"distortion": "hard distortion", "used": "hypotheses used"}
    return _finished("gaussians", table, folder, ["kind", "method"], measures)


def free(*, out: str, config: str | None = None) -> Path:
    """Compare free hypotheses with theory: rate and distortion of a Gaussian, temperatures at which splits are seen.

    Writes OUT/free.json and OUT/figures: annealing.png, hypotheses that part as the temperature falls, and splits.png.
    The same command again continues.

    Args:
        out: folder of the results
        config: YAML file, as egs/quantization/conf/cpu.yaml, of which the section free is read

    Returns:
        The table.

    Raises:
        UserError: a bad file or number.
    """
    from sepkit.studies.quantization.config import FreeConfig, read_section
    from sepkit.studies.quantization.figures import free_figures, write_figures
    from sepkit.studies.quantization.free import free
    from sepkit.studies.quantization.tables import seeds_table

    folder = Path(out)
    table = free(read_section(FreeConfig, config, "free"), folder)
    write_figures(free_figures(table), folder / "figures")
    rate = {"distortion": "distortion", "expected_distortion": "theory", "bits": "bits", "bound_bits": "bound, bits"}
    split = {"predicted": "split predicted at", "predicted_by_steps": "summed over steps", "seen": "seen"}
    parted = {"temperature": "hypotheses part at", "predicted_temperature": "theory, eq. 13"}
    _finished("free", table, folder, ["temperature"], rate, rows="rate")
    print(seeds_table(table["annealing"]["splits"], ["groups_before", "groups_after"], parted))
    return _finished("free", table, folder, ["schedule"], split, rows="splits")


def sines(*, out: str, config: str | None = None) -> Path:
    """Train three experts on a mixture of three sines: plain, with noisy assignment, grown by splitting, annealed.

    Writes OUT/sines.json: for each run the share of samples in the majority mode of their expert (purity), the
    distortion, and the total variation between the classifier and the true probabilities of modes. The same command
    again continues.

    Args:
        out: folder of the results
        config: YAML file, as egs/cclvq/conf/cpu.yaml, of which the section sines is read

    Returns:
        The table.

    Raises:
        UserError: a bad file or number.
    """
    from sepkit.studies.quantization.config import SinesConfig, read_section
    from sepkit.studies.quantization.sines import sines

    table = sines(read_section(SinesConfig, config, "sines"), Path(out))
    measures = {"merged": "runs that merge modes", "distortion": "distortion", "total_variation": "total variation"}
    return _finished("sines", table, Path(out), ["kind", "target"], measures)


def flows(*, out: str, config: str | None = None) -> Path:
    """Train mixtures of 1 to 16 RealNVPs by hard assignment, and write how much mass lies between the modes.

    Writes OUT/flows.json: for each run the share of samples off every mode, modes hit, squared transport distance to
    samples of the truth, and negative log-likelihood. The same command again continues.

    Args:
        out: folder of the results
        config: YAML file, as egs/cclvq/conf/cpu.yaml, of which the section flows is read

    Returns:
        The table.

    Raises:
        UserError: a bad file or number.
    """
    from sepkit.studies.quantization.config import FlowsConfig, read_section
    from sepkit.studies.quantization.flows import flows

    table = flows(read_section(FlowsConfig, config, "flows"), Path(out))
    measures = {
        "off_modes": "share off every mode",
        "modes_hit": "modes hit",
        "squared_wasserstein": "W2^2",
        "nll_nats": "negative log-likelihood, nats",
    }
    return _finished("flows", table, Path(out), ["target", "experts"], measures)


def digits(*, images: str, out: str, config: str | None = None) -> Path:
    """Train experts that restore digits with missing rows or under noise, beside independent networks.

    Writes OUT/digits.json, squared distances of restored from unseen digits: of the nearest expert (distortion), of
    the classifier's choices, of the best of several independent networks; and OUT/figures. The same command again
    continues.

    Args:
        images: binarized MNIST, an .npz file or a folder, see `sepkit prepare images --source`
        out: folder of the results
        config: YAML file, as egs/cclvq/conf/cpu.yaml, of which the section digits is read

    Returns:
        The table.

    Raises:
        UserError: a bad set, file or number.
    """
    from sepkit.studies.quantization.config import DigitsConfig, read_section
    from sepkit.studies.quantization.digits import digits
    from sepkit.studies.quantization.figures import digits_figures, write_figures

    folder = Path(out)
    table = digits(read_section(DigitsConfig, config, "digits"), Path(images), folder)
    write_figures(digits_figures(table), folder / "figures")
    measures = {"distortion": "nearest", "drawn": "drawn", "likeliest": "likeliest", "mean": "mean of all"}
    return _finished("digits", table, folder, ["task", "experts", "independent"], measures)


def generators(*, out: str, images: str | None = None, config: str | None = None) -> Path:
    """Train several generators under one hinge discriminator, on modes in the plane or on digits.

    Writes OUT/generators.json: for each run precision, recall, the share of samples off every mode, modes hit, the
    entropy of which generator makes a sample, and how often each was updated. The same command again continues.

    Args:
        out: folder of the results
        images: binarized MNIST, for the target digits
        config: YAML file, as egs/cclvq/conf/cpu.yaml, of which the section generators is read

    Returns:
        The table.

    Raises:
        UserError: a bad set, file or number.
    """
    from sepkit.studies.quantization.config import GeneratorsConfig, read_section
    from sepkit.studies.quantization.generators import generators

    known = None if images is None else Path(images)
    table = generators(read_section(GeneratorsConfig, config, "generators"), Path(out), known)
    measures = {
        "off_modes": "share off every mode",
        "modes_hit": "modes hit",
        "precision": "precision",
        "recall": "recall",
        "entropy": "entropy / log n",
    }
    return _finished("generators", table, Path(out), ["target", "generators", "independent"], measures)


def _finished(
    name: str, table: Mapping[str, Any], folder: Path, labels: list[str], measures: dict[str, str], rows: str = "rows"
) -> Path:
    """Write FOLDER/NAME.json and print means over seeds."""
    from sepkit.files import write_json
    from sepkit.studies.quantization.tables import seeds_table

    path = write_json(folder / f"{name}.json", table)
    print(seeds_table(table[rows], labels, measures))
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
