import pickle
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

from sepkit import config as c
from sepkit.files import file_digest
from sepkit.models import build_model, load_checkpoint, load_pretrained, load_weights_into, save_model
from sepkit.models.maskers import Masker
from sepkit.models.storage import checkpoints
from sepkit.models.storage.folders import read_description
from sepkit.registry import register
from tests.complaint import complaint
from tests.published import Evil
from tests.tiny_models import RECURRENT


@dataclass
class GainConfig(c.MaskerConfig, name="gain_of_a_test"):
    """A masker from outside the package, with tied weights."""

    initial: float = 1.0


@register(GainConfig)
class Gain(Masker):
    def __init__(self, encoding_dim, hypotheses=2, values_per_dimension=1, *, initial=1.0):
        super().__init__(encoding_dim, hypotheses, values_per_dimension)
        self.gain = nn.Parameter(torch.full((encoding_dim, 1), initial))
        self.tied = self.gain

    def forward(self, features):
        return (features * self.gain)[:, None, None].expand(-1, self.hypotheses, 1, -1, -1)


@pytest.fixture
def folder(model, tmp_path):
    return save_model(model, tmp_path / "exp" / "model", {"epoch": 3, "si_sdr_db": 4.5})


def test_models_of_version_0_2_with_layers_for_training_alone(tmp_path):
    """SepReformer and SR-CorrNet had a loss for inner stages: its layers change no estimate, and are left out."""
    masker = c.SepReformerConfig(channels=6, num_stages=1, num_heads=2, kernel_size=3, max_distance=4)
    bank, linear = c.FreeFilterbankConfig(8, 8, 4, mapping=True), c.DeterministicConfig("linear")
    model = build_model(c.ModelConfig(filterbank=bank, masker=masker, masks=linear)).eval()
    folder = save_model(model, tmp_path)
    names = ("masker.stage_outputs.0.0.weight", "masker.stage_decoders.0.filterbank._filters")
    heads = {name: torch.ones(3) for name in names}
    save_file(load_file(folder / "model.safetensors") | heads, folder / "model.safetensors")

    def older(description):
        description["model"]["masker"]["stage_heads"] = True
        description["weights_sha256"] = file_digest(folder / "model.safetensors")

    rewrite(folder, older)
    mixture = torch.randn(1, 200)
    with torch.no_grad():
        torch.testing.assert_close(load_checkpoint(folder).estimates(mixture), model.estimates(mixture))
    rewrite(folder, lambda description: description["model"].update(masker={"name": "recurrent", "stage_heads": True}))
    assert "model.masker.stage_heads: unknown field" in complaint(lambda: load_checkpoint(folder))


@pytest.mark.parametrize("where", ["", "..", "model.safetensors", "model.yaml"])
def test_what_was_saved_comes_back(model, folder, where):
    loaded = load_checkpoint(folder / where)
    assert loaded.config == RECURRENT and not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    mixture = torch.randn(2, 333)
    assert torch.equal(loaded(mixture).estimates, model(mixture).estimates)


def test_other_choices_come_back(tmp_path):
    transformed = replace(RECURRENT, filterbank=c.STFTFilterbankConfig(64, 16), hypotheses=3, pad="asteroid")
    for config in (transformed, replace(RECURRENT, masker=GainConfig(initial=0.5))):
        model = build_model(config).eval()
        loaded = load_pretrained(save_model(model, tmp_path / config.masker.name))
        mixture = torch.randn(1, 200)
        assert loaded.config == config
        assert torch.equal(loaded(mixture).estimates, model(mixture).estimates)


def test_the_description_is_plain_and_says_what_it_is(folder):
    description = read_description(folder)
    assert description == yaml.safe_load((folder / "model.yaml").read_text())
    assert (description["format"], description["sample_rate"]) == (1, 8000)
    assert description["signal_std"] == pytest.approx(0.07)
    assert description["info"] == {"epoch": 3, "si_sdr_db": 4.5}
    assert description["model"]["masker"]["name"] == "recurrent"


def test_loading_leaves_the_random_stream_alone(folder):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    load_checkpoint(folder)
    assert torch.equal(torch.rand(3), expected)


def test_double_precision_weights_load_in_single(model, folder):
    save_model(model.double(), folder)
    for name, tensor in load_checkpoint(folder).state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, model.state_dict()[name].float())


