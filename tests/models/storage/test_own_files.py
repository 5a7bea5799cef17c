"""Models with a user's own masker: what is noted, and what is reported if the file is missing or changed."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from sepkit.cli.main import main
from sepkit.config import MaskerConfig, ModelConfig
from sepkit.data import audio
from sepkit.models import build_model, load_checkpoint, save_model
from sepkit.registry import import_file
from tests.complaint import complaint

FILE = """
from dataclasses import dataclass
from sepkit.config import MaskerConfig
from sepkit.models.maskers import RecurrentMasker
from sepkit.registry import register

@dataclass
class TinyConfig(MaskerConfig, name="tiny_of_mine"):
    hidden_size: int = 4
    num_layers: int = 1

@register(TinyConfig)
class Tiny(RecurrentMasker):
    pass
"""


@pytest.fixture
def own_file(tmp_path: Path):
    path = tmp_path / "tiny_masker.py"
    path.write_text(FILE)
    yield path
    forget()


def forget() -> None:
    MaskerConfig.choices.pop("tiny_of_mine", None)
    sys.modules.pop("tiny_masker", None)


@pytest.fixture
def folder(own_file: Path, tmp_path: Path, tiny_model_config: ModelConfig) -> Path:
    import_file(str(own_file))
    config = replace(tiny_model_config, masker=MaskerConfig.choices["tiny_of_mine"]())
    return save_model(build_model(config), tmp_path / "exp" / "model")


def test_the_file_is_noted_by_name_and_asked_for(folder, own_file):
    (noted,) = yaml.safe_load((folder / "model.yaml").read_text())["own_files"]
    assert noted["file"] == "tiny_masker.py" and len(noted["sha256"]) == 64
    forget()
    complaint(lambda: load_checkpoint(folder), r"tiny_of_mine.*trained with --import tiny_masker\.py: give that too")
    import_file(str(own_file))
    assert load_checkpoint(folder).hypotheses == 2


def test_a_file_that_changed_is_told_in_one_line(folder, own_file, capsys):
    load_checkpoint(folder)
    assert capsys.readouterr().err == ""
    forget()
    own_file.write_text(FILE + "\n# now another\n")
    import_file(str(own_file))
    load_checkpoint(folder)
    assert "tiny_masker.py has changed" in capsys.readouterr().err


def test_recordings_are_separated_side_by_side(folder, own_file, tmp_path):
    noise = np.random.default_rng(0).standard_normal((2, 4000)).astype(np.float32)
    recordings = [str(tmp_path / f"{place}.wav") for place in range(2)]
    for path, waveform in zip(recordings, noise, strict=True):
        audio.write(Path(path), waveform, 8000)
    forget()
    found = {}
    for processes in ("1", "2"):
        out = tmp_path / processes
        options = ["--model", str(folder), "--device", "cpu", "--import", str(own_file), "--processes", processes]
        assert main(["separate", *recordings, *options, "--out", str(out)]) == 0
        found[processes] = np.stack([audio.read(path) for path in sorted(out.glob("*.wav"))])
    assert found["1"].shape == (4, 4000)
    np.testing.assert_allclose(found["1"], found["2"], atol=1e-6)


def test_models_of_sepkit_alone_note_nothing(tmp_path, tiny_model_config):
    saved = save_model(build_model(tiny_model_config), tmp_path / "model")
    assert "own_files" not in yaml.safe_load((saved / "model.yaml").read_text())


@pytest.mark.parametrize("command", ["evaluate", "separate", "report", "upload", "calibrate", "models", "export"])
def test_every_command_that_takes_a_model_imports(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "--import FILE" in capsys.readouterr().out
