"""Models by name: those that ship with the package, those on the hub (a pretended one), and the cards they have."""

import json
import shutil
from dataclasses import replace
from unittest.mock import Mock

import huggingface_hub
import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard, errors
from safetensors.torch import load_file, save_file

import sepkit
from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.models import build_model, load_checkpoint, load_pretrained, model_folder, save_model
from sepkit.models.published import card, hub, shipped
from sepkit.models.published.card import model_card
from tests.complaint import complaint
from tests.tiny_models import RECURRENT


@pytest.fixture
def folder(model, tmp_path):
    return save_model(model, tmp_path / "exp" / "model", {"epoch": 3})


def test_only_constants_can_be_left_out(folder):
    """A description cannot declare a weight left out, so that a random one would take its place."""
    description = yaml.safe_load((folder / "model.yaml").read_text())
    description["left_out"] = ["masker.output.bias"]
    (folder / "model.yaml").write_text(yaml.safe_dump(description))
    tensors = load_file(folder / "model.safetensors")
    del tensors["masker.output.bias"]
    save_file(tensors, folder / "model.safetensors")
    assert "1 missing (such as masker.output.bias)" in complaint(lambda: load_checkpoint(folder))


# ---------------------------------------------------------------------------------------------------- the package's own


@pytest.fixture
def box(model, tmp_path, monkeypatch):
    """A package with one model in its box."""
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "box")
    save_model(model, tmp_path / "box" / "boxed_8k")
    (tmp_path / "box" / "no_model").mkdir()
    return tmp_path / "box"


def test_a_shipped_model_is_found_by_name(box, tmp_path, monkeypatch, printed):
    monkeypatch.chdir(tmp_path)
    assert load_pretrained("boxed_8k").hypotheses == 2
    assert model_folder("boxed_8k") == box / "boxed_8k"
    assert sepkit.load_model("boxed_8k").sample_rate == 8000
    assert "boxed_8k" in (listed := printed(["models"])) and "the default" in listed and "no_model" not in listed
    assert "sample_rate: 8000" in printed(["models", "--model", "boxed_8k"])
    assert "(did you mean boxed_8k?)" in complaint(lambda: load_pretrained("boxed_16k"))
    # What lies at a path of that name goes first.
    save_model(build_model(replace(RECURRENT, hypotheses=3)), tmp_path / "boxed_8k")
    assert load_pretrained("boxed_8k").hypotheses == 3


