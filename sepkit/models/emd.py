"""The encoder-masker-decoder: mixtures to estimates, deterministic or variational."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from sepkit.config import ModelConfig
from sepkit.errors import UserError
from sepkit.models.filterbanks import Filterbank
from sepkit.models.latents import LatentFamily
from sepkit.models.scoring import ScoringHead
from sepkit.registry import build
from sepkit.types import Latent, Separation

__all__ = ["EncoderMaskerDecoder", "build_model"]


class EncoderMaskerDecoder(nn.Module):
    """Estimates of the sources in a mixture, by masks on an encoding of it.

        z ~ q(z | x) = family(encoder((x - mean) / deviation))
        M ~ q(M | z) = family(masker(features(z)))
        estimate_i = deviation * decoder(M_i (*) z)

    In training mode latents are sampled; in evaluation mode the encoding is its posterior mean and a mask its posterior
    median. For points the two are the same.

    Attributes:
        sample_rate: Hz; part of the model.
        hypotheses: n.
        signal_mean, signal_std: mean and deviation of the training mixtures (buffers, 0 and 1 until measured).
        config: what `build_model` made it from; None for a model put together by hand.
        info: what was saved beside the weights it was loaded with (epoch, `score_threshold` ...), or nothing.

    Args:
        filterbank: encoder and decoder.
        masker: (B, K, F) -> raw (B, n, P, K, F).
        encoding_family: from raw encodings to posteriors over them.
        mask_family: from the masker's raw values to posteriors over masks.
        sample_rate: Hz.
        pad: "full" loses no sample at either end; "asteroid" pads and trims on the right alone, as asteroid does.
        scoring_head: masks (B, n, K, F) -> scores (B, n); None: no scores.

    Raises:
        UserError: an encoding family or link that the filterbank does not go with.
    """

    signal_mean: Tensor
    signal_std: Tensor

    def __init__(
        self,
        filterbank: Filterbank,
        masker: nn.Module,
        encoding_family: LatentFamily,
        mask_family: LatentFamily,
        *,
        sample_rate: int,
        pad: Literal["full", "asteroid"] = "full",
        scoring_head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        _check_encoding_link(filterbank, encoding_family)
        self.filterbank = filterbank
        self.masker = masker
        self.encoding_family = encoding_family
        self.mask_family = mask_family
        self.sample_rate = sample_rate
        self.pad: Literal["full", "asteroid"] = pad
        self.scoring_head = scoring_head
        self.config: ModelConfig | None = None
        self.info: dict[str, Any] = {}
        self.register_buffer("signal_mean", torch.zeros(()))
        self.register_buffer("signal_std", torch.ones(()))

    @property
    def hypotheses(self) -> int:
        """How many estimates the model makes (n)."""
        return self.masker.hypotheses  # type: ignore[return-value]

    def set_signal_statistics(self, mean: float, std: float) -> None:
        """Stores the mean and deviation of the training mixtures, by which every input is standardised.

        Raises:
            ValueError: not finite, or a deviation of zero or less.
        """
        if not (torch.isfinite(torch.tensor([mean, std])).all() and std > 0):
            raise ValueError(f"mean {mean} and deviation {std}, expected finite values and a positive deviation")
        self.signal_mean.fill_(mean)
        self.signal_std.fill_(std)

    def forward(self, mixture: Tensor, generator: torch.Generator | None = None) -> Separation:
        """The separation of a batch of mixtures; estimates are as long as the mixture, for every T >= 1.

        Silence gives finite estimates. A sample that is NaN makes its utterance's estimates NaN, wherever it reaches:
        nothing is repaired in silence.

        Args:
            mixture: (B, T) floating-point waveforms at `sample_rate`.
            generator: source of the latent noise in training mode; None: torch's own.

        Raises:
            ValueError: another shape, T = 0, or integer samples.
        """
        _check_mixture(mixture)
        encoding = self.encode(mixture)
        z = encoding.sample(generator) if self.training else encoding.mean
        masks = self.mask_family.posterior(self.masker(self.filterbank.features(z)))
        mask = masks.sample(generator) if self.training else masks.median
        estimates = self.decode(self.filterbank.apply_mask(mask, z), mixture.shape[-1])
        scores = None if self.scoring_head is None else self.scoring_head(mask)
        return Separation(estimates=estimates, encoding=encoding, masks=masks, scores=scores)

    def encode(self, waveform: Tensor) -> Latent:
        """Posterior over the encodings (B, K_full, F) of waveforms (B, T), standardised and padded first."""
        standardised = (waveform - self.signal_mean) / self.signal_std
        left, right = self.filterbank.padding_for(waveform.shape[-1], self.pad)
        raw = self.filterbank.encode(nn.functional.pad(standardised, (left, right)))
        return self.encoding_family.posterior(raw.unflatten(-2, (-1, self.filterbank.full_dim)))

    def decode(self, encoding: Tensor, num_samples: int) -> Tensor:
        """Waveforms (B, n, num_samples), in the units of the mixture, of masked encodings (B, n, K_full, F)."""
        left, _ = self.filterbank.padding_for(num_samples, self.pad)
        decoded = self.filterbank.decode(encoding)
        # A negative pad crops; "asteroid" may fall short of the input by less than a stride.
        cropped = nn.functional.pad(decoded, (-left, left + num_samples - decoded.shape[-1]))
        return cropped * self.signal_std


def build_model(config: ModelConfig) -> EncoderMaskerDecoder:
    """A new model, weights at random, as `config` describes it.

    Raises:
        UserError: a field out of its range, or choices that do not go together.
    """
    for field in ("hypotheses", "sample_rate"):
        if getattr(config, field) < 1:
            raise UserError(f"model.{field}: found {getattr(config, field)}, expected at least 1")
    encoding_family = build(config.encoding)
    mask_family = build(config.masks)
    filterbank = build(config.filterbank, values_per_dimension=encoding_family.values_per_dimension)
    masker = build(
        config.masker,
        encoding_dim=filterbank.encoding_dim,
        hypotheses=config.hypotheses,
        values_per_dimension=mask_family.values_per_dimension,
    )
    model = EncoderMaskerDecoder(
        filterbank,
        masker,
        encoding_family,
        mask_family,
        sample_rate=config.sample_rate,
        pad=config.pad,
        scoring_head=config.scoring and ScoringHead(filterbank.encoding_dim, config.scoring.hidden_size),
    )
    model.config = config
    return model


def _check_mixture(mixture: Tensor) -> None:
    if mixture.ndim != 2 or mixture.shape[-1] == 0 or not mixture.is_floating_point():
        raise ValueError(
            f"mixture has shape {tuple(mixture.shape)} and type {mixture.dtype},"
            " expected floating-point (B, T) with at least one sample"
        )


def _check_encoding_link(filterbank: Filterbank, family: LatentFamily) -> None:
    if family.link == "softmax":
        raise UserError("model.encoding.link: found softmax, which runs over hypotheses; an encoding has none")
    if filterbank.linear_only and family.link != "linear":
        raise UserError(f"model.encoding.link: found {family.link}, expected linear with this filterbank")
