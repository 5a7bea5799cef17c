"""An assignment as a user would add it with `--import`: PIT by another name."""

from dataclasses import dataclass

from sepkit.config import AssignmentConfig
from sepkit.objectives.assignment import PIT
from sepkit.registry import register


@dataclass
class MyPITConfig(AssignmentConfig, name="my_pit"):
    """Permutation invariant training of one's own."""


@register(MyPITConfig)
class MyPIT(PIT):
    """The same as PIT."""
