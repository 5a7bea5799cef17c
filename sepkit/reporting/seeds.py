"""Summarize runs that differ only in their seed as one row: mean and deviation over trainings, not over utterances."""

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sepkit.cleaning import escaped
from sepkit.errors import UserError
from sepkit.evaluation.labels import label_of, short_label_of
from sepkit.evaluation.run_folder import EvaluationFolder, Run
from sepkit.files import read_yaml
from sepkit.reporting.compared_runs import better, digits_of
from sepkit.reporting.tables import Table, mean_and_deviation

_SEED = re.compile(r"_seed(\d+)")
_DEFAULT_METRICS = ("si_sdr_db", "si_sdri_db", "mcl_si_sdr_db")
_DROP_METRICS = ("si_sdri_db", "blr_nats_per_sample")
# Runs of one group may differ in these settings: they change no result, or say how long a run took.
_IMMATERIAL = ("trainer.seed", "trainer.checkpoint_every_steps", "data.workers")


@dataclass
class SeedGroup:
    """Runs of one configuration.

    Args:
        name: Name for tables.
        runs: Runs in the order given.
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


def group_runs(runs: Sequence[Run]) -> list[SeedGroup]:
    """Return the runs in groups, in order of appearance: those whose names differ only in `_seed` and its number."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_SEED.sub("", run.name), []).append(run)
    return [SeedGroup(name, members) for name, members in groups.items()]


