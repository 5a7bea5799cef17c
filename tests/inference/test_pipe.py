"""Raw PCM through a stream: bytes in any portions, both formats, both ends of the pipe."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
import torch

from sepkit.cli.main import main
from sepkit.config import FreeFilterbankConfig, ModelConfig, RecurrentConfig
from sepkit.errors import UserError
from sepkit.inference import Separator
from sepkit.inference.pipe import separate_pipe
from sepkit.models import build_model, save_model

CONFIG = ModelConfig(
    filterbank=FreeFilterbankConfig(num_filters=8),
    masker=RecurrentConfig(hidden_size=4, num_layers=1, bidirectional=False),
)


class Trickle(io.BytesIO):
    """Gives a few bytes at a time, cutting through samples."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(min(7, size or 7))


@pytest.fixture
def separator():
    torch.manual_seed(0)
    return Separator(build_model(CONFIG))


def mixture(num_samples: int) -> np.ndarray:
    return 0.2 * np.random.default_rng(0).standard_normal(num_samples).astype(np.float32)


def offline(separator: Separator, samples: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return separator.model(torch.from_numpy(samples)[None]).estimates[0].numpy()


@pytest.mark.parametrize("source", [io.BytesIO, Trickle])
def test_floats_come_out_interleaved(separator, source):
    samples, sink = mixture(333), io.BytesIO()
    report = separate_pipe(separator.streaming(), source(samples.tobytes()), sink, "f32le")
    found = np.frombuffer(sink.getvalue(), "<f4").reshape(-1, 2).T
    np.testing.assert_allclose(found, offline(separator, samples), atol=1e-6)
    assert report.num_samples == 333 and report.dropped_bytes == 0


def test_integers_have_full_scale_one_and_what_clips_is_counted(separator):
    samples = np.round(32768 * mixture(333)).astype("<i2")
    expected = offline(separator, samples.astype(np.float32) / 32768)
    with torch.no_grad():
        next(iter(separator.model.filterbank.decoder.parameters())).mul_(1.2 / float(np.abs(expected).max()))
    expected *= 1.2 / np.abs(expected).max()
    sink = io.BytesIO()
    report = separate_pipe(separator.streaming(), Trickle(samples.tobytes()), sink, "s16le")
    found = np.frombuffer(sink.getvalue(), "<i2").reshape(-1, 2).T / 32768
    np.testing.assert_allclose(found, expected.clip(-1, 32767 / 32768), atol=1.1 / 32768)
    assert report.clipped == np.count_nonzero(np.abs(expected) >= 1) > 0
    assert f"{report.clipped} samples clipped" in str(report)


def test_nothing_in_is_nothing_out(separator):
    sink = io.BytesIO()
    assert separate_pipe(separator.streaming(), io.BytesIO(), sink).num_samples == 0
    assert sink.getvalue() == b""


def test_half_a_sample_at_the_end_is_told(separator):
    sink = io.BytesIO()
    report = separate_pipe(separator.streaming(), io.BytesIO(bytes(11)), sink)
    assert len(sink.getvalue()) == 2 * 2 * 5 and report.dropped_bytes == 1
    assert "1 bytes at the end are no whole sample" in str(report)


def test_bad_samples_and_formats_are_one_line(separator):
    with pytest.raises(UserError, match="sample 2 of the stream is NaN"):
        separate_pipe(
            separator.streaming(), io.BytesIO(np.array([0, 0, np.nan], "<f4").tobytes()), io.BytesIO(), "f32le"
        )
    with pytest.raises(UserError, match=r"^--sample-format mulaw: expected one of s16le, f32le"):
        separate_pipe(separator.streaming(), io.BytesIO(), io.BytesIO(), "mulaw")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def model(tmp_path, separator):
    return str(save_model(separator.model, tmp_path / "model"))


def command(model: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "sepkit", "stream", "--model", model, "--device", "cpu", *options]


def test_command_from_pipe_to_pipe(model, separator):
    samples = mixture(4000)
    done = subprocess.run(
        command(model, "--sample-format", "f32le", "--levels", "model", "--sample-rate", "8000"),
        input=samples.tobytes(),
        capture_output=True,
        check=True,
    )
    found = np.frombuffer(done.stdout, "<f4").reshape(-1, 2).T
    np.testing.assert_allclose(found, offline(separator, samples), atol=1e-6)
    assert b"2 channels of f32le at 8000 Hz, latency 2.00 ms" in done.stderr
    assert b"separated 0.50 s" in done.stderr


def test_command_answers_before_the_input_ends_and_ends_when_nobody_listens(model):
    with subprocess.Popen(
        command(model), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(bytes(2 * 800))
        process.stdin.flush()
        assert len(process.stdout.read(4 * 700)) == 4 * 700
        process.stdout.close()
        try:
            for _ in range(100):
                process.stdin.write(bytes(2 * 8000))
                process.stdin.flush()
        except BrokenPipeError:
            pass
        process.stdin = None
        assert process.wait(60) == 0
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("options", [["x.wav"], ["--out", "out"], ["--rttm"], ["--processes", "2"]])
def test_options_for_files_do_not_go_with_pipes(model, options, capsys):
    assert main(["stream", *options, "--model", model]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and options[0] in captured.err and captured.err.count("\n") == 1
