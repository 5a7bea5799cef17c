"""Fixtures for tests of recipes: small recordings, running a command, and listing its files."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sepkit.data import audio
from tests.command_server import serving
from tests.noise_voices import RATE, talk

Run = Callable[..., str]
Files = Callable[[Path], dict[str, tuple[int, int]]]
SecondRun = Callable[..., None]


@pytest.fixture(scope="session")
def own_processes() -> dict[str, str]:
    """Environment of recipes' commands: this interpreter's `sepkit`, on one core."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def environment(own_processes: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same with a `sepkit` that spares its imports. Killing a recipe does not reach it: use `own_processes`."""
    with serving(tmp_path_factory.mktemp("server"), own_processes) as program:
        yield own_processes | {"PATH": f"{program.parent}{os.pathsep}{own_processes['PATH']}"}


@pytest.fixture(scope="session")
def run(environment: dict[str, str]) -> Run:
    """run(arguments, NAME=VALUE ...) -> what the command prints with these variables; it must succeed."""

    def run_command(arguments: list[str], **more: str) -> str:
        given = environment | more
        done = subprocess.run(arguments, capture_output=True, text=True, env=given, timeout=800, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run_command


@pytest.fixture(scope="session")
def files() -> Files:
    """files(folder) -> every file below it with its size and time of change."""

    def list_files(folder: Path) -> dict[str, tuple[int, int]]:
        found = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}

    return list_files


@pytest.fixture
def second_run_keeps(run: Run, files: Files, tmp_path: Path) -> SecondRun:
    """second_run_keeps(arguments, *endings): the second of two runs writes no file with one of these endings again.

    Manifests, configurations and summaries may be written again; recordings, models and estimates are not.
    """

    def run_twice(arguments: list[str], *endings: str) -> None:
        run(arguments)
        before = files(tmp_path)
        run(arguments)
        after = files(tmp_path)
        assert before.keys() == after.keys()
        endings = (".wav", ".flac", ".safetensors", ".ckpt", *endings)
        assert not [name for name in before if before[name] != after[name] and name.endswith(endings)]

    return run_twice


@pytest.fixture
def kill(own_processes: dict[str, str]) -> Callable[[list[str], float], None]:
    """kill(arguments, seconds): start a command, and kill it after so long, with all processes that it started."""

    def start_and_kill(arguments: list[str], seconds: float) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(arguments, env=own_processes, start_new_session=True, **quiet)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    return start_and_kill


@pytest.fixture(scope="session")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four noise-like speakers a split, each with a spectrum of its own, as train/SPEAKER/UTTERANCE.flac."""
    folder = tmp_path_factory.mktemp("speech")
    for number, split in enumerate(("train", "dev", "test")):
        for speaker in range(4):
            for take in range(2):
                name = f"{split}/{'a' if speaker < 2 else 'b'}{number}{speaker}/{take}.flac"
                audio.write(folder / name, talk(10 * (number * 4 + speaker) + take, 1.5), RATE, subtype="PCM_16")
    return folder
