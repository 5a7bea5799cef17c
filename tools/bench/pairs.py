"""The models of the accelerator benchmark and their peers, each with its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sepkit.config import (
    BLRConfig,
    ConvTasNetConfig,
    DeterministicConfig,
    DualPathRNNConfig,
    FreeFilterbankConfig,
    GaussianConfig,
    ImprovedSuDoRMRFConfig,
    LogNormalConfig,
    MaskerConfig,
    ModelConfig,
    ObjectiveConfig,
    RatesConfig,
    SepFormerConfig,
    SteeringConfig,
)
from sepkit.models import build_model
from sepkit.objectives import build_objective
from sepkit.types import Batch

Trainable = tuple[nn.Module, Callable[[Any, Tensor], Tensor]]
"""A model, and its loss: (output of the model, sources) -> scalar."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the benchmark.

    Args:
        device: where it runs.
        batch: mixtures.
        num_samples: of each.
        seconds: of steps in turns, for each row.
        least_turns: at least this many turns.
        matrix: rows of the matrices whose product gives the peak.
        steps: number of steps with batches from disk, for the share of data loading.
        tiny: models of a few channels.
    """

    device: str
    batch: int
    num_samples: int
    seconds: float
    least_turns: int
    matrix: int
    steps: int
    tiny: bool


@dataclass(frozen=True)
class Model:
    """A model and its peer.

    Args:
        masker: ours, at full size and for a rehearsal.
        peer: package, or another model to compare with.
        asteroid: class of asteroid's.
        least_ratio: target for times faster; None: no target.
        variational: as VI-TasNet.
        filterbank: of the full size, as the peer has it.
        link: of the masks.
    """

    masker: tuple[MaskerConfig, MaskerConfig]
    peer: str
    asteroid: str | None = None
    least_ratio: float | None = None
    variational: bool = False
    filterbank: FreeFilterbankConfig = field(default_factory=FreeFilterbankConfig)
    link: Literal["relu", "sigmoid"] = "sigmoid"


_TINY = ConvTasNetConfig(bottleneck_channels=4, hidden_channels=8, skip_channels=4, blocks=2, repeats=1)
MODELS = {
    "Conv-TasNet": Model((ConvTasNetConfig(), _TINY), "asteroid", "ConvTasNet", 1.5),
    "DPRNN": Model(
        (
            DualPathRNNConfig(bottleneck_channels=128, hidden_channels=128),
            DualPathRNNConfig(bottleneck_channels=4, hidden_channels=4, repeats=1),
        ),
        "asteroid",
        "DPRNNTasNet",
        1.5,
        filterbank=FreeFilterbankConfig(num_filters=64),
    ),
    "SuDoRM-RF improved": Model(
        (
            ImprovedSuDoRMRFConfig(),
            ImprovedSuDoRMRFConfig(bottleneck_channels=4, hidden_channels=8, blocks=1, upsampling_depth=2),
        ),
        "asteroid",
        "SuDORMRFImprovedNet",
        filterbank=FreeFilterbankConfig(kernel_size=21, stride=10, padding=10, output_padding=9, multiple=80),
        link="relu",
    ),
    "VI-TasNet": Model((ConvTasNetConfig(), _TINY), "our deterministic TasNet", variational=True),
    "SepFormer": Model(
        (
            SepFormerConfig(),
            SepFormerConfig(model_dim=8, num_layers=1, chunk_size=20, transformer_layers=1, num_heads=2),
        ),
        "speechbrain",
        filterbank=FreeFilterbankConfig(num_filters=256),
        link="relu",
    ),
}


class _Given(nn.Module):
    """A model that takes only a mixture; `call` says how to call it, if not with the mixture alone."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, mixture: Tensor) -> Any:
        return self._call(self.model, mixture)


def config_of(name: str, sizes: Sizes) -> ModelConfig:
    """Return the configuration of the peer's sizes."""
    known = MODELS[name]
    filterbank = FreeFilterbankConfig(num_filters=16) if sizes.tiny else known.filterbank
    masks = DeterministicConfig(link=known.link)
    return ModelConfig(filterbank=filterbank, masker=known.masker[sizes.tiny], masks=masks, pad="asteroid")


