"""`sepkit evaluate`: measure a model, or a folder of estimates, on manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from sepkit.cli._parser import DEVICE


def main(
    *,
    manifest: list[str],
    out: str,
    model: str | None = None,
    estimates: str | None = None,
    metrics: list[str] | None = None,
    signal_std: float | None = None,
    asr_command: str | None = None,
    compare: str | None = None,
    speakers: Literal["auto"] | None = None,
    calibration: bool = False,
    apart: bool = False,
    device: str = DEVICE,
    processes: int | None = None,
    no_predict: bool = False,
    oracle: bool = False,
    depth_steps: list[int] | None = None,
) -> Path | None:
    """Measure a model, or a folder of estimates, on manifests; the same command again continues.

    Args:
        out: Folder for utterances.csv and summary.json.
        manifest: Manifests (test.jsonl), one or more; the first is what the others' drop is measured from.
        model: MODEL to measure; default: the one that ships with sepkit.
        estimates: Instead of a model: folder of estimates, ID_s1.wav and so on, or s1/ID.wav and so on.
        metrics: si_sdr, sdr, snr, bss_eval (SIR, SAR), stoi, estoi, pesq, pesq_nb, pesq_wb, blr, words; by default
            si_sdr, sdr, stoi, pesq, blr where the training deviation is known and words with --asr-command.
        signal_std: Deviation that blr divides references by; by default the model's.
        asr_command: Prints the transcript of a wav ('CMD {wav}'), for word errors against the manifest's text.
        compare: Folder of another evaluation of the same mixtures: adds paired differences from it.
        speakers: auto measures as if their number were not known: only hypotheses that the model says are speakers are
            matched, sources that are missed and speakers too many are counted; by default all hypotheses are matched.
        calibration: Also tell how well the model predicts its own SI-SDR (a model that sepkit calibrate has fitted the
            predictor of): correlation, interval, mean SI-SDR of the best x %; curves in calibration.csv and
            risk_coverage.csv.
        apart: An evaluation of its own for each manifest, in OUT/NAME for NAME.jsonl; no drops between them.
        processes: Processes that compute metrics beside the model; by default, for 100 mixtures or more, one for each
            CPU where the model leaves the CPUs alone, else half of that.
        no_predict: Leave out the prediction of SI-SDR; so does --metrics without --calibration.
        oracle: Instead of the model, measure the ceilings of its STFT: the SI-SDR improvement that ideal binary, ratio,
            Wiener, phase-sensitive and complex masks reach; oracle.json.
        depth_steps: Steps of a model of continuous depth; by default the model's own. With several, an evaluation each,
            in OUT/steps_N, and "by_depth_steps" in summary.json, whose other figures are those of the model's own (else
            of the middle one).
    """
    from sepkit.errors import UserError

    if model is not None and estimates is not None:
        raise UserError("--model, --estimates: expected one of the two")
    if model is None and estimates is None:
        from sepkit.models.published.shipped import default_model

        model = default_model()
    if calibration and no_predict:
        raise UserError("--no-predict: leaves nothing for --calibration to compare; give one of them")
    if oracle:
        return _oracle(model, manifest, Path(out))
    if speakers is not None and model is None:
        raise UserError(f"--speakers {speakers}: estimates in files have no scores to choose by; give --model")
    if calibration and model is None:
        raise UserError("--calibration: estimates in files have no prediction to compare with; give --model")

    from sepkit.cli._ranks import share
    from sepkit.evaluation.evaluate import evaluate

    rank, world_size = share()
    predict = calibration or (metrics is None and not no_predict)
    if depth_steps is not None and model is None:
        raise UserError("--depth-steps: estimates in files have no steps; give --model")
    wanted = list(dict.fromkeys(depth_steps or [None]))
    separators = (
        {} if model is None else {s: _of_model(model, device, speakers, calibration, predict, s) for s in wanted}
    )
    own_steps = None if model is None else separators[wanted[0]].pop("own_steps")
    failed = False
    for manifests, of_manifests in _apart(manifest, Path(out)) if apart else [(manifest, Path(out))]:
        folders = {steps: of_manifests / f"steps_{steps}" if len(wanted) > 1 else of_manifests for steps in wanted}
        for steps, folder in folders.items():
            of_model = dict(separators.get(steps, {}))
            measured_std = of_model.pop("signal_std", None)
            of_model.pop("own_steps", None)
            result = evaluate(
                manifests,
                folder,
                estimates=estimates,
                metrics=metrics,
                signal_std=measured_std if signal_std is None else signal_std,
                asr_command=asr_command,
                compare_with=compare,
                speakers=speakers,
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
                print(
                    f"rank {rank} of {world_size} has done its share; the last to finish writes the results", flush=True
                )
                continue
            if apart:
                print(f"{manifests[0]}:")
            if len(wanted) > 1:
                print(f"{steps} steps:")
            _report(result.summary, metrics)
            if result.summary["n_skipped"]:
                _report_skipped(result.summary, result.folder)
                failed = True
        if len(wanted) > 1:
            from sepkit.evaluation.by_depth import write_by_depth

            for line in write_by_depth(
                of_manifests, {steps: path for steps, path in folders.items() if steps}, own_steps
            ):
                print(line)
    if failed:
        print(out)
        raise SystemExit(1)
    return Path(out)


def _apart(manifests: list[str], out: Path) -> list[tuple[list[str], Path]]:
    from sepkit.errors import UserError

    folders = [out / Path(path).stem for path in manifests]
    for path, folder in zip(manifests, folders, strict=True):
        if folders.count(folder) > 1:
            raise UserError(
                f"--manifest {path}: another has the name {folder.name} too; with --apart each needs its own"
            )
    return [([path], folder) for path, folder in zip(manifests, folders, strict=True)]


def _oracle(model: str | None, manifests: list[str], out: Path) -> Path:
    from sepkit.errors import UserError
    from sepkit.evaluation.oracle import measure_oracle
    from sepkit.models import load_pretrained

    if model is None:
        raise UserError("--oracle: estimates in files have no filterbank; give --model")
    found = measure_oracle(load_pretrained(model), manifests, out)
    for row in found["masks"]:
        low, high = row["ci95"]
        ceiling = f"{row['si_sdri_db']:.2f} dB [{low:.2f}, {high:.2f}] over {row['n']} mixtures"
        print(f"{row['manifest']}: {row['mask']} {ceiling}; {row['what']}")
    return out


def _report(summary: dict[str, Any], metrics: list[str] | None) -> None:
    import sys

    from sepkit.evaluation.scoring import COLUMNS
    from sepkit.reporting.plain import score_lines

    asked = None if metrics is None else [column for name in metrics for column in COLUMNS[name]]
    for line in score_lines(summary, asked):
        print(line)
    for name, difference in summary.get("comparison", {}).get("metrics", {}).items():
        if difference["n"]:
            low, high = difference["ci95"]
            print(f"{name} over {summary['comparison']['other']}: {difference['mean']:+.2f} [{low:+.2f}, {high:+.2f}]")
    _report_matching(summary.get("matching", {}))
    _report_calibration(summary.get("calibration", {}))
    if "wer" in summary:
        wer = summary["wer"]
        print(f"word error rate: {100 * wer['word_error_rate']:.1f} % ({wer['errors']} of {wer['words']} words)")
    for name, reason in summary["metrics_left_out"].items():
        print(f"{name} is left out: {reason}", file=sys.stderr)
    for name, failure in summary.get("failures", {}).items():
        first = failure["first"]
        print(f"{name} failed in {failure['n']} mixtures, {first['id']} since {first['reason']}", file=sys.stderr)
    if summary["n_without_improvement"]:
        count = summary["n_without_improvement"]
        print(f"{count} mixtures are one speaker alone: there is no improvement over them", file=sys.stderr)
    if summary["n_silent_sources"]:
        print(f"{summary['n_silent_sources']} silent sources have no score but attenuation_db", file=sys.stderr)


def _report_matching(matching: dict[str, Any]) -> None:
    if not matching:
        return
    if matching["collapse_rate"]:
        shares = " ".join(f"{100 * share:.0f}" for share in matching["hypothesis_usage"])
        never = 100 * matching["collapse_rate"]
        print(f"{never:.0f} % of the hypotheses never win; sources won by each: {shares} %")
    counted = matching.get("speaker_count")
    if counted:
        rates = [100 * counted[f"{name}_separation_rate"] for name in ("over", "under")]
        share = 100 * counted["accuracy"]
        print(f"number of speakers: right {share:.1f} %, too many {rates[0]:.1f} %, too few {rates[1]:.1f} %")
        for true, found in counted["confusion"].items():
            print(f"  {true} speaking: " + ", ".join(f"{number} found {n} times" for number, n in found.items() if n))
    if "missed_sources" in matching:
        missed, extra = matching["missed_sources"], matching["extra_hypotheses"]
        print(f"scores are over matched pairs: {missed} sources missed, {extra} speakers too many")


_FLAGS = ("flagged", "false_alarms")


def _report_calibration(calibration: dict[str, Any], name: str = "") -> None:
    for level in ("sources", "mixtures") if calibration else ():
        found = calibration[level]
        for who, what in (("model", "predicted SI-SDR"), ("baseline", "baseline from the mixture alone")):
            if who in found:
                fit, prefix = found[who], f"{name}{level}, {what}"
                ranks, half = (_with_ends(fit, key) for key in ("spearman", "gain_at_50"))
                print(
                    f"{prefix}: rank correlation {ranks}, RMSE {fit['rmse_db']:.2f} dB, best half {half} dB above all"
                )
        if "interval" in found:
            inside, width = 100 * found["interval"]["coverage"], found["interval"]["mean_width_db"]
            print(f"{name}{level}: {inside:.0f} % are inside the predicted interval, {width:.1f} dB wide on average")
        curves = found["risk_coverage"]
        half = curves["percent"].index(50)
        best = f"{curves['best_possible_db'][half]:.2f} dB at best"
        model = f"{curves['model_db'][half]:.2f} dB at 50 % coverage against {curves['model_db'][-1]:.2f} dB at 100 %"
        print(f"{name}{level}: mean SI-SDR {model} ({best}), {found['n']} {level}")
    for voices, interval in calibration.get("by_voices", {}).items():
        inside, width = 100 * interval["coverage"], interval["mean_width_db"]
        print(f"{name}{voices} voices: {inside:.0f} % of {interval['n']} sources are inside, {width:.1f} dB wide")
    if (flags := calibration.get("not_separated")) is not None:
        found, alarms = ("none" if flags[key] is None else f"{100 * flags[key]:.0f} %" for key in _FLAGS)
        print(
            f"{name}{flags['n_below']} of {flags['n']} mixtures are below {flags['limit_db']:g} dB SI-SDRi: {found} of "
            f"them are flagged as likely not separated, {alarms} of the others"
        )
    if calibration.get("n_without_prediction"):
        print(f"{name}{calibration['n_without_prediction']} sources have no prediction and are left out of this")
    for part in calibration.get("by_manifest", ()):
        _report_calibration(part, f"{part['manifest']}: ")


def _with_ends(fit: dict[str, Any], key: str) -> str:
    value = fit.get(key, fit.get(f"{key}_db"))
    ends = fit[f"{key}_ci95"]
    if value is None:
        return "not defined"
    return f"{value:.2f}" if ends is None else f"{value:.2f} [{ends[0]:.2f}, {ends[1]:.2f}]"


def _report_skipped(summary: dict[str, Any], folder: Path) -> None:
    import sys

    found = f"{summary['n_skipped']} of {summary['n_skipped'] + summary['n_utterances']} mixtures were skipped"
    first = summary["skipped"][0]
    print(f"{found}, {first['id']} since {first['reason']}", file=sys.stderr)
    print(f"{folder / 'summary.json'} lists them all", file=sys.stderr)


def _of_model(
    model: str,
    device: str,
    speakers: Literal["auto"] | None,
    calibration: bool,
    predict: bool,
    depth_steps: int | None,
) -> dict[str, Any]:
    from functools import partial

    from sepkit.cli._ranks import device_of_rank
    from sepkit.cli._threads import keep_small_steps_together
    from sepkit.errors import UserError
    from sepkit.inference.loading import load_model
    from sepkit.inference.selection import check_speakers

    separator = load_model(model, device_of_rank(device), predict=predict, depth_steps=depth_steps)
    keep_small_steps_together(separator)
    check_speakers(speakers, separator.model, separator.counts_speakers)
    if calibration and separator.quality is None:
        raise UserError(
            f"--calibration: {model} predicts no SI-SDR; fit its predictor on dev mixtures first: "
            f"sepkit calibrate {model} --manifest dev.jsonl"
        )
    # Rows from before rates and shares of alive dimensions were kept lack them, and are made again.
    rates = " rates, alive" * (separator.model.encoding_prior is not None or separator.model.mask_prior is not None)
    at_depth = "" if separator.depth_steps is None else f" {separator.depth_steps} steps"
    return {
        "separate": partial(separator.separate, evidence=True),
        "depth_steps": separator.depth_steps,
        "own_steps": getattr(separator.model.masker, "trained_steps", None),
        "model": model,
        "device": str(separator.device),
        "fingerprint": f"{separator.fingerprint()} {separator.score_threshold}{rates}{at_depth}",
        "signal_std": float(separator.model.signal_std),
    }


def _command_line() -> str:
    import shlex
    import sys

    return shlex.join(["sepkit", *sys.argv[1:]])


def _default_processes(manifests: list[str], device: str | None, world_size: int) -> int:
    import os

    from sepkit.data.manifest import read_manifest

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpus = max(1, cpus // world_size)
    if sum(len(read_manifest(path)) for path in manifests) < 100:
        return 0
    return cpus // 2 if device == "cpu" else cpus
