"""Show an example in the report: waveforms, spectrograms and players side by side."""

from __future__ import annotations

from html import escape

import numpy as np

from sepkit.evaluation.labels import label_of
from sepkit.reporting import figures, page
from sepkit.reporting.examples import Example, Outcome

# Longer mixtures are cut, because a page with minutes of sound takes long to open.
_MAX_SECONDS = 30.0
_PEAK = 0.9


def example_html(example: Example, metric: str, name: str) -> str:
    """Return the mixture, then for every source its reference beside each run's estimate, as HTML.

    Sounds and waveforms share one scale: the loudest of the mixture and references is at 0.9 of full scale. An estimate
    that would exceed this is turned down to it, with a note.

    Args:
        example: one mixture.
        metric: by which the example was chosen.
        name: prefix of identifiers, unique in the page.
    """
    entry, rate = example.entry, example.entry.sample_rate
    stop = round(_MAX_SECONDS * rate)
    mixture, sources = example.mixed.mixture[:stop], example.mixed.sources[:, :stop]
    loudest = max(float(np.abs(mixture).max(initial=0)), float(np.abs(sources).max(initial=0)))
    gain = _PEAK / loudest if loudest else 1.0
    top_db = figures.spectral_peak_db(gain * mixture, rate)
    unit = " dB" if metric.endswith("_db") else ""

    def view(waveform: np.ndarray, title: str, text: str, kind: int, place: str) -> str:
        peak = float(np.abs(gain * waveform).max(initial=0))
        waveform = gain * waveform * (_PEAK / peak if peak > 1 else 1.0)
        text += f" · turned down {20 * np.log10(peak / _PEAK):.0f} dB" * (peak > 1)
        color = figures.COLORS[kind % len(figures.COLORS)]
        figure = figures.signal_view(waveform, rate, color=color, peak=1.0, top_db=top_db)
        picture = page.figure_html(figure, f"example-{name}-{place}", f"Waveform and spectrogram: {title}, {text}")
        sound = page.player(waveform, rate, f"{title}, {text}")
        return f'<div class="signal"><p><b>{escape(title)}</b>{escape(text)}</p>{picture}{sound}</div>'

    cut = f", the first {_MAX_SECONDS:.0f} s" if entry.num_samples > stop else ""
    several = len(example.outcomes) > 1
    scores = " · ".join(
        f"{escape(run + ' ') if several else ''}{page.number(score, 3 if not unit else 2)}{unit}"
        for run, score in example.scores.items()
    )
    rows = [view(mixture, "Mixture", f"{entry.duration_seconds:.1f} s{cut}", 7, "mixture")]
    html = [_signals(rows, 1 + len(example.outcomes))]
    for j, source in enumerate(sources):
        part = entry.sources[j]
        who = " ".join(filter(None, (part.speaker, part.sex and {"F": "female", "M": "male"}.get(part.sex, part.sex))))
        title = f"Speaker {j + 1}"
        cells = [view(source, title, f"reference{' · ' + who if who else ''}", 2, f"reference{j}")]
        for place, (run, outcome) in enumerate(example.outcomes.items()):
            cells.append(_estimate(outcome, j, stop, run if several else "estimate", title, view, place))
        html.append(_signals(cells, len(cells)))
    notes = "".join(
        f'<p class="note">{escape(f"{run}: " if several else "")}{escape(outcome.note.strip())}</p>'
        for run, outcome in example.outcomes.items()
        if outcome.note
    )
    label = label_of(metric).partition(" [")[0]
    heading = (
        f'<h4><span class="badge">{example.kind}</span>{scores} '
        f'<span class="quiet">{escape(label)} · {escape(entry.id)}</span></h4>'
    )
    return f'<article class="example" id="example-{name}">{heading}{notes}{"".join(html)}</article>'


def _estimate(outcome: Outcome, source: int, stop: int, run: str, title: str, view, place: int) -> str:
    if source not in outcome.estimates:
        text = "no estimate" if outcome.note else "silent: nothing is matched with it"
        return f'<div class="signal"><p><b>{escape(title)}</b>{escape(run)} · {text}</p></div>'
    score = f"{run} · SI-SDR {page.number(outcome.si_sdr_db[source])} dB"
    return view(outcome.estimates[source][:stop], title, score, place and place + 2, f"estimate{source}-{place}")


def _signals(cells: list[str], columns: int) -> str:
    return f'<div class="signals" style="--columns: {min(max(2, columns), 4)}">{"".join(cells)}</div>'
