"""Growing numbers of hypotheses: one is split in two, with its rows of weights and moments, and the two drift apart.

A grown model is a new model whose weights are those of the old one and a copy of the rows of the hypothesis that was
split. Before the copy is jittered, both halves make the same estimate, and the least cost of every source (MCL) stays
as it was.

Source: Linde et al., "An algorithm for vector quantizer design", 1980; CCLVQ paper, section 4.1.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from sepkit.cells import cell_seed
from sepkit.config import GrowthConfig
from sepkit.errors import UserError
from sepkit.models import EncoderMaskerDecoder
from sepkit.objectives.costs import pairwise_neg_si_sdr
from sepkit.training.task_definition import log
from sepkit.types import Batch


class Growth:
    """The plan by which a run's number of hypotheses grows, and its execution.

    Args:
        start: number of hypotheses at the beginning.
        seed: Seed of the noise on new hypotheses.
    """

    def __init__(self, config: GrowthConfig, start: int, seed: int) -> None:
        self.config, self.start, self.seed = config, start, seed

    def hypotheses_at(self, epoch: float) -> int:
        """Return the number of hypotheses after this many epochs."""
        grown = sum(epoch >= due for due in self.config.epochs)
        counts = self.config.hypotheses or [self.start + k + 1 for k in range(len(self.config.epochs))]
        return counts[grown - 1] if grown else self.start

    @property
    def final(self) -> int:
        """The number of hypotheses at the end of training."""
        return self.hypotheses_at(math.inf)

    def check(self, model: EncoderMaskerDecoder) -> None:
        """Refuse models whose number of hypotheses cannot change."""
        if not getattr(model.masker, "hypothesis_layers", ()):
            raise UserError(
                f"trainer.growth: the masker {type(model.masker).__name__} cannot grow, for it does not name the layers"
                " that belong to single hypotheses; use gated_recurrence, conv_tasnet, dual_path_rnn, recurrent,"
                " sudormrf, improved_sudormrf, sepformer or continuous_depth"
            )
        if model.mask_family.activation == "softmax":
            raise UserError(
                "trainer.growth: found model.masks.activation softmax, with which a split would change all masks;"
                " use relu or sigmoid"
            )

    def split(
        self,
        model: EncoderMaskerDecoder,
        average: EncoderMaskerDecoder,
        optimizer: torch.optim.Optimizer,
        batches: Iterable[Batch],
    ) -> tuple[EncoderMaskerDecoder, EncoderMaskerDecoder]:
        """Return the model with one more hypothesis, and its average with the same one; move the optimizer on to it.

        Args:
            average: Model with averaged weights; the model itself if there is none.
            batches: fixed ones, by which the hypothesis to split is chosen.
        """
        source = hypothesis_to_split(model, batches, self.config.by)
        seed = cell_seed(self.seed, f"growth from {model.hypotheses}")
        larger, larger_average = (
            grown(one, source, self.config.jitter, torch.Generator().manual_seed(seed)) for one in (model, average)
        )
        hand_over(optimizer, model, larger, source)
        log(f"hypothesis {source + 1} is split: {larger.hypotheses} hypotheses from here on")
        return larger, larger_average


@torch.no_grad()
def hypothesis_to_split(
    model: EncoderMaskerDecoder, batches: Iterable[Batch], by: Literal["distortion", "sources"] = "distortion"
) -> int:
    """Return the hypothesis, from 0, with the largest share of the distortion, or which is the best of most sources.

    The distortion of a source is 1 - r^2, with its correlation r with its best hypothesis: the part of its energy that
    no scaling of the hypothesis explains, 1 / (1 + 10^(SI-SDR / 10)).

    Args:
        batches: a fixed set; one batch alone would be too few.
    """
    training = model.training
    model.eval()
    shares = torch.zeros(model.hypotheses, dtype=torch.float64)
    for batch in batches:
        estimates = model(batch.mixture).estimates
        least, winners = pairwise_neg_si_sdr(estimates, batch.sources, lengths=batch.lengths).double().cpu().min(1)
        amounts = 1 / (1 + 10 ** (-least / 10)) if by == "distortion" else torch.ones_like(least)
        spoken = batch.active.cpu()
        shares.scatter_add_(0, winners[spoken], amounts[spoken])
    model.train(training)
    return int(shares.argmax())


def grown(model: EncoderMaskerDecoder, source: int, jitter: float, generator: torch.Generator) -> EncoderMaskerDecoder:
    """Return a model with one more hypothesis, the last, a copy of another; the model itself stays as it is.

    Args:
        source: hypothesis to copy, from 0.
        jitter: normal noise on the copied rows, in units of the root mean square of those of each tensor; 0: none.
    """
    assert model.config is not None
    larger = EncoderMaskerDecoder.from_config(replace(model.config, hypotheses=model.hypotheses + 1))
    axis, state = _axis(model), model.state_dict()
    for name in _rows_of_hypotheses(model):
        rows = _rows(state[name], axis, model.hypotheses, source)
        noise = torch.randn(rows.shape, generator=generator, dtype=torch.float32).to(rows)
        state[name] = torch.cat([state[name], rows + jitter * rows.square().mean().sqrt() * noise], axis)
    like = next(model.parameters())
    larger.to(like.device, like.dtype).load_state_dict(state)
    larger.info = dict(model.info)
    return larger.train(model.training)


@torch.no_grad()
def hand_over(
    optimizer: torch.optim.Optimizer, model: EncoderMaskerDecoder, larger: EncoderMaskerDecoder, source: int
) -> None:
    """Make the optimizer of a model that of the model grown from it; new rows have the moments of those they copy.

    Args:
        optimizer: changed in place.
        source: hypothesis that was copied, from 0.
    """
    owned = _rows_of_hypotheses(model)
    after = dict(larger.named_parameters())
    moved = {parameter: (name, after[name]) for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        group["params"] = [moved[parameter][1] for parameter in group["params"]]
    for parameter, (name, new) in moved.items():
        kept = optimizer.state.pop(parameter, None)
        if kept is not None and name in owned:
            kept = {key: _with_copy(value, parameter, model, source) for key, value in kept.items()}
        if kept is not None:
            optimizer.state[new] = kept


def _axis(model: EncoderMaskerDecoder) -> int:
    axis: int = getattr(model.masker, "hypothesis_axis", 0)
    return axis


def _rows(tensor: Tensor, axis: int, hypotheses: int, source: int) -> Tensor:
    """Return the part of one hypothesis, from 0."""
    return tensor.tensor_split(hypotheses, axis)[source]


def _with_copy(value: object, parameter: Tensor, model: EncoderMaskerDecoder, source: int) -> object:
    """Return a moment with the rows of the new hypothesis; other values, such as a step count, unchanged."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    axis = _axis(model)
    return torch.cat([value, _rows(value, axis, model.hypotheses, source)], axis)


def _rows_of_hypotheses(model: EncoderMaskerDecoder) -> list[str]:
    """Return the names of the tensors in the model's state of which each hypothesis has rows of its own."""
    masker = model.masker
    layers: tuple[str, ...] = getattr(masker, "hypothesis_layers", ())
    return [f"masker.{layer}.{name}" for layer in layers for name, _ in masker.get_submodule(layer).named_parameters()]
