"""The objective: named terms, each mapping a batch and its separation to one value per utterance, and their weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from sepkit.choices import check_bounds
from sepkit.config import ObjectiveConfig
from sepkit.errors import UserError
from sepkit.objectives.assignment import MCL, PIT, Assignment
from sepkit.objectives.costs import PairwiseCosts, Step, Term, pairwise_neg_si_sdr
from sepkit.objectives.rates import Steering, build_rates
from sepkit.objectives.scoring import ScoringTerm
from sepkit.registry import build
from sepkit.types import Batch, Losses, ModelTraits, Separation

_OF_SOURCES = {"source_encodings", "source_reconstructions"}


class SeparationTerm(Term):
    """Cost and assignment together: how far the estimates are from the sources they are matched to.

    Costs in dB are averaged over the active sources. Costs in nats are summed over them and divided by T, which gives a
    negative log likelihood per sample. The value is zero, without gradient, where no source is active.

    Args:
        costs: Cost of every pair of hypothesis and source.
        assignment: Rule that weights the pairs.
        floor: Least value of an utterance, without gradient; None: there is none.
    """

    def __init__(self, costs: PairwiseCosts, assignment: Assignment, floor: float | None = None) -> None:
        self.costs, self.assignment, self.floor = costs, assignment, floor
        self._statistics: dict[str, Tensor] = {}

    def __call__(self, step: Step) -> Tensor:
        """The term's value for each utterance, (B,)."""
        cost, active = step.cost(self.costs), step.batch.active
        weights = self.assignment.weights(cost, active)
        self._statistics = matching_statistics(cost, weights, active)
        value = self.assignment.value(cost, weights, active)
        value = value * active.sum(1) / step.batch.lengths if self.costs.unit == "nats" else value
        return value.clamp_min(self.floor) if self.floor is not None else value

    def statistics(self) -> dict[str, Tensor]:
        """Return `matching_statistics` of the last call."""
        return self._statistics

    def set_progress(self, t_epochs: float) -> None:
        """Set the assignment's scheduled parameters."""
        self.assignment.set_progress(t_epochs)

    @property
    def scheduled(self) -> dict[str, float]:
        """The assignment's scheduled parameters as they are now."""
        return self.assignment.scheduled


@torch.no_grad()
def matching_statistics(cost: Tensor, weights: Tensor, active: Tensor) -> dict[str, Tensor]:
    """Return numbers that describe a matching, (B,) each, means over the active sources; zero where there are none.

    `entropy_nats`: of a source's weights over hypotheses, log n where all count alike, 0 for a hard matching.
    `hard_cost`: of the best hypothesis (MCL), whatever the weights. `usage_k`, k from 1: share of the sources that
    hypothesis k is the best for. Over a data set their sum is 1, and a hypothesis that stays at 0 has collapsed.

    Args:
        cost: Cost of every pair, (B, n, m).
        weights: Weight of every pair, (B, n, m).
        active: Which sources are active, (B, m) bool.
    """
    counts = active.sum(1).clamp_min(1)
    least, winners = cost.detach().nan_to_num(nan=math.inf).min(1)
    won = torch.nn.functional.one_hot(winners, cost.shape[1]).where(active.unsqueeze(2), 0).sum(1) / counts.unsqueeze(1)
    entropy = torch.special.entr(weights).sum(1)
    statistics = {
        "entropy_nats": entropy.where(active, 0.0).sum(1) / counts,
        "hard_cost": least.where(active, 0.0).sum(1) / counts,
    }
    return statistics | {f"usage_{k + 1}": share for k, share in enumerate(won.unbind(1))}


