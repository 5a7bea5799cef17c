"""A configuration becomes an object only through what was registered."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sepkit.config import Choice, ConstantConfig, ScheduleConfig
from sepkit.errors import UserError
from sepkit.registry import build, register


class AnimalConfig(Choice):
    """A kind of its own, so that the shipped kinds stay as they are."""


def test_builds_nested_choices_and_passes_structure():
    from sepkit.objectives import schedules

    @register(ConstantConfig)
    def constant(value):
        return ("constant", value)

    @dataclass
    class CatConfig(AnimalConfig, name="cat"):
        lives: ScheduleConfig = field(default_factory=lambda: ConstantConfig(9.0))

    @register(CatConfig)
    def cat(lives, *, colour):
        return (lives, colour)

    try:
        assert build(CatConfig(), colour="black") == (("constant", 9.0), "black")
    finally:
        register(ConstantConfig)(schedules.Constant)


def test_unregistered_choice_is_refused():
    @dataclass
    class DogConfig(AnimalConfig, name="dog"):
        pass

    with pytest.raises(UserError, match=r"dog.*--import"):
        build(DogConfig())


def test_every_shipped_choice_is_registered():
    import sepkit.models
    import sepkit.objectives  # noqa: F401
    from sepkit import config, registry

    for kind in (
        config.FilterbankConfig,
        config.LatentConfig,
        config.MaskerConfig,
        config.ScheduleConfig,
        config.CostConfig,
        config.AssignmentConfig,
    ):
        for choice in kind.choices.values():
            if choice.__module__ == "sepkit.config":
                assert choice in registry._builders, choice
