"""Write tools/bench/README.md: tables of results/*.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepkit.files import write_text

FOLDER = Path(__file__).parent

INTRODUCTION = """# Side by side with other toolkits

This page is written by `make bench` (`python -m tools.bench --table` writes it anew) from `tools/bench/results/`;
changes by hand are lost. `make bench LINES="separate metrics"` runs some of the lines only.

A ratio says how many times faster sepkit is than the peer: the median over turns in which both ran one after the other
on the same input, and in brackets the least and the largest of a turn. Where the processor was shared with other
programs the range is wide. Differences are those of outputs: sepkit's, then the peer's where both are compared with a
computation in float64. Memory is that of a process at its peak, above what `import torch` takes unless the line says
otherwise. What was asked for and not reached says **no**. "Before" is the same row at the last commit at which the line
ran on the same machine; where the whole range has fallen, it says so.
"""

NOTES = {
    "accelerator": "Training on a GPU, against the peer at the same precision on the same batch.",
    "assignment": "Cost and optimal matching of a batch of 8 mixtures of 4 s, estimates at 6 dB SI-SDR. "
    "Differences are of the loss, in dB, from a computation pair by pair in float64.",
    "data": "Making and reading of mixtures. Ratios are those of the first to the second; of real time, seconds of "
    "mixture for each second of one core.",
    "evaluate": "`sepkit evaluate` with SI-SDR, SDR, STOI and PESQ, all processors, against others on the same files.",
    "metrics": "Scores of one mixture of two speakers on one thread, by the processor's time.",
    "scaling": "Exponents of power laws fitted to times on one thread and to peak memory.",
    "separate": "Separation with the same weights on the same mixture. The share of the sgemm peak counts the "
    "multiply-adds of the model as its authors wrote it.",
    "shipped": "The model that ships against its own graph in other runtimes, the cost of what it tells beside "
    "estimates, and the gain of batches. Differences are between both sides.",
    "steps": "Where the processor's time of a training step goes, for each masker: a batch of 2 x 2 s at 8 kHz on one "
    "thread, deterministic masks, float32. Blocks have full width, but there are fewer than in papers. Adam is fused, "
    "on every device.",
    "train": "A training step on a batch of 4 x 3 s at 8 kHz, float32. Differences are of losses, in dB, before and "
    "after a step; memory is above that of a process after its imports.",
    "weak_scaling": "Training by several processes, each with a batch of its own.",
}
"""Line -> what it is."""

NOT_RUN = "This line was not run."
OTHER_VERSION = "Its results are of another version of this tool; run the line again."
OTHER_MACHINE = "The newest lines were measured on another machine: {}."

VERSIONS = {"assignment": 2, "steps": 1}
"""Of lines that keep what they have measured; a line whose measurements change is entered here with 2. The page marks
results of another version."""

HISTORY = "history.jsonl"
"""Beside the results: the ratios of every line at each commit and machine at which it ran."""

Cells = dict[str, str]


@dataclass
class Section:
    """The part of the page about a line: cells by column, and sentences after the table."""

    rows: list[Cells]
    remarks: list[str]


def write_table(lines: Iterable[str], results: Path = FOLDER / "results", path: Path = FOLDER / "README.md") -> Path:
    """Write the page on `lines`, in their order, and return its path; `results` is the folder of LINE.json."""
    newest = _newest_machine(lines, results)
    parts = [INTRODUCTION, *(_section(line, results / f"{line}.json", newest) for line in sorted(lines))]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def keep_history(line: str, result: Mapping[str, Any], results: Path) -> None:
    """Write the ratios of a line to the history, in place of those of the same commit and machine.

    Args:
        line: its name.
        result: of it; one without ratios has no history.
        results: the folder of LINE.json.
    """
    ratios = {_name(row): row["ratio"] for row in result.get("rows", []) if isinstance(row, dict) and row.get("ratio")}
    here = result.get("environment", {})
    if not ratios or not here.get("commit"):
        return
    entry = {"line": line, **{key: here[key] for key in ("commit", "machine", "measured_on")}, "ratios": ratios}
    others = [one for one in _history(results) if not _is_of(one, line, entry)]
    write_text(results / HISTORY, "".join(f"{json.dumps(one)}\n" for one in [*others, entry]))


def _history(results: Path) -> list[dict[str, Any]]:
    path = results / HISTORY
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _is_of(entry: Mapping[str, Any], line: str, where: Mapping[str, Any]) -> bool:
    return entry["line"] == line and all(entry[key] == where.get(key) for key in ("commit", "machine"))


def _name(row: Mapping[str, Any]) -> str:
    return f"{row.get('what') or row.get('model')}, {row.get('peer')}, {row.get('threads')}"


def _before(line: str, here: Mapping[str, Any], results: Path) -> dict[str, Any]:
    """Return the ratios of a line when it last ran on this machine at another commit, by the names of rows."""
    of_line = [one for one in _history(results) if one["line"] == line and one["machine"] == here.get("machine")]
    earlier = [one for one in of_line if here.get("commit") and one["commit"] != here["commit"]]
    return earlier[-1]["ratios"] if earlier else {}


def _newest_machine(lines: Iterable[str], results: Path) -> str | None:
    """Return the machine of the line that was measured last."""
    found = []
    for line in lines:
        path = results / f"{line}.json"
        here = json.loads(path.read_text(encoding="utf-8")).get("environment", {}) if path.exists() else {}
        if here.get("machine") and here.get("measured_on"):
            found.append((here["measured_on"], here["machine"]))
    return max(found)[1] if found else None


def _section(line: str, path: Path, newest: str | None = None) -> str:
    head = f"## {line}\n\n{NOTES[line]}\n"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{head}\n{NOT_RUN}\n"
    for key, words in (("failed", "It failed"), ("left_out", "It was left out")):
        if key in result:
            return f"{head}\n{words}: {result[key]}\n"
    try:
        if result.get("version", 1) != VERSIONS.get(line, 1):
            return f"{head}\n{OTHER_VERSION}\n"
        section = _READERS.get(line, _of_pairs)(result)
        if line not in _READERS:
            _compare(section.rows, result, _before(line, result.get("environment", {}), path.parent))
        machine = result.get("environment", {}).get("machine")
        if newest is not None and machine != newest:
            section.remarks.append(OTHER_MACHINE.format(newest))
        paragraphs = [head, _markdown(section.rows), *(f"{remark}\n" for remark in section.remarks)]
    except (KeyError, TypeError, AttributeError):
        return f"{head}\n{OTHER_VERSION}\n"
    return "\n".join([*paragraphs, _environment(result.get("environment", {}))])


def _compare(rows: list[Cells], result: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Add to rows how many times faster they were before; those whose whole range has fallen say so."""
    for cells, row in zip(rows, result["rows"], strict=False):
        earlier, now = before.get(_name(row)), row.get("ratio")
        if earlier and now:
            slower = now["range"][1] < earlier["range"][0]
            cells["before"] = f"{ratio_cell(earlier)}{', **slower now**' if slower else ''}"


