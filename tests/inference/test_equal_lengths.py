"""A folder whose files go through the model together is the folder separated one by one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile

from sepkit.data import audio
from sepkit.inference import Separator, separate_files


def test_a_folder_in_batches_is_the_folder_one_by_one(gru, batch_sizes, tmp_path, monkeypatch):
    generator, folder = np.random.default_rng(0), tmp_path / "in"
    folder.mkdir()
    for number in range(9):
        waveform = 0.1 * generator.standard_normal(800 if number != 4 else 700).astype(np.float32)
        waveform[5] = np.nan if number == 7 else 0.0
        waveform *= 1e38 if number == 8 else 1.0
        soundfile.write(folder / f"{number}.wav", waveform, 16000, subtype="FLOAT")
    (folder / "3.wav").write_bytes(b"RIFF")
    together = separate_files([folder], Separator(gru), tmp_path / "together")
    # 0, 1, 2 and 5; then 6 and 8, whose broken estimates leave each to itself. 3 and 7 cannot be read, 4 is shorter.
    assert batch_sizes == [4, 2]
    monkeypatch.setattr(Separator, "batch_size", lambda self, seconds: 1)
    alone = separate_files([folder], Separator(gru), tmp_path / "alone")
    assert (together.separated, together.told) == (6, alone.told)
    assert together.failed == alone.failed and {path[-5:] for path in together.failed} == {"3.wav", "7.wav", "8.wav"}
    for path in sorted((tmp_path / "alone").rglob("*.wav")):
        np.testing.assert_allclose(audio.read(tmp_path / "together" / path.name), audio.read(path), atol=1e-6)
    descriptions = [json.loads((tmp_path / folder / "6.json").read_text()) for folder in ("together", "alone")]
    assert descriptions[0].keys() == descriptions[1].keys()
    assert descriptions[0]["scores"] == pytest.approx(descriptions[1]["scores"], rel=1e-5)
    # Either continues the other.
    assert separate_files([folder], Separator(gru), tmp_path / "together").already_done == 6
