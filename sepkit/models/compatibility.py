"""Which parts of a separation model go together."""

from __future__ import annotations

from torch import nn

from sepkit.errors import UserError
from sepkit.models.filterbanks import Filterbank
from sepkit.models.latents import Deterministic, Gaussian, LatentFamily
from sepkit.models.maskers.base import Masker


def check_encoding_activation(filterbank: Filterbank, family: LatentFamily) -> None:
    """Raise UserError if the activation of the encoding does not go with the filterbank."""
    if family.activation == "softmax":
        raise UserError("model.encoding.activation: found softmax, which runs over hypotheses; an encoding has none")
    if filterbank.linear_only and family.activation != "linear":
        raise UserError(f"model.encoding.activation: found {family.activation}, expected linear with this filterbank")


def check_mask_activation(filterbank: Filterbank, family: LatentFamily) -> None:
    """Raise UserError if the family of the masks or its activation does not go with the filterbank."""
    signed = isinstance(family, Deterministic | Gaussian) and family.activation in ("linear", "tanh")
    if filterbank.mapping and not filterbank.complex_masks and not signed:
        raise UserError(
            f"model.masks: found {family!r}, but with mapping the masker's values are an encoding, of either sign;"
            " use the deterministic or the gaussian family with activation linear or tanh"
        )
    if filterbank.complex_masks and not signed:
        raise UserError(
            f"model.masks: found {family!r}, but complex masks have values of either sign;"
            " use the deterministic or the gaussian family with activation linear or tanh"
        )


def check_masker(masker: nn.Module, filterbank: Filterbank, sample_rate: int, has_scoring_head: bool = False) -> None:
    """Raise UserError if the masker does not go with the filterbank, or with a scoring head."""
    rate = getattr(masker, "sample_rate", sample_rate)
    if rate != sample_rate:
        raise UserError(f"model.masker: found a layout of bands for {rate} Hz, but model.sample_rate is {sample_rate}")
    maps = getattr(masker, "maps", False)
    as_they_are = filterbank.mapping and getattr(filterbank, "compression", None) == 1
    if maps and not as_they_are:
        raise UserError(
            "model.masker: its values are the estimates' coefficients, made of the mixture's as they are; set"
            " model.filterbank.mapping to true and model.filterbank.compression to 1"
        )
    if has_scoring_head and isinstance(masker, Masker) and masker.counts_speakers:
        raise UserError(
            "model.scoring: the masker has scores of its own; leave it out, or count_speakers of the masker"
        )


def check_input_norm(input_norm: str, encoding_family: LatentFamily, mask_family: LatentFamily) -> None:
    """Raise UserError if the latents do not go with this way to scale mixtures."""
    if input_norm not in ("training", "mixture"):
        raise UserError(f"model.input_norm: found {input_norm!r}, expected training or mixture")
    if input_norm == "mixture" and (encoding_family.variational or mask_family.variational):
        raise UserError("model.input_norm: found mixture with variational latents, expected training")
