"""`make release`: build the archives, look into them, and separate a wav with the wheel alone on each Python there is.
A bill of materials in CycloneDX's form lies beside them.

    python -m tools.release [--pythons python3.10 python3.12 ...] [--out dist]

Nothing is published: .github/workflows/release.yml does that for a tag, by trusted publishing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

from sepkit.errors import UserError
from sepkit.version import __version__

REPOSITORY = Path(__file__).resolve().parent.parent
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14")
IN_WHEEL = (
    "sepkit/__init__.py",
    "sepkit/py.typed",
    "sepkit/conf/",
    "sepkit/models/published/weights/boxed_8k/model.onnx",
    "sepkit/models/published/weights/boxed_8k_causal/model.onnx",
)
IN_SOURCE = ("/tests/", "/docs/", "/egs/", "/mkdocs.yml", "/NOTICE", "/CITATION.cff")


def main() -> None:
    """Build and check; the exit code is 2 if an archive is not what it should be."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist", help="folder of the archives")
    parser.add_argument("--pythons", nargs="*", help="programs to try; default: python3.10 to 3.14 if there")
    arguments = parser.parse_args()
    try:
        release(arguments.out, arguments.pythons)
    except UserError as error:
        sys.exit(f"release: {error}")


def release(out: Path, pythons: list[str] | None = None) -> None:
    """Build into `out`, check, and try the wheel.

    Args:
        out: folder of the archives, made if absent.
        pythons: programs to try the wheel with; None: those of `PYTHONS` that are there.

    Raises:
        UserError: an archive lacks a file, its metadata are incomplete, or the wheel does not separate.
    """
    # Before any work, for it needs a package of its own.
    from tools.sbom import write_sbom

    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, REPOSITORY)
    wheel = out / f"sepkit-{__version__}-py3-none-any.whl"
    check_wheel(wheel)
    check_source(out / f"sepkit-{__version__}.tar.gz")
    print(f"bill of materials: {write_sbom(out / f'sepkit-{__version__}.cdx.json')}")
    for program in filter(shutil.which, pythons or PYTHONS):
        try_alone(wheel, program)
        print(f"{program}: the wheel alone does what a small install should")


def check_wheel(wheel: Path) -> None:
    """Raise UserError unless the wheel holds the package, its configurations and its model, and full metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode())
    lacking = [part for part in IN_WHEEL if not any(name.startswith(part) for name in names)]
    strangers = sorted({name.split("/")[0] for name in names if not name.startswith("sepkit")})
    if lacking or strangers:
        raise UserError(f"{wheel.name}: lacks {lacking}, holds {strangers} beside sepkit; see [tool.hatch.build]")
    fields = ("Name", "Version", "Summary", "License-Expression", "Requires-Python")
    empty = [field for field in fields if not metadata[field]]
    if empty or not str(metadata.get_payload()).strip():
        raise UserError(f"{wheel.name}: metadata lack {', '.join(empty) or 'the README'}; see [project]")


def check_source(source: Path) -> None:
    """Raise UserError unless the source archive can be tested: tests, documents and recipes are in it, data are not."""
    with tarfile.open(source) as archive:
        names = archive.getnames()
    lacking = [part for part in IN_SOURCE if not any(part in f"/{name}/" or name.endswith(part) for name in names)]
    sounds = [name for name in names if name.endswith((".flac", ".wav", ".mp3"))]
    # What tests keep there is noise: of an earlier version, or changed until a reader fell.
    recordings = [name for name in sounds if "/tests/fixtures/" not in name and "/tests/fuzz/cases/" not in name]
    if lacking or recordings:
        raise UserError(f"{source.name}: lacks {lacking}, holds recordings {recordings[:3]}; see [tool.hatch.build]")


def try_alone(wheel: Path, program: str) -> None:
    """Install the wheel alone in a new environment, pinned, and run `tools.small_install` there.

    Raises:
        UserError: it cannot be installed, or a command fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        uv, python = [sys.executable, "-m", "uv"], Path(folder) / "bin" / "python"
        _run(*uv, "venv", "--quiet", "--python", program, folder)
        constraints = REPOSITORY / "tools" / "constraints.txt"
        _run(*uv, "pip", "install", "--quiet", "--python", python, "--constraint", constraints, wheel)
        _run(python, "-m", "tools.small_install", cwd=REPOSITORY)


def _run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    words = [os.fspath(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UserError(f"{' '.join(words[:4])} ... ended with {done.returncode}: {' '.join(last)}")
    return done


if __name__ == "__main__":
    main()