def test_the_shipped_model_is_the_default(box, tmp_path, capsys):
    assert sepkit.load_model().hypotheses == 2
    audio.write(tmp_path / "x.wav", 0.1 * np.random.default_rng(0).standard_normal(500).astype(np.float32), 8000)
    assert main(["separate", str(tmp_path / "x.wav"), "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0
    assert json.loads((tmp_path / "out" / "x.json").read_text())["model"] == "boxed_8k"


def test_what_ships_is_small_and_loads():
    for name, folder in shipped.shipped_models().items():
        assert load_pretrained(name).sample_rate > 0
        assert (folder / "model.onnx").stat().st_size <= 15e6
        assert {path.name for path in folder.iterdir()} == {"README.md", "model.onnx", "model.yaml", "quality.yaml"}


# ------------------------------------------------------------------------------------------------------------- the hub


def pretend(monkeypatch, *answers):
    """Replace the hub's snapshot_download by given results or errors, call after call; return what replaces it."""
    download = Mock(side_effect=[answer if isinstance(answer, Exception) else str(answer) for answer in answers])
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return download


def test_a_model_on_the_hub(folder, monkeypatch, model):
    download = pretend(monkeypatch, folder, folder, folder)
    assert torch.equal(load_pretrained("hf:somebody/separator@v1.0").signal_std, model.signal_std)
    (name,), options = download.call_args
    assert (name, options["revision"], download.call_count) == ("somebody/separator", "v1.0", 1)
    files = {"model.safetensors", "model.onnx", "model.yaml", "quality.yaml", "README.md"}
    assert set(options["allow_patterns"]) == files
    assert sepkit.load_model("hf:somebody/separator").hypotheses == 2
    # Fetched once, however many of its files are looked at.
    assert download.call_count == 2


def test_the_commit_that_was_fetched_is_printed_and_written_beside_estimates(folder, tmp_path, monkeypatch, capsys):
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(folder, tmp_path / "cache" / commit)
    pretend(monkeypatch, *[tmp_path / "cache" / commit] * 9)
    monkeypatch.setattr(hub, "_commits", {})
    audio.write(tmp_path / "x.wav", 0.1 * np.random.default_rng(0).standard_normal(500).astype(np.float32), 8000)
    line = ["separate", str(tmp_path / "x.wav"), "--device", "cpu", "--model", "hf:somebody/separator"]
    assert main([*line, "--out", str(tmp_path / "newest")]) == 0
    told = capsys.readouterr().err
    assert told.count(f"somebody/separator: commit {commit}") == 1 and f"somebody/separator@{commit} names it" in told
    pinned = f"hf:somebody/separator@{commit}"
    assert json.loads((tmp_path / "newest" / "x.json").read_text())["model"] == pinned
    # A commit that is named already need not be told.
    assert main([*line[:-1], pinned, "--out", str(tmp_path / "pinned")]) == 0
    assert commit not in capsys.readouterr().err
    assert json.loads((tmp_path / "pinned" / "x.json").read_text())["model"] == pinned
    # A branch or tag is replaced by the commit that it stands for.
    assert main([*line[:-1], "hf:somebody/separator@v1.0", "--out", str(tmp_path / "tag")]) == 0
    assert json.loads((tmp_path / "tag" / "x.json").read_text())["model"] == pinned


def test_a_repository_that_is_no_model(tmp_path, monkeypatch):
    pretend(monkeypatch, tmp_path)
    assert "found no model" in complaint(lambda: load_pretrained("hf:somebody/something"))


@pytest.mark.parametrize(
    "name", ["", "nobody", "a/b/c", "../../etc", "a b/c", "../..", "é/b", "a--b/c", "a/c..d", "a/b@../c"]
)
def test_what_is_no_repository(name):
    complaint(lambda: load_pretrained(f"hf:{name}"))


def hub_error(kind: str) -> Exception:
    """Make an exception of huggingface_hub's, in any of its versions."""
    error = getattr(errors, kind)
    return error.__new__(error, f"{kind} was raised\nover lines")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RepositoryNotFoundError", "no such repository"),
        ("GatedRepoError", "asks for consent"),
        ("RevisionNotFoundError", "has no revision v9"),
        ("LocalEntryNotFoundError", "not in the cache, and the Hugging Face hub cannot be reached"),
        ("OfflineModeIsEnabled", "HF_HUB_OFFLINE"),
    ],
)
def test_what_the_hub_refuses_is_one_line(monkeypatch, kind, message):
    pretend(monkeypatch, hub_error(kind))
    assert message in complaint(lambda: load_pretrained("hf:somebody/separator@v9"))


def test_a_download_that_breaks_off_falls_back_on_the_cache(folder, monkeypatch):
    download = pretend(monkeypatch, ConnectionError("reset\nby peer"), folder)
    assert load_pretrained("hf:somebody/separator").hypotheses == 2
    assert download.call_count == 2 and download.call_args.kwargs["local_files_only"] is True
    pretend(monkeypatch, ConnectionError("reset\nby peer"), hub_error("LocalEntryNotFoundError"))
    assert "reset by peer" in complaint(lambda: load_pretrained("hf:somebody/separator"))


def test_what_was_fetched_is_found_offline(folder, tmp_path, monkeypatch):
    """The real client reads a cache in its own layout without a network."""
    cache = tmp_path / "cache"
    snapshot = cache / "models--somebody--separator" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for name in ("model.safetensors", "model.yaml"):
        (snapshot / name).write_bytes((folder / name).read_bytes())
    (cache / "models--somebody--separator" / "refs").mkdir()
    (cache / "models--somebody--separator" / "refs" / "main").write_text("0" * 40)
    offline = {"cache_dir": cache, "local_files_only": True}
    real = huggingface_hub.snapshot_download
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **more: real(name, **(more | offline)))
    assert load_pretrained("hf:somebody/separator").hypotheses == 2
    assert "cannot be reached" in complaint(lambda: load_pretrained("hf:somebody/other"))


@pytest.fixture
def uploaded(monkeypatch, tmp_path):
    """A hub that keeps what is uploaded to it in a folder."""

    def upload(repo_id, folder_path, **_):
        shutil.copytree(folder_path, tmp_path / "hub" / repo_id)

    monkeypatch.setattr(huggingface_hub, "create_repo", lambda name, **_: f"https://huggingface.co/{name}")
    monkeypatch.setattr(huggingface_hub, "upload_folder", upload)
    return tmp_path / "hub"


