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
        metrics: si_sdr, sdr, snr, bss_eval (SIR, SAR), stoi, estoi, pesq, pesq_nb, pesq_wb, blr, words, continuity
            (of long recordings: how often estimates change speakers); by default si_sdr, sdr, stoi, pesq, blr where
            the training deviation is known and words with --asr-command, and what the model predicts of its SI-SDR.
        signal_std: Deviation that blr divides references by; by default the model's.
        asr_command: Prints the transcript of a wav ('CMD {wav}'), for word errors against the manifest's text; with
            --meeting it is given whole tracks, and tcpWER needs lines '[START --> END] TEXT'.
        compare: Folder of another evaluation of the same mixtures: adds paired differences from it.
        count_speakers: Measure as if their number were not known: only hypotheses that the model says are speakers
            are matched, sources that are missed and speakers too many are counted.
        calibration: Also tell how well the model predicts its own SI-SDR (a model that sepkit calibrate has fitted the
            predictor of): correlation, interval, mean SI-SDR of the best x %; curves in calibration.csv and
            risk_coverage.csv.
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
    if meeting or reference is not None or hypothesis is not None:
        others = {"manifest": manifest, "model": model, "estimates": estimates, "metrics": metrics, "compare": compare}
        return _meeting(meeting, reference, hypothesis, out, asr_command, [name for name in others if others[name]])
    from sepkit.cli._ranks import share
    from sepkit.errors import UserError
    from sepkit.evaluation.comparison import write_by_depth
    from sepkit.evaluation.evaluate import evaluate
    from sepkit.reporting.text import depth_lines

    if not manifest:
        raise UserError("--manifest: found none, expected one or more; or --meeting for who spoke when")
    if estimates is None and model is None:
        from sepkit.models.published.shipped import DEFAULT_MODEL

        model = DEFAULT_MODEL
    elif estimates is not None:
        of_models = {"model": model, "count-speakers": count_speakers, "calibration": calibration}
        for name, value in (of_models | {"depth-steps": depth_steps, "views": views}).items():
            if value:
                raise UserError(f"--{name}: of a model, which has scores, predictions and steps; found --estimates too")
    rank, world_size = share()
    steps = list(dict.fromkeys(depth_steps or [None]))
    predict = calibration or metrics is None
    separators = [
        {} if model is None else _of_model(model, device, count_speakers, calibration, predict, n, views) for n in steps
    ]
    failed = False
    for manifests, folder in _reports(manifest, Path(out)) if separate_reports else [(manifest, Path(out))]:
        folders = {n: folder / f"steps_{n}" if len(steps) > 1 else folder for n in steps}
        for n, separator in zip(steps, separators, strict=True):
            of_model: dict[str, Any] = {name: value for name, value in separator.items() if name != "own_steps"}
            if signal_std is not None:
                of_model["signal_std"] = signal_std
            result = evaluate(
                manifests,
                folders[n],
                estimates=estimates,
                metrics=metrics,
                asr_command=asr_command,
                compare_with=compare,
                count_speakers=count_speakers,
                calibration=calibration,
                processes=_default_processes(manifests, of_model.get("device"), world_size)
                if processes is None
                else processes,
                rank=rank,
                world_size=world_size,
                command=_command_line(),
                **of_model,
            )
            if result is None:
                print(f"rank {rank} of {world_size} has done its share; the last one writes the results", flush=True)
                continue
            if separate_reports:
                print(f"{manifests[0]}:")
            if len(steps) > 1:
                print(f"{n} steps:")
            failed |= _report(result.summary, metrics, result.folder)
        if len(steps) > 1:
            of_steps = {n: path for n, path in folders.items() if n}
            if by_steps := write_by_depth(folder, of_steps, separators[0].get("own_steps")):
                print("\n".join(depth_lines(by_steps)))
    if failed:
        print(out)
        raise SystemExit(1)
    return Path(out)


def _meeting(
    meeting: bool,
    reference: str | None,
    hypothesis: list[str] | None,
    out: str,
    asr_command: str | None,
    others: list[str],
) -> Path:
    from sepkit.errors import UserError
    from sepkit.evaluation.meeting import evaluate_meetings, meeting_lines

    if not meeting or reference is None or not hypothesis:
        raise UserError("--meeting, --reference and --hypothesis: found some of them, expected all three")
    if others:
        raise UserError(f"--{others[0]}: does not go with --meeting")
    print("\n".join(meeting_lines(evaluate_meetings(reference, hypothesis, out, asr_command))))
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
    from sepkit.reporting.text import evaluation_lines, warning_lines

    asked = None if metrics is None else [column for name in metrics for column in COLUMNS[name]]
    print("\n".join(evaluation_lines(summary, asked)))
    for line in warning_lines(summary):
        print(line, file=sys.stderr)
    if summary["n_skipped"]:
        print(f"{folder / 'summary.json'} lists them all", file=sys.stderr)
    return bool(summary["n_skipped"])


def _of_model(
    model: str,
    device: str,
    count_speakers: bool,
    calibration: bool,
    predict: bool,
    depth_steps: int | None,
    views: int | None,
) -> dict[str, Any]:
    from functools import partial

    from sepkit.cli._ranks import device_of_rank
    from sepkit.cli._threads import keep_small_steps_together
    from sepkit.errors import UserError
    from sepkit.inference.loading import load_model
    from sepkit.inference.selection import check_speakers

    separator = load_model(model, device_of_rank(device), predict=predict, depth_steps=depth_steps, views=views)
    keep_small_steps_together(separator)
    # Where the number is known, the model's own hypotheses are measured, whether or not they look like one speaker.
    separator.sum_if_single = count_speakers
    check_speakers("auto" if count_speakers else None, separator.hypotheses, separator.counts_speakers)
    if calibration and separator.quality is None:
        raise UserError(
            f"--calibration: {model} predicts no SI-SDR; fit its predictor on dev mixtures first: "
            f"sepkit calibrate {model} --manifest dev.jsonl; or add --views 2, which predicts for any model"
        )
    # Rows from before rates and shares of alive dimensions were kept lack them, and are made again.
    rates = " rates, alive" * separator.runner.has_rates
    in_views = "" if views is None else f" {views} views"
    at_depth = "" if separator.depth_steps is None else f" {separator.depth_steps} steps"
    return {
        "separate": partial(separator.separate, evidence=True),
        "depth_steps": separator.depth_steps,
        "own_steps": separator.runner.trained_steps,
        "model": model,
        "device": str(separator.device),
        "fingerprint": f"{separator.fingerprint()} {separator.score_threshold}{rates}{at_depth}{in_views}",
        "signal_std": separator.runner.signal_std,
    }


def _command_line() -> str:
    import shlex
    import sys

    return shlex.join(["sepkit", *sys.argv[1:]])


def _default_processes(manifests: list[str], device: str | None, world_size: int) -> int:
    from sepkit.data.manifest import read_manifest
    from sepkit.parallel import available_processes

    cpus = max(1, available_processes() // world_size)
    if sum(len(read_manifest(path)) for path in manifests) < 100:
        return 0
    return cpus // 2 if device == "cpu" else cpus
