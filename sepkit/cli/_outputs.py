"""What each command writes below its --out, as far as it is known before its work."""

from collections.abc import Mapping
from typing import Any

FILES = frozenset({"audiogram tables", "export", "report", "summarize", "voices score", "voices table"})
"""Commands whose --out is a file."""

OWN = frozenset({"separate"})
"""Commands whose function knows what earlier calls wrote."""

WITHOUT_RECORD = frozenset({"web"})
"""Commands whose folder is known by its files."""

_SPLITS = ("train.jsonl", "dev.jsonl", "test.jsonl", "skipped.tsv")
NAMES: dict[str, tuple[str, ...]] = {
    "cluster": ("segments.csv", "embeddings.csv", "summary.json"),
    "evaluate": ("utterances.csv", "summary.json", "journal.jsonl"),
    "find-temperature": ("temperature.json", "temperature.png"),
    "prepare audiograms": ("train.csv", "dev.csv", "test.csv"),
    "prepare conversation": ("mixture.flac", "s1.flac", "s2.flac", "conversation.jsonl", "conversation.rttm"),
    "prepare folder": _SPLITS,
    "prepare images": ("train.npz", "dev.npz", "test.npz"),
    "prepare librimix": _SPLITS,
    "prepare mini": _SPLITS,
    "prepare mixed": ("test.jsonl", "skipped.tsv"),
    "prepare pulses": _SPLITS,
    "prepare vctk-2mix": ("test.jsonl", "skipped.tsv"),
    "prepare voices": ("voices.csv",),
    "prepare wsj0-mix": _SPLITS,
    **{f"quantize {name}": (f"{name}.json",) for name in ("gaussians", "free", "sines")},
    "quantize uci": ("table.json", "table.md"),
    "train": ("config.yaml", "metrics.jsonl"),
    "web": ("index.html", "model.onnx", "model.json", "encoder.onnx"),
}
"""Command -> names below the folder."""


def outputs_of(command: str, values: Mapping[str, Any]) -> tuple[Any, tuple[str, ...] | None]:
    """Return the --out of a command and the names below it, as `sepkit.owned.writing` takes them."""
    if command in OWN or values.get("out") is None:
        return None, ()
    return values["out"], None if command in FILES else NAMES.get(command, ())
