"""Which hypotheses of a recording are kept, and their levels: their strength in the mixture, and how they add up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sepkit.errors import UserError, counted
from sepkit.inference.options import Levels, Speakers
from sepkit.models.hypotheses import best_hypotheses, distinct_by_products


@dataclass
class Products:
    """Inner products of estimates with each other and with the mixture, float64: all that levels depend on.

    Args:
        gram: (n, n) <s_i, s_j>.
        cross: (n,) <x, s_i>.
        sums: (n,) sums of the samples of s_i.
        num_samples: T.
    """

    gram: np.ndarray
    cross: np.ndarray
    sums: np.ndarray
    num_samples: int


def products_of(mixture: np.ndarray, estimates: np.ndarray) -> Products:
    """Return the inner products of a mixture (T,) and estimates (n, T) in memory."""
    mixture, estimates = mixture.astype(np.float64), estimates.astype(np.float64)
    return Products(estimates @ estimates.T, estimates @ mixture, estimates.sum(-1), len(mixture))


def gains_of(products: Products, levels: Levels, consistent: bool, kept: np.ndarray) -> np.ndarray:
    """Return (n,) float32 gains of the estimates; one number for the whole recording.

    * levels "model": 1.
    * levels "mixture": those of the projections of the mixture on each estimate, <x, s_i> / <s_i, s_i>, so that none is
      ever stronger than the mixture.
    * consistent: of the estimates that are kept those whose sum is nearest to the mixture, the least squares
      solution of <s_i, s_j> g = <x, s_i>; of several solutions (estimates that are alike) the smallest.

    A silent estimate has 0.

    Args:
        consistent: see above; goes before `levels` for the estimates that are kept.
        kept: (k,) which estimates are.
    """
    energies = np.diagonal(products.gram)
    if levels == "model":
        gains = np.ones(len(energies))
    else:
        gains = np.divide(products.cross, energies, out=np.zeros(len(energies)), where=energies > 0)
    if consistent and kept.size:
        norms = np.sqrt(np.maximum(energies[kept], np.finfo(np.float64).tiny))
        unit = products.gram[np.ix_(kept, kept)] / np.outer(norms, norms)
        gains[kept] = np.linalg.lstsq(unit, products.cross[kept] / norms, rcond=1e-6)[0] / norms
        gains[energies == 0] = 0
    return gains.astype(np.float32)


def distribute_residual(mixture: np.ndarray, estimates: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return estimates that add up to the mixture, (k, T) float32: each gets its share of what they leave of it.

    Args:
        shares: (k,), of `Selection.shares`.

    Source: Wisdom et al., "Differentiable consistency constraints for improved deep speech enhancement", 2019, eq. 9.
    """
    return estimates + shares[:, None] * (mixture - estimates.sum(0))


@dataclass(frozen=True)
class Selection:
    """Which hypotheses of a recording are speakers, and which are kept at which levels.

    Args:
        gains: Gains of all hypotheses, (n,) float32, see `gains_of`.
        kept: Numbers of the hypotheses that are kept, from 0, (k,) int64.
        is_speaker: Hypotheses that are speakers, (n,) bool: those that "auto" keeps, or as many as the user says, none
            in silence; None for a model that does not count.
        joined: Gains of all hypotheses whose sum is the output of the only speaker, (n,) float32; None: each hypothesis
            is an output of its own.
        count_is_lower_bound: Whether there may be more speakers, because all outputs are active.
    """

    gains: Any
    kept: Any
    is_speaker: Any = None
    joined: Any = None
    count_is_lower_bound: bool = False

    @property
    def speakers(self) -> int | None:
        """Number of speakers, the user's if given; None for a model that does not count them."""
        return None if self.is_speaker is None else int(self.is_speaker.sum())

    def scaled(self, factor: float) -> Selection:
        """Return the selection with all gains multiplied by a factor."""
        joined = None if self.joined is None else (factor * self.joined).astype(np.float32)
        return replace(self, gains=(factor * self.gains).astype(np.float32), joined=joined)

    def outputs(self, estimates: np.ndarray) -> np.ndarray:
        """Return (k, T), the kept ones of a model's estimates (n, T) at their levels."""
        leveled = estimates[self.kept] * self.gains[self.kept][:, None]
        if self.joined is None:
            return leveled
        return np.where(self.is_speaker[self.kept][:, None], self.joined @ estimates, leveled)

    def shares(self, products: Products) -> np.ndarray:
        """Return the shares of the outputs in what they leave of the mixture, (k,) float32.

        Shares are proportional to the outputs' energies and sum to one; they are equal if all are silent.

        Args:
            products: Inner products of the estimates and the mixture.
        """
        if self.joined is not None:
            return self.is_speaker[self.kept].astype(np.float32)
        energies = np.square(self.gains[self.kept].astype(np.float64)) * np.diagonal(products.gram)[self.kept]
        total = energies.sum()
        shares = energies / total if total > 0 else np.full(len(energies), 1 / max(1, len(energies)))
        return shares.astype(np.float32)


