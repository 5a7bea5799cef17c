"""Models run by torch: those being trained, other toolkits', and whatever a graph cannot do."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from sepkit.errors import UserError
from sepkit.inference.options import Precision
from sepkit.inference.runners.base import ModelOutput, check_finite
from sepkit.inference.runners.latents import mixture_elbo, rates_of
from sepkit.inference.runners.level import BlockRunner, ModelLevel
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.features import latent_features
from sepkit.models.maskers import ConvTasNetMasker, DualPathRNNMasker
from sepkit.models.runtime import has_bfloat16
from sepkit.models.saved import weights_fingerprint
from sepkit.models.streaming import ModelStream

# An accelerator separates this many chunks nearly as fast as one.
_ON_ACCELERATOR = 8
# The step of a recurrent network reads all its weights, for one mixture as for four. On one core of an AMD Zen 3 a
# mixture of 5 s takes an LSTM (3 layers of 208 cells) 71 ms alone, 64 ms in pairs, 43 ms in fours, 42 ms in eights; a
# gated recurrence takes 38, 34, 31 and 33 ms. Other maskers have matrix products that are large enough alone.
_RECURRENT_ON_CPU = 4
_SECONDS_ON_CPU = 40.0


class TorchRunner:
    """A model in torch; see `Runner`.

    Args:
        model: put into evaluation mode and moved to `device`.
        device: Device of torch, or "auto": an accelerator if there is one.
        precision: Precision of recurrent networks and 1x1 convolutions, see `with_precision`.

    Raises:
        UserError: no such device, or a precision that the model or the CPU does not support.
    """

    kind: Literal["graph", "torch"] = "torch"
    views = 1

    def __init__(
        self, model: EncoderMaskerDecoder, device: str | torch.device = "cpu", precision: Precision = "float32"
    ) -> None:
        where = device_of(device)
        self.model: EncoderMaskerDecoder = with_precision(model.to(where).eval(), precision, where)
        self.device = str(where)
        self.sample_rate, self.hypotheses = model.sample_rate, model.hypotheses
        self.info: Mapping[str, Any] = model.info
        self.signal_std = float(model.signal_std)
        self.level = ModelLevel(self.sample_rate, self.signal_std, model.causal)
        self.scored, self.score_loss = model.scoring_head is not None, model.score_loss
        self.counts_speakers = model.counts_speakers
        self._speakers: int | None = None
        self.variational = model.variational
        self.has_rates = model.encoding_prior is not None or model.mask_prior is not None
        self.depth = model.steps
        self.trained_steps: int | None = getattr(model.masker, "trained_steps", None)
        self.small_steps: bool = getattr(model.masker, "small_steps", False)

    def run(
        self, mixtures: np.ndarray, features: bool = False, rates: bool = False, evidence: bool = False
    ) -> ModelOutput:
        """Return the output for mixtures (B, T).

        If only estimates are needed, masks are computed tile by tile, if the masker allows it, and never held in full.
        """
        standardized, factors = self.level.standardize(mixtures)
        model, on_device = self.model, torch.as_tensor(standardized, device=self.device)
        of_latents: dict[str, np.ndarray] = {}
        scores = found = speakers = None
        if self._speakers is not None:
            speakers = torch.full((len(mixtures),), self._speakers, device=self.device)
        with torch.inference_mode():
            if not self.scored and not features and not (rates and self.variational):
                estimates = model.estimates(on_device)
            else:
                separation = model(on_device, speakers=speakers)
                estimates = separation.estimates[:, : self.hypotheses]
                if features:
                    told = latent_features(model, separation)
                    of_latents = {name: values.cpu().double().numpy() for name, values in told.items()}
                if rates:
                    found = rates_of(separation)
                if evidence and found is not None:
                    bound = mixture_elbo(model, on_device, separation)
                    found |= {} if bound is None else {"mixture_elbo_nats_per_sample": float(bound.mean())}
                if separation.scores is not None:
                    scores = separation.scores[:, : self.hypotheses].float().cpu().numpy()
        on_cpu = (factors[:, None] * estimates.float().cpu().numpy()).astype(np.float32)
        check_finite(on_cpu)
        return ModelOutput(on_cpu, scores, of_latents, found)

    def with_speakers(self, n: int) -> TorchRunner:
        """Return a runner of the same model that does not count, but estimates n speakers; itself if none counts.

        Args:
            n: Number of speakers.
        """
        if not self.counts_speakers:
            return self
        fixed = copy.copy(self)
        fixed.counts_speakers, fixed.hypotheses, fixed._speakers = False, n, n
        return fixed

    def with_depth(self, n: int) -> TorchRunner:
        """Return a runner of the same weights that computes in n steps.

        Args:
            n: Number of steps.

        Raises:
            UserError: a model of fixed depth.
        """
        tensors = {id(tensor): tensor for tensor in (*self.model.parameters(), *self.model.buffers())}
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model, tensors)
        other.model.set_steps(n)
        other.depth = n
        return other

    def stream(self) -> BlockRunner:
        """Return a recording's way through a causal model."""
        return self.level.blocks(TorchStream(self.model, self.device))

    def batch_size(self, seconds: float) -> int:
        """Return how many mixtures of a length go through the model at once; on a CPU a batch has at most 40 s."""
        if self.device != "cpu":
            return _ON_ACCELERATOR
        if not self.small_steps:
            return 1
        return max(1, min(_RECURRENT_ON_CPU, math.floor(_SECONDS_ON_CPU / max(seconds, 1e-3))))

    def fingerprint(self) -> str:
        """Return a digest of all weights and buffers."""
        return weights_fingerprint(self.model)


