"""A model and all that stands between it and a recording: channels, sample rates, levels."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.quality import QualityPredictor, read_quality
from sepkit.inference.uncertainty import check_samples, monte_carlo, recording_features
from sepkit.models import EncoderMaskerDecoder, load_pretrained
from sepkit.models.checkpoints import find_checkpoint
from sepkit.models.scoring import DEFAULT_THRESHOLD, best_hypotheses, distinct_hypotheses
from sepkit.objectives.rates import elementwise_rate
from sepkit.types import Separation

if TYPE_CHECKING:
    from sepkit.inference.streaming import Stream

__all__ = ["Levels", "Separated", "Separator", "Speakers", "load_model", "rates_of", "weights_fingerprint"]

Levels = Literal["mixture", "model"]
Speakers = Literal["auto"] | int | None
"""Which hypotheses to keep: None all; "auto" those that the scores say are speakers; a number that many, the best."""

# No microphone array has more; an array handed over as (T, C) has.
_MAX_CHANNELS = 256


@dataclass
class Separated:
    """What a model makes of one recording. Arrays are numpy arrays or CPU tensors, as the recording was.

    Args:
        estimates: (k, T) float32, at the rate and level of the recording: one for each hypothesis kept, in their order.
        gains: (k,) what each of the model's own estimates was multiplied by to get there.
        scores: (n,) log-odds that a hypothesis is a speaker, of all hypotheses, where the model has a scoring head.
        predicted_si_sdr_db: (n,) SI-SDR the model expects of its estimates, of all hypotheses, where `sepkit calibrate`
            gave it a predictor; NaN of a silent estimate, and of all where there is nothing to tell from (silence, less
            than half a second). See `sepkit.inference.quality`.
        predicted_interval_db: (n, 2) ends of the interval that is to hold 90 % of them.
        baseline_si_sdr_db: (n,) what the mixture's level and statistics alone make one expect, to compare with.
        kept: (k,) int64, the hypotheses that the estimates are, from 0.
        is_speaker: (n,) bool, those that "auto" keeps, whatever was kept; None without scores.
        rates: nats, of a model whose latents are variational: see `rates_of`; None of others.
        spread: (k, T) standard deviation of every sample of the estimates over samples of the latents, at the rate and
            level of the recording, where it was asked for; zeros for a deterministic model.
    """

    estimates: Any
    gains: Any
    scores: Any = None
    predicted_si_sdr_db: Any = None
    predicted_interval_db: Any = None
    baseline_si_sdr_db: Any = None
    kept: Any = None
    is_speaker: Any = None
    rates: dict[str, float] | None = None
    spread: Any = None


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

    Raises:
        UserError: no such device.
    """

    def __init__(
        self,
        model: EncoderMaskerDecoder,
        device: str | torch.device = "cpu",
        levels: Levels = "mixture",
        score_threshold: float | None = None,
        quality: QualityPredictor | None = None,
    ) -> None:
        self.device = _device(device)
        self.model = model.to(self.device).eval()
        self.levels: Levels = levels
        calibrated = model.info.get("score_threshold", DEFAULT_THRESHOLD)
        self.score_threshold = float(calibrated if score_threshold is None else score_threshold)
        self.quality = quality
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

    def separate(
        self,
        waveform: np.ndarray | Tensor,
        sample_rate: int,
        *,
        speakers: Speakers = None,
        samples: int | None = None,
        seed: int = 0,
    ) -> Separated:
        """The estimates of the sources in one recording, as long as it is, at its rate and level.

        Silence gives silence where levels are the mixture's, and has no speakers.

        A prediction of SI-SDR takes a few more separations of up to 30 s of the recording, see
        `sepkit.inference.uncertainty.recording_features`; `samples` take as many more of all of it.

        Args:
            waveform: (T,) or (C, T) floating-point samples; several channels are averaged.
            sample_rate: Hz, of the waveform.
            speakers: None: all hypotheses. "auto": those whose score is above `score_threshold`, of which the better
                scored one stands for any that are alike (see `sepkit.models.scoring`); none in silence. A number: as
                many, those with the best scores, duplicates only where there are not enough others.
            samples: how many times to sample the latents for the spread; None: no spread.
            seed: of those samples.

        Raises:
            UserError: an empty waveform, samples that are no finite floating-point numbers, a wrong shape or rate,
                estimates that are not finite, fewer than two samples, or see `check_speakers`.
        """
        self.check_speakers(speakers)
        if samples is not None:
            check_samples(samples)
        recording = _mono(waveform)
        rate = _checked_rate(sample_rate)
        mixture = audio.resample(recording, rate, self.sample_rate)
        # A recording shorter than one sample of the model's rate.
        mixture = mixture if mixture.size else recording[:1]
        on_device = torch.as_tensor(mixture, device=self.device)
        with torch.inference_mode():
            separation = self.model(on_device.unsqueeze(0))
        estimates = separation.estimates[0].float().cpu().numpy()
        _check_finite(estimates)
        gains = (
            _projection_gains(mixture, estimates) if self.levels == "mixture" else np.ones(len(estimates), np.float32)
        )
        estimates = estimates * gains[:, None]
        scores = None if separation.scores is None else separation.scores[0].float().cpu().numpy()
        is_speaker, kept = None, np.arange(len(estimates))
        if scores is not None:
            is_speaker, kept = self._choose(scores, estimates, silent=np.ptp(mixture) == 0, speakers=speakers)
        if kept.size:
            estimates = _fit(audio.resample(estimates[kept], self.sample_rate, rate), recording.size)
        else:
            estimates = np.zeros((0, recording.size), np.float32)
        separated = Separated(estimates, gains[kept], scores, kept=kept, is_speaker=is_speaker)
        separated.rates = rates_of(separation)
        if self.quality is not None:
            self._predict(separated, self.quality, on_device, separation)
        if samples is not None:
            spread = self._spread(on_device, samples, seed, rate, recording.size)
            separated.spread = (np.abs(gains)[:, None] * spread)[kept]
        return _like(waveform, separated)

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

    def _predict(
        self, separated: Separated, quality: QualityPredictor, mixture: Tensor, separation: Separation
    ) -> None:
        """Fills in what is expected of the estimates."""
        features = recording_features(self.model, mixture, separation, quality.samples, quality.seed)
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
        _check_finite(spread)
        return spread

    def _choose(
        self, scores: np.ndarray, estimates: np.ndarray, silent: bool, speakers: Speakers
    ) -> tuple[np.ndarray, np.ndarray]:
        """(n,) which hypotheses are speakers, and (k,) which are kept."""
        of_all = torch.from_numpy(scores)[None]
        distinct = distinct_hypotheses(of_all, torch.from_numpy(estimates)[None])
        is_speaker = (distinct & (of_all > self.score_threshold) & ~torch.tensor(silent))[0].numpy()
        if speakers is None:
            return is_speaker, np.arange(len(scores))
        keep = is_speaker if speakers == "auto" else best_hypotheses(of_all, distinct, speakers)[0].numpy()
        return is_speaker, np.flatnonzero(keep)


