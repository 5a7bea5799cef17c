"""Assignments: how a cost matrix becomes weights of hypotheses for sources.

`head.weights(cost, active)` -> (B, n, m), detached; `head(cost, active)` -> (B,), their inner product with the cost,
divided by the number of active sources. The gradient therefore is that of the cost under fixed weights: for annealed
MCL it is the gradient of the free energy -T logsumexp(-C/T), not the derivative of the printed value.

The rules they share:

* Columns of inactive sources have weight zero and are never read: NaN may stand there. An utterance without an active
  source has value zero and gradient zero.
* Ties go to the lowest index.
* A cost that is NaN or +inf is the last choice. A NaN in an active column still makes the utterance's value NaN, so
  that a broken model shows.
"""

import itertools
import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from sepkit.config import AnnealedMCLConfig, MCLConfig, PITConfig, RelaxedWTAConfig, SinkhornConfig
from sepkit.errors import UserError
from sepkit.objectives.inner_products import float64_device
from sepkit.registry import register
from sepkit.schedules import Scaled, Schedule, TruncatedExponential

# Stands for an infinite or NaN cost: sums of it stay finite, and no meaningful cost comes near.
_LAST_CHOICE = 1e18
# With at most this many injections of sources into hypotheses (n = m = 6) all are tried, without leaving the device.
_ENUMERATION_LIMIT = 720
# Relative size of the preference for low indices among equal optima of the linear assignment problem.
_TIE_BREAK = 1e-12
# Newton steps of optimal transport while the regularization falls, and at its final value. n = 20 at 1e-6 of the
# spread needs about this many.
_ANNEALING_STEPS = 30
_FINAL_STEPS = 10
_RIDGE = 1e-13
# Of annealed MCL, unless another one is given: from 5 by a tenth an epoch, and hard from 100 on.
_FALLING = TruncatedExponential(5.0, 0.9, 100.0)


class TooFewHypothesesError(UserError, ValueError):
    """One-to-one matching was asked for with fewer hypotheses than active sources."""


class Assignment(ABC):
    """Base of all assignments; a subclass says in `_match` how hypotheses are weighted for each source.

    Attributes:
        one_to_one: whether each hypothesis gets one source at most.
        needs_data_scale: whether parameters are multiples of the spread of the training data, see `set_data_scale`.
    """

    one_to_one: ClassVar[bool] = False
    needs_data_scale: bool = False

    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}
        self._adjustable: list[str] = []

    @abstractmethod
    def _match(self, cost: Tensor, active: Tensor) -> Tensor:
        """Return weights (B, n, m) of a finite float64 cost, which is zero in inactive columns; those are ignored."""

    @torch.no_grad()
    def weights(self, cost: Tensor, active: Tensor | None = None) -> Tensor:
        """Return the weight of every (hypothesis, source) pair, (B, n, m) in the cost's dtype, detached.

        Args:
            cost: (B, n, m), smaller is better.
            active: (B, m) bool, False where there is no source; None: all active. Their columns have weight zero.

        Raises:
            ValueError: shapes that do not fit together.
            TooFewHypothesesError: one-to-one matching with more active sources than hypotheses.
        """
        everywhere = active is None
        active = _active(cost, active)
        if cost.numel() == 0:
            return torch.zeros_like(cost)
        device = float64_device(cost.device)
        finite = cost.detach().to(device).double()
        finite = finite.nan_to_num(nan=_LAST_CHOICE, posinf=_LAST_CHOICE, neginf=-_LAST_CHOICE)
        active = active.to(device)
        if everywhere:
            weights = self._match(finite, active)
        else:
            columns = active[:, None]
            weights = self._match(finite.where(columns, 0.0), active).where(columns, 0.0)
        return weights.to(cost.dtype).to(cost.device)

    def __call__(self, cost: Tensor, active: Tensor | None = None) -> Tensor:
        """Return the weighted cost of each utterance over its number of active sources, (B,) in the cost's unit.

        It is zero, without gradient, where no source is active. Errors are those of `weights`.
        """
        return self.value(cost, self.weights(cost, active), active)

    def value(self, cost: Tensor, weights: Tensor, active: Tensor | None = None) -> Tensor:
        """Return the cost of each utterance under given weights over its number of active sources, (B,).

        Args:
            cost: Cost of every pair, (B, n, m).
            weights: Weight of every pair, (B, n, m).
            active: Which sources are active, (B, m) bool; None: all.
        """
        # 0 * inf would be NaN where a pair of infinite cost has no weight. A NaN in the cost itself must stay.
        counted = (weights != 0) | cost.isnan()
        if active is None:
            return (weights * cost.where(counted, 0.0)).sum((1, 2)) / max(1, cost.shape[2])
        active = _active(cost, active)
        total = (weights * cost.where(counted & active[:, None], 0.0)).sum((1, 2))
        return total / active.sum(1).clamp_min(1)

    @property
    def scheduled(self) -> dict[str, float]:
        """The present value of every parameter that may follow a schedule, by name; empty for PIT and MCL."""
        return {name: getattr(self, name) for name in self._adjustable}

    def set_progress(self, t_epochs: float) -> None:
        """Set every scheduled parameter to its present value.

        Args:
            t_epochs: Progress in epochs, with fractions.
        """
        for name, schedule in self._schedules.items():
            setattr(self, name, schedule(t_epochs))

    def set_data_scale(self, scale: float) -> None:  # noqa: B027
        """Take the spread of the training data, if parameters are multiples of it.

        Args:
            scale: Spread in the cost's unit; dB for SI-SDR (`sepkit.annealing.temperature.spread_db`).
        """

    def _set(self, name: str, value: float | Schedule) -> None:
        if name not in self._adjustable:
            self._adjustable.append(name)
        if callable(value):
            self._schedules[name] = value
            value = value(0.0)
        setattr(self, name, value)


