"""The deep-clustering term: embeddings of bins that one speaker dominates become alike, others different."""

from __future__ import annotations

import torch
from torch import Tensor

from sepkit.objectives.costs import Step
from sepkit.objectives.products import working_dtype
from sepkit.objectives.term import Term
from sepkit.schedules import Schedule


class DeepClusteringTerm(Term):
    """Squared distance between the likeness of embeddings and that of speakers, over all pairs of bins.

        | V' W V |^2 - 2 | V' W Y |^2 + | Y' W Y |^2  =  sum over bins i, j of w_i w_j ( <v_i, v_j> - <y_i, y_j> )^2

    v_i is the embedding of a bin, of unit length; y_i tells by a one which active source has the largest feature there;
    w_i is that feature, divided by the sum over all bins. Bins in which nobody speaks, such as those of the padding, do
    not count. The term lies between 0 and 4, mostly below 1. It does not depend on the order of sources, and is zero,
    without gradient, where no source is active.

    Args:
        schedule: of the term's weight, over epochs.

    Sources: J. R. Hershey et al., "Deep clustering: Discriminative embeddings for segmentation and separation", ICASSP
    2016, eq. 3; beside masks: Y. Luo et al., "Deep clustering and conventional networks for music separation", ICASSP
    2017; weights of bins: Z.-Q. Wang et al., "Alternative objective functions for deep clustering", ICASSP 2018.
    """

    wants = frozenset({"embeddings"})

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.weight = schedule(0.0)

    def __call__(self, step: Step) -> Tensor:
        """Return the term's value for each utterance, (B,). Raise ValueError if there are no embeddings."""
        embeddings, features = step.separation.embeddings, step.separation.source_features
        if embeddings is None or features is None:
            raise ValueError("the separation has no embeddings; call the model with Objective.inputs")
        # Half precision is too little for a sum over all bins.
        embeddings = embeddings.to(working_dtype(embeddings, step.batch.sources)).flatten(2)
        features = features.to(embeddings.dtype).where(step.batch.active[:, :, None, None], 0.0).flatten(2)
        largest, speaker = features.clamp_min(0).max(1)
        weights = largest / largest.sum(1, keepdim=True).clamp_min(torch.finfo(largest.dtype).tiny)
        speakers = torch.nn.functional.one_hot(speaker, features.shape[1]).to(embeddings.dtype).transpose(1, 2)
        weighted = weights.unsqueeze(1) * speakers
        likeness = (embeddings * weights.unsqueeze(1)) @ embeddings.transpose(1, 2)
        crossed, shares = embeddings @ weighted.transpose(1, 2), weighted.sum(2)
        value = likeness.square().sum((1, 2)) - 2 * crossed.square().sum((1, 2)) + shares.square().sum(1)
        return value.where(step.batch.active.any(1), 0.0)

    def set_progress(self, t_epochs: float) -> None:
        """Set the term's weight."""
        self.weight = self.schedule(t_epochs)

    @property
    def scheduled(self) -> dict[str, float]:
        """The term's weight."""
        return {"deep_clustering_weight": self.weight}
