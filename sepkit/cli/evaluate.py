"""`sepkit evaluate`: measure a model, or a folder of estimates, on manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def main(
    *,
    manifest: list[str],
    out: str,
    model: str | None = None,
    estimates: str | None = None,
    metrics: list[str] | None = None,
    device: str = "cpu",
    processes: int | None = None,
) -> Path:
    """Measure a model, or a folder of estimates, on manifests; the same command again continues.

    Args:
        manifest: Manifests (test.jsonl), one or more.
        out: Folder for utterances.csv and summary.json.
        model: MODEL to measure: a folder or file that `sepkit train` wrote, or asteroid:FILE.
        estimates: Instead of a model: folder of estimates, ID_s1.wav and so on, or s1/ID.wav and so on.
        metrics: si_sdr, sdr, stoi, pesq; the first two by default.
        device: Where the model computes: cpu, cuda, cuda:1 ..., auto.
        processes: Processes that compute metrics beside the model; by default half the CPUs for 100 mixtures or more.

    Raises:
        UserError: both or neither of a model and estimates, a bad manifest, model or folder.
    """
    import sys

    from sepkit.errors import UserError

    if (model is None) == (estimates is None):
        raise UserError("--model, --estimates: expected one of the two")

    from sepkit.evaluation.evaluate import evaluate

    options: dict[str, Any] = {"estimates": estimates} if model is None else _of_model(model, device)
    result = evaluate(
        manifest,
        out,
        metrics=metrics or ("si_sdr", "sdr"),
        processes=_default_processes(manifest) if processes is None else processes,
        **options,
    )
    summary = result.summary
    for name, score in summary["metrics"].items():
        if score["n"]:
            low, high = score["ci95"]
            print(f"{name}: {score['mean']:.2f} [{low:.2f}, {high:.2f}] over {score['n']} mixtures")
    if summary["n_silent_sources"]:
        print(f"{summary['n_silent_sources']} silent sources have no score and are left out", file=sys.stderr)
    if summary["n_skipped"]:
        found = f"{summary['n_skipped']} of {summary['n_skipped'] + summary['n_utterances']} mixtures were skipped"
        first = summary["skipped"][0]
        print(f"{found}, {first['id']} since {first['reason']}", file=sys.stderr)
        print(f"{result.folder / 'summary.json'} lists them all", file=sys.stderr)
        print(result.folder)
        raise SystemExit(1)
    return result.folder


def _of_model(model: str, device: str) -> dict[str, Any]:
    from sepkit.inference.separator import load_model

    separator = load_model(model, device)
    return {
        "separate": lambda mixture, sample_rate: separator.separate(mixture, sample_rate).estimates,
        "model": model,
        "device": str(separator.device),
        "fingerprint": separator.fingerprint(),
    }


def _default_processes(manifests: list[str]) -> int:
    import os

    from sepkit.data.manifest import read_manifest

    return (os.cpu_count() or 1) // 2 if sum(len(read_manifest(path)) for path in manifests) >= 100 else 0
