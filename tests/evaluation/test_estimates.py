"""Estimates in files are found by ids of any kind."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry
from sepkit.evaluation.run_folder import find_estimates, read_estimates
from tests.complaint import complaint

IDS = ["{}", "{0.__class__}", "{name!r:>99999999}", "{", "}}", "%s%n", "[a]*?", "a b", "ü" * 99, "~", "$HOME", r"\1"]


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("layout", ["{name}_s{k}.wav", "s{k}/{name}.wav"])
def test_ids_are_text_and_no_patterns(name: str, layout: str, tmp_path: Path) -> None:
    entry = MixtureEntry(id=name, sample_rate=8000, num_samples=10, sources=[SourceEntry("a"), SourceEntry("b")])
    assert name in complaint(lambda: find_estimates(tmp_path, entry), "no estimates")
    paths = [tmp_path / layout.replace("{k}", str(k)).replace("{name}", name) for k in (1, 2)]
    for path in paths:
        audio.write(path, np.zeros(10, np.float32), 8000)
    assert find_estimates(tmp_path, entry) == paths
    assert read_estimates(paths, 8000).shape == (2, 10)


def test_recorded_mixtures_with_braces(tmp_path: Path) -> None:
    entry = MixtureEntry(id="m", sample_rate=8000, num_samples=10, mixture="mix/{0}.wav")
    audio.write(tmp_path / "{0}_s1.wav", np.zeros(10, np.float32), 8000)
    assert find_estimates(tmp_path, entry) == [tmp_path / "{0}_s1.wav"]


@pytest.mark.parametrize("layout", ["m_s{k}{ending}", "s{k}/m{ending}"])
@pytest.mark.parametrize(
    "endings", [(".WAV", ".wav"), (".Wav", ".WAV"), (".FLAC", ".Flac"), (".flac", ".wav"), (".wav", ".flac")]
)
def test_endings_in_any_case_are_found(layout: str, endings: tuple[str, str], tmp_path: Path) -> None:
    entry = MixtureEntry(id="m", sample_rate=8000, num_samples=10, sources=[SourceEntry("a"), SourceEntry("b")])
    paths = [tmp_path / layout.format(k=k, ending=ending) for k, ending in enumerate(endings, start=1)]
    for path, level in zip(paths, (0.25, 0.5), strict=True):
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, np.full(10, level), 8000, format=path.suffix[1:].upper())
    assert find_estimates(tmp_path, entry) == paths
    np.testing.assert_allclose(read_estimates(paths, 8000), [[0.25] * 10, [0.5] * 10])
    # The case of a name is part of the identifier.
    complaint(lambda: find_estimates(tmp_path, replace(entry, id="M")), "no estimates")


def test_files_that_differ_by_case_alone_are_refused(tmp_path: Path) -> None:
    entry = MixtureEntry(id="m", sample_rate=8000, num_samples=10, sources=[SourceEntry("a")])
    for name in ("m_s1.wav", "m_s1.WAV"):
        (tmp_path / name).write_bytes(b"")
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("this file system does not tell upper from lower case")
    complaint(lambda: find_estimates(tmp_path, entry), r"found m_s1\.WAV and m_s1\.wav, which differ by case alone")
