"""Model cards: description, training data, scores and limits of a model."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml

from sepkit.cleaning import escaped
from sepkit.errors import UserError
from sepkit.files import file_text, parse_yaml, read_json, read_yaml
from sepkit.limits import YAML_BYTES
from sepkit.models.storage.folders import find_checkpoint, read_description

# Identifiers that the Hugging Face hub accepts as `license`; any other is given to it as "other" with a name.
_HUB_LICENSES = re.compile(
    r"agpl-3\.0|apache-2\.0|bsd(-[23]-clause)?|cc0-1\.0|cc-by(-nc)?(-nd|-sa)?-[234]\.0|l?gpl(-[23]\.[01])?|mit|mpl-2\.0|odc-by"
)

_TEMPLATE = Path(__file__).with_name("card.md")

# In the order of the table; the others that a summary has follow.
_METRICS = {
    "si_sdri_db": "SI-SDRi (dB)",
    "si_sdr_db": "SI-SDR (dB)",
    "sdri_db": "SDRi (dB)",
    "sdr_db": "SDR (dB)",
    "stoi": "STOI",
    "pesq": "PESQ",
    "predicted_si_sdr_db": "Predicted SI-SDR (dB)",
    "speaker_count_accuracy": "Correct speaker count (share of all mixtures)",
}

# Columns of the table by pairs of speakers.
_OF_PAIRS = ("si_sdri_db", "si_sdr_db", "predicted_si_sdr_db")
_SEXES = {"F": "female", "M": "male"}

# Metrics of `sepkit evaluate` for developers of a model.
_DIAGNOSTICS = re.compile(r"mcl_.*|.*_nats_.*|.*_alive_share")

# Facts that training saves with a model.
_INFORMATION = {"epoch": "Epoch", "dev_si_sdri_db": "SI-SDRi on validation (dB)", "score_threshold": "Score threshold"}

_INTERVALS = (
    "Parentheses contain 95 % confidence intervals, bootstrapped over the test speakers, or over mixtures if the "
    "speakers are unknown (-). Intervals over mixtures do not cover other speakers."
)
_LIMITS = (
    "Expect lower scores on recordings unlike the training data: other rooms, microphones, languages or noises, or "
    "more speakers. The order of the estimates is arbitrary. Do not use the model to identify speakers, or if a "
    "missing or added word could do harm. Separate only speakers who would agree to it."
)


def model_card(
    model: str | Path,
    *,
    license: str,
    corpora: Sequence[str] = (),
    summaries: Sequence[str | Path] = (),
    name: str = "",
    loss: str = "",
    limits: str = "",
    credit: str = "",
) -> str:
    """Return the README.md of a model, in Markdown, with the YAML head that the Hugging Face hub reads.

    Args:
        license: License of the weights: an identifier of the hub (cc-by-4.0), or any other name.
        corpora: Training corpora, one line each, best with license and source.
        summaries: `summary.json` files of `sepkit evaluate`, one per test set.
        name: Title of the card; "": the name of the folder (of its parent, if the folder is called `model`).
        loss: Training loss; "": that of the configuration beside the model, if there is one.
        limits: Unsuitable uses, in Markdown; "": those of every separator.
        credit: Speech, recipes and papers that the model is based on, in Markdown.
    """
    if not license.strip():
        raise UserError("license: found nothing, expected the license of the weights, cc-by-4.0 for example")
    folder = find_checkpoint(model)
    description = read_description(folder)
    called = name or (folder.parent.name if folder.name == "model" else folder.name)
    scores = [read_summary(Path(path)) for path in summaries]
    head = yaml.safe_dump(_head(called, license, scores), sort_keys=False, allow_unicode=True)
    own = description["model"]
    variational = any(own[part]["name"] != "deterministic" for part in ("encoding", "masks"))
    text = Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=escaped(called),
        model=called if "/" not in called else f"hf:{called}",
        task="Enhances speech" if (n := own["hypotheses"]) == 1 else f"Separates {n} overlapping speakers",
        sample_rate=description["sample_rate"],
        kind="variational" if variational else "deterministic",
        version=escaped(str(description.get("sepkit", ""))),
        facts=_table(("", ""), _facts(folder, description, loss)),
        corpora="\n".join(f"- {corpus}" for corpus in corpora) or "Not stated.",
        scores=_scores(scores) if scores else "Not measured.",
        credit=f"## Credits\n\n{credit.strip()}\n\n" if credit else "",
        license=license,
        limits=limits.strip() or _LIMITS,
    )
    return f"---\n{head}---\n\n{text}"


def _head(name: str, license: str, scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the card's metadata for the hub."""
    known = license.strip().lower()
    listed = _HUB_LICENSES.fullmatch(known) is not None
    head: dict[str, Any] = {"license": known} if listed else {"license": "other", "license_name": _slug(known)}
    head |= {
        "library_name": "sepkit",
        "pipeline_tag": "audio-to-audio",
        "tags": ["speech-separation", "source-separation", "sepkit"],
    }
    results = [
        {
            "task": {"type": "audio-to-audio", "name": "Speech separation"},
            "dataset": {"name": _test_set(summary), "type": _slug(_test_set(summary))},
            "metrics": [
                {"type": metric, "name": _METRICS.get(metric, metric), "value": round(values["mean"], 3)}
                for metric, values in _measured(summary["metrics"]).items()
            ],
        }
        for summary in scores
    ]
    return head | ({"model-index": [{"name": name, "results": results}]} if results else {})


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _facts(folder: Path, description: Mapping[str, Any], loss: str) -> list[tuple[str, str]]:
    model, information = description["model"], description.get("info") or {}
    filterbank, masker = (
        ", ".join([model[part]["name"], *(f"{key} {value}" for key, value in model[part].items() if key != "name")])
        for part in ("filterbank", "masker")
    )
    facts = [
        ("Sample rate", f"{description['sample_rate']} Hz"),
        ("Estimates", str(model["hypotheses"])),
        ("Parameters", f"{description.get('parameters', 0):,}"),
        ("Filterbank", filterbank),
        ("Masker", masker),
        ("Encoding, masks", f"{model['encoding']['name']}, {model['masks']['name']}"),
        ("Loss", loss or _loss(folder) or "not stated"),
        ("Scores of hypotheses", "yes" if model.get("scoring") else "no"),
        ("Prediction of SI-SDR", "yes" if (folder / "quality.yaml").is_file() else "no"),
    ]
    saved = [(name, information[key]) for key, name in _INFORMATION.items() if key in information]
    return facts + [(name, f"{value:.2f}" if isinstance(value, float) else str(value)) for name, value in saved]


