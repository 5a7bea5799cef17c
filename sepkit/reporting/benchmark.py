"""One table of several models on several corpora: scores, drops from the home corpus, costs and licenses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sepkit.cleaning import code, escaped
from sepkit.files import read_json, write_json, write_text
from sepkit.reporting.text import INTERVALS, markdown_table

MEMORY_SECONDS = 10
"""Length of the recording whose separation memory is measured in."""

_METRIC = "si_sdri_db"


@dataclass(frozen=True)
class Costs:
    """What a model costs.

    Args:
        giga_multiply_adds_per_second: 1e9 per second of audio; None: of an exported model, which is not counted.
        memory_mib: peak of a process that separates `MEMORY_SECONDS`, above one that imports torch; None: this system
            does not tell.
        license: of the weights; None: not known.
    """

    parameters: int | None
    giga_multiply_adds_per_second: float | None
    memory_mib: float | None
    license: str | None


@dataclass(frozen=True)
class Entry:
    """A model of the benchmark.

    Args:
        home: name of the corpus that its drops are from.
        evaluations: corpus -> folder of its evaluation.
        costs: None for a model that could not be measured.
        reason: why it could not be measured.
    """

    model: str
    home: str
    evaluations: Mapping[str, Path]
    costs: Costs | None
    reason: str = ""


def write_benchmark(entries: Sequence[Entry], corpora: Mapping[str, str], out: Path) -> Path:
    """Write `out/benchmark.json` and `out/benchmark.md`; return the page's path.

    Args:
        corpora: name -> manifest.
    """
    measured = [_measured(entry) for entry in entries]
    write_json(out / "benchmark.json", {"corpora": dict(corpora), "models": measured})
    header = ["model", *corpora, "M parameters", "GMAC/s", "MiB", "real-time factor", "license"]
    rows = [
        [
            code(row["model"]),
            *(_cell(row, name) for name in corpora),
            _number(row["parameters"], 1, 1e-6),
            _number(row["giga_multiply_adds_per_second"], 2),
            _number(row["memory_mib"], 0),
            _number(row["real_time_factor"], 3),
            escaped(row["license"] or "not known"),
        ]
        for row in measured
    ]
    failed = "".join(f"- {code(row['model'])}: {escaped(row['reason'])}\n" for row in measured if row["reason"])
    page = (
        "# Models on corpora\n\n"
        "SI-SDR improvement, dB, with half its 95 % interval. In brackets: how much less than on the model's home "
        "corpus (\u2302), with half the interval of a difference of independent means.\n\n"
        f"{markdown_table(header, rows, words=(0, len(header) - 1))}\n"
        f"{INTERVALS} GMAC/s: 1e9 multiply-adds a second of audio. MiB: peak of separating {MEMORY_SECONDS} s on the "
        "CPU, above what importing torch takes. Real-time factor: seconds of separation a second of audio, over all "
        "corpora, on the machine that each evaluation names. Each score is on the mixtures that the model can be "
        "scored on; `skipped` counts the others.\n"
        + (f"\n## Not measured\n\n{failed}" if failed else "")
        + "\n## Evaluations\n\n"
        + "".join(f"- {escaped(name)}: {code(file)}\n" for name, file in corpora.items())
        + f"\n{code(f'sepkit report {out}/MODEL/CORPUS ... --out FILE.html')} shows and plays them.\n"
    )
    return write_text(out / "benchmark.md", page)


def _measured(entry: Entry) -> dict[str, Any]:
    scores: dict[str, dict[str, Any]] = {}
    audio_seconds = separate_seconds = 0.0
    for name, folder in entry.evaluations.items():
        summary = read_json(folder / "summary.json", "run the benchmark again")
        score = summary["metrics"].get(_METRIC, {"mean": None, "ci95": None, "n": 0})
        scores[name] = {key: score[key] for key in ("mean", "ci95", "n")} | {"n_skipped": summary["n_skipped"]}
        if (factor := summary["real_time_factor"]) is not None:
            # Corpora count alike, however many mixtures they have.
            audio_seconds, separate_seconds = audio_seconds + 1, separate_seconds + factor
    home = scores.get(entry.home, {})
    for name, score in scores.items():
        known = name != entry.home and score["mean"] is not None and home.get("mean") is not None
        score["drop_db"] = home["mean"] - score["mean"] if known else None
        score["drop_half_interval_db"] = math.hypot(_half(home), _half(score)) if known else None
    costs = asdict(entry.costs or Costs(None, None, None, None))
    factor = separate_seconds / audio_seconds if audio_seconds else None
    return {
        "model": entry.model,
        "home": entry.home,
        "scores": scores,
        **costs,
        "real_time_factor": factor,
        "reason": entry.reason,
    }


def _half(score: Mapping[str, Any]) -> float:
    return (score["ci95"][1] - score["ci95"][0]) / 2 if score["ci95"] else 0.0


def _cell(row: Mapping[str, Any], name: str) -> str:
    score = row["scores"].get(name)
    if score is None or score["mean"] is None:
        return "-" if score is None else f"- ({score['n_skipped']} skipped)"
    text = f"{score['mean']:.2f} \u00b1 {_half(score):.2f}"
    if name == row["home"]:
        text += " \u2302"
    elif score["drop_db"] is not None:
        text += f" ({score['drop_db']:.2f} \u00b1 {score['drop_half_interval_db']:.2f})"
    return text + (f", {score['n_skipped']} skipped" if score["n_skipped"] else "")


def _number(value: float | None, digits: int, factor: float = 1) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"
