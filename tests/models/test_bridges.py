"""Models of other toolkits: equal outputs for equal weights, and nothing in their files is executed."""

import copy
import inspect
import math
import pickle
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from sepkit import config as c
from sepkit.models import load_pretrained
from sepkit.models.bridges import asteroid, from_asteroid, from_speechbrain, from_torchaudio, speechbrain
from tests.complaint import complaint
from tests.published import SPEECHBRAIN_YAML, Evil, peer, randomize, small_asteroid


def assert_like(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


# ----------------------------------------------------------------------------------------------------------- asteroid


@pytest.fixture(scope="module")
def asteroid_checkpoint():
    torch.manual_seed(0)
    return dict(small_asteroid().serialize())


def old(checkpoint: dict, data) -> dict:
    """A file of before asteroid 0.4.0, as its save_publishable writes it: no rate and no newer argument."""
    newer = ("sample_rate", "causal", "encoder_activation")
    arguments = {key: value for key, value in checkpoint["model_args"].items() if key not in newer}
    infos = {**checkpoint.get("infos", {}), "training_config": {"data": data}, "final_metrics": {}}
    return {**checkpoint, "model_args": arguments, "infos": infos}


def test_the_rate_of_an_old_asteroid_file_is_that_of_its_training(asteroid_checkpoint, tmp_path):
    publisher = peer("asteroid.models.publisher")
    model = {**asteroid_checkpoint, "dataset": "WHAM", "licenses": "", "infos": {}}
    del (arguments := dict(model["model_args"]))["sample_rate"]
    training = {"data": {"sample_rate": 16000}}
    publisher.save_publishable(str(tmp_path), {**model, "model_args": arguments}, {}, training, recipe="wham")
    name = f"asteroid:{tmp_path / 'model.pth'}"
    assert load_pretrained(name).sample_rate == load_pretrained(f"{name}@16000").sample_rate == 16000
    assert "states a rate of 16000 Hz, found @8000; leave out" in complaint(lambda: load_pretrained(f"{name}@8000"))


@pytest.mark.parametrize("data", [{}, 3, None])
def test_a_file_that_does_not_tell_its_rate_is_given_it(asteroid_checkpoint, tmp_path, data):
    torch.save(old(asteroid_checkpoint, data), path := tmp_path / "model.pth")
    assert f"give one: asteroid:{path}@8000" in complaint(lambda: load_pretrained(f"asteroid:{path}"))
    assert load_pretrained(f"asteroid:{path}@8000").sample_rate == 8000
    assert from_asteroid(path, sample_rate=16000).sample_rate == 16000
    # A file whose own name ends so takes precedence.
    path.rename(tmp_path / "model@8000")
    assert "found no sample rate" in complaint(lambda: load_pretrained(f"asteroid:{tmp_path / 'model@8000'}"))


NOT_READ = ["DPTNet", "DCCRNet", "DCUNet", "LSTMTasNet", "DeMask", "XUMX", "FasNetTAC", "MultiDecoderDPRNN"]


@pytest.mark.parametrize("name", [*NOT_READ, "DPRNNTasNet"])
def test_classes_of_asteroid_that_are_not_read_are_named(asteroid_checkpoint, tmp_path, name):
    arguments = asteroid_checkpoint["model_args"] | {"use_mulcat": True, "num_layers": 1, "rnn_type": "LSTM"}
    torch.save({**asteroid_checkpoint, "model_name": name, "model_args": arguments}, tmp_path / "model.pth")
    other = f"found an asteroid '{name}', expected one of ConvTasNet, DPRNNTasNet"
    words = "use_mulcat is True" if name == "DPRNNTasNet" else other
    assert words in complaint(lambda: load_pretrained(f"asteroid:{tmp_path / 'model.pth'}"))


def test_a_pointer_of_git_lfs_is_told_from_weights(tmp_path):
    path = tmp_path / "epoch.0180.pth"
    oid = "336d6f40035e00496aacbe42c9ddf263d21b25dcb7941b5b90e245e9145043d2"
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 178067890\n")
    for kind in ("asteroid", "sepreformer", "tf-locoformer"):
        line = complaint(lambda kind=kind: load_pretrained(f"{kind}:{path}"))
        assert line == f"{path}: this is a Git LFS pointer (134 bytes); run git lfs pull"
    assert "is a Git LFS pointer" in complaint(lambda: load_pretrained(f"torchaudio:{path}@8000"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("n_filters", 65537), ("n_blocks", 31), ("n_repeats", 1001), ("hid_chan", math.inf), ("bn_chan", -(10**9))],
        *[("sample_rate", value) for value in (math.inf, math.nan, "fast", -8000)],
    ],
)
def test_sizes_beyond_reason_are_refused_before_anything_is_made(asteroid_checkpoint, tmp_path, name, value):
    arguments = asteroid_checkpoint["model_args"] | {name: value}
    torch.save({**asteroid_checkpoint, "model_args": arguments}, tmp_path / "model.pth")
    line = complaint(lambda: from_asteroid(tmp_path / "model.pth"))
    # The rate's type is checked with the rest of the configuration.
    assert name in line or (name == "sample_rate" and "model_args" in line)


