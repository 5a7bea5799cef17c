"""Temperatures: their unit, and where free hypotheses split as the temperature falls.

Deterministic annealing lowers the temperature in small steps. At each one hypotheses settle at a minimum of the free
energy -T sum_y log mean_k exp(-d(f_k, y) / T). At high temperatures all are at one place; at critical temperatures
groups of them split. Free means that no network stands between data and hypotheses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sepkit.annealing.groups import GROUP_LIMIT, PUSH, Groups, count_labels, group_labels, part_groups, settle_groups
from sepkit.objectives.costs import pairwise_neg_si_sdr
from sepkit.objectives.products import inner_products

_DB = 10 / math.log(10)
# Hypotheses have settled where nothing moves by more than this many units of the length that belongs to a temperature.
_SETTLED = 1e-6
_MAX_ITERATIONS = 5000
# The least |cos| between a hypothesis and a source, which keeps costs of SI-SDR finite.
_LEAST_COSINE = 1e-6

# ------------------------------------------------------------------------------------------------ units and entropies


@torch.no_grad()
def spread_db(sources: Tensor, active: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
    """Return how far the sources of each utterance are from their mean, (B,) dB: the unit of temperatures.

    (1/m) sum_j |SI-SDR(mean of the active sources, s_j)|. For two uncorrelated sources it is the difference of their
    levels in dB, for three equally loud ones 3.01 dB. An initial temperature is a multiple of its mean over training
    segments: the paper's T0 of about 0.1, 5 and 23 are 0.05, 2 and 10 times that of WSJ0-2mix. It is NaN for fewer than
    two active sources.

    Args:
        sources: (B, m, T); inactive rows may hold anything.
        active: (B, m) bool; None: all active.
        lengths: (B,) samples that count; None: all.

    Raises:
        ValueError: shapes that do not fit together.

    Source: reference code of the aMCL paper ("variance" unit).
    """
    sources, active = _only_active(sources, active)
    # SI-SDR only depends on the direction of the mean, so the sum serves as well.
    distances = pairwise_neg_si_sdr(sources.sum(1, keepdim=True), sources, lengths=lengths)[:, 0].abs()
    count = active.sum(1)
    spread = distances.where(active, 0.0).sum(1) / count
    return spread.where(count > 1, torch.nan)


@torch.no_grad()
def softmin_entropy(cost: Tensor, temperature: float) -> Tensor:
    """Return the entropy of the softmin of cost / temperature over hypotheses, (B, m) nats, 0 to log n.

    Args:
        cost: (B, n, m).
        temperature: in the cost's unit, above 0.

    Source: aMCL paper, eq. 5 and section 4.1.
    """
    log_weights = (-cost.double() / temperature).log_softmax(1)
    return -(log_weights.exp() * log_weights).sum(1)


# --------------------------------------------------------------------------------------------- squared Euclidean cost


@dataclass(frozen=True)
class Split:
    """One temperature at which free hypotheses split.

    Args:
        temperature: in the cost's unit, known to half a percent.
        groups_before: number of groups above it.
        groups_after: number of groups below it.
        predicted_temperature: twice the largest eigenvalue of the covariance of the points of one group of two or more
            hypotheses (eq. 13), just above the split.
    """

    temperature: float
    groups_before: int
    groups_after: int
    predicted_temperature: float


@dataclass(frozen=True)
class Merge:
    """One temperature at which hypotheses that were apart meet again, because others now stand for their points.

    Args:
        temperature: in the cost's unit, the first on the way down at which they were found together.
        groups_before: number of groups above it.
        groups_after: number of groups below it.
    """

    temperature: float
    groups_before: int
    groups_after: int


@dataclass
class PointAnnealing:
    """Free hypotheses for points in space while the temperature falls.

    Args:
        critical_temperature: 2 lambda_max of the points' covariance, the first split by eq. 14.
        splits: in order of falling temperature.
        merges: likewise. Splits and merges together account for every change of the number of groups.
        temperatures: S of them, falling.
        groups: S numbers of groups.
        distortions: S mean squared distances of the points from their nearest hypothesis.
        hypotheses: S times (n, d).
    """

    critical_temperature: float
    splits: list[Split] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    distortions: list[float] = field(default_factory=list)
    hypotheses: list[Tensor] = field(default_factory=list)


@torch.no_grad()
def anneal_points(
    points: Tensor, hypotheses: int, *, decay: float = 0.9, end_ratio: float = 1e-3, seed: int = 0
) -> PointAnnealing:
    """Return the record of deterministic annealing of free hypotheses under the squared Euclidean cost |f - y|^2.

    At each temperature groups of hypotheses move from a slightly pushed start downhill to a minimum of the free energy,
    where f_k = sum_y q y / sum_y q with q = softmin_k(|f_k - y|^2 / T). Groups that are unstable there part, see
    `sepkit.annealing.groups`; the temperature is found to a percent. Annealing ends when all hypotheses are apart.

    Args:
        points: (N, d), finite.
        hypotheses: n.
        decay: of the temperature per step.
        end_ratio: lowest temperature, as a share of the first critical temperature.
        seed: of the pushes.

    Raises:
        ValueError: fewer than two points, or points that are all the same.

    Source: Rose, "Deterministic annealing for clustering, compression, classification, regression", 1998; aMCL paper,
    section 4.3.
    """
    points = points.detach().double()
    if points.ndim != 2 or not bool((points != points[:1]).any()):
        raise ValueError(f"found points of shape {tuple(points.shape)}, expected (N, d) with at least two that differ")
    centered = points - points.mean(0)
    covariance = centered.mT @ centered / len(points)
    critical = 2 * float(torch.linalg.eigvalsh(covariance)[-1])
    generator = torch.Generator().manual_seed(seed)
    result = PointAnnealing(critical)
    # No eigenvalue exceeds the trace, so the first split is certainly below this.
    temperature = 4 * float(covariance.trace())
    together = Groups(points.mean(0, keepdim=True), torch.zeros(hypotheses, dtype=torch.long))
    groups = settle_groups(points, together, temperature, generator)
    while True:
        _record(result, points, groups, temperature)
        if len(groups) >= hypotheses or temperature * decay < end_ratio * critical:
            return result
        above, upper, lower = groups, temperature, temperature * decay
        groups = settle_groups(points, above, lower, generator)
        if bool(groups.unstable(points, lower).any()):
            while upper > 1.01 * lower:
                middle = math.sqrt(upper * lower)
                trial = settle_groups(points, above, middle, generator)
                if bool(trial.unstable(points, middle).any()):
                    lower, groups = middle, trial
                else:
                    upper, above = middle, trial
            groups = part_groups(points, groups, lower, generator)
            if len(above) < result.groups[-1]:
                result.merges.append(Merge(upper, result.groups[-1], len(above)))
        if len(groups) > len(above):
            predicted = float(above.critical_temperatures(points, upper).max())
            result.splits.append(Split(math.sqrt(upper * lower), len(above), len(groups), predicted))
        elif len(groups) < len(above):
            result.merges.append(Merge(lower, len(above), len(groups)))
        temperature = lower


def _record(result: PointAnnealing, points: Tensor, groups: Groups, temperature: float) -> None:
    result.temperatures.append(temperature)
    result.groups.append(len(groups))
    result.distortions.append(float(torch.cdist(points, groups.places).square().amin(1).mean()))
    result.hypotheses.append(groups.hypotheses)


# ---------------------------------------------------------------------------------------------------- cost of SI-SDR


@dataclass
class SourceAnnealing:
    """Free hypotheses for the sources of B utterances while the temperature falls.

    Args:
        temperatures_db: S of them, falling.
        groups: (S, B) numbers of groups.
        first_split_db: (B,) the temperature between the last one with a single group and the next; NaN without a split.
        expected_db: (B,) the same for uncorrelated sources, `si_sdr_critical_temperature_db`.
    """

    temperatures_db: list[float]
    groups: Tensor
    first_split_db: Tensor
    expected_db: Tensor


def si_sdr_critical_temperature_db(sources: int, ceiling_db: float) -> float:
    """Return the first critical temperature of free hypotheses for m >= 2 uncorrelated sources under negative SI-SDR.

    T_c = (10 / ln 10) / (1 - 2 c^2 / m) dB, c^2 = 1 / (1 + 10^(-ceiling / 10)). Levels have no effect. For two sources
    T_c is infinite without a ceiling: along the line between them one source loses what the other gains, so hypotheses
    can part at any temperature. This differs from the squared error, and is why T_c depends on the ceiling, the SI-SDR
    of a hypothesis that has everything of its source but cannot do better.

    At T_c the second derivative of the free energy along a direction in which two hypotheses part from the mixture is
    zero: T_c = d'^2 / d'' for the cost d(x) = -10 log10(c^2 x / (1 - c^2 x)) at x = 1 / m, the squared cosine between
    the mixture and a source.

    Args:
        sources: m, at least 2.
        ceiling_db: SI-SDR that hypotheses cannot surpass, dB; inf: no ceiling.
    """
    reach = _reach(ceiling_db)
    return _DB / (1 - 2 * reach / sources) if 2 * reach < sources else math.inf


@torch.no_grad()
def source_correlations(sources: Tensor, active: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
    """Return the cosines between the sources of each utterance less their means, (B, m, m).

    Off the diagonal they are 0 where a source is inactive.

    Args:
        sources: (B, m, T); inactive rows may hold anything.
        active: (B, m) bool; None: all active.
        lengths: (B,) samples of each utterance that count; None: all T.

    Raises:
        ValueError: shapes that do not fit together.
    """
    sources, active = _only_active(sources, active)
    products = inner_products(sources, sources, lengths, zero_mean=True)
    norms = (products.estimate_energy * products.source_energy).sqrt()
    cosines = (products.cross / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp(-1, 1)
    identity = torch.eye(sources.shape[1], dtype=cosines.dtype, device=cosines.device)
    return cosines * (1 - identity) * (active[:, None] & active[:, :, None]) + identity


@torch.no_grad()
def anneal_sources(
    correlations: Tensor,
    hypotheses: int,
    *,
    active: Tensor | None = None,
    ceiling_db: float = 10.0,
    decay: float = 0.95,
    end_db: float = 0.1,
    seed: int = 0,
) -> SourceAnnealing:
    """Return the record of deterministic annealing of free hypotheses under negative SI-SDR, utterance by utterance.

    Each hypothesis is a waveform in the span of the sources plus a residual that is orthogonal to them and keeps its
    SI-SDR below a ceiling. All begin at the mixture of equally loud sources. The cost ignores levels, so only angles
    count: for a hypothesis along the unit vector u in the span, the cost of source s_j is
    -10 log10(c^2 x_j / (1 - c^2 x_j)), x_j = <u, s_j>^2 / |s_j|^2. At each temperature the damped fixed point of
    u ~ sum_j q_j s_j / (<u, s_j> (1 - c^2 x_j)) is found from a slightly pushed start.

    Args:
        correlations: (B, m, m) cosines between sources, as from `source_correlations`.
        hypotheses: n >= 2.
        active: (B, m) bool; None: all active. An utterance with fewer than two active sources never splits.
        ceiling_db: SI-SDR that hypotheses cannot surpass, dB.
        decay: of the temperature per step, which is also the precision of split temperatures.
        end_db: lowest temperature, dB.
        seed: of the pushes.
    """
    values, vectors = torch.linalg.eigh(correlations.double())
    directions = vectors * values.clamp_min(0).sqrt().unsqueeze(1)
    directions = torch.nn.functional.normalize(directions, dim=2)
    batch, m = directions.shape[:2]
    active = directions.new_ones(batch, m, dtype=torch.bool) if active is None else active.to(directions.device)
    count = active.sum(1)
    reach = _reach(ceiling_db)
    expected = [si_sdr_critical_temperature_db(int(k), ceiling_db) if k > 1 else math.nan for k in count]
    generator = torch.Generator().manual_seed(seed)
    start = (directions * active.unsqueeze(2)).sum(1, keepdim=True).expand(-1, hypotheses, -1)
    settled = torch.nn.functional.normalize(start, dim=2)
    temperature = 4 * _DB / (1 - reach)
    temperatures: list[float] = []
    groups: list[Tensor] = []
    enough = count.clamp(1, hypotheses).where(count > 1, 1)
    while not temperatures or (temperature > end_db and bool((groups[-1] < enough).any())):
        push = torch.randn(settled.shape, generator=generator, dtype=settled.dtype).to(settled.device)
        pushed = torch.nn.functional.normalize(settled + PUSH * push, dim=2)
        settled = _settle(lambda u, t=temperature: _turn(u, directions, active, reach, t), pushed, 1.0)
        cosines = settled @ settled.mT
        labels = group_labels((1 - cosines.square()).clamp_min(0).sqrt() < GROUP_LIMIT)
        temperatures.append(temperature)
        groups.append(count_labels(labels).where(count > 1, 1))
        temperature *= decay
    table = torch.stack(groups)
    split = table > 1
    place = split.int().argmax(0)
    grid = torch.tensor(temperatures, dtype=torch.float64)
    first = (grid[place.cpu()] / math.sqrt(decay)).where(split.any(0).cpu(), math.nan)
    return SourceAnnealing(temperatures, table.cpu(), first, torch.tensor(expected, dtype=torch.float64))


def _reach(ceiling_db: float) -> float:
    """Return c^2: the share of the best hypothesis's energy that is its source's."""
    return 1 / (1 + 10 ** (-ceiling_db / 10))


def _turn(hypotheses: Tensor, directions: Tensor, active: Tensor, reach: float, temperature: float) -> Tensor:
    """Return (B, n, m) unit vectors half way towards the free energy's gradient."""
    cosines = hypotheses @ directions.mT
    cosines = cosines.abs().clamp_min(_LEAST_COSINE).copysign(cosines)
    part = reach * cosines.square()
    cost = -_DB * (part / (1 - part)).log()
    pull = (-cost / temperature).softmax(1) * active.unsqueeze(1) / (cosines * (1 - part))
    towards = torch.nn.functional.normalize(pull @ directions, dim=2)
    return torch.nn.functional.normalize(hypotheses + towards, dim=2)


# ------------------------------------------------------------------------------------------------------------- common


def _only_active(sources: Tensor, active: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sources with zeros in inactive rows, and which are active."""
    if active is None:
        active = torch.ones(sources.shape[:2], dtype=torch.bool, device=sources.device)
    if active.shape != sources.shape[:2]:
        raise ValueError(f"expected active of shape {tuple(sources.shape[:2])}, found {tuple(active.shape)}")
    active = active.to(sources.device)
    return sources.where(active.unsqueeze(2), 0.0), active


def _settle(step: Callable[[Tensor], Tensor], start: Tensor, length: float) -> Tensor:
    """Repeat a step until nothing moves further."""
    for _ in range(_MAX_ITERATIONS):
        moved = step(start)
        if float((moved - start).abs().max()) < _SETTLED * length:
            return moved
        start = moved
    return start
