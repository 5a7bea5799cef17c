"""What the training of a separator measures: signals and scale of the training set, usage, speakers."""

from __future__ import annotations

import math
from statistics import fmean

from torch import Tensor

from sepkit.data.dataset import MixtureDataset
from sepkit.errors import UserError
from sepkit.types import Batch

MEASURED_MIXTURES = 256


def evenly_spaced(length: int, count: int = MEASURED_MIXTURES) -> list[int]:
    """Return indices that are evenly spread over a data set."""
    return sorted({i * length // count for i in range(count)}) if length > count else list(range(length))


def signal_statistics(data: MixtureDataset, count: int = MEASURED_MIXTURES) -> tuple[float, float]:
    """Return mean and deviation of the samples of training mixtures, spread over the whole set.

    Args:
        count: at most this many mixtures are measured.
    """
    samples, total, squares = 0, 0.0, 0.0
    for index in evenly_spaced(len(data), count):
        mixture = data[0, index].mixture.double()
        samples += mixture.numel()
        total += mixture.sum().item()
        squares += mixture.square().sum().item()
    mean = total / samples
    std = math.sqrt(max(0.0, squares / samples - mean * mean))
    if std < 1e-8:
        raise UserError(f"{data.manifest.path}: its mixtures are silent; training needs recordings that are not")
    return mean, std


def mean_data_scale(data: MixtureDataset) -> float:
    """Return the mean of `spread_db` of the sources of training mixtures, dB."""
    from sepkit.annealing.free_hypotheses import spread_db

    examples = (data[0, index] for index in evenly_spaced(len(data)))
    scales = [spread_db(example.sources[None], example.active[None]).item() for example in examples]
    scales = [scale for scale in scales if not math.isnan(scale)]
    if not scales:
        raise UserError(
            f"{data.manifest.path}: found no mixture of two sources, whose spread is the unit; use unit: cost"
        )
    return fmean(scales)


def collapse_rate(means: dict[str, float], prefix: str = "") -> dict[str, float]:
    """Return `collapse_rate`, the share of hypotheses whose usage is zero; nothing if usage is not known.

    Args:
        prefix: of the names, such as "dev_".
    """
    usage = [value for name, value in means.items() if name.startswith(f"{prefix}usage_")]
    return {f"{prefix}collapse_rate": sum(value == 0 for value in usage) / len(usage)} if usage else {}


def distinct_scores(batch: Batch, scores: Tensor, estimates: Tensor) -> list[tuple[list[float], int]]:
    """Return each mixture's scores of distinct hypotheses, and its number of speakers."""
    from sepkit.models.hypotheses import distinct_hypotheses

    found = []
    rows = zip(scores.float().cpu().numpy(), estimates.float().cpu().numpy(), batch.lengths.tolist(), strict=True)
    for (own, waveforms, length), count in zip(rows, batch.active.sum(1).tolist(), strict=True):
        found.append((own[distinct_hypotheses(own, waveforms[:, :length])].tolist(), count))
    return found


def calibrated_threshold(speakers: list[tuple[list[float], int]]) -> dict[str, float]:
    """Return `score_threshold`, which counts speakers best, and its share of right counts; nothing without scores."""
    if not speakers:
        return {}
    from sepkit.models.hypotheses import calibrate_threshold

    scores, counts = zip(*speakers, strict=True)
    threshold, accuracy = calibrate_threshold(scores, counts)
    return {"score_threshold": threshold, "dev_speaker_count_accuracy": accuracy}
