"""The scores of one utterance: hypotheses matched to sources one to one, then every metric for every source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from sepkit.errors import UserError
from sepkit.evaluation import metrics
from sepkit.evaluation.transcripts import transcribe, word_errors, words
from sepkit.objectives.assignment import PIT
from sepkit.objectives.likelihoods import pairwise_blr_nll

__all__ = ["COLUMNS", "PER_UTTERANCE", "ScoringOptions", "UtteranceScores", "check_metrics", "score_utterance"]

COLUMNS = {
    "si_sdr": ("si_sdr_db", "si_sdri_db", "mcl_si_sdr_db"),
    "sdr": ("sdr_db", "sdri_db"),
    "snr": ("snr_db", "snri_db"),
    "bss_eval": ("sir_db", "sar_db"),
    "stoi": ("stoi",),
    "estoi": ("estoi",),
    "pesq": ("pesq",),
    "pesq_nb": ("pesq_nb",),
    "pesq_wb": ("pesq_wb",),
    "blr": ("blr_nats_per_sample",),
    "words": ("word_accuracy",),
}
"""Metric that can be asked for -> the columns that it fills."""

PER_UTTERANCE = ("attenuation_db", "speaker_count_accuracy")
"""Columns that are there where a source is silent, or the model says how many speak, without being asked for."""


@dataclass(frozen=True)
class ScoringOptions:
    """What is measured, and with what.

    Args:
        metrics: keys of `COLUMNS`.
        signal_std: deviation that references are divided by for "blr".
        asr_command: prints the transcript of `{wav}`, for "words".
    """

    metrics: tuple[str, ...]
    signal_std: float | None = None
    asr_command: str | None = None


@dataclass
class UtteranceScores:
    """What an utterance scored.

    Args:
        assignment: the hypothesis of each source, -1 for a silent one.
        values: column -> one number a source, NaN for a silent one; `attenuation_db` the other way round.
        reasons: metric -> why it has no score for one source or more that speak.
        speaker_count: how many speakers the model says there are, where it does.
        word_counts: (errors, words) of each source that was transcribed.
    """

    assignment: list[int]
    values: dict[str, list[float]]
    reasons: dict[str, str] = field(default_factory=dict)
    speaker_count: int | None = None
    word_counts: list[list[int]] = field(default_factory=list)

    @property
    def silent_sources(self) -> int:
        """How many sources are silent: only their attenuation is measured."""
        return self.assignment.count(-1)

    def mean(self, column: str) -> float:
        """The mean over sources that have a score; NaN where there is none."""
        if column == "speaker_count_accuracy":
            active = len(self.assignment) - self.silent_sources
            return float("nan") if self.speaker_count is None else float(self.speaker_count == active)
        values = np.array(self.values.get(column, []))
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else float("nan")


def check_metrics(options: ScoringOptions, sample_rates: Sequence[int]) -> None:
    """Nothing, where all metrics can be computed.

    Args:
        options: what is asked for.
        sample_rates: Hz, of the utterances.

    Raises:
        UserError: an unknown metric, one whose package or option is missing, or a rate that PESQ does not know.
    """
    unknown = [name for name in options.metrics if name not in COLUMNS]
    if unknown or not options.metrics:
        raise UserError(
            f"metrics: found {', '.join(unknown) or 'nothing'}, expected one or more of {', '.join(COLUMNS)}"
        )
    if "blr" in options.metrics and not (options.signal_std and 0 < options.signal_std < float("inf")):
        raise UserError(f"metrics: blr needs a deviation above 0, found {options.signal_std}; give --signal-std")
    if "words" in options.metrics and not options.asr_command:
        raise UserError("metrics: words needs a command that transcribes; give --asr-command 'CMD {wav}'")
    for name in ("pesq", "pesq_nb", "pesq_wb"):
        known = metrics.PESQ_RATES[name.removeprefix("pesq_")] if name != "pesq" else tuple(metrics.PESQ_MODES)
        for rate in sample_rates if name in options.metrics else ():
            if rate not in known:
                rates = " and ".join(map(str, known))
                raise UserError(f"metrics: {name} is defined at {rates} Hz, the manifest has {rate} Hz; leave it out")
            metrics.pesq(np.zeros(1), np.zeros(1), rate)


def score_utterance(
    estimates: np.ndarray,
    sources: np.ndarray,
    mixture: np.ndarray,
    sample_rate: int,
    options: ScoringOptions,
    texts: Sequence[str | None] | None = None,
    speaker_scores: np.ndarray | None = None,
) -> UtteranceScores:
    """The scores of an utterance.

    Hypotheses and sources are matched one to one by the largest mean SI-SDR, whatever the metric; of those that are
    left, the quietest go to silent sources, and the rest go free. `mcl_si_sdr_db` is the exception: each source's best
    hypothesis, so that several may share one. A metric that fails leaves NaN and its reason; the others go on.

    Args:
        estimates: (n, T).
        sources: (m, T).
        mixture: (T,), what improvements are over.
        sample_rate: Hz.
        options: what to measure.
        texts: what each source says, None where that is not known.
        speaker_scores: (n,) the model's log-odds that a hypothesis is a speaker.

    Raises:
        UserError: estimates that do not fit the sources, are not finite, or are fewer than the sources that speak.
    """
    table, active = _match_table(estimates, sources)
    assignment = PIT().matches(torch.from_numpy(-table)[None], torch.from_numpy(active)[None])[0].tolist()
    speaking = [j for j, speaks in enumerate(active) if speaks]
    matched = _Matched(
        estimates[[assignment[j] for j in speaking]],
        sources[speaking],
        mixture,
        sample_rate,
        options,
        table[:, speaking].max(axis=0, initial=-np.inf),
        [texts[j] if texts else None for j in speaking],
        [f"s{j + 1}" for j in speaking],
    )
    values: dict[str, list[float]] = {}
    for name in options.metrics:
        for column, scores in zip(COLUMNS[name], _measured(name, matched), strict=True):
            of_all = np.full(len(sources), np.nan)
            of_all[speaking] = scores
            values[column] = of_all.tolist()
    if not active.all():
        values["attenuation_db"] = _attenuations(estimates, mixture, assignment)
    count = None if speaker_scores is None else int((np.asarray(speaker_scores) > 0).sum())
    return UtteranceScores(assignment, values, matched.reasons, count, matched.word_counts)


@dataclass
class _Matched:
    """The sources that speak, k of them, with their estimates in the same order."""

    estimates: np.ndarray
    sources: np.ndarray
    mixture: np.ndarray
    sample_rate: int
    options: ScoringOptions
    best_si_sdr_db: np.ndarray
    texts: list[str | None]
    names: list[str]
    reasons: dict[str, str] = field(default_factory=dict)
    word_counts: list[list[int]] = field(default_factory=list)


_Measure = Callable[[_Matched], Sequence[np.ndarray]]


def _match_table(estimates: np.ndarray, sources: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, m) SI-SDR of every pair, and (m,) which sources speak."""
    if estimates.shape[-1] != sources.shape[-1]:
        raise UserError(
            f"the estimates hold {estimates.shape[-1]} samples, the references {sources.shape[-1]}; "
            "expected equal lengths"
        )
    if not np.isfinite(estimates).all():
        raise UserError("the estimates hold samples that are not finite numbers")
    table = metrics.si_sdr_db(estimates[:, None], sources[None])
    active = ~np.isnan(table).all(axis=0)
    if active.sum() > len(estimates):
        raise UserError(f"there are {len(estimates)} estimates for {active.sum()} sources; expected at least as many")
    return table, active


