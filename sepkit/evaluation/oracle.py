"""Ceilings of a filterbank: scores of masks made with the true sources, which no model with such masks exceeds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sepkit.data.dataset import MixtureDataset
from sepkit.errors import UserError
from sepkit.evaluation.statistics import Summary, summarize_columns
from sepkit.models import EncoderMaskerDecoder
from sepkit.models.stft_filterbank import STFTFilterbank
from sepkit.objectives.costs import pairwise_neg_si_sdr

_TINY = 1e-12


def _binary(sources: Tensor, mixture: Tensor) -> Tensor:
    loudest = sources.abs().argmax(1, keepdim=True)
    return torch.zeros_like(sources.abs()).scatter_(1, loudest, 1.0)


def _ratio(sources: Tensor, mixture: Tensor) -> Tensor:
    magnitudes = sources.abs()
    return magnitudes / magnitudes.sum(1, keepdim=True).clamp_min(_TINY)


def _wiener(sources: Tensor, mixture: Tensor) -> Tensor:
    powers = sources.abs().square()
    return powers / powers.sum(1, keepdim=True).clamp_min(_TINY)


def _quotient(sources: Tensor, mixture: Tensor) -> Tensor:
    return sources * mixture.conj() / mixture.abs().square().clamp_min(_TINY)


def _phase_sensitive(sources: Tensor, mixture: Tensor) -> Tensor:
    return _quotient(sources, mixture).real.clamp(0, 1)


def _positive(sources: Tensor, mixture: Tensor) -> Tensor:
    return _quotient(sources, mixture).real.clamp_min(0)


def _real(sources: Tensor, mixture: Tensor) -> Tensor:
    return _quotient(sources, mixture).real


def _complex(sources: Tensor, mixture: Tensor) -> Tensor:
    quotient = _quotient(sources, mixture)
    return quotient / quotient.abs().clamp_min(1)


ORACLE_MASKS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "binary": (_binary, "1 where the source is the loudest, else 0"),
    "ratio": (_ratio, "magnitude of the source over the sum of all"),
    "wiener": (_wiener, "power of the source over the sum of all"),
    "phase_sensitive": (_phase_sensitive, "real part of source over mixture, within 0 and 1 (sigmoid masks)"),
    "phase_sensitive_positive": (_positive, "the same, 0 or more (relu, softplus and log-normal masks)"),
    "phase_sensitive_signed": (_real, "the same, of either sign (linear masks)"),
    "complex": (_complex, "source over mixture, modulus at most 1 (complex masks)"),
}
"""Name -> (mask (B, m, bins, F) of sources (B, m, bins, F) and mixture (B, 1, bins, F), and what it is)."""


def oracle_estimates(model: EncoderMaskerDecoder, mixture: Tensor, sources: Tensor) -> dict[str, Tensor]:
    """Return estimates (B, m, T) by every mask of `ORACLE_MASKS`, with the sources known.

    Noise, the rest of the mixture beside the sources, counts as one more source in sums, and has no estimate.

    Args:
        model: its STFT is used.
        mixture: (B, T).
        sources: (B, m, T).

    Raises:
        UserError: a model with another filterbank.

    Source: H. Erdogan et al., "Phase-sensitive and recognition-boosted speech separation", ICASSP 2015.
    """
    bank = model.filterbank
    if not isinstance(bank, STFTFilterbank):
        raise UserError(
            "--oracle: this model's filterbank is learned, and has no bins in which sources add up; expected one with"
            " the stft filterbank"
        )
    signals = torch.cat([mixture.unsqueeze(1), sources, (mixture - sources.sum(1)).unsqueeze(1)], dim=1)
    left, right = bank.padding_for(mixture.shape[-1], model.pad)
    padded = torch.nn.functional.pad(signals.flatten(0, 1), (left, right))
    # Gaussian encodings hold deviations behind the coefficients.
    coefficients = bank.encode(padded)[:, : bank.full_dim].unflatten(0, signals.shape[:2]).double()
    bins = torch.complex(*coefficients.chunk(2, dim=2))
    whole, parts = bins[:, :1], bins[:, 1:]
    estimates = {}
    for name, (mask_of, _) in ORACLE_MASKS.items():
        masked = mask_of(parts, whole)[:, : sources.shape[1]] * whole
        decoded = bank.decode(torch.cat([masked.real, masked.imag], dim=2).to(mixture))
        estimates[name] = decoded[..., left : left + mixture.shape[-1]]
    return estimates


@torch.no_grad()
def measure_oracle(model: EncoderMaskerDecoder, manifest: str) -> dict[str, Summary]:
    """Return mask of `ORACLE_MASKS` -> its SI-SDR improvement, dB, over the mixtures of a manifest.

    A single source is left out, because it is no mixture.

    Args:
        model: on the CPU; its STFT is used.
        manifest: of mixtures with sources.

    Raises:
        UserError: a model without an STFT, or mixtures at another rate or without sources.
    """
    found: dict[str, list[float]] = {name: [] for name in ORACLE_MASKS}
    speakers: list[list[str]] = []
    data = MixtureDataset(manifest, sample_rate=model.sample_rate)
    for entry, example in zip(data.manifest, map(data.__getitem__, range(len(data))), strict=True):
        sources, mixture = example.sources[example.active].unsqueeze(0), example.mixture.unsqueeze(0)
        if sources.shape[1] < 2:
            continue
        speakers.append([source.speaker for source in entry.sources])
        before = _si_sdr_db(mixture.unsqueeze(1).expand_as(sources), sources)
        for name, estimates in oracle_estimates(model, mixture, sources).items():
            found[name].append(_si_sdr_db(estimates, sources) - before)
    if not found["binary"]:
        raise UserError(f"{manifest}: no mixture has two sources that speak; expected mixtures with their sources")
    return summarize_columns(found, speakers)


def _si_sdr_db(estimates: Tensor, sources: Tensor) -> float:
    """Return the mean over sources, estimate k against source k."""
    return -pairwise_neg_si_sdr(estimates, sources)[0].diagonal().mean().item()