@register(PITConfig)
class PIT(Assignment):
    """Permutation invariant training: the one-to-one matching of least total cost; surplus hypotheses stay unmatched.

    A few hypotheses are matched by trying every injection on the cost's own device, more of them by scipy's
    Hungarian method on the CPU.

    Source: Kolbaek et al., "Multitalker speech separation with utterance-level permutation invariant training", 2017.

    >>> import torch
    >>> cost = torch.tensor([[[1.0, 2.0], [2.0, 4.0]]])  # hypotheses by sources, one utterance
    >>> PIT().weights(cost)
    tensor([[[0., 1.],
             [1., 0.]]])
    >>> PIT()(cost)
    tensor([2.])
    """

    one_to_one = True

    def matches(self, cost: Tensor, active: Tensor | None = None) -> Tensor:
        """Return the hypothesis of each source, (B, m) int64, -1 where the source is inactive.

        Args:
            cost: Cost of every pair, (B, n, m).
            active: Which sources are active, (B, m) bool; None: all.
        """
        return self.weights(cost, active).argmax(1).where(_active(cost, active), -1)

    def _match(self, cost: Tensor, active: Tensor) -> Tensor:
        n, m = cost.shape[1:]
        cost = _with_spare_hypotheses(cost, active)
        if math.perm(cost.shape[1], m) <= _ENUMERATION_LIMIT:
            matches = _match_by_enumeration(cost)
        else:
            matches = _match_by_linear_assignment(cost)
        return torch.zeros_like(cost).scatter_(1, matches[:, None], 1.0)[:, :n]


@register(MCLConfig)
class MCL(Assignment):
    """Multiple choice learning: each source goes to its best hypothesis, and one hypothesis may win several. O(mn).

    Source: aMCL paper, section 2; Guzman-Rivera et al., "Multiple choice learning", 2012.

    >>> import torch
    >>> cost = torch.tensor([[[1.0, 2.0], [2.0, 4.0]]])  # hypotheses by sources, one utterance
    >>> MCL().weights(cost)
    tensor([[[1., 1.],
             [0., 0.]]])
    """

    def _match(self, cost: Tensor, active: Tensor) -> Tensor:
        return _winners(cost)


@register(RelaxedWTAConfig)
class RelaxedWTA(Assignment):
    """Relaxed winner-takes-all: 1 - epsilon for the best hypothesis of a source, epsilon / (n - 1) for each other.

    A single hypothesis has weight 1.

    Args:
        epsilon: Share of the losers in [0, 1] (else ValueError), or a schedule of it; can be set at any time.

    Source: Rupprecht et al., "Learning in an uncertain world", 2017; aMCL paper, section 2.

    >>> import torch
    >>> cost = torch.tensor([[[1.0, 2.0], [2.0, 4.0]]])  # hypotheses by sources, one utterance
    >>> RelaxedWTA(epsilon=0.25).weights(cost)
    tensor([[[0.7500, 0.7500],
             [0.2500, 0.2500]]])
    """

    def __init__(self, epsilon: float | Schedule = 0.05) -> None:
        super().__init__()
        self._set("epsilon", epsilon)

    @property
    def epsilon(self) -> float:
        """The total weight of the hypotheses that did not win."""
        return self._epsilon

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        if not 0 <= value <= 1:
            raise ValueError(f"epsilon must be in [0, 1], found {value}")
        self._epsilon = float(value)

    def _match(self, cost: Tensor, active: Tensor) -> Tensor:
        winners = _winners(cost)
        if cost.shape[1] == 1:
            return winners
        share = self.epsilon / (cost.shape[1] - 1)
        return share + (1 - self.epsilon - share) * winners


