"""The stage term: estimates of a masker's inner stages learn the magnitudes of the sources."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sepkit.config import ObjectiveConfig
from sepkit.errors import UserError
from sepkit.objectives.assignment import Assignment
from sepkit.objectives.costs import Step
from sepkit.objectives.products import as_inputs, error_energy, inner_products, working_dtype
from sepkit.objectives.term import Term, trains
from sepkit.registry import build
from sepkit.schedules import Schedule

# The least scale of a source, as in the reference code.
_LEAST_SCALE = 0.01
# Added to the power of every bin: the square root of an exact zero has no gradient.
_POWER_FLOOR = 1e-10


class StageTerm(Term):
    """Mean over the stages of the distance between magnitudes of estimates and sources, dB, mean over active sources.

    Every stage is matched to the sources by itself, with the assignment of the separation.

    Args:
        schedule: of the term's weight, over epochs.
        window: samples in a window of the short-time Fourier transform.
        stride: samples between windows.

    Source: U.-H. Shin et al., "Separate and Reconstruct", NeurIPS 2024, section 3.4; magnitudes and scale as in the
    authors' code.
    """

    wants = frozenset({"stage_estimates"})

    def __init__(self, assignment: Assignment, schedule: Schedule, window: int = 512, stride: int = 128) -> None:
        self.assignment = assignment
        self.schedule = schedule
        self.window, self.stride = window, stride
        self.weight = schedule(0.0)

    def __call__(self, step: Step) -> Tensor:
        """Return the term's value for each utterance, (B,). Raise ValueError if there are no estimates of stages."""
        batch, values = step.batch, []
        for estimates in step.separation.extra("stage_estimates").unbind(1):
            # Half precision is too little for a difference of magnitudes, and has no Fourier transform.
            estimates = estimates.to(working_dtype(estimates, batch.sources))
            cost = pairwise_magnitude_cost(
                estimates, batch.sources, batch.lengths, batch.active, self.window, self.stride
            )
            values.append(self.assignment(cost, batch.active))
        return torch.stack(values).mean(0)

    def set_progress(self, t_epochs: float) -> None:
        """Set the term's weight."""
        self.weight = self.schedule(t_epochs)

    @property
    def scheduled(self) -> dict[str, float]:
        """The term's weight."""
        return {"stages_weight": self.weight}


@trains("stage_estimates", name="stages")
def build_stage_term(config: ObjectiveConfig, assignment: Assignment) -> StageTerm:
    """Return the term that `objective.stages` describes. Raise UserError if a field is out of its range."""
    stages, schedule = config.stages, build(config.stages.weight)
    if not 1 <= stages.stride <= stages.window:
        raise UserError(
            f"objective.stages: found window {stages.window} and stride {stages.stride}, expected a stride of 1 to the"
            " window"
        )
    if not 0 <= schedule(0.0) < math.inf:
        raise UserError(f"objective.stages.weight: found {schedule(0.0)} at the beginning, expected 0 or more")
    return StageTerm(assignment, schedule, stages.window, stages.stride)


def pairwise_magnitude_cost(
    estimates: Tensor,
    sources: Tensor,
    lengths: Tensor | None = None,
    active: Tensor | None = None,
    window: int = 512,
    stride: int = 128,
    eps: float = 1e-8,
) -> Tensor:
    """Return the negative signal-to-distortion ratio of magnitudes for every pair, (B, n, m) dB.

        10 log10( | |E| - |a S| |^2 / |a S|^2 ),   a = max(<e, s> / <s, s>, 0.01)

    E and S are short-time Fourier transforms (Hann window) of estimate e and source s without their means.

    Args:
        active: (B, m) bool; pairs with inactive sources are finite and have no gradient. None: all are active.
        window: samples.
        stride: samples.
        eps: of the ratio, keeps equal magnitudes finite.
    """
    waveforms = inner_products(estimates, sources, lengths, zero_mean=True, active=active)
    scale = (waveforms.cross / waveforms.source_energy.clamp_min(torch.finfo(torch.float64).tiny)).clamp_min(
        _LEAST_SCALE
    )
    of_estimates, of_sources = (_magnitudes(signals, lengths, window, stride) for signals in (estimates, sources))
    products = inner_products(of_estimates, of_sources, active=active)
    scaled = products._replace(cross=scale * products.cross, source_energy=scale.square() * products.source_energy)
    ratio = error_energy(scaled) / scaled.source_energy.clamp_min(torch.finfo(torch.float64).tiny)
    return as_inputs(10 * torch.log10(ratio + eps), estimates, sources)


def _magnitudes(signals: Tensor, lengths: Tensor | None, window: int, stride: int) -> Tensor:
    """Return the magnitudes of signals (B, n, T) without their means, (B, n, bins * frames)."""
    num_samples = signals.shape[-1]
    if lengths is not None:
        inside = (torch.arange(num_samples, device=signals.device) < lengths[:, None]).unsqueeze(1)
        mean = signals.where(inside, 0.0).sum(-1, keepdim=True) / lengths.view(-1, 1, 1).clamp_min(1)
        signals = (signals - mean).where(inside, 0.0)
    else:
        signals = signals - signals.mean(-1, keepdim=True)
    padded = max(-(-num_samples // stride) * stride, window)
    spectra = torch.stft(
        torch.nn.functional.pad(signals, (0, padded - num_samples)).flatten(0, 1),
        window,
        stride,
        window=torch.hann_window(window, dtype=signals.dtype, device=signals.device),
        center=False,
        return_complex=True,
    )
    power = torch.view_as_real(spectra).square().sum(-1) + _POWER_FLOOR
    return power.sqrt().flatten(1).unflatten(0, signals.shape[:2])
