"""Adaptive audiometry: which threshold of an audiogram to measure next, and when to stop (thesis, part A).

The method is a partial VAE. `prepare` and `data` make and read audiograms; `network` is the trained model in NumPy;
`model`, `task` and `sweep` train it; `session` answers for one person; `simulation` plays whole sessions; `stopping`
says when it is enough; `evaluate`, `tables` and `report` measure and draw; `commands` is `sepkit audiogram`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sepkit.studies.audiogram.session import AudiogramModel


def load_model(model: str | os.PathLike[str]) -> AudiogramModel:
    """Return a trained model (EXP or EXP/model), ready for sessions, with its calibration; torch is not needed."""
    from sepkit.studies.audiogram.session import load_model

    return load_model(model)
