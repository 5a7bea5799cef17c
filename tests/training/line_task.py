"""The smallest task there is, as a user would add it with `--import`: a line through points."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sepkit.config import TaskConfig, TrainerConfig
from sepkit.models.saved import SavedModel
from sepkit.registry import register
from sepkit.training.task import Task
from sepkit.types import Losses


@dataclass
class LineModelConfig:
    """A line."""

    inputs: int = 1


@dataclass
class LineDataConfig:
    """Points of the line y = 2 x + 1, with noise."""

    points: int = 16
    batch_size: int = 4
    workers: int = 0


@dataclass
class LineConfig(TaskConfig, name="line"):
    """Fit a line."""

    model: LineModelConfig = field(default_factory=LineModelConfig)
    data: LineDataConfig = field(default_factory=LineDataConfig)
    trainer: TrainerConfig = field(default_factory=lambda: TrainerConfig(max_epochs=3, learning_rate=0.1))
    init_from: str | None = None


class Line(SavedModel):
    """y = a x + b."""

    kind = "line"
    config_type = LineModelConfig

    def __init__(self, config: LineModelConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.Linear(config.inputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1)


class Points:
    """Item i of epoch e follows from (e, i) alone."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        x, noise = torch.randn(2, generator=torch.Generator().manual_seed(1000 * key[0] + key[1]))
        return x[None], 2 * x + 1 + 0.1 * noise


@register(LineConfig)
class LineTask(Task):
    """Squared error of noisy points; the noise shows that a resumed run draws the same."""

    model_type = Line
    examples = "points"

    def make_data_sets(self) -> tuple[Points, Points]:
        return Points(self.config.data.points), Points(6)

    def losses(self, model: Line, batch: list[Tensor]) -> Losses:
        x, y = batch
        noise = 0.1 * torch.randn_like(y) if model.training else 0.0
        error = model(x) - y + noise
        return Losses(error.square(), statistics={"absolute_error": error.detach().abs()})