@torch.no_grad()  # A rate without a closed form is estimated from the same samples at every call, see elementwise_rate.
def rates_of(separation: Separation) -> dict[str, float] | None:
    """How many nats the posteriors of one utterance are away from their priors; None where all are points.

    `encoding_rate_nats_per_tick`, `mask_rate_nats_per_tick` (of all hypotheses together), those of them that there
    are, and `rate_nats_per_dimension`, their sum over the number of latent values of a tick.

    Args:
        separation: of a batch of one, without padding.
    """
    latents = {
        "encoding": (separation.encoding, separation.encoding_prior, separation.encoding_sample),
        "mask": (separation.masks, separation.mask_prior, separation.mask_sample),
    }
    rates: dict[str, float] = {}
    dimensions = 0
    for what, (posterior, prior, sample) in latents.items():
        if prior is not None:
            rates[f"{what}_rate_nats_per_tick"] = float(
                elementwise_rate(posterior, prior, sample).double().sum() / posterior.shape[-1]
            )
            dimensions += posterior.shape[1:].numel() // posterior.shape[-1]
    return rates | {"rate_nats_per_dimension": math.fsum(rates.values()) / dimensions} if rates else None


def weights_fingerprint(model: EncoderMaskerDecoder) -> str:
    """Hexadecimal digest of all weights and buffers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def load_model(
    model: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    levels: Levels = "mixture",
    *,
    predict: bool = True,
) -> Separator:
    """The separator of a saved model, with its predictor of SI-SDR where `sepkit calibrate` made one.

    Args:
        model: a folder or file that `sepkit train` wrote (EXP, EXP/model), or `asteroid:FILE`.
        device: "cpu", "cuda", "cuda:1" ..., or "auto".
        levels: see `Separator`.
        predict: False: without the predictor, which saves its time.

    Raises:
        UserError: no such model or device, or a predictor that is damaged or another model's.
    """
    loaded = load_pretrained(model)
    quality = None
    # Another toolkit's checkpoint is no folder, and has no predictor beside it.
    if predict and Path(model).exists():
        quality = read_quality(find_checkpoint(model), weights_fingerprint(loaded), loaded.hypotheses)
    return Separator(loaded, device, levels, quality=quality)


def _device(name: str | torch.device) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"device: found {str(name)!r}, which is not there ({reason}); use cpu or auto") from error
    return device


def _check_finite(waveforms: np.ndarray) -> None:
    if not np.isfinite(waveforms).all():
        raise UserError("waveform: the model's estimates are not finite; its weights or the input's level are broken")


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


def _projection_gains(mixture: np.ndarray, estimates: np.ndarray) -> np.ndarray:
    """(n,) gains of the projections of the mixture (T,) on each estimate (n, T); 0 for a silent estimate."""
    mixture, estimates = mixture.astype(np.float64), estimates.astype(np.float64)
    energies = np.einsum("nt,nt->n", estimates, estimates)
    gains = np.divide(estimates @ mixture, energies, out=np.zeros_like(energies), where=energies > 0)
    return gains.astype(np.float32)


def _fit(waveforms: np.ndarray, num_samples: int) -> np.ndarray:
    """(n, num_samples): resampling there and back may differ from the recording's length by a few samples."""
    missing = num_samples - waveforms.shape[-1]
    return np.pad(waveforms, ((0, 0), (0, missing))) if missing > 0 else waveforms[:, :num_samples]


def _like(waveform: Any, separated: Separated) -> Separated:
    if not isinstance(waveform, Tensor):
        return separated
    arrays = {name: value for name, value in vars(separated).items() if isinstance(value, np.ndarray)}
    return replace(separated, **{name: torch.as_tensor(value) for name, value in arrays.items()})
