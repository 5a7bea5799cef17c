"""The head that scores hypotheses; `sepkit.models.hypotheses` has what scores are used for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sepkit.errors import UserError


class ScoringHead(nn.Module):
    """The log-odds that a hypothesis is a speaker, from its mask alone: Linear(mean over frames), ReLU, Linear.

    The mean is over all frames, including the padding of shorter utterances in a batch: a model does not know lengths.
    Recordings that are separated one by one have no padding.

    Args:
        mask_dim: values of a mask in a frame (K).

    Source: reference code of the aMCL paper, where the mean follows the first layer; linear maps and means commute.
    """

    def __init__(self, mask_dim: int, hidden_size: int = 128) -> None:
        super().__init__()
        if hidden_size < 1:
            raise UserError(f"model.scoring.hidden_size: found {hidden_size}, expected at least 1")
        self.hidden = nn.Linear(mask_dim, hidden_size)
        self.output = nn.Linear(hidden_size, 1)

    def forward(self, masks: Tensor) -> Tensor:
        """Return log-odds that a hypothesis is a speaker, (B, n); masks are (B, n, K, F)."""
        # Scores are compared with a threshold: bfloat16's two digits are too few, and float32 costs almost nothing.
        with torch.autocast(masks.device.type, enabled=False):
            pooled = masks.mean(-1, dtype=self.hidden.weight.dtype)
            return self.output(self.hidden(pooled).relu()).squeeze(-1)
