"""Speaker encoders of other toolkits: what they hear beside Kaldi's and librosa's spectra, and graphs that are none."""

import shutil

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.diarization.counting import CountingRule, rule_of
from sepkit.inference.diarization.encoders import load_encoder
from sepkit.inference.diarization.enrollment import threshold_of
from sepkit.inference.diarization.spectra import fbank, mel
from sepkit.models.published.shipped import encoder_folder
from tests.complaint import complaint
from tests.noise_voices import buzz


def speech(seconds=1.3):
    noise = np.random.default_rng(0).standard_normal(round(16000 * seconds))
    return (0.01 * np.convolve(noise, np.hanning(9), "same")).astype(np.float32)


def test_fbank_is_kaldis():
    kaldi = pytest.importorskip("torchaudio.compliance.kaldi")
    samples = torch.from_numpy(speech())[None] * 2**15
    wanted = kaldi.fbank(samples, num_mel_bins=80, window_type="hamming", dither=0.0).numpy()
    np.testing.assert_allclose(fbank(speech()), wanted - wanted.mean(0), atol=2e-3)


def test_mel_is_librosas():
    """By torchaudio, which has librosa's scale and norm, and imports in no time."""
    like_librosa = {"pad_mode": "constant", "norm": "slaney", "mel_scale": "slaney"}
    transforms = pytest.importorskip("torchaudio.transforms")
    spectrogram = transforms.MelSpectrogram(16000, n_fft=400, hop_length=160, n_mels=40, **like_librosa)
    level = np.sqrt(np.square(speech().astype(np.float64)).mean())
    raised = speech() * max(1.0, 10**-1.5 / level)
    wanted = spectrogram(torch.from_numpy(raised.astype(np.float32))).T.numpy()
    np.testing.assert_allclose(mel(speech()), wanted, atol=1e-5 * wanted.max())


def graph(path, shape, metadata=(), operator="ReduceMean", domain=""):
    """Write a graph whose embedding is the mean over time."""
    made = helper.make_graph(
        [helper.make_node(operator, ["in"], ["mean"], axes=[1], keepdims=int(len(shape) == 2), domain=domain)],
        "encoder",
        [helper.make_tensor_value_info("in", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, [None, shape[2] if len(shape) == 3 else 1])],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, dict(metadata))
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.parametrize(
    ("metadata", "features"), [({"framework": "wespeaker", "sample_rate": "16000"}, None), ({}, "fbank")]
)
def test_what_a_graph_hears_is_said_by_its_metadata_or_by_an_option(tmp_path, metadata, features):
    encoder = load_encoder(graph(tmp_path / "a.onnx", [None, None, 80], metadata), features)
    assert encoder.embedding_size == 80 and encoder.sample_rate == 16000
    # The mean is taken off: what is left is a direction of rounding errors, of unit length or nothing.
    assert np.linalg.norm(encoder.embed(speech()[None])) == pytest.approx(1, abs=1e-5)


def test_a_graph_states_how_its_speakers_are_counted_and_named(tmp_path):
    stated = {"counting": '{"turn_distances": 0.9}', "enrollment": '{"threshold": 0.4}'}
    encoder = load_encoder(graph(tmp_path / "a.onnx", [None, None, 40], stated), "mel")
    assert rule_of(encoder.info) == CountingRule(turn_distances=0.9) and threshold_of(encoder) == 0.4
    # What is speech is decided by the encoder that ships, at its rate.
    wave, own = speech(2.0), load_encoder()
    np.testing.assert_array_equal(encoder.speech(wave[None]), own.speech(audio.resample(wave[None], 16000, 8000)))
    for value, told in (("0.4", "expected numbers among threshold"), ("{", "in its metadata is no JSON")):
        path = graph(tmp_path / "b.onnx", [None, None, 40], {"enrollment": value})
        complaint(lambda path=path: load_encoder(path, "mel"), told)


@pytest.mark.parametrize(
    ("cohort", "told"),
    [
        *((wrong, "npy: cannot be read") for wrong in (b"no array", b"PK\3\4no zip", np.ones((3, 64), complex))),
        (np.zeros((3, 5)), r"cohort.npy: found an array \(3, 5\), expected finite numbers \(voices, 64\)"),
        (np.full((3, 64), np.nan), r"found an array \(3, 64\)"),
    ],
)
def test_a_cohort_that_is_none_is_refused(tmp_path, cohort, told):
    folder = shutil.copytree(encoder_folder("meetings_8k"), tmp_path / "encoder")
    (folder / "cohort.npy").write_bytes(cohort) if isinstance(cohort, bytes) else np.save(folder / "cohort.npy", cohort)
    complaint(lambda: load_encoder(folder), told)
    (folder / "cohort.npy").unlink()
    assert load_encoder(folder).cohort is None and threshold_of(load_encoder(folder)) == 0.73
    assert threshold_of(load_encoder("meetings_8k")) == 0.1 and threshold_of(load_encoder()) == 0.14


def test_mel_graph_gives_the_direction_of_the_mean(tmp_path):
    encoder = load_encoder(graph(tmp_path / "a.onnx", [None, None, 40]), "mel")
    wanted = mel(speech()).mean(0)
    np.testing.assert_allclose(encoder.embed(speech()[None])[0], wanted / np.linalg.norm(wanted), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "features", "told"),
    [
        ([None, None, 80], None, "--speaker-features"), ([None, None, 80], "mel", r"expected \(B, F, 40\)"),
        ([None, None, 80], "waveform", r"expected \(B, T\)"), ([None, None], "fbank", r"expected \(B, F, 80\)"),
    ],
)  # fmt: skip
def test_graphs_that_hear_something_else(tmp_path, shape, features, told):
    complaint(lambda: load_encoder(graph(tmp_path / "a.onnx", shape), features), told)


def test_operators_outside_onnx_are_refused(tmp_path):
    with pytest.raises(UserError, match="none of ONNX's own"):
        load_encoder(graph(tmp_path / "a.onnx", [None, None, 80], operator="Anything", domain="my.ops"), "fbank")


def test_sepkits_own_encoder_hears_samples(tmp_path):
    complaint(lambda: load_encoder(None, "fbank"), "leave it out")
    complaint(lambda: load_encoder(tmp_path / "none.onnx", "fbank"), "no such file")


def test_a_recording_is_clustered_by_the_encoder_of_another_toolkit(tmp_path):
    low, high = (0.2 * buzz(hz, 2.0, 16000) for hz in (100, 350))
    pause = np.zeros(16000)
    audio.write(tmp_path / "in.wav", np.concatenate([low, pause, high, pause, low]).astype(np.float32), 16000)
    encoder = graph(tmp_path / "a.onnx", [None, None, 40])
    command = ["cluster", str(tmp_path / "in.wav"), "--out", str(tmp_path / "out"), "--speakers", "2"]
    assert main([*command, "--speaker-encoder", encoder, "--speaker-features", "mel"]) == 0
    names = [line.split()[7] for line in (tmp_path / "out" / "in.rttm").read_text().splitlines()]
    assert names == ["speaker_1", "speaker_2", "speaker_1"]
