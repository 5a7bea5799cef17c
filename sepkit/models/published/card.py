"""Model cards: description of a model, its training data, its scores, and its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sepkit.cleaning import escaped
from sepkit.errors import UserError
from sepkit.files import file_text, parse_yaml, read_json, read_yaml
from sepkit.limits import YAML_BYTES
from sepkit.models.storage.folders import find_checkpoint, read_description

# Identifiers that the Hugging Face hub knows as `license`; any other is given to it as "other" with a name.
_HUB_LICENSES = re.compile(
    r"agpl-3\.0|apache-2\.0|bsd(-[23]-clause)?|cc0-1\.0|cc-by(-nc)?(-nd|-sa)?-[234]\.0|l?gpl(-[23]\.[01])?|mit|mpl-2\.0|odc-by"
)

# In the order of the table; the others that a summary has follow.
_METRICS = {
    "si_sdri_db": "SI-SDRi (dB)",
    "si_sdr_db": "SI-SDR (dB)",
    "sdri_db": "SDRi (dB)",
    "sdr_db": "SDR (dB)",
    "stoi": "STOI",
    "pesq": "PESQ",
    "predicted_si_sdr_db": "SI-SDR predicted (dB)",
    "speaker_count_accuracy": "Speakers counted right (share of all mixtures)",
}

# Columns of the table by voices.
_OF_VOICES = ("si_sdri_db", "si_sdr_db", "predicted_si_sdr_db")
_SEXES = {"F": "female", "M": "male"}

# Metrics of `sepkit evaluate` for developers of a model.
_DIAGNOSTICS = {
    "mcl_si_sdr_db",
    "blr_nats_per_sample",
    "encoding_rate_nats_per_frame",
    "mask_rate_nats_per_frame",
    "rate_nats_per_dimension",
    "encoding_alive_share",
    "mask_alive_share",
    "mixture_elbo_nats_per_sample",
}

# Facts that training saves with a model.
_INFORMATION = {"epoch": "Epoch", "dev_si_sdri_db": "SI-SDRi on validation (dB)", "score_threshold": "Score threshold"}

# Said of the table of scores.
_INTERVALS = (
    "In parentheses are 95 % confidence intervals for other speakers: as many are drawn as the table has. Where it has "
    "none (-), mixtures are drawn, and the interval says nothing of other speakers."
)

_LIMITS = (
    "Recordings unlike those it was trained on (other rooms, microphones, languages, noises, more speakers) are "
    "separated worse. Which estimate is which speaker is arbitrary. Not for telling who somebody is, and not to be "
    "relied on where a missed or added word does harm. Separate voices only of people who would agree to it."
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
        license: of the weights: an identifier that the hub knows (cc-by-4.0), or any other name.
        corpora: training corpora, one line each, best with license and source.
        summaries: `summary.json` files of `sepkit evaluate`, one per test set.
        name: title of the card; "": the name of the folder (of its parent, if the folder is called `model`).
        loss: the training loss; "": that of the configuration beside the model, if there is one.
        limits: unsuitable uses, in Markdown; "": those of every separator.
        credit: speech, recipes and papers that the model is based on, in Markdown.
    """
    if not license.strip():
        raise UserError("license: found nothing, expected the license of the weights, cc-by-4.0 for example")
    folder = find_checkpoint(model)
    description = read_description(folder)
    called = name or (folder.parent.name if folder.name == "model" else folder.name)
    scores = [read_summary(Path(path)) for path in summaries]
    head = yaml.safe_dump(_head(called, license, scores), sort_keys=False, allow_unicode=True)
    sections = [
        f"# {escaped(called)}",
        _what(description),
        "## Use\n\n```\n"
        f"sepkit separate recording.wav --model {called if '/' not in called else f'hf:{called}'} --out separated\n```",
        "## The model\n\n" + _table(("", ""), _facts(folder, description, loss)),
        "## Training data\n\n" + ("\n".join(f"- {corpus}" for corpus in corpora) or "Not stated."),
        "## Scores\n\n" + (_scores(scores) if scores else "Not measured."),
        *([f"## Credits\n\n{credit.strip()}"] if credit else []),
        f"## License\n\n{license}",
        f"## Limits\n\n{limits.strip() or _LIMITS}",
    ]
    return f"---\n{head}---\n\n" + "\n\n".join(sections) + "\n"


