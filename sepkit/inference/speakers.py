"""Choose the hypotheses of a recording to keep, and the gains that bring them to their level in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sepkit.errors import UserError
from sepkit.inference.levels import Products, gains_of
from sepkit.inference.options import Consistency, Levels, Speakers
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.scoring import best_hypotheses, distinct_by_products


@dataclass
class Chosen:
    """Hypotheses that are kept.

    Args:
        gains: (n,) float32, of all hypotheses, see `gains_of`.
        kept: (k,) int64, numbers of those that are kept, from 0.
        is_speaker: (n,) bool, those that "auto" keeps; None without scores.
    """

    gains: np.ndarray
    kept: np.ndarray
    is_speaker: np.ndarray | None


def check_speakers(speakers: Speakers, model: EncoderMaskerDecoder) -> None:
    """Raise UserError if the model cannot keep this number of hypotheses: out of range, or a model without scores.

    Args:
        speakers: number of hypotheses to keep, or "auto"; None: all.
        model: the one that separates.
    """
    if speakers is None:
        return
    is_number = isinstance(speakers, int) and not isinstance(speakers, bool)
    if speakers != "auto" and not (is_number and 1 <= speakers <= model.hypotheses):
        raise UserError(f"speakers: found {speakers}, expected auto or 1 to {model.hypotheses}, the model's estimates")
    if model.scoring_head is None:
        raise UserError(
            f"speakers: found {speakers}, but the model has no scores to choose by; leave it out, or train with "
            "--model.scoring.hidden_size 128"
        )


def choose_speakers(
    products: Products,
    scores: np.ndarray | None,
    silent: bool,
    speakers: Speakers,
    threshold: float,
    levels: Levels,
    consistency: Consistency | None,
) -> Chosen:
    """Return which hypotheses are kept, and the gains of all.

    Args:
        products: of the model's estimates.
        scores: (n,) log-odds that each is a speaker; None: all are kept.
        silent: whether the mixture is silent; then nobody speaks.
        speakers: see `Separator.separate`.
        threshold: score above which a hypothesis is a speaker.
        levels: see `gains_of`.
        consistency: see `gains_of`.
    """
    kept = np.arange(len(products.cross))
    is_speaker = None
    if scores is not None:
        gains = gains_of(products, levels, None, kept).astype(np.float64)
        of_all = torch.from_numpy(scores)[None]
        scaled = torch.from_numpy(products.centered() * np.outer(gains, gains))[None]
        energies = torch.from_numpy(np.diagonal(products.gram) * np.square(gains))[None]
        distinct = distinct_by_products(of_all, scaled, energies)
        is_speaker = (distinct & (of_all > threshold))[0].numpy() & (not silent)
        if speakers == "auto":
            kept = np.flatnonzero(is_speaker)
        elif speakers is not None:
            kept = np.flatnonzero(best_hypotheses(of_all, distinct, speakers)[0].numpy())
    return Chosen(gains_of(products, levels, consistency, kept), kept, is_speaker)