def _attenuations(estimates: np.ndarray, mixture: np.ndarray, assignment: Sequence[int]) -> list[float]:
    """One number a source, NaN for those that speak and for silent ones that no hypothesis is left for."""
    left = sorted(
        (value for k, value in enumerate(metrics.attenuation_db(estimates, mixture)) if k not in assignment),
        reverse=True,
    )
    silent = iter([*map(float, left), *[float("nan")] * len(assignment)])
    return [next(silent) if k < 0 else float("nan") for k in assignment]


def _measured(name: str, matched: _Matched) -> Sequence[np.ndarray]:
    missing = [np.full(len(matched.sources), np.nan)] * len(COLUMNS[name])
    if not len(matched.sources):
        return missing
    try:
        return _MEASURES[name](matched)
    # A metric is a guest: whatever it raises concerns its own column alone.
    except Exception as error:
        matched.reasons[name] = _reason(error)
        return missing


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _of_each(name: str, score: Callable[[_Matched, int], float]) -> _Measure:
    """The measure that scores source by source, each alone."""

    def measure(matched: _Matched) -> Sequence[np.ndarray]:
        values = np.full(len(matched.sources), np.nan)
        reasons = []
        for j, source in enumerate(matched.names):
            try:
                values[j] = score(matched, j)
            except Exception as error:
                reasons.append(f"{source}: {_reason(error)}")
        if reasons:
            matched.reasons[name] = "; ".join(reasons)
        return (values,)

    return measure


