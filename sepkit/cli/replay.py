"""`sepkit replay`: show how hypotheses split along a cooling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sepkit.cli._parser import DEVICE
from sepkit.inference.options import Levels, Subtype

if TYPE_CHECKING:
    from sepkit.inference.hierarchy import Hierarchy


def main(
    inputs: list[str],
    *,
    model: str,
    out: str = "replayed",
    channel: int | None = None,
    levels: Levels = "mixture",
    subtype: Subtype = "FLOAT",
    device: str = DEVICE,
) -> Path:
    """Separate audio files with the models kept along a cooling, from high temperature to low: a tree of splits.

    Writes OUT/<relative path>_hierarchy.json, .png, and a folder with one wav per group of hypotheses that are alike.
    The same command again continues where it stopped.

    Args:
        inputs: audio files, and folders that are searched for them
        model: MODEL: an experiment trained with trainer.keep_every_epochs, EXP with EXP/models
        out: folder of the results
        channel: which channel to separate, from 0; default: the mean of all
        levels: mixture: scale each estimate to its level in the mixture; model: leave it as it is
        subtype: sample format; estimates that would clip as PCM_16 are written as FLOAT

    Returns:
        The folder of the results. Exits with 1 if some recordings could not be separated.

    Raises:
        UserError: no kept models, or an input, device or output folder that is not there.
    """
    import sys

    from sepkit.inference.inputs import find_recordings

    find_recordings(inputs, Path(out))
    from sepkit.inference.hierarchy import separate_hierarchy

    report = separate_hierarchy(
        inputs, model, out, draw=_draw, device=device, channel=channel, levels=levels, subtype=subtype
    )
    if report.failed:
        for reason in [*report.failed.values(), str(report)]:
            print(f"sepkit replay: {reason}", file=sys.stderr)
        print(out, flush=True)
        raise SystemExit(1)
    print(report)
    return Path(out)


def _draw(found: Hierarchy, path: Path) -> None:
    from sepkit.reporting.matching_figures import dendrogram

    names = [f"s{k + 1}" for k in range(len(found.levels[0].groups))]
    figure = dendrogram([level.temperature for level in found.levels], [level.groups for level in found.levels], names)
    figure.savefig(path, format="png", dpi=160)
