"""Collections of utterances with known speakers."""

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.data.segments import read_segments
from sepkit.models import build_model, save_model
from sepkit.studies.speaker_clustering.data import through_mixture
from tests.noise_voices import RATE, voice


class Passes:
    """A separator of two outputs that returns what it was given, once cut in half, and notes the mixtures."""

    def __init__(self, sources: list[np.ndarray]) -> None:
        self.sources, self.mixtures = sources, []

    def separate(self, waveform: np.ndarray, sample_rate: int) -> "Passes":
        self.mixtures.append(waveform)
        self.estimates = np.stack(self.sources)
        return self


@pytest.mark.parametrize(("seed", "whole"), [(0, False), (2, True)])
def test_the_estimate_of_the_utterance_is_kept(seed: int, whole: bool) -> None:
    own, other = voice(0, 1.0, 1), voice(1, 0.4, 2)
    separator = Passes([voice(2, 1.0, 5), 3 * own, np.zeros_like(own)])
    found = through_mixture(own, other, None, separator, RATE, np.random.default_rng(seed))  # type: ignore[arg-type]
    np.testing.assert_allclose(found, 3 * own, atol=1e-6)
    rest = separator.mixtures[0] - own
    heard = np.abs(rest) > 0
    assert heard.all() == whole
    # The other one begins anywhere and repeats where it is heard; if all of it is, within 2.5 dB of the same level.
    period = heard[: -len(other)] & heard[len(other) :]
    np.testing.assert_allclose(rest[: -len(other)][period], rest[len(other) :][period], atol=1e-6)
    if whole:
        assert abs(10 * np.log10(np.square(rest).mean() / np.square(own).mean())) < 2.5 + 1e-4


def test_noise_is_below_the_utterance() -> None:
    own, noise = voice(0, 1.0, 1), voice(1, 3.0, 2)
    levels = []
    for seed in range(20):
        separator = Passes([own])
        generator = np.random.default_rng(seed)
        through_mixture(own, np.zeros_like(own), noise, separator, RATE, generator)  # type: ignore[arg-type]
        levels.append(10 * np.log10(np.square(separator.mixtures[0] - own).mean() / np.square(own).mean()))
    assert -20.1 < min(levels) < -12 and -11 < max(levels) < -2.9


def test_separated_utterances(voices, tiny_model_config, tmp_path, refused) -> None:
    save_model(build_model(tiny_model_config), tmp_path / "separator")
    command = ["prepare", "voices", "--speech", str(voices), "--out", str(tmp_path / "out")]
    assert main([*command, "--separated", str(tmp_path / "separator")]) == 0
    rows = read_segments(tmp_path / "out" / "voices.csv")
    assert [row.speaker for row in rows] == list("000111222") and rows[0].path == "0/0.flac"
    made = [audio.read(tmp_path / "out" / row.path) for row in rows]
    own = [audio.read(voices / row.path.replace("flac", "wav")) for row in rows]
    assert [len(samples) for samples in made] == [len(samples) for samples in own]
    assert all(np.abs(a - b).max() > 1e-3 for a, b in zip(made, own, strict=True))
    some = ["prepare", "voices", "--speech", str(voices), "--out", str(tmp_path / "some"), "--recordings", "2"]
    assert main(some) == 0
    assert [row.speaker for row in read_segments(tmp_path / "some" / "voices.csv")] == list("001122")
    assert "voices.json" in refused(command)
    alone = ["--out", str(tmp_path / "alone"), "--speakers", "1", "--separated", str(tmp_path / "separator")]
    error = refused(["prepare", "voices", "--speech", voices, *alone])
    assert "expected at least 2, whose utterances are mixed" in error
    assert "and --separated" in refused([*some, "--noise", voices])
