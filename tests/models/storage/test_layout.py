"""Hostile models are refused before they take memory, and broken ones are named as the model."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from sepkit.models import build_model, load_checkpoint, load_pretrained, save_model
from tests.complaint import complaint
from tests.peak_memory import PEAK_MEMORY
from tests.tiny_models import RECURRENT


@pytest.fixture
def folder(tmp_path):
    return save_model(build_model(RECURRENT), tmp_path / "model", {"epoch": 1})


def changed(folder: Path, change) -> Path:
    data = yaml.safe_load((folder / "model.yaml").read_text())
    change(data)
    (folder / "model.yaml").write_text(yaml.safe_dump(data))
    return folder


HOSTILE = {
    "hidden_size: 6000": lambda data: data["model"]["masker"].update(hidden_size=6000, num_layers=8),
    "num_layers: 1000000": lambda data: data["model"]["masker"].update(num_layers=1000000),
    "hidden_size: 10**12": lambda data: data["model"]["masker"].update(hidden_size=10**12),
    "hypotheses: 10**9": lambda data: data["model"].update(hypotheses=10**9),
    "num_filters: 10**9": lambda data: data["model"]["filterbank"].update(num_filters=10**9),
    "kernel_size of the STFT": lambda data: data["model"].update(filterbank={"name": "stft", "kernel_size": 65536}),
    "blocks: 10**7": lambda data: data["model"].update(masker={"name": "conv_tasnet", "repeats": 10**7}),
    "sample_rate: 10**9": lambda data: data["model"].update(sample_rate=10**9),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_descriptions_of_monsters_are_refused(name, folder):
    assert str(folder) in complaint(lambda: load_pretrained(changed(folder, HOSTILE[name])))


def test_refusing_them_takes_less_than_a_gigabyte(folder, tmp_path):
    saved = [save_model(build_model(RECURRENT), tmp_path / str(number)) for number in range(len(HOSTILE))]
    folders = [*map(str, map(changed, saved, HOSTILE.values())), *_of_other_kinds(tmp_path)]
    program = (
        f"{PEAK_MEMORY}\nimport sys, time\nfrom sepkit import load_model\nfrom sepkit.errors import UserError\n"
        "for path in sys.argv[1:]:\n"
        "    began = time.process_time()\n"
        "    try: load_model(path)\n"
        "    except UserError as error: print(round(time.process_time() - began, 1), str(error)[-90:])\n"
        "print(resident_peak_mib())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *folders], capture_output=True, text=True)
    *refusals, peak_mib = done.stdout.splitlines()
    assert done.returncode == 0 and len(refusals) == len(folders), done.stderr[-2000:]
    assert max(float(line.split()[0]) for line in refusals) < 20 and float(peak_mib) < 1000, done.stdout


def _of_other_kinds(folder: Path) -> list[str]:
    """Aliases in each YAML of a model, records of asteroid that inflate, and sizes that no weights fill."""
    laughs = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    for name in ("model.yaml", "quality.yaml"):
        (save_model(build_model(RECURRENT), folder / name) / name).write_text(laughs)
    (folder / "speechbrain").mkdir()
    (folder / "speechbrain" / "hyperparams.yaml").write_text(laughs)
    torch.save({"model_name": "ConvTasNet", "model_args": MONSTER, "state_dict": {}}, folder / "monster.pth")
    zeros = {"model_name": "ConvTasNet", "model_args": {}, "state_dict": {"x": torch.zeros(20_000_000)}}
    packed = _compressed(zeros, folder / "packed.pth")
    others = [f"speechbrain:{folder / 'speechbrain'}", f"asteroid:{folder / 'monster.pth'}", f"asteroid:{packed}"]
    return [str(folder / "model.yaml"), str(folder / "quality.yaml"), *others]


MONSTER = {
    "n_src": 2, "n_filters": 60000, "kernel_size": 16, "stride": 8, "sample_rate": 8000, "bn_chan": 60000,
    "hid_chan": 60000, "skip_chan": 60000, "conv_kernel_size": 3, "n_blocks": 8, "n_repeats": 3, "mask_act": "relu",
}  # fmt: skip


def _compressed(content, path: Path) -> Path:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with zipfile.ZipFile(buffer) as stored, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    return path


@pytest.mark.parametrize("at", [9, 200, -4])
def test_a_flipped_byte_is_noticed(at, folder):
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    assert str(file) in complaint(lambda: load_pretrained(folder))


def test_a_kill_between_the_two_files_loses_nothing(folder, monkeypatch):
    """Weights of the older model stand beside the description of the newer one, until both are written."""
    before = load_checkpoint(folder).state_dict()
    torch.manual_seed(1)
    model = build_model(RECURRENT)
    replaced = os.replace

    def killed(source, target):
        if str(target).endswith("model.safetensors"):
            raise KeyboardInterrupt
        replaced(source, target)

    monkeypatch.setattr("sepkit.files.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_model(model, folder)
    monkeypatch.undo()
    for name, tensor in load_checkpoint(folder).state_dict().items():
        assert torch.equal(tensor, before[name])
    save_model(model, folder)
    assert "earlier_weights_sha256" not in yaml.safe_load((folder / "model.yaml").read_text())


@pytest.mark.parametrize(
    ("name", "value"), [("filterbank.encoder.filterbank._filters", float("nan")), ("signal_std", 0.0)]
)
def test_broken_weights_are_named_as_the_model(name, value, folder):
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = torch.full_like(tensors[name], value)
    save_file(tensors, folder / "model.safetensors")
    changed(folder, lambda data: data.pop("weights_sha256"))
    assert "model.safetensors" in complaint(lambda: load_pretrained(folder))


@pytest.mark.parametrize(
    "info", [[1], {"score_threshold": "loud"}, {"score_threshold": [1]}, {"score_threshold": float("nan")}]
)
def test_broken_notes_are_named(info, folder):
    changed(folder, lambda data: data.update(info=info))
    assert "model.yaml: info" in complaint(lambda: load_pretrained(folder))


def test_laying_out_a_model_imports_no_compiler():
    program = """
import sys
import yaml
from sepkit.config import ModelConfig, from_dict
from sepkit.models import build_model
from sepkit.models.storage.layout import build_on_meta
for name in sys.argv[1:]:
    config = from_dict(ModelConfig, yaml.safe_load(open(name))["model"])
    build_on_meta(lambda: build_model(config), name, 10_000)
assert "torch._dynamo" not in sys.modules
"""
    models = sorted((Path(__file__).parents[3] / "conf" / "model").glob("*.yaml"))
    subprocess.run([sys.executable, "-c", program, *map(str, models)], check=True)
