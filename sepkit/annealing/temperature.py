"""Find temperatures of annealed multiple choice learning from mixtures and models: unit, critical, initial and final.

Deterministic annealing lowers the temperature in small steps. At each one hypotheses settle at a minimum of the free
energy -T sum_j log mean_k exp(-d(f_k, s_j) / T), d the negative SI-SDR. At high temperatures all are at one place; at
critical temperatures groups of them split.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sepkit.config import AnnealedMCLConfig, CostConfig
from sepkit.data.dataset import Example, MixtureDataset, collate
from sepkit.errors import UserError
from sepkit.models import EncoderMaskerDecoder
from sepkit.objectives.costs import PairwiseCosts, pairwise_neg_si_sdr
from sepkit.registry import build

ENTROPY_SHARE = 0.95
"""Share of log n from which a mean entropy of an assignment counts as soft. The paper leaves T0 open."""

_DB = 10 / math.log(10)
_BATCH_SIZE = 8
_UNIT_NAMES = {"db": "dB", "power": "units of squared samples", "nats": "nats"}
_HEURISTIC = (
    "For SI-SDR this is a heuristic: what is known about critical temperatures applies to the squared error, and the "
    "hypotheses of a model that has been trained are further apart than those of one that begins."
)


@torch.no_grad()
def spread_db(sources: Tensor, active: Tensor) -> Tensor:
    """Return how far the sources of each utterance are from their mean, (B,) dB: the unit of temperatures.

    (1/m) sum_j |SI-SDR(mean of the active sources, s_j)|. For two uncorrelated sources it is the difference of their
    levels in dB, for three equally loud ones 3.01 dB. An initial temperature is a multiple of its mean over training
    segments: the paper's T0 of about 0.1, 5 and 23 are 0.05, 2 and 10 times that of WSJ0-2mix. It is NaN for fewer than
    two active sources.

    Args:
        sources: (B, m, T); inactive rows may hold anything.
        active: (B, m) bool.

    Source: reference code of the aMCL paper ("variance" unit).
    """
    sources = sources.where(active.unsqueeze(2), 0.0)
    # SI-SDR only depends on the direction of the mean, so the sum serves as well.
    distances = pairwise_neg_si_sdr(sources.sum(1, keepdim=True), sources)[:, 0].abs()
    count = active.sum(1)
    return (distances.where(active, 0.0).sum(1) / count).where(count > 1, torch.nan)


def si_sdr_critical_temperature_db(sources: int, ceiling_db: float) -> float:
    """Return the first critical temperature of free hypotheses for m >= 2 uncorrelated sources under negative SI-SDR.

    Free means that no network stands between data and hypotheses.

    T_c = (10 / ln 10) / (1 - 2 c^2 / m) dB, c^2 = 1 / (1 + 10^(-ceiling / 10)). Levels have no effect. For two sources
    T_c is infinite without a ceiling: along the line between them one source loses what the other gains, so hypotheses
    can part at any temperature. This differs from the squared error, and is why T_c depends on the ceiling, the SI-SDR
    of a hypothesis that has everything of its source but cannot do better.

    At T_c the second derivative of the free energy along a direction in which two hypotheses split is
    zero: T_c = d'^2 / d'' for the cost d(x) = -10 log10(c^2 x / (1 - c^2 x)) at x = 1 / m, the squared cosine between
    the mixture and a source.
    """
    # c^2, the share of the best hypothesis's energy that is its source's.
    reach = 1 / (1 + 10 ** (-ceiling_db / 10))
    return _DB / (1 - 2 * reach / sources) if 2 * reach < sources else math.inf


@dataclass
class Findings:
    """Findings in words and as data.

    Args:
        lines: Lines that `sepkit find-temperature` prints.
        data: Content of temperature.json, all that its figure needs.
    """

    lines: list[str]
    data: dict[str, Any]


class _Mixtures:
    """Mixtures from all over a manifest; `skipped` says why some were left out."""

    def __init__(self, data: MixtureDataset, mixtures: int | None) -> None:
        self.data = data
        count = len(data) if mixtures is None else min(mixtures, len(data))
        self.places = sorted({place * len(data) // count for place in range(count)})
        self.skipped: list[dict[str, str]] = []

    def skip(self, name: str, reason: str) -> None:
        self.skipped.append({"id": name, "reason": reason})

    def __iter__(self) -> Iterator[Example]:
        for place in tqdm(self.places, disable=None, unit="mixture"):
            try:
                yield self.data[place]
            except UserError as error:
                self.skip(self.data.manifest[place].id, str(error))

    def batches(self) -> Iterator[list[Example]]:
        """Yield a few examples of one length, because models that normalize over time would see padding."""
        batch: list[Example] = []
        for example in self:
            if batch and (len(batch) == _BATCH_SIZE or len(example.mixture) != len(batch[0].mixture)):
                yield batch
                batch = []
            batch.append(example)
        if batch:
            yield batch


def of_sources(
    manifest: str | os.PathLike[str],
    *,
    ceiling_db: float = 10.0,
    mixtures: int | None = None,
    segment_seconds: float | None = None,
    seed: int = 0,
) -> Findings:
    """Return the spread of the sources of a manifest, and the critical temperature of free hypotheses for them.

    Args:
        manifest: Manifest of mixtures with sources.
        ceiling_db: SI-SDR that hypotheses cannot surpass, dB.
        mixtures: Number of mixtures, from all over the manifest; None: all.
        segment_seconds: Length of the segments used; None: whole mixtures.
        seed: Seed of the segments.

    Raises:
        UserError: no mixture has two active sources.
    """
    examples = _Mixtures(MixtureDataset(manifest, segment_seconds=segment_seconds, seed=seed), mixtures)
    spreads, critical = [], []
    for example in examples:
        count = int(example.active.sum())
        if count < 2:
            examples.skip(example.id, "fewer than two active sources")
            continue
        spreads.append(_spread(example))
        critical.append(si_sdr_critical_temperature_db(count, ceiling_db))
    if not spreads:
        raise UserError(f"{manifest}: no mixture has two active sources, expected one at least")
    spread, expected = float(np.mean(spreads)), float(np.mean(critical))
    lines = [
        f"unit of temperatures, spread of the sources: {spread:.3f} dB over {len(spreads)} mixtures; "
        f"0.05, 2 and 10 times it: {0.05 * spread:.3g}, {2 * spread:.3g} and {10 * spread:.3g} dB",
        f"critical temperature: {expected:.3g} dB for uncorrelated sources and free hypotheses that reach "
        f"{ceiling_db:g} dB",
        "A network's hypotheses split later, at lower temperatures. Starting higher only wastes epochs.",
    ]
    result = {
        "cost": "neg_si_sdr",
        "manifest": str(manifest),
        "mixtures": len(spreads),
        "segment_seconds": segment_seconds,
        "seed": seed,
        "spread_db": spread,
        "ceiling_db": ceiling_db,
        "critical_temperature_db": _plain(expected),
        "skipped": examples.skipped,
    }
    return Findings(lines, result)


def _spread(example: Example) -> float:
    return float(spread_db(example.sources[None], example.active[None])[0])


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def of_model(
    model: EncoderMaskerDecoder,
    manifest: str | os.PathLike[str],
    cost: CostConfig,
    *,
    epochs: int = 200,
    mixtures: int | None = None,
    segment_seconds: float | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Findings:
    """Return the entropy of a model's assignment by temperature, and the schedule that follows from it.

    It proposes the smallest initial temperature at which the mean entropy over sources is at least 95 % of log n, and
    the exponential decay that ends at the floor, where the minimum becomes hard, in the given epochs. The unit of
    temperatures is that of the cost.

    Args:
        epochs: Epochs from the initial temperature to the floor.
        mixtures: number, from all over the manifest; None: all.
    """
    if model.hypotheses < 2:
        raise UserError("--model: found one hypothesis, expected two or more: nothing is assigned softly")
    data = MixtureDataset(manifest, segment_seconds=segment_seconds, seed=seed, sample_rate=model.sample_rate)
    examples = _Mixtures(data, mixtures)
    pairwise = PairwiseCosts(build(cost), float(model.signal_std))
    columns, spread = _cost_columns(model.to(device), pairwise, examples)
    n, count, floor = model.hypotheses, columns.shape[1], AnnealedMCLConfig().floor
    initial = initial_temperature(columns, floor)
    decay = decay_to_floor(initial, floor, epochs)
    unit = _UNIT_NAMES[pairwise.unit]
    share, half_share = (_entropy(columns, t) / math.log(n) for t in (initial, initial / 2))
    temperatures = np.geomspace(initial / 1000, initial * 10, 81)
    entropies = [_entropy(columns, t) for t in temperatures.tolist()]
    options = (
        "--objective.assignment.name amcl --objective.assignment.unit cost "
        "--objective.assignment.temperature.name truncated_exponential "
        f"--objective.assignment.temperature.initial {initial:g} "
        f"--objective.assignment.temperature.decay {decay:.6f} --objective.assignment.temperature.end {epochs}"
    )
    is_si_sdr = pairwise.cost.has_data_scale and not math.isnan(spread)
    lines = [
        f"initial temperature: {initial:g} {unit}"
        + (f" ({initial / spread:.3g} times the spread of the sources, {spread:.3g} dB)" if is_si_sdr else ""),
        f"entropy of the assignment there: {share * math.log(n):.4f} nats, {100 * share:.1f} % of log {n} "
        f"(wanted: {100 * ENTROPY_SHARE:.0f} % or more)",
        f"entropy at half of it: {half_share * math.log(n):.4f} nats, {100 * half_share:.1f} % of log {n} "
        f"(wanted: less than {100 * ENTROPY_SHARE:.0f} %)",
        f"decay: {decay:.6f} an epoch, at the floor of {floor:g} {unit} after {epochs} epochs",
        f"measured on {count} sources in {len(examples.places)} mixtures"
        + (f", {len(examples.skipped)} of which were left out" if examples.skipped else ""),
        _HEURISTIC,
        f"sepkit train {options}",
    ]
    result = {
        "cost": cost.name,
        "unit": unit,
        "manifest": str(manifest),
        "sources": count,
        "segment_seconds": segment_seconds,
        "hypotheses": n,
        "seed": seed,
        "initial_temperature": initial,
        "entropy_nats": share * math.log(n),
        "entropy_share": share,
        "entropy_share_at_half": half_share,
        "spread_db": _plain(spread),
        "decay": decay,
        "epochs": epochs,
        "floor": floor,
        "options": options,
        "heuristic": _HEURISTIC,
        "temperatures": temperatures.tolist(),
        "entropies_nats": entropies,
        "skipped": examples.skipped,
    }
    return Findings(lines, result)


@torch.inference_mode()
def _cost_columns(model: EncoderMaskerDecoder, pairwise: PairwiseCosts, examples: _Mixtures) -> tuple[Tensor, float]:
    """Return ((n, number of active sources) costs of every hypothesis, mean spread of the sources in dB)."""
    device = next(model.parameters()).device
    columns: list[Tensor] = []
    spreads: list[float] = []
    for some in examples.batches():
        batch = collate(some)
        moved = batch.to(device)
        separation = model(moved.mixture)
        cost = pairwise.of(separation.estimates, moved, separation.estimate_scales).cpu().double()
        for row, example in enumerate(some):
            own = cost[row][:, batch.active[row]]
            if not own.shape[1] or not bool(own.isfinite().all()):
                examples.skip(example.id, "a cost is not finite" if own.shape[1] else "no active source")
                continue
            columns.append(own)
            spreads.append(_spread(example))
    if not columns:
        reason = " ({id}: {reason})".format_map(examples.skipped[0]) if examples.skipped else ""
        path = examples.data.manifest.path
        raise UserError(f"{path}: no mixture could be used{reason}; expected mixtures with sources")
    return torch.cat(columns, 1), float(np.nanmean(spreads)) if np.isfinite(spreads).any() else math.nan


def softmin_entropy(cost: Tensor, temperature: float) -> Tensor:
    """Return the entropy of the softmin of cost (n, m) / temperature over hypotheses, (m,) nats, 0 to log n.

    Source: aMCL paper, eq. 5 and section 4.1.
    """
    log_weights = (-cost.double() / temperature).log_softmax(0)
    return -(log_weights.exp() * log_weights).sum(0)


def _entropy(columns: Tensor, temperature: float) -> float:
    return float(softmin_entropy(columns, temperature).mean())


def initial_temperature(columns: Tensor, floor: float = 1e-4) -> float:
    """Return the smallest temperature at which the mean entropy of the softmin is at least 95 % of log n, to 3 digits.

    The columns (n, number of sources) are finite costs. The entropy rises strictly with the temperature where costs
    differ, so there is one such temperature. It is bracketed by doubling and found by bisection. UserError: the
    hypotheses cost the same even at the floor.
    """
    wanted = ENTROPY_SHARE * math.log(columns.shape[0])
    low, high = floor, 1.0
    if _entropy(columns, low) >= wanted:
        raise UserError(
            f"--model: all hypotheses cost the same to within {floor:g}, so no temperature can tell them apart; "
            "expected hypotheses that differ: train for an epoch or two first"
        )
    while _entropy(columns, high) < wanted:
        low, high = high, 2 * high
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _entropy(columns, middle) >= wanted else (middle, high)
    # Rounded up, so that the printed number meets the condition.
    step = 10.0 ** (math.floor(math.log10(high)) - 2)
    return float(f"{math.ceil(high / step) * step:.3g}")


def decay_to_floor(initial: float, floor: float, epochs: int) -> float:
    """Return the factor per epoch that leads from the initial temperature to the floor."""
    return (floor / initial) ** (1 / epochs)
