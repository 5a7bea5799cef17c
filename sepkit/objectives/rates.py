"""Rates: how far posteriors are from their priors (nats), their cost, and weights that adapt until targets are met."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from sepkit.config import RateConfig, RatesConfig, SteeringConfig
from sepkit.errors import UserError
from sepkit.objectives.costs import Step, Term
from sepkit.registry import build
from sepkit.schedules import Schedule
from sepkit.types import Density, Latent, ModelTraits, Separation

Estimator = Literal["auto", "analytic", "sample"]
What = Literal["encoding", "mask", "source"]

# Beyond these a weight has no effect in floating point, and its way back would be long.
_LEAST_WEIGHT, _LARGEST_WEIGHT = 1e-15, 1e6
# A rate misses its target if it differs by more than this share of it.
_REACHED = 0.1
# A latent dimension with a lower mean rate carries no information about the utterance.
_ALIVE_NATS = 0.01


def elementwise_rate(posterior: Latent, prior: Density, sample: Tensor | None, estimator: Estimator = "auto") -> Tensor:
    """Return KL(posterior || prior) of every element in nats, or its estimate log posterior(z) - log prior(z).

    Args:
        posterior: Posterior of an encoding or of masks.
        prior: its prior.
        sample: z, of the posterior, with gradient; None: one is drawn where the estimate needs one. Without gradients
            the draw is the same at every call, so that validation does not depend on chance.
        estimator: "analytic", "sample", or "auto": analytic where there is a closed form. "analytic" raises TypeError
            where there is none.
    """
    if estimator != "sample":
        try:
            return posterior.kl(prior)
        except TypeError:
            if estimator == "analytic":
                raise
    if sample is None:
        fixed = None if torch.is_grad_enabled() else torch.Generator(posterior.mean.device).manual_seed(0)
        sample = posterior.sample(fixed)
    return posterior.log_prob(sample) - prior.log_prob(sample)


def alive_share(rate: Tensor, frames: Tensor) -> Tensor:
    """Return the share of latent dimensions whose mean rate over an utterance's frames is above .01 nat, (B,).

    Args:
        rate: (B, ..., K, F) nats; every index but the first and the last is a dimension.
        frames: (B,) int, how many of the F frames are the utterance's own.
    """
    inside = torch.arange(rate.shape[-1], device=rate.device) < frames.view(-1, *[1] * (rate.ndim - 1))
    mean = rate.detach().where(inside, 0.0).sum(-1) / frames.clamp_min(1).view(-1, *[1] * (rate.ndim - 2))
    return (mean > _ALIVE_NATS).to(rate.dtype).flatten(1).mean(1)


def total_rate(
    rate: Tensor, frames: Tensor, free_nats: float = 0.0, over: Literal["element", "frame", "utterance"] = "utterance"
) -> Tensor:
    """Return the rate of each utterance, (B,) nats, where every group of elements counts at least its free nats.

    sum over groups of max(free_nats, sum of the group's elements); a group below its free nats has no gradient.

    Args:
        rate: (B, ..., K, F), of every element.
        frames: (B,) int, how many of the F frames are the utterance's own; the others do not count.
        free_nats: Free nats of each group.
        over: Extent of a group: an element; all elements of a frame (all hypotheses together); or all elements.

    Source: thesis, eq. 37 ("element"), appendix J ("utterance").
    """
    if over == "element" and free_nats > 0:
        rate = rate.clamp_min(free_nats)
    of_frames = rate.sum(tuple(range(1, rate.ndim - 1)))
    if over == "frame" and free_nats > 0:
        of_frames = of_frames.clamp_min(free_nats)
    inside = torch.arange(of_frames.shape[-1], device=rate.device) < frames[:, None]
    total = of_frames.where(inside, 0.0).sum(-1)
    return total.clamp_min(free_nats) if over == "utterance" and free_nats > 0 else total


class Steering:
    """A weight that is adapted after every step so that a rate meets its target.

    After a step whose rate was above (1 + tolerance) * target the weight is multiplied by 1 + change; below
    (1 - tolerance) * target it is divided by it. The rate is that of the step's whole batch, over all ranks.

    Args:
        statistics: names of the recorded rates whose sum meets the target, in the unit of those.
        target: Target of the sum.
        config: Initial weight and its changes.

    Source: Dieleman et al., "Variable-rate discrete representation learning", 2021, eq. 7; thesis, appendix E.2.
    """

    def __init__(self, statistics: tuple[str, ...], target: float, config: SteeringConfig) -> None:
        self.statistics = statistics
        self.target = target
        self.config = config
        self.weight = config.initial_weight

    def after_step(self, means: Mapping[str, float]) -> None:
        """Adapt the weight to the rates of a step."""
        rate = self._rate(means)
        if rate > (1 + self.config.tolerance) * self.target:
            self.weight = min(self.weight * (1 + self.config.change), _LARGEST_WEIGHT)
        elif rate < (1 - self.config.tolerance) * self.target:
            self.weight = max(self.weight / (1 + self.config.change), _LEAST_WEIGHT)

    def warning(self, means: Mapping[str, float], epochs: int) -> str | None:
        """Return a line if the rates miss the target and a warning is due; else None.

        Args:
            means: Mean of every recorded statistic, by name.
            epochs: Number of epochs so far.
        """
        every, rate = self.config.warn_after_epochs, self._rate(means)
        if not every or epochs % every or abs(rate - self.target) <= _REACHED * self.target:
            return None
        return (
            f"objective.rates.steering: after {epochs} epochs {' + '.join(self.statistics)} is {rate:.4g}, the target"
            f" {self.target:.4g} (weight {self.weight:.2g}); give it more epochs, a larger change, or another target"
        )

    def _rate(self, means: Mapping[str, float]) -> float:
        return math.fsum(means.get(name, math.nan) for name in self.statistics)


class RateTerm(Term):
    """A rate in nats per sample of the utterance, as a likelihood divided by T is.

    It is zero, without gradient, where no source is active, unless mixtures alone are learned from too. In a padded
    batch only an utterance's own frames count.

    Args:
        what: "encoding", "mask" (of all hypotheses), or "source" (encodings of the active sources).
        schedule: the weight (beta).
        config: free nats.
        per: unit of the recorded rate.
        steering: adapts a factor of the scheduled weight.
        of_all: whether utterances without an active source count.
    """

    def __init__(
        self,
        what: What,
        schedule: Schedule,
        config: RateConfig,
        traits: ModelTraits,
        estimator: Estimator = "auto",
        per: Literal["frame", "sample", "utterance"] = "frame",
        steering: Steering | None = None,
        of_all: bool = False,
    ) -> None:
        self.what: What = what
        self.schedule = schedule
        self.config = config
        self.frames_for = traits.frames_for
        self.estimator: Estimator = estimator
        self.per = per
        self.steering = steering
        self.of_all = of_all
        if what == "source" or (what == "encoding" and traits.adaptive_prior):
            self.wants = {"source_encodings"}
        self._beta = schedule(0.0)
        self._statistics: dict[str, Tensor] = {}
        self._checked: Density | None = None

    @property
    def weight(self) -> float:  # type: ignore[override]
        """The product of the scheduled and the steered weight."""
        return self._beta * (1.0 if self.steering is None else self.steering.weight)

    @property
    def scheduled(self) -> dict[str, float]:
        """The weight, by name; the weight of the sources' encodings is the mixture's and has no name of its own."""
        return {} if self.what == "source" else {f"{self.what}_rate_weight": self.weight}

    def set_progress(self, t_epochs: float) -> None:
        """Set the scheduled weight."""
        self._beta = self.schedule(t_epochs)

    def statistics(self) -> dict[str, Tensor]:
        """Return the rate of the last call without free nats, (B,) nats per frame, sample or utterance."""
        return self._statistics

    def __call__(self, step: Step) -> Tensor:
        """Return the term's value for each utterance, (B,) nats per sample.

        Raises:
            ValueError: the separation lacks the latents or their prior, or the masks' prior differs over hypotheses.
        """
        batch = step.batch
        posterior, prior, sample = self._latents_of(step.separation)
        rate = elementwise_rate(posterior, prior, sample, self.estimator)
        if self.what == "source":
            rate = rate.where(batch.active[..., None, None], 0.0)
        frames = torch.tensor([self.frames_for(n) for n in batch.lengths.tolist()], device=rate.device)
        counts = torch.ones_like(frames, dtype=torch.bool) if self.of_all else batch.active.any(1)
        plain = total_rate(rate, frames).where(counts, 0.0)
        unit = {"frame": frames, "sample": batch.lengths, "utterance": torch.ones_like(frames)}[self.per]
        self._statistics = {
            statistic_of(self.what, self.per): (plain / unit).detach(),
            f"{self.what}_alive_share": alive_share(rate, frames).where(counts, 0.0),
        }
        if self.config.free_nats > 0:
            plain = total_rate(rate, frames, self.config.free_nats, self.config.free_nats_over).where(counts, 0.0)
        return plain / batch.lengths

    def _latents_of(self, separation: Separation) -> tuple[Latent, Density, Tensor | None]:
        posteriors = {"encoding": separation.encoding, "mask": separation.masks, "source": separation.source_encodings}
        posterior, prior = posteriors[self.what], separation.extra(f"{self.what}_prior")
        if posterior is None or prior is None:
            raise ValueError(f"the separation has no {self.what} posterior or no prior of it")
        if self.what == "mask" and self._checked is not prior:
            _check_identical(prior, posterior.shape[1])
            self._checked = prior
        return posterior, prior, separation.extras.get(f"{self.what}_sample")


def statistic_of(what: What, per: str) -> str:
    """Return the name of a recorded rate.

    Args:
        what: whose rate.
        per: its unit: "frame", "sample" or "utterance".
    """
    return f"{what}_rate_nats_per_{per}"


@torch.no_grad()
def _check_identical(prior: Density, hypotheses: int) -> None:
    """Raise ValueError if the prior differs between hypotheses: then a permutation would change the rate."""
    for value in (0.25, 0.5, 0.75):
        density = prior.log_prob(torch.full((1, hypotheses, 1, 1), value, dtype=torch.float64))
        if not torch.equal(density, density[:, :1].expand_as(density)):
            raise ValueError("the prior of the masks differs between hypotheses; matching looks at the cost alone")


def build_rates(
    config: RatesConfig, traits: ModelTraits, autoencoding: bool = False, of_mixtures: bool = False
) -> tuple[dict[str, RateTerm], list[Steering]]:
    """Return the rate terms of variational latents, by name, and their steerings.

    The names are "encoding_rate", "mask_rate" and "source_rate".

    Args:
        config: Weights, free nats and targets.
        traits: Traits of the model.
        autoencoding: whether the encodings of sources are decoded too, and so have a rate.
        of_mixtures: whether mixtures are decoded too, so that those without sources have a rate.
    """
    latents: tuple[What, ...] = ("encoding", "mask")
    rated: list[What] = [what for what in latents if f"{what}_prior" in traits.offers]
    per = "frame" if config.steering is None else config.steering.per
    steering_of = {} if config.steering is None else _steer(config.steering, rated)
    if "encoding" in rated and (traits.adaptive_prior or autoencoding):
        rated.append("source")
    terms: dict[str, RateTerm] = {}
    for what in rated:
        weighed_as: What = "encoding" if what == "source" else what
        rate = config.masks if what == "mask" else config.encoding
        terms[f"{what}_rate"] = RateTerm(
            what,
            build(rate.weight),
            rate,
            traits,
            config.estimator,
            per,
            steering_of.get(weighed_as),
            of_all=of_mixtures and what == "encoding",
        )
    return terms, list({id(steering): steering for steering in steering_of.values()}.values())


def _steer(config: SteeringConfig, rated: list[What]) -> dict[What, Steering]:
    where = "objective.rates.steering"
    targets: dict[What, float | None] = {"encoding": config.encoding, "mask": config.masks}
    separate: dict[What, float] = {what: target for what, target in targets.items() if target is not None}
    if (config.total is None) == (not separate):
        raise UserError(f"{where}: expected a target, either `total`, or `encoding`, `masks` or both")
    if not rated or not set(separate) <= set(rated):
        raise UserError(f"{where}: a target for latents that are deterministic and have no rate; see model.encoding")
    if config.total is not None:
        shared = Steering(tuple(statistic_of(what, config.per) for what in rated), config.total, config)
        return dict.fromkeys(rated, shared)
    return {what: Steering((statistic_of(what, config.per),), target, config) for what, target in separate.items()}
