"""The form of `summary.json`, checked where one is read: it may come from elsewhere, and tables are made of it."""

from __future__ import annotations

import math
from typing import Any

from sepkit.errors import UserError, shown

_NUMBER = "a number"
_COUNT = "a whole number of 0 or more"
_TEXT = "text"
_NULL = "null"

# A word is a kind of value, a list stands for lists of its item, a mapping for mappings: "*" is any key, and a key that
# ends in ? may be absent. A tuple lists alternatives.
_MAYBE = (_NUMBER, _NULL)
_INTERVAL = ([_NUMBER], _NULL)
_SCORE = {
    "mean": _MAYBE,
    "std?": _MAYBE,
    "median?": _MAYBE,
    "ci95": _INTERVAL,
    "n": _COUNT,
    "n_speakers?": (_COUNT, _NULL),
}
_PLACE = {"id": _TEXT, "reason": _TEXT}
_SUMMARY = {
    "n_utterances": _COUNT,
    "n_skipped?": _COUNT,
    "n_silent_sources?": _COUNT,
    "n_without_improvement?": _COUNT,
    "skipped?": [_PLACE],
    "metrics": {"*": _SCORE},
    "interval_unit?": _TEXT,
    "failures?": {"*": {"n": _COUNT, "first": _PLACE}},
    "matching?": {
        "n_sources?": _COUNT,
        "hypothesis_usage?": [_NUMBER],
        "collapse_rate?": _MAYBE,
        "missed_sources?": _COUNT,
        "missed_source_rate?": _MAYBE,
        "extra_hypotheses?": _NUMBER,
        "speaker_count?": {
            "n": _COUNT,
            "n_without_number?": _COUNT,
            "accuracy": _NUMBER,
            "over_separation_rate": _NUMBER,
            "under_separation_rate": _NUMBER,
            "confusion": {"*": {"*": _COUNT}},
        },
    },
    "manifest?": (_TEXT, [_TEXT], _NULL),
    "model?": (_TEXT, _NULL),
    "estimates?": (_TEXT, _NULL),
    "command?": (_TEXT, _NULL),
    "real_time_factor?": _MAYBE,
    "wall_seconds?": _MAYBE,
    "signal_std?": _MAYBE,
    "hardware?": (_TEXT, _NULL),
    "version?": (_TEXT, _NULL),
    "commit?": (_TEXT, _NULL),
}


def check_summary(summary: Any, where: str) -> None:
    """Check that plain data is the summary of an evaluation; what is not listed here may be anything.

    Raises:
        UserError: it is not; the message names the field.
    """
    _check(summary, _SUMMARY, where, "")
    for name, score in summary["metrics"].items():
        if score["n"] and score["mean"] is None:
            raise UserError(f"{where}: metrics.{name}.mean is null for {shown(score['n'])} utterances; evaluate again")
        if score["ci95"] is not None and len(score["ci95"]) != 2:
            raise UserError(f"{where}: metrics.{name}.ci95 is {shown(score['ci95'])}, expected two; evaluate again")


def _check(value: Any, shape: Any, where: str, name: str) -> None:
    alternatives = shape if isinstance(shape, tuple) else (shape,)
    inner = next((one for one in alternatives if _is_of_kind(value, one)), None)
    if inner is None:
        expected = " or ".join(_word(one) for one in alternatives)
        raise UserError(f"{where}: {name or 'its content'} is {shown(value)}, expected {expected}; evaluate again")
    if isinstance(inner, list):
        for index, item in enumerate(value):
            _check(item, inner[0], where, f"{name}[{index}]")
    elif isinstance(inner, dict):
        for key, part in inner.items():
            plain = key.removesuffix("?")
            if plain == "*":
                for other, item in value.items():
                    _check(item, part, where, f"{name}.{other}")
            elif plain in value:
                _check(value[plain], part, where, f"{name}.{plain}".lstrip("."))
            elif plain == key:
                raise UserError(f"{where}: {f'{name}.{key}'.lstrip('.')} is missing; evaluate again")


def _is_of_kind(value: Any, shape: Any) -> bool:
    if isinstance(shape, list | dict):
        return isinstance(value, type(shape))
    if shape in (_NUMBER, _COUNT):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if shape == _COUNT:
            return whole and 0 <= value < 2**63
        return (whole and abs(value) < 2**63) or (isinstance(value, float) and math.isfinite(value))
    return value is None if shape == _NULL else isinstance(value, str) and "\0" not in value


def _word(shape: Any) -> str:
    if isinstance(shape, str):
        return shape
    return "a list" if isinstance(shape, list) else "a mapping"
