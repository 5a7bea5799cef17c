"""From a model's configuration to its parts, with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sepkit.models.maskers  # noqa: F401  It offers the maskers.
from sepkit.config import ModelConfig, PriorConfig, STFTFilterbankConfig
from sepkit.errors import UserError, shown
from sepkit.limits import SAMPLE_RATES
from sepkit.models.latents import LatentFamily
from sepkit.registry import build, offer

if TYPE_CHECKING:
    from sepkit.models.priors import Prior
    from sepkit.models.scoring import ScoringHead

offer({STFTFilterbankConfig: "sepkit.models.stft_filterbank"})
offer(dict.fromkeys(PriorConfig.choices.values(), "sepkit.models.priors"))


def parts_of(config: ModelConfig) -> dict[str, Any]:
    """Return the arguments of an `EncoderMaskerDecoder`: filterbank, masker, families of latents, priors ..."""
    if config.hypotheses < 1:
        raise UserError(f"model.hypotheses: found {shown(config.hypotheses)}, expected at least 1")
    if not SAMPLE_RATES[0] <= config.sample_rate <= SAMPLE_RATES[1]:
        raise UserError(
            f"model.sample_rate: found {shown(config.sample_rate)}, expected {SAMPLE_RATES[0]} to {SAMPLE_RATES[1]} Hz"
        )
    encoding_family = build(config.encoding)
    mask_family = build(config.masks)
    filterbank = build(config.filterbank, values_per_dimension=encoding_family.values_per_dimension)
    masker = build(
        config.masker,
        encoding_dim=filterbank.encoding_dim,
        hypotheses=config.hypotheses,
        values_per_dimension=filterbank.mask_values * mask_family.values_per_dimension,
    )
    return {
        "filterbank": filterbank,
        "masker": masker,
        "encoding_family": encoding_family,
        "mask_family": mask_family,
        "sample_rate": config.sample_rate,
        "pad": config.pad,
        "scoring_head": _build_scoring_head(config, filterbank.mask_dim),
        "encoding_prior": _build_prior("encoding", config.encoding_prior, encoding_family, filterbank.full_dim),
        "mask_prior": _build_prior("mask", config.mask_prior, mask_family, filterbank.mask_dim),
        "estimate_scales": config.estimate_scales,
        "input_norm": config.input_norm,
    }


def _build_scoring_head(config: ModelConfig, mask_dim: int) -> ScoringHead | None:
    if config.scoring is None:
        return None
    from sepkit.models.scoring import ScoringHead

    return ScoringHead(mask_dim, config.scoring.hidden_size)


def _build_prior(what: str, config: PriorConfig, family: LatentFamily, encoding_dim: int) -> Prior | None:
    if not family.variational:
        if config.needs_rate:
            raise UserError(f"model.{what}_prior: found {config.name}, but {family!r} is deterministic and has no rate")
        return None
    if what == "mask" and config.of_encodings_only:
        raise UserError(f"model.mask_prior: found {config.name}, which is a prior of encodings; use the standard one")
    return build(config, family=family, encoding_dim=encoding_dim)