def _loss(folder: Path) -> str:
    """Return cost and assignment of the configuration that training left beside the model, or ""."""
    try:
        objective = read_yaml(folder.parent / "config.yaml")["objective"]
        return f"{objective['cost']['name']}, matched by {objective['assignment']['name']}"
    except (UserError, KeyError, TypeError):
        return ""


def _scores(scores: Sequence[Mapping[str, Any]]) -> str:
    found = {metric for summary in scores for metric in _measured(summary["metrics"])}
    columns = [metric for metric in _METRICS if metric in found] + sorted(found - set(_METRICS))
    rows, by_sex = [], []
    for summary in scores:
        measured, test_set = _measured(summary["metrics"]), _test_set(summary)
        cells = [_cell(measured.get(metric)) for metric in columns]
        counted = (summary.get("matching") or {}).get("speaker_count") or {}
        if "speaker_count_accuracy" in measured and (count := counted.get("n_without_number")):
            cells[columns.index("speaker_count_accuracy")] += f"; no estimate for {count}"
        speakers = max((values.get("n_speakers") or 0 for values in measured.values()), default=0)
        rows.append((test_set, str(summary.get("n_utterances", "")), str(speakers or "-"), *cells))
        for pair, of_pair in ((summary.get("by") or {}).get("sex_pair") or {}).items():
            known = _measured(of_pair)
            if count := max((known[metric].get("n") or 0 for metric in _OF_PAIRS if metric in known), default=0):
                sexes = " with ".join(_SEXES.get(sex, str(sex)) for sex in pair.split("-"))
                by_sex.append((test_set, sexes, str(count), *(_cell(known.get(metric)) for metric in _OF_PAIRS)))
    table = _table(("Test set", "Mixtures", "Speakers", *(_METRICS.get(metric, metric) for metric in columns)), rows)
    text = f"{table}\n\nMeans over mixtures, measured by `sepkit evaluate`. {_INTERVALS}"
    if not by_sex:
        return text
    of_pairs = _table(("Test set", "Speaker pair", "Mixtures", *(_METRICS[metric] for metric in _OF_PAIRS)), by_sex)
    return f"{text}\n\nSpeakers with similar voices are harder to separate:\n\n{of_pairs}"


def _cell(values: Mapping[str, Any] | None) -> str:
    if values is None:
        return ""
    interval = values.get("ci95")
    return f"{values['mean']:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(map(escaped, line)) + " |" for line in [head, ["---"] * len(head), *rows])


def _measured(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the card's metrics that have a mean."""
    return {
        name: values
        for name, values in metrics.items()
        if not _DIAGNOSTICS.fullmatch(name) and isinstance(values.get("mean"), int | float)
    }


def _test_set(summary: Mapping[str, Any]) -> str:
    """Return folder and name of the manifest; the rest of its path is private."""
    manifests = summary.get("manifest")
    paths = [Path(str(one or "test")) for one in (manifests if isinstance(manifests, list) else [manifests])]
    return ", ".join(f"{path.parent.name} {path.stem}".strip() for path in paths)


def read_summary(path: Path) -> dict[str, Any]:
    """Return the content of an evaluation's `summary.json`.

    Args:
        path: File, or its folder.

    Raises:
        UserError: no such file, or one without metrics.
    """
    path = path / "summary.json" if path.is_dir() else path
    summary = read_json(path, "expected summary.json of `sepkit evaluate`")
    metrics = summary.get("metrics") if isinstance(summary, dict) else None
    if not isinstance(metrics, dict) or not all(isinstance(values, dict) for values in metrics.values()):
        raise UserError(f"{path}: found no metrics, expected summary.json of `sepkit evaluate`")
    return summary


def read_card(folder: Path) -> dict[str, Any]:
    """Return the YAML between the dashes at the beginning of a model's card; empty without one.

    Args:
        folder: Folder of the model.
    """
    card = folder / "README.md"
    head = file_text(card, errors="replace", most=YAML_BYTES).split("---\n")[1:2] if card.is_file() else []
    found = parse_yaml(head[0], str(card), "fix its head, or delete it") if head else None
    return found if isinstance(found, dict) else {}


def card_scores(folder: Path) -> dict[str, float]:
    """Return test set -> SI-SDRi in dB, from a model's card; empty without a card or scores.

    Args:
        folder: Folder of the model.
    """
    results = [result for index in read_card(folder).get("model-index", []) for result in index.get("results", [])]
    return {
        result["dataset"]["name"]: float(metric["value"])
        for result in results
        for metric in result["metrics"]
        if metric["type"] == "si_sdri_db"
    }
