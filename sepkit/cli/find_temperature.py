"""`sepkit find-temperature`: find initial and final temperatures of annealed multiple choice learning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sepkit.cli._parser import DEVICE

if TYPE_CHECKING:
    from sepkit.annealing.temperature import Findings
    from sepkit.config import CostConfig


def main(
    *,
    out: str,
    points: str | None = None,
    three_gaussians: bool = False,
    manifest: str | None = None,
    model: str | None = None,
    epochs: int = 200,
    cost: str | None = None,
    hypotheses: int | None = None,
    mixtures: int | None = None,
    segment_seconds: float | None = None,
    ceiling_db: float = 10.0,
    seed: int = 0,
    device: str = DEVICE,
) -> Path:
    """Find the temperatures at which hypotheses split, and propose a schedule for annealed multiple choice learning.

    Three ways: --points or --three-gaussians anneals free hypotheses under the squared error and checks the first
    split against theory; --manifest measures the spread of its sources, the unit of temperatures, and anneals free
    hypotheses under SI-SDR; --manifest with --model draws the entropy of the assignment of the model's hypotheses
    against temperature and prints the options for `sepkit train`. Writes OUT/temperature.json and OUT/temperature.png.

    Args:
        out: folder of the results
        points: .npy or .csv file of points (N, d)
        three_gaussians: the data of figure 1 of the annealed MCL paper instead of a file
        manifest: manifest of mixtures with sources, dev.jsonl for example
        model: MODEL whose hypotheses are matched
        epochs: with --model: epochs of annealing, from the initial temperature to the floor
        cost: with --model: neg_si_sdr, neg_snr, mse ...; default: that of the run's configuration
        hypotheses: how many move freely; default: 6 for points, as many as sources for a manifest
        mixtures: how many of the manifest, from all over it; default: all
        segment_seconds: length of segments; default: that of the run's configuration with --model, else whole mixtures
        ceiling_db: with --manifest alone: SI-SDR that free hypotheses cannot surpass, dB
        seed: of segments and of the small pushes that let hypotheses part

    Returns:
        The folder of the results.

    Raises:
        UserError: none or several of the three ways, or a bad file, model or number.
    """
    import sys

    from sepkit.errors import UserError

    ways = sum((points is not None, three_gaussians, manifest is not None))
    if ways != 1:
        raise UserError("--points, --three-gaussians, --manifest: expected exactly one of the three")
    if model is not None and manifest is None:
        raise UserError("--model: needs --manifest, the mixtures that its hypotheses are for")
    least = {"--epochs": (epochs, 1), "--hypotheses": (hypotheses, 2), "--mixtures": (mixtures, 1)}
    for option, (value, low) in least.items():
        if value is not None and value < low:
            raise UserError(f"{option}: found {value}, expected {low} or more")
    if segment_seconds is not None and not segment_seconds > 0:
        raise UserError(f"--segment-seconds: found {segment_seconds}, expected more than 0")

    from sepkit.annealing import temperature
    from sepkit.annealing.points import read_points
    from sepkit.annealing.points import three_gaussians as gaussians
    from sepkit.reporting.temperature import write_findings

    if manifest is None:
        data = gaussians(seed=seed) if points is None else read_points(points)
        findings = temperature.of_points(data, hypotheses or 6, seed)
    elif model is None:
        findings = temperature.of_sources(
            manifest,
            hypotheses=hypotheses,
            ceiling_db=ceiling_db,
            mixtures=mixtures,
            segment_seconds=segment_seconds,
            seed=seed,
        )
    else:
        findings = _of_model(model, manifest, epochs, cost, mixtures, segment_seconds, seed, device)
    for name, reason in findings.skipped.items():
        print(f"sepkit find-temperature: {name} is left out: {reason}", file=sys.stderr)
    for line in findings.lines:
        print(line)
    return write_findings(findings, out)


def _of_model(
    model: str,
    manifest: str,
    epochs: int,
    cost: str | None,
    mixtures: int | None,
    segment_seconds: float | None,
    seed: int,
    device: str,
) -> Findings:
    from sepkit.annealing.temperature import of_model
    from sepkit.inference.loading import load_model

    # Loaded as for separation, which handles devices.
    separator = load_model(model, device, predict=False)
    trained_cost, trained_seconds = _of_run(model)
    return of_model(
        separator.model,
        manifest,
        _named_cost(cost) if cost is not None else trained_cost,
        epochs=epochs,
        mixtures=mixtures,
        segment_seconds=trained_seconds if segment_seconds is None else segment_seconds,
        device=str(separator.device),
        seed=seed,
    )


def _named_cost(name: str) -> CostConfig:
    from sepkit.config import CostConfig, from_dict

    return from_dict(CostConfig, {"name": name}, "--cost")


def _of_run(model: str) -> tuple[CostConfig, float | None]:
    """Return the cost and the length of segments of the model's training; SI-SDR and whole mixtures if unknown."""
    from sepkit.cli._configuration import read_yaml
    from sepkit.config import CostConfig, NegSISDRConfig, from_dict
    from sepkit.errors import UserError

    folder = Path(model)
    # EXP, EXP/model, EXP/models/epoch_0010, or a file in one of them.
    file = next((f / "config.yaml" for f in (folder, *folder.parents[:3]) if (f / "config.yaml").is_file()), None)
    if file is None:
        return NegSISDRConfig(), None
    config = read_yaml(file)
    try:
        cost, segment_seconds = config["objective"]["cost"], config["data"]["segment_seconds"]
    except (KeyError, TypeError):
        raise UserError(
            f"{file}: found no objective.cost or data.segment_seconds, expected a run's config.yaml"
        ) from None
    return from_dict(CostConfig, cost, f"{file}: objective.cost"), segment_seconds
