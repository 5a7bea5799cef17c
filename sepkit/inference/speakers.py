"""Choose the hypotheses of a recording to keep, and the gains that bring them to their level in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sepkit.errors import UserError
from sepkit.inference.levels import Products, gains_of, residual_shares
from sepkit.inference.options import Levels, Speakers
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.scoring import best_hypotheses, distinct_by_products

# Level of the other outputs relative to that of a speaker who is alone.
_OTHERS_DB = -40.0


@dataclass
class Chosen:
    """Hypotheses that are kept.

    Args:
        gains: (n,) float32, of all hypotheses, see `gains_of`.
        kept: (k,) int64, numbers of those that are kept, from 0.
        is_speaker: (n,) bool, those that "auto" keeps; None for a model that does not count.
        joined: (n,) float32 gains of all hypotheses whose sum is the output of the only speaker, far below which the
            others are; None: each hypothesis is an output of its own.
    """

    gains: np.ndarray
    kept: np.ndarray
    is_speaker: np.ndarray | None
    joined: np.ndarray | None = None

    def outputs(self, estimates: np.ndarray) -> np.ndarray:
        """Return (k, T), the kept estimates at their levels.

        Args:
            estimates: (n, T), of the model.
        """
        leveled = estimates[self.kept] * self.gains[self.kept][:, None]
        if self.joined is None or self.is_speaker is None:
            return leveled
        return np.where(self.is_speaker[self.kept][:, None], self.joined @ estimates, leveled)

    def shares(self, products: Products) -> np.ndarray:
        """Return (k,) shares of the outputs in what they leave of the mixture, see `residual_shares`.

        Args:
            products: of the mixture and all estimates.
        """
        if self.joined is None or self.is_speaker is None:
            return residual_shares(products, self.gains, self.kept)
        return self.is_speaker[self.kept].astype(np.float32)


def check_speakers(speakers: Speakers, model: EncoderMaskerDecoder, counts: bool = False) -> None:
    """Raise UserError if the model cannot keep this number of hypotheses: out of range, or it does not count speakers.

    Args:
        speakers: number of hypotheses to keep, or "auto"; None: all.
        model: the one that separates.
        counts: whether a model without scores counts speakers.
    """
    if speakers is None:
        return
    is_number = isinstance(speakers, int) and not isinstance(speakers, bool)
    if speakers != "auto" and not (is_number and 1 <= speakers <= model.hypotheses):
        raise UserError(f"speakers: found {speakers}, expected auto or 1 to {model.hypotheses}, the model's estimates")
    if model.scoring_head is None and not counts:
        raise UserError(
            f"speakers: found {speakers}, but the model has no scores to choose by, and outputs that nobody speaks in "
            "are not known to be silent; leave it out, train with --model.scoring.hidden_size 128, or with "
            "--objective.silence.weight 0.1 --data.dynamic_mixing.one_speaker_share 0.2 and then `sepkit calibrate`"
        )


def choose_speakers(
    products: Products,
    scores: np.ndarray | None,
    silent: bool,
    speakers: Speakers,
    threshold: float,
    levels: Levels,
    consistent: bool,
    loud: np.ndarray | None = None,
    alone: bool = False,
) -> Chosen:
    """Return which hypotheses are kept, and the gains of all.

    Without scores, hypotheses that are not loud are no speakers. Their best gains would lift what is left in them to
    the level of the recording; they have that of the strongest hypothesis. If one speaker is alone, the output of the
    strongest hypothesis is the sum of all hypotheses that is nearest to the mixture, and the others are 40 dB below it:
    they keep their content, because two speakers may be taken for one.

    Args:
        products: of the model's estimates.
        scores: (n,) log-odds that each is a speaker; None: `loud` tells.
        silent: whether the mixture is silent; then nobody speaks.
        speakers: see `Separator.separate`.
        threshold: score above which a hypothesis is a speaker.
        levels: see `gains_of`.
        consistent: see `gains_of`.
        loud: (n,) bool, the hypotheses of a model without scores that are speakers; None: all are kept.
        alone: whether one speaker is alone.
    """
    kept = np.arange(len(products.cross))
    is_speaker = None
    if scores is not None:
        gains = gains_of(products, levels, False, kept).astype(np.float64)
        of_all = torch.from_numpy(scores)[None]
        scaled = torch.from_numpy(products.centered() * np.outer(gains, gains))[None]
        energies = torch.from_numpy(np.diagonal(products.gram) * np.square(gains))[None]
        distinct = distinct_by_products(of_all, scaled, energies)
        is_speaker = (distinct & (of_all > threshold))[0].numpy() & (not silent)
        if speakers == "auto":
            kept = np.flatnonzero(is_speaker)
        elif speakers is not None:
            kept = np.flatnonzero(best_hypotheses(of_all, distinct, speakers)[0].numpy())
    elif loud is not None:
        energies = np.diagonal(products.gram)
        is_speaker = loud & (not silent)
        if speakers == "auto":
            kept = np.flatnonzero(is_speaker)
        elif speakers is not None:
            kept = np.sort(np.argsort(-energies, kind="stable")[:speakers])
        gains = gains_of(products, levels, consistent, kept[loud[kept]])
        gains[~loud] = gains[np.argmax(energies)]
        if not alone or silent:
            return Chosen(gains, kept, is_speaker)
        joined = gains_of(products, levels, True, np.arange(len(energies)))
        allowed = 10 ** (_OTHERS_DB / 10) * max(float(joined.astype(np.float64) @ products.gram @ joined), 0.0)
        quiet = np.sqrt(allowed / np.maximum(energies, np.finfo(np.float64).tiny))
        return Chosen(np.where(loud, gains, np.minimum(gains, quiet)).astype(np.float32), kept, is_speaker, joined)
    return Chosen(gains_of(products, levels, consistent, kept), kept, is_speaker)