CONV = {"bn_chan": 5, "hid_chan": 6, "skip_chan": None, "conv_kernel_size": 3, "n_blocks": 2, "n_repeats": 4}
DPRNN = {"bn_chan": 5, "hid_size": 6, "chunk_size": 20, "hop_size": 9, "n_repeats": 2, "num_layers": 1, "dropout": 0.5}
DPRNN |= {"rnn_type": "LSTM", "bidirectional": 1}
SUDO = {"bn_chan": 5, "in_chan": 6, "num_blocks": 2, "upsampling_depth": 3}


@pytest.mark.parametrize(
    ("name", "own", "masker"),
    [
        # Files of before asteroid 0.4.0 leave out what was fixed then.
        ("ConvTasNet", CONV, c.ConvTasNetConfig(5, 6, 0, 3, 2, 4, "global_layer_norm", False)),
        (
            "ConvTasNet",
            CONV | {"skip_chan": 7, "causal": True, "norm_type": "cgLN"},
            c.ConvTasNetConfig(5, 6, 7, 3, 2, 4, "cumulative_layer_norm", True),
        ),
        ("DPRNNTasNet", DPRNN, c.DualPathRNNConfig(5, 6, 20, 9, 2, "lstm", 1, 0.0, True, "global_layer_norm")),
        (
            "DPRNNTasNet",
            DPRNN | {"num_layers": 2, "rnn_type": "GRU", "bidirectional": 0, "norm_type": "BatchNorm"},
            c.DualPathRNNConfig(5, 6, 20, 9, 2, "gru", 2, 0.5, False, "batch_norm"),
        ),
        ("SuDORMRFNet", SUDO, c.SuDoRMRFConfig(5, 6, 2, 3)),
        ("SuDORMRFImprovedNet", SUDO, c.ImprovedSuDoRMRFConfig(5, 6, 2, 3)),
    ],
)
@pytest.mark.parametrize(("encoder", "mask"), [(None, None), ("relu", "sigmoid")])
def test_arguments_of_asteroid_by_hand(name, own, masker, encoder, mask):
    common = {"sample_rate": 8000.0, "n_src": 3, "n_filters": 10, "kernel_size": 12, "stride": 6, "mask_act": mask}
    fixed = "relu" if name == "SuDORMRFNet" else "linear"
    more = {} if encoder is None else {"encoder_activation": encoder, "fb_name": "FreeFB", "out_chan": 10}
    bank = c.FreeFilterbankConfig(10, 12, 6)
    if "SuDORMRF" in name:
        # Lengths are multiples of half a filter and of 2^3.
        bank.padding, bank.output_padding, bank.multiple = 6, 5, 24
    points = c.DeterministicConfig(encoder or fixed), c.DeterministicConfig(mask or "linear")
    expected = c.ModelConfig(8000, 3, bank, points[0], masker=masker, masks=points[1], pad="asteroid")
    assert asteroid._model_config("file", name, common | more | own) == expected
    if name == "DPRNNTasNet":
        # There, it runs over filters.
        complaint(lambda: asteroid._model_config("f", name, common | own | {"mask_act": "softmax"}), "mask_act is")


