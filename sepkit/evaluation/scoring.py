"""Score one utterance: match hypotheses to sources one to one, then compute every metric for every source."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from sepkit.choices import did_you_mean
from sepkit.errors import UserError
from sepkit.evaluation import metrics
from sepkit.evaluation.labels import FROM_LATENTS, PREDICTED, WEIGHTED
from sepkit.evaluation.transcripts import transcribe, word_errors, words
from sepkit.extras import is_installed, missing
from sepkit.matching import linear_sum_assignment
from sepkit.objectives.formulas import SAME_SI_SDR_DB, blr_nll

SILENT, MISSED = -1, -2
"""In the place of a source's hypothesis: it is silent; or it speaks, and no hypothesis was left for it."""

COLUMNS = {
    "si_sdr": ("si_sdr_db", "si_sdri_db", "mcl_si_sdr_db"),
    "sdr": ("sdr_db", "sdri_db"),
    "snr": ("snr_db", "snri_db"),
    "bss_eval": ("sir_db", "sar_db"),
    "stoi": ("stoi",),
    "estoi": ("estoi",),
    "pesq": ("pesq",),
    "blr": ("blr_nats_per_sample",),
    "emd": ("emd_si_sdr_db",),
    "words": ("word_accuracy",),
}
"""Metric that can be asked for -> the columns that it fills."""

PACKAGES = {
    **dict.fromkeys(("sdr", "bss_eval"), "fast_bss_eval"),
    **dict.fromkeys(("stoi", "estoi"), "pystoi"),
    "pesq": "pesq",
    "emd": "scipy",
}
"""Metric -> the package that computes it."""

PER_UTTERANCE = ("attenuation_db", "speaker_count_accuracy", *WEIGHTED, *FROM_LATENTS, PREDICTED)
"""Columns that are there without being asked for: where a source is silent, and where the model says how many speak,
scores its hypotheses, has rates, or predicts how good its estimates are."""


@dataclass(frozen=True)
class ScoringOptions:
    """Metrics and their settings.

    Args:
        metrics: keys of `COLUMNS`.
        signal_std: deviation that references are divided by for "blr".
        asr_command: prints the transcript of `{wav}`, for "words".
        count_speakers: only hypotheses that the model says are speakers are matched, and sources may be missed.
    """

    metrics: tuple[str, ...]
    signal_std: float | None = None
    asr_command: str | None = None
    count_speakers: bool = False


@dataclass(frozen=True)
class Hypotheses:
    """The estimates of one mixture, with the model's scores and predictions.

    Args:
        estimates: Estimates, (n, T).
        is_speaker: Hypotheses that the model counts as speakers, (n,) bool; None: the model does not count.
        weights: Distribution over the hypotheses, (n,), for `WEIGHTED`; None if the model has no scores.
        predictions: Values of the model for `PREDICTED` and `BOUNDS`, (n,) each; NaN where it predicts nothing.
        rates: Values of the mixture as a whole, by the names in `FROM_LATENTS`.
    """

    estimates: np.ndarray
    is_speaker: np.ndarray | None = None
    weights: np.ndarray | None = None
    predictions: Mapping[str, np.ndarray] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass
