"""Run a causal model block by block: the estimates equal those of the whole recording, each as soon as it is final."""

import torch
from torch import Tensor

from sepkit.models.emd import EncoderMaskerDecoder
from sepkit.models.maskers.base import Masker, looks_ahead


class ModelStream:
    """Recordings that pass through a causal model block by block.

        estimates = [stream.push(block) for block in blocks] + [stream.finish()]
        torch.cat(estimates, -1) == model(torch.cat(blocks, -1)).estimates

    up to rounding, for blocks of any sizes. The state from block to block: the samples that fill no frame yet, the
    masker's state, encodings that wait for their masks, and the half-finished overlap of the decoder. Latents are never
    sampled: they take the mean or median that the model takes outside training. There are no scores, because they
    need the whole recording.

    Attributes:
        lookahead_samples: Largest number of samples that must follow one before its estimates are final.

    Args:
        model: causal, and in evaluation mode.
        batch_size: B, how many recordings go side by side.

    Raises:
        ValueError: the model is in training mode.
    """

    def __init__(self, model: EncoderMaskerDecoder, batch_size: int = 1) -> None:
        if model.training:
            raise ValueError("the model is in training mode; call eval() before streaming")
        if not isinstance(model.masker, Masker):
            raise looks_ahead(f"the masker {type(model.masker).__name__}, for which no limit is known,")
        if model.input_norm == "mixture":
            raise looks_ahead("this model, which needs the level of the recording (input_norm: mixture),")
        bank = model.filterbank
        self._model = model
        self._masker = model.masker.stream()
        self.lookahead_samples = self._masker.lookahead_frames * bank.stride + bank.synthesis_size - 1
        # The zeros on the left are the same for any length of the recording.
        self._left, _ = bank.padding_for(1, model.pad)
        self._like = model.signal_mean
        self._samples = self._zeros(batch_size, self._left + bank.padding)
        self._encodings = self._zeros(batch_size, bank.full_dim, 0)
        self._overlap = self._zeros(batch_size, model.hypotheses, bank.synthesis_size - bank.stride)
        self._to_skip = self._left + bank.padding - (bank.kernel_size - bank.synthesis_size)
        self._frames = 0
        self._pushed = 0
        self._returned = 0
        self._finished = False

    def _zeros(self, *shape: int) -> Tensor:
        return self._like.new_zeros(shape)

    @torch.inference_mode()
    def push(self, mixture: Tensor) -> Tensor:
        """Take the next samples; return the next final estimates (B, n, T'). T' is 0 until enough samples have come.

        Args:
            mixture: (B, T), the next samples, on the device of the model; T >= 0.

        Raises:
            ValueError: a wrong shape, integer samples, or a finished stream.
        """
        self._check_open()
        if mixture.shape[:-1] != self._samples.shape[:-1] or not mixture.is_floating_point():
            raise ValueError(
                f"block has shape {tuple(mixture.shape)} and type {mixture.dtype},"
                f" expected floating-point ({len(self._samples)}, T)"
            )
        self._pushed += mixture.shape[-1]
        model = self._model
        return self._advance((mixture.to(self._like.dtype) - model.signal_mean) / model.signal_std)

    @torch.inference_mode()
    def finish(self) -> Tensor:
        """End the recording; return the estimates (B, n, T') of all samples that still have none.

        Raises:
            ValueError: a finished stream.
        """
        self._check_open()
        self._finished = True
        if self._pushed == 0:
            return self._overlap[..., :0]
        bank = self._model.filterbank
        _, right = bank.padding_for(self._pushed, self._model.pad)
        return self._advance(self._zeros(len(self._samples), right + bank.padding), end=True)

    def _check_open(self) -> None:
        if self._finished:
            raise ValueError("the stream is finished; start a new one for the next recording")

    def _advance(self, standardized: Tensor, end: bool = False) -> Tensor:
        model, bank = self._model, self._model.filterbank
        samples = torch.cat([self._samples, standardized], dim=-1)
        frames = max(0, (samples.shape[-1] - bank.kernel_size) // bank.stride + 1)
        self._samples = samples[..., frames * bank.stride :]
        self._frames += frames
        if frames:
            raw = bank.encode_frames(samples[..., : (frames - 1) * bank.stride + bank.kernel_size])
            posterior = model.encoding_family.posterior(raw.unflatten(-2, (-1, bank.full_dim)))
            encoding = model.encoding_family.at_test(posterior)
        elif end:
            encoding = self._encodings[..., :0]
        else:
            return self._overlap[..., :0]
        raw_masks = self._masker.push(bank.features(encoding), end)
        self._encodings = torch.cat([self._encodings, encoding], dim=-1)
        ready = raw_masks.shape[-1]
        if ready:
            masks = model.mask_family.at_test(model.mask_posterior(raw_masks))
            masked = bank.apply_mask(masks, self._encodings[..., :ready])
            self._encodings = self._encodings[..., ready:]
            final = self._overlap_add(bank.decode_frames(masked)[..., bank.kernel_size - bank.synthesis_size :], ready)
        else:
            final = self._overlap[..., :0]
        return self._trim(torch.cat([final, self._overlap], dim=-1) if end else final, end) * model.signal_std

    def _overlap_add(self, decoded: Tensor, frames: int) -> Tensor:
        """Return the samples that no later frame reaches, and keep the others."""
        rest = self._overlap.shape[-1]
        decoded[..., :rest] += self._overlap
        final, self._overlap = decoded.split([frames * self._model.filterbank.stride, rest], dim=-1)
        return final

    def _trim(self, decoded: Tensor, end: bool) -> Tensor:
        """Cut off the padding on the left; at the end, cut to the length that the recording still lacks."""
        skipped = min(self._to_skip, decoded.shape[-1])
        self._to_skip -= skipped
        decoded = decoded[..., skipped:]
        if end:
            bank, missing = self._model.filterbank, self._pushed - self._returned
            # The model stops decoding here ("asteroid" may fall short of the recording by less than a stride).
            length = (self._frames - 1) * bank.stride + bank.kernel_size - 2 * bank.padding
            length += bank.decoder.output_padding - self._left
            decoded = decoded[..., : max(0, min(missing, length - self._returned))]
            decoded = torch.nn.functional.pad(decoded, (0, missing - decoded.shape[-1]))
        self._returned += decoded.shape[-1]
        return decoded
