"""Writes tools/bench/README.md and its chart from results/*.json: some rows in front, all of them folded away."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
CHART = "ratios.svg"

SUITES = {
    "separate": "Separation with the same weights on the same mixture. Differences are those of our estimates from the "
    "peer's module in float64, relative to the largest sample (`of the peak`).",
    "shipped": "Default models against their own graphs in other runtimes.",
    "train": "A training step on a batch of 4 x 3 s at 8 kHz, float32: forward, loss, gradients, clipping, Adam. "
    "Differences are those of both losses, before a step and after it.",
    "assignment": "Cost and optimal matching of a batch of 8 mixtures of 4 s with estimates at 6 dB SI-SDR. "
    "Differences are those of our loss from one computed pair by pair in float64.",
    "metrics": "Scores of a mixture of two speakers and its estimates. Differences are those of the scores.",
    "accelerator": "Training steps on a GPU, by precision. Differences are those of the losses of the first step.",
    "learning": "SI-SDRi on 200 mixtures of 57 unseen speakers, dB (95 % interval over speakers, one seed), by CPU "
    "time of training on one core. All systems start from random weights and train on three-second mixtures of "
    "the same 1.7 h of speech.\n\n"
    "* **asteroid**: its training loop, settings of its LibriMix recipe, float32, constant learning rate\n"
    "* **speechbrain**: its training loop, settings of its WSJ0-2mix recipe, float32, constant learning rate\n"
    "* **sepkit**: `trainer/cpu` (Conv-TasNet: learning rate 1e-3), bfloat16 if the CPU supports it. The learning rate "
    "falls to zero, so each budget is a separate run.\n\n"
    "`make bench LINES=learning` takes four hours and needs `SEPKIT_DATA`.",
}
"""Name -> what it measures."""

INTRODUCTION = """# Side by side with other toolkits

![Times faster than the peer](ratios.svg)

{table}
In all suites but `learning`, both sides have the same weights or the same task, take the same input, and run in turns.
The ratio is the median over turns of the peer's time divided by ours; the range is that of single turns. On one thread,
we count processor time. Each row is checked: outputs that differ by more than rounding stop the suite.

