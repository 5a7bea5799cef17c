"""Choose the hypotheses of a recording to keep, and the gains that bring them to their level in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sepkit.errors import UserError
from sepkit.inference.levels import Products, gains_of
from sepkit.inference.options import Consistency, Levels, Speakers
from sepkit.inference.silence import SilenceThreshold
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.scoring import best_hypotheses, distinct_by_products


@dataclass
class Chosen:
    """Hypotheses that are kept.

    Args:
        gains: (n,) float32, of all hypotheses, see `gains_of`.
        kept: (k,) int64, numbers of those that are kept, from 0.
        is_speaker: (n,) bool, those that "auto" keeps; None without scores and without a threshold for silence.
    """

    gains: np.ndarray
    kept: np.ndarray
    is_speaker: np.ndarray | None


def check_speakers(speakers: Speakers, model: EncoderMaskerDecoder, silence: SilenceThreshold | None = None) -> None:
    """Raise UserError if the model cannot keep this number of hypotheses: out of range, or it does not count speakers.

    Args:
        speakers: number of hypotheses to keep, or "auto"; None: all.
        model: the one that separates.
        silence: by which a model without scores counts.
    """
    if speakers is None:
        return
    is_number = isinstance(speakers, int) and not isinstance(speakers, bool)
    if speakers != "auto" and not (is_number and 1 <= speakers <= model.hypotheses):
        raise UserError(f"speakers: found {speakers}, expected auto or 1 to {model.hypotheses}, the model's estimates")
    if model.scoring_head is None and silence is None:
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
    consistency: Consistency | None,
    silence: SilenceThreshold | None = None,
) -> Chosen:
    """Return which hypotheses are kept, and the gains of all.

    Without scores, hypotheses below the threshold for silence are no speakers. Their best gains would lift what is left
    in them to the level of the recording; they have that of the strongest hypothesis.

    Args:
        products: of the model's estimates.
        scores: (n,) log-odds that each is a speaker; None: `silence` tells.
        silent: whether the mixture is silent; then nobody speaks.
        speakers: see `Separator.separate`.
        threshold: score above which a hypothesis is a speaker.
        levels: see `gains_of`.
        consistency: see `gains_of`.
        silence: tells speakers by their levels; None: without scores all are kept.
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
    elif silence is not None:
        energies = np.diagonal(products.gram)
        loud = silence.is_speaker(energies)
        is_speaker = loud & (not silent)
        if speakers == "auto":
            kept = np.flatnonzero(is_speaker)
        elif speakers is not None:
            kept = np.sort(np.argsort(-energies, kind="stable")[:speakers])
        gains = gains_of(products, levels, consistency, kept[loud[kept]])
        gains[~loud] = gains[np.argmax(energies)]
        return Chosen(gains, kept, is_speaker)
    return Chosen(gains_of(products, levels, consistency, kept), kept, is_speaker)