@register(AnnealedMCLConfig)
class AnnealedMCL(Assignment):
    """Annealed multiple choice learning: for each source the softmin of cost / temperature over hypotheses. O(mn).

    At or below the floor temperature it is MCL, the hard minimum. A negative or NaN temperature raises ValueError.

    Args:
        temperature: Temperature in the cost's unit, or a schedule of it; can be set at any time.
        floor: the temperature up to which the minimum is hard.
        unit: "cost": temperatures are in the cost's unit; "spread": in multiples of the argument of `set_data_scale`.

    Source: aMCL paper, section 3, eq. 7 and 8. Its source separation experiments give T0 in multiples of the spread.

    >>> import torch
    >>> cost = torch.tensor([[[1.0, 2.0], [2.0, 4.0]]])  # hypotheses by sources, one utterance
    >>> AnnealedMCL(temperature=1.0).weights(cost)
    tensor([[[0.7311, 0.8808],
             [0.2689, 0.1192]]])
    """

    def __init__(
        self, temperature: float | Schedule = _FALLING, floor: float = 0.0001, unit: Literal["cost", "spread"] = "cost"
    ) -> None:
        super().__init__()
        self.floor = floor
        self.needs_data_scale = unit == "spread"
        self._given = temperature
        self._set("temperature", temperature)

    def set_data_scale(self, scale: float) -> None:
        """Set the spread of the training data, the unit of temperatures with unit "spread".

        Args:
            scale: Spread in the unit of the cost.
        """
        if self.needs_data_scale:
            given = self._given
            self._set("temperature", Scaled(given, scale) if callable(given) else scale * given)

    @property
    def temperature(self) -> float:
        """The temperature of the softmin, in the cost's unit."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        if not value >= 0:
            raise ValueError(f"temperature must not be negative, found {value}")
        self._temperature = float(value)

    def _match(self, cost: Tensor, active: Tensor) -> Tensor:
        return _winners(cost) if self.temperature <= self.floor else (-cost / self.temperature).softmax(1)


@register(SinkhornConfig)
class Sinkhorn(Assignment):
    """Entropic optimal transport of sources to hypotheses, on the cost's device.

    The plan P >= 0 of least <P, C> + regularization * sum P log P where each active source has mass 1, each
    hypothesis capacity 1, and spare capacity goes to a dummy source of cost zero. As the regularization falls to 0 it
    becomes PIT, except that equally good hypotheses share a source.

    Sinkhorn's alternating updates need ever more rounds as the plan nears a permutation. Only the sources' update is
    kept here (their masses are exact). The hypotheses' potentials f follow damped Newton steps on the concave
    semi-dual, in the log domain, while the regularization falls from the spread of the costs to its value. A fixed
    number of steps meets the capacities to about 1e-12.

    Args:
        regularization: Regularization in the cost's unit, > 0 (else ValueError), or its schedule; can be set.

    Source: Cuturi, "Sinkhorn distances", 2013; Sun & Tran-Dinh, "Generalized self-concordant functions", 2019, for
    the damping log(1 + d) / d.

    >>> import torch
    >>> cost = torch.tensor([[[1.0, 2.0], [2.0, 4.0]]])  # hypotheses by sources, one utterance
    >>> Sinkhorn(regularization=0.01).weights(cost).round(decimals=3)
    tensor([[[0., 1.],
             [1., 0.]]])
    """

    # The limit at regularization 0 is PIT.
    one_to_one = True

    def __init__(self, regularization: float | Schedule = 1.0) -> None:
        super().__init__()
        self._set("regularization", regularization)

    @property
    def regularization(self) -> float:
        """The weight of the entropy, in the cost's unit."""
        return self._regularization

    @regularization.setter
    def regularization(self, value: float) -> None:
        if not value > 0:
            raise ValueError(f"regularization must be positive (PIT is the limit at zero), found {value}")
        self._regularization = float(value)

    def _match(self, cost: Tensor, active: Tensor) -> Tensor:
        n, m = cost.shape[1:]
        _with_spare_hypotheses(cost, active)
        mass = torch.cat([active, n - active.sum(1, keepdim=True)], dim=1).unsqueeze(1).to(cost.dtype)
        cost = torch.nn.functional.pad(_within_reach(cost), (0, 1))
        span = (cost.amax((1, 2), keepdim=True) - cost.amin((1, 2), keepdim=True)).clamp_min(self.regularization)
        potential = cost.new_zeros(cost.shape[0], n, 1)
        for step in range(_ANNEALING_STEPS + _FINAL_STEPS):
            softness = self.regularization * (span / self.regularization) ** max(0.0, 1 - step / _ANNEALING_STEPS)
            plan = ((potential - cost) / softness).softmax(1) * mass
            potential = potential + softness * _newton_step(plan, mass)
        return (((potential - cost) / self.regularization).softmax(1) * mass)[..., :m]


