"""Write the findings of `sepkit find-temperature` as JSON and as a figure."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from sepkit.annealing.temperature import ENTROPY_SHARE, EntropyByTemperature, Findings
from sepkit.files import atomic_output, write_json
from sepkit.reporting.matching_figures import entropy_by_temperature, groups_by_temperature


def temperature_figure(findings: Findings) -> Figure:
    """Return a figure of the splits of hypotheses, or of the entropy of their assignment, over temperature.

    Args:
        findings: of sources or a model.
    """
    found = findings.found
    if isinstance(found, EntropyByTemperature):
        return entropy_by_temperature(
            found.temperatures, found.entropies_nats, found.hypotheses, found.initial, ENTROPY_SHARE, found.unit
        )
    return groups_by_temperature(found.annealing, found.spread_db, found.expected_db)


def write_findings(findings: Findings, folder: str | os.PathLike[str]) -> Path:
    """Write temperature.json and temperature.png, and return their folder.

    Args:
        findings: of sources or a model.
        folder: made if absent.

    Raises:
        UserError: the folder cannot be written to.
    """
    folder = Path(folder)
    with atomic_output(folder / "temperature.png") as temporary:
        temperature_figure(findings).savefig(temporary, format="png", dpi=160)
    skipped = [{"id": name, "reason": reason} for name, reason in findings.skipped.items()]
    write_json(folder / "temperature.json", findings.data | {"skipped": skipped})
    return folder
