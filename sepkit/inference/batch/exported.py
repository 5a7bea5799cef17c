"""The last check of an exported model: it separates a recording, as `sepkit separate` will."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.batch.files import separate_files
from sepkit.inference.loading import load_model


def check_separates(path: Path) -> None:
    """Separate a wav of one second with an exported model, at its own rate and at another.

    Raises:
        UserError: a recording cannot be separated.
    """
    separator = load_model(path)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for rate in (separator.sample_rate, separator.sample_rate + 1025):
            noise = np.random.default_rng(rate).standard_normal(rate).astype(np.float32)
            audio.write(folder / "in" / f"noise_{rate}.wav", 0.1 * noise, rate)
        report = separate_files([folder / "in"], separator, folder / "out")
        for reason in report.failed.values():
            raise UserError(f"{path.name}: not written: the graph separates no recording ({reason})")
