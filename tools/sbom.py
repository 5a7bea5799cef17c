"""The bill of materials of a wheel, in CycloneDX's form: what lies in it, and the packages that it runs with.

Packages of the core are required, those of extras for users optional. Their versions are those that are installed here:
tools/constraints.txt pins them, and the tests ran with them.
"""

import hashlib
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from sepkit.files import write_text
from sepkit.models.published.shipped import ENCODERS, SHIPPED

USERS = ("torch", "train", "evaluate", "meeting", "report", "metrics", "reverb", "hub", "tts", "flow")
"""Extras that users install; the others are of those who develop sepkit."""


def write_sbom(path: Path) -> Path:
    """Write the bill of materials of the package as it is installed here; return the path."""
    bom = Bom()
    root = _component("sepkit", ComponentType.APPLICATION)
    bom.metadata.component = root
    required = _closure(metadata.requires("sepkit") or [], ())
    optional = _closure(metadata.requires("sepkit") or [], USERS) - required
    components = {name: _component(name) for name in sorted(required | optional)}
    for name, component in components.items():
        component.scope = ComponentScope.REQUIRED if name in required else ComponentScope.OPTIONAL
        bom.components.add(component)
    weights = [_weights(path) for folder in (SHIPPED, ENCODERS) for path in sorted(folder.glob("*/model.onnx"))]
    bom.components.update(weights)
    direct = _names(metadata.requires("sepkit") or [], ("", *USERS))
    bom.register_dependency(root, [*(components[name] for name in sorted(direct & components.keys())), *weights])
    for name, component in components.items():
        needed = _names(metadata.requires(name) or [], ("",)) & components.keys()
        bom.register_dependency(component, [components[other] for other in sorted(needed)])
    write_text(path, JsonV1Dot6(bom).output_as_string(indent=1) + "\n")
    return path


def _component(name: str, kind: ComponentType = ComponentType.LIBRARY) -> Component:
    of = metadata.metadata(name)
    stated = of["License-Expression"] or of["License"] or ""
    classified = [line.split(" :: ")[-1] for line in of.get_all("Classifier") or [] if line.startswith("License ::")]
    # Some packages have the whole text of their license there.
    license = stated if stated and len(stated) < 100 else " AND ".join(classified)
    version = of["Version"]
    return Component(
        name=name,
        type=kind,
        version=version,
        bom_ref=f"{name}=={version}",
        purl=PackageURL("pypi", None, name, version),
        licenses=[LicenseFactory().make_from_string(license)] if license else [],
    )


def _weights(path: Path) -> Component:
    """Return the component of a model that lies in the wheel."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Component(
        name=path.parent.name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        version=metadata.version("sepkit"),
        bom_ref=f"weights/{path.parent.name}",
        licenses=[LicenseFactory().make_from_string("CC-BY-4.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        scope=ComponentScope.REQUIRED,
    )


def _closure(requirements: Iterable[str], extras: Iterable[str]) -> set[str]:
    """Return the names of required packages that are installed, and of all that they require."""
    found: set[str] = set()
    waiting = list(_names(requirements, ("", *extras)))
    while waiting:
        name = waiting.pop()
        if name in found or name == "sepkit":
            continue
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            # Of another system or Python.
            continue
        found.add(name)
        waiting += _names(needed, ("",))
    return found


def _names(requirements: Iterable[str], extras: Iterable[str]) -> set[str]:
    """Return the names of the requirements that hold here with one of the extras, "" for none."""
    parsed = map(Requirement, requirements)
    wanted = [of for of in parsed if of.marker is None or any(of.marker.evaluate({"extra": extra}) for extra in extras)]
    return {re.sub(r"[-_.]+", "-", of.name).lower() for of in wanted}
