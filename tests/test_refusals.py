"""What is refused by values and files that no other test gives: a row each, with the words that say what was found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sepkit.annealing import temperature
from sepkit.config import NegSISDRConfig
from sepkit.data import audio
from sepkit.data.dataset import EpochSampler, MixtureDataset
from sepkit.data.manifest import MixtureEntry, SourceEntry, read_manifest, write_manifest
from sepkit.data.mixing import mix_entry
from sepkit.evaluation.meeting import evaluate_meetings
from sepkit.evaluation.run_folder import _read_config, _read_log, read_estimates
from sepkit.inference.loading import load_model
from sepkit.inference.waveforms import to_mono
from sepkit.limits import CHANNELS
from sepkit.models import build_model, save_model
from sepkit.models.published.card import read_summary
from sepkit.objectives.assignment import AnnealedMCL
from sepkit.objectives.objective import Objective
from tests.complaint import complaint


def written(folder: Path, text: str) -> Path:
    path = folder / "file"
    path.write_text(text)
    return path


def turns(folder: Path, sessions: str) -> Path:
    path = folder / "r.rttm"
    path.write_text("".join(f"SPEAKER {name} 1 0.5 1.5 <NA> <NA> x <NA> <NA>\n" for name in sessions))
    return path


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c, f: audio.read(c.folder / "wav/mix0_0.wav", -1, 5), "start -1 and num_samples 5 asked for"),
        (lambda c, f: audio.read(c.folder / "wav/mix0_0.wav", 5, -1), "start 5 and num_samples -1 asked for"),
        (
            lambda c, f: MixtureDataset(
                write_manifest(f / "m", [c.entries[0], replace(c.entries[1], sample_rate=16000)])
            ),
            "mixtures at 8000 and 16000 Hz; expected one sample_rate",
        ),
        (lambda c, f: _read_log(written(f, '{\n{"kind": "step", "step": 1}')), "file:1: not JSON"),
        (lambda c, f: _read_config(written(f, "[a]")), "found ['a'], expected a configuration"),
        (lambda c, f: read_summary(written(f, '{"metrics": [1]}')), "found no metrics, expected summary.json"),
        (
            lambda c, f: read_estimates(
                [c.folder / "wav/mix0_0.wav", audio.write(f / "short.wav", np.zeros(9, np.float32), 8000)], 8000
            ),
            "short.wav: contains 9 samples, mix0_0.wav 4000; expected equal lengths",
        ),
        (
            lambda c, f: temperature.of_model(build_model(c.single), c.manifest, NegSISDRConfig()),
            "--model: found one hypothesis, expected two or more",
        ),
        (
            lambda c, f: evaluate_meetings("r", [f / "h.RTTM"], f, "cat"),
            "--asr-command: transcribes audio files, found",
        ),
        (lambda c, f: evaluate_meetings(turns(f, "a"), ["h.wav"], f, "cat"), "has no words to measure --asr-command"),
        (lambda c, f: evaluate_meetings(turns(f, ""), ["h.wav"], f), "it contains no speech, expected turns"),
        (
            lambda c, f: load_model(save_model(build_model(c.single), f / "m"), runner="graph"),
            "has no graph; make one: sepkit export",
        ),
        *(
            (
                lambda c, f, shape=shape: to_mono(np.zeros(shape), "waveform"),
                f"waveform: found shape {shape}, expected (samples,) or (channels, samples)",
            )
            for shape in ((), (0, 5), (CHANNELS + 1, 5), (1, 2, 5))
        ),
    ],
)
def test_users_are_told(call: Any, words: str, corpus: Any, tmp_path: Path, tiny_model_config: Any) -> None:
    corpus.single = replace(tiny_model_config, hypotheses=1)
    assert words in complaint(lambda: call(corpus, tmp_path))


ENTRY = MixtureEntry("a", 8000, 5, [SourceEntry("a.wav")])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: EpochSampler(4, rank=2, world=2), "rank 2 of 2"),
        (lambda: EpochSampler(4, rank=-1, world=2), "rank -1 of 2"),
        (lambda: EpochSampler(4, batch_size=0), "batch size 0"),
        (lambda: EpochSampler(-1), "-1 items"),
        (lambda: mix_entry(ENTRY, -1), "samples -1 to 5 of a, which has 5"),
        (lambda: mix_entry(ENTRY, 1, 5), "samples 1 to 6 of a, which has 5"),
        (lambda: mix_entry(ENTRY, 0, -1), "samples 0 to -1 of a"),
        (lambda: Objective({}, {"b": 1.0, "a": 1.0}), "weights for unknown terms ['a', 'b']; the terms are []"),
        (lambda: AnnealedMCL(-1.0), "temperature must not be negative, found -1.0"),
        (lambda: AnnealedMCL(np.nan), "temperature must not be negative, found nan"),
    ],
)
def test_programs_are_told(call: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert words in str(caught.value)


def test_the_last_example_is_there_and_none_beyond_it(corpus: Any) -> None:
    data = MixtureDataset(corpus.manifest)
    assert data[4].id == "mix4" and len(read_manifest(corpus.manifest)) == 5
    for index in (5, -1):
        with pytest.raises(IndexError, match=f"example {index} of 5"):
            data[index]
