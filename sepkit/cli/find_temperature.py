"""`sepkit find-temperature`: find initial and final temperatures of annealed multiple choice learning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepkit.cli._parser import DEVICE
from sepkit.errors import UserError
from sepkit.numbers import Count, Finite, Positive, Seed

if TYPE_CHECKING:
    from sepkit.config import CostConfig


def main(
    *,
    manifest: str,
    out: str,
    model: str | None = None,
    epochs: Count = 200,
    mixtures: Count | None = None,
    segment_seconds: Positive | None = None,
    ceiling_db: Finite = 10.0,
    seed: Seed = 0,
    device: str = DEVICE,
) -> Path:
    """Find the temperatures at which hypotheses split, and propose a schedule for annealed multiple choice learning.

    Without a model, prints the spread of the sources, which is the unit of temperatures, and the critical temperature
    of hypotheses that move freely under SI-SDR. With a model, draws the entropy of the assignment of its hypotheses
    against temperature, under the cost of its training, prints the options for `sepkit train`, and writes
    DIR/temperature.png. Writes DIR/temperature.json.

    Example:
        sepkit find-temperature --manifest data/mini/dev.jsonl --out temperature

    Args:
        manifest: manifest of mixtures with sources, dev.jsonl for example
        out: folder of the results
        model: MODEL whose hypotheses are matched
        epochs: number of epochs of annealing, from the initial temperature to the floor, with --model
        mixtures: number of mixtures, spread over the manifest (default: all)
        segment_seconds: length of segments (default: that of the run's configuration with --model, else whole mixtures)
        ceiling_db: SI-SDR that free hypotheses cannot surpass, dB
        seed: seed of the segments
    """
    import sys

    from sepkit.annealing.temperature import of_model, of_sources
    from sepkit.reporting.temperature import write_findings

    shared: dict[str, Any] = {"mixtures": mixtures, "seed": seed}
    if model is None:
        findings = of_sources(manifest, ceiling_db=ceiling_db, segment_seconds=segment_seconds, **shared)
    else:
        from sepkit.inference.loading import load_model

        # Loaded as for separation, which handles devices.
        separator = load_model(model, device, predict=False, runner="torch")
        cost, trained_seconds = _of_run(model)
        shared |= {"epochs": epochs, "segment_seconds": segment_seconds or trained_seconds}
        findings = of_model(separator.model, manifest, cost, device=str(separator.device), **shared)
    for skipped in findings.data["skipped"]:
        print(f"sepkit find-temperature: {skipped['id']} is left out: {skipped['reason']}", file=sys.stderr)
    print("\n".join(findings.lines))
    return write_findings(findings.data, out)


def _of_run(model: str) -> tuple[CostConfig, float | None]:
    """Return the cost and the length of segments of the model's training; SI-SDR and whole mixtures if unknown."""
    from sepkit.cli._configuration import read_yaml
    from sepkit.config import CostConfig, NegSISDRConfig, from_dict

    folder = Path(model)
    # EXP, EXP/model, EXP/models/epoch_0010, or a file in one of them.
    file = next((f / "config.yaml" for f in (folder, *folder.parents[:3]) if (f / "config.yaml").is_file()), None)
    if file is None:
        return NegSISDRConfig(), None
    config = read_yaml(file)
    try:
        cost, segment_seconds = config["objective"]["cost"], config["data"]["segment_seconds"]
    except (KeyError, TypeError):
        raise UserError(f"{file}: no objective.cost or data.segment_seconds, expected a run's config.yaml") from None
    return from_dict(CostConfig, cost, f"{file}: objective.cost"), segment_seconds
