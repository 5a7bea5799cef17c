"""Find initial and final temperatures of annealed multiple choice learning from mixtures and models."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sepkit.annealing.free_hypotheses import anneal_sources, softmin_entropy, source_correlations, spread_db
from sepkit.config import AnnealedMCLConfig, CostConfig
from sepkit.data.dataset import Example, MixtureDataset, collate
from sepkit.errors import UserError
from sepkit.models import EncoderMaskerDecoder
from sepkit.objectives.costs import PairwiseCosts
from sepkit.registry import build

ENTROPY_SHARE = 0.95
"""Share of log n from which a mean entropy of an assignment counts as soft. The paper leaves T0 open."""

_BATCH_SIZE = 8
_UNIT_NAMES = {"db": "dB", "power": "units of squared samples", "nats": "nats"}
_HEURISTIC = (
    "For SI-SDR this is a heuristic: what is known about critical temperatures holds for the squared error, and the "
    "hypotheses of a model that has been trained are further apart than those of one that begins."
)


@dataclass
class Findings:
    """Findings in words and as data.

    Args:
        lines: What `sepkit find-temperature` prints.
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


def _spread(example: Example) -> float:
    return float(spread_db(example.sources[None], example.active[None])[0])


def of_sources(
    manifest: str | os.PathLike[str],
    *,
    hypotheses: int | None = None,
    ceiling_db: float = 10.0,
    mixtures: int | None = None,
    segment_seconds: float | None = None,
    seed: int = 0,
) -> Findings:
    """Return the spread of the sources of a manifest, and where free hypotheses split for them under negative SI-SDR.

    Args:
        hypotheses: n; None: the largest number of sources.
        mixtures: number, from all over the manifest; None: all.
        segment_seconds: length of the segments used; None: whole mixtures.
    """
    data = MixtureDataset(manifest, segment_seconds=segment_seconds, seed=seed)
    examples = _Mixtures(data, mixtures)
    # Waveforms are not kept: only the unit and the cosines between sources matter.
    spreads, correlations, active = [], [], []
    for example in examples:
        if int(example.active.sum()) < 2:
            examples.skip(example.id, "fewer than two active sources")
            continue
        spreads.append(_spread(example))
        correlations.append(source_correlations(example.sources[None], example.active[None])[0])
        active.append(example.active)
    if not spreads:
        raise UserError(f"{data.manifest.path}: no mixture has two active sources, expected one at least")
    spread, n = float(np.mean(spreads)), hypotheses or data.num_sources
    found = anneal_sources(torch.stack(correlations), n, active=torch.stack(active), ceiling_db=ceiling_db, seed=seed)
    splits = found.first_split_db[~found.first_split_db.isnan()].numpy()
    low, median, high = np.quantile(splits, [0.1, 0.5, 0.9]).tolist() if len(splits) else [math.nan] * 3
    expected = float(found.expected_db.nanmean())
    lines = [
        f"unit of temperatures, spread of the sources: {spread:.3f} dB over {len(spreads)} mixtures; "
        f"0.05, 2 and 10 times it: {0.05 * spread:.3g}, {2 * spread:.3g} and {10 * spread:.3g} dB",
        f"free hypotheses that reach {ceiling_db:g} dB split first at {median:.3g} dB "
        f"(10 to 90 % of mixtures: {low:.3g} to {high:.3g} dB; for uncorrelated sources {expected:.3g} dB)",
        "A network's hypotheses split later, at lower temperatures. Starting higher only wastes epochs.",
    ]
    result = {
        "cost": "neg_si_sdr",
        "manifest": str(manifest),
        "mixtures": len(spreads),
        "segment_seconds": segment_seconds,
        "hypotheses": n,
        "seed": seed,
        "spread_db": spread,
        "ceiling_db": ceiling_db,
        "first_split_db": {"median": _plain(median), "quantile_10": _plain(low), "quantile_90": _plain(high)},
        "expected_first_split_db": expected,
        "temperatures_db": found.temperatures_db,
        "mean_groups": found.groups.double().mean(1).tolist(),
        "skipped": examples.skipped,
    }
    return Findings(lines, result)


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


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
        epochs: from the initial temperature to the floor.
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


def _entropy(columns: Tensor, temperature: float) -> float:
    return float(softmin_entropy(columns.unsqueeze(0), temperature).mean())


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