def _markdown(rows: list[Cells]) -> str:
    """Return a table of the columns that any row fills, in the order in which they come up."""
    columns = list(dict.fromkeys(column for row in rows for column, cell in row.items() if cell))
    lines = [columns, ["---"] * len(columns), *([row.get(column, "") for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) if rows else ""


def _environment(environment: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items())
    known = {
        "machine": "{}",
        "device": "{}",
        "processors": "{} processors",
        "system": "{}",
        "python": "Python {}",
        "commit": "commit {}",
        "measured_on": "measured on {}",
    }
    words = [text.format(environment[key]) for key, text in known.items() if environment.get(key)]
    return f"{'; '.join([*words[:-1], versions, *words[-1:]])}.\n"


# ------------------------------------------------------------------------------------------------------------- cells


def ratio_cell(ratio: Mapping[str, Any] | None) -> str:
    """Format median and range."""
    return "" if ratio is None else f"{ratio['median']:.2f} [{ratio['range'][0]:.2f}, {ratio['range'][1]:.2f}]"


def met_cell(checks: Iterable[bool]) -> str:
    """Return whether all targets are reached; "" without targets."""
    found = list(checks)
    return "" if not found else "yes" if all(found) else "**no**"


def _both(values: Mapping[str, float] | None, form: str) -> str:
    return "" if values is None else " / ".join(form.format(values[who]) for who in ("ours", "theirs") if who in values)


def _of_pairs(result: Mapping[str, Any]) -> Section:
    """Return the section of a line whose rows are pairs: ratio, least_ratio, and all else that is known of a pair."""
    rows = [_pair(row) for row in result["rows"]]
    remarks = []
    if result.get("peaks"):
        peaks = (
            f"{peak['gflops']:.0f} GFLOP/s and {peak['gigabytes_per_second']:.1f} GB/s on {count} thread(s)"
            for count, peak in result["peaks"].items()
        )
        remarks.append(f"Measured peaks: {', '.join(peaks)}.")
    inputs = sorted({row["input"] for row in result["rows"] if "input" in row} | {result.get("input", "")} - {""})
    if inputs:
        remarks.append(f"Input: {', '.join(inputs)}.")
    if "quality" in result:
        rows.append(_quality(result["quality"]))
    return Section(rows, remarks)


def _pair(row: Mapping[str, Any]) -> Cells:
    cells = {
        "what": row.get("what") or row["model"],
        "against": row.get("peer", ""),
        "threads": str(row.get("threads", "")),
    }
    if "left_out" in row:
        return cells | {"times faster": f"left out: {row['left_out']}"}
    ratio, least = row.get("ratio"), row.get("least_ratio")
    asked, checks = [], []
    if least is not None and ratio is not None:
        asked.append(f"{least:.3g} x")
        checks.append(ratio["median"] >= least)
    memory, most = row.get("peak_memory_mb"), row.get("most_peak_memory_mb")
    if most is not None and memory is not None:
        asked.append(f"at most {most:.0f} MB")
        checks.append(memory["ours"] <= most)
    most_of_theirs = row.get("most_memory_ratio")
    if most_of_theirs is not None and memory is not None:
        asked.append(f"at most {most_of_theirs:g} of their memory")
        checks.append(memory["ours"] <= most_of_theirs * memory["theirs"])
    factor, most_factor = row.get("real_time_factor"), row.get("most_real_time_factor")
    if most_factor is not None and factor is not None:
        asked.append(f"real-time factor at most {most_factor:g}")
        checks.append(factor["ours"] <= most_factor)
    if "snr_db" in row:
        asked.append(f"{row['least_snr_db']:g} dB SNR")
        checks.append(row["snr_db"] >= row["least_snr_db"])
    return cells | {
        "times faster": ratio_cell(ratio),
        "asked": ", ".join(asked),
        "met": met_cell(checks),
        "real-time factor": _both(row.get("real_time_factor"), "{:.3f}"),
        "samples a second": _both(row.get("samples_per_second"), "{:.2f}"),
        "difference": _difference(row),
        "peak memory, MB": _both(memory, "{:.0f}"),
        "share of sgemm peak": _both(row.get("share_of_peak"), "{:.2f}"),
        "share of bandwidth": _both(row.get("share_of_bandwidth"), "{:.2f}"),
        "remark": row.get("remark", ""),
    }


def _difference(row: Mapping[str, Any]) -> str:
    """Format the difference of outputs, with its unit if that is not the whole line's."""
    if row.get("difference_db") is not None:
        return f"{row['difference_db']:.0e} dB"
    if row.get("losses_db"):
        pairs = zip(row["losses_db"]["ours"], row["losses_db"]["theirs"], strict=True)
        return f"{max(abs(a - b) for a, b in pairs):.0e} dB"
    words = [_both(row.get("difference"), "{:.0e}")]
    if "snr_db" in row:
        words.append(f"{row['snr_db']:.1f} dB SNR")
    if "likeness_db" in row:
        words.append(f"SI-SDR to the whole file {_both(row['likeness_db'], '{:.1f}')} dB")
    return ", ".join(word for word in words if word)


def _quality(found: Mapping[str, Any]) -> Cells:
    if "left_out" in found:
        return {"what": found["what"], "times faster": f"left out: {found['left_out']}"}
    return {
        "what": f"{found['what']}, {found['model']}",
        "against": "the whole file",
        "asked": f"at most {found['most_loss_db']:g} dB",
        "met": met_cell([found["loss_db"] <= found["most_loss_db"]]),
        "difference": f"{found['loss_db']:.2f} dB; "
        f"{_both_ways(found, 'one_order')} in one order, {_both_ways(found, 'any_order')} in any of 5 s",
    }


def _both_ways(found: Mapping[str, Any], order: str) -> str:
    return f"{found['chunked_si_sdri_db'][order]:.2f} against {found['whole_si_sdri_db'][order]:.2f}"


# -------------------------------------------------------------------------------------------- lines of other forms


def _of_assignment(result: Mapping[str, Any]) -> Section:
    level = min(row["level_db"] for row in result["rows"])
    rows = []
    for row in result["rows"]:
        for peer, ratio in row["ratios"]["pit"].items():
            if row["level_db"] == level:
                least = row.get("least_ratios", {}).get(peer)
                rows.append(
                    {
                        "what": _pit(row),
                        "against": peer,
                        "threads": str(row["threads"]),
                        "times faster": ratio_cell(ratio),
                        "asked": "" if least is None else f"{least:g} x",
                        "met": met_cell([] if least is None else [ratio["median"] >= least]),
                        "difference": _both(
                            {
                                "ours": row["differences"]["pit"]["loss_db"],
                                "theirs": row["differences"][peer]["loss_db"],
                            },
                            "{:.0e}",
                        ),
                    }
                )
        for peer, reason in row["left_out"].items():
            rows.append(
                {
                    "what": _pit(row),
                    "against": peer,
                    "threads": str(row["threads"]),
                    "times faster": f"left out: {reason}",
                }
            )
    missed = result["missed_targets"]
    if left := result.get("cases_left", 0):
        remarks = [f"Not yet run: {left} cases; `python -m tools.bench assignment` continues."]
        return Section(rows, [*remarks, *([f"Missed: {'; '.join(missed)}."] if missed else [])])
    return Section(rows, [f"Missed: {'; '.join(missed)}." if missed else "All that was asked for is reached."])


def _pit(row: Mapping[str, Any]) -> str:
    heap = ", in a process whose heap has grown" if row.get("heap") == "grown" else ""
    return f"PIT, {row['speakers']} speakers, {row['measured']}{heap}"


def _of_data(result: Mapping[str, Any]) -> Section:
    targets = result["targets"]
    return Section(
        [
            {
                "what": name.replace("_", " "),
                "times": f"{value:.2f}",
                "asked": f"{targets[name]:g}",
                "met": met_cell([value >= targets[name]]),
            }
            for name, value in result["reached"].items()
        ],
        [],
    )


def _of_evaluate(result: Mapping[str, Any]) -> Section:
    seconds = result["seconds"]
    names = {
        "sepkit_one_process": "sepkit, one process",
        "asteroid": "asteroid's get_metrics",
        "asteroid_estimates_only": "the same, without scores of the mixture",
    }
    rows = [
        {
            "what": f"{result['num_mixtures']} mixtures of {result['seconds_each']} s, {result['processes']} processes",
            "against": names[name],
            "times faster": f"{ratio:.2f}",
            "seconds": f"{seconds['sepkit']:.1f} / {seconds[name]:.1f}",
        }
        for name, ratio in result["ratios"].items()
    ]
    differences = ", ".join(f"{name} {value:.0e}" for name, value in result["largest_differences"].items())
    return Section(rows, [f"Largest differences of scores: {differences}."])


def _of_scaling(result: Mapping[str, Any]) -> Section:
    return Section(
        [
            {
                "what": row["what"],
                "by": row["by"],
                "from": f"{row['values'][0]:g}: {_measured(row, 0)}",
                "to": f"{row['values'][-1]:g}: {_measured(row, -1)}",
                "exponent": f"{row['exponent']:.2f}",
                "asked": f"at most {row['most_exponent']:.1f}",
                "met": met_cell([row["met"]]),
            }
            for row in result["rows"]
        ],
        [],
    )


def _measured(row: Mapping[str, Any], index: int) -> str:
    return f"{row['seconds'][index]:.3g} s" if "seconds" in row else f"{row['peak_memory_mb'][index]:.0f} MB"


def _of_steps(result: Mapping[str, Any]) -> Section:
    return Section(
        [
            {
                "masker": name,
                "parameters, M": f"{row['parameters'] / 1e6:.2f}",
                "seconds": f"{row['seconds']:.2f}",
                **{kind: f"{100 * share:.1f} %" for kind, share in row["shares"].items()},
                "fused against plain Adam": f"{row['fused_times_faster']:.1f} x",
            }
            for name, row in result["rows"].items()
        ],
        [],
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], Section]] = {
    "assignment": _of_assignment,
    "data": _of_data,
    "evaluate": _of_evaluate,
    "scaling": _of_scaling,
    "steps": _of_steps,
}
