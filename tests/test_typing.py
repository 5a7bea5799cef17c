"""What type checkers know of sepkit where torch is not installed."""

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from tests.small_install import REPOSITORY, modules_of_small_install

PYRIGHT = Path(sys.executable).parent / "pyright"
CODE = """
import numpy as np
import sepkit
from sepkit.objectives.assignment import PIT, AnnealedMCL, RelaxedWTA, Sinkhorn
from sepkit.models.maskers import ConvTasNetMasker, SepFormerMasker
from sepkit.schedules import TruncatedExponential

separator = sepkit.load_model()
separated = separator.separate(np.zeros(8000, np.float32), sample_rate=8000)
reveal_type(separator)
reveal_type(separated)
reveal_type(separated.estimates)
reveal_type(separated.predicted_si_sdr_db)
reveal_type(separator.separate("talk.wav"))
reveal_type(separator.separate_many(["talk.wav", "other.wav"]))
reveal_type(separated.speakers)
heads = [PIT(), AnnealedMCL(), AnnealedMCL(temperature=1.0), RelaxedWTA(), Sinkhorn()]
falling = AnnealedMCL(TruncatedExponential(), unit="spread")
maskers = [ConvTasNetMasker(512, 2, 1), SepFormerMasker(512, 2, 1, num_layers=1)]
"""
ARRAYS = "Separated[ndarray"
EXPECTED = ["Separator", ARRAYS, "ndarray", "ndarray", ARRAYS, f"list[{ARRAYS}", "int | None"]
WRONG = """
import sepkit
from sepkit.objectives.assignment import AnnealedMCL

AnnealedMCL(heat=1.0)
sepkit.load_model().separate("talk.wav", speeker=2)
"""


@pytest.fixture(scope="module")
def small_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the packages of a small install."""
    folder = tmp_path_factory.mktemp("typing") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in modules_of_small_install():
        found = util.find_spec(name)
        if found is not None and found.origin and name not in ("sepkit", *sys.stdlib_module_names):
            path = Path(found.origin)
            path = path.parent if found.submodule_search_locations else path
            (site / path.name).symlink_to(path)
    (site / "sepkit").symlink_to(REPOSITORY / "sepkit")
    assert not (site / "torch").exists() and (site / "numpy").exists()
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def found(small_python: Path) -> dict[str, list[dict[str, str]]]:
    """What pyright says of both files, by their names."""
    if not PYRIGHT.exists():
        pytest.skip("pyright is missing: pip install 'sepkit[dev]'")
    folder = small_python.parent.parent.parent / "code"
    folder.mkdir()
    for name, code in (("code.py", CODE), ("wrong.py", WRONG)):
        (folder / name).write_text(code)
    command = [PYRIGHT, "--outputjson", "--pythonpath", small_python, folder]
    environment = os.environ | {"PATH": f"{PYRIGHT.parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    told = json.loads(done.stdout)["generalDiagnostics"]
    return {name: [line for line in told if Path(line["file"]).name == name] for name in ("code.py", "wrong.py")}


def test_user_code_has_types_without_torch(found: dict[str, list[dict[str, str]]]) -> None:
    lines = found["code.py"]
    assert not [line for line in lines if line["severity"] != "information"], lines
    types = [line["message"].split('is "', 1)[1] for line in lines]
    assert len(types) == len(EXPECTED)
    for told, expected in zip(types, EXPECTED, strict=True):
        assert told.startswith(expected) and "Any]" not in told.split("dtype")[0] and "Unknown" not in told, told


def test_names_of_arguments_are_checked(found: dict[str, list[dict[str, str]]]) -> None:
    errors = [line["message"] for line in found["wrong.py"] if line["severity"] == "error"]
    assert any("heat" in line for line in errors), errors
    assert any('No overloads for "separate"' in line for line in errors), errors
