"""Temperatures: their unit, and where free hypotheses for sources split as the temperature falls.

Deterministic annealing lowers the temperature in small steps. At each one hypotheses settle at a minimum of the free
energy -T sum_j log mean_k exp(-d(f_k, s_j) / T), d the negative SI-SDR. At high temperatures all are at one place; at
critical temperatures groups of them split. Free means that no network stands between data and hypotheses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sepkit.objectives.costs import pairwise_neg_si_sdr
from sepkit.objectives.inner_products import inner_products

_DB = 10 / math.log(10)
# The sine below which two hypotheses are in one group, and the deviation of the push with which each settling starts.
_GROUP_LIMIT = 0.05
_PUSH = 1e-3
# Hypotheses have settled where no coordinate moves by more than this.
_SETTLED = 1e-6
_MAX_ITERATIONS = 5000
# The least |cos| between a hypothesis and a source, which keeps costs of SI-SDR finite.
_LEAST_COSINE = 1e-6


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
    """Return the entropy of the softmin of cost (B, n, m) / temperature over hypotheses, (B, m) nats, 0 to log n.

    Source: aMCL paper, eq. 5 and section 4.1.
    """
    log_weights = (-cost.double() / temperature).log_softmax(1)
    return -(log_weights.exp() * log_weights).sum(1)


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
    """
    reach = _reach(ceiling_db)
    return _DB / (1 - 2 * reach / sources) if 2 * reach < sources else math.inf


@torch.no_grad()
def source_correlations(sources: Tensor, active: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
    """Return the cosines between the sources of each utterance less their means, (B, m, m).

    Arguments are those of `spread_db`. Off the diagonal cosines are 0 where a source is inactive.
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
        correlations: (B, m, m), as from `source_correlations`.
        active: (B, m) bool; None: all active. An utterance with fewer than two active sources never splits.
        decay: of the temperature per step, which is also the precision of split temperatures.
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
        settled = torch.nn.functional.normalize(settled + _PUSH * push, dim=2)
        for _ in range(_MAX_ITERATIONS):
            before, settled = settled, _turn(settled, directions, active, reach, temperature)
            if float((settled - before).abs().max()) < _SETTLED:
                break
        temperatures.append(temperature)
        groups.append(_count_groups(settled).where(count > 1, 1))
        temperature *= decay
    table = torch.stack(groups)
    split = table > 1
    place = split.int().argmax(0)
    grid = torch.tensor(temperatures, dtype=torch.float64)
    first = (grid[place.cpu()] / math.sqrt(decay)).where(split.any(0).cpu(), math.nan)
    return SourceAnnealing(temperatures, table.cpu(), first, torch.tensor(expected, dtype=torch.float64))


def _count_groups(hypotheses: Tensor) -> Tensor:
    """Return (B,) numbers of groups, chains of near ones, among (B, n, m) unit vectors, whose signs do not count."""
    near = (1 - (hypotheses @ hypotheses.mT).square()).clamp_min(0).sqrt() < _GROUP_LIMIT
    n = near.shape[1]
    own = torch.arange(n, device=near.device)
    labels = own.expand(len(near), n)
    for _ in range(n):
        labels = labels.unsqueeze(1).expand_as(near).where(near, n).amin(2)
    return (labels == own).sum(1)


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


def _only_active(sources: Tensor, active: Tensor | None) -> tuple[Tensor, Tensor]:
    if active is None:
        active = torch.ones(sources.shape[:2], dtype=torch.bool, device=sources.device)
    if active.shape != sources.shape[:2]:
        raise ValueError(f"expected active of shape {tuple(sources.shape[:2])}, found {tuple(active.shape)}")
    active = active.to(sources.device)
    return sources.where(active.unsqueeze(2), 0.0), active
