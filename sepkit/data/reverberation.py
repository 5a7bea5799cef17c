"""Simulated rooms: impulse responses from talkers to a microphone, computed once and kept in a folder."""

import os
from pathlib import Path
from typing import cast

import numpy as np

from sepkit.errors import UserError
from sepkit.files import atomic_output, cache_folder

SPEED_OF_SOUND = 343.0
"""m/s"""
# Increase whenever the same room would come out differently, so that old caches are not used.
_VERSION = "v2"
_WALL_DISTANCE = 0.5
_TALKER_DISTANCE = 0.5
_FARTHEST_METERS = (1.0, 5.0)
# Reflections this soon after the direct sound are perceived as part of it (ISO 3382-1: the time of C50).
_EARLY_SECONDS = 0.05


class RoomBank:
    """Impulse responses of random rooms, each a function of (seed, room, sample_rate, num_sources).

    A room is a shoe box of 3-10 m x 3-10 m x 2.5-4 m with a reverberation time of 0.1 to 0.6 s (Sabine). The shortest
    time of a large room is that of walls with 90 % absorption. There is one omnidirectional microphone. Microphone and
    talkers are at least 0.5 m from the walls and 1 to 2 m above the floor. Talkers are at least 0.5 m from the
    microphone and at most 1 to 5 m, drawn for each room. Rooms are simulated by the image source method (Allen &
    Berkley 1979) of pyroomacoustics.

    Args:
        folder: holds impulse responses, one file per room, made on first use; processes may share it. None:
            `sepkit/rooms` in the user's cache folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        sample_rate: int,
        num_sources: int,
        num_rooms: int = 1000,
        seed: int = 0,
    ) -> None:
        self.folder = cache_folder("rooms") if folder is None else Path(folder)
        self.sample_rate = sample_rate
        self.num_sources = num_sources
        self.num_rooms = num_rooms
        self.seed = seed

    def impulse_responses(self, room: int) -> np.ndarray:
        """Return the impulse responses of a room, (num_sources, L) float32, each of unit energy.

        The delay that all talkers share is removed.
        """
        if not 0 <= room < self.num_rooms:
            raise IndexError(f"room {room} of {self.num_rooms}")
        path = self.folder / f"{_VERSION}_{self.sample_rate}hz_{self.num_sources}talkers_seed{self.seed}_{room:05d}.npy"
        if not path.exists():
            responses = simulate_room(np.random.default_rng([self.seed, room]), self.sample_rate, self.num_sources)
            with atomic_output(path) as temporary:
                np.save(temporary, responses)
        try:
            return np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise UserError(f"{path}: damaged impulse responses; delete the file, it will be made again") from error


def reverberate(waveform: np.ndarray, impulse_response: np.ndarray) -> np.ndarray:
    """Return a waveform (T,) as it sounds in a room: convolved with the response (L,), and cut to T samples."""
    from scipy.signal import oaconvolve

    return oaconvolve(waveform, impulse_response)[: len(waveform)].astype(np.float32, copy=False)


def early_and_late(impulse_response: np.ndarray, sample_rate: int) -> list[np.ndarray]:
    """Return two impulse responses (L,) whose sum is the one given: up to 50 ms after its largest sample, and the
    rest."""
    end = int(np.abs(impulse_response).argmax()) + round(_EARLY_SECONDS * sample_rate)
    early, late = impulse_response.copy(), impulse_response.copy()
    early[end:], late[:end] = 0, 0
    return [early, late]


def simulate_room(
    generator: np.random.Generator,
    sample_rate: int,
    num_sources: int,
    reverberation_seconds: float | None = None,
    talker_meters: tuple[float, float] | None = None,
) -> np.ndarray:
    """Return impulse responses of a random room, (num_sources, L) float32, see `RoomBank`.

    Args:
        generator: Source of randomness.
        sample_rate: Sampling rate, Hz.
        num_sources: Number of talkers.
        reverberation_seconds: Reverberation time T60, seconds; None: drawn from 0.1 to 0.6 s.
        talker_meters: Least and largest distance of a talker from the microphone, meters; None: see `RoomBank`.
    """
    try:
        import pyroomacoustics
    except ImportError as error:
        raise UserError("simulated rooms need pyroomacoustics: pip install 'sepkit[reverb]'") from error
    size = generator.uniform([3.0, 3.0, 2.5], [10.0, 10.0, 4.0])
    if reverberation_seconds is None:
        surface = 2 * (size[0] * size[1] + size[0] * size[2] + size[1] * size[2])
        # The shortest of a large room, by Sabine: that of walls which absorb 90 %.
        shortest = 24 * np.log(10) / SPEED_OF_SOUND * size.prod() / (surface * 0.9)
        reverberation_seconds = generator.uniform(max(0.1, shortest), 0.6)
    absorption, max_order = pyroomacoustics.inverse_sabine(reverberation_seconds, size, c=SPEED_OF_SOUND)
    microphone = _position(generator, size)
    if talker_meters is None:
        # People record at arm's length or across a table more often than through a hall.
        talker_meters = (_TALKER_DISTANCE, generator.uniform(*_FARTHEST_METERS))
    talkers = [_talker_position(generator, size, microphone, talker_meters) for _ in range(num_sources)]
    room = pyroomacoustics.ShoeBox(
        size, fs=sample_rate, materials=pyroomacoustics.Material(absorption), max_order=max_order
    )
    room.set_sound_speed(SPEED_OF_SOUND)
    room.add_microphone(microphone)
    for talker in talkers:
        room.add_source(talker)
    room.compute_rir()
    nearest_meters = min(float(np.linalg.norm(talker - microphone)) for talker in talkers)
    common_delay = int(nearest_meters / SPEED_OF_SOUND * sample_rate)
    responses = cast("list[list[np.ndarray]]", room.rir)[0]
    trimmed = np.zeros((len(responses), round(reverberation_seconds * sample_rate)))
    for row, response in zip(trimmed, responses, strict=True):
        kept = response[common_delay : common_delay + trimmed.shape[1]]
        row[: len(kept)] = kept / np.linalg.norm(kept)
    return trimmed.astype(np.float32)


def _position(generator: np.random.Generator, size: np.ndarray) -> np.ndarray:
    floor_plan = generator.uniform(_WALL_DISTANCE, size[:2] - _WALL_DISTANCE)
    return np.append(floor_plan, generator.uniform(1.0, 2.0))


def _talker_position(
    generator: np.random.Generator, size: np.ndarray, microphone: np.ndarray, meters: tuple[float, float]
) -> np.ndarray:
    while True:
        position = _position(generator, size)
        if meters[0] <= np.linalg.norm(position - microphone) <= meters[1]:
            return position
