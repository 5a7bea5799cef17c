"""Cost of quantization: the SI-SDR of an exported model of 8 bits against the one it was made from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sepkit.data import audio
from sepkit.data.manifest import read_manifest
from sepkit.data.mixing import mix_entry
from sepkit.errors import UserError
from sepkit.models.export.onnx_model import OnnxModel
from sepkit.objectives.assignment import PIT
from sepkit.objectives.costs import pairwise_neg_si_sdr

_NOISES, _NOISE_SECONDS = 8, 3


@dataclass
class QuantizationCost:
    """Means over mixtures, dB.

    Args:
        where: name of the manifest, or "noise".
        mixtures: number of mixtures.
        against_float_db: SI-SDR of the quantized estimates against those of the model in float.
        float_db: SI-SDR of the float estimates against the sources, in the best matching; None without sources.
        int8_db: of the quantized ones.
    """

    where: str
    mixtures: int
    against_float_db: float
    float_db: float | None = None
    int8_db: float | None = None

    def __str__(self) -> str:
        text = (
            f"SI-SDR of int8 against float on {self.mixtures} mixtures of {self.where}: {self.against_float_db:.1f} dB"
        )
        if self.float_db is None or self.int8_db is None:
            return text
        lost = self.float_db - self.int8_db
        of_sources = f"{self.float_db:.2f} dB in float, {self.int8_db:.2f} dB in int8"
        return f"{text}; against the sources {of_sources}: {lost:.2f} dB lost"


def quantization_cost(
    whole: str | os.PathLike[str],
    quantized: str | os.PathLike[str],
    manifest: str | os.PathLike[str] | None = None,
    *,
    first: int | None = None,
) -> QuantizationCost:
    """Return how much worse a quantized model is than the one it was made from.

    Args:
        whole: exported model in float.
        quantized: the same in 8 bits.
        manifest: of mixtures, with sources or without; None: noise, which is less informative.
        first: number of mixtures, from the beginning of the manifest; None: all.

    Raises:
        UserError: a bad manifest or number, or nothing in it to separate.
    """
    if first is not None and first < 1:
        raise UserError(f"--first: found {first}, expected at least 1 mixture")
    models = OnnxModel(whole), OnnxModel(quantized)
    against_float: list[float] = []
    scores: tuple[list[float], list[float]] = ([], [])
    for mixture, sources in _noises(models[0]) if manifest is None else _mixtures(models[0], manifest, first):
        estimates = [model(mixture).estimates for model in models]
        same = pairwise_neg_si_sdr(estimates[1], estimates[0]).diagonal(dim1=1, dim2=2)
        against_float.append(-float(same.mean()))
        if sources is not None and sources.shape[1] <= models[0].hypotheses:
            for score, estimate in zip(scores, estimates, strict=True):
                score.append(-float(PIT()(pairwise_neg_si_sdr(estimate, sources))))
    if not against_float:
        raise UserError(f"{manifest}: found no mixtures, expected at least one")
    where = "noise" if manifest is None else str(manifest)
    means = [float(np.mean(score)) if score else None for score in scores]
    return QuantizationCost(where, len(against_float), float(np.mean(against_float)), means[0], means[1])


def _noises(model: OnnxModel) -> Iterator[tuple[Tensor, None]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(_NOISES):
        noise = torch.randn(1, _NOISE_SECONDS * model.sample_rate, generator=generator)
        yield model.signal_mean + model.signal_std * noise, None


def _mixtures(
    model: OnnxModel, manifest: str | os.PathLike[str], first: int | None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield mixture (1, T) and sources (1, m, T), or None, at the model's rate."""
    for entry in tqdm(list(read_manifest(manifest))[:first], disable=None, unit="mixture"):
        mixed = mix_entry(entry)
        rate = entry.sample_rate
        mixture = torch.as_tensor(audio.resample(mixed.mixture, rate, model.sample_rate))
        sources = mixed.sources[mixed.sources.any(axis=1)]
        if not len(sources):
            yield mixture[None], None
            continue
        yield mixture[None], torch.as_tensor(audio.resample(sources, rate, model.sample_rate))[None]
