"""SI-SDR predicted for a model that was never calibrated, from how far two views of a recording agree.

A model that has learned nothing agrees with itself, too, so how alike its estimates are counts beside it, and how much
their level varies: one voice pauses, two seldom do at once.
The regression was fitted on the estimates of several models (`python -m tools.agreement`), and its interval on those of
models that it was not fitted on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from sepkit.choices import from_dict
from sepkit.files import read_yaml
from sepkit.inference.quality.predictor import QualityPredictor
from sepkit.inference.runners.base import AGREEMENT

FEATURES = (AGREEMENT, "correlation_db", "estimate_level_deviation_db")

ANY_MODEL = Path(__file__).with_name("any_model.yaml")


def any_model_predictor(hypotheses: int) -> QualityPredictor:
    """Return the predictor for a model with this many estimates of sources; it asks for two views."""
    return replace(_read(), hypotheses=hypotheses)


@lru_cache(maxsize=1)
def _read() -> QualityPredictor:
    return from_dict(QualityPredictor, read_yaml(ANY_MODEL, "install sepkit again"))