def seed_sections(
    groups: Sequence[SeedGroup], sets: Sequence[str], metrics: Sequence[str] | None, reference_sets: Sequence[str]
) -> list[str]:
    """Return Markdown: tables of drops, a table over seeds for each test set, and notes on problems.

    Args:
        groups: the rows.
        sets: names of the test sets; none without evaluations.
        metrics: columns; None: SI-SDR, its improvement and that of the best hypothesis, as far as they were measured,
            all that were measured if those were not; of drops SI-SDR improvement and the log evidence.
        reference_sets: see `drop_pairs`.

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
    for name in sets:
        sections.append(f"### {name}\n\n" * (len(sets) > 1) + seed_table(groups, name, chosen))
    return sections + [f"{note}\n" for note in _notes(groups)]


def seed_table(groups: Sequence[SeedGroup], test_set: str, metrics: Sequence[str]) -> str:
    """Return a Markdown table: one row per group, one column per metric with mean and sample deviation over seeds.

    The last columns name the best and the worst seed by the first metric. A single seed has no deviation. Where
    evaluations contain the number of hypotheses that are never the best, it is a column too.

    Args:
        groups: Groups of runs, the rows.
        test_set: Name of the evaluations.
        metrics: Names of the scores, the columns.
    """
    first, digits = metrics[0], digits_of(metrics[0])
    found: dict[str, list[tuple[str, EvaluationFolder]]] = {}
    collapsed: dict[str, list[float]] = {}
    for group in groups:
        on_set = ((seed, run.evaluation(test_set)) for seed, run in zip(group.seeds, group.runs, strict=True))
        found[group.name] = [(seed, evaluation) for seed, evaluation in on_set if evaluation is not None]
        rates = ((e.summary.get("matching") or {}).get("collapse_rate") for _, e in found[group.name])
        collapsed[group.name] = [rate for rate in rates if rate is not None]
    rows = []
    for name, measured in found.items():
        cells = [mean_and_deviation([e.mean(metric) for _, e in measured], digits_of(metric)) for metric in metrics]
        if any(collapsed.values()):
            cells.append(mean_and_deviation([100 * rate for rate in collapsed[name]], digits=1))
        ranked = [(value, seed) for seed, e in measured if (value := e.mean(first)) is not None]
        ranked.sort(key=lambda pair: -better(first) * pair[0])
        ends = [f"{seed} ({value:.{digits}f})" for value, seed in (ranked[0], ranked[-1])] if ranked[1:] else ["", ""]
        rows.append([name, len(measured), *cells, *ends])
    header = ["group", "seeds", *map(short_label_of, metrics)]
    header += [*["collapsed hypotheses [%]"] * any(collapsed.values()), "best seed", "worst seed"]
    return Table(header, rows).markdown(words=(0, len(header) - 2, len(header) - 1))


def drop_pairs(asked: Sequence[str], sets: Sequence[str]) -> list[tuple[str, str]]:
    """Return (seen, unseen) pairs of test sets.

    Args:
        asked: SEEN=UNSEEN each.
        sets: names of all test sets.

    Raises:
        UserError: an unknown set.
    """
    pairs = {item: (seen, unseen) for item in asked for seen, _, unseen in [item.partition("=")]}
    unknown = [item for item, pair in pairs.items() if not set(pair) <= set(sets)]
    if unknown:
        raise UserError(
            f"--reference-set: found {', '.join(unknown)}, expected SEEN=UNSEEN, two of {', '.join(sets) or 'none'}"
        )
    return list(pairs.values())


def drop_table(groups: Sequence[SeedGroup], pairs: Sequence[tuple[str, str]], metric: str) -> str:
    """Return a Markdown table: one row per group, the scores on the sets of the pairs, and each pair's drop.

    Mean and sample deviation are over seeds, for the drop over each run's own drop. In parentheses is the drop's share
    of the mean score on the seen set, if that is in dB and above zero. If less is better, the drop is the increase.

    Args:
        groups: Groups of runs, the rows.
        pairs: Names of seen and unseen test sets.
        metric: Name of the score.
    """
    # A set that several pairs start from has one column.
    columns = list(dict.fromkeys(column for a, b in pairs for column in ((a, None), (b, None), (a, b))))
    rows = []
    for group in groups:
        cells = []
        for seen, unseen in columns:
            if unseen is None:
                cells.append(mean_and_deviation([_mean_on(run, seen, metric) for run in group.runs], digits_of(metric)))
                continue
            scores = ((_mean_on(run, seen, metric), _mean_on(run, unseen, metric)) for run in group.runs)
            both = [(a, b) for a, b in scores if a is not None and b is not None]
            drops = [better(metric) * (a - b) for a, b in both]
            cells.append(mean_and_deviation(drops, digits_of(metric)))
            of_seen = statistics.fmean(a for a, _ in both) if both else 0.0
            if metric.endswith("_db") and of_seen > 0:
                cells[-1] += f" ({100 * statistics.fmean(drops) / of_seen:.0f} %)"
        measured = sum(any(_mean_on(run, seen, metric) is not None for seen, _ in columns) for run in group.runs)
        rows.append([group.name, measured, *cells])
    heads = [seen if unseen is None else f"drop {seen} to {unseen}" for seen, unseen in columns]
    return Table(["group", "seeds", *map(escaped, heads)], rows).markdown()


def temperature_series(runs: Sequence[Run]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return run -> temperatures and negative MCL SI-SDR on dev in dB, (E,) each, of the validated epochs.

    Runs whose log has no temperature are left out.

    Raises:
        UserError: no run has both.
    """
    series = {}
    for run in runs:
        records = [] if run.log is None else [record for record in run.log.records if record.get("kind") == "epoch"]
        pairs = [(record.get("temperature"), record.get("dev_mcl_si_sdr_db")) for record in records]
        known = [(float(t), -float(score)) for t, score in pairs if t is not None and score is not None]
        if known:
            temperatures, scores = np.array(known).T
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


def _mean_on(run: Run, test_set: str, metric: str) -> float | None:
    evaluation = run.evaluation(test_set)
    return None if evaluation is None else evaluation.mean(metric)


def _seed_of(run: Run) -> str:
    seed = run.settings.get("trainer.seed")
    match = _SEED.search(run.name)
    return str(seed) if seed is not None else match.group(1) if match else "?"