class UtteranceScores:
    """The scores of an utterance.

    Args:
        assignment: the hypothesis of each source; `SILENT` or `MISSED` if it has none.
        values: column -> one number per source, NaN for a silent one; for `attenuation_db` NaN for a speaking one.
        reasons: metric -> why it has no score for some source that speaks.
        speaker_count: the model's number of speakers, if it has one.
        word_counts: (errors, words) of each source that was transcribed.
        winners: the hypothesis that is best for each source (MCL), `SILENT` for a silent one.
        mixture_is_source: a single source speaks, so no improvement can be measured.
        rates: values of the mixture as a whole, by the names in `FROM_LATENTS`.
    """

    assignment: list[int]
    values: dict[str, list[float]]
    reasons: dict[str, str] = field(default_factory=dict)
    speaker_count: int | None = None
    word_counts: list[list[int]] = field(default_factory=list)
    winners: list[int] = field(default_factory=list)
    mixture_is_source: bool = False
    rates: dict[str, float] = field(default_factory=dict)

    @property
    def silent_sources(self) -> int:
        """Number of silent sources, for which only attenuation is measured."""
        return self.assignment.count(SILENT)

    @property
    def missed_sources(self) -> int:
        """Number of sources that speak but have no hypothesis."""
        return self.assignment.count(MISSED)

    @property
    def active_sources(self) -> int:
        """Number of sources that speak."""
        return len(self.assignment) - self.silent_sources

    def mean(self, column: str) -> float:
        """Return the mean of a column over sources that have a score, or the utterance's own value; NaN: none.

        `speaker_count_accuracy` is 0 without a number of speakers.
        """
        if column == "speaker_count_accuracy":
            return float(self.speaker_count == self.active_sources)
        if column in FROM_LATENTS:
            return self.rates.get(column, float("nan"))
        values = np.array(self.values.get(column, []))
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else float("nan")


def check_metrics(options: ScoringOptions, sample_rates: Sequence[int]) -> None:
    """Raise UserError unless all metrics can be computed for utterances of some rates.

    Errors are an unknown metric, a missing package or option, or a rate that PESQ does not support.

    Args:
        options: Metrics and their settings.
        sample_rates: Hz.
    """
    unknown = [name for name in options.metrics if name not in COLUMNS]
    if unknown or not options.metrics:
        raise UserError(
            f"metrics: found {', '.join(unknown) or 'nothing'}{did_you_mean(''.join(unknown[:1]), COLUMNS)}, "
            f"expected one or more of {', '.join(COLUMNS)}"
        )
    for name in options.metrics:
        if name in PACKAGES and not is_installed(PACKAGES[name]):
            raise UserError(f"metrics: {missing(PACKAGES[name], name)}; or leave it out")
    if "blr" in options.metrics and not (options.signal_std and 0 < options.signal_std < float("inf")):
        raise UserError(f"metrics: blr needs a deviation above 0, found {options.signal_std}; give --signal-std")
    if "words" in options.metrics and not options.asr_command:
        raise UserError("metrics: words needs a command that transcribes; give --asr-command 'CMD {wav}'")
    for rate in sample_rates if "pesq" in options.metrics else ():
        if rate not in metrics.PESQ_MODES:
            rates = " and ".join(map(str, metrics.PESQ_MODES))
            raise UserError(f"metrics: pesq is defined at {rates} Hz, the manifest has {rate} Hz; leave it out")


