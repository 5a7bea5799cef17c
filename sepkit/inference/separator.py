"""A model with everything between it and a recording: rates, chunks, levels, choice of speakers, predictions."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError, shown
from sepkit.inference.decision import Evidence, Rules, decide
from sepkit.inference.live.streaming import Stream
from sepkit.inference.long.recordings import ArrayRecording, LongSeparation, Recording, separate_long, without_offset
from sepkit.inference.long.stitching import chunking_of
from sepkit.inference.long.upper_band import shares_upper_band
from sepkit.inference.options import (
    CHUNK_SECONDS,
    OVERLAP_SECONDS,
    WHOLE_SECONDS,
    Levels,
    SeparatorOptions,
    Speakers,
    StitcherKind,
    check_samples,
)
from sepkit.inference.quality.features import excerpt_features, excerpt_spans, recording_features
from sepkit.inference.quality.predictor import QualityPredictor, generic_predictor
from sepkit.inference.quality.voices import evidence_spans
from sepkit.inference.runners.base import Runner
from sepkit.inference.runners.level import standardize
from sepkit.inference.runners.views import ViewsRunner
from sepkit.inference.selection import Selection, check_speakers, distribute_residual, products_of
from sepkit.inference.separated import Separated
from sepkit.inference.waveforms import checked_rate, fit_length, is_tensor, read_waveform
from sepkit.models.hypotheses import DEFAULT_THRESHOLD
from sepkit.models.needs import needs_of

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Unpack

    from sepkit.inference.waveforms import AnyRecording, Named
    from sepkit.models import EncoderMaskerDecoder

__all__ = ["Separated", "Separator"]


class SeparateOptions(TypedDict, total=False):
    """Keywords of `Separator.separate`, which describes them."""

    speakers: Speakers
    samples: int | None
    seed: int
    channel: int | None
    evidence: bool


class Separator:
    """Separates recordings of any rate and number of channels with one model.

    >>> import numpy as np, sepkit
    >>> separator = sepkit.load_model()
    >>> separator
    Separator(2 speakers at 8000 Hz on cpu)
    >>> mixture = 0.1 * np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    >>> separated = separator.separate(mixture, sample_rate=16000)
    >>> separated.estimates.shape, separated.sample_rate
    ((2, 16000), 16000)

    Attributes:
        runner: what runs the model.
        levels, mixture_consistency, whole_seconds: those of the options, or else what the model needs.
        score_threshold: log-odds above which a hypothesis counts as a speaker; can be set.
        quality: predicts SI-SDR without references; None: nothing is predicted; can be set. A model without a
            predictor of its own is judged by the agreement of views, if it has two or more.
        joins_single_speaker: whether all hypotheses make the output of one speaker who is alone; can be set.

    Args:
        model: in torch, which is put into evaluation mode and moved to `device`; or what runs one.
        device: of torch, or "auto": an accelerator if there is one; a runner has its own.
        quality: fitted for this model; it predicts nothing for other depth steps than it was fitted with.
        **changed: fields of `SeparatorOptions` with other values than in `options` (depth_steps=4).

    Raises:
        UserError: no such device, a precision that the model or the processor does not have, or depth steps for a model
            of fixed depth.
    """

    def __init__(
        self,
        model: EncoderMaskerDecoder | Runner,
        device: Any = "cpu",
        options: SeparatorOptions | None = None,
        *,
        quality: QualityPredictor | None = None,
        **changed: Any,
    ) -> None:
        self.options = options = replace(options or SeparatorOptions(), **changed)
        own_views = 1 if quality is None else quality.views
        views = options.views or own_views
        self.runner = _in_views(_runner_of(model, device, options), views)
        calibrated = self.runner.info.get("score_threshold", DEFAULT_THRESHOLD)
        if type(calibrated) not in (int, float):
            raise UserError(f"model: info.score_threshold is {shown(calibrated)}, expected a number; get it again")
        self.score_threshold = float(calibrated if options.score_threshold is None else options.score_threshold)
        fits = quality is not None and quality.depth_steps in (None, self.depth_steps)
        self.quality = quality if fits else None
        if self.quality is None and views > 1 and self.hypotheses > 1:
            self.quality = generic_predictor(self.hypotheses)
        self.joins_single_speaker = True
        needs = needs_of(self.runner.info, "model")
        self.levels: Levels = options.levels or needs.get("levels", "mixture")
        self.mixture_consistency = options.mixture_consistency or needs.get("mixture_consistency", False)
        self.whole_seconds = _first(options.whole_seconds, needs.get("whole_seconds"), WHOLE_SECONDS)
        chunk = _first(options.chunk_seconds, needs.get("chunk_seconds"), CHUNK_SECONDS)
        overlap = _first(options.overlap_seconds, needs.get("overlap_seconds"), OVERLAP_SECONDS)
        self._chunking = chunking_of(self.sample_rate, chunk, min(overlap, chunk / 2))

    @property
    def sample_rate(self) -> int:
        """Hz, of the model; recordings may have any."""
        return self.runner.sample_rate

    @property
    def device(self) -> str:
        """Where the model computes: cpu, cuda:0 ..."""
        return self.runner.device

    @property
    def model(self) -> EncoderMaskerDecoder:
        """The model in torch.

        Raises:
            UserError: a graph runs in its place.
        """
        if self.runner.model is None:
            raise UserError('model: a graph runs here, which has no model in torch; load it with runner="torch"')
        return self.runner.model

    @property
    def counts_speakers(self) -> bool:
        """Whether speakers are counted: by scores, by outputs that fall silent, or by what estimates have in common."""
        by_quality = self.quality is not None and self.quality.single_speaker is not None
        return self.runner.scored or by_quality

    @property
    def default_speakers(self) -> Speakers:
        """What `speakers` should be where the user says nothing: "auto" for a model that counts."""
        return "auto" if self.runner.counts_speakers else None

    @property
    def hypotheses(self) -> int:
        """Number of the model's estimates (n)."""
        return self.runner.hypotheses

    @property
    def depth_steps(self) -> int | None:
        """Steps of a model of continuous depth; None for other models."""
        return self.runner.depth

    def fingerprint(self) -> str:
        """Return a digest of all weights and buffers, and of the predictor, which identifies its outputs."""
        weights = self.runner.fingerprint()
        return weights if self.quality is None else f"{weights}-{self.quality.digest()}"

    def provenance(self) -> dict[str, Any]:
        """Return the options that estimates depend on beside the model, as plain data."""
        options = self.options
        return {
            "levels": self.levels,
            "mixture_consistency": self.mixture_consistency,
            "chunk_samples": self._chunking.chunk,
            "overlap_samples": self._chunking.overlap,
            "whole_seconds": self.whole_seconds if math.isfinite(self.whole_seconds) else None,
            "high_band": options.high_band or "share",
            "stitcher": options.stitcher,
            "precision": options.precision,
            "depth_steps": self.depth_steps,
            "runner": self.runner.kind,
            "views": self.runner.views,
        }

    def __repr__(self) -> str:
        return f"Separator({self.hypotheses} speakers at {self.sample_rate} Hz on {self.device})"

    def is_long(self, num_samples: int, sample_rate: int) -> bool:
        """Whether a recording of this length and rate, Hz, is separated in chunks."""
        at_model_rate = audio.resampled_length(num_samples, sample_rate, self.sample_rate)
        return num_samples > self.whole_seconds * sample_rate and at_model_rate > self._chunking.chunk

    @overload
    def separate(
        self, waveform: np.ndarray | Named, sample_rate: int | None = None, **options: Unpack[SeparateOptions]
    ) -> Separated[np.ndarray]: ...
    @overload
    def separate(
        self, waveform: Tensor, sample_rate: int | None = None, **options: Unpack[SeparateOptions]
    ) -> Separated[Tensor]: ...
    def separate(
        self,
        waveform: Any,
        sample_rate: int | None = None,
        *,
        speakers: Speakers = None,
        samples: int | None = None,
        seed: int = 0,
        channel: int | None = None,
        evidence: bool = False,
    ) -> Separated[Any]:
        """Return the estimates of the sources in one recording, at its length, rate and level.

        Silence gives silence if levels are the mixture's, and has no speakers.

        A prediction for a recording of more than 30 s takes separations of excerpts; `samples` adds that many of the
        whole recording.

        Args:
            waveform: (T,) or (C, T) floating-point samples; several channels are averaged. Or an audio file: its path,
                its bytes, or the file opened for reading.
            sample_rate: Hz, of the waveform; None for a file.
            speakers: None: all hypotheses. "auto": those whose score is above `score_threshold`, only the best scored
                of duplicates (see `sepkit.models.parts`); none in silence. N: the N best scored; duplicates only if
                there are not enough others. A model that counts is told N. Without scores, the N
                strongest are kept.
            samples: how many times to sample the latents for the spread; None: no spread. Not for recordings that are
                separated in chunks.
            channel: which channel to separate, from 0; None: the mean of all, or the loudest if they cancel in it,
                which a warning says.
            evidence: whether to measure the rates of a variational model, which a prediction does too, and the bound
                on the evidence of the mixture; not the bound for recordings that are separated in chunks.

        Raises:
            UserError: an empty waveform, samples that are no finite floating-point numbers, a wrong shape or rate, a
                file that cannot be read, estimates that are not finite, fewer than two samples, a spread of a long
                recording or of a model without latents to sample, or a number of speakers that the model cannot keep.
        """
        check_speakers(speakers, self.hypotheses, self.counts_speakers)
        if samples is not None:
            check_samples(samples)
        told = self._with_speakers(speakers)
        recording, rate = read_waveform(waveform, sample_rate, channel)
        if self.is_long(recording.size, rate):
            long = told.separate_long(
                ArrayRecording(recording, rate), speakers=speakers, samples=samples, rates=evidence
            )
            separated = long.in_memory()
        else:
            separated = told._separate_whole(recording, rate, speakers, samples, seed, evidence)
        return separated.as_tensors() if is_tensor(waveform) else separated

    __call__ = separate

    @overload
    def separate_many(
        self,
        waveforms: Iterable[np.ndarray | Named],
        sample_rate: int | None = None,
        **options: Unpack[SeparateOptions],
    ) -> list[Separated[np.ndarray]]: ...
    @overload
    def separate_many(
        self, waveforms: Iterable[Tensor], sample_rate: int | None = None, **options: Unpack[SeparateOptions]
    ) -> list[Separated[Tensor]]: ...
    def separate_many(
        self, waveforms: Iterable[AnyRecording], sample_rate: int | None = None, **options: Unpack[SeparateOptions]
    ) -> list[Separated[Any]]:
        """Return what `separate` makes of each of several recordings, which need not be of one length.

        Args:
            waveforms: of each recording; an array (B, T) or (B, C, T) is one of B recordings.
            sample_rate: Hz, of all; None for files.
            **options: those of `separate`.

        Raises:
            UserError: a recording that `separate` refuses; the line begins with its number, from 0.
        """
        results = []
        for number, waveform in enumerate(waveforms):
            try:
                results.append(self.separate(waveform, sample_rate, **options))
            except UserError as error:
                raise UserError(f"recording {number}: {error}") from error
        return results

    def check_spread(self) -> None:
        """Raise UserError unless estimates have a spread that is not zero."""
        if not self.runner.variational:
            raise UserError("spread: the model is deterministic, its estimates have none; use a variational one")

    def _with_speakers(self, speakers: Speakers) -> Separator:
        """Return what separates for these speakers: another, if the model counts and their number is given."""
        runner = self.runner.with_speakers(speakers) if isinstance(speakers, int) else self.runner
        if runner is self.runner or not isinstance(speakers, int):
            return self
        told = copy.copy(self)
        told.runner = runner
        # What predicts is fitted for all hypotheses, but for the agreement of views.
        by_views = self.quality is not None and self.quality.of_any_model and speakers > 1
        told.quality = generic_predictor(speakers) if by_views else None
        return told

    def _rules(self) -> Rules:
        return Rules(
            self.quality,
            self.score_threshold,
            self.runner.score_loss,
            self.levels,
            self.mixture_consistency,
            self.joins_single_speaker,
        )

    def _separate_whole(
        self, recording: np.ndarray, rate: int, speakers: Speakers, samples: int | None, seed: int, evidence: bool
    ) -> Separated:
        (centered,) = without_offset([recording])
        # A recording shorter than one sample of the model's rate is empty at that rate.
        resampled = audio.resample(centered, rate, self.sample_rate)
        mixture, level = self._standardize(resampled if resampled.size else centered[:1])
        predict = self.quality is not None
        output = self.runner.run(mixture[None], features=predict, rates=predict or evidence, evidence=evidence)
        features = recording_features(self.runner, mixture, output) if predict else None
        estimates = output.estimates[0]
        scores = None if output.scores is None else output.scores[0]
        products, silent = products_of(mixture, estimates), bool(np.ptp(recording) == 0)
        known = Evidence(products, scores, features, silent, self.sample_rate, estimates, level)
        selection, separated = decide(known, self._rules(), speakers)
        separated.rates, separated.sample_rate = output.rates, rate
        shares = selection.shares(products) if self.mixture_consistency else None
        outputs = self._rendered(centered, rate, estimates, selection)
        separated.estimates = outputs if shares is None else distribute_residual(recording, outputs, shares)
        if samples is not None:
            spread = self.runner.spread(mixture, samples, seed, rate, recording.size)
            separated.spread = np.abs(selection.gains)[selection.kept, None] * spread[selection.kept]
        return separated

    def _standardize(self, mixture: np.ndarray) -> tuple[np.ndarray, float]:
        """Return a mixture (T,) with zero mean at the level of the model, and the factor back."""
        standardized, factors = standardize(mixture[None], self.runner.level.deviation)
        return standardized[0], float(factors[0, 0])

    def _rendered(self, recording: np.ndarray, rate: int, estimates: np.ndarray, selection: Selection) -> np.ndarray:
        """Return what was kept of estimates (n, T), at the rate, length and level of the recording, (k, T)."""
        if not (count := selection.kept.size):
            return np.zeros((0, recording.size), np.float32)
        leveled = audio.resample(selection.outputs(estimates), self.sample_rate, rate)
        wanted = fit_length(leveled, recording.size)
        if (sharing := shares_upper_band(self.options.high_band, rate, self.sample_rate, count)) is not None:
            wanted = np.concatenate([sharing.push(recording, wanted), sharing.finish()], axis=1)
        return wanted

    def separate_long(
        self,
        recording: Recording,
        *,
        speakers: Speakers = None,
        samples: int | None = None,
        folder: Path | None = None,
        progress: bool = False,
        rates: bool = False,
        stitcher: StitcherKind | None = None,
    ) -> LongSeparation:
        """Separate a recording of any length in bounded memory; return estimates that can be read block by block.

        Args:
            recording: for which `is_long` is true; others lose some quality in chunks.
            samples: other than None is refused: there is no spread in chunks.
            folder: for a temporary file of 8 bytes for each sample and estimate at the model's rate; None: that of the
                system.
            rates: whether to measure the rates of a variational model, which a prediction does too.
            stitcher: how chunks are joined; None: as the options say.

        Raises:
            UserError: a recording that cannot be read, estimates that are not finite, a spread, or a number of speakers
                that the model cannot keep.
        """
        check_speakers(speakers, self.hypotheses, self.counts_speakers)
        if samples is not None:
            raise UserError(
                "spread: found a recording that is separated in chunks, which has none; separate it as a whole "
                "(--whole-seconds inf; in Python whole_seconds=math.inf), which takes memory, or cut it"
            )
        options, told = self.options, self._with_speakers(speakers)
        rates = rates or told.quality is not None
        joined = separate_long(
            told.runner, recording, self._chunking, stitcher or options.stitcher, folder, progress, rates
        )
        features = None
        if told.quality is not None:
            spans = excerpt_spans(joined.num_samples, self.sample_rate)
            mixtures = (self._standardize(recording.excerpt(*span, self.sample_rate))[0] for span in spans)
            excerpts = ((mixture, joined.read(*span)) for mixture, span in zip(mixtures, spans, strict=True))
            features = excerpt_features(told.runner, excerpts)
        products = joined.products()
        heard = np.concatenate([joined.read(*s) for s in evidence_spans(joined.num_samples, self.sample_rate)], axis=1)
        if deviation := joined.deviation():
            heard = (told.runner.level.deviation / deviation * heard).astype(np.float32)
        known = Evidence(products, joined.scores(), features, joined.silent, self.sample_rate, heard)
        selection, separated = decide(known, told._rules(), speakers)
        separated.rates, separated.sample_rate = joined.rates(), recording.sample_rate
        shares = selection.shares(products) if self.mixture_consistency else None
        return LongSeparation(
            separated, joined, recording, self.sample_rate, selection, shares, options.high_band or "share"
        )

    def streaming(self, sample_rate: int | None = None, levels: Levels = "model") -> Stream:
        """Return a stream for one recording that is still coming in; the model has to be causal.

            with separator.streaming() as stream:
                for block in blocks:
                    play(stream.push(block))
                play(stream.finish())

        Several may be open side by side.

        Args:
            sample_rate: Hz, of the recording; None: that of the model, which has the least latency.
            levels: "model": estimates at the model's level, the same as for the whole recording at once. "mixture":
                each at the gain that has explained the mixture best so far, because later samples are unknown.

        Raises:
            UserError: a model that hears the whole recording first, or a wrong rate.
        """
        if self.options.views not in (None, 1):
            raise UserError(f"views: found {self.options.views}, but live sound has one view; leave it out")
        rate = self.sample_rate if sample_rate is None else checked_rate(sample_rate)
        return Stream(self.runner, rate, levels)


def _first(*values: float | None) -> float:
    """Return the first value that there is."""
    return next(value for value in values if value is not None)


def _in_views(runner: Runner, views: int) -> Runner:
    return runner if views == 1 else ViewsRunner(runner, views)


def _runner_of(model: Any, device: Any, options: SeparatorOptions) -> Runner:
    if not isinstance(model, Runner):
        from sepkit.inference.runners.torch_runner import TorchRunner

        model = TorchRunner(model, device, options.precision)
    return model if options.depth_steps is None else model.with_depth(options.depth_steps)
