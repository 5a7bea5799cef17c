"""Statistics of scores over utterances; intervals are those of other speakers, where speakers are known."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike

Speakers = Sequence[Sequence[str]]
"""The names of the speakers of each utterance; an empty one is not known."""

LEAST_UNITS = 5
"""With fewer mixtures (or speakers, if these are drawn), there is no bootstrap interval."""

# Resampled index matrices are built in pieces of about this many entries (32 MB).
_PIECE = 4_000_000


@dataclass
class Summary:
    """A metric over utterances; every number is None if there is no score.

    Args:
        mean: Mean of the scores.
        std: standard deviation with n - 1 in the denominator; None for a single score.
        median: Median of the scores.
        ci95: the ends of the 95 % confidence interval of the mean; None below `LEAST_UNITS` scores or speakers.
        n: number of scores.
        n_speakers: Number of speakers that the interval draws; None: it draws utterances, see `drawn_speakers`.
    """

    mean: float | None
    std: float | None
    median: float | None
    ci95: list[float] | None
    n: int
    n_speakers: int | None = None


@dataclass
class PairedDifference:
    """A metric of one run minus that of another, over the utterances that both have scored.

    Args:
        mean: Mean of the differences; None: no differences.
        ci95: the ends of the 95 % confidence interval of the mean difference, or None, as in `Summary`.
        n: number of utterances.
        share_better: share of the utterances that score higher in the first run; ties count half.
        n_speakers: Number of speakers, as in `Summary`.
    """

    mean: float | None
    ci95: list[float] | None
    n: int
    share_better: float | None
    n_speakers: int | None = None


def summarize(scores: ArrayLike, speakers: Speakers | None = None, seed: int = 0) -> Summary:
    """Return a summary of scores of utterances, (N,), of N utterances' speakers; NaN means a missing score.

    >>> summary = summarize([1.0, float("nan"), 3.0])
    >>> summary.mean, summary.n, summary.ci95
    (2.0, 2, None)
    """
    return summarize_columns({"": scores}, speakers, seed)[""]


def summarize_columns(
    columns: Mapping[str, ArrayLike], speakers: Speakers | None = None, seed: int = 0
) -> dict[str, Summary]:
    """Return a summary of every column, as `summarize` does; columns that miss the same scores share the bootstrap's
    draws. Columns are (N,) each, by name."""
    values = {name: np.asarray(scores, dtype=np.float64).ravel() for name, scores in columns.items()}
    together: dict[bytes, list[str]] = {}
    for name, scores in values.items():
        together.setdefault(np.isnan(scores).tobytes(), []).append(name)
    found: dict[str, Summary] = {}
    for names in together.values():
        present = np.flatnonzero(~np.isnan(values[names[0]]))
        if not len(present):
            found |= {name: Summary(None, None, None, None, 0) for name in names}
            continue
        own = None if speakers is None else [speakers[int(place)] for place in present]
        scores = np.stack([values[name][present] for name in names], axis=1)
        known = has_interval(len(present), own)
        intervals = bootstrap_ci95(scores, own, seed=seed).tolist() if known else [None] * len(names)
        for name, column, ends in zip(names, scores.T, intervals, strict=True):
            std = float(column.std(ddof=1)) if len(column) > 1 else None
            mean, median = float(column.mean()), float(np.median(column))
            found[name] = Summary(mean, std, median, ends, len(column), drawn_speakers(own))
    return {name: found[name] for name in values}


def bootstrap_ci95(
    columns: np.ndarray, speakers: Speakers | None = None, resamples: int = 10_000, seed: int = 0
) -> np.ndarray:
    """Return (C, 2): the 2.5th and 97.5th percentile of the weighted means of columns (N, C) under `resample_weights`.

    Args:
        columns: (N, C), at least one row, without NaN.
        speakers: Speakers of the N utterances; None: unknown.
        resamples: Number of resamples.
        seed: the same one gives the same interval.

    Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3 (percentile interval).
    """
    pieces = resample_weights(len(columns), speakers, resamples, seed)
    means = [weights @ columns / weights.sum(axis=1, keepdims=True) for weights in pieces]
    return np.percentile(np.concatenate(means), [2.5, 97.5], axis=0).T


def drawn_speakers(speakers: Speakers | None) -> int | None:
    """Return the number of speakers that are drawn for an interval; None: utterances are drawn.

    Utterances are drawn where a speaker is not known, and where one utterance has all of them (draws of two speakers
    who only speak together say nothing about others).
    """
    if speakers is None or not all(names and all(names) for names in speakers):
        return None
    count = len(set(chain.from_iterable(speakers)))
    return count if count > max((len(set(names)) for names in speakers), default=0) else None


def has_interval(count: int, speakers: Speakers | None) -> bool:
    """Return whether a number of utterances with these speakers is enough for a confidence interval."""
    return min(count, drawn_speakers(speakers) or count) >= LEAST_UNITS


def resample_weights(
    count: int, speakers: Speakers | None = None, resamples: int = 10_000, seed: int = 0
) -> Iterator[np.ndarray]:
    """Yield how much each utterance counts in each resample: pieces (R, count) float64 of whole numbers.

    Speakers are drawn with replacement, as many as there are, and an utterance counts as often as the product of how
    often its speakers were drawn: w = prod_k c_k. Utterances that share a speaker vary together, so the interval holds
    for new speakers. Variation of single utterances counts 2^m - 1 times too much with m speakers, so the interval
    errs on the wide side: by sqrt(3) for pairs whose speakers make no difference. See `drawn_speakers` for when
    utterances are drawn instead. All pieces together have `resamples` rows, less those in which no utterance counts.

    Source: A. B. Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1(2), 2007; A. B. Owen and D. Eckles,
        "Bootstrapping data arrays of arbitrary order", Annals of Applied Statistics 6(3), 2012 (product weights).
    """
    generator = np.random.default_rng(seed)
    units, members = drawn_speakers(speakers), []
    if units is not None:
        assert speakers is not None
        place = {name: k for k, name in enumerate(dict.fromkeys(chain.from_iterable(speakers)))}
        # Utterances with fewer speakers than others are filled up with a unit that always counts once.
        distinct = [[place[name] for name in dict.fromkeys(names)] for names in speakers]
        most = max(map(len, distinct))
        members = list(np.array([own + [units] * (most - len(own)) for own in distinct]).T)
    units = units or count
    rows = max(1, _PIECE // max(units, count))
    for done in range(0, resamples, rows):
        piece = min(rows, resamples - done)
        drawn = generator.integers(units, size=(piece, units)) + units * np.arange(piece)[:, None]
        times = np.bincount(drawn.ravel(), minlength=piece * units).reshape(piece, units).astype(np.float64)
        if members:
            times = np.concatenate([times, np.ones((piece, 1))], axis=1)
            times = reduce(np.multiply, (times[:, column] for column in members))
        yield times[times.any(axis=1)]


def paired_difference(
    first: ArrayLike, second: ArrayLike, speakers: Speakers | None = None, seed: int = 0
) -> PairedDifference:
    """Return how much higher the first run scores than the second on the same utterances.

    The interval is over utterances' differences, in which common difficulty cancels.

    Args:
        first: (N,) scores; NaN means a missing one, and leaves the pair out.
        second: (N,) scores of the same utterances.
        speakers: Speakers of the utterances; None: unknown.
        seed: Seed of the bootstrap.

    Raises:
        ValueError: different numbers of scores.
    """
    a, b = (np.asarray(scores, dtype=np.float64).ravel() for scores in (first, second))
    if len(a) != len(b):
        raise ValueError(f"scores: found {len(a)} and {len(b)}, expected one pair an utterance")
    found = summarize(a - b, speakers, seed)
    differences = (a - b)[~np.isnan(a - b)]
    better = float(np.mean((differences > 0) + 0.5 * (differences == 0))) if len(differences) else None
    return PairedDifference(found.mean, found.ci95, found.n, better, found.n_speakers)
