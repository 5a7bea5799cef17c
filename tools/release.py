"""`make release`: build the archives, look into them, and separate a wav with the wheel alone on each Python there is.
A bill of materials in CycloneDX's form lies beside them.

    python -m tools.release [--pythons python3.10 python3.12 ...] [--out dist]

Nothing is published: .github/workflows/release.yml does that for a tag, by trusted publishing. At the end stand the
figures of this version beside those of the last one, which tools/release.json keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import numpy as np

from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.files import write_json
from sepkit.version import __version__

REPOSITORY = Path(__file__).resolve().parent.parent
FIGURES = REPOSITORY / "tools" / "release.json"
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
    """Build, check and print the figures; the exit code is 2 if an archive is not what it should be."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist", help="folder of the archives")
    parser.add_argument(
        "--pythons", nargs="*", help="programs to try; default: python3.10 to 3.14, those that are there"
    )
    arguments = parser.parse_args()
    try:
        release(arguments.out, arguments.pythons)
    except UserError as error:
        sys.exit(f"release: {error}")


def release(out: Path, pythons: list[str] | None = None) -> dict[str, Any]:
    """Build into `out`, check, try the wheel, and return the figures that are printed and kept.

    Args:
        out: folder of the archives, made if absent.
        pythons: programs to try the wheel with; None: those of `PYTHONS` that are there.

    Raises:
        UserError: an archive lacks a file, its metadata are incomplete, or the wheel does not separate.
    """
    # Before any work, for it needs a package of its own.
    from tools.sbom import write_sbom

    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, REPOSITORY)
    wheel = _newest(out, f"sepkit-{__version__}-*.whl")
    source = _newest(out, f"sepkit-{__version__}.tar.gz")
    check_wheel(wheel)
    check_source(source)
    print(f"bill of materials: {write_sbom(out / f'sepkit-{__version__}.cdx.json')}")
    tried = [program for program in pythons or PYTHONS if shutil.which(program)]
    for program in tried:
        separate_with(wheel, program)
        print(f"{program}: the wheel alone separates a wav")
    figures = {
        "version": __version__,
        "wheel_bytes": wheel.stat().st_size,
        "core_dependencies": len(core_dependencies(wheel)),
        "import_seconds": import_seconds(),
    }
    print(table(figures, json.loads(FIGURES.read_text()) if FIGURES.is_file() else {}))
    write_json(FIGURES, figures)
    return figures


def check_wheel(wheel: Path) -> None:
    """Raise UserError unless the wheel holds the package, its configurations and its model, and full metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(_metadata(archive))
    lacking = [part for part in IN_WHEEL if not any(name.startswith(part) for name in names)]
    strangers = sorted({name.split("/")[0] for name in names if not name.startswith("sepkit")})
    if lacking or strangers:
        raise UserError(f"{wheel.name}: lacks {lacking}, holds {strangers} beside sepkit; see [tool.hatch.build]")
    empty = [
        field
        for field in ("Name", "Version", "Summary", "License-Expression", "Requires-Python")
        if not metadata[field]
    ]
    if empty or not str(metadata.get_payload()).strip():
        raise UserError(
            f"{wheel.name}: metadata lack {', '.join(empty) or 'the README'}; see [project] in pyproject.toml"
        )


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


def core_dependencies(wheel: Path) -> list[str]:
    """The packages that the core names, without extras."""
    with zipfile.ZipFile(wheel) as archive:
        required = Parser().parsestr(_metadata(archive)).get_all("Requires-Dist") or []
    return [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line]


def separate_with(wheel: Path, program: str) -> None:
    """Install the wheel alone in a new environment, pinned, and separate two seconds of noise with the shipped model.

    Raises:
        UserError: it cannot be installed, or the estimates are not there.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment, wav = Path(folder) / "venv", Path(folder) / "noise.wav"
        audio.write(wav, 0.1 * np.random.default_rng(0).standard_normal(16000).astype(np.float32), 8000)
        constraints = REPOSITORY / "tools" / "constraints.txt"
        uv = [sys.executable, "-m", "uv"]
        _run(*uv, "venv", "--quiet", "--python", program, environment)
        python = environment / "bin" / "python"
        _run(*uv, "pip", "install", "--quiet", "--python", python, "--constraint", constraints, wheel)
        _run(environment / "bin" / "sepkit", "separate", wav, "--out", Path(folder) / "out", cwd=folder)
        if len(list((Path(folder) / "out").glob("noise_s?.wav"))) != 2:
            raise UserError(f"{wheel.name}: on {program} no estimates were written")


def import_seconds() -> float:
    """Seconds that `import sepkit` takes in a new process, the least of three."""
    command = [sys.executable, "-X", "importtime", "-c", "import sepkit"]
    lines = [_run(*command).stderr.strip().splitlines()[-1] for _ in range(3)]
    return min(int(line.split("|")[1]) for line in lines) / 1e6


def table(figures: dict[str, Any], before: dict[str, Any]) -> str:
    """The figures of this version, each with that of the version before."""
    rows = [f"{name:<20}{value!s:<14}{before.get(name, '-')}" for name, value in figures.items()]
    return "\n".join([f"{'':<20}{'now':<14}before", *rows])


def _metadata(archive: zipfile.ZipFile) -> str:
    name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return archive.read(name).decode()


def _newest(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UserError(f"{folder}: found no {pattern}, which `python -m build` should have written")
    return found[-1]


def _run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    words = [os.fspath(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise UserError(f"{' '.join(words[:4])} ... ended with {done.returncode}: {' '.join(last)}")
    return done


if __name__ == "__main__":
    main()