def ours(name: str, sizes: Sizes, peer: nn.Module | None) -> Trainable:
    """Return a model of ours and its loss.

    Args:
        name: of `MODELS`.
        sizes: of the batch.
        peer: of `theirs`, whose weights ours takes if it is asteroid's at full size; None: random ones.
    """
    torch.manual_seed(0)
    known = MODELS[name]
    objective = ObjectiveConfig()
    if known.variational:
        steering = SteeringConfig(total=256.0, initial_weight=1e-9, change=1e-4)
        objective = ObjectiveConfig(cost=BLRConfig(), rates=RatesConfig(steering=steering))
        config = replace(config_of(name, sizes), encoding=GaussianConfig(), masks=LogNormalConfig())
        return _with_objective(build_model(config), objective, sizes)
    if peer is not None and known.asteroid is not None and not sizes.tiny:
        from sepkit.models.bridges import from_asteroid

        return _with_objective(from_asteroid(peer.model), objective, sizes)  # type: ignore[arg-type]
    return _with_objective(build_model(config_of(name, sizes)), objective, sizes)


def _with_objective(model: Any, objective: ObjectiveConfig, sizes: Sizes) -> Trainable:
    terms = build_objective(objective, model.traits())
    active = torch.ones(sizes.batch, 2, dtype=torch.bool, device=sizes.device)
    lengths = torch.full((sizes.batch,), sizes.num_samples, device=sizes.device)

    def batch_of(sources: Tensor) -> Batch:
        return Batch(sources.sum(1), sources, active, lengths, [""] * sizes.batch)

    def loss(separation: Any, sources: Tensor) -> Tensor:
        separation.estimates = separation.estimates.float()
        return terms(batch_of(sources), separation).loss.mean()

    return model, loss


def theirs(name: str, sizes: Sizes) -> Trainable:
    """Return the peer's model and its loss.

    Args:
        name: of `MODELS`.
        sizes: of the batch.

    Raises:
        ImportError: the peer is not installed.
    """
    torch.manual_seed(0)
    known = MODELS[name]
    if known.variational:
        return _with_objective(build_model(config_of(name, sizes)), ObjectiveConfig(), sizes)
    if known.asteroid is None:
        return _speechbrain(config_of(name, sizes))
    from asteroid import models
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr

    loss = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    model = getattr(models, known.asteroid)(2, **(_ASTEROID_TINY[known.asteroid] if sizes.tiny else {}))
    return _Given(model, lambda model, mixture: model(mixture.unsqueeze(1))), lambda estimates, sources: loss(
        estimates.float(), sources
    )


_ASTEROID_TINY: dict[str, dict[str, int]] = {
    "ConvTasNet": {"n_blocks": 2, "n_repeats": 1, "bn_chan": 4, "hid_chan": 8, "skip_chan": 4},
    "DPRNNTasNet": {"n_repeats": 1, "bn_chan": 4, "hid_size": 4},
    "SuDORMRFImprovedNet": {"bn_chan": 4, "num_blocks": 1, "upsampling_depth": 2},
}


def _speechbrain(config: ModelConfig) -> Trainable:
    """Return SepFormer of speechbrain's WSJ0-2mix recipe, with the sizes of ours, and its loss."""
    from speechbrain.lobes.models.dual_path import Decoder, Dual_Path_Model, Encoder, SBTransformerBlock
    from speechbrain.nnet.losses import get_si_snr_with_pitwrapper

    masker: Any = config.masker
    filterbank: Any = config.filterbank

    def transformer() -> nn.Module:
        return SBTransformerBlock(
            num_layers=masker.transformer_layers,
            d_model=masker.model_dim,
            nhead=masker.num_heads,
            d_ffn=masker.feedforward_dim,
            use_positional_encoding=True,
            norm_before=True,
        )

    channels = filterbank.num_filters
    network = Dual_Path_Model(
        channels,
        masker.model_dim,
        transformer(),
        transformer(),
        num_layers=masker.num_layers,
        norm="ln",
        K=masker.chunk_size,
        num_spks=2,
        skip_around_intra=True,
        linear_layer_after_inter_intra=False,
    )
    encoder = Encoder(kernel_size=16, out_channels=channels)
    decoder = Decoder(channels, 1, kernel_size=16, stride=8, bias=False)
    parts = nn.ModuleList([encoder, network, decoder])

    def forward(_: nn.Module, mixture: Tensor) -> Tensor:
        features = encoder(mixture)
        estimates = torch.stack([decoder(mask * features) for mask in network(features)], dim=1)
        return nn.functional.pad(estimates, (0, mixture.shape[-1] - estimates.shape[-1]))

    def loss(estimates: Tensor, sources: Tensor) -> Tensor:
        return get_si_snr_with_pitwrapper(sources.transpose(1, 2), estimates.float().transpose(1, 2)).mean()

    return _Given(parts, forward), loss
