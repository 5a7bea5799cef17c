"""A training step: sepkit against asteroid on the same weights and batch."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sepkit.config import ObjectiveConfig
from sepkit.objectives import build_objective
from sepkit.parallel import available_processes
from sepkit.types import Batch
from tools.bench.measure import SAMPLE_RATE, apart, environment, measure_each, peak_mb, take_turns, timed

TOLERANCE_DB = 1e-4
"""Largest difference of the losses before the first step and after it, in float32."""
MODELS = {"Conv-TasNet": "ConvTasNet", "DPRNN": "DPRNNTasNet"}
"""Name -> asteroid's class."""
_TINY: dict[str, dict[str, int]] = {
    "ConvTasNet": {"n_blocks": 2, "n_repeats": 1, "bn_chan": 4, "hid_chan": 8, "skip_chan": 4},
    "DPRNNTasNet": {"n_repeats": 1, "bn_chan": 4, "hid_size": 4},
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of a measurement.

    Args:
        batch: mixtures.
        num_samples: of each.
        seconds: of steps in turns, for each row.
        least_turns: at least this many turns.
        tiny: models of a few channels, for tests.
        device: of models and batch.
    """

    batch: int = 4
    num_samples: int = 3 * SAMPLE_RATE
    seconds: float = 60.0
    least_turns: int = 5
    tiny: bool = False
    device: str = "cpu"


class Step:
    """One step on one batch: forward, loss, gradients, clipping, Adam. Calling it takes the step and returns the loss.

    Args:
        model: maps a mixture (B, T) to an input of the loss.
        loss: (output of the model, sources) -> scalar.
        sizes: of the batch.
        fused: whether Adam is one kernel.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any, Tensor], Tensor], sizes: Sizes, fused: bool) -> None:
        self.model, self._loss = model.train(), loss
        self._optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
        generator = torch.Generator().manual_seed(1)
        self.sources = torch.randn(sizes.batch, 2, sizes.num_samples, generator=generator).to(sizes.device)
        self.mixture = self.sources.sum(1)

    def __call__(self) -> float:
        """Take the step; return the loss."""
        self._optimizer.zero_grad(set_to_none=True)
        value = self._loss(self.model(self.mixture), self.sources)
        value.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self._optimizer.step()
        return float(value.detach())


def run(unfinished: Path | None, names: Sequence[str] = tuple(MODELS), sizes: Sizes | None = None) -> dict[str, Any]:
    """Measure step times and peak memory, float32, on one thread and on all.

    The peer has the same weights, batch, clipping and learning rate, and its own loss and Adam as in its recipes. Times
    are the processor's on one thread, else the wall clock's. Peak memory is that of a process that only takes three
    steps, above that after its imports.

    Args:
        unfinished: folder of rows of interrupted calls; None: nothing is kept.
        names: of `MODELS`.
        sizes: of the batch; None: 4 x 3 s.

    Raises:
        RuntimeError: losses of the same weights differ.
    """
    sizes = sizes or Sizes()
    pairs = [(name, threads) for name in names for threads in sorted({1, available_processes()})]
    rows = measure_each("train", pairs, lambda pair: apart(_measured, *pair, sizes), unfinished)
    return {"rows": rows, "environment": environment("asteroid")}


def _measured(name: str, threads: int, sizes: Sizes) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    ours, theirs = steps(name, sizes)
    losses = [(ours(), theirs()) for _ in range(2)]
    difference = max(abs(a - b) for a, b in losses)
    if not difference <= TOLERANCE_DB:
        raise RuntimeError(f"{name}: the losses differ by {difference:.2g} dB: {losses}")
    clock = time.process_time if threads == 1 else time.perf_counter
    times = take_turns({"ours": ours, "theirs": theirs}, sizes.seconds, sizes.least_turns, clock)
    memory = {who: apart(_peak, name, place, sizes) for place, who in enumerate(("ours", "theirs"))}
    head = {"what": f"{name}, training step", "peer": "asteroid", "threads": threads}
    return head | timed(times) | {"difference": difference, "unit": "dB", "memory_mb": memory}


def _peak(name: str, place: int, sizes: Sizes) -> float:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import asteroid.losses  # noqa: F401  # so that both begin with the same imports

    before = peak_mb()
    step = steps(name, sizes, (place,))[0]
    for _ in range(3):
        step()
    return peak_mb() - before


def steps(name: str, sizes: Sizes, sides: Sequence[int] = (0, 1), compiled: bool = False) -> list[Step]:
    """Return steps of ours (0) and of asteroid's (1), from the same weights.

    Args:
        name: of `MODELS`.
        sizes: of the batch.
        sides: which of the two.
        compiled: whether both are compiled by torch.

    Raises:
        ImportError: asteroid is not installed.
    """
    from asteroid import models
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr

    from sepkit.models.bridges import from_asteroid

    torch.manual_seed(0)
    theirs = getattr(models, MODELS[name])(2, **(_TINY[MODELS[name]] if sizes.tiny else {}))
    ours = from_asteroid(theirs)
    terms = build_objective(ObjectiveConfig(), ours.traits())
    active = torch.ones(sizes.batch, 2, dtype=torch.bool, device=sizes.device)
    lengths = torch.full((sizes.batch,), sizes.num_samples, device=sizes.device)

    def loss(separation: Any, sources: Tensor) -> Tensor:
        return terms(Batch(sources.sum(1), sources, active, lengths, [""] * sizes.batch), separation).loss.mean()

    pit = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    made: list[tuple[nn.Module, Callable[[Any, Tensor], Tensor]]] = [(ours, loss), (theirs, pit)]
    made = [(model.to(sizes.device), function) for model, function in made]
    if compiled:
        made = [(torch.compile(model), function) for model, function in made]  # type: ignore[misc]
    return [Step(*made[side], sizes, fused=side == 0) for side in sides]