class TorchStream:
    """A recording that passes through a causal model; see `BlockRunner` and `sepkit.models.streaming.ModelStream`."""

    def __init__(self, model: EncoderMaskerDecoder, device: str) -> None:
        self._stream, self._device = ModelStream(model), device
        self.lookahead_samples = self._stream.lookahead_samples

    def push(self, mixture: np.ndarray) -> np.ndarray:
        """Take the next samples (T,); return the next final estimates (n, T')."""
        return self._stream.push(torch.as_tensor(mixture, device=self._device)[None])[0].float().cpu().numpy()

    def finish(self) -> np.ndarray:
        """End the recording; return the rest (n, T')."""
        return self._stream.finish()[0].float().cpu().numpy()


def device_of(name: str | torch.device) -> torch.device:
    """Return a device by its name in torch, or for "auto" an accelerator if there is one.

    Raises:
        UserError: no such device here.
    """
    if name == "auto":
        # With several accelerators, each process of torchrun has its own.
        others = "mps" if torch.backends.mps.is_available() else "cpu"
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else others
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"device: found {str(name)!r}, which is not there ({reason}); use cpu or auto") from error
    return device


def with_precision(model: EncoderMaskerDecoder, precision: Precision, device: torch.device) -> EncoderMaskerDecoder:
    """Return the model, which computes in this precision from now on.

    bfloat16 affects the recurrent networks of dual_path_rnn and the layers behind them, and the 1x1 convolutions of
    conv_tasnet. All else stays in float32.

    Args:
        model: Model on `device`.
        precision: bfloat16 goes with dual_path_rnn of LSTMs and with conv_tasnet of global norms.

    Raises:
        UserError: the model or the CPU cannot compute in it, or gains nothing.
    """
    masker = model.masker
    if isinstance(masker, DualPathRNNMasker | ConvTasNetMasker):
        low = precision == "bfloat16"
        if low and device.type == "cpu" and not has_bfloat16():
            raise UserError("precision: found bfloat16, which this processor does not compute in; use float32")
        if low and device.type != "cpu" and isinstance(masker, ConvTasNetMasker):
            raise UserError(f"precision: found bfloat16 for conv_tasnet on {device}, expected device cpu; use float32")
        masker.low_precision = low
    elif precision != "float32":
        raise UserError(
            f"precision: found {precision}, which {type(masker).__name__} cannot use, only dual_path_rnn and "
            "conv_tasnet; use float32"
        )
    return model
