"""`sepkit annealed-inference EXPERIMENT`."""

from pathlib import Path
from typing import Literal


def main(
    experiment: Literal["formulas", "phase-diagram", "runs", "flows"], *, config: str, out: str, device: str = "cpu"
) -> Path:
    """Run an experiment of the annealed VI paper, cell by cell. The same command again continues.

    formulas: the flow of the order parameters against the closed forms; phase-diagram: figures 2, 5
    and 7; runs: figures 1, 3 and 6; flows: figure 4, with a RealNVP.
    Writes DIR/EXPERIMENT.json, DIR/figures and a file for each cell.

    Example:
        sepkit annealed-inference formulas --config egs/annealed_inference/conf/cpu.yaml --out exp

    Args:
        experiment: experiment to run
        config: YAML file, as egs/annealed_inference/conf/cpu.yaml
        out: folder of the results
        device: device that trains the flows: cpu, cuda ...
    """
    from sepkit.files import write_json
    from sepkit.studies.annealed_inference import experiments
    from sepkit.studies.annealed_inference.config import read_config
    from sepkit.studies.annealed_inference.figures import write_figures

    settings, folder = read_config(config), Path(out)
    if experiment == "flows":
        table = experiments.flows(settings, folder, device)
    else:
        table = getattr(experiments, experiment.replace("-", "_"))(settings, folder)
    write_figures(experiment, table, settings, folder / "figures")
    return write_json(folder / f"{experiment}.json", table)