def score_utterance(
    hypotheses: Hypotheses,
    sources: np.ndarray,
    mixture: np.ndarray,
    sample_rate: int,
    options: ScoringOptions,
    texts: Sequence[str | None] | None = None,
) -> UtteranceScores:
    """Return the scores of an utterance.

    Hypotheses and sources are matched one to one by the largest mean SI-SDR, whatever the metric. Of the remaining
    hypotheses the quietest go to silent sources, and the rest stay free. `mcl_si_sdr_db` is the exception: it takes
    each source's best hypothesis, which several may share. A metric that fails leaves NaN and its reason; the others
    continue.

    With `options.count_speakers` only hypotheses that are speakers take part. Pairs are made by the largest sum of
    SI-SDR until hypotheses or sources run out. A source left over is missed: it only has `mcl_si_sdr_db`, which remains
    over all hypotheses.

    If a source speaks alone and is the mixture (its SI-SDR to the mixture is above 50 dB), improvements over the
    mixture are NaN, because nothing can be improved.

    Args:
        hypotheses: Estimates, with the model's scores and predictions.
        sources: References, (m, T).
        mixture: Mixture, (T,), the reference of improvements.
        sample_rate: Sample rate, Hz.
        options: Options of the evaluation.
        texts: Transcript of each source, None where it is unknown.

    Raises:
        UserError: Estimates that do not fit the sources, are not finite, or are fewer than the sources that speak,
            or a number of speakers that the model does not state.
    """
    estimates, weights = hypotheses.estimates, hypotheses.weights
    table = _si_sdr_table(estimates, sources)
    active = np.asarray(~np.isnan(table).all(axis=0))
    assignment = _match(table, active, _taking_part(hypotheses.is_speaker, options))
    places = [j for j, k in enumerate(assignment) if k >= 0]
    chosen = [assignment[j] for j in places]
    speaking = np.flatnonzero(active)
    alone = len(speaking) == 1 and bool(metrics.si_sdr_db(mixture, sources[speaking[0]]) > SAME_SI_SDR_DB)
    matched = _Matched(
        estimates[chosen],
        sources[places],
        mixture,
        sample_rate,
        options,
        [texts[j] if texts else None for j in places],
        [f"s{j + 1}" for j in places],
        alone,
    )
    count = len(sources)
    values: dict[str, list[float]] = {}
    if weights is not None and len(weights) != len(estimates):
        weights = None
    for name in options.metrics:
        if name == "emd" and weights is not None and len(speaking):
            values["emd_si_sdr_db"] = _of_all(count, speaking, _transported(table[:, speaking], weights))
            continue
        # mcl_si_sdr_db does not measure the matched pairs.
        for column, scores in zip(COLUMNS[name], _measured(name, matched), strict=False):
            values[column] = _of_all(count, places, scores)
        if name == "si_sdr":
            values["mcl_si_sdr_db"] = _of_all(count, speaking, table[:, speaking].max(axis=0, initial=-np.inf))
    if not active.all():
        values["attenuation_db"] = _attenuations(estimates, mixture, assignment)
    for column, predicted in hypotheses.predictions.items():
        values[column] = _of_all(count, places, predicted[chosen])
    if weights is not None:
        mean = metrics.si_sdr_db((weights @ estimates)[None], sources[speaking])
        for column, scores in zip(WEIGHTED, (mean, weights @ table[:, speaking]), strict=True):
            values[column] = _of_all(count, speaking, scores)
    return UtteranceScores(
        assignment,
        values,
        matched.reasons,
        None if hypotheses.is_speaker is None else int(np.sum(hypotheses.is_speaker)),
        matched.word_counts,
        [int(table[:, j].argmax()) if active[j] else SILENT for j in range(count)],
        alone,
        dict(hypotheses.rates),
    )


def _taking_part(is_speaker: np.ndarray | None, options: ScoringOptions) -> np.ndarray | None:
    """Return the hypotheses that may be matched; None: all, and every source must be matched."""
    if not options.count_speakers:
        return None
    if is_speaker is None:
        raise UserError("--count-speakers: found a model without scores of its hypotheses; leave the option out")
    return np.flatnonzero(is_speaker)


def _match(table: np.ndarray, active: np.ndarray, kept: np.ndarray | None) -> list[int]:
    """Match one to one by the largest sum of SI-SDR; return the hypothesis of each source."""
    if kept is None:
        if active.sum() > len(table):
            raise UserError(f"found {len(table)} estimates for {active.sum()} sources; expected at least as many")
        kept = np.arange(len(table))
    assignment = np.where(active, MISSED, SILENT)
    speaking = np.flatnonzero(active)
    sources, hypotheses = linear_sum_assignment(table[np.ix_(kept, speaking)].T, maximize=True)
    assignment[speaking[sources]] = kept[hypotheses]
    return assignment.tolist()


def _of_all(count: int, places: Sequence[int] | np.ndarray, scores: Sequence[float] | np.ndarray) -> list[float]:
    """Return one number per source: the scores at their places, NaN elsewhere."""
    of_all = np.full(count, np.nan)
    of_all[places] = scores
    return of_all.tolist()


@dataclass
class _Matched:
    """The k sources that have an estimate, and these estimates in the same order."""

    estimates: np.ndarray
    sources: np.ndarray
    mixture: np.ndarray
    sample_rate: int
    options: ScoringOptions
    texts: list[str | None]
    names: list[str]
    alone: bool
    reasons: dict[str, str] = field(default_factory=dict)
    word_counts: list[list[int]] = field(default_factory=list)


