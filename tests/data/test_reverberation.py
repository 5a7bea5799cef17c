import sys
from pathlib import Path

import numpy as np
import pytest

from sepkit.data.reverberation import RoomBank, reverberate
from tests.complaint import complaint

RATE = 8000


def decay_seconds(response: np.ndarray) -> float:
    """Reverberation time from Schroeder's backward integral, -5 to -25 dB extrapolated to 60 dB."""
    energy_db = 10 * np.log10(np.cumsum(response[::-1].astype(np.float64) ** 2)[::-1] / np.sum(response**2) + 1e-12)
    return 3 * (np.argmax(energy_db < -25) - np.argmax(energy_db < -5)) / RATE


def test_rooms_are_a_function_of_seed_and_number(tmp_path: Path) -> None:
    pytest.importorskip("pyroomacoustics", reason="pyroomacoustics is missing: pip install 'sepkit[reverb]'")
    first = RoomBank(tmp_path / "a", RATE, 2)
    second = RoomBank(tmp_path / "b", RATE, 2)
    second.impulse_responses(3)
    for room in (0, 3):
        np.testing.assert_array_equal(first.impulse_responses(room), second.impulse_responses(room))
    assert first.impulse_responses(0).shape != first.impulse_responses(3).shape
    assert RoomBank(tmp_path / "a", RATE, 2, seed=1).impulse_responses(0).shape != first.impulse_responses(0).shape
    with pytest.raises(IndexError):
        first.impulse_responses(1000)


def test_responses_look_like_rooms(tmp_path: Path) -> None:
    pytest.importorskip("pyroomacoustics", reason="pyroomacoustics is missing: pip install 'sepkit[reverb]'")
    bank = RoomBank(tmp_path, RATE, 3)
    for room in range(4):
        responses = bank.impulse_responses(room)
        assert responses.dtype == np.float32 and responses.shape[0] == 3
        np.testing.assert_allclose(np.linalg.norm(responses, axis=1), 1, rtol=1e-5)
        # The first arrival of the nearest talker: 40 samples of the simulator's fractional delay filter.
        assert min(np.argmax(np.abs(r) > 0.5 * np.abs(r).max()) for r in responses) in range(35, 46)
        stated = responses.shape[1] / RATE
        assert all(0.4 * stated < decay_seconds(response) < 1.5 * stated for response in responses)


def test_rooms_are_kept_and_damage_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyroomacoustics", reason="pyroomacoustics is missing: pip install 'sepkit[reverb]'")
    bank = RoomBank(tmp_path, RATE, 2)
    expected = bank.impulse_responses(7)
    monkeypatch.setitem(sys.modules, "pyroomacoustics", None)
    np.testing.assert_array_equal(bank.impulse_responses(7), expected)
    complaint(lambda: bank.impulse_responses(8), r"pip install 'sepkit\[reverb\]'")
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    complaint(lambda: bank.impulse_responses(7), "delete the file")


def test_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert RoomBank(None, RATE, 2).folder == tmp_path / "sepkit" / "rooms"


def test_reverberate_is_a_convolution_cut_to_length() -> None:
    waveform, response = np.random.default_rng(0).standard_normal((2, 500)).astype(np.float32)
    np.testing.assert_allclose(reverberate(waveform, response), np.convolve(waveform, response)[:500], atol=1e-4)
    assert reverberate(waveform, response).dtype == np.float32
    np.testing.assert_allclose(reverberate(waveform[:1], response), waveform[:1] * response[0], rtol=1e-4)