`make bench` measures everything but `learning` and `accelerator` on your machine and writes this page;
`make bench LINES="separate shipped"` runs some suites only. An interrupted suite continues where it stopped. The
figures are in `results/*.json`.
"""

HEADLINES = (
    ("separate", "Conv-TasNet, 4 s", "asteroid"),
    ("separate", "Conv-TasNet, 4 s, bfloat16", "asteroid"),
    ("separate", "DPRNN, 4 s", "asteroid"),
    ("separate", "SepFormer, 4 s", "speechbrain"),
    ("shipped", "{default}, 4 s", "ONNX Runtime"),
    ("train", "Conv-TasNet, training step", "asteroid"),
    ("assignment", "PIT, 2 speakers, loss and gradient", "asteroid"),
    ("metrics", "SDR", "mir_eval"),
)
"""Suite, `what` and `peer` of the rows in front, all on one thread."""

Row = Mapping[str, Any]


def write_page(folder: Path = FOLDER) -> Path:
    """Write the page and its chart, and return the path of the page; `folder` has the results."""
    files = {name: folder / "results" / f"{name}.json" for name in SUITES}
    results = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    front = _front(results)
    parts = [INTRODUCTION.format(table=_markdown([_cells(row) | _measured(here) for row, here in front]))]
    parts += [_folded(name, result) for name, result in results.items()]
    page = folder / "README.md"
    page.write_text("\n".join(parts), encoding="utf-8")
    _draw([row for row, _ in front], folder / CHART)
    return page


def _front(results: Mapping[str, Any]) -> list[tuple[Row, Row]]:
    """Return the rows in front, each with the environment that it was measured in."""
    from sepkit.models.published.shipped import DEFAULT_MODEL

    found = []
    for suite, what, peer in HEADLINES:
        key = what.format(default=DEFAULT_MODEL), peer, 1
        for row in results.get(suite, {}).get("rows", []):
            if (row["what"], row["peer"], row["threads"]) == key and "ratio" in row:
                found.append((row, results[suite]["environment"]))
    return found


def _cells(row: Row) -> dict[str, str]:
    if "scores" in row:
        reached = {
            f"{score['core_minutes']:g} minutes": "{:.2f} ({:.2f} to {:.2f})".format(score["mean"], *score["ci95"])
            for score in row["scores"]
        }
        spent = ", ".join(f"{score['spent_minutes']:.1f}" for score in row["scores"])
        size = f"{row['scores'][-1]['parameters'] / 1e6:.1f} M"
        return {"system": row["what"], "parameters": size, "CPU minutes used": spent} | reached
    cells = {"what": row["what"], "against": row["peer"], "threads": str(row["threads"])}
    if "left_out" in row:
        return cells | {"times faster": f"left out: {row['left_out']}"}
    faster = "{:.2f} [{:.2f}, {:.2f}]".format(row["ratio"]["median"], *row["ratio"]["range"])
    return cells | {"times faster": faster, "difference": difference_of(row)}


def difference_of(row: Row) -> str:
    """Return the difference of both outputs, with its unit."""
    value = row["difference"]
    return f"{value:.0e} {row['unit']}" if value < 0.1 else f"{value:.1f} {row['unit']}"


def _details(row: Row) -> dict[str, str]:
    """Return the further cells of a row that is folded away: ours / theirs."""
    forms = {"real_time_factor": ("real-time factor", ".3f"), "memory_mb": ("peak memory, MB", ".0f")}
    known = {title: (row[key], form) for key, (title, form) in forms.items() if key in row}
    return {title: f"{both['ours']:{form}} / {both['theirs']:{form}}" for title, (both, form) in known.items()}


def _measured(here: Row) -> dict[str, str]:
    return {"date": here["measured_on"], "processor": here.get("device") or here["machine"]}


def _folded(name: str, result: Mapping[str, Any]) -> str:
    here = result["environment"]
    versions = ", ".join(f"{package} {version}" for package, version in here["versions"].items() if version)
    commit = f"; commit {here['commit'][:7]}{here['commit'][40:]}" if here.get("commit") else ""
    where = f"{', '.join(_measured(here).values())}; Python {here['python']}, {versions}{commit}."
    table = _markdown([_cells(row) | _details(row) for row in result["rows"]])
    opened = " open" if name == "learning" else ""
    head = f"<details{opened}>\n<summary>{name}: {len(result['rows'])} rows</summary>\n\n{SUITES[name]}"
    return f"{head}\n\n{table}\n{where}\n\n</details>\n"


def _markdown(rows: list[dict[str, str]]) -> str:
    """Return a table of the columns that any row fills, in the order in which they come up."""
    columns = list(dict.fromkeys(column for row in rows for column, cell in row.items() if cell))
    lines = [columns, ["---"] * len(columns), *([row.get(column, "") for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) if rows else ""


def _draw(rows: list[Row], path: Path) -> None:
    """Draw the ratios with their ranges, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "sepkit", "font.size": 9, "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.32 * len(rows)), layout="constrained")
        medians = [row["ratio"]["median"] for row in rows]
        errors = [[abs(row["ratio"]["range"][side] - row["ratio"]["median"]) for row in rows] for side in (0, 1)]
        places = range(len(rows))
        axes.barh(places, [m - 1 for m in medians], left=1, height=0.6, xerr=errors, color="#4c78a8", ecolor="#333333")
        axes.set_yticks(places, [f"{row['what']} | {row['peer']}" for row in rows])
        axes.invert_yaxis()
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.axvline(1, color="#333333", linewidth=0.8)
        axes.set_xlabel("times faster than the peer, one thread")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)
