"""A model and all that stands between it and a recording: channels, sample rates, levels."""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.levels import (
    Consistency,
    Levels,
    Products,
    distribute_residual,
    gains_of,
    products_of,
    residual_shares,
)
from sepkit.inference.precision import Precision, set_precision
from sepkit.inference.quality import QualityPredictor, read_quality
from sepkit.inference.recordings import (
    ArrayRecording,
    LongSeparation,
    Recording,
    separate_long,
)
from sepkit.inference.run_model import check_finite, run_model
from sepkit.inference.separated import Separated
from sepkit.inference.stitching import STITCHERS, StitcherKind, chunking_of
from sepkit.inference.uncertainty import (
    check_samples,
    excerpt_features,
    excerpt_spans,
    monte_carlo,
    rates_of,
    recording_features,
)
from sepkit.models import EncoderMaskerDecoder, load_pretrained, model_folder
from sepkit.models.onnx import OnnxModel, is_onnx
from sepkit.models.scoring import DEFAULT_THRESHOLD, best_hypotheses, distinct_by_products, distinct_hypotheses
from sepkit.models.shipped import default_model

if TYPE_CHECKING:
    from sepkit.inference.streaming import Stream

__all__ = [
    "Consistency",
    "Levels",
    "Separated",
    "Separator",
    "Speakers",
    "load_model",
    "rates_of",
    "weights_fingerprint",
]

Speakers = Literal["auto"] | int | None
"""Which hypotheses to keep: None all; "auto" those that the scores say are speakers; a number that many, the best."""

# No microphone array has more; an array handed over as (T, C) has.
_MAX_CHANNELS = 256


