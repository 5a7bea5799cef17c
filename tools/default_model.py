"""Make the default model, which ships, from an experiment of egs/folder.

    python -m tools.default_model EXP --dev DEV.jsonl [--tests TEST.jsonl ...] [--views N]
        [--more NAME ...] [--out FOLDER]
    python -m tools.default_model --card SUMMARY ... [--out FOLDER]
    python -m tools.default_model --graph MODEL --out FOLDER

It writes the graph with weights in half precision, fits the predictor of SI-SDR on the development mixtures, evaluates
on each test set (EXP/evaluation/TEST), and writes the card from these measurements. All steps use the halved weights,
which users get. With --card only the card is written anew, from evaluations of what ships; so `sepkit evaluate` can
measure several test sets side by side after a call without --tests. With --graph only the graph and its description are
written, of a separator or of an encoder of voices.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from sepkit.cli.main import main as sepkit
from sepkit.errors import UserError
from sepkit.files import write_text
from sepkit.models.export.onnx_export import save_graph
from sepkit.models.published.card import model_card, read_summary
from sepkit.models.published.shipped import DEFAULT_MODEL, SHIPPED
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.models.storage.checkpoints import load_checkpoint
from sepkit.models.storage.folders import read_description

TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""License, corpora, training speech beside these, credit and limits, as the cards print them."""

LARGEST_BYTES = 15_000_000
"""Of what ships."""


def make(experiment: Path, dev: Path, tests: list[Path], out: Path, more: Sequence[str] = (), views: int = 2) -> Path:
    """Make the folder of the shipped model, with its card; change it only if every step succeeds.

    Args:
        experiment: of `sepkit train`.
        dev: manifest that the predictor is fitted on.
        tests: manifests; none: the card has no scores.
        out: the folder, whose content is replaced.
        more: names of training speech beside the corpora.
        views: of a recording, by default; 1 for a causal model, whose live sound has one.

    Raises:
        UserError: a command fails, after printing why, or the model is larger than `LARGEST_BYTES`.
    """
    loaded = load_checkpoint(experiment)
    loss = _loss(experiment, loaded.variational)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        folder = Path(scratch) / out.name
        size = save_graph(loaded, folder).num_bytes
        if size > LARGEST_BYTES:
            raise UserError(f"{experiment}: the graph takes {size} bytes, expected at most {LARGEST_BYTES}")
        _run("calibrate", folder, "--manifest", dev, "--device", "cpu", "--views", views)
        summaries = []
        for test in tests:
            evaluation = experiment / "evaluation" / test.stem
            # Weights and predictor may have changed since the last evaluation.
            shutil.rmtree(evaluation, ignore_errors=True)
            _run("evaluate", "--model", folder, "--manifest", test, "--out", evaluation, "--calibration")
            summaries.append(evaluation / "summary.json")
        _write_card(folder, summaries, out.name, loss, more)
        shutil.rmtree(out, ignore_errors=True)
        folder.rename(out)
    return out


def write_graph(model: Path, out: Path) -> Path:
    """Write graph and description of a saved model into a folder, and return that.

    Args:
        model: folder of a separator or of an encoder of voices; may be `out`.
    """
    is_encoder = read_description(model)["kind"] == SpeakerEncoder.kind
    save_graph(load_checkpoint(model, of=SpeakerEncoder) if is_encoder else load_checkpoint(model), out)
    return out


def renew_card(out: Path, summaries: list[Path]) -> Path:
    """Write the card of the shipped model anew, and return its path.

    Args:
        out: folder of the model.
        summaries: of evaluations of it, files or their folders.

    Raises:
        UserError: no card there, or a summary of another model.
    """
    card = out / "README.md"
    try:
        text = card.read_text(encoding="utf-8")
        (loss,) = re.findall(r"^\| Loss \| (.*) \|$", text, re.MULTILINE)
    except (OSError, ValueError) as error:
        raise UserError(f"{card}: found no card that names the loss ({error}); make the model anew") from error
    for path in summaries:
        measured = read_summary(path).get("model")
        if measured not in (out.name, str(out)):
            raise UserError(f"{path}: is of {measured}, expected of {out.name}; evaluate that")
    more = [name for name, speech in TEXTS["more"].items() if speech in text]
    return _write_card(out, summaries, out.name, loss, more)


def _write_card(folder: Path, summaries: list[Path], name: str, loss: str, more: Sequence[str]) -> Path:
    predictor = yaml.safe_load((folder / "quality.yaml").read_text(encoding="utf-8"))
    alone = TEXTS["one_speaker"]["counted" if predictor["single_speaker"] else "not_counted"]
    card = model_card(
        folder,
        license=TEXTS["license"],
        corpora=[*TEXTS["corpora"], *(TEXTS["more"][speech] for speech in more)],
        summaries=summaries,
        name=name,
        loss=loss,
        limits=TEXTS["limits"].format(alone=alone),
        credit=TEXTS["credit"],
    )
    return write_text(folder / "README.md", card)


def _loss(experiment: Path, variational: bool) -> str:
    path = experiment / "config.yaml"
    try:
        objective = yaml.safe_load(path.read_text(encoding="utf-8"))["objective"]
        rates = " and rates" if variational else ""
        silence = " and the silence term" if objective.get("silence", {}).get("weight") else ""
        return f"{objective['cost']['name']}{rates}{silence}, matched by {objective['assignment']['name']}"
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        expected = "expected the folder that `sepkit train` wrote"
        raise UserError(f"{path}: found no objective ({error}); {expected}") from error


def _run(*arguments: object) -> None:
    if sepkit([str(argument) for argument in arguments]) != 0:
        raise UserError(f"`sepkit {arguments[0]}` failed, see above; nothing was replaced")


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0, or 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="python -m tools.default_model", description="the model that ships")
    parser.add_argument("experiment", type=Path, nargs="?", help="folder that `sepkit train` wrote")
    parser.add_argument("--dev", type=Path, help="manifest to fit the predictor of SI-SDR on")
    parser.add_argument("--tests", type=Path, nargs="+", default=[], help="manifests for the scores of the card")
    parser.add_argument(
        "--card", type=Path, nargs="+", metavar="SUMMARY", help="evaluations to write only the card from"
    )
    parser.add_argument("--graph", type=Path, metavar="MODEL", help="folder to write only the graph of")
    parser.add_argument("--out", type=Path, default=SHIPPED / DEFAULT_MODEL, help="default: in the package")
    parser.add_argument("--views", type=int, default=2, help="of a recording by default; 1 for a causal model")
    parser.add_argument("--more", nargs="+", default=[], choices=list(TEXTS["more"]), help="further training speech")
    options = parser.parse_args(arguments)
    try:
        if options.card:
            print(renew_card(options.out, options.card))
        elif options.graph:
            print(write_graph(options.graph, options.out))
        elif options.experiment and options.dev:
            named = (options.experiment, options.dev, options.tests, options.out)
            print(make(*named, options.more, options.views))
        else:
            raise UserError("expected EXP and --dev, --card, or --graph")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
