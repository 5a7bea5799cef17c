"""A model with everything between it and a recording: rates, chunks, levels, choice of speakers, predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError, shown
from sepkit.inference.decision import decide
from sepkit.inference.evidence import measure_chunks, measure_whole
from sepkit.inference.live.streaming import Stream
from sepkit.inference.long.chunked import ChunkedEstimates
from sepkit.inference.long.recordings import ArrayRecording, Recording, Rendered
from sepkit.inference.long.stitching import chunking_of
from sepkit.inference.options import CHUNK_SECONDS, OVERLAP_SECONDS, WHOLE_SECONDS, Levels, SeparatorOptions, Speakers
from sepkit.inference.quality.predictor import QualityPredictor, generic_predictor
from sepkit.inference.quality.voices import prediction_encoder
from sepkit.inference.runners.base import Runner
from sepkit.inference.runners.views import ViewsRunner
from sepkit.inference.selection import check_speakers
from sepkit.inference.separated import Separated, with_tensors
from sepkit.inference.waveforms import checked_rate, is_tensor, read_waveform
from sepkit.models.hypotheses import DEFAULT_THRESHOLD, hypothesis_weights
from sepkit.models.needs import needs_of

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Unpack

    from sepkit.inference.waveforms import AnyRecording, Named
    from sepkit.models import EncoderMaskerDecoder

__all__ = ["Separated", "Separator"]

# Where neither the user nor the model says otherwise.
_DEFAULTS = {
    "levels": "mixture",
    "mixture_consistency": False,
    "whole_seconds": WHOLE_SECONDS,
    "chunk_seconds": CHUNK_SECONDS,
    "overlap_seconds": OVERLAP_SECONDS,
}


class SeparateOptions(TypedDict, total=False):
    """Keywords of `Separator.separate`, which describes them."""

    speakers: Speakers
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
        runner: Runner of the model.
        sample_rate: Sampling rate of the model, Hz; recordings may have any rate.
        device: Device of the model: cpu, cuda:0 ...
        hypotheses: Number of estimates, n.
        depth_steps: Steps of a model of continuous depth; None: fixed depth.
        levels, mixture_consistency, whole_seconds: Values of the options, or else those that the model declares.
        score_threshold: Log-odds above which a hypothesis counts as a speaker; can be set.
        quality: Predictor of SI-SDR; None: no prediction; can be set. Without a predictor of its own, a model is judged
            by the agreement of views, if it has two or more.
        sum_if_single: Whether a single speaker is the sum of all hypotheses; can be set.

    Args:
        model: The torch model, or a runner that wraps one. A torch model is set to evaluation mode and moved to
            `device`.
        device: Device of torch, or "auto": an accelerator if there is one; ignored for a runner.
        options: Options of the separator; None: the defaults.
        quality: Predictor fitted for this model; it predicts nothing for depth steps that it was not fitted with.
        **changed: Fields of `SeparatorOptions` that differ from `options` (depth_steps=4).

    Raises:
        UserError: no such device, a precision that the model or the CPU does not support, or depth steps for a model of
            fixed depth.
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
        if not isinstance(model, Runner):
            from sepkit.inference.runners.torch_runner import TorchRunner

            model = TorchRunner(model, device, options.precision)
        runner = model if options.depth_steps is None else model.with_depth(options.depth_steps)
        views = options.views or (1 if quality is None else quality.views)
        self.runner = runner = runner if views == 1 else ViewsRunner(runner, views)
        self.sample_rate, self.hypotheses = runner.sample_rate, runner.hypotheses
        self.device, self.depth_steps = runner.device, runner.depth
        calibrated = self.runner.info.get("score_threshold", DEFAULT_THRESHOLD)
        if type(calibrated) not in (int, float):
            raise UserError(f"model: info.score_threshold is {shown(calibrated)}, expected a number; get it again")
        self.score_threshold = float(calibrated if options.score_threshold is None else options.score_threshold)
        self.quality = quality if quality is not None and quality.fits_depth(self.depth_steps) else None
        if self.quality is None and views > 1 and self.hypotheses > 1:
            self.quality = generic_predictor(self.hypotheses)
        self.sum_if_single = True
        settings: dict[str, Any] = dict(_DEFAULTS) | needs_of(self.runner.info, "model")
        given = {name: getattr(options, name) for name in _DEFAULTS}
        settings |= {name: value for name, value in given.items() if value is not None and value is not False}
        self.levels: Levels = settings["levels"]
        self.mixture_consistency: bool = settings["mixture_consistency"]
        self.whole_seconds: float = settings["whole_seconds"]
        chunk, overlap = settings["chunk_seconds"], settings["overlap_seconds"]
        self._chunking = chunking_of(self.sample_rate, chunk, min(overlap, chunk / 2))

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
        """Whether speakers are counted: by scores, or by what estimates have in common."""
        return self.runner.scored or (self.quality is not None and self.quality.single_speaker is not None)

    @property
    def default_speakers(self) -> Speakers:
        """What `speakers` should be where the user says nothing: "auto" for a model that counts."""
        return "auto" if self.runner.counts_speakers else None

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
            "precision": options.precision,
            "depth_steps": self.depth_steps,
            "runner": self.runner.kind,
            "views": self.runner.views,
        }

    def __repr__(self) -> str:
        return f"Separator({self.hypotheses} speakers at {self.sample_rate} Hz on {self.device})"

    def is_long(self, num_samples: int, sample_rate: int) -> bool:
        """Return whether a recording is separated in chunks.

        Args:
            num_samples: Length of the recording, samples.
            sample_rate: Sampling rate of the recording, Hz.
        """
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
        channel: int | None = None,
        evidence: bool = False,
    ) -> Separated[Any]:
        """Return the estimates of the sources in one recording, at its length, rate and level.

        Silence gives silence if levels are the mixture's, and has no speakers.

        A prediction for a recording of more than 30 s takes separations of excerpts.

        Args:
            waveform: (T,) or (C, T) floating-point samples; several channels are averaged. Or an audio file: its path,
                its bytes, or the file opened for reading.
            sample_rate: Hz, of the waveform; None for a file.
            speakers: None: all hypotheses. "auto": those whose score is above `score_threshold`, only the best scored
                of duplicates (see `sepkit.models.parts`); none in silence. N: the N best scored; duplicates only if
                there are not enough others. A model that counts estimates N. Without scores, the N strongest are kept.
            channel: Channel to separate, from 0; None: the mean of all, or the loudest if they cancel in it,
                which a warning says.
            evidence: whether to measure the rates of a variational model, which a prediction does too, and the bound
                on the evidence of the mixture; not the bound for recordings that are separated in chunks.

        Raises:
            UserError: an empty waveform, samples that are no finite floating-point numbers, a wrong shape or rate, a
                file that cannot be read, estimates that are not finite, or a number of speakers that the model cannot
                keep.
        """
        recording = ArrayRecording(*read_waveform(waveform, sample_rate, channel))
        found = self.separate_recording(recording, speakers=speakers, evidence=evidence)
        with closing(found.estimates) as estimates:
            separated = replace(found, estimates=estimates.in_memory())
        return with_tensors(separated) if is_tensor(waveform) else separated

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
            waveforms: Waveforms of the recordings; an array (B, T) or (B, C, T) contains B recordings.
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

    def separate_recording(
        self,
        recording: Recording,
        *,
        speakers: Speakers = None,
        evidence: bool = False,
        folder: Path | None = None,
        progress: bool = False,
        undo_swaps: bool = True,
    ) -> Separated[Rendered]:
        """Separate a recording of any length; return estimates that can be read block by block until they are closed.

        A recording for which `is_long` is true is separated in chunks and in bounded memory, any other as a whole.

        Args:
            recording: Recording in memory or in a file.
            speakers: Hypotheses to keep, see `separate`.
            evidence: Whether to measure rates, see `separate`.
            folder: Folder of a temporary file of 8 bytes for each sample and estimate at the model's rate, for a long
                recording; None: that of the system.
            progress: Whether to show a bar for a long recording.
            undo_swaps: Whether speakers whom the estimates swap are put back, with two views or more and in long
                recordings, see `find_orders`; not for outputs that hold several speakers, which are linked.

        Raises:
            UserError: a recording that cannot be read, estimates that are not finite, or a number of speakers that the
                model cannot keep.
        """
        check_speakers(speakers, self.hypotheses, self.counts_speakers)
        runner = self.runner.with_speakers(speakers) if isinstance(speakers, int) else self.runner
        quality = self.quality
        if runner is not self.runner and quality is not None:
            # What predicts is fitted for all hypotheses, but for the agreement of views.
            several = quality.of_any_model and runner.hypotheses > 1
            quality = generic_predictor(runner.hypotheses) if several else None
        predict = quality is not None
        is_long = self.is_long(recording.num_samples, recording.sample_rate)
        # Scores belong to estimates as they are.
        undo_swaps = undo_swaps and not runner.scored and (runner.views > 1 or is_long)
        encoder = prediction_encoder() if undo_swaps else None
        if is_long:
            chunks = ChunkedEstimates(runner, self._chunking, folder, rates=evidence or predict)
            known = measure_chunks(runner, recording, chunks, predict, progress, encoder)
            made = chunks
        else:
            recording = recording.whole()
            known = measure_whole(runner, recording, predict, evidence, encoder)
            made = known.estimates
        selection, prediction = decide(
            known,
            speakers,
            quality,
            threshold=self.score_threshold,
            levels=self.levels,
            consistent=self.mixture_consistency,
            sum_if_single=self.sum_if_single,
        )
        leveled = selection.scaled(known.level)
        shares = leveled.shares(known.products) if self.mixture_consistency else None
        rendered = Rendered(recording, self.sample_rate, leveled, made, shares)
        weights = None
        if known.scores is not None and runner.score_loss is not None:
            weights = hypothesis_weights(known.scores, runner.score_loss)  # type: ignore[arg-type]  # one of both
        return Separated(rendered, recording.sample_rate, selection, known.scores, weights, prediction, known.rates)

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
            UserError: a model that needs the whole recording first, or a wrong rate.
        """
        if self.options.views not in (None, 1):
            raise UserError(f"views: found {self.options.views}, but live sound has one view; leave it out")
        return Stream(self.runner, self.sample_rate if sample_rate is None else checked_rate(sample_rate), levels)
