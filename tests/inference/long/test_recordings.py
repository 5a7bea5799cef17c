"""Long recordings in chunks, against the same as a whole."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from sepkit.config import ModelConfig, RecurrentConfig, STFTFilterbankConfig
from sepkit.data import audio
from sepkit.inference import Separator
from sepkit.inference import separator as separator_module
from sepkit.inference.long.recordings import ArrayRecording, FileRecording
from sepkit.inference.long.stitching import chunking_of
from sepkit.inference.quality.voices import prediction_encoder
from sepkit.inference.selection import Selection, gains_of, products_of
from sepkit.models import build_model, save_model
from tests.inference.bands import band_split, masked
from tests.tiny_models import RECURRENT


def noise(num_samples, seed=0):
    return (0.1 * np.random.default_rng(seed).standard_normal(num_samples)).astype(np.float32)


CHUNKS = {"chunk_seconds": 0.4, "overlap_seconds": 0.15, "whole_seconds": 0.0}
BOTH = pytest.mark.parametrize("options", [CHUNKS, {}], ids=["chunks", "whole"])


@pytest.mark.parametrize("sample_rate", [8000, 7999, 11025, 22050, 44100, 48000])
@pytest.mark.parametrize("extra", [0, 1])
def test_chunks_are_the_whole_where_the_model_hears_little(sample_rate, extra):
    # Differences of samples: chunks have no mean of their own, which a model never hears.
    waveform = np.diff(noise(2 * sample_rate + extra + 1))
    whole = band_split(whole_seconds=float("inf")).separate(waveform, sample_rate)
    chunked = band_split(**CHUNKS).separate(waveform, sample_rate)
    assert chunked.estimates.shape == (2, len(waveform)) and chunked.sample_rate == sample_rate
    np.testing.assert_allclose(chunked.gains, whole.gains, rtol=1e-3)
    # Edges of chunks are a frame of 32 ms, which has the smallest weights.
    assert np.abs(chunked.estimates - whole.estimates).max() < 0.02
    assert np.square(chunked.estimates - whole.estimates).sum() < 1e-4 * np.square(whole.estimates).sum()


@BOTH
@pytest.mark.parametrize("num_samples", [1, 2, 3, 15, 16, 17, 3199, 3200, 3201, 4400, 5200, 5201, 7000])
@pytest.mark.parametrize("sample_rate", [8000, 44100, 6000])
def test_every_length_comes_back(num_samples, sample_rate, options):
    estimates = band_split(**options).separate(noise(num_samples), sample_rate).estimates
    assert estimates.shape == (2, num_samples) and np.isfinite(estimates).all()


def test_gains_are_those_of_the_joined_estimates():
    """Computed from sums over chunks, against the waveforms themselves; the model hears chunks less their means."""
    model, waveform = build_model(RECURRENT), noise(16001)
    raw = Separator(model, levels="model", **CHUNKS).separate(waveform, 8000)
    chunking, heard = chunking_of(8000, 0.4, 0.15), np.zeros(16001)
    starts = range(0, 16001 - 1200, 2000)
    for start in starts:
        chunk = waveform[start : start + 3200].astype(np.float64)
        weights = chunking.weights(len(chunk), first=start == 0, last=start == starts[-1])
        heard[start : start + 3200] += weights * (chunk - chunk.mean())
    expected = [np.linalg.lstsq(row[:, None], heard, rcond=None)[0][0] for row in raw.estimates]
    np.testing.assert_allclose(Separator(model, **CHUNKS).separate(waveform, 8000).gains, expected, rtol=1e-4)
    both = np.linalg.lstsq(raw.estimates.T, heard, rcond=None)[0]
    consistent = Separator(model, mixture_consistency=True, **CHUNKS).separate(waveform, 8000)
    np.testing.assert_allclose(consistent.gains, both, rtol=1e-3)
    np.testing.assert_allclose(consistent.estimates.sum(0), waveform, atol=1e-6)


def test_silence_stays_silent_and_a_pause_does_no_harm():
    separator = band_split(**CHUNKS)
    np.testing.assert_array_equal(separator.separate(np.zeros(16000, np.float32), 8000).estimates, 0)
    # Each pair of samples has zero mean, and so has each chunk.
    waveform = np.kron(noise(8000), np.float32([1, -1]))
    waveform[5000:12000] = 0
    assert np.abs(separator.separate(waveform, 8000).estimates[:, 5500:11500]).max() < 1e-6
    # A pause that is not quite silent fills chunks of its own, and is not louder than it was.
    waveform[5000:12000] = 1e-4 * noise(7000)
    estimates = separator.separate(waveform, 8000).estimates
    assert np.abs(estimates[:, 5500:11500]).max() < 2 * np.abs(waveform[5000:12000]).max()


def test_a_pause_has_no_more_than_the_mean_of_its_chunk():
    waveform = noise(16000)
    waveform[5000:12000] = 0
    separated = band_split(**CHUNKS).separate(waveform, 8000)
    means = [abs(waveform[start : start + 3200].mean()) for start in range(0, 14001, 2000)]
    assert 0 < np.abs(separated.estimates[:, 5500:11500]).max() < 1.01 * max(means)
    # The chunk from 6000 to 9200 is all pause, and is alone from 7200 to 8000.
    np.testing.assert_array_equal(separated.estimates[:, 7200:8000], 0)


def test_one_voice_alone_stays_in_one_place():
    """Tones that never end, as in music, all in one band: one estimate has them, the other next to nothing."""
    time = np.arange(40000) / 8000
    tones = sum(0.1 * np.sin(2 * np.pi * hz * time) for hz in (220.0, 277.2, 329.6)).astype(np.float32)
    separator = band_split(**CHUNKS, levels="model")
    for undo_swaps in (True, False):
        found = separator.separate_recording(ArrayRecording(tones, 8000), undo_swaps=undo_swaps)
        energies = np.square(found.estimates.in_memory()).reshape(2, 10, -1).sum(-1)
        assert (energies[0] > 1e3 * energies[1]).all()


class ShuffledBands(torch.nn.Module):
    """Masks of n bands, in another order for each mixture."""

    def __init__(self, hypotheses):
        super().__init__()
        self.hypotheses, self.generator = hypotheses, np.random.default_rng(hypotheses)

    def forward(self, features):
        bands = torch.arange(features.shape[1]) * self.hypotheses // features.shape[1]
        orders = torch.tensor(np.array([self.generator.permutation(self.hypotheses) for _ in features]))
        masks = (bands == orders[..., None]).float()[:, :, None, :, None]
        return masks.expand(-1, -1, -1, -1, features.shape[2])


class BandScores(torch.nn.Module):
    """The score of a band is its number."""

    def forward(self, masks):
        return (masks[..., 0].flatten(2).argmax(-1) * masks.shape[1] / masks.shape[-2]).round()


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("hypotheses", [1, 2, 5])
def test_chunks_in_any_order_are_put_in_that_of_the_first(hypotheses, scored):
    model = masked(ShuffledBands(hypotheses), scoring_head=BandScores() if scored else None)
    waveform = noise(24000)
    chunked = Separator(model, **CHUNKS).separate(waveform, 8000)
    powers = np.square(np.abs(np.fft.rfft(chunked.estimates)))
    of_bands = np.stack([part.sum(-1) for part in np.array_split(powers, hypotheses, axis=1)], axis=1)
    bands = of_bands.argmax(1)
    assert sorted(bands) == list(range(hypotheses))
    assert (of_bands.max(1) > 0.95 * of_bands.sum(1)).all()
    np.testing.assert_allclose(chunked.estimates.sum(0), waveform, atol=0.02)
    if scored:
        np.testing.assert_allclose(chunked.scores, bands, atol=0.1)


@pytest.mark.parametrize(
    ("views", "scored", "options", "undo_swaps", "used"),
    [
        (1, False, {}, True, False),
        (2, False, {}, True, True),
        (1, False, CHUNKS, True, True),
        (2, False, CHUNKS, False, False),
        (2, True, CHUNKS, True, False),
    ],
)
def test_swaps_are_undone_in_views_and_chunks(monkeypatch, views, scored, options, undo_swaps, used):
    encoders = []
    monkeypatch.setattr(separator_module, "prediction_encoder", lambda: encoders.append(1) or prediction_encoder())
    model = masked(ShuffledBands(2), scoring_head=BandScores() if scored else None)
    separator = Separator(model, views=views, **options)
    separator.separate_recording(ArrayRecording(noise(8000), 8000), undo_swaps=undo_swaps).estimates.close()
    assert len(encoders) == used


def test_blocks_and_excerpts_by_hand(tmp_path, capfd):
    """Less the mean of the first block, or of the excerpt; a bar is only shown where it is asked for."""
    samples = np.arange(30, dtype=np.float32) / 64
    array, stereo = ArrayRecording(samples, 1000, 0.012), np.stack([np.zeros(30, np.float32), samples])
    assert [len(block) for block in array.blocks()] == [12, 12, 6]
    file = FileRecording(audio.write(tmp_path / "x.wav", stereo, 1000), channel=1)
    for recording, first in ((array, 12), (file, 30), (file.whole(), 30)):
        assert (recording.sample_rate, recording.num_samples) == (1000, 30)
        np.testing.assert_array_equal(np.concatenate([*recording.blocks()]), samples)
        np.testing.assert_array_equal(recording.read(28, 99), samples[28:])
        np.testing.assert_allclose(np.concatenate([*recording.at_rate(1000)]), samples - samples[:first].mean())
        part = samples[10:20] - samples[10:20].mean()
        np.testing.assert_allclose(recording.excerpt(10, 20, 1000), part, atol=1e-7)
        np.testing.assert_allclose(recording.excerpt(5, 10, 500), audio.resample(part, 1000, 500), atol=1e-7)
    assert not capfd.readouterr().err


def test_paths_bytes_and_arrays_are_the_same(tmp_path):
    separator, waveform = band_split(**CHUNKS), np.stack([noise(9000), noise(9000, 1)])
    path = audio.write(tmp_path / "x.wav", waveform, 11025)
    expected = separator.separate(waveform, 11025, channel=1).estimates
    data = path.read_bytes()
    for given in (path, str(path), data, io.BytesIO(data)):
        np.testing.assert_array_equal(separator.separate(given, channel=1).estimates, expected)
    np.testing.assert_array_equal(separator.separate(torch.from_numpy(waveform[1]), 11025).estimates, expected)


def test_least_squares_gains_of_duplicates_are_finite():
    mixture = noise(1000)
    products = products_of(mixture, np.stack([mixture, mixture, np.zeros(1000, np.float32)]))
    gains = gains_of(products, "mixture", "mixture", np.arange(3))
    np.testing.assert_allclose(gains, [0.5, 0.5, 0], atol=1e-6)
    assert Selection(gains, np.arange(3)).shares(products).sum() == pytest.approx(1)


MEASURE = """
import resource, sys, json
import torch
torch.set_num_threads(1)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
from sepkit.inference import load_model, separate_files
report = separate_files([sys.argv[1]], load_model(sys.argv[2]), sys.argv[3])
print(json.dumps([before, peak(), report.separated]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("hours", "sample_rate"), [(0.1, 44100), (3.0, 8000)])
def test_memory_does_not_grow_with_length(tmp_path, hours, sample_rate):
    """A process of its own; the first time with a model of the size of the default one."""
    size, layers = (256, 3) if hours < 1 else (4, 1)
    masker = RecurrentConfig(hidden_size=size, num_layers=layers)
    config = ModelConfig(filterbank=STFTFilterbankConfig(kernel_size=256, stride=128), masker=masker)
    save_model(build_model(config), tmp_path / "model")
    audio.write(tmp_path / "x.flac", noise(round(3600 * hours * sample_rate)), sample_rate, subtype="PCM_16")
    command = [sys.executable, "-c", MEASURE, tmp_path / "x.flac", tmp_path / "model", tmp_path / "out"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    before, after, separated = json.loads(done.stdout.splitlines()[-1])
    assert separated == 1 and after - before < 250
    assert audio.info(tmp_path / "out" / "x_s2.wav").num_samples == round(3600 * hours * sample_rate)
