"""`sepkit evaluate`: measure a model, or a folder of estimates, on manifests; or who said what when in meetings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sepkit.cli._parser import DEVICE


def main(
    *,
    out: str,
    manifest: list[str] | None = None,
    model: str | None = None,
    estimates: str | None = None,
    metrics: list[str] | None = None,
    signal_std: float | None = None,
    asr_command: str | None = None,
    compare: str | None = None,
    count_speakers: bool = False,
    calibration: bool = False,
    separate_reports: bool = False,
    device: str = DEVICE,
    processes: int | None = None,
    depth_steps: list[int] | None = None,
    views: int | None = None,
    meeting: bool = False,
    reference: str | None = None,
    hypothesis: list[str] | None = None,
) -> Path | None:
    """Measure a model, or a folder of estimates, on manifests; the same command again continues.

    With --meeting, measure who spoke when (DER) and who said what (cpWER, tcpWER) in meetings.

    Args:
        out: Folder for utterances.csv and summary.json.
        manifest: Manifests (test.jsonl), one or more; the first is what the others' drop is measured from.
        model: MODEL to measure; default: the one that ships with sepkit.
        estimates: Instead of a model: folder of estimates, ID_s1.wav and so on, or s1/ID.wav and so on.
        metrics: si_sdr, sdr, snr, bss_eval (SIR, SAR), stoi, estoi, pesq, blr, words; by default
            si_sdr, sdr, stoi, pesq, blr where the training deviation is known and words with --asr-command, and what
            the model predicts of its SI-SDR.
        signal_std: Deviation that blr divides references by; by default the model's.
        asr_command: Prints the transcript of a wav ('CMD {wav}'), for word errors against the manifest's text; with
            --meeting it is given whole tracks, and tcpWER needs lines '[START --> END] TEXT'.
        compare: Folder of another evaluation of the same mixtures: adds paired differences from it.
        count_speakers: Measure as if their number were not known: only hypotheses that the model says are speakers
            are matched, sources that are missed and speakers too many are counted.
        calibration: Also tell how well the model predicts its own SI-SDR (a model that sepkit calibrate has fitted the
            predictor of): correlation, interval, mean SI-SDR of the best x %.
        separate_reports: An evaluation of its own for each manifest, in OUT/NAME for NAME.jsonl; no drops between them.
        processes: Processes that compute metrics beside the model; by default, for 100 mixtures or more, one for each
            CPU where the model leaves the CPUs alone, else half of that.
        depth_steps: Steps of a model of continuous depth; by default the model's own. With several, an evaluation each,
            in OUT/steps_N, and "by_depth_steps" in summary.json, whose other figures are those of the model's own (else
            of the middle one).
        views: How many views of a mixture estimates are means over; by default the model's own. Two also predict the
            SI-SDR of a model without a predictor.
        meeting: Measure --hypothesis against --reference; takes --out and --asr-command beside them.
        reference: With --meeting: who really speaks, as RTTM (FILE.rttm), for DER alone, or SegLST (FILE.json).
        hypothesis: With --meeting: RTTM or SegLST files, or audio files: the tracks of one meeting, one for each
            speaker.
    """
    from sepkit.errors import UserError

    if meeting or reference is not None or hypothesis is not None:
        from sepkit.evaluation.meeting import evaluate_meetings, meeting_lines

        if not meeting or reference is None or not hypothesis:
            raise UserError("--meeting, --reference and --hypothesis: found some of them, expected all three")
        others = {"manifest": manifest, "model": model, "estimates": estimates, "metrics": metrics, "compare": compare}
        if given := [name for name, value in others.items() if value]:
            raise UserError(f"--{given[0]}: does not go with --meeting")
        print("\n".join(meeting_lines(evaluate_meetings(reference, hypothesis, out, asr_command))))
        return Path(out)
    import shlex
    import sys

    from sepkit.cli._threads import limit_small_models_to_one_thread
    from sepkit.evaluation.evaluate import EvaluationOptions, System, evaluate, load_systems
    from sepkit.models.published.shipped import DEFAULT_MODEL

    if not manifest:
        raise UserError("--manifest: found none, expected one or more; or --meeting for who spoke when")
    if model is not None and estimates is not None:
        raise UserError("--model: found --estimates too; expected one of them")
    options = EvaluationOptions(
        metrics,
        signal_std,
        asr_command,
        count_speakers,
        calibration,
        compare,
        device,
        depth_steps or (),
        views,
        processes,
        shlex.join(["sepkit", *sys.argv[1:]]),
    )
    systems = load_systems(System(estimates=Path(estimates)) if estimates else model or DEFAULT_MODEL, options)
    if systems[0].separator is not None:
        limit_small_models_to_one_thread(systems[0].separator)
    failed = False
    for manifests, folder in _reports(manifest, Path(out)) if separate_reports else [(manifest, Path(out))]:
        summary = evaluate(systems, manifests, folder, options)
        if separate_reports:
            print(f"{manifests[0]}:")
        failed |= _report(summary, metrics, folder)
    if failed:
        print(out)
        raise SystemExit(1)
    return Path(out)


def _reports(manifests: list[str], out: Path) -> list[tuple[list[str], Path]]:
    from sepkit.errors import UserError

    folders = [out / Path(path).stem for path in manifests]
    for path, folder in zip(manifests, folders, strict=True):
        if folders.count(folder) > 1:
            raise UserError(
                f"--manifest {path}: another is called {folder.name} too; --separate-reports needs two names"
            )
    return [([path], folder) for path, folder in zip(manifests, folders, strict=True)]


def _report(summary: dict[str, Any], metrics: list[str] | None, folder: Path) -> bool:
    """Print an evaluation; return whether mixtures were skipped."""
    import sys

    from sepkit.evaluation.scoring import COLUMNS
    from sepkit.reporting.text import depth_lines, evaluation_lines, warning_lines

    asked = None if metrics is None else [column for name in metrics for column in COLUMNS[name]]
    print("\n".join(evaluation_lines(summary, asked)))
    by_steps = summary.get("by_depth_steps", {})
    if by_steps:
        print("\n".join(depth_lines(by_steps)))
    for line in warning_lines(summary):
        print(line, file=sys.stderr)
    if summary["n_skipped"]:
        print(f"{folder / 'summary.json'} lists them all", file=sys.stderr)
    return any(found["n_skipped"] for found in (summary, *by_steps.values()))
