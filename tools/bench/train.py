"""A training step: sepkit against asteroid on the same weights and batch, and variational models against their twin."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import (
    BLRConfig,
    ConvTasNetConfig,
    FreeFilterbankConfig,
    GaussianConfig,
    LogNormalConfig,
    ModelConfig,
    ObjectiveConfig,
    RatesConfig,
    SepFormerConfig,
    SteeringConfig,
)
from sepkit.models import EncoderMaskerDecoder, build_model
from sepkit.objectives import build_objective
from sepkit.types import Batch
from tools.bench import separate
from tools.bench.measure import SAMPLE_RATE, all_threads, apart, environment, measure_each, peak_mb, take_turns, timed

TOLERANCE_DB = 1e-4
"""Largest difference of the losses before the first step and after it, in float32."""
TWIN = "our deterministic TasNet"
MODELS = {
    "Conv-TasNet": ("ConvTasNet", "asteroid"),
    "DPRNN": ("DPRNNTasNet", "asteroid"),
    "SuDoRM-RF improved": ("SuDORMRFImprovedNet", "asteroid"),
    "SepFormer": (None, "speechbrain"),
    "VI-TasNet": (None, TWIN),
}
"""Name -> asteroid's class, peer."""
_TINY_ASTEROID: dict[str, dict[str, int]] = {
    "ConvTasNet": {"n_blocks": 2, "n_repeats": 1, "bn_chan": 4, "hid_chan": 8, "skip_chan": 4},
    "DPRNNTasNet": {"n_repeats": 1, "bn_chan": 4, "hid_size": 4},
    "SuDORMRFImprovedNet": {"bn_chan": 4, "num_blocks": 1, "upsampling_depth": 2},
}
_TINY_CONV_TASNET = ConvTasNetConfig(bottleneck_channels=4, hidden_channels=8, skip_channels=4, blocks=2, repeats=1)
_SEPFORMER = {"channels": 256, "layers": 8, "feed_forward": 1024, "repeats": 2, "chunk": 250}
_TINY_SEPFORMER = {"channels": 8, "layers": 1, "feed_forward": 16, "repeats": 1, "chunk": 20}


@dataclass(frozen=True)
class Sizes:
    """Sizes of a measurement.

    Args:
        batch: mixtures.
        num_samples: of each.
        seconds: of steps in turns, for each row.
        least_turns: at least this many turns.
        device: where it runs.
        tiny: models of a few channels, for tests.
    """

    batch: int = 4
    num_samples: int = 3 * SAMPLE_RATE
    seconds: float = 60.0
    least_turns: int = 5
    device: str = "cpu"
    tiny: bool = False


class Step:
    """One step on one batch: forward, loss, gradients, clipping, Adam. Calling it takes the step and returns the loss.

    Args:
        model: maps a mixture (B, T) to an input of the loss.
        loss: (output of the model, sources) -> scalar, in float32.
        sizes: of the batch.
        fused: whether Adam is one kernel.
        precision: "bf16": the model under autocast.
        compiled: whether the model is compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Tensor], Tensor],
        sizes: Sizes,
        fused: bool,
        precision: str = "fp32",
        compiled: bool = False,
    ) -> None:
        self.model = model.to(sizes.device).train()
        # A test has no time for the compiler; tracing is the same.
        self._forward = torch.compile(self.model, backend="eager" if sizes.tiny else "inductor") if compiled else model
        self._loss, self._autocast = loss, precision == "bf16"
        self._optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
        generator = torch.Generator().manual_seed(1)
        self.sources = torch.randn(sizes.batch, 2, sizes.num_samples, generator=generator).to(sizes.device)
        self.mixture = self.sources.sum(1)

    def __call__(self) -> float:
        """Take the step and wait for it; return the loss."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.mixture.device.type, torch.bfloat16, enabled=self._autocast):
            output = self._forward(self.mixture)
        value = self._loss(output, self.sources)
        value.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self._optimizer.step()
        return float(value.detach())


def run(
    unfinished: Path | None, names: Sequence[str] = ("Conv-TasNet", "DPRNN", "VI-TasNet"), sizes: Sizes | None = None
) -> dict[str, Any]:
    """Measure step times and peak memory, float32, on one thread and on all.

    A peer of another toolkit has the same weights, batch, clipping and learning rate, and its own loss and Adam as in
    its recipes. A variational model is compared with our deterministic one of the same sizes. Times are the
    processor's on one thread, else the wall clock's. Peak memory is that of a process that only takes three steps,
    above that after its imports.

    Args:
        unfinished: folder of rows of interrupted calls; None: nothing is kept.
        names: of `MODELS`.
        sizes: of the batch; None: 4 x 3 s.

    Raises:
        RuntimeError: losses of the same weights differ.
    """
    sizes = sizes or Sizes()
    pairs = [(name, threads) for name in names for threads in sorted({1, all_threads()})]
    rows = measure_each("train", pairs, lambda pair: apart(_measured, *pair, sizes), unfinished)
    return {"rows": rows, "environment": environment("asteroid")}


