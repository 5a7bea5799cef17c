"""Synthetic speech from espeak-ng, which runs in its own process because it is GPL-3; nothing of it is linked in.

Either its library comes with the package espeakng-loader (`pip install 'sepkit[tts]'`) or the `espeak-ng` program is
installed (Debian, Ubuntu: `apt-get install espeak-ng`, macOS: `brew install espeak-ng`).
"""

import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sepkit.errors import UserError
from sepkit.signals import active_frames, frame_powers

_TIMEOUT_SECONDS = 120
_WAV_HEADER_BYTES = 44


@dataclass(frozen=True)
class Voice:
    """Voice and manner of an utterance.

    Args:
        variant: name of an espeak-ng voice variant, which sets vocal tract and pitch.
        pitch: 0 to 99; 50 is the variant's own.
    """

    variant: str
    accent: str = "en-us"
    pitch: int = 50
    words_per_minute: int = 160


@dataclass(frozen=True)
class Synthesizer:
    """An espeak-ng that can be run: `command` takes its options -v, -p, -s, --stdin and --stdout."""

    command: tuple[str, ...]
    data_folder: Path
    version: str

    def variants(self) -> set[str]:
        """Return the names of its voice variants."""
        return {path.name for path in (self.data_folder / "voices" / "!v").glob("*")}

    def speak(self, text: str, voice: Voice) -> tuple[np.ndarray, int]:
        """Return an English text as speech, (T,) float32, and its rate in Hz; UserError for an unknown variant, for
        which espeak-ng itself would silently take its default voice."""
        if voice.variant not in self.variants():
            raise UserError(
                f"espeak-ng in {self.data_folder} has no voice variant {voice.variant!r}; install version 1.51 or later"
            )
        options = ["-v", f"{voice.accent}+{voice.variant}", "-p", str(voice.pitch), "-s", str(voice.words_per_minute)]
        result = subprocess.run(
            [*self.command, *options, "--stdin", "--stdout"],
            input=text.encode(),
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if result.returncode or result.stdout[:4] != b"RIFF" or result.stdout[36:40] != b"data":
            reason = " ".join(result.stderr.decode(errors="replace").split()) or "no speech came out"
            raise RuntimeError(f"espeak-ng failed with exit code {result.returncode} for {voice}: {reason}")
        (sample_rate,) = struct.unpack_from("<I", result.stdout, 24)
        return np.frombuffer(result.stdout[_WAV_HEADER_BYTES:], dtype="<i2").astype(np.float32) / 32768, sample_rate


def find_synthesizer(prefer_program: bool = False) -> Synthesizer:
    """Return the library of espeakng-loader, wrapped in a process that acts like the program, or else the program.

    The library comes first because it makes the same samples every time; programs from version 1.52 on draw the
    roughness of some voices anew.
    """
    for find in [_find_program, _find_library] if prefer_program else [_find_library, _find_program]:
        synthesizer = find()
        if synthesizer is not None:
            return synthesizer
    raise UserError("espeak-ng: not found; pip install 'sepkit[tts]', or apt-get install espeak-ng")


def trim_silence(waveform: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return the part of a waveform (T,) from the first to the last 10 ms within 40 dB of the loudest."""
    frame = max(1, sample_rate // 100)
    # Far down: synthetic speech is clean, and its last sounds are soft.
    loud = np.flatnonzero(active_frames(frame_powers(waveform, frame), below_db=40.0))
    return waveform[loud[0] * frame : (loud[-1] + 1) * frame] if len(loud) else waveform[:0]


def _find_program() -> Synthesizer | None:
    program = shutil.which("espeak-ng")
    return None if program is None else _examined((program,))


def _find_library() -> Synthesizer | None:
    try:
        import espeakng_loader
    except ImportError:
        return None
    helper = Path(__file__).with_name("_espeak_process.py")
    # Isolated and without site-packages it starts in half the time.
    python = (sys.executable, "-I", "-S", str(helper))
    return _examined((*python, espeakng_loader.get_library_path(), espeakng_loader.get_data_path()))


def _examined(command: tuple[str, ...]) -> Synthesizer | None:
    told = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    match = re.search(r"text-to-speech: (\S+)\s+Data at: (.+?)\s*$", told.stdout, re.MULTILINE)
    return Synthesizer(command, Path(match.group(2)), match.group(1)) if match else None
