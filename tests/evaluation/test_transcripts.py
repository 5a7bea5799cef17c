"""Word errors, and commands that transcribe."""

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepkit.data import audio
from sepkit.evaluation.transcripts import transcribe, word_errors, words

sentences = st.lists(st.sampled_from("abc"), max_size=6)


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [("a b c", "a b c", 0), ("a b c", "", 3), ("", "a", 1), ("a b c", "a x c d", 2), ("a b c d", "b c d", 1)],
)
def test_word_errors(said: str, heard: str, errors: int) -> None:
    assert word_errors(said.split(), heard.split()) == errors


def _by_definition(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    if not a or not b:
        return len(a) + len(b)
    best = 1 + min(_by_definition(a[1:], b), _by_definition(a, b[1:]))
    return min(best, (a[0] != b[0]) + _by_definition(a[1:], b[1:]))


@given(said=sentences, heard=sentences)
def test_word_errors_are_the_least_edits(said: list[str], heard: list[str]) -> None:
    if max(len(said), len(heard)) <= 4:
        assert word_errors(said, heard) == _by_definition(tuple(said), tuple(heard))
    assert word_errors(said, heard) == word_errors(heard, said)
    assert abs(len(said) - len(heard)) <= word_errors(said, heard) <= max(len(said), len(heard))


def test_words_have_no_case_and_no_punctuation() -> None:
    assert words("Don't -- STOP, \u00c9mile! 7") == ["don't", "stop", "\u00e9mile", "7"]


def _command(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def test_a_command_gets_a_wav_and_its_output_is_the_transcript(tmp_path: Path) -> None:
    copy = f"import shutil, sys; shutil.copy(sys.argv[1], {str(tmp_path / 'seen.wav')!r}); print('two words')"
    waveform = 3 * np.sin(np.arange(800) / 9).astype(np.float32)
    assert transcribe(_command(copy) + " {wav}", waveform, 8000).split() == ["two", "words"]
    seen = audio.read(tmp_path / "seen.wav")
    assert audio.info(tmp_path / "seen.wav").sample_rate == 8000
    np.testing.assert_allclose(seen, waveform * 0.99 / np.abs(waveform).max(), atol=1e-4)


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="exit code 1: no model"):
        transcribe(_command("import sys; sys.exit('no model')"), np.zeros(10), 8000)
    with pytest.raises(RuntimeError, match="no-such-command"):
        transcribe("no-such-command", np.zeros(10), 8000)