@pytest.mark.slow
def test_a_compiled_model_is_saved_as_itself(model, folder):
    save_model(torch.compile(model), folder)
    assert torch.equal(load_checkpoint(folder).signal_std, model.signal_std)


def test_a_failed_save_leaves_the_old_model(model, folder, monkeypatch):
    def fails_half_way(tensors, path):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", fails_half_way)
    model.set_signal_statistics(0.0, 9.0)
    assert "No space left on device" in complaint(lambda: save_model(model, folder))
    assert load_checkpoint(folder).signal_std.item() == pytest.approx(0.07)
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "model.yaml"]


def test_an_unwritable_folder(model, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written to" in complaint(lambda: save_model(model, tmp_path / "file" / "model"))


def test_what_cannot_be_described_is_not_saved(model, tmp_path):
    with pytest.raises(ValueError, match="plain data"):
        save_model(model, tmp_path / "model", {"score": np.float64(3)})
    assert not (tmp_path / "model").exists()
    model.config = None
    with pytest.raises(ValueError, match="no configuration"):
        save_model(model, tmp_path / "model")


# --------------------------------------------------------------------------------------------------- what is no model


def test_a_missing_path_and_an_empty_folder(tmp_path):
    assert "no such file or folder" in complaint(lambda: load_checkpoint(tmp_path / "nothing"))
    assert "found no model" in complaint(lambda: load_checkpoint(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "model.yaml"])
def test_half_a_checkpoint(folder, name):
    (folder / name).unlink()
    assert f"{name} is missing" in complaint(lambda: load_checkpoint(folder))


def test_training_state_is_no_model(folder):
    resume = folder.parent / "resume"
    resume.mkdir()
    torch.save({"state_dict": {}}, resume / "last.ckpt")
    for path in (resume, resume / "last.ckpt"):
        assert "training state" in complaint(lambda path=path: load_checkpoint(path))


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_pickle_is_never_opened(folder, tmp_path, name):
    (folder / name).write_bytes(pickle.dumps(Evil(tmp_path / "exploded")))
    assert ("found a pickle" if name == "model.pt" else "damaged") in complaint(lambda: load_checkpoint(folder / name))
    assert not (tmp_path / "exploded").exists()


def test_yaml_tags_are_never_obeyed(folder, tmp_path):
    marker = tmp_path / "exploded"
    (folder / "model.yaml").write_text(f"format: 1\nmodel: !!python/object/apply:pathlib.Path.touch ['{marker}']\n")
    assert "not YAML of plain values" in complaint(lambda: load_checkpoint(folder))
    assert not marker.exists()


def test_nothing_is_imported_because_a_checkpoint_names_it(folder, tmp_path, monkeypatch):
    (tmp_path / "evil_masker.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    rewrite(folder, lambda description: description["model"]["masker"].update(name="evil_masker"))
    assert "unknown choice 'evil_masker'" in complaint(lambda: load_checkpoint(folder))


def rewrite(folder, change):
    description = yaml.safe_load((folder / "model.yaml").read_text())
    change(description)
    (folder / "model.yaml").write_text(yaml.safe_dump(description))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("model"), "no field `model`"),
        (lambda d: d.update(format=99), "found format 99"),
        (lambda d: d["model"].update(color="red"), "model.color: unknown field"),
        (lambda d: d["model"].update(hypotheses="two"), "model.hypotheses"),
        (lambda d: d.update(model=[1, 2]), "expected a mapping"),
    ],
)
def test_a_wrong_description(folder, change, message):
    rewrite(folder, change)
    line = complaint(lambda: load_checkpoint(folder))
    assert message in line and "model.yaml" in line


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"a: [", b"just text"])
def test_a_damaged_description(folder, content):
    (folder / "model.yaml").write_bytes(content)
    assert "model.yaml" in complaint(lambda: load_checkpoint(folder))


@pytest.mark.parametrize("kept", [0, 5, 100, -10])
def test_truncated_weights(folder, kept):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "damaged" in complaint(lambda: load_checkpoint(folder))


def test_weights_of_another_architecture(folder):
    rewrite(folder, lambda description: description["model"]["masker"].update(hidden_size=6))
    line = complaint(lambda: load_checkpoint(folder))
    assert "of another shape" in line and "expected" in line
    tensors = load_file(folder / "model.safetensors")
    tensors["extra"] = tensors.pop("signal_std")
    save_file(tensors, folder / "model.safetensors")
    line = complaint(lambda: load_checkpoint(folder))
    assert "1 missing (such as signal_std)" in line and "1 unexpected (such as extra)" in line