# ---------------------------------------------------------------------------------------------------------- the head


def _head(name: str, license: str, scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    known = license.strip().lower()
    head: dict[str, Any] = {"license": known if _HUB_LICENSES.fullmatch(known) else "other"}
    if head["license"] == "other":
        head["license_name"] = re.sub(r"[^a-z0-9.]+", "-", known).strip("-")
    head |= {
        "library_name": "sepkit",
        "pipeline_tag": "audio-to-audio",
        "tags": ["speech-separation", "source-separation", "sepkit"],
    }
    if scores:
        head["model-index"] = [{"name": name, "results": [_result(summary) for summary in scores]}]
    return head


def _result(summary: Mapping[str, Any]) -> dict[str, Any]:
    metrics = [
        {"type": metric, "name": _METRICS.get(metric, metric), "value": round(values["mean"], 3)}
        for metric, values in _measured(summary)
    ]
    dataset = {"name": _test_set(summary), "type": re.sub(r"[^a-z0-9]+", "-", _test_set(summary).lower()).strip("-")}
    return {
        "task": {"type": "audio-to-audio", "name": "Speech separation"},
        "dataset": dataset,
        "metrics": metrics,
    }


# ---------------------------------------------------------------------------------------------------------- the text


def _what(description: Mapping[str, Any]) -> str:
    model = description["model"]
    variational = any(model[part]["name"] != "deterministic" for part in ("encoding", "masks"))
    kind = "variational" if variational else "deterministic"
    version = escaped(str(description.get("sepkit", "")))
    return (
        f"Separates {model['hypotheses']} overlapping speakers in recordings of one channel. Works at "
        f"{description['sample_rate']} Hz; recordings of other rates and channels are converted, and come back at "
        f"their own rate. A {kind} encoder-masker-decoder, made with sepkit {version}."
    )


def _facts(folder: Path, description: Mapping[str, Any], loss: str) -> list[tuple[str, str]]:
    model = description["model"]
    information = description.get("info") or {}
    facts = [
        ("Sample rate", f"{description['sample_rate']} Hz"),
        ("Estimates", str(model["hypotheses"])),
        ("Parameters", f"{description.get('parameters', 0):,}"),
        ("Filterbank", _choice(model["filterbank"])),
        ("Masker", _choice(model["masker"])),
        ("Encoding, masks", f"{model['encoding']['name']}, {model['masks']['name']}"),
        ("Loss", loss or _loss(folder) or "not stated"),
        ("Scores of hypotheses", "yes" if model.get("scoring") else "no"),
        ("Prediction of SI-SDR", "yes" if (folder / "quality.yaml").is_file() else "no"),
    ]
    return facts + [(name, _rounded(information[key])) for key, name in _INFORMATION.items() if key in information]


def _rounded(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _choice(choice: Mapping[str, Any]) -> str:
    return choice["name"] + "".join(f", {key} {value}" for key, value in choice.items() if key != "name")


def _loss(folder: Path) -> str:
    """Return cost and assignment of the configuration that training left beside the model, or ""."""
    path = folder.parent / "config.yaml"
    try:
        objective = read_yaml(path)["objective"]
        return f"{objective['cost']['name']}, matched by {objective['assignment']['name']}"
    except (UserError, KeyError, TypeError):
        return ""


def _scores(scores: Sequence[Mapping[str, Any]]) -> str:
    found = {metric for summary in scores for metric, _ in _measured(summary)}
    columns = [metric for metric in _METRICS if metric in found] + sorted(found - set(_METRICS))
    rows = []
    for summary in scores:
        measured = dict(_measured(summary))
        cells = [_cell(measured[metric]) if metric in measured else "" for metric in columns]
        counted = (summary.get("matching") or {}).get("speaker_count") or {}
        if "speaker_count_accuracy" in measured and (count := counted.get("n_without_number")):
            cells[columns.index("speaker_count_accuracy")] += f"; no number for {count}"
        speakers = max((values.get("n_speakers") or 0 for values in measured.values()), default=0)
        counts = (str(summary.get("n_utterances", "")), str(speakers or "-"))
        rows.append((_test_set(summary), *counts, *cells))
    table = _table(("Test set", "Mixtures", "Speakers", *(_METRICS.get(metric, metric) for metric in columns)), rows)
    text = f"{table}\n\nMeans over mixtures, measured by `sepkit evaluate`. {_INTERVALS}"
    by_sex = _by_sex(scores)
    return f"{text}\n\nVoices that are alike are harder to tell apart:\n\n{by_sex}" if by_sex else text


def _by_sex(scores: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the mixtures by the sexes of their speakers; "" if manifests do not state them."""
    rows = []
    for summary in scores:
        groups = (summary.get("by") or {}).get("sex_pair") or {}
        for pair, measured in groups.items():
            cells = [_cell(measured[m]) if measured.get(m, {}).get("mean") is not None else "" for m in _OF_VOICES]
            count = max((measured[m].get("n") or 0 for m in _OF_VOICES if m in measured), default=0)
            if count:
                sexes = [_SEXES.get(sex, str(sex)) for sex in pair.split("-")]
                rows.append((_test_set(summary), " with ".join(sexes), str(count), *cells))
    head = ("Test set", "Voices", "Mixtures", *(_METRICS.get(metric, metric) for metric in _OF_VOICES))
    return _table(head, rows) if rows else ""


def _cell(values: Mapping[str, Any]) -> str:
    interval = values.get("ci95")
    text = f"{values['mean']:.2f}"
    return f"{text} ({interval[0]:.2f} to {interval[1]:.2f})" if interval else text


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(escaped, line)) + " |" for line in lines)


# ------------------------------------------------------------------------------------------------------- the summaries


def read_summary(path: Path) -> dict[str, Any]:
    """Return what `summary.json` of an evaluation holds.

    Args:
        path: the file, or its folder.
    """
    path = path / "summary.json" if path.is_dir() else path
    summary = read_json(path, "expected summary.json of `sepkit evaluate`")
    metrics = summary.get("metrics") if isinstance(summary, dict) else None
    if not isinstance(metrics, dict) or not all(isinstance(values, dict) for values in metrics.values()):
        raise UserError(f"{path}: found no metrics, expected summary.json of `sepkit evaluate`")
    return summary


def _measured(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the card's metrics that have a mean."""
    return [
        (name, values)
        for name, values in summary["metrics"].items()
        if name not in _DIAGNOSTICS and isinstance(values.get("mean"), int | float)
    ]


def _test_set(summary: Mapping[str, Any]) -> str:
    """Return folder and name of the manifest; the rest of its path is private."""
    manifests = summary.get("manifest")
    manifests = manifests if isinstance(manifests, list) else [manifests]
    names = []
    for manifest in manifests:
        path = Path(str(manifest or "test"))
        names.append(f"{path.parent.name} {path.stem}".strip())
    return ", ".join(names)


# ------------------------------------------------------------------------------------------------- reading the cards


def card_scores(folder: Path) -> dict[str, float]:
    """Return test set -> SI-SDRi in dB, from a model's card; empty without a card or scores."""
    scores: dict[str, float] = {}
    for index in _card_head(folder).get("model-index", []):
        for result in index.get("results", []):
            values = {metric["type"]: metric["value"] for metric in result["metrics"]}
            if "si_sdri_db" in values:
                scores[result["dataset"]["name"]] = float(values["si_sdri_db"])
    return scores


def card_license(folder: Path) -> str | None:
    """Return the license of the weights, from a model's card; None without one."""
    return _card_head(folder).get("license")


def _card_head(folder: Path) -> dict[str, Any]:
    """Return the YAML between the dashes at the beginning of a card; empty without one."""
    card = folder / "README.md"
    head = file_text(card, errors="replace", most=YAML_BYTES).split("---\n")[1:2] if card.is_file() else []
    found = parse_yaml(head[0], str(card), "mend its head, or delete it") if head else None
    return found if isinstance(found, dict) else {}
