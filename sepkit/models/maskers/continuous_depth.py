"""The masker of continuous depth: one block with weights shared over depth, in as many steps as are asked for."""

from __future__ import annotations

from collections.abc import Set

import torch
from torch import Tensor, nn

from sepkit.config import ContinuousDepthConfig
from sepkit.models.latent_sde import BrownianPath, DiffusionPath, LearnedDiffusion, check_depth_steps, depth_grid, solve
from sepkit.models.maskers.base import FrameStream, Masker, MaskerOutput, require_at_least, stream_frames
from sepkit.models.maskers.gated_recurrence import GatedRecurrenceBlock
from sepkit.models.norms import GlobalLayerNorm, StreamState, build_norm, normalize
from sepkit.models.products import Linear
from sepkit.registry import register


@register(ContinuousDepthConfig)
class ContinuousDepthMasker(Masker):
    """A residual network whose depth s in [0, 1] is continuous: x' = h(x, s), solved in N steps of 1 / N.

        x(0) = features, normalized, through a linear layer                                  (F, B, model_dim)
        h(x, s) = block(x + s d) - x - s d        a gated recurrence over time and a feed-forward layer, d learned
        masks = linear layer of the normalized x(1)

    The weights do not depend on N, which is chosen when the model is used: its cost is in proportion to N.

    If stochastic, the state is a latent: dx = h(x + c, s) ds + sigma dW, from a learned start that is the same for
    every mixture, where c are the features through the linear layer. The prior follows a drift of the state alone,
    frame by frame. Without sampling there is no noise, and the path is that of h.

    With bidirectional=False and a causal norm (channel_layer_norm, cumulative_layer_norm) the masker is causal.

    Attributes:
        variational: whether the path is a latent with a rate.
        trained_steps: number of steps it is trained with.
        recompute: whether steps are computed again in the backward pass, which keeps memory from growing with N.

    Sources: A. Queiruga et al., "Continuous-in-Depth Neural Networks", 2020; thesis, part C (images); nobody has shown
    it for separation.
    """

    hypothesis_layers = ("output",)

    def __init__(
        self,
        encoding_dim: int,
        hypotheses: int = 2,
        values_per_dimension: int = 1,
        *,
        model_dim: int,
        hidden_size: int,
        feedforward_dim: int,
        depth_steps: int,
        stochastic: bool,
        initial_diffusion: float,
        bidirectional: bool,
        norm: str,
    ) -> None:
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        require_at_least(1, model_dim=model_dim, hidden_size=hidden_size, feedforward_dim=feedforward_dim)
        self.trained_steps = check_depth_steps(depth_steps, "model.masker.depth_steps")
        self.variational = stochastic
        self.bidirectional = bidirectional
        self.recompute = False
        self._chosen: int | None = None
        self.norm = build_norm(norm, encoding_dim)
        self.input = Linear(encoding_dim, model_dim)
        self.block = GatedRecurrenceBlock(model_dim, hidden_size, feedforward_dim, False, bidirectional, 0.0)
        self.depth = nn.Parameter(nn.init.normal_(torch.empty(model_dim), std=0.1))
        self.output_norm = nn.LayerNorm(model_dim)
        self.output = Linear(model_dim, self.output_channels)
        if stochastic:
            self.start = nn.Parameter(nn.init.normal_(torch.empty(model_dim), std=0.1))
            self.prior = _PriorDrift(model_dim, feedforward_dim)
            self.diffusion = LearnedDiffusion(initial_diffusion)

    @property
    def depth_steps(self) -> int:
        """The number of steps that the next call takes: the one that was set, or else that of training."""
        return self._chosen or self.trained_steps

    def set_depth_steps(self, steps: int | None) -> None:
        """Set how many steps the masker takes from now on."""
        self._chosen = None if steps is None else check_depth_steps(steps)

    def forward(self, features: Tensor, state: StreamState | None = None) -> Tensor:
        """Return raw mask values (B, n, P, K, F), without noise."""
        return self.values(self.trunk(features, state))

    def trunk(self, features: Tensor, state: StreamState | None = None) -> Tensor:
        """Return the normalized state at the last depth, (B, model_dim, F), without noise."""
        return self._summary(self._solve(features, state=state))

    def values(self, summary: Tensor) -> Tensor:
        """Return raw mask values (B, n, P, K, F')."""
        return self.unflatten(self.output(summary.transpose(1, 2)).transpose(1, 2))

    @property
    def offers(self) -> Set[str]:
        """The rate of the path, if it is a latent."""
        return frozenset({"path_rate"} if self.variational else ())

    def with_extras(
        self,
        features: Tensor,
        wants: Set[str] = frozenset(),
        sample: bool = False,
        generator: torch.Generator | None = None,
        speakers: Tensor | None = None,
    ) -> MaskerOutput:
        """Return raw mask values, and if stochastic "path_rate", (B, D, F) nats of each value of the state.

        Args:
            wants: not used: the rate always comes with the values.
            sample: whether there is noise; without, the rate is that of the path without noise.
        """
        if not self.variational:
            return MaskerOutput(self(features))
        path = self._solve(features, rate=True, sample=sample, generator=generator)
        assert path.rate is not None
        return MaskerOutput(self.values(self._summary(path)), {"path_rate": path.rate.permute(1, 2, 0)})

    def _summary(self, path: DiffusionPath) -> Tensor:
        return self.output_norm(path.value).permute(1, 2, 0)

    def _solve(
        self,
        features: Tensor,
        rate: bool = False,
        sample: bool = False,
        generator: torch.Generator | None = None,
        state: StreamState | None = None,
    ) -> DiffusionPath:
        grid = depth_grid(self.depth_steps)
        start = context = self.input(normalize(self.norm, features, state).permute(2, 0, 1))
        if self.variational:
            start = self.start.expand_as(start)

        def drift(x: Tensor, depth: float) -> Tensor:
            entered = x + self.depth * depth
            if self.variational:
                entered = entered + context
            # In a stream, the block has a state at every depth.
            states = None if state is None else state.setdefault(self, {}).setdefault(depth, {})
            return self.block(entered, states) - entered

        noise = None
        if sample and self.variational:
            noise = BrownianPath(start.shape, generator, start)
        return solve(
            start,
            grid,
            drift,
            self.diffusion if self.variational else None,
            noise,
            self.prior if rate else None,
            recompute=self.recompute and state is None,
        )

    def stream(self) -> FrameStream:
        """Return a stream without look-ahead. Its state: the recurrence's last frame at every depth, norm's sums."""
        return stream_frames(self, "continuous_depth", self.bidirectional, isinstance(self.norm, GlobalLayerNorm))


class _PriorDrift(nn.Module):
    """The prior's drift: a feed-forward network of the state and the depth, frame by frame."""

    def __init__(self, model_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden = Linear(model_dim, hidden_size)
        self.depth = nn.Parameter(nn.init.normal_(torch.empty(hidden_size), std=0.1))
        self.output = Linear(hidden_size, model_dim)

    def forward(self, state: Tensor, depth: float) -> Tensor:
        """Return the drift, of the state's shape (..., model_dim)."""
        return self.output(nn.functional.silu(self.hidden(state) + self.depth * depth))
