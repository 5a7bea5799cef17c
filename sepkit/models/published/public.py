"""Models that others have published, by short name: where their files are, and what their authors say of them.

One table, public.csv, for `sepkit models --public`, for `--model NAME` and for the page docs/public-models.md.
Addresses that hold a commit always give the same bytes. Files of a branch can change; without a published digest, the
SHA-256 of the first fetch is noted beside them, and later ones are held against it.
"""

import csv
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sepkit.errors import UserError
from sepkit.files import cache_folder, file_digest, read_json, write_json

DIGESTS = "digests.json"
"""File beside what was fetched without a published digest: name -> "sha256:..." of the first fetch."""


@dataclass(frozen=True)
class PublicFile:
    """A file of a model.

    Args:
        name: Name in the cache.
        digest: "sha256:...", or "": none published.
        size: bytes; None: not published exactly.
    """

    name: str
    url: str
    digest: str = ""
    size: int | None = None


@dataclass(frozen=True)
class PublicModel:
    """A model that others have published.

    Args:
        task: separate 2, separate 2 to 5 (it counts them), enhance (one output: a denoiser).
        corpus: Training corpus, with the name of its task.
        parameters: Parameters of sepkit's version of the model; None: its sizes follow from its own files only.
        giga_multiply_adds_per_second: 1e9 per second of audio, by `facts.multiply_adds`; None: as above, or it depends
            on the recording.
        score: Published score on the test set of its corpus; "": unknown.
        bridge: Reader of its files: the word before the colon of a MODEL.
        source: Source of the score.
        license: License of the weights.
        megabytes: Size of all files together, MB; None: not published.
        given: Argument of the bridge: a file's name, with @RATE if the file does not state its rate; "": the folder.
    """

    task: str
    corpus: str
    sample_rate: int
    parameters: int | None
    giga_multiply_adds_per_second: float | None
    score: str
    bridge: str
    source: str
    license: str
    megabytes: float | None
    files: tuple[PublicFile, ...]
    given: str = ""


def _table(name: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _model(row: dict[str, str]) -> PublicModel:
    place, files = row.pop("place"), row.pop("files")
    plain: dict[str, Any] = {**row, "sample_rate": int(row["sample_rate"])}
    for name, kind in (("parameters", int), ("giga_multiply_adds_per_second", float), ("megabytes", float)):
        plain[name] = kind(row[name]) if row[name] else None
    return PublicModel(**plain, files=tuple(_file(place, *listed.split("=")) for listed in files.split()))


def _file(place: str, path: str, known: str = ":") -> PublicFile:
    """Return a file of a model.

    Args:
        place: `hub:` (Hugging Face) or `github:`, a repository, "@" and a revision; or an address.
        path: Path in it.
        known: digest, ":" and size; both empty: not published.
    """
    kind, _, rest = place.partition(":")
    repository, _, revision = rest.partition("@")
    # Weights on GitHub are kept by Git LFS.
    github = "media.githubusercontent.com/media" if path.endswith(".pth") else "raw.githubusercontent.com"
    url = {
        "hub": f"https://huggingface.co/{repository}/resolve/{revision}/{path}",
        "github": f"https://{github}/{repository}/{revision}/{path}",
    }.get(kind, f"{place}/{path}")
    digest, _, size = known.partition(":")
    return PublicFile(Path(path).name, url, f"sha256:{digest}" if digest else "", int(size) if size else None)


PUBLIC = {row.pop("name"): _model(row) for row in _table("public.csv")}
"""Short name -> model."""


def fetch_public(name: str) -> str:
    """Return the MODEL, with its bridge and a path in the cache, of a public model; fetch its files once.

    Args:
        name: Name in `PUBLIC`.
    """
    model = PUBLIC[name]
    size = "size not published" if model.megabytes is None else f"{model.megabytes:g} MB"
    about = f"{size}; the weights are under {model.license}"
    folder = _fetch_files(cache_folder("models") / name, model.files, f"{name}: {about}")
    return f"{model.bridge}:{folder / model.given if model.given else folder}"


def zenodo_address(name: str) -> str | None:
    """Return the address of a model that asteroid's README names; None for other names.

    The README gives them to records of Zenodo. Three more are of classes that sepkit lacks.

    Args:
        name: Name in asteroid's README, OWNER/MODEL.
    """
    records = {row["name"]: row["record"] for row in _table("zenodo.csv")}
    return f"https://zenodo.org/record/{records[name]}/files/model.pth?download=1" if name in records else None


def fetch_address(url: str) -> Path:
    """Return the path of a file that is fetched once from an address."""
    path = urlsplit(url).path
    folder = cache_folder("models") / f"address-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    file = PublicFile(Path(path).name or "model", url)
    return _fetch_files(folder, [file], f"{url}: of unknown license") / file.name


def _fetch_files(folder: Path, files: Sequence[PublicFile], about: str) -> Path:
    """Fetch missing files; `about` is printed first."""
    from sepkit.fetching import fetch

    if not all((folder / file.name).is_file() for file in files):
        print(f"{about}; fetched once, to {folder}", file=sys.stderr)
    noted = read_json(folder / DIGESTS, "delete it") if (folder / DIGESTS).is_file() else {}
    for file in files:
        digest = file.digest or noted.get(file.name)
        try:
            path = fetch(file.url, folder / file.name, digest, file.size)
        except UserError as error:
            names = ", ".join(file.name for file in files)
            raise UserError(f"{error}; or put {names} into {folder} yourself") from None
        if not digest:
            noted[file.name] = f"sha256:{file_digest(path)}"
            write_json(folder / DIGESTS, noted)
            print(
                f"{file.name}: no digest is published; its own, {noted[file.name]}, is noted in {folder / DIGESTS}",
                file=sys.stderr,
            )
    return folder