def test_upload_takes_the_model_and_its_card_and_nothing_else(folder, uploaded, monkeypatch, printed):
    (folder / "secret.txt").write_text("mine")
    line = ["upload", str(folder), "--repo", "somebody/separator", "--license", "cc-by-4.0", "--corpora", "speech_mini"]
    assert printed(line).splitlines()[-1] == "https://huggingface.co/somebody/separator"
    there = uploaded / "somebody" / "separator"
    assert sorted(path.name for path in there.iterdir()) == ["README.md", "model.safetensors", "model.yaml"]
    assert "hf:somebody/separator" in (there / "README.md").read_text()
    pretend(monkeypatch, there)
    assert load_pretrained("hf:somebody/separator").hypotheses == 2


def test_a_dry_run_uploads_nothing(folder, uploaded, printed):
    card = printed(["upload", folder, "--repo", "somebody/separator", "--license", "mit", "--dry-run"])
    assert card.startswith("---\nlicense: mit")
    assert not uploaded.exists()


def test_an_upload_that_fails_is_one_line(folder, monkeypatch):
    unplugged = OSError(-2, "Name or service not known")
    for error, words in ((hub_error("RepositoryNotFoundError"), "did not take it"), (unplugged, "cannot be reached")):
        monkeypatch.setattr(huggingface_hub, "create_repo", Mock(side_effect=error))
        assert words in complaint(lambda: hub.upload(folder, "card", "somebody/separator"))
    for name in ("separator", "a/b@c", "a/b/c"):
        assert "expected OWNER/NAME" in complaint(lambda name=name: hub.upload(folder, "card", name))


def test_only_own_models_are_uploaded(tmp_path, capsys):
    assert main(["upload", f"asteroid:{tmp_path / 'x.pth'}", "--repo", "somebody/separator", "--license", "mit"]) == 2
    assert "not of sepkit's own" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- the card


def summary(path, **metrics: float):
    values = {name: {"mean": mean, "ci95": [mean - 1, mean + 1], "n": 5} for name, mean in metrics.items()}
    manifest = f"/somewhere/corpus_a/{path.stem}.jsonl"
    path.write_text(json.dumps({"n_utterances": 5, "metrics": values, "manifest": manifest}))
    return path


def test_what_only_developers_read_is_on_no_card():
    from sepkit.evaluation.labels import FROM_LATENTS
    from sepkit.models.published.card import _DIAGNOSTICS

    assert all(map(_DIAGNOSTICS.fullmatch, (*FROM_LATENTS, "mcl_si_sdr_db")))


def test_the_card_says_what_the_model_is_and_the_hub_can_read_it(folder, tmp_path):
    (folder.parent / "config.yaml").write_text("objective: {cost: {name: blr_nll}, assignment: {name: pit}}")
    corpora = ["speech_mini (CC BY 4.0)", "noise_mini (CC0)"]
    summaries = [summary(tmp_path / "test.json", si_sdri_db=9.876, stoi=0.9, mask_rate_nats_per_frame=600)]
    summaries.append(summary(tmp_path / "hard.json", own=1))
    credit = "Spoken by volunteers."
    text = model_card(folder, license="CC-BY-4.0", corpora=corpora, summaries=summaries, credit=credit)
    for words in (
        *("8000 Hz", "blr_nll, matched by pit", "recurrent, rnn gru", "- speech_mini (CC BY 4.0)", "| Epoch | 3 |"),
        *("## License\n\nCC-BY-4.0", "## Limits", credit),
        "| corpus_a test | 5 | - | 9.88 (8.88 to 10.88) | 0.90 (-0.10 to 1.90) |  |",
    ):
        assert words in text, words
    # The card has neither the rest of the manifest's path nor metrics for developers.
    assert "/somewhere" not in text and "mask_rate" not in text
    card = ModelCard(text)
    assert card.data.license == "cc-by-4.0" and card.data.library_name == "sepkit"
    found = {(result.dataset_name, result.metric_type, result.metric_value) for result in card.data.eval_results}
    assert found == {
        ("corpus_a test", "si_sdri_db", 9.876),
        ("corpus_a test", "stoi", 0.9),
        ("corpus_a hard", "own", 1),
    }


