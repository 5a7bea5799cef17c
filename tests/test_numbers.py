"""Every number of every configuration and of every command's options has bounds, in its type."""

import dataclasses
import importlib
import math
import re
import typing
from typing import Any

import pytest
import torch

from sepkit.choices import bounds_of, check_bounds, field_types
from sepkit.errors import UserError
from sepkit.registry import build
from tests.models.test_mistakes import SMALL

MODULES = [
    *(f"sepkit.config.{name}" for name in ("data", "encoders", "maskers", "model")),
    *(f"sepkit.config.{name}" for name in ("objective", "schedules", "training")),
    *(f"sepkit.studies.{name}.config" for name in ("annealed_inference", "audiogram", "cdvae", "quantization")),
    *("sepkit.studies.speaker_clustering.config", "sepkit.corpora.options"),
    *("sepkit.inference.options", "sepkit.evaluation.options"),
]  # fmt: skip
HUGE = 10**30
SIGNED = ("mu0", "noise_snr_db", "snr_db", "other_db", "lowest", "highest", "score_threshold", "ObjectiveConfig.floor")
ENDLESS = (
    "TruncatedExponentialConfig.end", "TrainerConfig.max_minutes", "SeparatorOptions.whole_seconds",
    "EvaluationOptions.whole_seconds",
)  # fmt: skip
# Counts of steps, epochs and the like, which nothing is made for; the speakers and recordings that there are.
UNLIMITED = {
    "max_epochs", "epochs", "decay_epochs", "warmup_steps", "halve_patience", "halve_from_epoch", "early_stop_patience",
    "max_bad_steps", "validate_every_epochs", "checkpoint_every_steps", "accumulate_batches", "warn_after_epochs",
    "VoicesOptions.speakers", "recordings", "channel",
}  # fmt: skip


def numeric(hint: Any) -> type | None:
    """Return int or float if a type is of such numbers, or of lists of them; None for any other, as "auto" or one."""
    parts = typing.get_args(hint)
    if any(typing.get_origin(part) is typing.Literal for part in parts):
        return None
    return hint if hint in (int, float) else next((kind for part in parts if (kind := numeric(part))), None)


def fields() -> list[Any]:
    """Every numeric field of every dataclass in `MODULES`: the class, the field's name, and its number's type."""
    found = []
    for module in map(importlib.import_module, MODULES):
        for name, cls in vars(module).items():
            if dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__ and not name.startswith("_"):
                kinds = {field: numeric(hint) for field, hint in field_types(cls).items()}
                found += [pytest.param(cls, f, kind, id=f"{name}.{f}") for f, kind in kinds.items() if kind]
    return found


def with_value(cls: type, name: str, value: Any) -> Any:
    """Return a dataclass with a value in a field, in all items of a list, and anything in fields without a default."""
    hint = typing.get_type_hints(cls)[name]
    length = 2 if "tuple" in str(hint) else 1
    needed = {f.name: "x" for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING}
    needed |= {"kind": "poisson"} if "kind" in needed else {}
    is_many = any(word in str(hint) for word in ("list", "tuple", "Sequence"))
    return cls(**needed | {name: (value,) * length if is_many else value})


@pytest.mark.parametrize(("cls", "name", "kind"), fields())
def test_a_number_is_refused_in_one_line_or_may_be_used(cls, name, kind):
    bounds = bounds_of(typing.get_type_hints(cls, include_extras=True)[name])
    assert bounds, f"{cls.__name__}.{name} has no bounds: give it a type of sepkit.numbers"
    where = f"{cls.__name__}.{name}"
    signed = bool({name, where} & set(SIGNED))
    expected: dict[Any, bool | None] = {0: None, -1: signed, math.nan: False, -math.inf: False}
    of_floats = {1e300: None, math.inf: where in ENDLESS}
    of_integers = {HUGE: None if {name, where} & UNLIMITED else False}
    expected |= of_floats if kind is float else of_integers
    expected |= dict.fromkeys(filter(finite, (bounds.ge, bounds.le)), True)
    expected |= dict.fromkeys(filter(finite, (bounds.gt, bounds.lt)), False)
    for value, accepted in expected.items():
        try:
            check_bounds(with_value(cls, name, value), "there")
        except UserError as error:
            assert not accepted, f"{where} = {value}"
            assert re.fullmatch(rf"(there\.)?{name}: found .*, expected .*", str(error))
        else:
            assert accepted in (True, None), f"{where} = {value}"


def finite(end: float | None) -> bool:
    """Whether an end of bounds is a number that a value can have."""
    return end is not None and abs(end) < math.inf


@pytest.mark.parametrize(("kind", "small"), [(kind, small) for kind, (_, small) in SMALL.items()])
def test_a_masker_is_built_of_its_smallest_numbers_or_names_the_one_that_does_not_fit(kind, small):
    for name, hint in field_types(kind).items():
        bounds = bounds_of(typing.get_type_hints(kind, include_extras=True)[name])
        if numeric(hint) is None:
            continue
        for value in (bounds.ge, -1, math.nan, HUGE):
            config = dataclasses.replace(small, **{name: value})
            try:
                with torch.device("meta"):
                    masker = build(config, encoding_dim=SMALL[kind][0], hypotheses=2, values_per_dimension=1)
            except UserError as error:
                assert str(error).startswith("model.masker.") and name in str(error)
            else:
                assert value == bounds.ge and sum(p.numel() for p in masker.parameters()) > 0
