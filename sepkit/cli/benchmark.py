"""`sepkit benchmark`: each of several models on each of several corpora, in one table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sepkit.cli._parser import DEVICE

if TYPE_CHECKING:
    from sepkit.reporting.benchmark import Costs


def main(
    *,
    models: list[str],
    corpora: list[str],
    out: str,
    home: list[str] | None = None,
    metrics: list[str] | None = None,
    device: str = DEVICE,
) -> Path:
    """Measure each model on each corpus, and write one table; the same command again continues where it stopped.

    Args:
        models: MODELs, public ones too (`sepkit models --public`).
        corpora: Manifests, FILE or NAME=FILE; a corpus is called like the folder of its manifest unless it has a NAME.
        out: Folder for benchmark.md and benchmark.json; MODEL/CORPUS in it is an evaluation, for `sepkit report`.
        home: MODEL=NAME: the corpus that a model was trained for, which its drops are from; default: of a public model
            the corpus of that name (libri2mix, wsj0-2mix, whamr ...), else the first.
        metrics: As of `sepkit evaluate`; default: si_sdr, whose improvement the table shows.
        device: As of `sepkit evaluate`; memory is measured on the CPU.
    """
    import sys

    from sepkit.cli import evaluate
    from sepkit.errors import UserError
    from sepkit.files import check_writable
    from sepkit.reporting.benchmark import Entry, write_benchmark

    files = _named(corpora)
    folders = {model: Path(out) / re.sub(r"[^\w.-]+", "_", model.strip("/")) for model in models}
    for model, folder in folders.items():
        if list(folders.values()).count(folder) > 1:
            raise UserError(f"--models {model}: another is written to {folder} too; give one of them another name")
    homes = {model: _home(model, list(files)) for model in models} | _given_homes(home or [], models, list(files))
    check_writable(Path(out))
    entries: list[Entry] = []
    for model, folder in folders.items():
        try:
            for name, file in files.items():
                print(f"{model} on {name}:")
                # Mixtures that a model cannot be scored on are listed in the evaluation, and counted in the table.
                try:
                    evaluate.main(
                        manifest=[file],
                        out=str(folder / name),
                        model=model,
                        metrics=metrics or ["si_sdr"],
                        device=device,
                    )
                except SystemExit:
                    continue
            entries.append(Entry(model, homes[model], {name: folder / name for name in files}, _costs(model, folder)))
        except UserError as error:
            print(f"sepkit benchmark: {model}: {error}", file=sys.stderr)
            entries.append(Entry(model, homes[model], {}, None, str(error)))
    page = write_benchmark(entries, files, Path(out))
    if any(entry.reason for entry in entries):
        print(page)
        raise SystemExit(1)
    return page


def _named(corpora: list[str]) -> dict[str, str]:
    """Return name -> manifest."""
    from sepkit.errors import UserError

    found: dict[str, str] = {}
    for corpus in corpora:
        name, separator, file = corpus.partition("=")
        if not separator or Path(corpus).exists():
            name, file = Path(corpus).absolute().parent.name, corpus
        if not re.fullmatch(r"[\w.-]+", name) or name in found:
            reason = "another has that name too" if name in found else "expected letters, digits, . _ and -"
            raise UserError(f"--corpora {corpus}: its name is {name!r}, {reason}; give NAME=FILE")
        found[name] = file
    return found


def _home(model: str, corpora: list[str]) -> str:
    """Return the corpus that a public model was trained on, if it is among these; else the first."""
    from sepkit.models.published.public import PUBLIC

    trained = _letters(PUBLIC[model].corpus.split()[0]) if model in PUBLIC else ""
    return next((name for name in corpora if _letters(name) == trained), corpora[0])


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _given_homes(home: list[str], models: list[str], corpora: list[str]) -> dict[str, str]:
    from sepkit.errors import UserError

    given = {model: name for model, _, name in (entry.rpartition("=") for entry in home)}
    for model, name in given.items():
        if model not in models or name not in corpora:
            raise UserError(f"--home {model}={name}: expected MODEL=NAME with a NAME of {', '.join(corpora)}")
    return given


def _costs(model: str, folder: Path) -> Costs:
    """Return what a model costs, measured once."""
    from dataclasses import asdict

    from sepkit.errors import UserError
    from sepkit.files import read_json, write_json
    from sepkit.inference.memory import peak_memory_mib
    from sepkit.models import load_pretrained
    from sepkit.models.published.facts import model_facts
    from sepkit.models.published.names import license_of
    from sepkit.models.storage.fingerprint import weights_fingerprint
    from sepkit.models.storage.folders import is_onnx
    from sepkit.reporting.benchmark import MEMORY_SECONDS, Costs

    path, fingerprint, facts = folder / "costs.json", "", None
    if not is_onnx(model):
        loaded = load_pretrained(model)
        fingerprint = weights_fingerprint(loaded)
        known = read_json(path) if path.is_file() else {}
        if known.get("weights") == fingerprint:
            return Costs(**known["costs"])
        facts = model_facts(loaded)
    try:
        memory = peak_memory_mib(model, MEMORY_SECONDS)
    except UserError:  # not every system tells how much memory a process took
        memory = None
    costs = Costs(
        None if facts is None else facts.parameters,
        None if facts is None else facts.giga_multiply_adds_per_second,
        memory,
        license_of(model),
    )
    write_json(path, {"weights": fingerprint, "costs": asdict(costs)})
    return costs
