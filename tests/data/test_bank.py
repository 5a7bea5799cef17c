"""Recordings in memory: the mixtures that files give, in every process, within a limit."""

import multiprocessing
import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from sepkit.config import DynamicMixingConfig
from sepkit.data import audio, bank
from sepkit.data.bank import WaveformBank
from sepkit.data.dataset import MixtureDataset
from sepkit.data.dynamic_mixing import DynamicMixer
from sepkit.data.manifest import Manifest
from tests.complaint import complaint

CONFIG = DynamicMixingConfig(enabled=True, speed_range=0.1, bank_gib=0.1, bank_speeds=3)


def test_waveforms_come_back_in_16_bits_and_are_loaded_once() -> None:
    waveforms = [np.random.default_rng(i).uniform(-1, 1, n).astype(np.float32) * 3**i for i, n in enumerate((50, 1, 9))]
    waveforms.append(np.zeros(4, np.float32))
    kept, loaded = WaveformBank([len(w) for w in waveforms], 1.0), []

    def load(item: int) -> np.ndarray:
        loaded.append(item)
        return waveforms[item]

    for _ in range(2):
        for item, waveform in enumerate(waveforms):
            found = kept.read(item, 0, len(waveform), lambda item=item: load(item))
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, waveform, rtol=0, atol=np.abs(waveform).max() / 65000)
    assert loaded == [0, 1, 2, 3]
    np.testing.assert_array_equal(kept.read(0, 7, 5, lambda: load(0)), kept.read(0, 0, 50, lambda: load(0))[7:12])


def _fill(kept: WaveformBank) -> None:
    kept.read(0, 0, 3, lambda: np.array([0.5, -1.0, 0.25], np.float32))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_what_a_forked_worker_loads_is_there_for_all() -> None:
    kept = WaveformBank([3], 1.0)
    worker = multiprocessing.get_context("fork").Process(target=_fill, args=(kept,))
    worker.start()
    worker.join()

    def fail() -> np.ndarray:
        raise AssertionError("loaded again")

    np.testing.assert_allclose(kept.read(0, 0, 3, fail), [0.5, -1.0, 0.25], atol=1e-4)
    # A worker that is started anew gets an empty one.
    with pytest.raises(AssertionError, match="loaded again"):
        pickle.loads(pickle.dumps(kept)).read(0, 0, 3, fail)


def test_mixtures_are_those_of_files_but_for_16_bits(corpus: Manifest) -> None:
    unchanged = replace(CONFIG, speed_range=0.0)
    from_bank = MixtureDataset(corpus, segment_seconds=0.4, dynamic_mixing=unchanged, mixtures_per_epoch=12)
    files = replace(unchanged, bank_gib=0.0)
    from_files = MixtureDataset(corpus, segment_seconds=0.4, dynamic_mixing=files, mixtures_per_epoch=12)
    for index in range(12):
        kept, read = from_bank[2, index], from_files[2, index]
        np.testing.assert_allclose(kept.sources.numpy(), read.sources.numpy(), rtol=0, atol=3e-4)


def test_speeds_are_those_of_the_bank(corpus: Manifest) -> None:
    mixer = DynamicMixer(corpus, replace(CONFIG, bank_speeds=5), 3000)
    rates = Counter(mixer._draw_rate(np.random.default_rng(index)) for index in range(200))
    assert sorted(8000 / rate for rate in rates) == pytest.approx([0.9, 0.95, 1.0, 1.05, 1.1], abs=0.005)
    assert min(rates.values()) > 20


@pytest.mark.parametrize(("limit", "there"), [(1e-6, 64.0), (1.0, 1e-6)])
def test_a_bank_that_does_not_fit_is_refused(corpus: Manifest, monkeypatch, limit, there) -> None:
    monkeypatch.setattr(bank, "_memory_gib", lambda: there)
    words = r"^data\.dynamic_mixing\.bank_gib: .*set it to 0 to read files$"
    complaint(lambda: DynamicMixer(corpus, replace(CONFIG, bank_gib=limit), 3000), words)


def test_a_bank_reads_a_file_once(corpus: Manifest, monkeypatch) -> None:
    mixer = DynamicMixer(corpus, replace(CONFIG, bank_speeds=1), 3000)
    for index in range(40):
        mixer.mix(np.random.default_rng(index))
    monkeypatch.setattr(audio, "read", None)
    mixer.mix(np.random.default_rng(0))
