"""From a model's configuration to its parts, with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import sepkit.models.maskers  # noqa: F401  It offers the maskers.
from sepkit.choices import check_bounds
from sepkit.config import ModelConfig, PriorConfig, STFTFilterbankConfig
from sepkit.errors import UserError
from sepkit.models.latents import LatentFamily
from sepkit.registry import build, offer

if TYPE_CHECKING:
    from sepkit.models.priors import Prior
offer({STFTFilterbankConfig: "sepkit.models.stft_filterbank"})
offer(dict.fromkeys(PriorConfig.choices.values(), "sepkit.models.priors"))


def parts_of(config: ModelConfig) -> dict[str, Any]:
    """Return the arguments of an `EncoderMaskerDecoder`: filterbank, masker, families of latents, priors ...

    Raises:
        UserError: The configuration describes no model.
    """
    check_bounds(config, "model")
    encoding_family, mask_family = build(config.encoding), build(config.masks)
    bank = build(config.filterbank, values_per_dimension=encoding_family.values_per_dimension)
    masker = build(
        config.masker,
        encoding_dim=bank.encoding_dim,
        hypotheses=config.hypotheses,
        values_per_dimension=bank.mask_values * mask_family.values_per_dimension,
    )
    return {
        "filterbank": bank,
        "masker": masker,
        "encoding_family": encoding_family,
        "mask_family": mask_family,
        "sample_rate": config.sample_rate,
        "pad": config.pad,
        "scoring_head": ScoringHead(bank.mask_dim, config.scoring.hidden_size) if config.scoring else None,
        "encoding_prior": _build_prior("encoding", config.encoding_prior, encoding_family, bank.full_dim),
        "mask_prior": _build_prior("mask", config.mask_prior, mask_family, bank.mask_dim),
        "estimate_scales": config.estimate_scales,
        "input_norm": config.input_norm,
    }


def _build_prior(what: str, config: PriorConfig, family: LatentFamily, encoding_dim: int) -> Prior | None:
    if not family.variational and config.needs_rate:
        raise UserError(f"model.{what}_prior: found {config.name}, but {family!r} is deterministic and has no rate")
    if family.variational and what == "mask" and config.of_encodings_only:
        raise UserError(f"model.mask_prior: found {config.name}, which is a prior of encodings; use the standard one")
    return build(config, family=family, encoding_dim=encoding_dim) if family.variational else None


class ScoringHead(nn.Module):
    """The log-odds that a hypothesis is a speaker, from its mask alone: Linear(mean over frames), ReLU, Linear.

    The mean is over all frames, including the padding of shorter utterances in a batch: a model does not get lengths.
    Recordings that are separated one by one have no padding.

    Args:
        mask_dim: values of a mask in a frame (K).

    Source: reference code of the aMCL paper, where the mean follows the first layer; linear maps and means commute.
    """

    def __init__(self, mask_dim: int, hidden_size: int = 128) -> None:
        super().__init__()
        self.hidden = nn.Linear(mask_dim, hidden_size)
        self.output = nn.Linear(hidden_size, 1)

    def forward(self, masks: Tensor) -> Tensor:
        """Return log-odds that a hypothesis is a speaker, (B, n); masks are (B, n, K, F)."""
        # Scores are compared with a threshold: bfloat16's two digits are too few, and float32 costs almost nothing.
        with torch.autocast(masks.device.type, enabled=False):
            return self.output(self.hidden(masks.mean(-1, dtype=self.hidden.weight.dtype)).relu()).squeeze(-1)
