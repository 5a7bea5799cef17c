"""One table of what is refused, and the words of the one line that says so."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import sepkit
from sepkit.config import ScoringConfig
from sepkit.inference import Separator, separate_files
from sepkit.inference.options import OutputOptions, SeparatorOptions
from sepkit.models import build_model
from tests.complaint import complaint
from tests.inference.folders import record
from tests.tiny_models import CAUSAL, RECURRENT

SCORED = replace(RECURRENT, hypotheses=4, scoring=ScoringConfig(4))

WAVEFORMS = [
    (np.zeros(0), 8000, {}, "no samples"),
    (np.zeros((2, 0)), 8000, {}, "no samples"),
    (np.zeros((0, 5)), 8000, {}, "shape"),
    (np.zeros((8000, 2)), 8000, {}, "transpose"),
    (np.zeros((4, 1, 5)), 8000, {}, r"shape \(4, 1, 5\).*use separate_many"),
    ([np.zeros(5), np.zeros(6)], 8000, {}, "a list of 2.*use separate_many"),
    ([np.zeros(5), np.zeros(5)], 8000, {}, "a list of 2.*use separate_many"),
    (io.StringIO("text"), None, {}, "opened as text.*'rb'"),
    (io.BytesIO(b"no audio"), None, {}, "cannot be read as audio"),
    (np.float64(3.0), 8000, {}, "shape"),
    (np.array([0.0, math.nan]), 8000, {}, "NaN"),
    (torch.tensor([0.0, math.inf]), 8000, {}, "infinite"),
    (np.zeros(5, np.int16), 8000, {}, "int16"),
    (torch.zeros(5, dtype=torch.int32), 8000, {}, "int32"),
    *(
        (np.zeros(5), rate, {}, "sample_rate")
        for rate in (0, -8000, 1, 999, 8000.5, 768_001, 2**31, math.nan, math.inf, None)
    ),
    (np.zeros(5), "16000", {}, "sample_rate: found '16000', expected a whole number"),
    (b"no audio", None, {}, "cannot be read as audio"),
    (b"no audio", 8000, {}, "sample_rate"),
    ("/no/such/file.wav", None, {}, "no such file"),
    (np.zeros((2, 10)), 8000, {"channel": 2}, "channel"),
    (np.zeros(10), 8000, {"channel": -1}, "channel"),
    *(
        (np.ones(10), 8000, {"speakers": speakers}, r"auto or a whole number from 1 to 4|this model has 4 outputs")
        for speakers in (0, 5, -1, True, "some")
    ),
]


def line_of(action, words: str) -> None:
    complaint(lambda: action(), words)


def plain() -> Separator:
    return Separator(build_model(RECURRENT))


@pytest.mark.parametrize(("waveform", "rate", "options", "words"), WAVEFORMS)
def test_recordings(waveform, rate, options, words):
    line_of(lambda: Separator(build_model(SCORED)).separate(waveform, rate, **options), words)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: plain().separate(np.ones(9), 8000, speakers="auto"), "does not count speakers"),
        *((lambda name=name: Separator(build_model(RECURRENT), name), "device: found") for name in ("cuda:99", "no")),
        *((lambda name=name: sepkit.load_model(name), "") for name in ("/none", "asteroid:/none", "conv_tasnet")),
        (lambda: plain().streaming(), r"bidirectional: true\) needs the whole recording"),
        *(
            (lambda rate=rate: Separator(build_model(CAUSAL)).streaming(rate), "^sample_rate: found")
            for rate in (0, -1, 8000.5)
        ),
    ],
)
def test_models_and_devices(action, words):
    line_of(action, words)


@pytest.mark.parametrize(
    "block", [np.zeros(3, np.int16), torch.zeros(3, dtype=torch.int32), np.zeros((1, 2, 3)), np.zeros((0, 3))]
)
def test_blocks_of_a_stream(block):
    with Separator(build_model(CAUSAL)).streaming() as stream:
        line_of(lambda: stream.push(block), "^block: found .*, expected")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"chunk_seconds": seconds}, "chunk_seconds: found") for seconds in (0, 0.0, math.inf)),
        *(({"overlap_seconds": seconds}, "overlap_seconds: found") for seconds in (0, 5.1, -1, 11)),
        ({"whole_seconds": math.nan}, "whole_seconds: found"),
        *(({"views": views}, f"views: found {views}, expected 1 to 5; 2 gains most") for views in (0, 6, -1)),
        ({"link_speakers": 0}, "link_speakers"),
        ({"speaker_encoder": "x"}, "speaker_encoder"),
        ({"link_speakers": 2, "speakers": 2}, "link_speakers"),
        ({"format": "flac", "subtype": "FLOAT"}, "flac does not support"),
    ],
)
def test_options(options, words):
    kind = OutputOptions if {*options} & set(OutputOptions.__dataclass_fields__) else SeparatorOptions
    line_of(lambda: kind(**options), words)


@pytest.mark.parametrize(
    ("inputs", "out", "config", "options", "words"),
    [
        ("none", "out", RECURRENT, {}, "no such file"), ("empty", "out", RECURRENT, {}, "no audio files"),
        ("in", "in", RECURRENT, {}, "also an input"), ("in", "file", RECURRENT, {}, "cannot be written to"),
        ("in", "out", RECURRENT, {"speakers": "auto"}, "does not count speakers"),
    ],
)  # fmt: skip
def test_folders(tmp_path, inputs, out, config, options, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    record(tmp_path / "in" / "x.wav")
    separator = Separator(build_model(config))
    line_of(lambda: separate_files([tmp_path / inputs], separator, tmp_path / out, OutputOptions(**options)), words)
    assert not (tmp_path / "out").exists()
