"""From an experiment to the model that ships, at tiny size."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import sepkit
from sepkit.config import GaussianConfig, LogNormalConfig, ModelConfig, RecurrentConfig, STFTFilterbankConfig
from sepkit.data import audio
from sepkit.inference import calibration
from sepkit.models import build_model, load_pretrained, save_model
from tools import default_model


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    # Calibration separates further recordings of this many mixtures, which takes most of its time.
    monkeypatch.setattr(calibration, "MOST_HEARD", 3)
    torch.manual_seed(0)
    latents = {"encoding": GaussianConfig(), "masks": LogNormalConfig()}
    masker = RecurrentConfig(hidden_size=4, num_layers=1)
    config = ModelConfig(filterbank=STFTFilterbankConfig(64, 32), masker=masker, **latents)
    save_model(build_model(config), tmp_path / "exp" / "model", {"epoch": 3})
    objective = {"objective": {"cost": {"name": "blr_nll"}, "assignment": {"name": "pit"}}}
    (tmp_path / "exp" / "config.yaml").write_text(yaml.safe_dump(objective))
    return tmp_path / "exp"


@pytest.fixture
def manifests(tmp_path) -> list[Path]:
    """Of development and test mixtures: tones in noise, of other frequencies."""
    generator, paths = np.random.default_rng(0), []
    for split, count in (("dev", 30), ("test", 3)):
        rows = []
        for index in range(count):
            files = []
            for speaker in range(2):
                tone = np.sin(np.arange(8000) * generator.uniform(0.05, 1.0)) * generator.uniform(0.02, 0.2)
                files.append(tmp_path / f"{split}_{index}_{speaker}.wav")
                audio.write(files[-1], (tone + 0.01 * generator.standard_normal(8000)).astype(np.float32), 8000)
            sources = [{"path": str(path), "speaker": path.stem, "num_samples": 8000} for path in files]
            rows.append({"id": f"{split}{index}", "sample_rate": 8000, "num_samples": 8000, "sources": sources})
        paths.append(tmp_path / f"{split}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return paths


def test_what_ships_has_half_the_weights_a_predictor_and_a_card(experiment, manifests, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "package" / "boxed"
    arguments = [str(experiment), "--dev", str(manifests[0]), "--tests", str(manifests[1]), "--out", str(out)]
    assert default_model.main(arguments) == 0
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "model.onnx", "model.yaml", "quality.yaml"]
    card = (out / "README.md").read_text()
    assert "license: cc-by-4.0" in card and "LibriSpeech" in card and "blr_nll and rates, matched by pit" in card
    summary = json.loads((experiment / "evaluation" / "test" / "summary.json").read_text())
    assert f"{summary['metrics']['si_sdri_db']['mean']:.2f}" in card
    separator = sepkit.load_model(out)
    assert separator.quality is not None and separator.runner.info["epoch"] == 3
    # Of what ships, the card alone: from another evaluation, with the loss that it named.
    summary["model"], summary["metrics"]["si_sdri_db"]["mean"] = "boxed", 4.25
    sexes = {"sex_pair": {"F-F": {"si_sdri_db": {"mean": 1.5, "n": 2}}, "F-M": {"si_sdri_db": {"mean": 7.5, "n": 1}}}}
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"by": sexes}))
    assert default_model.main(["--card", str(tmp_path), "--out", str(out)]) == 0
    renewed = (out / "README.md").read_text()
    assert "4.25" in renewed and "blr_nll and rates, matched by pit" in renewed
    assert "| female with female | 2 | 1.50 |" in renewed and "| female with male | 1 | 7.50 |" in renewed
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"model": "another"}))
    assert default_model.main(["--card", str(tmp_path), "--out", str(out)]) == 2
    assert (out / "README.md").read_text() == renewed
    assert alone(out) in renewed and default_model.TEXTS["more"]["speech_more"] not in renewed
    # Again, as trained with the silence term on more speech: with other weights nothing of the old ones stays.
    save_model(build_model(load_pretrained(out).config), experiment / "model", {"epoch": 4})
    configuration = yaml.safe_load((experiment / "config.yaml").read_text())
    configuration["objective"]["silence"] = {"weight": 0.1}
    (experiment / "config.yaml").write_text(yaml.safe_dump(configuration))
    again = [str(experiment), "--dev", str(manifests[0]), "--out", str(out), "--more", "speech_more"]
    assert default_model.main(again) == 0
    assert sepkit.load_model(out).runner.info["epoch"] == 4
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    for expected in ("Not measured.", "4.25"):
        card = (out / "README.md").read_text()
        assert "blr_nll and rates and the silence term, matched by pit" in card and expected in card
        # An untrained model cannot tell one speaker from two.
        assert alone(out) in card and default_model.TEXTS["more"]["speech_more"] in card
        assert default_model.main(["--card", str(tmp_path), "--out", str(out)]) == 0


def alone(folder: Path) -> str:
    """What the card of a model states about a single speaker, as its predictor has it."""
    predictor = yaml.safe_load((folder / "quality.yaml").read_text())
    return default_model.TEXTS["one_speaker"]["counted" if predictor["single_speaker"] else "not_counted"]


@pytest.mark.parametrize("broken", ["too large", "no manifest", "no configuration"])
def test_what_shipped_stays_where_a_step_fails(broken, experiment, manifests, tmp_path, monkeypatch, capsys):
    out = tmp_path / "package" / "boxed"
    out.mkdir(parents=True)
    (out / "README.md").write_text("the old one")
    dev = tmp_path / "missing.jsonl" if broken == "no manifest" else manifests[0]
    if broken == "too large":
        monkeypatch.setattr(default_model, "LARGEST_BYTES", 1000)
    if broken == "no configuration":
        (experiment / "config.yaml").unlink()
    assert default_model.main([str(experiment), "--dev", str(dev), "--out", str(out)]) == 2
    named = {"too large": "at most 1000", "no manifest": "missing.jsonl", "no configuration": "config.yaml"}
    assert named[broken] in capsys.readouterr().err
    assert [path.name for path in out.parent.iterdir()] == ["boxed"]
    assert (out / "README.md").read_text() == "the old one"
