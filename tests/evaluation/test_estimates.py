"""Estimates in files are found by ids of any kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry
from sepkit.errors import UserError
from sepkit.evaluation.estimates import find_estimates, read_estimates

IDS = ["{}", "{0.__class__}", "{name!r:>99999999}", "{", "}}", "%s%n", "[a]*?", "a b", "ü" * 99, "~", "$HOME", r"\1"]


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("layout", ["{name}_s{k}.wav", "s{k}/{name}.wav"])
def test_ids_are_text_and_no_patterns(name: str, layout: str, tmp_path: Path) -> None:
    entry = MixtureEntry(id=name, sample_rate=8000, num_samples=10, sources=[SourceEntry("a"), SourceEntry("b")])
    with pytest.raises(UserError, match="no estimates") as caught:
        find_estimates(tmp_path, entry)
    assert name in str(caught.value)
    paths = [tmp_path / layout.replace("{k}", str(k)).replace("{name}", name) for k in (1, 2)]
    for path in paths:
        audio.write(path, np.zeros(10, np.float32), 8000)
    assert find_estimates(tmp_path, entry) == paths
    assert read_estimates(paths, 8000).shape == (2, 10)


def test_recorded_mixtures_with_braces(tmp_path: Path) -> None:
    entry = MixtureEntry(id="m", sample_rate=8000, num_samples=10, mixture="mix/{0}.wav")
    audio.write(tmp_path / "{0}_s1.wav", np.zeros(10, np.float32), 8000)
    assert find_estimates(tmp_path, entry) == [tmp_path / "{0}_s1.wav"]