class Separator:
    """Separates recordings of any rate and number of channels with one model.

    Attributes:
        model: in evaluation mode, on `device`.
        device: where it computes.
        sample_rate: Hz, of the model.
        hypotheses: n.
        score_threshold: log-odds above which a hypothesis counts as a speaker; can be set.
        quality: what predicts SI-SDR without references; None: nothing is predicted; can be set.

    Args:
        model: put into evaluation mode and moved to `device`.
        device: a torch device, or "auto": an accelerator where there is one.
        levels: "mixture": each estimate is scaled to the level at which it explains the mixture best,
            g_i = <x, s_i> / <s_i, s_i>, so that none is ever stronger than the mixture and polarity is right; models
            trained with a scale-invariant cost have no level of their own. "model": as the model puts them out.
        score_threshold: None: the one that counted the speakers of the validation mixtures best in training, which is
            kept with the model; 0 (even odds) for a model without.
        quality: fitted for this model.
        consistency: "mixture": the estimates that are kept add up to the recording, sample by sample. They get the
            gains with which they come nearest to it, and what they still leave of it is distributed among them as
            their energies are. None: they do not.
        chunk_seconds: a long recording is separated in chunks of so many seconds, which bounds memory.
        overlap_seconds: what neighbouring chunks share, at most half of them.
        whole_seconds: recordings up to so long are separated as a whole; infinity: all are.
        stitcher: how the order of estimates in chunks is found: "profile" from overlaps and voices, "overlap" from
            overlaps alone, "none": it is left as the model gives it. See `sepkit.inference.stitching`.

        precision: "bfloat16": the recurrent networks of dual_path_rnn compute in it, nothing else does. Faster on
            processors that have it. Estimates differ by some -57 dB with masks by a sigmoid and -40 dB by a relu, both
            seen with asteroid's sizes, untrained.

    Raises:
        UserError: no such device or stitcher, lengths out of range, or a precision that the model or the processor does
            not have.
    """

    def __init__(
        self,
        model: EncoderMaskerDecoder,
        device: str | torch.device = "cpu",
        levels: Levels = "mixture",
        score_threshold: float | None = None,
        quality: QualityPredictor | None = None,
        *,
        consistency: Consistency | None = None,
        chunk_seconds: float = 10.0,
        overlap_seconds: float = 5.0,
        whole_seconds: float = 30.0,
        stitcher: StitcherKind = "profile",
        precision: Precision = "float32",
    ) -> None:
        self.device = _device(device)
        self.model = model.to(self.device).eval()
        set_precision(self.model, precision, self.device)
        self.precision: Precision = precision
        self.levels: Levels = levels
        calibrated = model.info.get("score_threshold", DEFAULT_THRESHOLD)
        self.score_threshold = float(calibrated if score_threshold is None else score_threshold)
        self.quality = quality
        self.consistency: Consistency | None = consistency
        if not whole_seconds >= 0:
            raise UserError(f"whole_seconds: found {whole_seconds}, expected 0 or more")
        self._whole_seconds = whole_seconds
        self._chunking = chunking_of(model.sample_rate, chunk_seconds, overlap_seconds)
        if stitcher not in STITCHERS:
            raise UserError(f"stitcher: found {stitcher!r}, expected {' or '.join(STITCHERS)}")
        self.stitcher: StitcherKind = stitcher
        self._stream: Stream | None = None

    @property
    def sample_rate(self) -> int:
        """Hz, of the model; recordings may have any."""
        return self.model.sample_rate

    @property
    def hypotheses(self) -> int:
        """How many estimates the model makes (n)."""
        return self.model.hypotheses

    def fingerprint(self) -> str:
        """Digest of all weights and buffers, and of the predictor: tells outputs of this separator from another's."""
        weights = weights_fingerprint(self.model)
        return weights if self.quality is None else f"{weights}-{self.quality.digest()}"

    def check_speakers(self, speakers: Speakers) -> None:
        """Nothing, where this model can keep such a number of hypotheses.

        Raises:
            UserError: a choice that needs scores, of a model without, or a number out of range.
        """
        if speakers is None:
            return
        is_number = isinstance(speakers, int) and not isinstance(speakers, bool)
        if speakers != "auto" and not (is_number and 1 <= speakers <= self.hypotheses):
            raise UserError(
                f"speakers: found {speakers}, expected auto or 1 to {self.hypotheses}, the model's estimates"
            )
        if self.model.scoring_head is None:
            raise UserError(
                f"speakers: found {speakers}, but the model has no scores to choose by; leave it out, or train with "
                "--model.scoring.hidden_size 128"
            )

    def way(self) -> dict[str, Any]:
        """The options that estimates depend on beside the model, as plain data."""
        return {
            "levels": self.levels,
            "consistency": self.consistency,
            "chunk_samples": self._chunking.chunk,
            "overlap_samples": self._chunking.overlap,
            "whole_seconds": self._whole_seconds if math.isfinite(self._whole_seconds) else None,
            "stitcher": self.stitcher,
            "precision": self.precision,
        }

    def __call__(self, *arguments: Any, **options: Any) -> Separated:
        """What `separate` makes of the same arguments."""
        return self.separate(*arguments, **options)

    def __repr__(self) -> str:
        return f"Separator({self.hypotheses} speakers at {self.sample_rate} Hz on {self.device})"

    def is_long(self, num_samples: int, sample_rate: int) -> bool:
        """Whether a recording is separated in chunks.

        Args:
            num_samples: of the recording.
            sample_rate: Hz, of the recording.
        """
        at_model_rate = audio.resampled_length(num_samples, sample_rate, self.sample_rate)
        return num_samples > self._whole_seconds * sample_rate and at_model_rate > self._chunking.chunk

    def separate(
        self,
        waveform: np.ndarray | Tensor | bytes | io.BytesIO | str | os.PathLike[str],
        sample_rate: int | None = None,
        *,
        speakers: Speakers = None,
        samples: int | None = None,
        seed: int = 0,
        channel: int | None = None,
    ) -> Separated:
        """The estimates of the sources in one recording, as long as it is, at its rate and level.

        Silence gives silence where levels are the mixture's, and has no speakers.

        A prediction of SI-SDR takes a few more separations of up to 30 s of the recording, see
        `sepkit.inference.uncertainty.recording_features`; `samples` take as many more of all of it.

        Args:
            waveform: (T,) or (C, T) floating-point samples; several channels are averaged. Or an audio file: its path,
                or the bytes that it holds.
            sample_rate: Hz, of the waveform; a file tells its own.
            speakers: None: all hypotheses. "auto": those whose score is above `score_threshold`, of which the better
                scored one stands for any that are alike (see `sepkit.models.scoring`); none in silence. A number: as
                many, those with the best scores, duplicates only where there are not enough others.
            samples: how many times to sample the latents for the spread; None: no spread. Not of recordings that are
                separated in chunks.
            seed: of those samples.
            channel: which channel to separate, from 0; None: the mean of all.

        Raises:
            UserError: an empty waveform, samples that are no finite floating-point numbers, a wrong shape or rate, a
                file that cannot be read, estimates that are not finite, fewer than two samples, a spread of a long
                recording, or see `check_speakers`.
        """
        self.check_speakers(speakers)
        if samples is not None:
            check_samples(samples)
        recording, rate = _recording(waveform, sample_rate, channel)
        if self.is_long(recording.size, rate):
            self.check_spread_of_long(samples)
            return _like(waveform, self._separate_long_array(ArrayRecording(recording, rate), speakers))
        mixture = audio.resample(recording, rate, self.sample_rate)
        # A recording shorter than one sample of the model's rate.
        mixture = mixture if mixture.size else recording[:1]
        on_device = torch.as_tensor(mixture, device=self.device)
        output = run_model(self.model, on_device.unsqueeze(0), keep_separation=self.quality is not None)
        estimates, separation = output.estimates[0], output.separation
        products = products_of(mixture, estimates)
        scores = None if output.scores is None else output.scores[0]

        def distinct(gains: np.ndarray) -> Tensor:
            return distinct_hypotheses(
                torch.from_numpy(scores)[None], torch.from_numpy(estimates * gains[:, None])[None]
            )

        separated, gains = self._weigh(products, scores, distinct, np.ptp(mixture) == 0, speakers)
        kept = separated.kept
        if kept.size:
            wanted = estimates[kept] * gains[kept][:, None]
            separated.estimates = _fit(audio.resample(wanted, self.sample_rate, rate), recording.size)
            if self.consistency == "mixture":
                shares = residual_shares(products, gains, kept)
                separated.estimates = distribute_residual(recording, separated.estimates, shares)
        else:
            separated.estimates = np.zeros((0, recording.size), np.float32)
        separated.rates, separated.sample_rate = output.rates, rate
        if self.quality is not None and separation is not None:
            features = recording_features(self.model, on_device, separation, self.quality.samples, self.quality.seed)
            self._predict(separated, self.quality, features)
        if samples is not None:
            spread = self._spread(on_device, samples, seed, rate, recording.size)
            separated.spread = (np.abs(gains)[:, None] * spread)[kept]
        return _like(waveform, separated)

    def check_spread_of_long(self, samples: int | None) -> None:
        """Nothing, where a long recording can be separated so.

        Raises:
            UserError: a spread was asked for.
        """
        if samples is not None:
            raise UserError(
                "spread: found a recording that is separated in chunks, which has none; separate it as a whole "
                "(--whole-seconds inf; in Python whole_seconds=math.inf), which takes memory, or cut it"
            )

    def separate_long(
        self, recording: Recording, *, speakers: Speakers = None, folder: Path | None = None, progress: bool = False
    ) -> LongSeparation:
        """A recording of any length in bounded memory: what `separate` tells of it, and its estimates block by block.

        Args:
            recording: for which `is_long` is true; others lose some quality in chunks.
            speakers: see `separate`.
            folder: for a temporary file of 8 bytes for each sample and estimate at the model's rate; None: that of the
                system.
            progress: whether to show a bar on a terminal.

        Raises:
            UserError: a recording that cannot be read, estimates that are not finite, or see `check_speakers`.
        """
        self.check_speakers(speakers)
        joined = separate_long(self.model, self.device, recording, self._chunking, self.stitcher, folder, progress)
        products, scores = joined.products(), joined.scores()

        def distinct(gains: np.ndarray) -> Tensor:
            scaled = torch.from_numpy(products.centred() * np.outer(gains, gains))
            energies = torch.from_numpy(np.diagonal(products.gram) * np.square(gains, dtype=np.float64))
            return distinct_by_products(torch.from_numpy(scores)[None], scaled[None], energies[None])

        separated, gains = self._weigh(products, scores, distinct, joined.silent, speakers)
        separated.rates, separated.sample_rate = joined.rates(), recording.sample_rate
        if self.quality is not None:
            spans = excerpt_spans(joined.num_samples, self.sample_rate)
            excerpts = (
                (
                    torch.as_tensor(recording.excerpt(start, stop, self.sample_rate), device=self.device),
                    torch.as_tensor(joined.read(start, stop), device=self.device)[None],
                )
                for start, stop in spans
            )
            features = excerpt_features(self.model, excerpts, self.quality.samples, self.quality.seed)
            self._predict(separated, self.quality, features)
        shares = residual_shares(products, gains, separated.kept) if self.consistency == "mixture" else None
        return LongSeparation(separated, joined, recording, self.sample_rate, gains, separated.kept, shares)

    def _separate_long_array(self, recording: ArrayRecording, speakers: Speakers) -> Separated:
        long = self.separate_long(recording, speakers=speakers)
        separated = long.separated
        separated.estimates = np.empty((len(separated.kept), recording.num_samples), np.float32)
        done = 0
        for block in long.blocks():
            separated.estimates[:, done : done + block.shape[-1]] = block
            done += block.shape[-1]
        long.close()
        return separated

    def _weigh(
        self,
        products: Products,
        scores: np.ndarray | None,
        distinct: Callable[[np.ndarray], Tensor],
        silent: bool,
        speakers: Speakers,
    ) -> tuple[Separated, np.ndarray]:
        """Which hypotheses are kept, without their estimates, and the gains (n,) of all.

        Args:
            products: of the model's estimates.
            scores: (n,) log-odds.
            distinct: (1, n) bool, which hypotheses are like no better one, of estimates with given gains.
            silent: whether the mixture is.
            speakers: see `separate`.
        """
        everything = np.arange(len(products.cross))
        gains = gains_of(products, self.levels, None, everything)
        is_speaker, kept = None, everything
        if scores is not None:
            is_speaker, kept = self._choose(scores, distinct(gains), silent, speakers)
        gains = gains_of(products, self.levels, self.consistency, kept)
        return Separated(None, gains[kept], scores, kept=kept, is_speaker=is_speaker), gains

    def streaming(self, sample_rate: int | None = None, levels: Levels = "model") -> Stream:
        """A stream for one recording that is still coming in; only causal models have one.

            with separator.streaming() as stream:
                for block in blocks:
                    play(stream.push(block))
                play(stream.finish())

        Several may be open side by side; `push` and `finish` of the separator itself are those of the newest.

        Args:
            sample_rate: Hz, of the recording; None: that of the model, which has the least latency.
            levels: "model": estimates as the model puts them out, the same as of the whole recording at once.
                "mixture": each at the gain at which it has explained the mixture best so far, for nobody knows what
                comes (`sepkit.inference.streaming.RunningGains`). Models trained with a scale-invariant cost have no
                level of their own.

        Raises:
            UserError: a model that hears the whole recording first, or a wrong rate.
        """
        from sepkit.inference.streaming import Stream

        rate = self.sample_rate if sample_rate is None else _checked_rate(sample_rate)
        self._stream = Stream(self.model, self.device, rate, levels)
        return self._stream

    def push(self, block: np.ndarray | Tensor) -> Any:
        """`Stream.push` of the newest stream."""
        return self._newest_stream().push(block)

    def finish(self) -> Any:
        """`Stream.finish` of the newest stream."""
        return self._newest_stream().finish()

    def _newest_stream(self) -> Stream:
        if self._stream is None:
            raise UserError("streaming: no stream is open; call within `with separator.streaming():`")
        return self._stream

    def _predict(self, separated: Separated, quality: QualityPredictor, features: dict[str, np.ndarray] | None) -> None:
        """Fills in what is expected of the estimates; None: there are no features to tell from."""
        if features is None:
            predicted = baseline = np.full(self.hypotheses, np.nan)
        else:
            predicted, baseline = quality.model.predict(features), quality.baseline.predict(features)
        separated.predicted_si_sdr_db = predicted.astype(np.float32)
        separated.predicted_interval_db = quality.model.interval(predicted).astype(np.float32)
        separated.baseline_si_sdr_db = baseline.astype(np.float32)

    def _spread(self, mixture: Tensor, samples: int, seed: int, rate: int, num_samples: int) -> np.ndarray:
        """(n, num_samples) float32, at the rate of the recording and the level of the model."""

        def at_recording(estimates: Tensor) -> Tensor:
            resampled = audio.resample(estimates[0].float().cpu().numpy(), self.sample_rate, rate)
            return torch.from_numpy(_fit(resampled, num_samples))[None]

        through = None if rate == self.sample_rate else at_recording
        spread = monte_carlo(self.model, mixture[None], samples, seed, through).spread[0].float().cpu().numpy()
        check_finite(spread)
        return spread

    def _choose(
        self, scores: np.ndarray, distinct: Tensor, silent: bool, speakers: Speakers
    ) -> tuple[np.ndarray, np.ndarray]:
        """(n,) which hypotheses are speakers, and (k,) which are kept."""
        of_all = torch.from_numpy(scores)[None]
        is_speaker = (distinct & (of_all > self.score_threshold) & ~torch.tensor(bool(silent)))[0].numpy()
        if speakers is None:
            return is_speaker, np.arange(len(scores))
        keep = is_speaker if speakers == "auto" else best_hypotheses(of_all, distinct, speakers)[0].numpy()
        return is_speaker, np.flatnonzero(keep)