# -------------------------------------------------------------------------------------------------------- fine-tuning


def test_fine_tuning_takes_what_fits_and_reports_the_rest(model, folder):
    three = build_model(replace(RECURRENT, hypotheses=3))
    before = {name: tensor.clone() for name, tensor in three.state_dict().items()}
    report = load_weights_into(three, folder)
    assert report.mismatched and not report.missing and not report.unexpected
    for name, tensor in three.state_dict().items():
        assert torch.equal(tensor, before[name] if name in report.mismatched else model.state_dict()[name])
    text = str(report)
    assert f"loaded {len(report.loaded)} of {len(before)} tensors from {folder}" in text
    assert all(name in text for name in report.mismatched)


def test_points_start_from_the_means_of_gaussian_masks_and_back(tmp_path):
    bank = c.STFTFilterbankConfig(kernel_size=16, stride=8, complex_masks=True)
    points = replace(RECURRENT, filterbank=bank, masks=c.DeterministicConfig(activation="linear"))
    gaussian = build_model(replace(points, masks=c.GaussianConfig(activation="linear"))).eval()
    model = build_model(points).eval()
    report = load_weights_into(model, save_model(gaussian, tmp_path / "gaussian"))
    assert report.shared and not report.mismatched
    mixture = torch.randn(2, 400)
    expected = gaussian(mixture).estimates
    torch.testing.assert_close(model(mixture).estimates, expected)
    back = build_model(replace(points, masks=c.GaussianConfig(activation="linear"))).eval()
    load_weights_into(back, save_model(model, tmp_path / "points"))
    torch.testing.assert_close(back(mixture).estimates, expected)


def test_a_model_keeps_its_own_windows_with_the_weights_of_another(tmp_path):
    """Filters are as long with another stride or synthesis window, but others."""
    masker, masks = c.GatedRecurrenceConfig(8, 6, 10, 1), c.DeterministicConfig(activation="linear")
    bank = c.STFTFilterbankConfig(64, 32, complex_masks=True)
    first = build_model(replace(RECURRENT, filterbank=bank, masker=masker, masks=masks))
    later = replace(first.config, filterbank=replace(bank, stride=16, synthesis_size=32))
    model, own = build_model(later), build_model(later).filterbank.state_dict()
    load_weights_into(model, save_model(first, tmp_path / "first"))
    kept = model.filterbank.state_dict()
    assert all(kept[name].equal(value) for name, value in own.items()) and kept.keys() == own.keys()
    assert torch.equal(model.masker.output.weight, first.masker.output.weight)


@pytest.mark.parametrize("bands", [1, 2])
def test_a_deeper_model_begins_as_the_one_that_it_grows_from(tmp_path, bands):
    masker = c.GatedRecurrenceConfig(model_dim=8, hidden_size=6, feedforward_dim=10, num_layers=1, bands=bands)
    shallow = build_model(replace(RECURRENT, masker=masker)).eval()
    deep = build_model(replace(RECURRENT, masker=replace(masker, num_layers=3))).eval()
    report = load_weights_into(deep, save_model(shallow, tmp_path / "shallow"))
    assert report.missing and all(name.startswith(("masker.blocks.1.", "masker.blocks.2.")) for name in report.missing)
    mixture = torch.randn(2, 400)
    estimates = deep(mixture).estimates
    torch.testing.assert_close(estimates, shallow(mixture).estimates, rtol=0, atol=0)
    # The new blocks learn: their last layers have gradients, and after a step the layers before them, too.
    estimates.square().sum().backward()
    added = deep.masker.blocks[2]
    assert added.time.output.weight.grad.abs().max() > 0 and added.feedforward[-1].weight.grad.abs().max() > 0


def test_fine_tuning_between_maskers_names_both_sides(folder):
    report = load_weights_into(build_model(replace(RECURRENT, masker=GainConfig())), folder)
    assert "masker.gain" in report.missing
    assert report.unexpected and all(name.startswith("masker.") for name in report.unexpected)


def test_fine_tuning_from_nothing_that_fits(folder):
    stft = build_model(replace(RECURRENT, filterbank=c.STFTFilterbankConfig(), masker=GainConfig()))
    assert "none of its" in complaint(lambda: load_weights_into(stft, folder))