def test_how_a_pickle_was_written_is_no_warning_to_its_reader(tmp_path):
    (tmp_path / "model.pth").write_bytes(pickle.dumps({"a": 1}, protocol=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "refused" in complaint(lambda: from_asteroid(tmp_path / "model.pth"))


def test_a_missing_file_is_not_looked_for_on_the_hub():
    assert "no such file" in complaint(lambda: load_pretrained("asteroid:downloads/model.pth"))


def test_asteroid_from_the_hub(asteroid_checkpoint, tmp_path, hub):
    asked = hub(tmp_path)
    assert "no pytorch_model.bin" in complaint(lambda: load_pretrained("asteroid:somebody/model"))
    torch.save(asteroid_checkpoint, tmp_path / "pytorch_model.bin")
    assert load_pretrained("asteroid:somebody/model@v2").hypotheses == 2
    assert (asked["name"], asked["revision"]) == ("somebody/model", "v2")
    assert asked["allow_patterns"] == ["pytorch_model.bin"]


# -------------------------------------------------------------------------------------------------------- speechbrain


@pytest.fixture(scope="module")
def speechbrain_folder(tmp_path_factory):
    dual_path = peer("speechbrain.lobes.models.dual_path")
    torch.manual_seed(0)
    block = dual_path.SBTransformerBlock(1, 16, 4, 20, dropout=0, use_positional_encoding=True, norm_before=True)
    parts = {
        "encoder": dual_path.Encoder(8, 12),
        "masknet": dual_path.Dual_Path_Model(
            12, 16, block, copy.deepcopy(block), 2, "ln", K=10, linear_layer_after_inter_intra=False
        ),
        "decoder": dual_path.Decoder(12, 1, 8, 4, bias=False),
    }
    folder = tmp_path_factory.mktemp("sepformer")
    (folder / "hyperparams.yaml").write_text(SPEECHBRAIN_YAML)
    for name, module in parts.items():
        randomize(module.eval())
        torch.save(module.state_dict(), folder / f"{name}.ckpt")
    return folder, parts


def test_defaults_are_speechbrains():
    """Arguments that a file leaves out have them; its decoder hands them on to torch."""
    classes = {**vars(peer("speechbrain.lobes.models.dual_path")), "Decoder": nn.ConvTranspose1d}
    for kind, taken in speechbrain._TAKEN.items():
        stated = taken | {name: default for name, (_, default) in speechbrain._FIXED[kind].items()}
        stated = {name: default for name, default in stated.items() if default is not None}
        parameters = inspect.signature(classes[kind]).parameters
        assert {name: parameters[name].default for name in stated} == stated


@pytest.fixture
def copied(speechbrain_folder, tmp_path):
    """A folder of one's own, to break."""
    return Path(shutil.copytree(speechbrain_folder[0], tmp_path / "copied"))


def separated_by_speechbrain(parts, mixture):
    """As its separate_batch: estimates (B, n, T)."""
    encoding = parts["encoder"](mixture)
    masked = parts["masknet"](encoding) * encoding
    estimates = torch.stack([parts["decoder"](one).view(len(mixture), -1) for one in masked], 1)
    return nn.functional.pad(estimates, (0, mixture.shape[-1] - estimates.shape[-1]))


@pytest.mark.parametrize("length", [8, 333, 404])
def test_a_sepformer_of_speechbrain_separates_as_there(speechbrain_folder, length):
    folder, parts = speechbrain_folder
    model = load_pretrained(f"speechbrain:{folder}")
    assert (model.sample_rate, model.hypotheses, model.training) == (8000, 2, False)
    mixture = torch.randn(2, length)
    with torch.no_grad():
        assert_like(model(mixture).estimates, separated_by_speechbrain(parts, mixture))


def test_speechbrain_from_the_hub(speechbrain_folder, hub):
    asked = hub(speechbrain_folder[0])
    assert load_pretrained("speechbrain:speechbrain/sepformer-wsj02mix").hypotheses == 2
    assert asked["name"] == "speechbrain/sepformer-wsj02mix"
    assert not any(name.endswith(".py") or name == "*" for name in asked["allow_patterns"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("K: 10", "K: ten", "chunk_size: found 'ten', expected a whole number"),
        ("K: 10", "K: 10000000", "K of Dual_Path_Model is 10000000"),
        ("  num_layers: 2", "  num_layers: 5000", "expected at most 1000"),
        ("norm: ln", "norm: gln", "norm of Dual_Path_Model is gln, expected ln"),
        ("skip_around_intra: true", "skip_around_intra: false", "skip_around_intra"),
        ("  linear_layer_after_inter_intra: false\n", "", "linear_layer_after_inter_intra of Dual_Path_Model is True"),
        ("norm_before: true", "norm_before: false", "norm_before of SBTransformerBlock is False"),
        ("nhead: 4", "nhead: 4\n  new_idea: 3", "an argument new_idea"),
        ("  nhead: 4\n", "", "num_heads: found None"),
        ("stride: 4", "stride: 2", "the decoder's stride is 2, expected 4"),
        ("SBtfinter: !copy <SBtfintra>", "SBtfinter: 3", "SBTransformerBlock is no object"),
        ("!ref <SBtfinter>", "!ref <absent>", "a reference names absent"),
        ("!ref <num_spks>", "!ref <num_spks> * 2", "a reference to one name"),
        ("num_spks: 2", "num_spks: !ref <num_spks>", "round in circles"),
        ("sample_rate: 8000", "rate: 8000", "found no sample_rate in it; give one: speechbrain:/"),
        ("sample_rate: 8000", "sample_rate: fast", "sample_rate: found 'fast', expected a whole number"),
        ("modules:", "others:", "found no modules"),
        ("dual_path.Dual_Path_Model", "resepformer.ResourceEfficientSeparator", "expected speechbrain's Dual_Path"),
        ("lobes.models.dual_path.Dual_Path_Model", "lobes.models.conv_tasnet.MaskNet", "expected speechbrain's Dual_P"),
        ("dual_path.SBTransformerBlock", "dual_path.SBConformerEncoderBlock", "expected speechbrain's SBTransformer"),
        ("dual_path.SBTransformerBlock", "dual_path.SBRNNBlock", "expected speechbrain's SBTransformerBlock"),
        ("masknet: !ref <MaskNet>", "masknetl: !ref <MaskNet>", "is no object, expected speechbrain's Dual_Path_Model"),
        ("!new:speechbrain.lobes.models.dual_path.Encoder", "!new:os.path.Encoder", "expected speechbrain's Encoder"),
        ("d_model: 16", "d_model: 32", "d_model of the transformers is 32, expected 16"),
        ("num_spks: 2", "num_spks: 3", "masknet.ckpt: conv2d.weight has shape (32, 16, 1, 1), expected (48, 16, 1, 1)"),
        ("  num_layers: 2", "  num_layers: 1", "is unexpected"),
        ("  num_layers: 2", "  num_layers: 3", "is missing"),
        ("num_spks: 2", "num_spks: [", "not YAML"),
    ],
)
def test_what_is_no_such_sepformer_is_refused_in_one_line(copied, old, new, message):
    assert SPEECHBRAIN_YAML.count(old) >= 1
    (copied / "hyperparams.yaml").write_text(SPEECHBRAIN_YAML.replace(old, new, 1))
    assert message in complaint(lambda: from_speechbrain(copied))


def test_nothing_in_the_yaml_is_carried_out(copied, tmp_path):
    marker = tmp_path / "ran"
    for text in [
        f"evil: !apply:pathlib.Path.touch ['{marker}']\nother: !new:os.system ['touch {marker}']\n",
        f"evil: !name:pathlib.Path.touch\nshell: !applyref:os.system {{command: 'touch {marker}'}}\n",
    ]:
        (copied / "hyperparams.yaml").write_text(text + SPEECHBRAIN_YAML)
        assert from_speechbrain(copied).hypotheses == 2
    evil = f"evil: !!python/object/apply:os.system ['touch {marker}']\n"
    (copied / "hyperparams.yaml").write_text(evil + SPEECHBRAIN_YAML)
    assert "not YAML" in complaint(lambda: from_speechbrain(copied))
    (copied / "hyperparams.yaml").write_text("a: " + "[" * 20000 + SPEECHBRAIN_YAML)
    assert "nested too deeply" in complaint(lambda: from_speechbrain(copied))
    assert not marker.exists()


@pytest.mark.parametrize("part", ["encoder", "masknet", "decoder"])
def test_weights_that_would_run_code_are_refused_and_do_not(copied, tmp_path, part):
    torch.save({"weight": Evil(tmp_path / "ran")}, copied / f"{part}.ckpt")
    assert "which could run code" in complaint(lambda: from_speechbrain(copied))
    for content in ([1, 2], {"weight": "text"}, {3: torch.zeros(1)}):
        torch.save(content, copied / f"{part}.ckpt")
        assert "no mapping of names to tensors" in complaint(lambda: from_speechbrain(copied))
    (copied / f"{part}.ckpt").write_bytes(b"PK\x03\x04")
    assert f"{part}.ckpt" in complaint(lambda: from_speechbrain(copied))
    (copied / f"{part}.ckpt").unlink()
    assert f"{part}.ckpt is missing" in complaint(lambda: from_speechbrain(copied))
    assert not (tmp_path / "ran").exists()


def test_no_folder_of_speechbrain(tmp_path):
    assert "no such folder" in complaint(lambda: load_pretrained(f"speechbrain:{tmp_path / 'none'}"))
    assert "hyperparams.yaml is missing" in complaint(lambda: load_pretrained(f"speechbrain:{tmp_path}"))


# --------------------------------------------------------------------------------------------------------- torchaudio


@pytest.fixture(scope="module")
def torchaudio_model():
    sizes = {"msk_num_feats": 6, "msk_num_hidden_feats": 7, "msk_num_stacks": 2}
    torch.manual_seed(0)
    return randomize(peer("torchaudio.models").ConvTasNet(3, 10, 12, **sizes, msk_activate="relu").eval())


@pytest.mark.parametrize("length", [1, 5, 9, 400, 403])
def test_a_conv_tasnet_of_torchaudio_separates_as_there(torchaudio_model, length, tmp_path):
    torch.save(torchaudio_model.state_dict(), path := tmp_path / "conv_tasnet_base_libri2mix.pt")
    model, mixture = load_pretrained(f"torchaudio:{path}@16000"), torch.randn(2, length)
    assert model.sample_rate == 16000 and not model.training
    with torch.no_grad():
        assert_like(model(mixture).estimates, torchaudio_model(mixture[:, None]))


def test_what_is_no_conv_tasnet_of_torchaudio(torchaudio_model, tmp_path):
    def told(content):
        torch.save(content, path := tmp_path / "model.pt")
        return complaint(lambda: from_torchaudio(path, sample_rate=8000))

    weights = torchaudio_model.state_dict()
    assert f"write torchaudio:{tmp_path}@8000" in complaint(lambda: load_pretrained(f"torchaudio:{tmp_path}"))
    assert "refused, it names torchaudio.models" in told(torchaudio_model)
    assert "encoder.weight is missing" in told({})
    block = "mask_generator.conv_layers.15."
    fewer = {name: tensor for name, tensor in weights.items() if not name.startswith(block)}
    assert "15 layers, expected 3, an even number and a multiple of 8" in told(fewer)
    assert "extra is unexpected" in told({**weights, "extra": torch.zeros(1)})
    less = {name: tensor for name, tensor in weights.items() if name != "mask_generator.conv_layers.1.res_out.weight"}
    assert "res_out.weight is missing" in told(less)
    assert "has shape (3,)" in told({**weights, "mask_generator.input_norm.weight": torch.zeros(3)})
    assert "not finite" in told({**weights, "mask_generator.input_norm.weight": torch.full((12,), torch.nan)})
