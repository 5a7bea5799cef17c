"""Audiograms in a report: what was measured and estimated in simulated sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from sepkit.evaluation.run_folder import Run
from sepkit.reporting import page
from sepkit.reporting.audiograms import AUDIOGRAMS, audiogram_figure, read_audiogram_rows


def sections(runs: Sequence[Run]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the section of the audiograms of simulated sessions, if the runs have any.

    Args:
        runs: of the report.
    """
    yield "audiograms", "Audiograms", list(_audiograms(runs))


def _audiograms(runs: Sequence[Run]) -> Iterator[str]:
    drawn = []
    for run in runs:
        files = [run.folder / AUDIOGRAMS, *sorted(run.folder.glob(f"*/{AUDIOGRAMS}"))]
        for file in (file for file in files if file.is_file()):
            for name, rows in read_audiogram_rows(file).items():
                text = f"{run.name}: {name}"
                drawn.append(
                    page.figure_html(audiogram_figure(rows), page.slug(text), f"Audiogram: {text}", escape(text))
                )
    if drawn:
        yield f'<div class="figures">{"".join(drawn)}</div>'
        yield (
            '<p class="quiet">Red O: right ear, blue X: left ear; large where measured, small with a bar of one '
            "standard deviation where estimated; dashed: the whole audiogram. Not a medical device.</p>"
        )