def check_speakers(speakers: Speakers, hypotheses: int, counts: bool) -> None:
    """Raise UserError if the model cannot keep this number of hypotheses: out of range, or auto if it does not count.

    Args:
        hypotheses: n of the model.
        counts: whether it counts speakers.
    """
    if speakers is None:
        return
    is_number = isinstance(speakers, int) and not isinstance(speakers, bool)
    if speakers != "auto" and not (is_number and 1 <= speakers <= hypotheses):
        if not (is_number and speakers > hypotheses):
            raise UserError(f"speakers: found {speakers}, expected auto or a whole number from 1 to {hypotheses}")
        raise UserError(
            f"speakers={speakers}: this model has {counted(hypotheses, 'output')}; use link_speakers={speakers} for a "
            "meeting, or choose another model"
        )
    if speakers == "auto" and not counts:
        raise UserError(
            f"speakers={speakers}: this model does not count speakers; leave it out, or train one that does: with "
            "model.scoring.hidden_size 128, or with objective.silence.weight 0.1 and "
            "data.dynamic_mixing.one_speaker_share 0.2, then `sepkit calibrate`"
        )


def select_by_scores(
    products: Products,
    scores: np.ndarray,
    silent: bool,
    speakers: Speakers,
    threshold: float,
    levels: Levels,
    consistent: bool,
) -> Selection:
    """Return the hypotheses whose scores are above a threshold, or the best scored ones; duplicates count once.

    Args:
        products: Inner products of the estimates and the mixture.
        scores: Log-odds that each hypothesis is a speaker, (n,).
        silent: Whether the mixture is silent; then no one is speaking.
        speakers: Hypotheses to keep: None: all; "auto": those above the threshold; N: the N best scored.
        threshold: Score above which a hypothesis is a speaker.
        levels: See `gains_of`.
        consistent: See `gains_of`.
    """
    kept = np.arange(len(scores))
    gains = gains_of(products, levels, False, kept).astype(np.float64)
    centered = products.gram - np.outer(products.sums, products.sums) / products.num_samples
    scaled = centered * np.outer(gains, gains)
    distinct = distinct_by_products(scores, scaled, np.diagonal(products.gram) * np.square(gains))
    is_speaker = distinct & (scores > threshold) & (not silent)
    if speakers == "auto":
        kept = np.flatnonzero(is_speaker)
    elif speakers is not None:
        kept = best_hypotheses(scores, distinct, speakers)
        is_speaker = np.isin(np.arange(len(scores)), kept) & (not silent)
    return Selection(gains_of(products, levels, consistent, kept), kept, is_speaker)


def select_by_levels(
    products: Products,
    silent: bool,
    speakers: Speakers,
    levels: Levels,
    consistent: bool,
    single: bool = False,
    same_voice: bool = False,
) -> Selection:
    """Return the hypotheses of a model without scores: all, or the strongest ones.

    If one speaker is alone, the strongest hypothesis is the speaker, and its output comes first. It is the sum of all
    hypotheses if these hold parts of the same voice; otherwise the others hold noise. Their best gains would lift what
    is left in them to the level of the recording; they have that of the strongest hypothesis. They keep content and
    level: if two speakers are taken for one, a listener notices.

    Args:
        products: Inner products of the estimates and the mixture.
        silent: Whether the mixture is silent; then no one is speaking.
        speakers: Hypotheses to keep: None: all; "auto": the speakers; N: the N strongest.
        levels: See `gains_of`.
        consistent: See `gains_of`.
        single: Whether one speaker is alone.
        same_voice: Whether all hypotheses hold parts of one voice.
    """
    energies = np.diagonal(products.gram)
    kept, strongest = np.arange(len(energies)), np.argmax(energies)
    loud = kept == strongest if single else np.ones(len(energies), bool)
    is_speaker = loud & (not silent)
    if speakers == "auto":
        kept = np.flatnonzero(is_speaker)
    elif speakers is not None:
        kept = np.sort(np.argsort(-energies, kind="stable")[:speakers])
        is_speaker = np.isin(np.arange(len(energies)), kept) & (not silent)
    gains = gains_of(products, levels, consistent, kept[loud[kept]])
    gains[~loud] = gains[strongest]
    if not single or silent:
        return Selection(gains, kept, is_speaker)
    kept = kept[np.argsort(kept != strongest, kind="stable")]
    return Selection(gains, kept, is_speaker, np.full(len(energies), gains[strongest]) if same_voice else None)
