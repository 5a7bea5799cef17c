"""Measure the models that ship on the test sets of egs/folder, and print the figures where they are published.

    python -m tools.shipped_scores data/test_librispeech.jsonl data/test_speechocean762.jsonl --out build/shipped

It evaluates each model on each manifest (OUT/MODEL/TEST; the same command again continues, and costs seconds if weights
and manifests are the same), and writes what it finds into the card beside the weights, into README.md and into
egs/folder/RESULTS.md. Everything else on these pages stays as it is.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sepkit.errors import UserError
from sepkit.files import read_json, write_text
from sepkit.models.published.shipped import SHIPPED, shipped_models
from tools.default_model import renew_card
from tools.sepkit_command import run

REPOSITORY = Path(__file__).resolve().parent.parent
CORPORA = {"test_librispeech": "LibriSpeech", "test_speechocean762": "speechocean762"}
"""Name of a manifest -> what the pages call it."""
README_SCORE = "SI-SDRi, dB (95 % interval over speakers)"


def measure(manifests: Sequence[Path], out: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return model -> corpus -> summary.json, and renew the models' cards.

    Args:
        manifests: one for each of `CORPORA`.
        out: folder for the evaluations.

    Raises:
        UserError: other manifests.
    """
    if [path.stem for path in manifests] != list(CORPORA):
        named = ", ".join(path.stem for path in manifests)
        raise UserError(f"manifests: found {named}, expected {', '.join(CORPORA)}, in this order")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for model in shipped_models():
        folders = [out / model / name for name in CORPORA]
        words = ["--model", model, "--manifest", *manifests, "--out", out / model]
        run("evaluate", *words, "--calibration", "--separate-reports")
        renew_card(SHIPPED / model, folders)
        summaries = [read_json(folder / "summary.json", "evaluate again") for folder in folders]
        found[model] = dict(zip(CORPORA.values(), summaries, strict=True))
    return found


def set_cells(text: str, row: str, cells: Mapping[str, str]) -> str:
    """Return a page with new cells in a row of a Markdown table.

    Args:
        text: of the page.
        row: how the first cell of the row begins, without marks of emphasis.
        cells: heading of a column -> the new cell.

    Raises:
        UserError: no table has such a row and such columns, or more than one.
    """
    lines, header, places = text.split("\n"), [], []
    for place, line in enumerate(lines):
        words = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = words
        elif words[0].strip("*").startswith(row) and set(cells) <= set(header):
            lines[place] = f"| {' | '.join({**dict(zip(header, words, strict=True)), **cells}.values())} |"
            places.append(place)
    if len(places) != 1:
        raise UserError(f"{row}: found {len(places)} rows with {', '.join(cells)}, expected one")
    return "\n".join(lines)


def publish(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Write the figures into README.md and egs/folder/RESULTS.md.

    Args:
        found: model -> corpus -> summary.json.
    """
    readme, results = REPOSITORY / "README.md", REPOSITORY / "egs" / "folder" / "RESULTS.md"
    pages = {path: path.read_text(encoding="utf-8") for path in (readme, results)}
    for model, summaries in found.items():
        for corpus, summary in summaries.items():
            row, score = f"`{model}`, {corpus}", _interval(summary["metrics"]["si_sdri_db"])
            pages[readme] = set_cells(pages[readme], row, {README_SCORE: score})
            pages[results] = set_cells(pages[results], row, _quality(summary["calibration"]))
            pages[results] = set_cells(pages[results], row, _by_sex(summary["by"]["sex_pair"]))
        pages[results] = set_cells(pages[results], f"`{model}`", _scores(summaries))
    for path, text in pages.items():
        write_text(path, text)


def _scores(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the cells of the table of systems."""
    metrics = [summary["metrics"] for summary in summaries.values()]
    both = zip(summaries, metrics, strict=True)
    return {f"SI-SDRi, dB: {corpus}": _interval(scores["si_sdri_db"]) for corpus, scores in both} | {
        "STOI": " / ".join(f"{scores['stoi']['mean']:.2f}" for scores in metrics),
        "PESQ (nb)": " / ".join(f"{scores['pesq']['mean']:.2f}" for scores in metrics),
    }


def _by_sex(pairs: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of the table by sex."""
    names = {"two women, dB": "F-F", "two men, dB": "M-M", "one of each, dB": "F-M"}
    return {name: f"{pairs[sexes]['si_sdri_db']['mean']:.2f}" for name, sexes in names.items()}


def _quality(calibration: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of the table of predicted quality."""
    model = calibration["sources"]["model"]
    low, high = model["spearman_ci95"]
    return {
        "rank correlation": f"{model['spearman']:.2f} ({low:.2f} to {high:.2f})",
        "error, dB": f"{model['rmse_db']:.2f}",
        "in the 90 % interval": f"{100 * calibration['sources']['interval']['coverage']:.0f} %",
    }


def _interval(score: Mapping[str, Any]) -> str:
    return f"{score['mean']:.2f} ({score['ci95'][0]:.2f} to {score['ci95'][1]:.2f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0, or 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="python -m tools.shipped_scores", description="scores of what ships")
    parser.add_argument("manifests", type=Path, nargs="+", help="the recipe's test sets")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "shipped", help="folder of the evaluations")
    options = parser.parse_args(arguments)
    try:
        publish(measure(options.manifests, options.out))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
