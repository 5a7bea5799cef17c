import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from sepkit.data.reverberation import RoomBank, early_and_late, reverberate, simulate_room
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


class Room:
    """In place of the simulator's: responses are ramps, and what a room is made of is kept."""

    made: ClassVar[list[Any]] = []

    def __init__(self, size: np.ndarray, **options: Any) -> None:
        self.size, self.options, self.microphones, self.sources = size, options, [], []
        self.set_sound_speed = partial(options.__setitem__, "speed")
        self.add_microphone, self.add_source, self.compute_rir = self.microphones.append, self.sources.append, list
        self.made.append(self)

    @property
    def rir(self) -> list[list[np.ndarray]]:
        return [[np.arange(1.0, 3001 + 10 * k) for k in range(len(self.sources))]]


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    stand_in = SimpleNamespace(
        ShoeBox=Room, Material=lambda absorption: absorption, inverse_sabine=lambda seconds, size, c: ((seconds, c), 7)
    )
    monkeypatch.setitem(sys.modules, "pyroomacoustics", stand_in)
    monkeypatch.setattr(Room, "made", [])
    return Room.made


def test_rooms_talkers_and_reverberation_are_drawn_from_all_of_their_ranges(rooms: list[Any]) -> None:
    for seed in range(600):
        simulate_room(np.random.default_rng(seed), RATE, 2)
    sizes = np.array([room.size for room in rooms])
    np.testing.assert_allclose(sizes.min(0), [3, 3, 2.5], atol=0.05)
    np.testing.assert_allclose(sizes.max(0), [10, 10, 4], atol=0.05)
    places = np.array([room.microphones + room.sources for room in rooms])
    to_walls = np.minimum(places[..., :2], sizes[:, None, :2] - places[..., :2])
    assert 0.5 <= to_walls.min() < 0.51
    assert 1 <= places[..., 2].min() < 1.01 and 1.99 < places[..., 2].max() <= 2
    meters = np.linalg.norm(places[:, 1:] - places[:, :1], axis=-1)
    assert 0.5 <= meters.min() < 0.52 and 4.5 < meters.max() <= 5
    seconds = np.array([room.options["materials"][0] for room in rooms])
    # Sabine's formula with walls that absorb nine tenths.
    x, y, z = sizes.T
    shortest = 24 * np.log(10) / 343 * x * y * z / (0.9 * 2 * (x * y + x * z + y * z))
    share = (seconds - np.maximum(0.1, shortest)) / (0.6 - np.maximum(0.1, shortest))
    assert 0 <= share.min() < 0.01 and 0.99 < share.max() <= 1 and share.mean() == pytest.approx(0.5, abs=0.04)


def test_responses_begin_where_the_nearest_talker_is_heard(rooms: list[Any]) -> None:
    found = simulate_room(np.random.default_rng(0), RATE, 3, reverberation_seconds=0.25, talker_meters=(1.0, 1.5))
    (room,) = rooms
    assert room.options == {"fs": RATE, "materials": (0.25, 343.0), "max_order": 7, "speed": 343.0}
    meters = np.linalg.norm(np.array(room.sources) - room.microphones[0], axis=1)
    assert len(meters) == 3 and meters.min() >= 1.0 and meters.max() <= 1.5
    delay = int(meters.min() / 343 * RATE)
    expected = np.arange(delay + 1.0, delay + 2001)
    np.testing.assert_allclose(found, [expected / np.linalg.norm(expected)] * 3, rtol=1e-6)
    # Shorter responses end in zeros.
    longer = simulate_room(np.random.default_rng(0), RATE, 1, 0.5)
    assert longer.shape == (1, 4000) and not longer[:, 3000:].any() and np.linalg.norm(longer) == pytest.approx(1)


def test_early_reflections_end_50_ms_after_the_strongest() -> None:
    response = np.array([0.1, -0.9, 0.5, *[0.2] * 600], np.float32)
    early, late = early_and_late(response, RATE)
    np.testing.assert_array_equal(early, np.where(np.arange(603) < 1 + 400, response, 0))
    np.testing.assert_array_equal(early + late, response)
