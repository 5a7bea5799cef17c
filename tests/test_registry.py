"""A configuration becomes an object only through what was registered."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from dataclasses import fields as fields_of

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
    def cat(lives, *, color):
        return (lives, color)

    try:
        assert build(CatConfig(), color="black") == (("constant", 9.0), "black")
    finally:
        register(ConstantConfig)(schedules.Constant)


def test_unregistered_choice_is_refused():
    @dataclass
    class DogConfig(AnimalConfig, name="dog"):
        pass

    with pytest.raises(UserError, match=r"dog.*--import"):
        build(DogConfig())


def test_every_shipped_choice_is_registered():
    import sepkit.models.emd  # noqa: F401
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
            if choice.__module__.startswith("sepkit.config"):
                registry.registered(choice())


def test_a_constructor_takes_its_defaults_from_the_configuration():
    @dataclass
    class PetConfig(AnimalConfig, name="pet"):
        color: str = "black"
        lives: ScheduleConfig = field(default_factory=lambda: ConstantConfig(9.0))
        age: int = 3

    @register(PetConfig)
    class Pet:
        def __init__(self, name, color, *, lives, age=1):
            self.parts = (name, color, lives(0.0), age)

    lives = build(ConstantConfig(1.0))
    assert Pet("Tom").parts == ("Tom", "black", 9.0, 1)
    assert Pet("Tom", "white", lives=lives).parts == ("Tom", "white", 1.0, 1)
    assert Pet(color="white", name="Tom").parts == ("Tom", "white", 9.0, 1)
    assert build(PetConfig(age=2), name="Tom").parts == ("Tom", "black", 9.0, 2)
    with pytest.raises(TypeError, match="name"):
        Pet()
    with pytest.raises(TypeError, match="size"):
        Pet("Tom", size=1)


def test_a_subclass_has_the_defaults_of_its_own_configuration():
    @dataclass
    class BirdConfig(AnimalConfig, name="bird"):
        wings: int = 2

    @register(BirdConfig)
    class Bird:
        def __init__(self, wings):
            self.wings = wings

    class Sparrow(Bird):
        def __init__(self):
            super().__init__()

    @dataclass
    class PenguinConfig(BirdConfig, name="penguin"):
        wings: int = 0

    @register(PenguinConfig)
    class Penguin(Bird):
        pass

    assert (Bird().wings, Sparrow().wings, Penguin().wings, build(PenguinConfig(1)).wings) == (2, 2, 0, 1)


@pytest.mark.parametrize("kind", ["FilterbankConfig", "LatentConfig", "MaskerConfig"])
def test_no_constructor_repeats_a_default_of_its_configuration(kind):
    import sepkit.models.emd  # noqa: F401
    from sepkit import config, registry

    for choice in getattr(config, kind).choices.values():
        builder = registry.registered(choice())
        if builder.__module__.startswith("sepkit."):
            parameters = inspect.signature(builder.__init__).parameters
            fields = {f.name for f in fields_of(choice)}
            repeated = [p.name for p in parameters.values() if p.name in fields and p.default is not p.empty]
            assert not repeated, f"{builder.__name__}: {', '.join(repeated)} stand in {choice.__name__}"
            described = {line.split(":")[0].strip() for line in (builder.__doc__ or "").splitlines() if ":" in line}
            assert not described & fields, f"{builder.__name__}: {choice.__name__} describes {described & fields}"
