"""Word errors of any program that transcribes a wav file."""

import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from sepkit.data import audio

# No recognizer needs this long for one utterance, or this many times its length; one that hangs must not stop
# the evaluation.
_TIMEOUT_SECONDS, _TIMES_REAL_TIME = 600, 20
_TIME = r"((?:\d{1,3}:){0,2}\d{1,6}(?:[.,]\d{1,9})?)"
_CUE = re.compile(rf"\s*\[?\s*{_TIME}\s*-->\s*{_TIME}\s*(?:\]|$)(.*)")


def transcribe(command: str, waveform: np.ndarray, sample_rate: int) -> str:
    """Return the standard output of a command for a wav file.

    Args:
        command: split as a shell does, but run without one; `{wav}` stands for the file, which else comes last.
        waveform: (T,).
        sample_rate: Hz.

    Raises:
        RuntimeError: the command is not found, fails, or takes longer than 10 minutes and 20 times the waveform.
    """
    with tempfile.TemporaryDirectory(prefix="sepkit-asr-") as folder:
        path = Path(folder) / "utterance.wav"
        # Every recognizer reads 16 bits; loud signals are scaled into their range.
        peak = max(float(np.abs(waveform).max(initial=0.0)), 1e-9)
        audio.write(path, (waveform * min(1.0, 0.99 / peak)).astype(np.float32), sample_rate, subtype="PCM_16")
        parts = shlex.split(command if "{wav}" in command else f"{command} {{wav}}")
        parts = [part.replace("{wav}", str(path)) for part in parts]
        try:
            limit = _TIMEOUT_SECONDS + _TIMES_REAL_TIME * len(waveform) / sample_rate
            done = subprocess.run(parts, capture_output=True, text=True, timeout=limit, check=True)
        except subprocess.CalledProcessError as error:
            last = (error.stderr or "").strip().split("\n")[-1]
            raise RuntimeError(f"{parts[0]}: exit code {error.returncode}: {last}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(f"{parts[0]}: {error}") from error
    return done.stdout


def timed_lines(transcript: str) -> list[tuple[float, float, str]]:
    """Return beginning and end, seconds, and text of the cues of a transcript; without cues, nothing.

    A cue is a line `[START --> END] TEXT`, as whisper and whisper.cpp print, or a line `START --> END` with the text on
    the lines below it up to an empty one, as in WebVTT and SRT. Times are seconds, M:S or H:M:S. Other
    lines are not text.

    >>> timed_lines("[00:01.500 --> 00:03.000]  so it is")
    [(1.5, 3.0, 'so it is')]
    """
    cues: list[tuple[float, float, list[str]]] = []
    below = False
    for line in transcript.splitlines():
        if found := _CUE.match(line):
            cues.append((_seconds(found[1]), _seconds(found[2]), [found[3].strip()]))
            below = not found[3].strip()
        elif below and line.strip():
            cues[-1][2].append(line.strip())
        else:
            below = False
    return [(start, max(start, end), " ".join(filter(None, text))) for start, end, text in cues]


def _seconds(time: str) -> float:
    seconds = 0.0
    for part in time.replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


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
