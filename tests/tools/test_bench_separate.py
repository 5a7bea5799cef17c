"""The line `separate` at tiny sizes: both sides in processes of their own, checked against float64."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tools.bench import contestants, separate
from tools.bench.inputs import REAL, SHAPED, two_voices
from tools.bench.processes import Contestant, once

TINY = {
    "Conv-TasNet": {"n_filters": 16, "bn_chan": 8, "hid_chan": 16, "skip_chan": 8, "n_blocks": 2, "n_repeats": 1},
    "DPRNN": {"n_filters": 8, "bn_chan": 8, "hid_size": 8, "n_repeats": 1, "chunk_size": 20},
    "SepFormer": {"channels": 16, "layers": 1, "feed_forward": 16, "repeats": 1, "chunk": 20},
}


@pytest.fixture(autouse=True)
def _no_recordings(monkeypatch):
    pytest.importorskip("asteroid", reason="asteroid is missing: pip install 'sepkit[peers]'")
    monkeypatch.delenv("SEPKIT_DATA", raising=False)
    monkeypatch.delenv("SEPKIT_BENCH_MODEL", raising=False)


@pytest.fixture
def in_this_process(monkeypatch, contestant_in_this_process):
    monkeypatch.setattr(separate, "Contestant", contestant_in_this_process)


def row(model, seconds=0.5, way="whole", **options):
    return separate.Row(model, seconds, 1, way, sizes=TINY[model], turns=2, **options)


def test_pairs_are_timed_and_checked(in_this_process, capsys):
    pairs = [row("Conv-TasNet", least_ratio=0.001), row("DPRNN"), row("Conv-TasNet", way="allocator")]
    result = separate.run(pairs, peak_seconds=0.1, quality_seconds=1.0, unfinished=None)
    first, second, allocator = result["rows"]
    for record in (first, second):
        assert record["input"] == SHAPED and record["peer"] == "asteroid" and record["turns"] == 2
        assert record["ratio"]["range"][0] <= record["ratio"]["median"] <= record["ratio"]["range"][1]
        assert all(0 < record["difference"][who] < 1e-5 for who in separate.WHO)
        assert 0 < record["share_of_peak"]["ours"] < 1
    assert allocator["peer"] == "sepkit, allocator as it comes"
    assert allocator["difference"]["ours"] == allocator["difference"]["theirs"]
    assert result["peaks"]["1"]["gflops"] > 0
    printed = capsys.readouterr().out
    assert "(asked 0.001)" in printed and "Conv-TasNet, 0.5 s, whole file, threads 1" in printed


@pytest.mark.slow
def test_processes_of_their_own_and_chunks_from_disk_to_disk():
    pairs = [row("Conv-TasNet"), row("Conv-TasNet", 1.5, "chunked")]
    whole, chunked = separate.run(pairs, 0.1, 1.0, None)["rows"]
    for record in (whole, chunked):
        before, peak = record["peak_memory_before_mb"], record["peak_memory_mb"]
        assert all(0 < before[who] <= peak[who] < 400 for who in separate.WHO) and peak["ours"] < 250
    assert chunked["most_peak_memory_mb"] == 250


def test_chunks_are_compared_with_the_whole_file(in_this_process):
    (record,) = separate.run([row("Conv-TasNet", 1.5, "chunked")], 0.1, 1.0, None)["rows"]
    assert all(-20 < record["likeness_db"][who] < 100 for who in separate.WHO) and "difference" not in record


def test_sepformer_against_speechbrain(in_this_process):
    pytest.importorskip("speechbrain", reason="speechbrain is missing: pip install 'sepkit[sepformer]'")
    (record,) = separate.run([row("SepFormer")], 0.1, 1.0, None)["rows"]
    assert record["peer"] == "speechbrain" and record["difference"]["ours"] < 1e-5


def test_outputs_that_differ_are_an_error(in_this_process, monkeypatch):
    monkeypatch.setattr(separate, "TOLERANCE", 0.0)
    with pytest.raises(RuntimeError, match=r"Conv-TasNet, 0.5 s, whole file: the estimates differ by"):
        separate.run([row("Conv-TasNet")], 0.1, 1.0, None)


def test_a_precision_that_is_refused_is_left_out_with_its_reason(in_this_process, monkeypatch):
    for ability in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, ability, lambda: False)
    (record,) = separate.run([row("Conv-TasNet", way="bfloat16")], 0.1, 1.0, None)["rows"]
    assert "precision" in record["left_out"] and "ratio" not in record


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="no bfloat16 in this processor")
@pytest.mark.parametrize(("model", "least"), [("DPRNN", 50), ("Conv-TasNet", 40)])
def test_bfloat16_has_its_signal_to_noise_ratio(in_this_process, model, least):
    (record,) = separate.run([row(model, way="bfloat16")], 0.1, 1.0, None)["rows"]
    assert 30 < record["snr_db"] < 90 and record["least_snr_db"] == least


class _SwapsInChunks:
    """Leaves a tenth of the other voice in each estimate; in chunks it also swaps them from second 10 on."""

    model = SimpleNamespace(masker=torch.nn.Identity())

    def __init__(self, voices, whole_seconds=math.inf):
        self.estimates = voices + 0.1 * voices[::-1]
        if not math.isinf(whole_seconds):
            self.estimates = np.concatenate([self.estimates[:, :80000], self.estimates[::-1, 80000:]], -1)

    def separate(self, mixture, sample_rate):
        assert (len(mixture), sample_rate) == (96000, 8000)
        return self


def test_loss_by_chunks(monkeypatch):
    # Orthogonal in every window: in the right order an estimate has 1 / 0.1^2, 20 dB, and the mixture 0 dB.
    phase = 2 * np.pi * 500 * np.arange(96000) / 8000
    voices = np.stack([np.sin(phase), np.cos(phase)])
    monkeypatch.setenv("SEPKIT_BENCH_MODEL", "models/swaps")
    monkeypatch.setattr(separate, "two_voices", lambda seconds: (voices, SHAPED))
    monkeypatch.setattr("sepkit.inference.load_model", lambda model, predict, **way: _SwapsInChunks(voices, **way))
    record = separate._quality(12.0)
    assert record["model"] == "swaps (Identity)" and record["input"] == SHAPED
    assert record["whole_si_sdri_db"] == pytest.approx({"one_order": 20.0, "any_order": 20.0}, abs=1e-3)
    # In one order the two last of twelve seconds are the other voice: of an energy of 1.01, this is the voice's own.
    own = ((10 + 0.1 * 2) / 12) ** 2
    swapped_db = 10 * math.log10(own / (1.01 - own))
    assert record["chunked_si_sdri_db"] == pytest.approx({"one_order": swapped_db, "any_order": 20.0}, abs=1e-3)
    assert record["loss_db"] == pytest.approx(20 - swapped_db, abs=2e-3)


def test_loss_by_chunks_needs_a_model(monkeypatch):
    monkeypatch.setattr("sepkit.models.published.shipped.shipped_models", dict)
    assert "SEPKIT_BENCH_MODEL" in separate._quality(12.0)["left_out"]


def test_voices_differ_and_have_their_length(data_folder, monkeypatch):
    for folder, kind in ((None, SHAPED), (data_folder, REAL)):
        if folder is not None:
            monkeypatch.setenv("SEPKIT_DATA", str(folder))
        voices, found = two_voices(3.0)
        assert found == kind and voices.shape == (2, 24000) and voices.dtype == np.float32
        assert np.allclose(voices.std(1), 0.05, rtol=1e-3)
        assert abs(np.corrcoef(voices)[0, 1]) < 0.1


def test_measures_of_likeness(tmp_path):
    from sepkit.data import audio

    expected = np.random.default_rng(0).standard_normal((2, 8000))
    noise = np.random.default_rng(1).standard_normal((2, 8000))
    found = expected + 0.01 * noise
    difference = contestants.largest_difference(expected, found)
    assert difference == pytest.approx(0.01 * np.abs(noise).max() / np.abs(expected).max())
    assert contestants.snr_db(expected, found) == pytest.approx(40, abs=0.2)
    for name, waveform in zip(("s1", "s2"), 3 * found[::-1], strict=True):
        audio.write(tmp_path / "wavs" / f"{name}.wav", waveform.astype(np.float32), 8000)
    assert contestants.likeness_db(expected, tmp_path / "wavs") == pytest.approx(40, abs=0.2)


def test_memory_is_that_of_the_process_itself(tmp_path, monkeypatch):
    (tmp_path / "filler.py").write_text("def make(mb):\n    return lambda: len(bytearray(mb * 2**20))\n")
    monkeypatch.syspath_prepend(tmp_path)
    # What the process that starts it has had does not count.
    bytearray(400 * 2**20)
    with Contestant("filler:make", 100) as contestant:
        before = contestant.memory()
        assert contestant.seconds() > 0
        after = contestant.memory()
    assert before.peak < 60 and 90 < after.peak < 160
    assert after.before == before.before


def test_a_failure_in_the_process_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        once("operator:truediv", 1, 0)
