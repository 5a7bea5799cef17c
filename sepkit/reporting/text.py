"""The printed output of an evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sepkit.evaluation.labels import NO_SCORES, label_of
from sepkit.reporting.compared_runs import digits_of
from sepkit.reporting.tables import Table, ends_of, number

# Printed only on request, or if they add to the others; summary.json has them all.
_ASIDE = frozenset({*NO_SCORES, "mcl_si_sdr_db", "blr_nats_per_sample"})


BY_MIXTURES = (
    "intervals draw mixtures, because manifests do not name the speakers or name too few: they say nothing of others"
)


def score_lines(summary: Mapping[str, Any], asked: Sequence[str] | None = None) -> list[str]:
    """Return the scores of summary.json as an aligned table: one row per metric with mean, 95 % interval and mixtures.

    Several manifests stand side by side, each with its mean, and the drop of SI-SDR improvement from the first.

    Args:
        summary: content of summary.json.
        asked: names of columns; None: the usual ones.
    """
    parts = summary.get("by_manifest") or []
    names = [
        name
        for name, score in summary["metrics"].items()
        if score["n"] and (name not in _ASIDE if asked is None else name in asked)
    ]
    if "si_sdr_db" in names and "mcl_si_sdr_db" in names:
        names.remove("mcl_si_sdr_db")
    rows = []
    for name in names:
        score, digits = summary["metrics"][name], digits_of(name)
        interval = "" if score["ci95"] is None else ends_of(score["ci95"], digits)
        row = [label_of(name), number(score["mean"], digits), interval, score["n"], score.get("n_speakers")]
        for part in parts:
            found = part["metrics"].get(name, {})
            drop = found.get("drop_db") if name == "si_sdri_db" else None
            mean = "" if found.get("mean") is None else number(found["mean"], digits)
            row.append(mean + (f" (drop {drop:.2f})" if mean and drop is not None else ""))
        rows.append(row)
    header = ["", "mean", "95 % interval", "mixtures", "speakers", *(part["manifest"] for part in parts)]
    return Table(header, rows).lines() if names else ["no mixture has a score"]


def depth_lines(by_steps: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return an aligned table of evaluations by number of steps: scores and real-time factor by number of steps."""
    names = [
        name
        for name in ("si_sdri_db", "si_sdr_db")
        if all(found["metrics"].get(name, {}).get("n") for found in by_steps.values())
    ]
    rows = []
    for steps, found in by_steps.items():
        factor = found["real_time_factor"]
        means = [number(found["metrics"][name]["mean"]) for name in names]
        rows.append([steps, *means, "" if factor is None else number(factor, 4)])
    return Table(["steps", *map(label_of, names), "real-time factor"], rows).lines()


def evaluation_lines(summary: Mapping[str, Any], asked: Sequence[str] | None = None) -> Iterator[str]:
    """Yield the lines that an evaluation prints from its summary.json.

    Args:
        summary: content of summary.json.
        asked: names of columns; None: the usual ones.
    """
    yield from score_lines(summary, asked)
    compared = summary.get("comparison", {}).get("metrics", {})
    for name, difference in compared.items():
        if difference["n"] and not (name == "mcl_si_sdr_db" and "si_sdr_db" in compared):
            digits, interval, other = digits_of(name), difference["ci95"], summary["comparison"]["other"]
            ends = f" ({ends_of(interval, digits, signed=True)})" if interval else ""
            yield f"{label_of(name)} over {other}: {number(difference['mean'], digits, signed=True)}{ends}"
    if summary["interval_unit"] == "mixture" and any(score["ci95"] for score in summary["metrics"].values()):
        yield BY_MIXTURES
    yield from matching_lines(summary.get("matching", {}))
    if "calibration" in summary:
        yield from _calibration_lines(summary["calibration"])
    if "wer" in summary:
        wer = summary["wer"]
        yield f"word error rate: {100 * wer['word_error_rate']:.1f} % ({wer['errors']} of {wer['words']} words)"


def warning_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about parts that an evaluation left out.

    Args:
        summary: Content of summary.json.
    """
    for name, reason in (summary.get("metrics_left_out") or {}).items():
        yield f"{name} is left out: {reason}"
    for name, failure in (summary.get("failures") or {}).items():
        yield f"{name} failed in {failure['n']} mixtures, {failure['first']['id']} since {failure['first']['reason']}"
    if count := summary.get("n_without_improvement"):
        yield f"{count} mixtures are one speaker alone: there is no improvement over them"
    if count := summary.get("n_silent_sources"):
        yield f"{count} silent sources have no score but attenuation_db"
    if skipped := summary.get("skipped"):
        first, total = skipped[0], len(skipped) + summary["n_utterances"]
        yield f"{len(skipped)} of {total} mixtures were skipped, {first['id']} since {first['reason']}"


def matching_lines(matching: Mapping[str, Any]) -> Iterator[str]:
    """Yield how hypotheses are used, and how often the number of speakers is right.

    Args:
        matching: "matching" of summary.json.
    """
    if matching.get("collapse_rate") and "hypothesis_usage" in matching:
        shares = " ".join(f"{100 * share:.0f}" for share in matching["hypothesis_usage"])
        never, sources = 100 * matching["collapse_rate"], matching.get("n_sources", 0)
        yield f"{never:.0f} % of the hypotheses never win; each wins {shares} % of the {sources} sources"
    if counted := matching.get("speaker_count"):
        rates = [100 * counted[name] for name in ("accuracy", "over_separation_rate", "under_separation_rate")]
        text = "number of speakers: right in {:.1f} %, too many in {:.1f} %, too few in {:.1f} %".format(*rates)
        yield f"{text} of all {counted['n']} mixtures; no number in {counted.get('n_without_number', 0)} of them"
        for true, found in counted["confusion"].items():
            yield f"  {true} speaking: " + ", ".join(f"{number} found {n} times" for number, n in found.items() if n)
    if "missed_sources" in matching:
        missed, extra = matching["missed_sources"], matching.get("extra_hypotheses", 0)
        yield f"scores are over matched pairs: {missed} sources missed, {extra} speakers too many"


def _calibration_lines(calibration: Mapping[str, Any], name: str = "") -> Iterator[str]:
    for unit in ("sources", "mixtures"):
        found = calibration[unit]
        value, ends = found["model"]["spearman"], found["model"]["spearman_ci95"]
        ranks = number(value) if ends is None else f"{number(value)} [{ends[0]:.2f}, {ends[1]:.2f}]"
        yield f"{name}{unit}, predicted SI-SDR: rank correlation {ranks}, RMSE {found['model']['rmse_db']:.2f} dB"
        if "interval" in found:
            inside, width = 100 * found["interval"]["coverage"], found["interval"]["mean_width_db"]
            yield (
                f"{name}{inside:.0f} % of {found['n']} {unit} are inside the predicted interval, "
                f"{width:.1f} dB wide on average"
            )
        curves = found["risk_coverage"]
        half = curves["percent"].index(50)
        yield (
            f"{name}{unit}: mean SI-SDR {curves['model_db'][half]:.2f} dB at 50 % coverage against "
            f"{curves['model_db'][-1]:.2f} dB at 100 % ({curves['best_possible_db'][half]:.2f} dB at best), "
            f"{found['n']} {unit}"
        )
    if calibration.get("n_without_prediction"):
        yield f"{name}{calibration['n_without_prediction']} sources have no prediction and are left out of this"
    for part in calibration.get("by_manifest", ()):
        yield from _calibration_lines(part, f"{part['manifest']}: ")
