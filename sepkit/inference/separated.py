"""The result of separating one recording, its description in words, and its display in a notebook."""

from __future__ import annotations

import base64
import math
import os
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from sepkit.data import audio
from sepkit.inference.waveforms import as_given

if TYPE_CHECKING:
    from torch import Tensor

ArrayT = TypeVar("ArrayT", bound="np.ndarray | Tensor")
"""Arrays of numpy, or tensors of torch."""

GOOD_DB, USABLE_DB = 2.0, -4.0
"""Lower ends of the interval, dB, from which a separation is called good, and usable, with audible leakage."""

# A page, or a saved notebook, holds every sound that it shows.
_MOST_SECONDS = 60.0


@dataclass(repr=False)
class Separated(Generic[ArrayT]):
    """One separated recording. Arrays are numpy arrays, or CPU tensors if the recording was a tensor.

    A notebook shows a player for each estimate; `save` writes them.

    >>> import tempfile, numpy as np
    >>> separated = Separated(np.zeros((2, 8000), np.float32), np.ones(2), kept=np.arange(2), sample_rate=8000)
    >>> separated
    Separated(2 x 1.0 s at 8000 Hz: 2 outputs)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(*sorted(path.name for path in separated.save(folder, "talk")))
    talk_s1.wav talk_s2.wav

    Args:
        estimates: (k, T) float32, at the rate and level of the recording: one per kept hypothesis, in their order.
        gains: (k,) what the model's own estimates were multiplied by.
        scores: (n,) log-odds that each hypothesis is a speaker; None for a model without scoring head.
        predicted_si_sdr_db: (n,) SI-SDR to expect of each hypothesis, if `sepkit calibrate` gave the model a predictor
            or there are several views. NaN for an estimate that is silent or that nobody speaks in, and for all if a
            model without scores found one speaker, or if the recording is silent or shorter than half a second.
        predicted_interval_db: (n, 2) ends of the interval that should hold 90 % of them.
        predicted_by: "calibration": by a predictor fitted for this model. "agreement of views": by one for any model,
            with a wider interval. None: nothing is predicted.
        kept: (k,) int64, numbers of the hypotheses that were kept, from 0.
        is_speaker: (n,) bool, those that "auto" keeps, whatever was kept; None for a model that does not count.
        or_more: whether `speakers` is the least number: all outputs speak, and nothing tells whether more do.
        rates: nats, see `rates_of`, for a model with variational latents if SI-SDR is predicted or they are asked for.
        spread: (k, T) standard deviation of every sample of the estimates over samples of the latents, at the rate and
            level of the recording, if it was asked for; zeros for a deterministic model.
        sample_rate: Hz, of the estimates and of the recording.
        tracks: names of the speakers that the estimates are linked to, None for one that is not written; None: they are
            not linked.
        weights: (n,) share of the sources that each hypothesis should be the best for, by its score; their sum is 1.
        out_of_domain: whether the recording or its estimates are unlike all that the prediction was fitted on, so that
            it may be wrong by more than the interval says; None if nothing is predicted.
    """

    estimates: ArrayT
    gains: ArrayT
    scores: ArrayT | None = None
    predicted_si_sdr_db: ArrayT | None = None
    predicted_interval_db: ArrayT | None = None
    predicted_by: str | None = None
    kept: Any = None
    is_speaker: ArrayT | None = None
    or_more: bool = False
    rates: dict[str, float] | None = None
    spread: ArrayT | None = None
    sample_rate: int = 0
    tracks: list[str | None] | None = None
    weights: ArrayT | None = None
    out_of_domain: bool | None = None

    @property
    def speakers(self) -> int | None:
        """How many speak, whatever was kept, see `or_more`; None for a model that does not count them."""
        return None if self.is_speaker is None else int(np.sum(np.asarray(self.is_speaker)))

    def as_tensors(self) -> Separated[Tensor]:
        """Return the same with tensors in place of arrays."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(cast("Separated[Any]", self), **{name: as_given(value) for name, value in arrays.items()})

    def __repr__(self) -> str:
        count, num_samples = self.estimates.shape
        seconds = num_samples / self.sample_rate if self.sample_rate else 0.0
        return f"Separated({count} x {seconds:.1f} s at {self.sample_rate} Hz: {summary_line(self)})"

    def _repr_html_(self) -> str:
        return _players_html(self)

    def save(self, folder: str | os.PathLike[str], name: str = "separated") -> list[Path]:
        """Write the estimates as wav files of floats, FOLDER/NAME_s1.wav and so on, and return their paths.

        Raises:
            UserError: the folder cannot be written to.
        """
        estimates = np.asarray(self.estimates, np.float32)
        paths = [Path(folder) / f"{name}_s{place + 1}.wav" for place in range(len(estimates))]
        return [audio.write(path, wave, self.sample_rate) for path, wave in zip(paths, estimates, strict=True)]


def summary_line(separated: Separated[Any]) -> str:
    """Return the result in words: "2 speakers; predicted SI-SDR 9.9 dB (90 % interval 6 to 13): good".

    The second half needs a prediction. A number of speakers is one that was found; otherwise the line states the number
    of outputs. Out of the domain of the prediction it states no quality.
    """
    outputs = len(separated.kept) if separated.kept is not None else len(separated.estimates)
    found = separated.speakers
    if found is None:
        what = counted(outputs, "output")
    elif found == 0:
        what = "no sound"
    elif found == 1 and outputs > 1 and separated.scores is None:
        place = int(np.flatnonzero(np.asarray(separated.is_speaker)[np.asarray(separated.kept)])[0])
        what = f"1 speaker, in _s{place + 1} (--speakers {outputs} if there are more)"
    else:
        what = counted(found if separated.scores is None else outputs, "speaker")
        what += " or more" if separated.or_more else ""
    if separated.out_of_domain:
        return f"{what}; quality unknown: unlike the recordings that the prediction was fitted on"
    return "; ".join(filter(None, [what, expectation(separated)]))


def counted(number: int, what: str) -> str:
    """Return a number of things in words: 1 speaker, 2 speakers."""
    return f"{number} {what}{'s' * (number != 1)}"


def expectation(separated: Separated[Any]) -> str:
    """Return the predicted SI-SDR of the estimates that were kept, means over them, and what that sounds like.

    "predicted SI-SDR 9.9 dB (90 % interval 6 to 13): good". The words follow from the lower end of the interval, see
    `verdict`. Without a prediction it is "". Where the model has no predictor of its own, it names the agreement of
    views.
    """
    if separated.predicted_si_sdr_db is None:
        return ""
    kept = slice(None) if separated.kept is None else np.asarray(separated.kept)
    predicted = np.asarray(separated.predicted_si_sdr_db, np.float64)[kept]
    known = np.isfinite(predicted)
    if not known.any():
        return ""
    # Adding 0 turns -0 into 0.
    text, words = f"predicted SI-SDR {round(float(predicted[known].mean()), 1) + 0.0:.1f} dB", ""
    if separated.predicted_interval_db is not None:
        low, high = np.asarray(separated.predicted_interval_db, np.float64)[kept][known].mean(0)
        if math.isfinite(low) and math.isfinite(high):
            text += f" (90 % interval {round(low)} to {round(high)})"
            words = f": {verdict(low)}"
    if separated.predicted_by == "agreement of views":
        text += " by the agreement of views"
    if separated.speakers is None:
        text += f" if there are {counted(len(predicted), 'speaker')}"
    return text + words


def verdict(low_db: float) -> str:
    """Return what a separation sounds like.

    Args:
        low_db: Lower end of the interval of the predicted SI-SDR, dB.
    """
    if low_db < USABLE_DB:
        return "probably failed"
    return "good" if low_db >= GOOD_DB else "usable, with audible leakage"


def _players_html(separated: Separated[Any]) -> str:
    """Return a table with a player for each estimate, at one level; of long recordings the first minute."""
    estimates = np.asarray(separated.estimates, np.float32)
    shown = estimates[:, : round(_MOST_SECONDS * separated.sample_rate)]
    peak = float(np.abs(shown).max(initial=0))
    gain = 0.9 / peak if peak > 0.9 else 1.0
    cut = f" The first {_MOST_SECONDS:.0f} s are here." if shown.shape[1] < estimates.shape[1] else ""
    rows = []
    for place, waveform in enumerate(shown):
        sound, kind = audio.encode_sound(gain * waveform, separated.sample_rate)
        source = f"data:{kind};base64,{base64.b64encode(sound).decode()}"
        player = f'<audio controls preload="metadata" aria-label="speaker {place + 1}" src="{source}"></audio>'
        hypothesis = place if separated.kept is None else int(separated.kept[place])
        predicted = separated.predicted_si_sdr_db
        value = math.nan if predicted is None else float(predicted[hypothesis])
        expected = f"predicted {value:.1f} dB" if math.isfinite(value) else ""
        rows.append(f"<tr><th>speaker {place + 1}</th><td>{player}</td><td>{expected}</td></tr>")
    return f"<p>{escape(summary_line(separated))}.{cut}</p><table>{''.join(rows)}</table>"
