"""The result of separating one recording, its description in words, and its display in a notebook."""

import base64
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from sepkit.data import audio
from sepkit.errors import counted
from sepkit.inference.quality.features import SHORTEST_SECONDS
from sepkit.inference.selection import Selection
from sepkit.inference.waveforms import as_given

if TYPE_CHECKING:
    from torch import Tensor

    from sepkit.inference.long.recordings import Rendered

EstimatesT = TypeVar("EstimatesT", bound="np.ndarray | Tensor | Rendered")
"""Arrays of numpy, tensors of torch, or `Rendered` estimates, which are read block by block."""

GOOD_DB, USABLE_DB = 2.0, -4.0
"""Lower ends of the interval, dB, from which a separation is called good, and usable, with audible leakage."""

# A page, or a saved notebook, holds every sound that it shows.
_MOST_SECONDS = 60.0


@dataclass(frozen=True)
class Prediction:
    """The SI-SDR to expect of the estimates of a recording, without references. Tensors if the recording was a tensor.

    Args:
        si_sdr_db: SI-SDR to expect of each hypothesis, dB, (n,). NaN for an estimate that is silent or in which no one
            is speaking, and for all if a model without scores found one speaker, or if the recording is silent or
            shorter than half a second.
        interval_db: Ends of the interval that should hold 90 % of them, dB, (n, 2).
        source: "calibration": by a predictor fitted for this model. "agreement of views": by one for any model, with a
            wider interval.
        out_of_domain: Whether the recording or its estimates are unlike all that the prediction was fitted on, so that
            it may be wrong by more than the interval states; None if nothing is predicted.
    """

    si_sdr_db: Any
    interval_db: Any
    source: str = "calibration"
    out_of_domain: bool | None = None


@dataclass(frozen=True, repr=False)
class Separated(Generic[EstimatesT]):
    """One separated recording. Arrays are numpy arrays, or CPU tensors if the recording was a tensor.

    A notebook shows a player for each estimate; `save` writes them.

    >>> import tempfile, numpy as np
    >>> selection = Selection(gains=np.ones(2), kept=np.arange(2))
    >>> separated = Separated(np.zeros((2, 8000), np.float32), 8000, selection)
    >>> separated
    Separated(2 x 1.0 s at 8000 Hz: 2 outputs)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(*sorted(path.name for path in separated.save(folder, "talk")))
    talk_s1.wav talk_s2.wav

    Args:
        estimates: Estimates at the rate and level of the recording, (k, T) float32: one per kept hypothesis, in their
            order. `Separator.separate_recording` gives `Rendered` estimates instead, which are read block by block.
        sample_rate: Sampling rate of the estimates and of the recording, Hz.
        selection: Hypotheses that are speakers, and those that were kept at which levels.
        scores: Log-odds that each hypothesis is a speaker, (n,); None for a model without scoring head.
        weights: Share of the sources that each hypothesis should be the best for, by its score, (n,); their sum is 1.
        prediction: SI-SDR to expect, if `sepkit calibrate` gave the model a predictor or there are several views; None:
            nothing is predicted.
        rates: Rates of the latents, nats, see `rates_of`, for a model with variational latents if SI-SDR is predicted
            or they are asked for.
        tracks: Names of the speakers that the estimates are linked to, None for one that is not written; None: they are
            not linked.
    """

    estimates: EstimatesT
    sample_rate: int
    selection: Selection
    scores: Any = None
    weights: Any = None
    prediction: Prediction | None = None
    rates: dict[str, float] | None = None
    tracks: Sequence[str | None] | None = None

    @property
    def speakers(self) -> int | None:
        """Number of speakers, the user's if given; None for a model that does not count them."""
        return self.selection.speakers

    @property
    def kept(self) -> Any:
        """Numbers of the hypotheses that were kept, from 0, (k,) int64."""
        return self.selection.kept

    @property
    def gains(self) -> Any:
        """Factors that the model's own estimates were multiplied by, (k,)."""
        return self.selection.gains[self.selection.kept]

    @property
    def is_speaker(self) -> Any:
        """Hypotheses that are speakers, (n,) bool, see `Selection`; None for a model that does not count."""
        return self.selection.is_speaker

    @property
    def predicted_si_sdr_db(self) -> EstimatesT | None:
        """SI-SDR to expect of each hypothesis, dB, (n,), see `Prediction`; None if nothing is predicted."""
        return None if self.prediction is None else self.prediction.si_sdr_db

    @property
    def predicted_interval_db(self) -> EstimatesT | None:
        """Ends of the interval that should hold 90 % of them, dB, (n, 2); None if nothing is predicted."""
        return None if self.prediction is None else self.prediction.interval_db

    @property
    def out_of_domain(self) -> bool | None:
        """Whether the recording is unlike those that the prediction was fitted on; None if nothing is predicted."""
        return None if self.prediction is None else self.prediction.out_of_domain

    @property
    def likely_not_separated(self) -> bool:
        """Whether the separation probably failed, by the lower ends of its predicted intervals, see `verdict`."""
        lows = [] if self.prediction is None else np.asarray(self.predicted_interval_db)[np.asarray(self.kept), 0]
        return bool(np.isfinite(lows).any()) and verdict(float(np.nanmean(lows))) == "probably failed"

    def __repr__(self) -> str:
        count, num_samples = self.estimates.shape
        seconds = num_samples / self.sample_rate if self.sample_rate else 0.0
        return f"Separated({count} x {seconds:.1f} s at {self.sample_rate} Hz: {summary_line(self)})"

    def _repr_html_(self) -> str:
        """Return a table with a player for each estimate, at one level; of long recordings the first minute."""
        estimates = np.asarray(self.estimates, np.float32)
        shown = estimates[:, : round(_MOST_SECONDS * self.sample_rate)]
        peak = float(np.abs(shown).max(initial=0))
        gain = 0.9 / peak if peak > 0.9 else 1.0
        cut = f" The first {_MOST_SECONDS:.0f} s are here." if shown.shape[1] < estimates.shape[1] else ""
        predicted, rows = None if self.prediction is None else self.prediction.si_sdr_db, []
        for place, (waveform, hypothesis) in enumerate(zip(shown, self.kept, strict=True)):
            sound, kind = audio.encode_sound(gain * waveform, self.sample_rate)
            source = f"data:{kind};base64,{base64.b64encode(sound).decode()}"
            player = f'<audio controls preload="metadata" aria-label="speaker {place + 1}" src="{source}"></audio>'
            value = math.nan if predicted is None else float(predicted[int(hypothesis)])
            expected = f"predicted {value:.1f} dB" if math.isfinite(value) else ""
            rows.append(f"<tr><th>speaker {place + 1}</th><td>{player}</td><td>{expected}</td></tr>")
        return f"<p>{escape(summary_line(self))}.{cut}</p><table>{''.join(rows)}</table>"

    def save(self, folder: str | os.PathLike[str], name: str = "separated") -> list[Path]:
        """Write the estimates as float wav files, FOLDER/NAME_s1.wav and so on, and return their paths.

        Args:
            folder: Folder of the files, made if absent.
            name: Beginning of the file names.

        Raises:
            UserError: a folder that cannot be written to.
        """
        estimates = np.asarray(self.estimates, np.float32)
        paths = [Path(folder) / f"{name}_s{place + 1}.wav" for place in range(len(estimates))]
        return [audio.write(path, wave, self.sample_rate) for path, wave in zip(paths, estimates, strict=True)]


