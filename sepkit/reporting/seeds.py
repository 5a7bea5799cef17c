"""Summarize runs that differ only in their seed as one row: mean and deviation over trainings, not over utterances."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.stats

from sepkit.cleaning import escaped
from sepkit.errors import UserError
from sepkit.evaluation.labels import label_of, short_label_of
from sepkit.evaluation.run_folder import EvaluationFolder, Run
from sepkit.files import read_yaml
from sepkit.reporting.compared_runs import better, digits_of
from sepkit.reporting.text import markdown_table, mean_and_deviation

_SEED = re.compile(r"_seed(\d+)")
_DEFAULT_METRICS = ("si_sdr_db", "si_sdri_db", "mcl_si_sdr_db")
_DROP_METRICS = ("si_sdri_db", "blr_nats_per_sample")
# Columns from summary.json's "matching", where evaluation wrote it: name -> (head of the column, factor).
_MATCHING = {"collapse_rate": ("collapsed hypotheses [%]", 100.0)}
# Runs of one group may differ in these settings: they change no result, or say how long a run took.
_IMMATERIAL = ("trainer.seed", "trainer.checkpoint_every_steps", "data.workers")


@dataclass
class SeedGroup:
    """Runs of one configuration.

    Args:
        name: for tables.
        runs: in the order given.
    """

    name: str
    runs: list[Run]

    @property
    def seeds(self) -> list[str]:
        """The seeds of the runs, from their configurations or else their folders' names; "?" if neither has one."""
        return [_seed_of(run) for run in self.runs]

    def differences(self) -> list[str]:
        """Return the keys of the configuration, other than the seed, in which runs differ although they should not."""
        trees = [run.settings for run in self.runs if run.config is not None]
        keys = {key for tree in trees for key in tree} - set(_IMMATERIAL)
        return sorted(key for key in keys if any(tree.get(key) != trees[0].get(key) for tree in trees))


def group_runs(runs: Sequence[Run], pattern: str | None = None) -> list[SeedGroup]:
    """Return the runs in groups, in order of appearance.

    Args:
        runs: in the order of the groups.
        pattern: a regular expression on the folder's name; its first group in parentheses, or the whole match, names
            the group. None: the name without `_seed` and the number after it.

    Raises:
        UserError: no regular expression, or one that does not fit a folder's name.
    """
    try:
        expression = re.compile(pattern) if pattern is not None else None
    except re.error as error:
        raise UserError(f"--group: found {pattern!r}, expected a regular expression ({error})") from error
    groups: dict[str, list[Run]] = {}
    for run in runs:
        name = _SEED.sub("", run.name)
        if expression is not None:
            match = expression.search(run.name)
            if match is None:
                raise UserError(f"--group: {pattern!r} is not in the name {run.name}; expected it in every run's")
            name = (match.group(1) if expression.groups else match.group(0)) or ""
        groups.setdefault(name, []).append(run)
    return [SeedGroup(name, members) for name, members in groups.items()]


def seed_sections(
    groups: Sequence[SeedGroup], sets: Sequence[str], metrics: Sequence[str] | None, reference_sets: Sequence[str]
) -> list[str]:
    """Return Markdown: tables of drops, a table over seeds for each test set, and notes on what is not as it should be.

    Args:
        groups: the rows.
        sets: names of the test sets; none without evaluations.
        metrics: columns; None: SI-SDR, its improvement and that of the best hypothesis, as far as they were measured,
            all that were measured if those were not; of drops SI-SDR improvement and the log evidence.
        reference_sets: see `drop_pairs`. Below each table of drops stand differences between groups paired by seed.

    Raises:
        UserError: an unknown metric or test set.
    """
    runs = [run for group in groups for run in group.runs]
    chosen = metrics_of(runs, metrics, _DEFAULT_METRICS) if sets else []
    sections = []
    if reference_sets:
        pairs = drop_pairs(reference_sets, sets)
        for name in metrics_of(runs, metrics, _DROP_METRICS):
            sections.append(f"### {label_of(name)}\n\n{drop_table(groups, pairs, name)}")
            if paired := paired_drop_table(groups, pairs, name):
                sections.append(paired)
    for name in sets:
        sections.append(f"### {name}\n\n" * (len(sets) > 1) + seed_table(groups, name, chosen))
    return sections + [f"{note}\n" for note in _notes(groups)]


