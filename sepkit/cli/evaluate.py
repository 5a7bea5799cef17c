"""`sepkit evaluate`: measure a model, or a folder of estimates, on manifests; or who said what when in meetings."""

import shlex
import sys
from pathlib import Path
from typing import Any

from sepkit.errors import UserError
from sepkit.evaluation.options import EvaluationOptions


def main(
    *,
    out: str,
    manifest: list[str] | None = None,
    model: str | None = None,
    estimates: str | None = None,
    options: EvaluationOptions,
    separate_reports: bool = False,
    meeting: bool = False,
    reference: str | None = None,
    hypothesis: list[str] | None = None,
) -> Path | None:
    """Measure a model, or a folder of estimates, on manifests; the same command again continues.

    With --meeting, measure who spoke when (DER) and who said what (cpWER, tcpWER) in meetings.

    Example:
        sepkit evaluate --manifest data/mini/test.jsonl --out evaluation

    Args:
        out: Folder for utterances.csv and summary.json.
        manifest: Manifests (test.jsonl), one or more; drops are measured from the first.
        model: MODEL to measure (default: the one that ships with sepkit).
        estimates: Folder of estimates to measure instead of a model: ID_s1.wav and so on, or s1/ID.wav and so on.
        options: What to measure, and how.
        separate_reports: Write a separate evaluation for each manifest, in DIR/NAME for NAME.jsonl, without drops
            between them.
        meeting: Measure --hypothesis against --reference; only --out and --asr-command go with them.
        reference: Reference of --meeting: who spoke when as RTTM (FILE.rttm, for DER only) or SegLST (FILE.json).
        hypothesis: Hypothesis of --meeting: RTTM or SegLST files, or audio files: the tracks of one meeting, one for
            each speaker.
    """
    needed = {"--meeting": meeting, "--reference": reference, "--hypothesis": hypothesis}
    if any(needed.values()):
        from sepkit.evaluation.meeting import evaluate_meetings, meeting_lines

        if missing := [option for option, value in needed.items() if not value]:
            raise UserError(f"{' and '.join(missing)}: missing; --meeting needs --reference and --hypothesis")
        assert reference is not None and hypothesis is not None
        others = {"manifest": manifest, "model": model, "estimates": estimates}
        others |= {"metrics": options.metrics, "compare": options.compare}
        if given := [name for name, value in others.items() if value]:
            raise UserError(f"--{given[0]}: does not go with --meeting")
        print("\n".join(meeting_lines(evaluate_meetings(reference, hypothesis, out, options.asr_command))))
        return Path(out)
    from sepkit.cli._threads import limit_small_models_to_one_thread
    from sepkit.evaluation.evaluate import System, evaluate, load_systems
    from sepkit.models.published.shipped import DEFAULT_MODEL

    if not manifest:
        raise UserError("--manifest: found none, expected one or more; or --meeting for who spoke when")
    if model is not None and estimates is not None:
        raise UserError("--model: found --estimates too; expected one of them")
    systems = load_systems(System(estimates=Path(estimates)) if estimates else model or DEFAULT_MODEL, options)
    if systems[0].separator is not None:
        limit_small_models_to_one_thread(systems[0].separator)
    failed = False
    for manifests, folder in _reports(manifest, Path(out)) if separate_reports else [(manifest, Path(out))]:
        summary = evaluate(systems, manifests, folder, options, shlex.join(["sepkit", *sys.argv[1:]]))
        if separate_reports:
            print(f"{manifests[0]}:")
        failed |= _report(summary, options.metrics, folder)
    if failed:
        print(out)
        raise SystemExit(1)
    return Path(out)


def _reports(manifests: list[str], out: Path) -> list[tuple[list[str], Path]]:
    folders = [out / Path(path).stem for path in manifests]
    for path, folder in zip(manifests, folders, strict=True):
        if folders.count(folder) > 1:
            raise UserError(
                f"--manifest {path}: another is called {folder.name} too; --separate-reports needs two names"
            )
    return [([path], folder) for path, folder in zip(manifests, folders, strict=True)]


def _report(summary: dict[str, Any], metrics: list[str] | None, folder: Path) -> bool:
    """Print an evaluation; return whether mixtures were skipped."""
    from sepkit.evaluation.labels import BY_DEPTH
    from sepkit.evaluation.scoring import COLUMNS
    from sepkit.reporting.text import depth_lines, evaluation_lines, warning_lines

    asked = None if metrics is None else [column for name in metrics for column in COLUMNS[name]]
    print("\n".join(evaluation_lines(summary, asked)))
    by_steps = summary.get(BY_DEPTH, {})
    if by_steps:
        print("\n".join(depth_lines(by_steps)))
    for line in warning_lines(summary):
        print(line, file=sys.stderr)
    if summary["n_skipped"]:
        print(f"{folder / 'summary.json'} lists them all", file=sys.stderr)
    return any(found["n_skipped"] for found in (summary, *by_steps.values()))