def _measured(name: str, threads: int, sizes: Sizes) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    ours, theirs = steps(name, sizes)
    losses = [(ours(), theirs()) for _ in range(2)]
    difference = max(abs(a - b) for a, b in losses)
    peer = MODELS[name][1]
    if peer != TWIN and not difference <= TOLERANCE_DB:
        raise RuntimeError(f"{name}: the losses differ by {difference:.2g} dB: {losses}")
    clock = time.process_time if threads == 1 else time.perf_counter
    times = take_turns({"ours": ours, "theirs": theirs}, sizes.seconds, sizes.least_turns, clock)
    # A twin has another loss.
    checked = {"difference": difference, "unit": "dB" if peer != TWIN else "(other losses)"}
    memory = {"memory_mb": {who: apart(_peak, name, place, sizes) for place, who in enumerate(("ours", "theirs"))}}
    head = {"what": f"{name}, training step", "peer": peer, "threads": threads}
    return head | timed(times) | checked | memory


def _peak(name: str, place: int, sizes: Sizes) -> float:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import asteroid.losses  # noqa: F401  # so that both begin with the same imports

    before = peak_mb()
    step = steps(name, sizes, (place,))[0]
    for _ in range(3):
        step()
    return peak_mb() - before


# ----------------------------------------------------------------------------------------------------------- the pairs


def steps(name: str, sizes: Sizes, sides: Sequence[int] = (0, 1), **options: Any) -> list[Step]:
    """Return steps of ours (0) and of the peer (1), from the same weights.

    Args:
        name: of `MODELS`.
        sizes: of the batch.
        sides: which of the two.
        **options: of `Step`.

    Raises:
        ImportError: the peer is not installed.
    """
    torch.manual_seed(0)
    asteroid, peer = MODELS[name]
    if peer == TWIN:
        made = [_variational(sizes), _separator(_tas_net(sizes), ObjectiveConfig(), sizes)]
    elif asteroid is not None:
        made = _with_asteroid(asteroid, sizes)
    else:
        made = _with_speechbrain(sizes)
    return [Step(*made[side], sizes, fused=side == 0 or peer == TWIN, **options) for side in sides]


Trainable = tuple[nn.Module, Callable[[Any, Tensor], Tensor]]


def _separator(model: EncoderMaskerDecoder, objective: ObjectiveConfig, sizes: Sizes) -> Trainable:
    terms = build_objective(objective, model.traits())
    active = torch.ones(sizes.batch, 2, dtype=torch.bool, device=sizes.device)
    lengths = torch.full((sizes.batch,), sizes.num_samples, device=sizes.device)

    def loss(separation: Any, sources: Tensor) -> Tensor:
        separation.estimates = separation.estimates.float()
        batch = Batch(sources.sum(1), sources, active, lengths, [""] * sizes.batch)
        return terms(batch, separation).loss.mean()

    return model, loss


def _tas_net_config(sizes: Sizes) -> ModelConfig:
    masker = _TINY_CONV_TASNET if sizes.tiny else ConvTasNetConfig()
    return ModelConfig(masker=masker, pad="asteroid")


def _tas_net(sizes: Sizes) -> EncoderMaskerDecoder:
    return build_model(_tas_net_config(sizes))


def _variational(sizes: Sizes) -> Trainable:
    config = replace(_tas_net_config(sizes), encoding=GaussianConfig(), masks=LogNormalConfig())
    steering = SteeringConfig(total=256.0, initial_weight=1e-9, change=1e-4)
    objective = ObjectiveConfig(cost=BLRConfig(), rates=RatesConfig(steering=steering))
    return _separator(build_model(config), objective, sizes)


class _OfMixture(nn.Module):
    """Modules that are called with a mixture (B, T)."""

    def __init__(self, parts: nn.Module, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.parts, self._call = parts, call

    def forward(self, mixture: Tensor) -> Tensor:
        """Return estimates."""
        return self._call(self.parts, mixture)


def _with_asteroid(name: str, sizes: Sizes) -> list[Trainable]:
    from asteroid import models
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr

    from sepkit.models.bridges import from_asteroid

    model = getattr(models, name)(2, **(_TINY_ASTEROID[name] if sizes.tiny else {}))
    pit = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    given = _OfMixture(model, lambda model, mixture: model(mixture.unsqueeze(1)))
    ours = _separator(from_asteroid(model), ObjectiveConfig(), sizes)
    return [ours, (given, lambda estimates, sources: pit(estimates.float(), sources))]


def _with_speechbrain(sizes: Sizes) -> list[Trainable]:
    from speechbrain.nnet.losses import get_si_snr_with_pitwrapper

    given = _TINY_SEPFORMER if sizes.tiny else _SEPFORMER
    parts = nn.ModuleDict(separate.sepformer_parts(given | {"kernel_size": 16, "stride": 8}))
    masker = SepFormerConfig(
        model_dim=given["channels"],
        num_layers=given["repeats"],
        chunk_size=given["chunk"],
        transformer_layers=given["layers"],
        feedforward_dim=given["feed_forward"],
    )
    filterbank = FreeFilterbankConfig(num_filters=given["channels"])
    ours = build_model(ModelConfig(filterbank=filterbank, masker=masker, pad="asteroid"))

    def loss(estimates: Tensor, sources: Tensor) -> Tensor:
        return get_si_snr_with_pitwrapper(sources.transpose(1, 2), estimates.float().transpose(1, 2)).mean()

    given_parts: Any = _OfMixture(parts, lambda parts, mixture: separate.separate_with(parts, mixture))
    return [_separator(ours, ObjectiveConfig(), sizes), (given_parts, loss)]
