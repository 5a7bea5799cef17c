"""`sepkit annealed-inference EXPERIMENT`, and two kinds of `sepkit plan-schedule`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def main(
    experiment: Literal["formulas", "agreement", "phase-diagram", "runs", "flows"],
    *,
    config: str,
    out: str,
    device: str = "cpu",
) -> Path:
    """Run an experiment of the annealed VI paper, cell by cell. The same command again continues.

    formulas: the flow of the order parameters against the closed forms; agreement: the reduced against the full
    stochastic update; phase-diagram: figures 2, 5 and 7; runs: figures 1, 3 and 6; flows: figure 4, with a RealNVP.
    Writes OUT/EXPERIMENT.json, OUT/figures and a file for each cell.

    Args:
        experiment: which one
        config: YAML file, as egs/annealed_inference/conf/cpu.yaml
        out: folder of the results
        device: where the flows are trained: cpu, cuda ...
    """
    from sepkit.files import write_json
    from sepkit.studies.annealed_inference import experiments
    from sepkit.studies.annealed_inference.config import read_config
    from sepkit.studies.annealed_inference.figures import write_figures
    from sepkit.studies.annealed_inference.flows import flows

    settings, folder = read_config(config), Path(out)
    if experiment == "flows":
        table = flows(settings, folder, device)
    else:
        of_mixtures = {
            "formulas": experiments.formulas,
            "agreement": experiments.agreement,
            "phase-diagram": experiments.phase_diagram,
            "runs": experiments.runs,
        }
        table = of_mixtures[experiment](settings, folder)
    write_figures(experiment, table, settings, folder / "figures")
    return write_json(folder / f"{experiment}.json", table)


def inverse_temperature(
    *,
    dimension: int,
    radius: float,
    heavy_weight: float,
    initial_beta: float | None = None,
    steps: float | None = None,
    target_probability: float | None = None,
    step_size: float = 0.05,
    schedule: Literal["exponential", "linear", "saturating", "step"] = "exponential",
    alpha: float = 0.608,
    json: bool = False,
) -> str:
    """Predict how likely annealed variational inference loses a mode, and the temperature and length that avoid it.

    Args:
        dimension: d, of the space
        radius: R, distance of both modes from their center in standard deviations of a mode
        heavy_weight: w*, weight of the heavy mode, between 0 and 1
        initial_beta: inverse temperature at the start, between 0 and 1; default: the optimum
        steps: t0, after which the inverse temperature is 1
        target_probability: of collapse, instead of --steps; the steps that it needs are printed
        step_size: eta, of a gradient step
        schedule: shape of the inverse temperature; "saturating" approaches 1 with time constant --steps
        alpha: R^2 beta at the end of the hot phase, for the paper's form and the optimum
        json: print the numbers as JSON, nothing else
    """
    from sepkit.studies.annealed_inference.planning import plan_inverse_temperature

    plan = plan_inverse_temperature(
        dimension,
        radius,
        heavy_weight,
        initial_beta=initial_beta,
        steps=steps,
        target_probability=target_probability,
        step_size=step_size,
        shape=schedule,
        alpha=alpha,
    )
    return plan.shown("inverse-temperature", json)


def kl_warmup(
    *,
    variances: list[float],
    noise_variance: float,
    epochs: float,
    final_weight: float = 1.0,
    initial_beta: float | None = None,
    json: bool = False,
) -> str:
    """Predict which latents live in a linear model, and when they die (KL warm-up) or come to life (tempering).

    Args:
        variances: of the data along its principal axes
        noise_variance: of the decoder
        epochs: of the schedule
        final_weight: of the rate after the warm-up
        initial_beta: of tempering; default: where the first latent comes to life
        json: print the numbers as JSON, nothing else
    """
    from sepkit.studies.annealed_inference.planning import plan_kl_warmup

    plan = plan_kl_warmup(variances, noise_variance, epochs, final_weight=final_weight, initial_beta=initial_beta)
    return plan.shown("kl-warmup", json)