_Measure = Callable[[_Matched], Sequence[np.ndarray]]


def _si_sdr_table(estimates: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Return (n, m) SI-SDR of every pair; NaN for sources that are silent."""
    if estimates.shape[-1] != sources.shape[-1]:
        raise UserError(
            f"the estimates hold {estimates.shape[-1]} samples, the references {sources.shape[-1]}; "
            "expected equal lengths"
        )
    if not np.isfinite(estimates).all():
        raise UserError("the estimates hold samples that are not finite numbers")
    return metrics.si_sdr_db(estimates[:, None], sources[None])


def _transported(table: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the SI-SDR (m,) of sources to which the masses (n,) of hypotheses are moved, for the highest mean.

    Each source takes 1 / m. The mean over sources is the negative earth mover's distance whose costs are -SI-SDR.
    """
    from scipy.optimize import linprog

    n, m = table.shape
    # The masses of both sides must be equal to more digits than float32 has.
    weights = weights / weights.sum(dtype=np.float64)
    sums = np.concatenate([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    plan = linprog(-table.ravel(), A_eq=sums, b_eq=[*weights, *[1 / m] * m]).x.reshape(n, m)
    return m * (plan * table).sum(0)


def _attenuations(estimates: np.ndarray, mixture: np.ndarray, assignment: Sequence[int]) -> list[float]:
    """Return one number per source, NaN for speaking ones and for silent ones without a hypothesis."""
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
    # Third-party metrics may raise anything; a failure empties only that metric's column.
    except Exception as error:
        matched.reasons[name] = _reason(error)
        return missing


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _of_each(name: str, score: Callable[[_Matched, int], float]) -> _Measure:
    """Make a measure that scores each source alone."""

    def measure(matched: _Matched) -> Sequence[np.ndarray]:
        values, reasons = np.full(len(matched.sources), np.nan), []
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
        return scores, np.full_like(scores, np.nan) if matched.alone else scores - of_mixture

    return measure


def _no_scores(_: _Matched) -> Sequence[np.ndarray]:
    raise metrics.NoScore("the model has no scores of its hypotheses")


def _blr(matched: _Matched) -> Sequence[np.ndarray]:
    """Return (k,) log evidence per sample of each source, divided by the training deviation, given its estimate."""
    deviation = matched.options.signal_std
    assert deviation is not None
    e, s = (np.asarray(x, np.float64) / deviation for x in (matched.estimates, matched.sources))
    nll = blr_nll((e * s).sum(-1), (e * e).sum(-1), (s * s).sum(-1), s.shape[-1], np.log, math.lgamma)
    return (-nll / s.shape[-1],)


def _stoi(x: _Matched, j: int, extended: bool = False) -> float:
    estimate, source = (waveform.astype(np.float64) for waveform in (x.estimates[j], x.sources[j]))
    return metrics.stoi_of_pair(estimate, source, x.sample_rate, extended)


def _pesq(x: _Matched, j: int) -> float:
    return metrics.pesq_of_pair(x.estimates[j], x.sources[j], x.sample_rate)


def _word_accuracy(matched: _Matched, j: int) -> float:
    """Return 1 - errors / words, which is below 0 if more errors are made than words were said."""
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
    "si_sdr": _with_improvement(metrics.si_sdr_db),
    "sdr": _with_improvement(metrics.sdr_db),
    "snr": _with_improvement(metrics.snr_db),
    "bss_eval": lambda matched: metrics.bss_eval_db(matched.estimates, matched.sources)[1:],
    "stoi": _of_each("stoi", _stoi),
    "estoi": _of_each("estoi", partial(_stoi, extended=True)),
    "pesq": _of_each("pesq", _pesq),
    "blr": _blr,
    "emd": _no_scores,
    "words": _of_each("words", _word_accuracy),
}
