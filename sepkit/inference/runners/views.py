"""Views of a recording: it is separated as it is and played slower and faster, and the estimates are averaged.

What a model confuses in one view it often does not in another, so that their mean is better, and how far they agree
shows how good it is: a sign of quality for any model, without a spread, labels or training.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from sepkit.data import audio
from sepkit.inference.runners.base import AGREEMENT, ModelOutput, Runner
from sepkit.inference.waveforms import fit_length
from sepkit.matching import linear_sum_assignment
from sepkit.signals import pairwise_si_sdr_db

SPEEDS = (0.95, 1.05, 0.92, 1.08)
"""How many times faster the recording is played in the second view, the third ..."""


class ViewsRunner:
    """A runner whose estimates are means over views of the mixture; see `Runner`.

    Estimates of a view are brought back to the time of the recording, into the order of the first view and to its
    level. Scores, rates and features of latents are those of the first view.

    Args:
        runner: Runner of one view.
        views: Number of views, from 2 to `MOST_VIEWS`.
    """

    def __init__(self, runner: Runner, views: int) -> None:
        self._runner, self.views = runner, views
        self.model, self.device = runner.model, runner.device
        self.kind: Literal["graph", "torch"] = runner.kind
        self.sample_rate, self.hypotheses, self.info = runner.sample_rate, runner.hypotheses, runner.info
        self.signal_std, self.level = runner.signal_std, runner.level
        self.scored, self.score_loss = runner.scored, runner.score_loss
        self.counts_speakers = runner.counts_speakers
        self.variational, self.has_rates = runner.variational, runner.has_rates
        self.depth, self.trained_steps = runner.depth, runner.trained_steps
        self.small_steps = runner.small_steps
        self.stream, self.batch_size, self.fingerprint = runner.stream, runner.batch_size, runner.fingerprint

    def run(
        self, mixtures: np.ndarray, features: bool = False, rates: bool = False, evidence: bool = False
    ) -> ModelOutput:
        """Return the output for mixtures (B, T), with `AGREEMENT` among the features."""
        first = self._runner.run(mixtures, features, rates, evidence)
        total, agreement = first.estimates.astype(np.float64), np.zeros(first.estimates.shape[:2])
        for speed in SPEEDS[: self.views - 1]:
            other = self._at_speed(mixtures, speed)
            for place, (own, reference) in enumerate(zip(other, first.estimates, strict=True)):
                table = pairwise_si_sdr_db(reference, own)
                order = linear_sum_assignment(table, maximize=True)[1]
                agreement[place] += table[np.arange(len(order)), order]
                own = own[order].astype(np.float64)
                energies, products = np.square(own).sum(-1), (own * reference).sum(-1)
                gains = np.divide(products, energies, out=np.zeros_like(products), where=energies > 0)
                total[place] += gains[:, None] * own
        first.estimates = (total / self.views).astype(np.float32)
        if features:
            first.features[AGREEMENT] = agreement / (self.views - 1)
        return first

    def with_speakers(self, n: int) -> Runner:
        """Return the same views with the speaker count fixed, see `Runner.with_speakers`."""
        fixed = self._runner.with_speakers(n)
        return self if fixed is self._runner else ViewsRunner(fixed, self.views)

    def with_depth(self, n: int) -> ViewsRunner:
        """Return the same views of the model in n steps, see `Runner.with_depth`."""
        return ViewsRunner(self._runner.with_depth(n), self.views)

    def _at_speed(self, mixtures: np.ndarray, speed: float) -> np.ndarray:
        """Return estimates (B, n, T) of mixtures that are played at another speed, at the time of the recording."""
        rate = self._runner.sample_rate
        changed = round(speed * rate)
        played = np.stack([audio.resample(mixture, changed, rate) for mixture in mixtures])
        if not played.shape[-1]:
            return np.repeat(mixtures[:, None], self._runner.hypotheses, axis=1)
        back = [audio.resample(own, rate, changed) for own in self._runner.run(played).estimates]
        return np.stack([fit_length(own, mixtures.shape[-1]) for own in back])
