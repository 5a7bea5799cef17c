"""The release: what archives must hold, and that the workflows and the citation are what their readers expect."""

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from sepkit.models.published.shipped import ENCODERS, SHIPPED
from tests.complaint import complaint
from tools import release

METADATA = """Metadata-Version: 2.4
Name: sepkit
Version: 0.1.0
Summary: separation
License-Expression: MIT AND CC-BY-4.0 AND Apache-2.0
Requires-Python: >=3.10
Requires-Dist: torch<3,>=2.6
Requires-Dist: numpy>=1.26
Requires-Dist: pesq>=0.0.4; extra == "metrics"

Read me.
"""


def wheel(folder: Path, *, without: str = "", also: tuple[str, ...] = (), metadata: str = METADATA) -> Path:
    """A wheel with what it must hold, but for `without`."""
    path = folder / "sepkit-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in (*release.IN_WHEEL, *also):
            if name != without:
                archive.writestr(f"{name}some.yaml" if name.endswith("/") else name, "")
        archive.writestr("sepkit-0.1.0.dist-info/METADATA", metadata)
    return path


def test_a_whole_wheel_passes(tmp_path: Path) -> None:
    release.check_wheel(wheel(tmp_path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"without": "sepkit/conf/"}, "lacks ['sepkit/conf/']"),
        ({"also": ("tests/test_x.py",)}, "holds ['tests'] beside sepkit"),
        ({"metadata": METADATA.replace("License-Expression", "License")}, "metadata lack License-Expression"),
        ({"metadata": METADATA.replace("Read me.\n", "")}, "metadata lack the README"),
    ],
)
def test_a_wheel_that_is_not_whole(tmp_path: Path, options: dict, words: str) -> None:
    assert words in complaint(lambda: release.check_wheel(wheel(tmp_path, **options)))


def test_a_source_archive(tmp_path: Path) -> None:
    path = tmp_path / "sepkit-0.1.0.tar.gz"
    for name in (*release.IN_SOURCE, "tests/a.wav", "tests/fixtures/noise.wav", "tests/fuzz/cases/turns/1/a.wav"):
        file = tmp_path / "sepkit-0.1.0" / (f"{name.strip('/')}/x.py" if name.endswith("/") else name.strip("/"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "sepkit-0.1.0", "sepkit-0.1.0")
    complaint(lambda: release.check_source(path), r"lacks \[\], holds recordings \['sepkit-0.1.0/tests/a\.wav'\]")
    (tmp_path / "sepkit-0.1.0" / "tests" / "a.wav").unlink()
    (tmp_path / "sepkit-0.1.0" / "mkdocs.yml").unlink()
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "sepkit-0.1.0", "sepkit-0.1.0")
    complaint(lambda: release.check_source(path), r"lacks \['/mkdocs\.yml'\]")


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [("vendor.github-workflows", ".github/workflows/*.yml"), ("vendor.citation-file-format", "CITATION.cff")],
)
def test_files_that_others_read_have_their_form(repository: Path, schema: str, pattern: str) -> None:
    paths = sorted(map(str, repository.glob(pattern)))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert paths and done.returncode == 0, done.stdout


def test_the_bill_of_materials_names_packages_and_weights(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx", reason="cyclonedx is missing: pip install 'sepkit[dev]'")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    from tools import sbom

    text = sbom.write_sbom(tmp_path / "sepkit.cdx.json").read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    told = json.loads(text)
    assert told["metadata"]["component"]["name"] == "sepkit"
    found = {component["name"]: component for component in told["components"]}
    assert {found[name]["scope"] for name in ("numpy", "onnxruntime", "soundfile", "cffi")} == {"required"}
    assert {found[name]["scope"] for name in ("torch", "lightning", "matplotlib")} == {"optional"}
    # Tools of developers are no part of it.
    assert not {"pytest", "ruff", "asteroid", "mkdocs"} & found.keys()
    for path in (*SHIPPED.glob("*/model.onnx"), *ENCODERS.glob("*/model.onnx")):
        weights = found[path.parent.name]
        assert weights["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]
        assert weights["licenses"] == [{"license": {"id": "CC-BY-4.0"}}]
    links = {entry["ref"]: entry.get("dependsOn", []) for entry in told["dependencies"]}
    assert f"cffi=={found['cffi']['version']}" in links[f"soundfile=={found['soundfile']['version']}"]


def test_notice_credits_every_corpus_that_a_card_names(repository: Path) -> None:
    notice = (repository / "NOTICE").read_text(encoding="utf-8")
    corpora = ("LibriSpeech", "speechocean762", "LibriTTS", "MLS", "VCTK", "Speech Commands", "CMU Arctic", "ESC-10")
    others = ("VITS", "GlowTTS", "Kokoro-82M", "resemblyzer")
    paths = (repository / "sepkit").rglob("published/*/*/README.md")
    cards = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert all(name in notice and name in cards for name in (*corpora, *others))