def test_a_card_has_rows_for_voices_that_are_alike(folder, tmp_path):
    path = summary(tmp_path / "test.json", si_sdri_db=6.0)
    found = json.loads(path.read_text())
    measured = {"si_sdri_db": {"mean": 2.5, "ci95": [2.0, 3.0], "n": 40}, "si_sdr_db": {"mean": None, "n": 0}}
    found["by"] = {"sex_pair": {"F-F": measured, "F-M": {"si_sdri_db": {"mean": 8.0, "n": 60}}}}
    path.write_text(json.dumps(found))
    text = model_card(folder, license="mit", summaries=[path], name="Zoë")
    assert "name: Zoë\n" in text.split("---\n")[1]
    assert "| female with female | 40 | 2.50 (2.00 to 3.00) |  |  |" in text
    assert "| female with male | 60 | 8.00 |  |  |" in text and "Speakers with similar voices" in text
    plain = model_card(folder, license="mit", summaries=[summary(tmp_path / "a.json", stoi=1.0)])
    assert "Speakers with similar voices" not in plain


def test_scores_and_facts_by_hand(tmp_path):
    """In the order of the card, then by name; test sets by folder and name; what is unknown stays empty."""
    counted = {"speaker_count": {"n_without_number": 3}}
    metrics = {"zeta": {"mean": 1}, "eta": {"mean": 2}, "speaker_count_accuracy": {"mean": 0.5}, "mcl_a": {"mean": 1}}
    metrics["si_sdri_db"] = {"mean": 5.126, "ci95": [4, 6], "n_speakers": 4}
    first = {"metrics": metrics, "manifest": ["/x/data/test.jsonl", "b/c.d.jsonl"], "n_utterances": 10}
    second = {"metrics": {"si_sdr_db": {"mean": 2.0, "n_speakers": None}}, "manifest": None}
    head, line, *rows = card._scores([first | {"matching": counted}, second]).split("\n")[:4]
    columns = ["SI-SDRi (dB)", "SI-SDR (dB)", "Correct speaker count (share of all mixtures)", "eta", "zeta"]
    assert (
        head == "| " + " | ".join(["Test set", "Mixtures", "Speakers", *columns]) + " |" and line == "| --- " * 8 + "|"
    )
    assert rows[0] == "| data test, b c.d | 10 | 4 | 5.13 (4.00 to 6.00) |  | 0.50; no estimate for 3 | 2.00 | 1.00 |"
    assert rows[1] == "| test |  | - |  | 2.00 |  |  |  |"
    part = {"name": "x", "size": 3}
    model = {
        "filterbank": part,
        "masker": part | {"depth": 1},
        "encoding": part,
        "masks": {"name": "y"},
        "hypotheses": 2,
    }
    description = {"model": model, "sample_rate": 8000, "parameters": 12345}
    facts = dict(card._facts(tmp_path / "model", description, ""))
    assert facts == {
        "Sample rate": "8000 Hz", "Estimates": "2", "Parameters": "12,345", "Filterbank": "x, size 3",
        "Masker": "x, size 3, depth 1", "Encoding, masks": "x, y", "Loss": "not stated", "Scores of hypotheses": "no",
        "Prediction of SI-SDR": "no",
    }  # fmt: skip
    objective = {"cost": {"name": "c"}, "assignment": {"name": "a"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"objective": objective}))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "quality.yaml").touch()
    more = {"model": model | {"scoring": {"hidden": 2}}, "info": {"epoch": 3, "score_threshold": 0.256, "other": 1}}
    changed = dict(card._facts(tmp_path / "model", description | more, "")).items() - facts.items()
    assert changed == {
        ("Loss", "c, matched by a"), ("Scores of hypotheses", "yes"), ("Prediction of SI-SDR", "yes"), ("Epoch", "3"),
        ("Score threshold", "0.26"),
    }  # fmt: skip
    assert dict(card._facts(tmp_path / "model", description, "own"))["Loss"] == "own"


def test_a_card_without_scores_says_so(folder):
    text = model_card(folder, license="Our own license, version 2", name="a_model", limits="For whales.")
    head = yaml.safe_load(text.split("---\n")[1])
    assert (head["license"], head["license_name"]) == ("other", "our-own-license-version-2")
    assert "model-index" not in head
    assert "Not measured." in text and "Not stated." in text and "For whales." in text and "# a_model\n" in text


@pytest.mark.parametrize("content", ["", "{", "[]", '{"metrics": 3}', '{"metrics": {"a": 1}}'])
def test_a_summary_that_is_none(folder, tmp_path, content):
    (tmp_path / "summary.json").write_text(content)
    assert "summary.json" in complaint(lambda: model_card(folder, license="mit", summaries=[tmp_path]))
    assert "license" in complaint(lambda: model_card(folder, license=" "))
