"""A configuration becomes an object only through what was registered."""

import inspect
from dataclasses import dataclass, field
from dataclasses import fields as fields_of

import pytest

from sepkit.config import Choice, ConstantConfig, ScheduleConfig
from sepkit.registry import build, register
from tests.complaint import complaint


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

    complaint(lambda: build(DogConfig()), r"dog.*--import")


def test_every_shipped_choice_is_registered():
    import sepkit.models.emd  # noqa: F401
    import sepkit.objectives  # noqa: F401
    from sepkit import config, registry

    parts = (config.FilterbankConfig, config.LatentConfig, config.MaskerConfig)
    for kind in (*parts, config.ScheduleConfig, config.CostConfig, config.AssignmentConfig):
        for choice in kind.choices.values():
            if choice.__module__.startswith("sepkit.config"):
                registry.registered(choice())


KINDS = ("LatentConfig", "ScheduleConfig", "AssignmentConfig")


@pytest.mark.parametrize("kind", KINDS)
def test_constructors_have_the_defaults_of_their_configuration(kind):
    """So that a class is called with as little as its configuration, and type checkers know it."""
    import sepkit.objectives  # noqa: F401
    from sepkit import config, registry

    for choice in getattr(config, kind).choices.values():
        builder = registry.registered(choice())
        if not builder.__module__.startswith("sepkit."):
            continue
        parameters = inspect.signature(builder.__init__).parameters
        for field_ in fields_of(choice):
            found, expected = parameters[field_.name].default, getattr(choice(), field_.name)
            if isinstance(expected, Choice):
                schedule = found if callable(found) else build(ConstantConfig(found))
                assert schedule == build(expected), (builder, field_.name)
            elif (kind, field_.name) != ("ScheduleConfig", "end") or found != float("inf"):
                # A schedule in code that is not told where to end does not.
                assert found == expected and type(found) is type(expected), (builder, field_.name)


# Latents are public names, whose own parameters are documented (test_public_names).
@pytest.mark.parametrize("kind", ["FilterbankConfig", "MaskerConfig"])
def test_the_configuration_alone_describes_its_fields(kind):
    import sepkit.models.emd  # noqa: F401
    from sepkit import config, registry

    for choice in getattr(config, kind).choices.values():
        builder = registry.registered(choice())
        if builder.__module__.startswith("sepkit."):
            fields = {f.name for f in fields_of(choice)}
            described = {line.split(":")[0].strip() for line in (builder.__doc__ or "").splitlines() if ":" in line}
            assert not described & fields, f"{builder.__name__}: {choice.__name__} describes {described & fields}"
