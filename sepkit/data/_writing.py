"""Write wav and flac files, whole or block by block."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
import soundfile

from sepkit.data.headers import wav_header
from sepkit.errors import UserError
from sepkit.files import atomic_output

Subtype = Literal["FLOAT", "PCM_16"]
Rounding = Literal["floor", "nearest"]


@dataclass
class BlockWriter:
    """An open audio file whose length is known; see `write_blocks`.

    Args:
        put: appends samples, (t,) or (t, C).
        missing: how many samples are to come.
    """

    path: Path
    put: Callable[[np.ndarray], object]
    missing: int
    subtype: Subtype
    rounding: Rounding

    def write(self, block: np.ndarray) -> None:
        """Append samples (T,) or (C, T), full scale 1. ValueError: some are not finite, or more than were announced."""
        if not np.isfinite(block).all():
            raise ValueError(f"{self.path}: samples that are not finite numbers are not written")
        self.missing -= block.shape[-1]
        if self.missing < 0:
            raise ValueError(f"{self.path}: {-self.missing} samples more than were announced")
        self.put((block.astype("<f4") if self.subtype == "FLOAT" else quantize_pcm16(block, self.rounding)).T)


@contextmanager
def write_blocks(
    path: str | os.PathLike[str],
    sample_rate: int,
    num_samples: int,
    subtype: Subtype = "FLOAT",
    channels: int = 1,
    rounding: Rounding = "nearest",
) -> Iterator[BlockWriter]:
    """Open an audio file and yield its writer. The file appears when the `with` block ends without an error.

    The same samples give the same bytes as `sepkit.data.audio.write`, except for how FLAC is divided into frames.

    Args:
        subtype: "FLOAT" keeps float32 values, also beyond +-1; "PCM_16" quantizes and saturates.

    Raises:
        ValueError: a format that cannot hold the subtype, or another number of samples than was announced.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if (suffix, subtype) not in {(".wav", "FLOAT"), (".wav", "PCM_16"), (".flac", "PCM_16")}:
        raise ValueError(
            f"{path}: {subtype} in {suffix or 'a file without ending'} cannot be written; use .wav, or .flac for PCM_16"
        )
    with atomic_output(path) as temporary:
        opened = _open_flac if suffix == ".flac" else _open_wav
        with opened(path, temporary, sample_rate, channels, num_samples, subtype) as put:
            writer = BlockWriter(path, put, num_samples, subtype, rounding)
            yield writer
        if writer.missing:
            raise ValueError(f"{path}: {writer.missing} samples fewer than were announced")


@contextmanager
def _open_wav(
    path: Path, temporary: Path, sample_rate: int, channels: int, num_samples: int, subtype: Subtype
) -> Iterator[Callable[[np.ndarray], object]]:
    header = wav_header(path, sample_rate, num_samples, subtype, channels)
    with open(temporary, "wb") as file:
        file.write(header)
        yield lambda samples: file.write(samples.astype("<f4" if subtype == "FLOAT" else "<i2").tobytes())


@contextmanager
def _open_flac(
    path: Path, temporary: Path, sample_rate: int, channels: int, *_: object
) -> Iterator[Callable[[np.ndarray], object]]:
    with open(temporary, "wb+") as raw:
        sink, failure = _Sink(raw), None
        try:
            with soundfile.SoundFile(sink, "w", sample_rate, channels, "PCM_16", format="FLAC") as file:  # type: ignore[arg-type]
                try:
                    yield file.write
                except BaseException as error:
                    failure = error
                    raise
        except (soundfile.LibsndfileError, AssertionError) as error:
            # soundfile asserts that all samples were written.
            if sink.error is not None:
                raise sink.error from error
            if failure is not None:
                # A file without samples cannot be closed either.
                raise failure from None
            assert isinstance(error, soundfile.LibsndfileError)
            raise UserError(
                f"{path}: flac holds no {channels} channel(s) at {sample_rate} Hz ({error.error_string}); write wav"
            ) from error
        if sink.error is not None:
            raise sink.error


class _Sink:
    """A file that libsndfile writes to; it keeps the error, which libsndfile would not tell."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None
        self.seek, self.tell, self.read, self.flush = file.seek, file.tell, file.read, file.flush

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            return 0


def quantize_pcm16(waveform: np.ndarray, rounding: Literal["floor", "nearest"] = "nearest") -> np.ndarray:
    """Return a waveform as int16 with saturation: full scale 1.0 becomes 32767, -1.0 becomes -32768.

    Rounding by "floor" is `floor(round(2^31 x) / 2^16)`, as python-soundfile, and with it LibriMix, writes wav: this
    differs from `floor(2^15 x)` only within 2^-32 below the next value. "nearest" rounds half to even, as the WHAM and
    pywsj0-mix scripts do.
    """
    if rounding == "floor":
        rounded = np.floor(np.round(waveform * np.float32(2**31)) / np.float32(2**16))
    else:
        rounded = np.round(waveform * np.float32(2**15))
    return np.clip(rounded, -32768, 32767).astype(np.int16)
