"""Types that models, objectives, data and training share: `Batch`, `Separation`, `ModelTraits`, `Losses`, protocols.

Shapes use B batch, n hypotheses, m sources, T samples, K encoding dimensions, F frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass
class Batch:
    """Mixtures with their references, padded with zeros to the longest.

    Args:
        mixture: Waveforms of the mixtures, (B, T).
        sources: Waveforms of the speakers, (B, m, T); rows of inactive sources are zero.
        active: Which sources are active, (B, m) bool; False where a mixture has fewer than m sources.
        lengths: Numbers of samples before padding, (B,) int64.
        ids: Identifiers of the mixtures, B or none.
    """

    mixture: Tensor
    sources: Tensor
    active: Tensor
    lengths: Tensor
    ids: list[str] = field(default_factory=list)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Return the same batch on another device.

        Args:
            device: Device of torch.
            non_blocking: Whether the host continues while tensors are copied.
        """
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in moved.items():
            if hasattr(value, "to"):
                moved[name] = value.to(device, non_blocking=non_blocking)
        return Batch(**moved)

    def without_padding(self) -> Iterator[tuple[list[int], Batch]]:
        """Yield a batch for each length, without padding, after the places of its examples in this one."""
        lengths = self.lengths.tolist()
        for length in sorted(set(lengths)):
            places = [place for place, found in enumerate(lengths) if found == length]
            yield (
                places,
                Batch(
                    self.mixture[places, :length],
                    self.sources[places, :, :length],
                    self.active[places],
                    self.lengths[places],
                    [self.ids[place] for place in places] if self.ids else [],
                ),
            )

    def pin_memory(self) -> Batch:
        """Return the same batch in page-locked memory (called by torch's DataLoader)."""
        return Batch(
            self.mixture.pin_memory(),
            self.sources.pin_memory(),
            self.active.pin_memory(),
            self.lengths.pin_memory(),
            self.ids,
        )


@runtime_checkable
class Density(Protocol):
    """A prior of latents: flexible, or a distribution itself."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the elementwise log density in nats; only the sum over the dimensions of a frame may mean anything."""
        ...


@runtime_checkable
class Latent(Protocol):
    """A posterior over encodings (B, K, F) or masks (B, n, K, F); that of a deterministic value is a point."""

    @property
    def shape(self) -> torch.Size:
        """Shape of one sample."""
        ...

    @property
    def mean(self) -> Tensor:
        """Posterior mean."""
        ...

    @property
    def variance(self) -> Tensor:
        """Posterior variance, elementwise."""
        ...

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return one reparameterized sample: gradients reach the posterior's parameters. Without a generator the noise
        is torch's own."""
        ...

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the elementwise log density in nats."""
        ...

    def kl(self, prior: Any) -> Tensor:
        """Return the elementwise KL(posterior || prior) in nats; zero for a point."""
        ...


@dataclass
class Separation:
    """The output of a model for a batch of mixtures.

    Args:
        estimates: Waveforms of the estimates, (B, n, T), in the units of the mixture.
        encoding: Posterior over encodings, samples of shape (B, K, F).
        masks: Posterior over masks, samples of shape (B, n, K, F).
        scores: Log-odds that a hypothesis is a speaker, (B, n); None: the model has no scoring head.
        estimate_scales: Positive scales of the estimates, (B, n, T); None: the decoder does not model its deviation.
        source_encodings: Posterior over the encodings of the sources, samples of shape (B, m, K, F); None: the model
            got no sources.
        reconstructions: Decoded encoding without masks, (B, T); None: not requested.
        extras: Inputs of single terms of an objective, by name: the densities "encoding_prior", "mask_prior" and
            "source_prior" of variational latents; the samples "encoding_sample", "mask_sample" and "source_sample" of
            sampled latents; the decoded encodings of the sources, "source_reconstructions" (B, m, T).
    """

    estimates: Tensor
    encoding: Latent
    masks: Latent
    scores: Tensor | None = None
    estimate_scales: Tensor | None = None
    source_encodings: Latent | None = None
    reconstructions: Tensor | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    def extra(self, name: str) -> Any:
        """Return an extra.

        Args:
            name: Name of the extra.

        Raises:
            ValueError: no extra of this name.
        """
        if name not in self.extras:
            raise ValueError(f"the separation has no {name}; call the model with Objective.inputs")
        return self.extras[name]


@dataclass(frozen=True)
class ModelTraits:
    """Facts about a model that its objective needs.

    Args:
        offers: Names of outputs of the model beside estimates: "scores", and extras of `Separation`.
        signal_std: the stored deviation of the training mixtures.
        score_loss: Loss of the scores; None: binary.
        frames_for: number of samples -> frames in their encoding.
        adaptive_prior: whether the prior of the encodings changes with those of the sources.
    """

    offers: Set[str] = frozenset()
    signal_std: float = 1.0
    score_loss: Literal["binary", "cross_entropy"] | None = None
    frames_for: Callable[[int], int] = lambda samples: samples
    adaptive_prior: bool = False


@dataclass
class Losses:
    """The value of an objective for each example of a batch.

    Args:
        loss: (B,), the weighted sum of the terms.
        terms: (B,) each, by name, unweighted.
        statistics: (B,) each, by name, detached: recorded but not minimized; zero in the examples that do not count.
        counted: (B,) bool, the examples that statistics are about; None: all.
    """

    loss: Tensor
    terms: dict[str, Tensor] = field(default_factory=dict)
    statistics: dict[str, Tensor] = field(default_factory=dict)
    counted: Tensor | None = None
