"""`sepkit models`: list possible MODELs, or describe one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepkit.errors import UserError

if TYPE_CHECKING:
    from sepkit.models.published.facts import ModelFacts

MODEL_FORMS = {
    "EXP or EXP/model": "a folder that `sepkit train --out EXP` wrote, or a file in it",
    "boxed_8k": "shipped with sepkit; the default",
    "boxed_8k_causal": "shipped with sepkit; causal, the default of `sepkit stream`",
    "hf:OWNER/NAME": "a sepkit model on the Hugging Face hub, fetched once; @REVISION can follow",
    "sepformer-whamr16k ...": "a public model by name, fetched once; `sepkit models --public` lists them",
    "asteroid:FILE or asteroid:OWNER/NAME": (
        "a ConvTasNet, DPRNNTasNet, SuDORMRFNet or SuDORMRFImprovedNet of asteroid, also by its address (https://...); "
        "FILE@8000 states the rate of a file that does not tell it"
    ),
    "speechbrain:FOLDER or speechbrain:OWNER/NAME": "a SepFormer of speechbrain",
    "sepreformer:FILE": "what SepReformer's authors publish (epoch.NNNN.pth)",
    "tf-locoformer:FILE": "what TF-Locoformer's authors publish (valid.loss.ave.pth, with config.yaml beside it)",
    "sr-corrnet:FOLDER or sr-corrnet:OWNER/NAME": (
        "what SR-CorrNet's authors publish (model.pt and config.yaml), for a fixed number of speakers or for 2 to 5"
    ),
    "tiger:FOLDER or tiger:OWNER/NAME": "what TIGER's authors publish for speech (model.safetensors and config.json)",
    "torchaudio:FILE@8000": "weights of torchaudio's conv_tasnet_base, which do not tell their rate",
    "FILE.onnx": (
        "written by `sepkit export`; separates and evaluates only; a graph is a program, so take it only from people "
        "you trust"
    ),
}
"""What MODEL can be -> what that is."""


def main(*, model: str | None = None, public: bool = False, json: bool = False) -> None:
    """List the models that can be named and the maskers that can be trained, or describe one model.

    Args:
        model: describe this MODEL: its configuration, size, sample rate, and what was noted when it was saved
        public: only the table of the models of others that --model NAME fetches
        json: the models that ship (or MODEL, a folder) as JSON: name, SHA-256 of the weights, rate, estimates, latency,
            size, cost, SI-SDRi in dB by test set, license; with --public the table of those, with addresses and digests
    """
    if public:
        if model:
            raise UserError("--public: lists all public models; leave out --model or --public")
        print(_public_index() if json else "\n".join(_public()))
    elif json:
        print(_index(model))
    else:
        print(_describe(model) if model is not None else _overview())


def _overview() -> str:
    lines = ["A MODEL (--model, --init-from) is one of:"]
    width = max(map(len, MODEL_FORMS))
    lines += [f"  {form:<{width}} {meaning}" for form, meaning in MODEL_FORMS.items()]
    lines += ["", *_shipped(), "", "Models that can be trained (sepkit train --config NAME):"]
    return "\n".join(lines + _configurations())


def _shipped() -> list[str]:
    from sepkit.models.published.shipped import shipped_encoders

    encoders = ", ".join(shipped_encoders())
    return [
        "Models that ship with sepkit:",
        *_table(),
        f"Speaker encoders that ship with sepkit (--speaker-encoder NAME): {encoders}",
    ]


def _public() -> list[str]:
    from sepkit.models.published.public import PUBLIC

    rows = [
        ("name", "task", "trained on", "Hz", "M", "GMAC/s", "published score", "source", "license", "MB", "SHA-256")
    ]
    for name, model in PUBLIC.items():
        rows.append(
            (
                name,
                model.task,
                model.corpus,
                f"{model.sample_rate}",
                _known(model.parameters, 1e-6),
                _known(model.giga_multiply_adds_per_second),
                model.score or "-",
                model.source or "-",
                model.license,
                _known(model.megabytes),
                "published" if model.is_pinned else "of the first fetch",
            )
        )
    return [
        *_aligned(rows),
        "",
        "--model NAME fetches a model once. M: millions of parameters. GMAC/s: 1e9 multiply-adds a second of audio.",
        "A dash: its authors do not say, or it is known from the files alone.",
        "SHA-256 of the first fetch: none is published; the first fetch notes it, and later ones are held against it.",
    ]


def _known(number: float | None, factor: float = 1) -> str:
    return "-" if number is None else f"{number * factor:.1f}"


def _public_index() -> str:
    import json
    from dataclasses import asdict

    from sepkit.models.published.public import PUBLIC

    return json.dumps([{"name": name} | asdict(model) for name, model in PUBLIC.items()], indent=1)


def _index(model: str | None) -> str:
    import json
    from dataclasses import asdict

    from sepkit.errors import UserError
    from sepkit.files import file_digest
    from sepkit.models import model_folder
    from sepkit.models.published.card import card_license
    from sepkit.models.published.shipped import DEFAULT_MODEL, shipped_models
    from sepkit.models.storage.folders import weights_file

    found = []
    for name, place in ({model: Path(model)} if model else shipped_models()).items():
        folder = model_folder(place)
        if folder is None:
            raise UserError(f"--json: {name} is no folder of a model; name what `sepkit train` wrote")
        weights = weights_file(folder)
        facts = asdict(_facts(folder))
        found.append(
            {"name": name, "default": name == DEFAULT_MODEL, "sha256": file_digest(weights)}
            | {"bytes": weights.stat().st_size, "license": card_license(folder)}
            | {"si_sdri_db" if key == "scores" else key: value for key, value in facts.items()}
        )
    return json.dumps(found, indent=1)


def _facts(folder: Path) -> ModelFacts:
    from sepkit.extras import is_installed
    from sepkit.models.published.facts import graph_facts, model_facts
    from sepkit.models.storage.folders import GRAPH

    if (folder / GRAPH).is_file() and not is_installed("torch"):
        return graph_facts(folder)
    from sepkit.models import load_pretrained

    return model_facts(load_pretrained(folder), folder)


def _table() -> list[str]:
    from sepkit.models.published.shipped import DEFAULT_MODEL, shipped_models
    from sepkit.models.storage.folders import weights_file

    rows = [["", "Hz", "estimates", "latency", "parameters", "MB", "GMAC/s", "SI-SDRi, dB"]]
    for name, folder in shipped_models().items():
        facts = _facts(folder)
        cost = facts.giga_multiply_adds_per_second
        rows.append(
            [
                f"{name}{' (default)' if name == DEFAULT_MODEL else ''}",
                f"{facts.sample_rate}",
                f"{facts.estimates}",
                "whole recording" if facts.latency_ms is None else f"{facts.latency_ms:.0f} ms",
                f"{facts.parameters:,}",
                f"{weights_file(folder).stat().st_size / 1e6:.1f}",
                "" if cost is None else f"{cost:.2f}",
                ", ".join(f"{score:.2f} ({data})" for data, score in facts.scores.items()),
            ]
        )
    return ["  " + line for line in _aligned(rows)]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _configurations() -> list[str]:
    from sepkit.cli._configuration import conf_folder

    paths, rows = sorted((conf_folder() / "model").glob("*.yaml")), []
    width = max(len(path.stem) for path in paths)
    for path in paths:
        comment = path.read_text(encoding="utf-8").splitlines()[0]
        rows.append(f"  {path.stem:<{width}} {comment.lstrip('# ') if comment.startswith('#') else ''}".rstrip())
    return rows


def _depth(model: Any, folder: Path) -> dict[str, Any]:
    from sepkit.inference.quality.predictor import read_quality
    from sepkit.models.saved import weights_fingerprint

    trained = getattr(getattr(model, "masker", None), "trained_steps", None)
    if trained is None:
        return {}
    quality = read_quality(folder, weights_fingerprint(model), model.hypotheses)
    calibrated = None if quality is None else quality.depth_steps
    return {"depth_steps": {"trained": trained, "calibrated": calibrated}}


def _describe(model: str) -> str:
    import yaml

    from sepkit.config import to_dict
    from sepkit.extras import is_installed
    from sepkit.models import load_pretrained, model_folder
    from sepkit.models.export.graph_file import Graph
    from sepkit.models.storage.folders import is_onnx, read_description

    if is_onnx(model):
        description = Graph(model).description
    elif (folder := model_folder(model)) is not None:
        description = read_description(folder)
        if is_installed("torch"):
            description |= _depth(load_pretrained(folder), folder)
    else:
        loaded = load_pretrained(model)
        description = {
            "sample_rate": loaded.sample_rate,
            "parameters": sum(parameter.numel() for parameter in loaded.parameters()),
            "model": to_dict(loaded.config) if loaded.config else None,
        }
    return yaml.safe_dump(description, sort_keys=False, allow_unicode=True).rstrip()