def seed_table(groups: Sequence[SeedGroup], test_set: str, metrics: Sequence[str]) -> str:
    """Return a Markdown table: one row per group, one column per metric with mean and sample deviation over seeds.

    The last columns name the best and the worst seed by the first metric. A single seed has no deviation.
    """
    columns = [
        name for name in _MATCHING if any(_matching(e, name) is not None for e in _evaluations(groups, test_set))
    ]
    heads = [*map(short_label_of, metrics), *(_MATCHING[name][0] for name in columns)]
    header = ["group", "seeds", *heads, "best seed", "worst seed"]
    lines = []
    for group in groups:
        found = [(seed, run.evaluation(test_set)) for seed, run in zip(group.seeds, group.runs, strict=True)]
        known = [(seed, evaluation) for seed, evaluation in found if evaluation is not None]
        cells = [mean_and_deviation([e.mean(name) for _, e in known], digits_of(name)) for name in metrics]
        for name in columns:
            factor = _MATCHING[name][1]
            values = [_matching(evaluation, name) for _, evaluation in known]
            cells.append(mean_and_deviation([None if v is None else factor * v for v in values], digits=1))
        ranked = [(evaluation.mean(metrics[0]), seed) for seed, evaluation in known]
        ranked = [(value, seed) for value, seed in ranked if value is not None]
        digits = digits_of(metrics[0])
        both = sorted(ranked, key=lambda pair: -better(metrics[0]) * pair[0])[:: len(ranked) - 1] if ranked[1:] else ()
        ends = [f"{seed} ({value:.{digits}f})" for value, seed in both] or ["", ""]
        lines.append([escaped(group.name), str(len(known)), *cells, *ends])
    return markdown_table(header, lines, words=(0, len(header) - 2, len(header) - 1))


def drop_pairs(asked: Sequence[str], sets: Sequence[str]) -> list[tuple[str, str]]:
    """Return (seen, unseen) pairs of test sets.

    Args:
        asked: SEEN=UNSEEN each, or SEEN alone for its drop to every set that is not asked for as seen.
        sets: names of all test sets.

    Raises:
        UserError: an unknown set, or no other set to compare with.
    """
    split = [tuple(item.split("=", 1)) for item in asked]
    unknown = [name for names in split for name in names if name not in sets]
    if unknown:
        raise UserError(f"--reference-set: found {', '.join(unknown)}, expected one of {', '.join(sets) or 'none'}")
    seen = {names[0] for names in split}
    pairs = []
    for first, *second in split:
        pairs += [(first, name) for name in second or sets if second or name not in seen]
    if not pairs:
        raise UserError(
            f"--reference-set: found no test set but {', '.join(sorted(seen))}, expected one more to drop to"
        )
    return list(dict.fromkeys(pairs))


def drop_table(groups: Sequence[SeedGroup], pairs: Sequence[tuple[str, str]], metric: str) -> str:
    """Return a Markdown table: one row per group; for each pair of test sets the score on both and the drop between.

    Mean and sample deviation are over seeds, for the drop over each run's own drop. In parentheses is the drop's share
    of the mean score on the seen set, if that is in dB and above zero. If less is better, the drop is the increase.
    """
    # A set that several pairs start from has one column.
    columns: list[tuple[str, str | None]] = []
    for seen, unseen in pairs:
        columns += [(seen, None)] * ((seen, None) not in columns) + [(unseen, None)] * ((unseen, None) not in columns)
        columns.append((seen, unseen))
    heads = [first if second is None else f"drop {first} to {second}" for first, second in columns]
    lines = []
    for group in groups:
        cells = []
        for first, second in columns:
            scores = [_mean_on(run, first, metric) for run in group.runs]
            if second is None:
                cells.append(mean_and_deviation(scores, digits_of(metric)))
                continue
            others = [_mean_on(run, second, metric) for run in group.runs]
            both = [(a, b) for a, b in zip(scores, others, strict=True) if a is not None and b is not None]
            drops = [better(metric) * (a - b) for a, b in both]
            cells.append(mean_and_deviation(drops, digits_of(metric)))
            of_seen = statistics.fmean(a for a, _ in both) if both else 0.0
            if metric.endswith("_db") and of_seen > 0:
                cells[-1] += f" ({100 * statistics.fmean(drops) / of_seen:.0f} %)"
        measured = sum(any(_mean_on(run, first, metric) is not None for first, _ in columns) for run in group.runs)
        lines.append([escaped(group.name), str(measured), *cells])
    return markdown_table(["group", "seeds", *map(escaped, heads)], lines)


def paired_drop_table(groups: Sequence[SeedGroup], pairs: Sequence[tuple[str, str]], metric: str) -> str:
    """Return a Markdown table of how much larger each group's drop is than that of the first group, paired by seed.

    Runs of one seed share the order of the data and often its easy and hard parts, so their difference varies less than
    the difference of two means. The table has its mean and sample deviation over seeds, and its 95 % confidence
    interval by Student's t with one degree of freedom fewer than seeds. It is empty if no two groups share two seeds.
    """
    first, *others = groups
    lines = []
    for group in others:
        cells = []
        for seen, unseen in pairs:
            mine, theirs = (_drops_by_seed(g, seen, unseen, metric) for g in (group, first))
            cells.append(_paired([mine[seed] - theirs[seed] for seed in mine if seed in theirs], digits_of(metric)))
        if any(cells):
            lines.append([f"{escaped(group.name)} less {escaped(first.name)}", *cells])
    if not lines:
        return ""
    heads = [escaped(f"drop {seen} to {unseen}") for seen, unseen in pairs]
    return "How much larger the drop is, paired by seed, with the 95 % confidence interval:\n\n" + markdown_table(
        ["groups", *heads], lines
    )