class Objective:
    """The loss: the weighted sum of named terms.

    Args:
        terms: Terms by name.
        weights: Factors by name of the term, which multiply the term's own weight; 1 for a term that is not listed.
        steerings: Rules that adapt weights of terms to the rates of past steps.

    Raises:
        ValueError: a weight for an unknown term.
    """

    def __init__(
        self, terms: Mapping[str, Term], weights: Mapping[str, float] | None = None, steerings: Sequence[Steering] = ()
    ) -> None:
        unknown = set(weights or {}) - set(terms)
        if unknown:
            raise ValueError(f"weights for unknown terms {sorted(unknown)}; the terms are {sorted(terms)}")
        self.terms = dict(terms)
        self.weights = {name: 1.0 for name in terms} | dict(weights or {})
        self.steerings = list(steerings)

    def __call__(self, batch: Batch, separation: Separation) -> Losses:
        """Return the loss of each utterance and the values of its terms.

        Args:
            separation: Output of the model, called with `inputs(batch)`.
        """
        step = Step(batch, separation)
        values = {name: term(step) for name, term in self.terms.items()}
        weighted = [self.weights[name] * self.terms[name].weight * value for name, value in values.items()]
        statistics: dict[str, Tensor] = {}
        for term in self.terms.values():
            statistics |= term.statistics()
        return Losses(torch.stack(weighted).sum(0), values, statistics, batch.active.any(1))

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """Return keyword arguments for the model: requests of the terms, and if needed sources and which are active.

        Args:
            batch: Mixtures with their sources.
        """
        wants = set[str]().union(*(term.wants for term in self.terms.values()))
        inputs: dict[str, Any] = {"wants": wants}
        if "scoring" in self.terms:
            # A masker that counts the speakers gets their number during training.
            inputs |= {"active": batch.active}
        if wants & _OF_SOURCES and batch.sources.shape[1] > 0:
            inputs |= {"sources": batch.sources.where(batch.active.unsqueeze(2), 0.0), "active": batch.active}
        return inputs

    def after_step(self, means: Mapping[str, float]) -> None:
        """Adapt steered weights to the statistics of a step.

        Args:
            means: Means of the statistics over the batch, by name.
        """
        for steering in self.steerings:
            steering.after_step(means)

    def warnings(self, means: Mapping[str, float], epochs: int) -> list[str]:
        """Return warnings about targets that are not reached.

        Args:
            means: Mean of every recorded statistic, by name.
            epochs: Number of epochs so far.
        """
        return [line for line in (steering.warning(means, epochs) for steering in self.steerings) if line is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return the steered weights, which past steps determine."""
        return {"steered_weights": [steering.weight for steering in self.steerings]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the steered weights.

        Args:
            state: Result of `state_dict`.
        """
        for steering, weight in zip(self.steerings, state["steered_weights"], strict=True):
            steering.weight = weight

    @property
    def scheduled(self) -> dict[str, float]:
        """The present value of every scheduled parameter of every term, by name."""
        values: dict[str, float] = {}
        for term in self.terms.values():
            values |= term.scheduled
        return values

    def set_progress(self, t_epochs: float) -> None:
        """Set every scheduled parameter of every term to its present value.

        Args:
            t_epochs: Progress in epochs, with fractions.
        """
        for term in self.terms.values():
            term.set_progress(t_epochs)


class ReconstructionTerm(Term):
    """Distance of decoded encodings, without masks, from the signals encoded: the active sources, or the mixture.

    The scale is that of the separation: costs in nats are summed over the signals and divided by T, others averaged.
    The mixture's reconstruction counts in every utterance, with or without active sources.

    Args:
        what: whose encodings are decoded.

    Source: thesis, appendix D.
    """

    def __init__(self, what: Literal["source", "mixture"], costs: PairwiseCosts) -> None:
        self.what = what
        self.costs = costs
        self.wants = {"source_reconstructions"} if what == "source" else {"reconstructions"}

    def __call__(self, step: Step) -> Tensor:
        """Return the term's value for each utterance, (B,). Raise ValueError if the reconstructions are missing."""
        batch, separation = step.batch, step.separation
        if self.what == "mixture":
            found, signals = separation.reconstructions, batch.mixture.unsqueeze(1)
            active = torch.ones_like(signals[..., 0], dtype=torch.bool)
            found = None if found is None else found.unsqueeze(1)
        else:
            signals, active = batch.sources, batch.active
            if signals.shape[1] == 0:
                return separation.estimates.new_zeros(len(signals))
            found = separation.extra("source_reconstructions")
        if found is None:
            raise ValueError("the separation has no reconstructions; call the model with Objective.inputs")
        # One pair per row: costs between a signal and the reconstruction of another are never computed.
        m = signals.shape[1]
        pairs = Batch(
            batch.mixture.repeat_interleave(m, 0), signals.flatten(0, 1)[:, None], active.reshape(-1, 1),
            batch.lengths.repeat_interleave(m),
        )  # fmt: skip
        cost = self.costs.of(found.flatten(0, 1)[:, None], pairs).view(active.shape).where(active, 0.0).sum(1)
        return cost / (batch.lengths if self.costs.unit == "nats" else active.sum(1).clamp_min(1))


class MarginTerm(Term):
    """How far standardized estimates u leave [-1, 1]: the mean of max(|u| - 1, 0)^2 over an utterance's own samples.

    It is zero, without gradient, where no source is active.

    Args:
        signal_std: the model's stored training deviation, by which estimates are divided.

    Source: Donahue et al., "Piano Genie", 2019; thesis, appendix J.
    """

    def __init__(self, signal_std: float = 1.0) -> None:
        self.signal_std = signal_std

    def __call__(self, step: Step) -> Tensor:
        """The term's value for each utterance, (B,)."""
        batch, separation = step.batch, step.separation
        beyond = ((separation.estimates / self.signal_std).abs() - 1).clamp_min(0).square()
        inside = torch.arange(beyond.shape[-1], device=beyond.device) < batch.lengths[:, None]
        return (beyond.mean(1).where(inside, 0.0).sum(1) / batch.lengths).where(batch.active.any(1), 0.0)


class SilenceTerm(Term):
    """Level of the hypotheses without a source relative to the mixture, dB, mean over these hypotheses.

        10 log10( |e|^2 / |x|^2 + tau ),   tau = 10^(-threshold_db / 10)

    Hypotheses are matched to the active sources one to one (PIT); the others are without a source. The term lies
    between -threshold_db, for silence, and about 0. It is zero, without gradient, where every hypothesis has a source,
    and where no source is active. Levels below -threshold_db gain nothing further.

    Args:
        threshold_db: hypotheses this far below the mixture are quiet enough.

    Source: S. Wisdom et al., "What's all the fuss about free universal sound separation data?", ICASSP 2021, eq. 2.
    """

    def __init__(self, costs: PairwiseCosts, threshold_db: float = 30.0) -> None:
        self.costs = costs
        self.threshold_db = threshold_db

    def __call__(self, step: Step) -> Tensor:
        """The term's value for each utterance, (B,)."""
        batch, separation = step.batch, step.separation
        active = batch.active
        matched = (PIT().weights(step.cost(self.costs).detach(), active) > 0).any(2)
        free = ~matched & active.any(1, keepdim=True)
        inside = torch.arange(batch.mixture.shape[-1], device=active.device) < batch.lengths[:, None]
        energies = separation.estimates.where(inside.unsqueeze(1), 0.0).square().sum(-1)
        reference = batch.mixture.where(inside, 0.0).square().sum(-1, keepdim=True)
        tiny = torch.finfo(energies.dtype).tiny
        ratio = energies / reference.clamp_min(tiny) + 10 ** (-self.threshold_db / 10)
        # The energy of hypotheses with a source is not used, and may be anything.
        level_db = 10 * torch.log10(ratio.where(free, 1.0))
        return level_db.sum(1) / free.sum(1).clamp_min(1)


_PLAIN = ModelTraits()


def build_objective(config: ObjectiveConfig, traits: ModelTraits = _PLAIN, data_scale: float = 1.0) -> Objective:
    """Return the objective that a configuration describes.

    Its terms: "separation"; "scoring" for a model that has scores; "encoding_rate" and "mask_rate" for variational
    latents ("source_rate" too where sources are encoded); "source_reconstruction", "mixture_reconstruction", "silence"
    and "margin" where they have a weight.

    Args:
        config: Configuration of the objective.
        traits: Traits of the model; by default deterministic, without scores and with a deviation of 1.
        data_scale: Spread of the training data in the cost's unit, for temperatures given in multiples of it.

    >>> import torch
    >>> from sepkit.config import MCLConfig, ModelConfig, RecurrentConfig
    >>> from sepkit.models import build_model
    >>> model = build_model(ModelConfig(hypotheses=3, masker=RecurrentConfig(hidden_size=8, num_layers=1)))
    >>> objective = build_objective(ObjectiveConfig(assignment=MCLConfig()), model.traits())
    >>> sources = torch.randn(1, 2, 4000)
    >>> batch = Batch(sources.sum(1), sources, torch.ones(1, 2, dtype=torch.bool), torch.tensor([4000]))
    >>> separation = model(batch.mixture, **objective.inputs(batch))
    >>> objective(batch, separation).loss.shape
    torch.Size([1])
    """
    check_bounds(config, "objective")
    costs, assignment = PairwiseCosts(build(config.cost), traits.signal_std), build(config.assignment)
    assignment.set_data_scale(data_scale)
    terms: dict[str, Term] = {"separation": SeparationTerm(costs, assignment, config.floor)}
    weights: dict[str, float] = {}

    def add(name: str, weight: float, make: Callable[[], Term]) -> None:
        if weight > 0:
            terms[name], weights[name] = make(), weight

    if "scores" in traits.offers:
        terms["scoring"] = ScoringTerm(costs, assignment.one_to_one, traits.score_loss or "binary")
        weights["scoring"] = config.scoring.weight
    of_sources, of_mixtures = config.autoencoding.sources, config.autoencoding.mixtures
    add("source_reconstruction", of_sources, lambda: ReconstructionTerm("source", costs))
    add("mixture_reconstruction", of_mixtures, lambda: ReconstructionTerm("mixture", costs))
    rates, steerings = build_rates(config.rates, traits, autoencoding=of_sources > 0, of_mixtures=of_mixtures > 0)
    terms |= rates
    silence = config.silence
    if silence.weight > 0 and not assignment.one_to_one:
        raise UserError(
            f"objective.silence.weight: with {config.assignment.name} hypotheses without a source are alternatives,"
            " not silence; use pit or sinkhorn, or a weight of 0"
        )
    add("silence", silence.weight, lambda: SilenceTerm(costs, silence.threshold_db))
    add("margin", config.margin_weight, lambda: MarginTerm(traits.signal_std))
    return Objective(terms, weights, steerings)


@torch.no_grad()
def hard_si_sdr_db(
    estimates: Tensor, sources: Tensor, active: Tensor | None = None, lengths: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the SI-SDR of each utterance under both hard matchings, (B,) dB each, mean over active sources; else NaN.

    "si_sdr_db": the best one-to-one matching (PIT), where there are as many hypotheses as sources. "mcl_si_sdr_db":
    each source with its best hypothesis (MCL).

    Args:
        estimates: Estimated waveforms, (B, n, T).
        sources: Source waveforms, (B, m, T).
        active: Which sources are active, (B, m) bool; None: all.
        lengths: Samples of each utterance that count, (B,); None: all T.
    """
    cost = pairwise_neg_si_sdr(estimates, sources, lengths=lengths)
    matchings: dict[str, Assignment] = {"mcl_si_sdr_db": MCL()}
    if estimates.shape[1] >= sources.shape[1]:
        matchings["si_sdr_db"] = PIT()
    scores = {name: -matching(cost, active) for name, matching in matchings.items()}
    if active is None:
        return scores
    return {name: score.where(active.any(1), torch.nan) for name, score in scores.items()}
