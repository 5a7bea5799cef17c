"""`sepkit models`: list possible MODELs, or describe one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from sepkit.errors import UserError
from sepkit.models.published.public import PUBLIC
from sepkit.models.published.shipped import DEFAULT_MODEL, shipped_encoders, shipped_models
from sepkit.models.storage.folders import GRAPH, weights_file

if TYPE_CHECKING:
    from sepkit.models.published.facts import ModelFacts

MODEL_FORMS = {
    "EXP or EXP/model": "a folder that `sepkit train --out EXP` wrote, or a file in that folder",
    "boxed_8k": "ships with sepkit; the default",
    "boxed_8k_causal": "ships with sepkit; causal, the default of `sepkit stream`",
    "hf:OWNER/NAME": "a sepkit model on the Hugging Face Hub, downloaded once; append @REVISION to pin it",
    "sepformer-whamr16k ...": "a public model by name, downloaded once; `sepkit models --public` lists them",
    "asteroid:FILE or asteroid:OWNER/NAME": (
        "a ConvTasNet, DPRNNTasNet, SuDORMRFNet or SuDORMRFImprovedNet of asteroid, also as a URL (https://...); "
        "append @8000 if the file does not state its sample rate"
    ),
    "speechbrain:FOLDER or speechbrain:OWNER/NAME": "a SepFormer of SpeechBrain",
    "sepreformer:FILE": "a file of SepReformer's authors (epoch.NNNN.pth)",
    "sudormrf:FILE": "an improved SuDoRM-RF of its authors (Improved_Sudormrf_....pt)",
    "tf-locoformer:FILE": "a file of TF-Locoformer's authors (valid.loss.ave.pth, beside config.yaml)",
    "sr-corrnet:FOLDER or sr-corrnet:OWNER/NAME": (
        "files of SR-CorrNet's authors (model.pt and config.yaml), for a fixed number of speakers or for 2 to 5"
    ),
    "tiger:FOLDER or tiger:OWNER/NAME": "files of TIGER's authors for speech (model.safetensors and config.json)",
    "torchaudio:FILE@8000": "weights of torchaudio's conv_tasnet_base, which do not state their sample rate",
    "FILE.onnx": (
        "a graph that `sepkit export` wrote, for inference only; graphs are programs, so use only graphs that you trust"
    ),
}
"""What MODEL can be -> what that is."""

_PUBLIC_NOTES = (
    "--model NAME fetches a model once. M: millions of parameters. GMAC/s: 1e9 multiply-adds a second of audio.",
    "A dash: its authors do not say, or it is known from the files alone.",
    "SHA-256 of the first fetch: none is published; the first fetch notes it, and later ones are held against it.",
)


def main(*, model: str | None = None, public: bool = False, json: bool = False) -> None:
    """List the models that can be named and the maskers that can be trained, or describe one model.

    Example:
        sepkit models --model boxed_8k

    Args:
        model: MODEL to describe: its configuration, size, sample rate and training notes
        public: print only the table of other projects' models, which --model NAME fetches
        json: print the models that ship (or MODEL, a folder) as JSON: name, SHA-256 of the weights, rate, estimates,
            latency, size, cost, SI-SDRi in dB by test set, license; with --public the models of others, with addresses
            and digests
    """
    if public:
        if model:
            raise UserError("--public: lists all public models; leave out --model or --public")
        index = [{"name": name} | asdict(one) for name, one in PUBLIC.items()]
        print(dumps(index, indent=1) if json else "\n".join([*_aligned(_public()), "", *_PUBLIC_NOTES]))
    elif json:
        print(_index(model))
    else:
        print(_describe(model) if model is not None else _overview())


def _overview() -> str:
    from sepkit.cli._configuration import conf_folder

    lines = ["A MODEL (--model, --init-from) is one of:", *_aligned(MODEL_FORMS.items(), "  ")]
    lines += ["", "Models that ship with sepkit:", *_aligned(_shipped(), "  ")]
    lines += [f"Speaker encoders that ship with sepkit (--speaker-encoder NAME): {', '.join(shipped_encoders())}"]
    lines += ["", "Models that can be trained (sepkit train --config NAME):"]
    heads = {path.stem: path.read_text("utf-8").splitlines()[0] for path in sorted(conf_folder().glob("model/*.yaml"))}
    rows = [(name, head.lstrip("# ") if head.startswith("#") else "") for name, head in heads.items()]
    return "\n".join(lines + _aligned(rows, "  "))


def _shipped() -> Iterator[Sequence[str]]:
    yield "", "Hz", "estimates", "latency", "parameters", "MB", "GMAC/s", "SI-SDRi, dB"
    for name, folder in shipped_models().items():
        facts = _facts(folder)
        cost = facts.giga_multiply_adds_per_second
        yield (
            f"{name}{' (default)' if name == DEFAULT_MODEL else ''}",
            f"{facts.sample_rate}",
            f"{facts.estimates}",
            "whole recording" if facts.latency_ms is None else f"{facts.latency_ms:.0f} ms",
            f"{facts.parameters:,}",
            f"{weights_file(folder).stat().st_size / 1e6:.1f}",
            "" if cost is None else f"{cost:.2f}",
            ", ".join(f"{score:.2f} ({data})" for data, score in facts.scores.items()),
        )


def _public() -> Iterator[Sequence[str]]:
    yield "name", "task", "trained on", "Hz", "M", "GMAC/s", "published score", "source", "license", "MB", "SHA-256"
    for name, model in PUBLIC.items():
        millions = None if model.parameters is None else model.parameters / 1e6
        numbers = (millions, model.giga_multiply_adds_per_second, model.megabytes)
        parameters, cost, megabytes = ("-" if number is None else f"{number:.1f}" for number in numbers)
        about = (name, model.task, model.corpus, f"{model.sample_rate}", parameters, cost)
        digests = "published" if all(file.digest for file in model.files) else "of the first fetch"
        yield (*about, model.score or "-", model.source or "-", model.license, megabytes, digests)


def _index(model: str | None) -> str:
    from sepkit.files import file_digest
    from sepkit.models import model_folder
    from sepkit.models.published.card import read_card

    found = []
    for name, place in ({model: Path(model)} if model else shipped_models()).items():
        folder = model_folder(place)
        if folder is None:
            raise UserError(f"--json: {name} is no folder of a model; name what `sepkit train` wrote")
        weights, facts = weights_file(folder), asdict(_facts(folder))
        found.append(
            {"name": name, "default": name == DEFAULT_MODEL, "sha256": file_digest(weights)}
            | {"bytes": weights.stat().st_size, "license": read_card(folder).get("license")}
            | {"si_sdri_db" if key == "scores" else key: value for key, value in facts.items()}
        )
    return dumps(found, indent=1)


def _facts(folder: Path) -> ModelFacts:
    from sepkit.extras import is_installed
    from sepkit.models.published.facts import graph_facts, model_facts

    if (folder / GRAPH).is_file() and not is_installed("torch"):
        return graph_facts(folder)
    from sepkit.models import load_pretrained

    return model_facts(load_pretrained(folder), folder)


def _aligned(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [(indent + "  ".join(row)).rstrip() for row in cells]


def _describe(model: str) -> str:
    import yaml

    from sepkit.config import to_dict
    from sepkit.models import load_pretrained, model_folder
    from sepkit.models.export.graph_file import Graph
    from sepkit.models.storage.folders import is_onnx, read_description

    if is_onnx(model):
        description = Graph(model).description
    elif (folder := model_folder(model)) is not None:
        description = read_description(folder)
    else:
        loaded = load_pretrained(model)
        description = {
            "sample_rate": loaded.sample_rate,
            "parameters": sum(parameter.numel() for parameter in loaded.parameters()),
            "model": to_dict(loaded.config) if loaded.config else None,
        }
    return yaml.safe_dump(description, sort_keys=False, allow_unicode=True).rstrip()
