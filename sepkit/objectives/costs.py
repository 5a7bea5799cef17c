"""Pairwise costs: how far each estimate is from each source, (B, n, T), (B, m, T) -> (B, n, m). Smaller is better.

All are formulas over a few `inner_products` per pair, computed in float64 outside autocast and returned as float32
(float64 for float64 inputs). A NaN in a waveform makes only that waveform's pairs NaN. Gradients reach
estimates and sources. Shapes that do not fit together raise ValueError.

`lengths` (B,) gives the samples of each utterance that count in a padded batch; None: all. `active` (B, m) bool says
which sources speak; None: all. Columns of the others hold finite numbers that pass no gradient.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from functools import partial
from typing import Any, Literal

from torch import Tensor

from sepkit.config import BLRConfig, CauchyConfig, LogMSEConfig, MSEConfig, NegSISDRConfig, NegSNRConfig
from sepkit.objectives.inner_products import as_inputs, error_energy, inner_products
from sepkit.objectives.likelihoods import pairwise_blr_nll as pairwise_blr_nll
from sepkit.objectives.likelihoods import pairwise_cauchy_nll as pairwise_cauchy_nll
from sepkit.registry import register
from sepkit.types import Batch, Separation

Unit = Literal["db", "power", "nats"]


def pairwise_neg_si_sdr(
    estimates: Tensor,
    sources: Tensor,
    zero_mean: bool = True,
    eps: float = 1e-8,
    lengths: Tensor | None = None,
    active: Tensor | None = None,
    max_db: float | None = None,
) -> Tensor:
    """Return the negative scale-invariant signal-to-distortion ratio of every pair, (B, n, m) dB.

    -10 log10( |a s|^2 / (|e - a s|^2 + t |a s|^2 + eps) + eps ) with a = <e, s> / (|s|^2 + eps), t = 10^(-max_db / 10).

    A silent source or estimate costs -10 log10(eps) (80 dB), without gradient; with eps = 0 it is NaN.

    Args:
        estimates: (B, n, T).
        sources: (B, m, T).
        zero_mean: whether to remove the means first.
        eps: keeps silence finite.
        lengths: (B,) samples of each utterance that count; None: all T.
        active: (B, m) bool, which sources speak; None: all.
        max_db: SI-SDR of a perfect estimate; None: no limit, t = 0.

    Source: Le Roux et al., "SDR - half-baked or well done?", 2019; placement of eps as in asteroid; t: Wisdom et al.,
    "Unsupervised sound separation using mixture invariant training", 2020.

    >>> import torch
    >>> sources = torch.tensor([[[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]]])
    >>> estimates = sources[:, [1, 0]] + 0.1 * sources  # the other way round
    >>> pairwise_neg_si_sdr(estimates, sources)[0].diagonal(), pairwise_neg_si_sdr(estimates, sources)[0, 0, 1]
    (tensor([20.0000, 20.0000]), tensor(-20.0000))
    """
    products = inner_products(estimates, sources, lengths, zero_mean, active)
    scale = products.cross / (products.source_energy + eps)
    target_energy = scale.square() * products.source_energy
    residual_energy = (products.estimate_energy - 2 * scale * products.cross + target_energy).clamp_min(0)
    if max_db is not None:
        residual_energy = residual_energy + 10 ** (-max_db / 10) * target_energy
    return as_inputs(_negative_db(target_energy / (residual_energy + eps) + eps), estimates, sources)


def pairwise_neg_snr(
    estimates: Tensor,
    sources: Tensor,
    zero_mean: bool = True,
    eps: float = 1e-8,
    lengths: Tensor | None = None,
    active: Tensor | None = None,
) -> Tensor:
    """Return the negative signal-to-noise ratio of every pair, (B, n, m) dB: the estimate's level counts.

    -10 log10( |s|^2 / (|e - s|^2 + eps) + eps ).

    A silent source costs -10 log10(eps) (80 dB).

    Args:
        estimates: Estimated waveforms, (B, n, T).
        sources: Source waveforms, (B, m, T).
        zero_mean: Whether to remove the means first.
        eps: Number that keeps silence finite.
        lengths: Samples of each utterance that count, (B,); None: all T.
        active: Which sources are active, (B, m) bool; None: all.
    """
    products = inner_products(estimates, sources, lengths, zero_mean, active)
    ratio = products.source_energy / (error_energy(products) + eps)
    return as_inputs(_negative_db(ratio + eps), estimates, sources)


def pairwise_mse(
    estimates: Tensor, sources: Tensor, lengths: Tensor | None = None, active: Tensor | None = None
) -> Tensor:
    """Return the mean squared error of every pair, |e - s|^2 / T, (B, n, m).

    Args:
        estimates: Estimated waveforms, (B, n, T).
        sources: Source waveforms, (B, m, T).
        lengths: Samples of each utterance that count, (B,); None: all T.
        active: Which sources are active, (B, m) bool; None: all.
    """
    products = inner_products(estimates, sources, lengths, active=active)
    return as_inputs(error_energy(products) / products.num_samples, estimates, sources)


def pairwise_log_mse(
    estimates: Tensor, sources: Tensor, eps: float = 1e-8, lengths: Tensor | None = None, active: Tensor | None = None
) -> Tensor:
    """Return the mean squared error of every pair in dB re 1, 10 log10( |e - s|^2 / T + eps ), (B, n, m).

    Args:
        estimates: Estimated waveforms, (B, n, T).
        sources: Source waveforms, (B, m, T).
        eps: Power that keeps equal signals finite.
        lengths: Samples of each utterance that count, (B,); None: all T.
        active: Which sources are active, (B, m) bool; None: all.
    """
    products = inner_products(estimates, sources, lengths, active=active)
    mean_squared_error = error_energy(products) / products.num_samples
    return as_inputs(-_negative_db(mean_squared_error + eps), estimates, sources)


def _negative_db(power: Tensor) -> Tensor:
    return -10 * power.log10()


class PairwiseCost:
    """A cost function with its parameters and the facts that an objective uses.

    Attributes:
        takes_active: Whether the function gets which sources are active.
        uses_scale: whether it takes the decoder's own deviation, `scale` (B, n, T).
        has_data_scale: whether temperatures may be multiples of the spread of the training data, which is an SI-SDR.

    Args:
        function: (estimates, sources, **parameters, lengths=None) -> (B, n, m). If it takes `active`, it is given it.
        unit: "db" and "power" costs are averaged over the active sources; "nats" are summed and divided by T.
        parameters: given to the function at every call.
    """

    def __init__(self, function: Callable[..., Tensor], unit: Unit, **parameters: Any):
        self.function = function
        self.unit = unit
        self.parameters = parameters
        taken = inspect.signature(function).parameters
        self.takes_active = "active" in taken
        self.uses_scale = "scale" in taken
        self.has_data_scale = function is pairwise_neg_si_sdr

    def __call__(self, estimates: Tensor, sources: Tensor, active: Tensor | None = None, **more: Any) -> Tensor:
        """Return the cost of every pair, (B, n, m); that of inactive sources is finite but meaningless.

        Args:
            active: (B, m) bool, which sources speak; None: all. A function that does not take it compares all.
            more: Arguments that change with the batch, such as `lengths` (B,) or `scale` (B, n, T).
        """
        if self.takes_active:
            more["active"] = active
        return self.function(estimates, sources, **(self.parameters | more))

    def __repr__(self) -> str:
        parameters = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{self.function.__name__}({parameters}) [{self.unit}]"


class PairwiseCosts:
    """The cost of every (hypothesis, source) pair of a batch, (B, n, m).

    In a padded batch each utterance counts with its own length. Columns of inactive sources hold finite, meaningless
    numbers.

    Args:
        signal_std: the model's stored training deviation; costs in nats compare signals divided by it.
    """

    def __init__(self, cost: PairwiseCost, signal_std: float = 1.0) -> None:
        self.cost = cost
        self.signal_std = signal_std

    @property
    def unit(self) -> str:
        """The cost's unit: "db", "power" or "nats"."""
        return self.cost.unit

    def __call__(self, batch: Batch, separation: Separation) -> Tensor:
        """The cost of the estimates, (B, n, m)."""
        return self.of(separation.estimates, batch, separation.estimate_scales)

    def of(self, estimates: Tensor, batch: Batch, scales: Tensor | None = None) -> Tensor:
        """Return the cost of other estimates than those of a separation, (B, n, m).

        Args:
            estimates: Estimated waveforms, (B, n, T).
            batch: Mixtures with their sources.
            scales: Deviation of every sample of the estimates, (B, n, T); None: not estimated.
        """
        # Rows of inactive sources may hold anything, and 0 * NaN must not occur. A cost that does not take `active`
        # compares with the mixture there, which is silent less often than zeros.
        instead = 0.0 if self.cost.takes_active else batch.mixture.unsqueeze(1)
        sources = batch.sources.where(batch.active.unsqueeze(2), instead)
        more = {"lengths": batch.lengths, "active": batch.active}
        if self.unit != "nats":
            return self.cost(estimates, sources, **more)
        if scales is not None:
            more["scale"] = scales / self.signal_std
        return self.cost(estimates / self.signal_std, sources / self.signal_std, **more)