def with_tensors(part: Any) -> Any:
    """Return a result, or a part of it, with tensors in place of arrays."""
    changed = {
        name: as_given(value) if isinstance(value, np.ndarray) else with_tensors(value)
        for name, value in vars(part).items()
        if isinstance(value, np.ndarray) or is_dataclass(value)
    }
    return replace(part, **changed)


def summary_line(separated: Separated[Any]) -> str:
    """Return the result in words: "2 speakers; predicted SI-SDR 9.9 dB (90 % interval 6 to 13): good".

    The second half needs a prediction. A number of speakers is one that was found; otherwise the line states the number
    of outputs. Out of the domain of the prediction it states no quality.
    """
    outputs, found = len(separated.kept), separated.speakers
    if found is None:
        what = counted(outputs, "output")
    elif found == 0:
        what = "no sound"
    elif found == 1 and outputs > 1 and separated.scores is None:
        place = int(np.flatnonzero(np.asarray(separated.is_speaker)[np.asarray(separated.kept)])[0])
        what = f"1 speaker, in _s{place + 1} (--speakers {outputs} if there are more)"
    else:
        what = counted(found if separated.scores is None else outputs, "speaker")
        what += " or more" if separated.selection.count_is_lower_bound else ""
    seconds = separated.estimates.shape[-1] / max(1, separated.sample_rate)
    if outputs and seconds < SHORTEST_SECONDS:
        return f"{what}; {seconds:.2g} s is too short to separate, expected at least {SHORTEST_SECONDS} s"
    if separated.out_of_domain:
        return f"{what}; quality unknown: unlike the recordings that the prediction was fitted on"
    return "; ".join(filter(None, [what, _expectation(separated)]))


def _expectation(separated: Separated[Any]) -> str:
    """Return the predicted SI-SDR of the estimates that were kept, means over them, and what that sounds like.

    "predicted SI-SDR 9.9 dB (90 % interval 6 to 13): good". The words follow from the lower end of the interval, see
    `verdict`. Without a prediction it is "". Where the model has no predictor of its own, it names the agreement of
    views.
    """
    if (prediction := separated.prediction) is None:
        return ""
    kept = np.asarray(separated.kept)
    predicted = np.asarray(prediction.si_sdr_db, np.float64)[kept]
    known = np.isfinite(predicted)
    if not known.any():
        return ""
    # Adding 0 turns -0 into 0.
    text, words = f"predicted SI-SDR {round(float(predicted[known].mean()), 1) + 0.0:.1f} dB", ""
    low, high = np.asarray(prediction.interval_db, np.float64)[kept][known].mean(0)
    if math.isfinite(low) and math.isfinite(high):
        text += f" (90 % interval {round(low)} to {round(high)})"
        words = f": {verdict(low)}"
    if prediction.source == "agreement of views":
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
