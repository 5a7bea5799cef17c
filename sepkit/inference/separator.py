"""A model with everything between it and a recording: rates, chunks, levels, choice of speakers, predictions."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.live.streaming import Stream
from sepkit.inference.long.recordings import ArrayRecording, LongSeparation, Recording, separate_long
from sepkit.inference.long.stitching import chunking_of
from sepkit.inference.long.upper_band import shares_upper_band
from sepkit.inference.options import Levels, SeparatorOptions, Speakers, StitcherKind
from sepkit.inference.quality.activity import ActivityThreshold, levels_db
from sepkit.inference.quality.features import excerpt_features, excerpt_spans, recording_features
from sepkit.inference.quality.predictor import QualityPredictor
from sepkit.inference.quality.single_speaker import default_encoder, voice_change
from sepkit.inference.quality.uncertainty import check_samples, monte_carlo
from sepkit.inference.runners import ModelOutput, check_finite, device_of, run_model, with_precision
from sepkit.inference.selection import (
    Products,
    Selection,
    check_speakers,
    distribute_residual,
    products_of,
    select_speakers,
)
from sepkit.inference.separated import Separated
from sepkit.inference.waveforms import AnyRecording, checked_rate, fit_length, read_waveform
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.scoring import DEFAULT_THRESHOLD, hypothesis_weights
from sepkit.models.storage.fingerprint import weights_fingerprint

__all__ = ["Separated", "Separator"]


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
        score_threshold: log-odds above which a hypothesis counts as a speaker; can be set.
        quality: predicts SI-SDR without references; None: nothing is predicted; can be set.
        activity: counts speakers by the levels of the estimates of a model without scores; can be set.

    Args:
        model: put into evaluation mode and moved to `device`.
        device: of torch, or "auto": an accelerator if there is one.
        quality: fitted for this model; it predicts nothing for other depth steps than it was fitted with.
        **changed: fields of `SeparatorOptions` with other values than in `options` (depth_steps=4).

    Raises:
        UserError: no such device, a precision that the model or the processor does not have, or depth steps for a model
            of fixed depth.
    """

    def __init__(
        self,
        model: EncoderMaskerDecoder,
        device: str | torch.device = "cpu",
        options: SeparatorOptions | None = None,
        *,
        quality: QualityPredictor | None = None,
        **changed: Any,
    ) -> None:
        self.options = options = replace(options or SeparatorOptions(), **changed)
        self.device = device_of(device)
        if options.depth_steps is not None:
            model = _at_depth(model, options.depth_steps)
        self.model = with_precision(model.to(self.device).eval(), options.precision, self.device)
        calibrated = model.info.get("score_threshold", DEFAULT_THRESHOLD)
        self.score_threshold = float(calibrated if options.score_threshold is None else options.score_threshold)
        fits = quality is not None and quality.depth_steps in (None, self.depth_steps)
        self.quality = quality if fits else None
        self.activity: ActivityThreshold | None = self.quality.activity if self.quality is not None else None
        self._chunking = chunking_of(model.sample_rate, options.chunk_seconds, options.overlap_seconds)

    @property
    def sample_rate(self) -> int:
        """Hz, of the model; recordings may have any."""
        return self.model.sample_rate

    @property
    def counts_speakers(self) -> bool:
        """Whether speakers are counted: by scores, by outputs that fall silent, or by what estimates have in common."""
        by_quality = self.quality is not None and self.quality.single_speaker is not None
        return self.model.scoring_head is not None or self.activity is not None or by_quality

    @property
    def hypotheses(self) -> int:
        """Number of the model's estimates (n)."""
        return self.model.hypotheses

    @property
    def depth_steps(self) -> int | None:
        """Steps of a model of continuous depth; None for other models."""
        return getattr(self.model, "depth_steps", None)

    def fingerprint(self) -> str:
        """Return a digest of all weights and buffers, and of the predictor, which identifies its outputs."""
        weights = weights_fingerprint(self.model)
        return weights if self.quality is None else f"{weights}-{self.quality.digest()}"

    def provenance(self) -> dict[str, Any]:
        """Return the options that estimates depend on beside the model, as plain data."""
        options = self.options
        return {
            "levels": options.levels,
            "mixture_consistency": options.mixture_consistency,
            "chunk_samples": self._chunking.chunk,
            "overlap_samples": self._chunking.overlap,
            "whole_seconds": options.whole_seconds if math.isfinite(options.whole_seconds) else None,
            "high_band": options.high_band or "share",
            "stitcher": options.stitcher,
            "precision": options.precision,
            "depth_steps": self.depth_steps,
            "activity_threshold_db": None if self.activity is None else self.activity.threshold_db,
        }

    def __call__(self, *arguments: Any, **options: Any) -> Separated:
        """Return what `separate` does with the same arguments."""
        return self.separate(*arguments, **options)

    def __repr__(self) -> str:
        return f"Separator({self.hypotheses} speakers at {self.sample_rate} Hz on {self.device})"

    def is_long(self, num_samples: int, sample_rate: int) -> bool:
        """Whether a recording of this length and rate, Hz, is separated in chunks."""
        at_model_rate = audio.resampled_length(num_samples, sample_rate, self.sample_rate)
        return num_samples > self.options.whole_seconds * sample_rate and at_model_rate > self._chunking.chunk

    def separate(
        self,
        waveform: AnyRecording,
        sample_rate: int | None = None,
        *,
        speakers: Speakers = None,
        samples: int | None = None,
        seed: int = 0,
        channel: int | None = None,
        evidence: bool = False,
    ) -> Separated:
        """Return the estimates of the sources in one recording, at its length, rate and level.

        Silence gives silence if levels are the mixture's, and has no speakers.

        A prediction for a recording of more than 30 s takes separations of excerpts; `samples` adds that many of the
        whole recording.

        Args:
            waveform: (T,) or (C, T) floating-point samples; several channels are averaged. Or an audio file: its path,
                or its bytes.
            sample_rate: Hz, of the waveform; None for a file.
            speakers: None: all hypotheses. "auto": those whose score is above `score_threshold`, only the best scored
                of duplicates (see `sepkit.models.scoring`); none in silence. N: the N best scored; duplicates only if
                there are not enough others. Without scores, `activity` tells which are speakers, and the N strongest
                are kept.
            samples: how many times to sample the latents for the spread; None: no spread. Not for recordings that are
                separated in chunks.
            channel: which channel to separate, from 0; None: the mean of all.
            evidence: whether to measure the rates of a variational model, which a prediction does too, and the bound
                on the evidence of the mixture; not the bound for recordings that are separated in chunks.

        Raises:
            UserError: an empty waveform, samples that are no finite floating-point numbers, a wrong shape or rate, a
                file that cannot be read, estimates that are not finite, fewer than two samples, a spread of a long
                recording, or a number of speakers that the model cannot keep.
        """
        check_speakers(speakers, self.model, self.counts_speakers)
        if samples is not None:
            check_samples(samples)
        recording, rate = read_waveform(waveform, sample_rate, channel)
        if self.is_long(recording.size, rate):
            long = self.separate_long(
                ArrayRecording(recording, rate), speakers=speakers, samples=samples, rates=evidence
            )
            separated = long.in_memory()
        else:
            separated = self._separate_whole(recording, rate, speakers, samples, seed, evidence)
        return separated.as_tensors() if isinstance(waveform, Tensor) else separated

    def _separate_whole(
        self, recording: np.ndarray, rate: int, speakers: Speakers, samples: int | None, seed: int, evidence: bool
    ) -> Separated:
        # A recording shorter than one sample of the model's rate is empty at that rate.
        mixture = resampled if (resampled := audio.resample(recording, rate, self.sample_rate)).size else recording[:1]
        on_device = torch.as_tensor(mixture, device=self.device)
        predict = self.quality is not None
        output = run_model(self.model, on_device.unsqueeze(0), predict, rates=predict or evidence, evidence=evidence)
        separated = self._finished(recording, rate, mixture, output, speakers)
        if samples is not None:
            spread = self._spread(on_device, samples, seed, rate, recording.size)
            separated.spread = np.abs(separated.gains)[:, None] * spread[separated.kept]
        return separated

    def _finished(
        self, recording: np.ndarray, rate: int, mixture: np.ndarray, output: ModelOutput, speakers: Speakers
    ) -> Separated:
        """Return a recording's estimates, levels and prediction, given the model's output for the mixture (T,)."""
        estimates, scores = output.estimates[0], None if output.scores is None else output.scores[0]
        products = products_of(mixture, estimates)
        features = None
        if self.quality is not None and output.separation is not None:
            on_device = torch.as_tensor(mixture, device=self.device)
            features = recording_features(self.model, on_device, output.separation)
        silent = bool(np.ptp(mixture) == 0)
        selection, separated = self._decide(products, scores, silent, speakers, features, estimates)
        separated.rates, separated.sample_rate = output.rates, rate
        separated.estimates = np.zeros((0, recording.size), np.float32)
        if count := selection.kept.size:
            leveled = audio.resample(selection.outputs(estimates), self.sample_rate, rate)
            wanted = fit_length(leveled, recording.size)
            if (sharing := shares_upper_band(self.options.high_band, rate, self.sample_rate, count)) is not None:
                wanted = np.concatenate([sharing.push(recording, wanted), sharing.finish()], axis=1)
            if self.options.mixture_consistency:
                wanted = distribute_residual(recording, wanted, selection.shares(products))
            separated.estimates = wanted
        return separated

    def _decide(
        self,
        products: Products,
        scores: np.ndarray | None,
        silent: bool,
        speakers: Speakers,
        features: dict[str, np.ndarray] | None,
        estimates: np.ndarray | None = None,
    ) -> tuple[Selection, Separated]:
        """Return which hypotheses are kept at which levels, and the result with its predictions but without estimates.

        Without scores, levels and features tell which hypotheses are speakers. Whether there is a single speaker is
        only known from estimates in memory, (n, T).
        """
        energies = np.diagonal(products.gram)
        single, loud = None, None
        if scores is None and self.counts_speakers:
            single = None if estimates is None else self._is_single_speaker(products, features, estimates)
            loud = np.ones(len(energies), bool) if self.activity is None else self.activity.is_speaker(energies)
            if single:
                loud = np.arange(len(energies)) == np.argmax(energies)
        options = self.options
        selection = select_speakers(
            products,
            scores,
            silent,
            speakers,
            self.score_threshold,
            options.levels,
            options.mixture_consistency,
            loud,
            bool(single),
        )
        if loud is not None and single is None and self.activity is None:
            selection.is_speaker = None
        kept = selection.kept
        separated = Separated(None, selection.gains[kept], scores, kept=kept, is_speaker=selection.is_speaker)
        separated.weights = self._weights(scores)
        self._predict(separated, features)
        return selection, separated

    def _is_single_speaker(
        self, products: Products, features: dict[str, np.ndarray] | None, estimates: np.ndarray
    ) -> bool | None:
        """Return whether one speaker is alone; None if that is not known."""
        if self.quality is None or self.quality.single_speaker is None:
            return None
        fitted_with = self.quality.single_speaker.encoder

        def voice() -> dict[str, float]:
            encoder = default_encoder()
            # The numbers of another encoder mean something else.
            known = weights_fingerprint(encoder) == fitted_with
            return voice_change(encoder, products, estimates, self.sample_rate) if known else {}

        return self.quality.is_single_speaker(features, levels_db(np.diagonal(products.gram)), voice)

    def _weights(self, scores: np.ndarray | None) -> np.ndarray | None:
        """Return the distribution over hypotheses that scores (n,) stand for."""
        loss = getattr(self.model, "score_loss", None)
        if scores is None or loss is None:
            return None
        return hypothesis_weights(torch.from_numpy(scores).double(), loss).numpy()

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
        check_speakers(speakers, self.model, self.counts_speakers)
        if samples is not None:
            raise UserError(
                "spread: found a recording that is separated in chunks, which has none; separate it as a whole "
                "(--whole-seconds inf; in Python whole_seconds=math.inf), which takes memory, or cut it"
            )
        options = self.options
        rates = rates or self.quality is not None
        joined = separate_long(
            self.model, self.device, recording, self._chunking, stitcher or options.stitcher, folder, progress, rates
        )
        products, scores = joined.products(), joined.scores()
        features = None
        if self.quality is not None:
            excerpts = (
                (
                    torch.as_tensor(recording.excerpt(start, stop, self.sample_rate), device=self.device),
                    torch.as_tensor(joined.read(start, stop), device=self.device)[None],
                )
                for start, stop in excerpt_spans(joined.num_samples, self.sample_rate)
            )
            features = excerpt_features(self.model, excerpts)
        # Speakers in turn look like one who is alone, excerpt by excerpt, so that long recordings are not judged.
        selection, separated = self._decide(products, scores, joined.silent, speakers, features)
        separated.rates, separated.sample_rate = joined.rates(), recording.sample_rate
        shares = selection.shares(products) if options.mixture_consistency else None
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
        rate = self.sample_rate if sample_rate is None else checked_rate(sample_rate)
        return Stream(self.model, self.device, rate, levels)

    def _predict(self, separated: Separated, features: dict[str, np.ndarray] | None) -> None:
        if self.quality is not None:
            found = self.quality.predict(features)
            speaks = np.ones(self.hypotheses, bool) if separated.is_speaker is None else separated.is_speaker
            several = bool(speaks.sum() > 1)
            if separated.scores is None and features is not None:
                # It was fitted on estimates of several speakers.
                speaks = speaks & several
                found = tuple(
                    np.where(speaks if values.ndim == 1 else speaks[:, None], values, np.nan) for values in found
                )
            separated.predicted_si_sdr_db, separated.predicted_interval_db, separated.baseline_si_sdr_db = found
            flag = self.quality.likely_not_separated(features)
            separated.likely_not_separated = flag if flag is None else bool(flag and several)

    def _spread(self, mixture: Tensor, samples: int, seed: int, rate: int, num_samples: int) -> np.ndarray:
        """Return (n, num_samples) float32, at the rate of the recording and the level of the model."""

        def at_recording(estimates: Tensor) -> Tensor:
            resampled = audio.resample(estimates[0].float().cpu().numpy(), self.sample_rate, rate)
            return torch.from_numpy(fit_length(resampled, num_samples))[None]

        through = None if rate == self.sample_rate else at_recording
        spread = monte_carlo(self.model, mixture[None], samples, seed, through).spread[0].float().cpu().numpy()
        check_finite(spread)
        return spread


def _at_depth(model: EncoderMaskerDecoder, steps: int) -> EncoderMaskerDecoder:
    """Return the model with this number of steps: another object with the same weights.

    Raises:
        UserError: a model of fixed depth.
    """
    if not isinstance(model, EncoderMaskerDecoder):
        raise UserError(f"depth_steps: found {steps}, but the depth of an exported model is fixed; leave it out")
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, tensors)
    other.set_depth_steps(steps)
    return other