class Step:
    """A batch, its separation, and what several terms need of them, computed once."""

    def __init__(self, batch: Batch, separation: Separation) -> None:
        self.batch = batch
        self.separation = separation
        self._costs: dict[PairwiseCosts, Tensor] = {}

    def cost(self, costs: PairwiseCosts) -> Tensor:
        """Return the cost of every pair, (B, n, m): the same tensor for every term that asks with the same `costs`."""
        if costs not in self._costs:
            self._costs[costs] = costs(self.batch, self.separation)
        return self._costs[costs]


class Term(ABC):
    """One part of an objective: a value for each utterance, and a weight.

    Attributes:
        wants: names of what the model returns only on request: "source_encodings", "reconstructions" or
            "source_reconstructions".
        weight: multiplies the term; it may change during training.
        scheduled: the present value of every parameter that follows a schedule, by name.
    """

    wants: Set[str] = frozenset()
    weight: float = 1.0

    @abstractmethod
    def __call__(self, step: Step) -> Tensor:
        """The value for each utterance, (B,)."""

    @property
    def scheduled(self) -> dict[str, float]:
        """The present values of scheduled parameters, by name."""
        return {}

    def set_progress(self, t_epochs: float) -> None:  # noqa: B027
        """Set every scheduled parameter to its present value."""

    def statistics(self) -> dict[str, Tensor]:
        """Return numbers of the last call that are worth recording, (B,) each, by name, detached."""
        return {}


_COSTS: tuple[tuple[type, Callable[..., Tensor], Unit], ...] = (
    (NegSISDRConfig, pairwise_neg_si_sdr, "db"),
    (NegSNRConfig, pairwise_neg_snr, "db"),
    (MSEConfig, pairwise_mse, "power"),
    (LogMSEConfig, pairwise_log_mse, "db"),
    (BLRConfig, pairwise_blr_nll, "nats"),
    (CauchyConfig, pairwise_cauchy_nll, "nats"),
)
for _config, _function, _unit in _COSTS:
    register(_config)(partial(PairwiseCost, _function, _unit))