def _active(cost: Tensor, active: Tensor | None) -> Tensor:
    if cost.ndim != 3 or cost.shape[1] == 0:
        raise ValueError(f"expected a cost of shape (B, n, m) with n >= 1, found {tuple(cost.shape)}")
    if active is None:
        return torch.ones(cost.shape[0], cost.shape[2], dtype=torch.bool, device=cost.device)
    if active.shape != (cost.shape[0], cost.shape[2]):
        raise ValueError(f"expected active of shape {(cost.shape[0], cost.shape[2])}, found {tuple(active.shape)}")
    return active.to(cost.device, torch.bool)


def _winners(cost: Tensor) -> Tensor:
    """Return the one-hot choice of each source's least cost, the lowest index among equals."""
    return torch.zeros_like(cost).scatter_(1, cost.argmin(1, keepdim=True), 1.0)


def _within_reach(cost: Tensor) -> Tensor:
    """Bring stand-ins for infinite entries so near to the other costs that float64 can distinguish those."""
    largest = cost.abs().where(cost.abs() < _LAST_CHOICE, 0.0).amax((1, 2), keepdim=True)
    reach = 1e3 * (largest + 1)
    return cost.clamp(-reach, reach)


def _newton_step(plan: Tensor, mass: Tensor) -> Tensor:
    """The damped Newton step (B, n, 1) that brings each hypothesis's mass towards 1, in units of softness."""
    n = plan.shape[1]
    excess = plan.sum(2, keepdim=True) - 1
    curvature = torch.diag_embed(plan.sum(2)) - plan / mass.clamp_min(1) @ plan.mT
    # The ridge: a plan that is a permutation has no curvature. 1/n: a constant added to all potentials changes nothing.
    regular = curvature + 1 / n + _RIDGE * torch.eye(n, dtype=plan.dtype, device=plan.device)
    step = torch.linalg.solve_ex(regular, -excess).result
    size = (step.amax(1, keepdim=True) - step.amin(1, keepdim=True)).clamp_min(torch.finfo(plan.dtype).tiny)
    return step * (size.log1p() / size)


def _with_spare_hypotheses(cost: Tensor, active: Tensor) -> Tensor:
    """Add hypotheses, for inactive sources, until there are at least as many as sources."""
    n, m = cost.shape[1:]
    if n >= m:
        return cost
    most = int(active.sum(1).max()) if active.numel() else 0
    if most > n:
        raise TooFewHypothesesError(
            f"{n} hypotheses cannot be matched one-to-one with {most} active sources; "
            f"make the model with at least {most} hypotheses or choose an assignment of the MCL family"
        )
    return torch.cat([cost, (active[:, None].to(cost.dtype) * _LAST_CHOICE).expand(-1, m - n, -1)], dim=1)


def _match_by_enumeration(cost: Tensor) -> Tensor:
    """Return each source's hypothesis (B, m) in the best injection, the lexicographically first among equals."""
    injections, pairs = _injections(*cost.shape[1:], cost.device)
    totals = cost.flatten(1)[:, pairs].sum(-1)
    return injections[totals.argmin(1)]


@lru_cache(maxsize=64)
def _injections(n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """All (n! / (n-m)!, m) injections of sources into hypotheses, and their positions in a flattened cost."""
    with torch.inference_mode(False):
        injections = torch.tensor(list(itertools.permutations(range(n), m)), dtype=torch.int64).view(-1, m)
        return injections.to(device), (injections * m + torch.arange(m)).to(device)


def _match_by_linear_assignment(cost: Tensor) -> Tensor:
    """Return each source's hypothesis (B, m) by the Hungarian method, low indices preferred among equals."""
    from scipy.optimize import linear_sum_assignment

    n, m = cost.shape[1:]
    matrices = cost.cpu().numpy()
    preference = np.outer(np.arange(n), np.arange(m, 0, -1)) / (n * m)
    sizes = np.where(np.abs(matrices) < _LAST_CHOICE, np.abs(matrices), 0.0).max((1, 2), keepdims=True)
    matrices = matrices + _TIE_BREAK * sizes * preference
    return torch.from_numpy(np.stack([linear_sum_assignment(matrix.T)[1] for matrix in matrices])).to(cost.device)
