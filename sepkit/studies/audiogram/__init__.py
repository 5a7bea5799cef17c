"""Adaptive audiometry: which threshold of an audiogram to measure next, and when to stop (thesis, part A).

The method is a partial VAE. `data` makes and reads audiograms; `task` is the model in torch and its training; `model`
is the trained model in NumPy, for a single listener; `simulation` plays whole sessions and says when it is
enough; `results` makes tables and figures; `commands` is `sepkit audiogram`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sepkit.studies.audiogram.model import AudiogramModel


def load_model(model: str | os.PathLike[str]) -> AudiogramModel:
    """Return a trained model, ready for sessions, with its calibration; torch is not needed.

    Args:
        model: EXP or EXP/model that `sepkit train --config audiogram` wrote.
    """
    from sepkit.studies.audiogram.model import load_model

    return load_model(model)
