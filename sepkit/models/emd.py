"""The encoder-masker-decoder: mixtures to estimates, deterministic or variational."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from sepkit.config import ModelConfig
from sepkit.errors import UserError
from sepkit.models.filterbanks import Decoder, Filterbank, free_filters
from sepkit.models.latents import FLOOR, Deterministic, Gaussian, LatentFamily
from sepkit.models.maskers.base import FramewiseEnd, Masker, MaskerOutput
from sepkit.models.parts import parts_of
from sepkit.models.saved import SavedModel
from sepkit.types import Latent, ModelTraits, Separation

if TYPE_CHECKING:
    from sepkit.models.priors import Prior

# Frames whose masks `EncoderMaskerDecoder.estimates` computes at once: some MB, which stay in a cache.
_TILE_FRAMES = 1024
# Recordings with a smaller deviation are silent: rounding noise is not scaled to the level of speech.
_SILENT_DEVIATION = 1e-7


class EncoderMaskerDecoder(SavedModel):
    """Estimates of the sources in a mixture, by masks on an encoding of it.

        z ~ q(z | x) = family(encoder((x - mean) / deviation))
        M ~ q(M | z) = family(masker(features(z)))
        estimate_i = deviation * decoder(M_i (*) z)

    Latents are sampled in training mode. In evaluation mode they are sampled only on request; otherwise the family's
    `at_test` value is used. Deterministic latents give the same result either way.

    Attributes:
        sample_rate: Sampling rate of the model, Hz.
        hypotheses: Number of estimates, n.
        signal_mean, signal_std: Mean and deviation of the training mixtures (buffers, 0 and 1 until measured).

    Args:
        filterbank: Encoder and decoder.
        encoding_family: Family of the encoding's posterior.
        mask_family: Family of the masks' posterior.
        encoding_prior: Prior of the encoding; None: deterministic encodings.
        mask_prior: Prior of the masks; None: deterministic masks.
        masker: Map from (B, K, F) to raw (B, n, P, K, F): a `Masker`, or any module with `hypotheses`.
        sample_rate: Sampling rate of the model, Hz.
        pad: Padding: "full" loses no sample at either end; "asteroid" pads and trims only on the right, as asteroid
            does.
        scoring_head: Map from masks (B, n, K, F) to scores (B, n); None: no scores.
        estimate_scales: Whether a second decoder outputs a positive scale for every sample of the estimates.
        input_norm: Normalization: "training" divides mixtures by the stored training deviation; "mixture" first scales
            each mixture to that deviation, and its estimates back.
    """

    kind = "separation"
    config_type = ModelConfig
    config: ModelConfig | None
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
        encoding_prior: Prior | None = None,
        mask_prior: Prior | None = None,
        estimate_scales: bool = False,
        input_norm: Literal["training", "mixture"] = "training",
    ) -> None:
        super().__init__()
        self.filterbank = filterbank
        self.masker = masker
        self.encoding_family = encoding_family
        self.mask_family = mask_family
        self.sample_rate = sample_rate
        self.pad: Literal["full", "asteroid"] = pad
        self.input_norm: Literal["training", "mixture"] = input_norm
        self._check_parts(scoring_head is not None)
        # A masker that counts speakers makes the scores itself.
        self.scoring_head = nn.Identity() if self.counts_speakers else scoring_head
        self.encoding_prior = encoding_prior
        self.mask_prior = mask_prior
        self.scale_decoder: Decoder | None = None
        if estimate_scales:
            filters = free_filters(filterbank.full_dim, filterbank.kernel_size)
            output_padding = filterbank.decoder.output_padding
            self.scale_decoder = Decoder(filters, filterbank.stride, filterbank.padding, output_padding)
        self.register_buffer("signal_mean", torch.zeros(()))
        self.register_buffer("signal_std", torch.ones(()))

    def _check_parts(self, has_scoring_head: bool) -> None:
        """Raise UserError if the parts of the model do not go together."""
        bank, encoding, masks = self.filterbank, self.encoding_family, self.mask_family
        signed = isinstance(masks, Deterministic | Gaussian) and masks.activation in ("linear", "tanh")
        use_signed = "use the deterministic or the gaussian family with activation linear or tanh"
        if encoding.activation == "softmax":
            raise UserError("model.encoding.activation: found softmax over hypotheses, which an encoding does not have")
        if bank.linear_only and (found := encoding.activation) != "linear":
            raise UserError(f"model.encoding.activation: found {found}, expected linear with this filterbank")
        if (bank.complex_masks or bank.mapping) and not signed:
            of_which = "complex masks have values" if bank.complex_masks else "with mapping the masker makes encodings"
            raise UserError(f"model.masks: found {masks!r}, but {of_which} of either sign; {use_signed}")
        together = getattr(bank, "together", 0)
        if together not in (0, self.hypotheses) or (together and self.variational):
            raise UserError(
                f"model.filterbank.together: found {together}, expected 0, or the number of hypotheses"
                f" ({self.hypotheses}) of a deterministic model"
            )
        if (rate := getattr(self.masker, "sample_rate", self.sample_rate)) != self.sample_rate:
            raise UserError(f"model.masker: found bands for {rate} Hz, but model.sample_rate is {self.sample_rate}")
        if getattr(self.masker, "maps", False) and not (bank.mapping and getattr(bank, "compression", None) == 1):
            raise UserError(
                "model.masker: its values are the estimates' coefficients, made of the mixture's as they are; set"
                " model.filterbank.mapping to true and model.filterbank.compression to 1"
            )
        if has_scoring_head and self.counts_speakers:
            raise UserError("model.scoring: the masker has scores of its own; leave out one of the two")
        if self.input_norm not in ("training", "mixture"):
            raise UserError(f"model.input_norm: found {self.input_norm!r}, expected training or mixture")
        if self.input_norm == "mixture" and self.variational:
            raise UserError("model.input_norm: found mixture with variational latents, expected training")
        if self.pad == "asteroid" and bank.synthesis_size < bank.kernel_size:
            raise UserError("model.pad: asteroid pads only the right; with model.filterbank.synthesis_size, set full")

    @classmethod
    def from_config(cls, config: ModelConfig) -> EncoderMaskerDecoder:
        """Return a new model with random weights, see `build_model`.

        Args:
            config: Configuration of the model.
        """
        model = cls(**parts_of(config))
        model.config = config
        return model

    def facts(self) -> dict[str, Any]:
        """The sample rate, and the mean and deviation of the training mixtures."""
        return {
            "sample_rate": self.sample_rate,
            "signal_mean": float(self.signal_mean),
            "signal_std": float(self.signal_std),
        }

    @property
    def hypotheses(self) -> int:
        """Number of estimates (n)."""
        return self.masker.hypotheses  # type: ignore[return-value]

    @property
    def causal(self) -> bool:
        """Whether the model can run block by block, see `sepkit.models.streaming.ModelStream`."""
        if self.input_norm != "training" or not isinstance(self.masker, Masker):
            return False
        try:
            self.masker.stream()
        except UserError:
            return False
        return True

    @property
    def score_loss(self) -> Literal["binary", "cross_entropy"] | None:
        """What scores are trained by, which says what they mean; None for a model without scores."""
        if self.scoring_head is None:
            return None
        return "binary" if self.config is None or self.config.scoring is None else self.config.scoring.loss

    def set_signal_statistics(self, mean: float, std: float) -> None:
        """Store the mean and deviation of the training mixtures. Every input is standardized with them.

        Args:
            mean: Mean of the training mixtures.
            std: Deviation of the training mixtures.

        Raises:
            ValueError: not finite, or a deviation of zero or less.
        """
        if not (torch.isfinite(torch.tensor([mean, std])).all() and std > 0):
            raise ValueError(f"mean {mean} and deviation {std}, expected finite values and a positive deviation")
        self.signal_mean.fill_(mean)
        self.signal_std.fill_(std)

    def forward(
        self,
        mixture: Tensor,
        generator: torch.Generator | None = None,
        sources: Tensor | None = None,
        active: Tensor | None = None,
        wants: Set[str] = frozenset(),
        sample: bool | None = None,
        speakers: Tensor | None = None,
    ) -> Separation:
        """Return the separation of mixtures; estimates are as long as the mixture, for every T >= 1.

        Silence gives finite estimates. A NaN sample makes all estimates that depend on it NaN: nothing is repaired.

        Args:
            mixture: (B, T) floating-point waveforms at `sample_rate`.
            generator: Generator of the latent noise; None: torch's own.
            sources: (B, m, T) waveforms, if an adaptive prior or the objective needs their encodings.
            active: (B, m) bool, which of them speak; None: all.
            wants: names of what is made on request: "reconstructions", "source_reconstructions" (which needs
                `sources`).
            sample: whether latents are sampled; None: only in training mode.
            speakers: (B,) how many speak, for a masker that counts speakers and makes no more estimates than there are;
                None: as many as are `active` in training mode, else as it counts.

        Raises:
            ValueError: another shape, T = 0, or integer samples.
        """
        _check_mixture(mixture)
        if speakers is None and self.training and active is not None:
            speakers = active.sum(1)
        mixture, gain = self._leveled(mixture)
        if gain is not None and sources is not None:
            sources = sources / gain.unsqueeze(1)
        sample = self.training if sample is None else sample
        num_samples = mixture.shape[-1]
        encoding = self.encode(mixture)
        z = _value(self.encoding_family, encoding, sample, generator)
        made = self._masker_output(self.filterbank.features(z), speakers)
        masks = self.mask_posterior(made.values)
        mask = _value(self.mask_family, masks, sample, generator)
        masked = self.filterbank.apply_mask(mask, z)
        separation = Separation(_times(self.decode(masked, num_samples), gain), encoding, masks)
        extras = separation.extras
        separation.scores = self._scores(made, mask)
        if self.scale_decoder is not None:
            raw = self._crop(self.scale_decoder(masked), num_samples)
            separation.estimate_scales = _times(self.signal_std * nn.functional.softplus(raw).clamp_min(FLOOR), gain)
        if sample and self.encoding_family.variational:
            extras["encoding_sample"] = z
        if sample and self.mask_family.variational:
            extras["mask_sample"] = mask
        if "reconstructions" in wants:
            decoded = self.decode(z.unsqueeze(1), num_samples).squeeze(1) + self.signal_mean
            separation.reconstructions = _times(decoded, gain)
        if sources is not None:
            separation.source_encodings = encodings = self.encode_sources(sources)
            if "source_reconstructions" in wants:
                value = _value(self.encoding_family, encodings, sample, generator)
                extras["source_reconstructions"] = _times(self.decode(value, num_samples), gain)
                if sample and self.encoding_family.variational:
                    extras["source_sample"] = value
        if self.encoding_prior is not None:
            extras["encoding_prior"] = self.encoding_prior(separation.source_encodings, active)
            extras["source_prior"] = self.encoding_prior.of_sources()
        if self.mask_prior is not None:
            extras["mask_prior"] = self.mask_prior()
        return separation

    @property
    def variational(self) -> bool:
        """True if any latents have a distribution; the others are deterministic."""
        return self.encoding_family.variational or self.mask_family.variational

    @property
    def counts_speakers(self) -> bool:
        """Whether the masker counts speakers, and outputs no more estimates than it counts or is given."""
        return isinstance(self.masker, Masker) and self.masker.counts_speakers

    def traits(self) -> ModelTraits:
        """Return the facts about this model that an objective needs."""
        own = {"scores": self.scoring_head, "encoding_prior": self.encoding_prior, "mask_prior": self.mask_prior}
        return ModelTraits(
            offers=frozenset(name for name, part in own.items() if part is not None),
            signal_std=float(self.signal_std),
            score_loss=self.score_loss,
            frames_for=self.frames_for,
            adaptive_prior=self.encoding_prior is not None and self.encoding_prior.needs_sources,
        )

    @property
    def steps(self) -> int | None:
        """Number of steps that a masker of continuous depth takes; None for a masker of fixed depth."""
        return getattr(self.masker, "steps", None)

    def set_steps(self, steps: int | None) -> None:
        """Set the number of steps of a masker of continuous depth, see `Masker.set_steps`.

        Args:
            steps: Number of steps, at least 1; None: that of the configuration.
        """
        self.masker.set_steps(steps)  # type: ignore[operator]

    def _gain(self, mixture: Tensor) -> Tensor:
        """Return the factor that scales each mixture (B, T) to the training mixtures' deviation, (B, 1)."""
        return self.signal_std / mixture.std(-1, correction=0, keepdim=True).clamp_min(_SILENT_DEVIATION)

    def _leveled(self, mixture: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return mixtures (B, T) as the model takes them, and gains (B, 1) of its waveforms; None: the gain is 1."""
        if self.input_norm != "mixture":
            return mixture, None
        gain = self._gain(mixture)
        return mixture * gain, gain.reciprocal()

    def _masker_output(self, features: Tensor, speakers: Tensor | None = None) -> MaskerOutput:
        if isinstance(self.masker, Masker):
            return self.masker.with_scores(features, speakers)
        return MaskerOutput(self.masker(features))

    def _scores(self, made: MaskerOutput, mask: Tensor) -> Tensor | None:
        """Return scores (B, n), the masker's own or those of its masks (B, n, K_mask, F); None if there are none."""
        if self.counts_speakers:
            return made.scores
        return None if self.scoring_head is None else self.scoring_head(mask)

    def estimates(self, mixture: Tensor) -> Tensor:
        """Return only the estimates, (B, n, T), as `forward` without sampling.

        Masks are the largest tensors of a model. If the last layers of the masker process each frame separately, masks
        are computed tile by tile and never stored in full.

        Args:
            mixture: Waveforms, (B, T).
        """
        _check_mixture(mixture)
        bank = self.filterbank
        mixture, gain = self._leveled(mixture)
        z = self.encoding_family.value(self._encode(mixture - self.signal_mean))
        if not isinstance(self.masker, FramewiseEnd):
            masks = self._masks_at_test(self.masker(bank.features(z)))
            return _times(self.decode(bank.apply_mask(masks, z), mixture.shape[-1]), gain)
        summary = self.masker.trunk(bank.features(z))
        frames = z.shape[-1]
        decoded = z.new_zeros(len(z), self.hypotheses, (frames - 1) * bank.stride + bank.kernel_size)
        for start in range(0, frames, _TILE_FRAMES):
            tile = slice(start, start + _TILE_FRAMES)
            masks = self._masks_at_test(self.masker.values(summary[..., tile]))
            waveforms = bank.decode_frames(bank.apply_mask(masks, z[..., tile]))
            first = start * bank.stride
            decoded[..., first : first + waveforms.shape[-1]] += waveforms
        trimmed = nn.functional.pad(decoded, bank.trim)
        return _times(self._crop(trimmed, mixture.shape[-1]) * self.signal_std, gain)

    def mask_posterior(self, raw: Tensor) -> Latent:
        """Return the posterior over the masks, (B, n, K_mask, F).

        Args:
            raw: Output of the masker, (B, n, P, K, F).
        """
        return self.mask_family.posterior(self.filterbank.raw_masks(raw))

    def _masks_at_test(self, raw: Tensor) -> Tensor:
        return self.mask_family.value(self.filterbank.raw_masks(raw))

    def encode(self, waveform: Tensor) -> Latent:
        """Return the posterior over encodings, (B, K_full, F).

        Args:
            waveform: Waveforms, (B, T), in the mixture's units; they are standardized and padded first.
        """
        return self.encoding_family.posterior(self._encode(waveform - self.signal_mean))

    def encode_sources(self, sources: Tensor) -> Latent:
        """Return the posterior over the encodings of the sources of mixtures, (B, m, K_full, F).

        Sources are divided by the training deviation, as mixtures are, but keep their means: they still add up.

        Args:
            sources: Waveforms of the sources, (B, m, T).
        """
        return self.encoding_family.posterior(self._encode(sources.flatten(0, 1)).unflatten(0, sources.shape[:2]))

    def _encode(self, waveform: Tensor) -> Tensor:
        """Return raw values (B, P, K_full, F)."""
        left, right = self.filterbank.padding_for(waveform.shape[-1], self.pad)
        raw = self.filterbank.encode(nn.functional.pad(waveform / self.signal_std, (left, right)))
        return raw.unflatten(-2, (-1, self.filterbank.full_dim))

    def uncertainty_energy(self, separation: Separation) -> Tensor:
        """Return the expected energy of what the width of the masks' posterior adds to each estimate, (B, n).

        E sum_t (s_t - E s_t)^2 over masks ~ q, in the mixture's units; the encoding stays at its posterior's value.

        Args:
            separation: Separation by this model, without sampling.
        """
        encoding = self.encoding_family.at_test(separation.encoding)
        variance = separation.masks.variance.expand(separation.masks.shape)
        energy = self.filterbank.decoded_energy(self.filterbank.masked_variance(variance, encoding))
        return energy * self.signal_std.square()

    def frames_for(self, num_samples: int) -> int:
        """Return F, the number of frames in an encoding.

        Args:
            num_samples: Length of the mixture, samples.
        """
        return self.filterbank.frames_for(num_samples, self.pad)

    def decode(self, encoding: Tensor, num_samples: int) -> Tensor:
        """Return waveforms, (B, n, T), in the mixture's units.

        Args:
            encoding: Masked encodings, (B, n, K_full, F).
            num_samples: Length of the mixture, T, samples.
        """
        return self._crop(self.filterbank.decode(encoding), num_samples) * self.signal_std

    def _crop(self, decoded: Tensor, num_samples: int) -> Tensor:
        left, _ = self.filterbank.padding_for(num_samples, self.pad)
        # A negative pad crops; "asteroid" may fall short of the input by less than a stride.
        return nn.functional.pad(decoded, (-left, left + num_samples - decoded.shape[-1]))


def _value(family: LatentFamily, posterior: Latent, sample: bool, generator: torch.Generator | None) -> Tensor:
    return posterior.sample(generator) if sample else family.at_test(posterior)


def _times(waveforms: Tensor, gain: Tensor | None) -> Tensor:
    """Multiply waveforms (B, ..., T) by gains (B, 1), if there are any."""
    return waveforms if gain is None else waveforms * gain.view(-1, *[1] * (waveforms.ndim - 1))


def _check_mixture(mixture: Tensor) -> None:
    if mixture.ndim != 2 or mixture.shape[-1] == 0 or not mixture.is_floating_point():
        raise ValueError(
            f"mixture has shape {tuple(mixture.shape)} and type {mixture.dtype},"
            " expected floating-point (B, T) with at least one sample"
        )


def build_model(config: ModelConfig) -> EncoderMaskerDecoder:
    """Return a new model with random weights.

    Args:
        config: Configuration of the model.

    >>> from sepkit.config import ModelConfig, RecurrentConfig
    >>> model = build_model(ModelConfig(hypotheses=3, masker=RecurrentConfig(hidden_size=8, num_layers=1)))
    >>> model.hypotheses
    3
    """
    return EncoderMaskerDecoder.from_config(config)
