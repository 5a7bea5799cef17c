"""Word errors of any program that transcribes a wav file."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from sepkit.data import audio

# No recognizer needs this long for one utterance; one that hangs must not stop the evaluation.
_TIMEOUT_SECONDS = 600


def transcribe(command: str, waveform: np.ndarray, sample_rate: int) -> str:
    """Return what a command prints on standard output for a wav file.

    Args:
        command: split as a shell does, but run without one; `{wav}` stands for the file, which else comes last.
        waveform: (T,).
        sample_rate: Hz.

    Raises:
        RuntimeError: the command is not found, fails, or takes more than 10 minutes.
    """
    with tempfile.TemporaryDirectory(prefix="sepkit-asr-") as folder:
        path = Path(folder) / "utterance.wav"
        # Every recognizer reads 16 bits; loud signals are scaled into their range.
        peak = max(float(np.abs(waveform).max(initial=0.0)), 1e-9)
        audio.write(path, (waveform * min(1.0, 0.99 / peak)).astype(np.float32), sample_rate, subtype="PCM_16")
        parts = shlex.split(command if "{wav}" in command else f"{command} {{wav}}")
        parts = [part.replace("{wav}", str(path)) for part in parts]
        try:
            done = subprocess.run(parts, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)
        except subprocess.CalledProcessError as error:
            last = (error.stderr or "").strip().split("\n")[-1]
            raise RuntimeError(f"{parts[0]}: exit code {error.returncode}: {last}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(f"{parts[0]}: {error}") from error
    return done.stdout


def words(text: str) -> list[str]:
    """Return the words of a text without case and punctuation; apostrophes inside words stay."""
    return re.findall(r"\w+(?:['\u2019]\w+)*", text.casefold())


def word_errors(reference: list[str], transcript: list[str]) -> int:
    """Return the least number of insertions, deletions and substitutions that turn one list of words into the other."""
    row = list(range(len(transcript) + 1))
    for i, said in enumerate(reference, start=1):
        diagonal, row[0] = row[0], i
        for j, heard in enumerate(transcript, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (said != heard))
    return row[-1]
