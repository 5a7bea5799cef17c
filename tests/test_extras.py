"""Dependencies: declared, few for separating, and reported in one line if missing."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from sepkit.data import audio
from sepkit.extras import EXTRAS
from tests.small_install import REPOSITORY, tomllib

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
# Module -> what it is called on the package index, where that is another name.
DISTRIBUTIONS = {"yaml": "pyyaml", "PIL": "pillow", "sklearn": "scikit-learn"}


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


CORE = {name_of(requirement) for requirement in PROJECT["dependencies"]}
OF_EXTRA = {name: {name_of(one) for one in wanted} for name, wanted in PROJECT["optional-dependencies"].items()}


def imported_modules() -> dict[str, Path]:
    """Top-level third-party modules that the package imports, each with a file that does."""
    found: dict[str, Path] = {}
    for path in sorted((REPOSITORY / "sepkit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found |= {name.partition(".")[0]: path for name in names}
    # Type checkers bring typing_extensions, which is imported for them alone.
    own = {*sys.stdlib_module_names, "sepkit", "typing_extensions"}
    return {name: path for name, path in found.items() if name not in own}


def test_everything_imported_is_declared_and_everything_declared_is_used() -> None:
    modules = imported_modules()
    for module, path in modules.items():
        distribution = name_of(DISTRIBUTIONS.get(module, module))
        declared = OF_EXTRA[EXTRAS[module]] if module in EXTRAS else CORE
        assert distribution in declared, f"{path} imports {module}"
    assert {name_of(DISTRIBUTIONS.get(module, module)) for module in modules} >= CORE


def test_extras_name_modules_that_they_install() -> None:
    for module, extra in EXTRAS.items():
        assert name_of(DISTRIBUTIONS.get(module, module)) in OF_EXTRA[extra]
    everything = set().union(*(OF_EXTRA[name] for name in OF_EXTRA))
    extras = ",".join(name for name in OF_EXTRA if name not in ("demo", "fuzz", "all"))
    assert PROJECT["optional-dependencies"]["all"][0] == f"sepkit[{extras}]"
    assert {"lightning", "pesq"} <= everything


def test_separating_in_torch_does_not_import_its_compiler(tmp_path: Path) -> None:
    """That stands on sympy, and takes longer than separating a recording and predicting its SI-SDR."""
    noise = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    recording = audio.write(tmp_path / "talk.wav", 0.1 * noise, 8000)
    script = (
        "import sys; from sepkit.cli.main import main\n"
        "code = main(['separate', *sys.argv[1:]]); assert code == 0 and 'sympy' not in sys.modules"
    )
    command = [sys.executable, "-c", script, str(recording), "--out", str(tmp_path / "out"), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "talk_s2.wav").is_file()