def weights_fingerprint(model: EncoderMaskerDecoder) -> str:
    """Hexadecimal digest of all weights and buffers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def load_model(
    model: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
    levels: Levels = "mixture",
    *,
    predict: bool = True,
    **options: Any,
) -> Separator:
    """The separator of a saved model, with its predictor of SI-SDR where `sepkit calibrate` made one.

    Args:
        model: a folder or file that `sepkit train` wrote (EXP, EXP/model), a file that `sepkit export` wrote, or what
            else `sepkit.models.load_pretrained` takes; None: the model that ships with the package.
        device: "cpu", "cuda", "cuda:1" ..., or "auto".
        levels: see `Separator`.
        predict: False: without the predictor, which saves its time.
        **options: consistency, chunk_seconds and further options of `Separator`.

    Raises:
        UserError: no such model or device, an option out of range, or a predictor that is damaged or another model's.
    """
    model = default_model() if model is None else model
    # Another toolkit's checkpoint is no folder, and has no predictor beside it; neither has an exported model, which
    # has all that a separator looks at.
    folder = model_folder(model)
    loaded = cast(EncoderMaskerDecoder, OnnxModel(model)) if is_onnx(model) else load_pretrained(folder or model)
    quality = None
    if predict and folder is not None:
        quality = read_quality(folder, weights_fingerprint(loaded), loaded.hypotheses)
    return Separator(loaded, device, levels, quality=quality, **options)


def _device(name: str | torch.device) -> torch.device:
    if name == "auto":
        # Of several accelerators each process that torchrun starts has its own.
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"device: found {str(name)!r}, which is not there ({reason}); use cpu or auto") from error
    return device


def _recording(waveform: Any, sample_rate: float | None, channel: int | None) -> tuple[np.ndarray, int]:
    """(T,) float32 samples of one channel and their rate, of an array, of an audio file, or of the bytes of one."""
    is_path = isinstance(waveform, str | os.PathLike)
    if is_path or isinstance(waveform, bytes | io.BytesIO):
        if sample_rate is not None:
            raise UserError(f"sample_rate: found {sample_rate}, but an audio file tells its own; leave it out")
        if not is_path:
            return audio.decode(waveform, channel)
        return audio.read(waveform, channel=channel), audio.info(waveform).sample_rate
    if sample_rate is None:
        raise UserError("sample_rate: nothing given, expected that of the waveform in Hz")
    rate = _checked_rate(sample_rate)
    if channel is not None:
        waveform = np.asarray(waveform) if not isinstance(waveform, Tensor) else waveform
        channels = waveform.shape[0] if waveform.ndim == 2 else 1
        if not 0 <= channel < channels:
            raise UserError(f"channel: found {channel}, but the waveform has {channels}, numbered from 0")
        waveform = waveform[channel] if waveform.ndim == 2 else waveform
    return _mono(waveform), rate


def _mono(waveform: Any) -> np.ndarray:
    """(T,) float32: the waveform, or the mean of its channels."""
    samples = waveform.detach().cpu().float().numpy() if _is_float_tensor(waveform) else np.asarray(waveform)
    if not np.issubdtype(samples.dtype, np.floating):
        raise UserError(
            f"waveform: found {samples.dtype} samples, expected floating point, full scale 1.0 (int16: divide by 32768)"
        )
    if samples.ndim not in (1, 2) or (samples.ndim == 2 and not 1 <= samples.shape[0] <= _MAX_CHANNELS):
        raise UserError(
            f"waveform: found shape {samples.shape}, expected (samples,) or (channels, samples); transpose it?"
        )
    if samples.shape[-1] == 0:
        raise UserError("waveform: found no samples, expected at least one")
    if not np.isfinite(samples).all():
        raise UserError(
            "waveform: found samples that are NaN or infinite, expected finite numbers; repair the recording"
        )
    mono = samples if samples.ndim == 1 else samples.mean(axis=0)
    return np.ascontiguousarray(mono, dtype=np.float32)


def _is_float_tensor(waveform: Any) -> bool:
    return isinstance(waveform, Tensor) and waveform.is_floating_point()


def _checked_rate(sample_rate: float) -> int:
    if isinstance(sample_rate, bool) or not sample_rate >= 1 or int(sample_rate) != sample_rate:
        raise UserError(f"sample_rate: found {sample_rate!r}, expected a whole number of Hz, at least 1")
    return int(sample_rate)


def _fit(waveforms: np.ndarray, num_samples: int) -> np.ndarray:
    """(n, num_samples): resampling there and back may differ from the recording's length by a few samples."""
    missing = num_samples - waveforms.shape[-1]
    return np.pad(waveforms, ((0, 0), (0, missing))) if missing > 0 else waveforms[:, :num_samples]


def _like(waveform: Any, separated: Separated) -> Separated:
    if not isinstance(waveform, Tensor):
        return separated
    arrays = {name: value for name, value in vars(separated).items() if isinstance(value, np.ndarray)}
    return replace(separated, **{name: torch.as_tensor(value) for name, value in arrays.items()})
