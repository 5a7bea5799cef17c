"""What is told of a separation: in words, and as a cell of a notebook with players."""

from __future__ import annotations

import base64
import math
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from sepkit.data import audio

if TYPE_CHECKING:
    from sepkit.inference.separator import Separated

__all__ = ["expectation", "lost_band", "players_html", "sentence"]

# A page, or a notebook that is saved, holds every sound that is shown.
_MOST_SECONDS = 60.0


def sentence(separated: Separated) -> str:
    """What came out, "2 speakers, expect 9.9 dB (6 to 13)"; without the second half where nothing is predicted.

    Args:
        separated: of one recording.
    """
    count = len(separated.kept) if separated.kept is not None else len(separated.estimates)
    return ", ".join([f"{count} speaker{'s' * (count != 1)}", *filter(None, [expectation(separated)])])


def expectation(separated: Separated) -> str:
    """The SI-SDR to expect of the estimates that were kept, "expect 9.9 dB (6 to 13)", means over them.

    In parentheses the interval that holds 90 % of what is separated so. Empty where nothing is predicted.
    """
    if separated.predicted_si_sdr_db is None:
        return ""
    kept = slice(None) if separated.kept is None else np.asarray(separated.kept)
    predicted = np.asarray(separated.predicted_si_sdr_db, np.float64)[kept]
    known = np.isfinite(predicted)
    if not known.any():
        return ""
    text = f"expect {predicted[known].mean():.1f} dB"
    if separated.predicted_interval_db is None:
        return text
    low, high = np.asarray(separated.predicted_interval_db, np.float64)[kept][known].mean(0)
    return f"{text} ({low:.0f} to {high:.0f})" if math.isfinite(low) and math.isfinite(high) else text


def lost_band(sample_rate: int, model_rate: int) -> str:
    """What estimates lack because the model's rate is lower than the recording's; empty where they lack nothing.

    Args:
        sample_rate: Hz, of the recording.
        model_rate: Hz.
    """
    if sample_rate <= model_rate:
        return ""
    return (
        f"the model works at {model_rate} Hz: of recordings at {sample_rate} Hz, everything above "
        f"{model_rate / 2:g} Hz is missing from the estimates"
    )


def players_html(separated: Separated) -> str:
    """A table with a player for each estimate, at one level, for notebooks; of long recordings the first minute.

    Args:
        separated: with estimates (k, T) and their rate.
    """
    estimates = np.asarray(separated.estimates, np.float32)
    shown = estimates[:, : round(_MOST_SECONDS * separated.sample_rate)]
    peak = float(np.abs(shown).max(initial=0))
    gain = 0.9 / peak if peak > 0.9 else 1.0
    cut = f" The first {_MOST_SECONDS:.0f} s are here." if shown.shape[1] < estimates.shape[1] else ""
    rows = []
    for place, waveform in enumerate(shown):
        sound = base64.b64encode(audio.encode_wav(gain * waveform, separated.sample_rate)).decode()
        source = f"data:audio/wav;base64,{sound}"
        player = f'<audio controls preload="metadata" aria-label="speaker {place + 1}" src="{source}"></audio>'
        rows.append(
            f"<tr><th>speaker {place + 1}</th><td>{player}</td><td>{escape(_of_estimate(separated, place))}</td></tr>"
        )
    return f"<p>{escape(sentence(separated))}.{cut}</p><table>{''.join(rows)}</table>"


def _of_estimate(separated: Separated, place: int) -> str:
    """What is predicted of one estimate."""
    hypothesis = place if separated.kept is None else int(separated.kept[place])
    predicted = separated.predicted_si_sdr_db
    if predicted is None or not math.isfinite(float(predicted[hypothesis])):
        return ""
    return f"expect {float(predicted[hypothesis]):.1f} dB"
