"""Libraries that would report their use are told not to before they are imported, in every process of sepkit."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sepkit.data import audio

REPOSITORY = Path(__file__).resolve().parent.parent
VARIABLES = {"onnxruntime": "ORT_DISABLE_TELEMETRY", "huggingface_hub": "HF_HUB_DISABLE_TELEMETRY"}
# Python runs a module of this name at the start of every process: it notes the variables when a library is imported.
NOTING = """
import os
import sys
from importlib.machinery import PathFinder

VARIABLES = {variables!r}


class Noting(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in VARIABLES:
            with open({notes!r}, "a") as notes:
                print(os.getpid(), name, os.environ.get(VARIABLES[name]), file=notes)
        return None


sys.meta_path.insert(0, Noting)
"""
LIBRARY = "import numpy, sepkit; sepkit.load_model().separate(numpy.ones(800, numpy.float32), 8000)"
# The variables are gone when the workers start: they set them themselves.
WORKERS = """
import os, sepkit
for name in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY"): del os.environ[name]
from sepkit.parallel import for_each
names = ["ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY"]
assert [value for _, value in for_each(os.getenv, names, 2)] == ["1", "1"]
"""


def imported(folder: Path, *command: str | Path, **variables: str) -> list[tuple[str, str, str]]:
    """Run `python ...` without the variables; return process, library and variable of each import of a library."""
    site, notes = folder / "site", folder / "notes.txt"
    site.mkdir()
    (site / "sitecustomize.py").write_text(NOTING.format(variables=VARIABLES, notes=str(notes)))
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES.values()} | variables
    environment["PYTHONPATH"] = os.pathsep.join([str(site), str(REPOSITORY)])
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return [(pid, name, value) for pid, name, value in map(str.split, notes.read_text().splitlines())]


def recordings(folder: Path, count: int) -> Path:
    for number in range(count):
        audio.write(folder / "talks" / f"{number}.wav", np.random.default_rng(number).normal(0, 0.1, 8000), 8000)
    return folder / "talks"


def test_the_library_sets_them_before_the_import(tmp_path):
    assert {(name, value) for _, name, value in imported(tmp_path, "-c", LIBRARY)} == {("onnxruntime", "1")}


def test_the_hub_is_asked_without_reports(tmp_path):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is missing: pip install 'sepkit[hub]'")
    script = "import sepkit; from huggingface_hub import constants; assert constants.HF_HUB_DISABLE_TELEMETRY"
    assert ("huggingface_hub", "1") in {(name, value) for _, name, value in imported(tmp_path, "-c", script)}


def test_the_command_and_its_processes_set_them(tmp_path):
    words = ("separate", recordings(tmp_path, 4), "--out", tmp_path / "out", "--processes", "2")
    found = imported(tmp_path, "-m", "sepkit", *words)
    assert {value for _, name, value in found if name == "onnxruntime"} == {"1"}
    assert len({pid for pid, _, _ in found}) >= 2


def test_what_the_user_has_set_stays(tmp_path):
    found = imported(tmp_path, "-c", LIBRARY, ORT_DISABLE_TELEMETRY="0")
    assert {(name, value) for _, name, value in found} == {("onnxruntime", "0")}


def test_workers_set_them():
    subprocess.run([sys.executable, "-c", WORKERS], check=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})


def test_tests_and_tools_import_sepkit_first():
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    found = {}
    for name in listed.stdout.split():
        source = (REPOSITORY / name).read_text(encoding="utf-8")
        used = re.search(r"^\s*(import|from) onnxruntime|importorskip\(\"onnxruntime", source, re.MULTILINE)
        if used and not name.startswith("sepkit/"):
            found[name] = re.search(r"^(import|from) sepkit", source[: used.start()], re.MULTILINE) is not None
    assert found and all(found.values()), found