def _with_improvement(metric: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> _Measure:
    def measure(matched: _Matched) -> Sequence[np.ndarray]:
        both = np.stack([matched.estimates, np.broadcast_to(matched.mixture, matched.estimates.shape)])
        scores, of_mixture = metric(both, matched.sources)
        return scores, scores - of_mixture

    return measure


def _si_sdr(matched: _Matched) -> Sequence[np.ndarray]:
    return (*_with_improvement(metrics.si_sdr_db)(matched), matched.best_si_sdr_db)


def _blr(matched: _Matched) -> Sequence[np.ndarray]:
    """(k,) log evidence a sample of each source, divided by the training deviation, given its estimate."""
    e, s = (torch.from_numpy(np.asarray(x, np.float64)) for x in (matched.estimates, matched.sources))
    deviation = matched.options.signal_std
    assert deviation is not None
    nll = pairwise_blr_nll(e[:, None] / deviation, s[:, None] / deviation)
    return (-nll[:, 0, 0].numpy() / s.shape[-1],)


def _stoi(extended: bool) -> Callable[[_Matched, int], float]:
    return lambda x, j: metrics.stoi_of_pair(_double(x.estimates[j]), _double(x.sources[j]), x.sample_rate, extended)


def _pesq(mode: str | None) -> Callable[[_Matched, int], float]:
    def score(x: _Matched, j: int) -> float:
        return metrics.pesq_of_pair(
            x.estimates[j], x.sources[j], x.sample_rate, mode or metrics.PESQ_MODES[x.sample_rate]
        )

    return score


def _double(waveform: np.ndarray) -> np.ndarray:
    return waveform.astype(np.float64)


def _word_accuracy(matched: _Matched, j: int) -> float:
    """1 - errors / words: below 0 where more is recognised than was said."""
    text, command = matched.texts[j], matched.options.asr_command
    if text is None:
        raise metrics.NoScore("the manifest has no text for this source")
    said = words(text)
    if not said or command is None:
        raise metrics.NoScore("the text in the manifest has no words")
    errors = word_errors(said, words(transcribe(command, matched.estimates[j], matched.sample_rate)))
    matched.word_counts.append([errors, len(said)])
    return 1 - errors / len(said)


_MEASURES: dict[str, _Measure] = {
    "si_sdr": _si_sdr,
    "sdr": _with_improvement(metrics.sdr_db),
    "snr": _with_improvement(metrics.snr_db),
    "bss_eval": lambda matched: metrics.bss_eval_db(matched.estimates, matched.sources)[1:],
    "stoi": _of_each("stoi", _stoi(extended=False)),
    "estoi": _of_each("estoi", _stoi(extended=True)),
    "pesq": _of_each("pesq", _pesq(None)),
    "pesq_nb": _of_each("pesq_nb", _pesq("nb")),
    "pesq_wb": _of_each("pesq_wb", _pesq("wb")),
    "blr": _blr,
    "words": _of_each("words", _word_accuracy),
}
