"""Signals, closed streams, readers that go away, and machines without threads: what the command says and leaves."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from sepkit.data import audio
from sepkit.interrupts import postponed

SEPKIT = [sys.executable, "-m", "sepkit"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    for number in range(6):
        noise = np.random.default_rng(number).normal(0, 0.1, 4000).astype(np.float32)
        audio.write(folder / "in" / f"{number}.wav", noise, 8000)
    # A model that sends a signal to its own process group, as a terminal does, while it separates a recording.
    (folder / "interrupting.py").write_text(
        "import os, signal\n"
        "from sepkit.inference.batch import files\n"
        "real = files._Job.separate\n"
        "def separate(job, recording):\n"
        "    if recording[0].stem == os.environ['AT']:\n"
        "        for _ in range(int(os.environ.get('TIMES', 1))):\n"
        "            os.kill(os.getpid(), int(os.environ['SIGNAL']))\n"
        "    return real(job, recording)\n"
        "files._Job.separate = separate\n"
    )
    return folder


def separate(inputs: Path, out: Path, *options: str) -> list[str]:
    """With the default model, which starts without the seconds and the threads that torch takes."""
    return [*SEPKIT, "separate", str(inputs / "in"), "--device", "cpu", "--out", str(out), *options]


CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


@pytest.mark.parametrize(
    ("name", "at", "line"),
    [("SIGINT", "0", "interrupted"), *((name, "3", "interrupted; the same command again continues") for name in CODES)],
)
def test_a_signal_has_its_code_and_a_true_line(name, at, line, inputs, tmp_path):
    """What is said depends on whether something is kept."""
    environment = os.environ | {"AT": at, "SIGNAL": str(int(signal.Signals[name]))}
    words = separate(inputs, tmp_path / "out", "--import", str(inputs / "interrupting.py"))
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (CODES[name], f"sepkit separate: {line}")
    assert "Traceback" not in done.stderr
    left = sorted(path.name for path in (tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else []
    assert len(left) == 3 * int(at) and not [file for file in left if file.startswith(".")]


def test_a_second_signal_ends_at_once_without_a_traceback(inputs, tmp_path):
    environment = os.environ | {"AT": "1", "SIGNAL": str(int(signal.SIGINT)), "TIMES": "2"}
    words = separate(inputs, tmp_path / "out", "--import", str(inputs / "interrupting.py"))
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 130 and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", CODES)
def test_processes_are_gone_with_the_command(name, inputs, tmp_path):
    """A terminal sends its signals to all processes."""
    process = subprocess.Popen(
        separate(inputs, tmp_path / "out", "--processes", "2"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not list((tmp_path / "out").glob("*_s1.wav")) and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.Signals[name])
    _, said = process.communicate(timeout=300)
    assert process.returncode in (CODES[name], 0) and "Traceback" not in said, said
    for _ in range(100):
        if not alive(process.pid):
            break
        time.sleep(0.1)
    assert not alive(process.pid)
    assert not list((tmp_path / "out").rglob("*.tmp*"))
    assert subprocess.run(separate(inputs, tmp_path / "out"), capture_output=True, timeout=300).returncode == 0
    assert len(list((tmp_path / "out").glob("*"))) == 18


def alive(session: int) -> list[str]:
    """The processes of a session, but those that have ended."""
    found = subprocess.run(["ps", "-o", "stat=,args=", "-s", str(session)], capture_output=True, text=True).stdout
    return [line for line in found.splitlines() if not line.startswith("Z")]


@pytest.mark.parametrize("words", ["models --public", "--help", "--version", "", "separate --help", "train --help"])
def test_a_full_disk_behind_standard_output_is_said_in_one_line(words):
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*SEPKIT, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and "no space left" in ended.stderr


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-", "<&- >&- 2>&- --processes 2"])
def test_closed_streams_are_no_matter(closed, inputs, tmp_path):
    *closings, last = closed.split()
    options = [] if last != "2" else ["--processes", "2"]
    closings = [word for word in closed.split() if word.endswith("&-")]
    line = " ".join(f"'{word}'" for word in separate(inputs, tmp_path / "out", *options))
    assert subprocess.run(f"{line} {' '.join(closings)}", shell=True, timeout=300).returncode == 0
    assert len(list((tmp_path / "out").glob("*.wav"))) == 12


def test_work_ends_though_its_reader_has_gone(inputs, tmp_path):
    line = " ".join(f"'{word}'" for word in separate(inputs, tmp_path / "out"))
    done = subprocess.run(f"{line} 2>&1 | head -1", shell=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.count("\n") == 1
    for _ in range(300):
        if len(list((tmp_path / "out").glob("*.json"))) == 6:
            return
        time.sleep(0.1)
    raise AssertionError("not all recordings were separated")


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv, to be another user"
)
@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
@pytest.mark.parametrize("threads", [1, 7, 13])
def test_no_more_threads_are_one_line(options, threads, inputs):
    """The limit does not hold for root, so the process is another user to the kernel, with root's rights to files."""
    out = Path(tempfile.mkdtemp())  # the folder of a test is closed to others
    out.chmod(0o777)
    user = ["setpriv", "--ruid", str(40_000 + os.getpid() % 20_000), "--bounding-set=-sys_admin,-sys_resource"]
    words = [*user, "prlimit", f"--nproc={threads}", *separate(inputs, out, *options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "`ulimit -u`" in done.stderr, done.stderr
    assert done.returncode == 2 or not (options or threads == 1)
    shutil.rmtree(out)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal on Windows")
def test_a_signal_within_a_callback_of_libsndfile_comes_again_after_it():
    heard = []

    def vio_read():
        signal.raise_signal(signal.SIGUSR1)
        return list(heard)

    before = signal.signal(signal.SIGUSR1, lambda *told: postponed(*told) or heard.append(told[0]))
    try:
        assert vio_read() == []
        deadline = time.monotonic() + 10
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
