"""The masker of continuous depth: one block with weights shared over depth, in as many steps as are asked for."""

from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sepkit.config import ContinuousDepthConfig
from sepkit.errors import UserError, shown
from sepkit.limits import DEPTH_STEPS
from sepkit.models.maskers.base import FrameStream, FramewiseEnd, checked, require_causal
from sepkit.models.maskers.gated_recurrence import GatedRecurrenceBlock
from sepkit.models.norms import StreamState, build_norm, normalize
from sepkit.models.onednn import Linear
from sepkit.registry import register


def check_depth_steps(steps: Any, name: str = "depth_steps") -> int:
    """Return a number of steps; raise UserError unless it is a whole number from 1 to 10,000.

    Args:
        steps: Number to check.
        name: Name of the option, for the message.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= DEPTH_STEPS:
        raise UserError(f"{name}: found {shown(steps)}, expected a whole number of steps, 1 to {DEPTH_STEPS}")
    return steps


def depth_grid(steps: int) -> tuple[float, ...]:
    """Return the depths 0 ... 1 between which equal steps lie."""
    return (*(step / steps for step in range(steps)), 1.0)


@register(ContinuousDepthConfig)
class ContinuousDepthMasker(FramewiseEnd):
    """A residual network whose depth s in [0, 1] is continuous: x' = h(x, s), solved in N steps of 1 / N.

        x(0) = features, normalized, through a linear layer                                  (F, B, model_dim)
        h(x, s) = block(x + s d) - x - s d        a gated recurrence over time and a feed-forward layer, d learned
        masks = linear layer of the normalized x(1)

    The weights do not depend on N, which is chosen when the model is used: its cost is in proportion to N.

    With bidirectional=False and a causal norm (channel_layer_norm, cumulative_layer_norm) the masker is causal.

    Attributes:
        trained_steps: number of steps it is trained with.
        recompute: whether steps are computed again in the backward pass, which keeps memory from growing with N.

    Sources: A. Queiruga et al., "Continuous-in-Depth Neural Networks", 2020; thesis, part C (images); not shown
    for separation.
    """

    hypothesis_layers = ("output",)

    def __init__(self, encoding_dim: int, hypotheses: int = 2, values_per_dimension: int = 1, **fields: Any) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        config = ContinuousDepthConfig(**fields)
        self.trained_steps = check_depth_steps(config.depth_steps, "model.masker.depth_steps")
        size = checked(config).model_dim
        self.bidirectional = config.bidirectional
        self.recompute = False
        self._chosen: int | None = None
        self.norm = build_norm(config.norm, encoding_dim)
        self.input = Linear(encoding_dim, size)
        self.block = GatedRecurrenceBlock(config)
        self.depth = nn.Parameter(nn.init.normal_(torch.empty(size), std=0.1))
        self.output_norm = nn.LayerNorm(size)
        self.output = Linear(size, self.output_channels)

    @property
    def steps(self) -> int:
        """The number of steps that the next call takes: the one that was set, or else that of training."""
        return self._chosen or self.trained_steps

    def set_steps(self, steps: int | None) -> None:
        """Set how many steps the masker takes from now on."""
        self._chosen = None if steps is None else check_depth_steps(steps)

    def trunk(self, features: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the normalized state at the last depth, (B, model_dim, F)."""
        x = self.input(normalize(self.norm, features, state).permute(2, 0, 1))
        for depth, following in pairwise(depth_grid(self.steps)):
            # In a stream, the block has a state at every depth.
            states = None if state is None else state.setdefault(self, {}).setdefault(depth, {})
            if self.recompute and state is None and torch.is_grad_enabled():
                # Nothing is drawn in a step, so no random state has to be kept.
                found = checkpoint(self._step, x, depth, following, use_reentrant=False, preserve_rng_state=False)
                x = cast(Tensor, found)
            else:
                x = self._step(x, depth, following, states)
        return self.output_norm(x).permute(1, 2, 0)

    def _step(self, x: Tensor, depth: float, following: float, states: StreamState | None = None) -> Tensor:
        entered = x + self.depth * depth
        return x + (self.block(entered, states) - entered) * (following - depth)

    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values (B, n, P, K, F')."""
        return self.unflatten(self.output(summary.transpose(1, 2)).transpose(1, 2))

    def stream(self) -> FrameStream:
        """Return a stream without look-ahead. Its state: the recurrence's last frame at every depth, norm's sums."""
        require_causal("continuous_depth masker", self.bidirectional, self.norm)
        return FrameStream(self)