def _drops_by_seed(group: SeedGroup, seen: str, unseen: str, metric: str) -> dict[str, float]:
    """Return seed -> drop, for the seeds of exactly one run."""
    drops: dict[str, float] = {}
    for seed, run in zip(group.seeds, group.runs, strict=True):
        scores = [_mean_on(run, name, metric) for name in (seen, unseen)]
        if group.seeds.count(seed) == 1 and seed != "?" and scores[0] is not None and scores[1] is not None:
            drops[seed] = better(metric) * (scores[0] - scores[1])
    return drops


def _paired(differences: Sequence[float], digits: int) -> str:
    if len(differences) < 2:
        return ""
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    half = float(scipy.stats.t.ppf(0.975, len(differences) - 1)) * deviation / math.sqrt(len(differences))
    return (
        f"{mean:.{digits}f} ± {deviation:.{digits}f} ({mean - half:.{digits}f} to {mean + half:.{digits}f}, "
        f"{len(differences)} seeds)"
    )


def temperature_series(runs: Sequence[Run]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return run -> temperatures and negative MCL SI-SDR on dev in dB, (E,) each, of the validated epochs.

    Runs whose log has no temperature are left out.

    Raises:
        UserError: no run has both.
    """
    series = {}
    for run in runs:
        records = [] if run.log is None else run.log.records
        pairs = [
            (float(record["temperature"]), -float(record["dev_mcl_si_sdr_db"]))
            for record in records
            if record.get("kind") == "epoch"
            and record.get("temperature") is not None
            and record.get("dev_mcl_si_sdr_db") is not None
        ]
        if pairs:
            temperatures, scores = np.array(pairs).T
            series[run.name] = temperatures, scores
    if not series:
        raise UserError(
            f"--figure temperature: found no temperature with dev_mcl_si_sdr_db in the metrics.jsonl of {runs[0].name}"
            f"{' or another run' if len(runs) > 1 else ''}; expected runs of annealed multiple choice learning"
        )
    return series


def with_dev_scores(run: Run) -> Run:
    """Return the run; if its task has no evaluation, add the best model's dev scores as an evaluation "dev"."""
    file = run.folder / "model" / "model.yaml"
    separates = (run.config or {}).get("task", "separation") == "separation"
    if separates or run.evaluations or not file.is_file():
        return run
    info = read_yaml(file, "train again").get("info") or {}
    means = {name.removeprefix("dev_"): value for name, value in info.items() if name.startswith("dev_")}
    metrics = {name: {"mean": value, "n": 1} for name, value in means.items()}
    return replace(run, evaluations=[EvaluationFolder(file.parent, "dev", {"metrics": metrics}, [])])


def metrics_of(
    runs: Sequence[Run], asked: Sequence[str] | None, default: Sequence[str] = _DEFAULT_METRICS
) -> list[str]:
    """Return the names asked for; None: those of the default that were measured, or else all.

    Raises:
        UserError: a name that was not measured, or nothing measured.
    """
    present = list(dict.fromkeys(name for run in runs for evaluation in run.evaluations for name in evaluation.metrics))
    if asked is None:
        asked = [name for name in default if name in present] or present
    unknown = [name for name in asked if name not in present]
    if unknown or not asked:
        raise UserError(
            f"--metric: found {', '.join(unknown) or 'none'}, expected one of {', '.join(present) or 'none'}"
        )
    return list(asked)


def _notes(groups: Sequence[SeedGroup]) -> Iterator[str]:
    if any(len(group.runs) > 1 for group in groups):
        yield "Mean ± sample standard deviation over training seeds."
    for group in groups:
        twice = [seed for seed, count in Counter(group.seeds).items() if count > 1 and seed != "?"]
        if twice:
            yield f"{escaped(group.name)}: seed {' and '.join(twice)} stands for more than one run."
        different = group.differences()
        if different:
            yield f"{escaped(group.name)}: its runs differ in more than the seed: {', '.join(different)}."
        missing = [run.name for run in group.runs if not run.evaluations]
        if missing:
            yield f"{escaped(group.name)}: not evaluated: {', '.join(map(escaped, missing))}."


def _evaluations(groups: Sequence[SeedGroup], test_set: str) -> list[EvaluationFolder]:
    found = (run.evaluation(test_set) for group in groups for run in group.runs)
    return [evaluation for evaluation in found if evaluation is not None]


def _mean_on(run: Run, test_set: str, metric: str) -> float | None:
    evaluation = run.evaluation(test_set)
    return None if evaluation is None else evaluation.mean(metric)


def _matching(evaluation: EvaluationFolder, name: str) -> float | None:
    return (evaluation.summary.get("matching") or {}).get(name)


def _seed_of(run: Run) -> str:
    seed = run.settings.get("trainer.seed")
    match = _SEED.search(run.name)
    return str(seed) if seed is not None else match.group(1) if match else "?"
