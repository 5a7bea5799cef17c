import json

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry, write_manifest
from sepkit.models import build_model, save_model
from tests.tiny_models import LONG_STEPS


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    generator = np.random.default_rng(0)
    entries = []
    for number in range(32):
        num_samples = 4000 + 100 * number
        for k in range(2):
            waveform = generator.uniform(0.01, 0.3, 1) * generator.standard_normal(num_samples)
            audio.write(folder / f"{number}_{k}.wav", waveform.astype(np.float32), 8000)
        # Calibration hears all that there is of a speaker: here two recordings.
        sources = [SourceEntry(path=f"{number}_{k}.wav", speaker=f"{number % 14}_{k}") for k in range(2)]
        entries.append(MixtureEntry(id=f"m{number}", sample_rate=8000, num_samples=num_samples, sources=sources))
    return str(write_manifest(folder / "dev.jsonl", entries))


@pytest.fixture
def experiment(tmp_path):
    save_model(build_model(LONG_STEPS), tmp_path / "exp" / "model")
    return tmp_path / "exp"


def test_calibrates_and_separate_then_predicts(tmp_path, experiment, manifest, refused, capsys):
    line = ["calibrate", str(experiment), "--manifest", manifest, "--device", "cpu"]
    separate = ["separate", manifest.replace("dev.jsonl", "0_0.wav"), "--model", str(experiment), "--device", "cpu"]
    assert main([*separate, "--out", str(tmp_path / "before")]) == 0
    assert main(line) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == str(experiment / "model" / "quality.yaml")
    assert "64 estimates in 32 mixtures, 0 skipped" in captured.out
    assert "rank correlation" in captured.out
    text = (experiment / "model" / "quality.yaml").read_text()
    assert main([*separate, "--out", str(tmp_path / "after")]) == 0
    assert main([*separate, "--out", str(tmp_path / "without"), "--no-predict"]) == 0
    told = {name: json.loads((tmp_path / name / "0_0.json").read_text()) for name in ("before", "after", "without")}
    assert told["before"]["predicted_si_sdr_db"] is None and told["without"]["predicted_si_sdr_db"] is None
    assert len(told["after"]["predicted_si_sdr_db"]) == len(told["after"]["predicted_interval_db"]) == 2
    # The predictor of other weights is refused, and calibrating again is the remedy.
    save_model(build_model(LONG_STEPS), experiment / "model")
    capsys.readouterr()
    assert "sepkit calibrate" in refused([*separate, "--out", str(tmp_path / "other")])
    assert main(line) == 0 and main([*separate, "--out", str(tmp_path / "other")]) == 0
    assert (experiment / "model" / "quality.yaml").read_text() != text


@pytest.mark.parametrize(
    ("model", "more", "word"),
    [
        ("none", [], "no such file"), ("boxed_8k", [], "no folder"), ("asteroid:model.pth", [], "no folder"),
        (None, ["--first", "0"], "first: found 0"), (None, ["--first", "2"], "expected"),
    ],
)  # fmt: skip
def test_mistakes_exit_with_2_and_one_line(experiment, manifest, refused, model, more, word):
    assert word in refused(["calibrate", model or experiment, "--manifest", manifest, "--device", "cpu", *more])
