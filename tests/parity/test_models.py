"""Our maskers and models against asteroid's and speechbrain's, with the same weights: outputs and gradients."""

import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sepkit import config as c
from sepkit.errors import UserError
from sepkit.models.bridges import from_asteroid, to_asteroid_state_dict
from sepkit.models.emd import EncoderMaskerDecoder, build_model
from sepkit.registry import build
from tests.complaint import complaint
from tests.published import Evil, peer, randomize

NAMES = ["ConvTasNet", "DPRNNTasNet", "SuDORMRFNet", "SuDORMRFImprovedNet"]
PARAMETERS = [5_050_545, 3_652_865, 2_584_196, 2_630_801]
SMALL = {
    "ConvTasNet": {"n_filters": 16, "n_blocks": 2, "n_repeats": 2, "bn_chan": 6, "hid_chan": 10, "skip_chan": 7},
    "DPRNNTasNet": {"n_filters": 16, "bn_chan": 6, "hid_size": 5, "chunk_size": 9, "hop_size": 4, "n_repeats": 2},
    "SuDORMRFNet": {"n_filters": 16, "bn_chan": 6, "num_blocks": 2, "upsampling_depth": 3},
    "SuDORMRFImprovedNet": {"n_filters": 16, "bn_chan": 6, "num_blocks": 2, "upsampling_depth": 3},
}


def asteroid_model(name: str, hypotheses: int = 2, **arguments) -> nn.Module:
    torch.manual_seed(0)
    return randomize(getattr(peer("asteroid.models"), name)(hypotheses, **arguments).eval())


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def assert_same_gradients(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Compare relative differences tensor by tensor; small gradients are held to a thousandth of the largest."""
    assert found.keys() == expected.keys()
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for name, gradient in expected.items():
        assert float((found[name] - gradient).norm()) <= tolerance * max(float(gradient.norm()), 1e-3 * largest), name


def asteroid_gradients(model: nn.Module) -> dict[str, Tensor]:
    # asteroid computes a last residual that nothing uses.
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def our_gradients(model: EncoderMaskerDecoder) -> dict[str, Tensor]:
    """Gradients under asteroid's names: those of a model whose weights are the gradients."""
    carrier = build_model(model.config).to(next(model.parameters()).dtype)
    carrier.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter, source in zip(carrier.parameters(), model.parameters(), strict=True):
            parameter.copy_(source.grad)
    assert {name for name, _ in carrier.named_parameters()} == {name for name, _ in model.named_parameters()}
    return to_asteroid_state_dict(carrier)


def forward_backward(model: nn.Module, mixture: Tensor) -> tuple[Tensor, Tensor]:
    """Estimates, and the gradient of a fixed random projection of them with respect to the mixture."""
    mixture = mixture.clone().requires_grad_()
    estimates = model(mixture)
    estimates = estimates if isinstance(estimates, Tensor) else estimates.estimates
    projection = torch.randn(estimates.shape, generator=torch.Generator().manual_seed(1)).to(estimates.dtype)
    (estimates * projection).sum().backward()
    return estimates.detach(), mixture.grad


def compare(theirs: nn.Module, mixture: Tensor, tolerance: float) -> None:
    ours = from_asteroid(theirs).to(mixture.dtype)
    expected, expected_input_gradient = forward_backward(theirs, mixture)
    found, input_gradient = forward_backward(ours, mixture)
    assert found.shape == expected.shape
    assert relative(found, expected) <= tolerance
    assert relative(input_gradient, expected_input_gradient) <= tolerance
    expected_gradients, found_gradients = asteroid_gradients(theirs), our_gradients(ours)
    assert_same_gradients({name: found_gradients[name] for name in expected_gradients}, expected_gradients, tolerance)


@pytest.mark.parametrize(("name", "parameters"), list(zip(NAMES, PARAMETERS, strict=True)))
def test_full_size_models_have_the_same_parameters_outputs_and_gradients(name, parameters):
    theirs, mixture = asteroid_model(name), torch.randn(1, 901)
    ours = from_asteroid(theirs)
    assert sum(p.numel() for p in ours.parameters()) == parameters
    with torch.no_grad():
        assert relative(ours(mixture).estimates, theirs(mixture)) <= 1e-5
    theirs = asteroid_model(name, mask_act="sigmoid")
    for module in theirs.modules():
        if isinstance(module, nn.PReLU):
            # Of millions of values some lie so near to a kink that a rounding error changes their derivative.
            nn.init.ones_(module.weight)
    compare(theirs, mixture, 1e-5)


OPTIONS = [
    ("ConvTasNet", {"causal": True, "norm_type": "cgLN", "mask_act": "softmax"}),
    ("ConvTasNet", {"causal": True, "norm_type": "cLN", "skip_chan": 0}),
    ("ConvTasNet", {"norm_type": "bN", "encoder_activation": "relu", "mask_act": "tanh", "sample_rate": 16000}),
    ("ConvTasNet", {"conv_kernel_size": 5, "kernel_size": 21, "stride": 9, "mask_act": "linear"}),
    ("DPRNNTasNet", {"norm_type": "cLN", "bidirectional": False, "rnn_type": "gru"}),
    ("DPRNNTasNet", {"num_layers": 2, "dropout": 0.3, "chunk_size": 8, "hop_size": 3, "mask_act": "relu"}),
    ("SuDORMRFNet", {"mask_act": "relu", "bn_chan": 16}),
    ("SuDORMRFNet", {"kernel_size": 12, "upsampling_depth": 1}),
    ("SuDORMRFImprovedNet", {"mask_act": "softmax", "upsampling_depth": 5}),
]


@pytest.mark.parametrize("hypotheses", [1, 3])
@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in NAMES), *OPTIONS])
def test_options_in_float64(name, options, hypotheses):
    theirs = asteroid_model(name, hypotheses, **SMALL[name] | options).double()
    compare(theirs, torch.randn(2, 611, dtype=torch.float64), 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_every_residue_of_the_length(name):
    theirs = asteroid_model(name, **SMALL[name])
    ours = from_asteroid(theirs)
    with torch.no_grad():
        for num_samples in (21, 22, 31, 79, 80, 81, *range(160, 176), 333):
            mixture = torch.randn(1, num_samples)
            assert relative(ours(mixture).estimates, theirs(mixture)) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_weights_come_back_under_the_same_names(name):
    theirs = asteroid_model(name, **SMALL[name])
    exported = to_asteroid_state_dict(from_asteroid(theirs))
    assert exported.keys() == theirs.state_dict().keys()
    assert all(torch.equal(exported[key], value) for key, value in theirs.state_dict().items())
    theirs.load_state_dict(exported)


def test_the_training_deviation_goes_into_the_filters():
    theirs = asteroid_model("ConvTasNet", **SMALL["ConvTasNet"], encoder_activation="sigmoid")
    ours = from_asteroid(theirs)
    ours.set_signal_statistics(mean=0.0, std=0.07)
    theirs.load_state_dict(to_asteroid_state_dict(ours))
    mixture = 0.07 * torch.randn(1, 501)
    with torch.no_grad():
        assert relative(theirs(mixture), ours(mixture).estimates) < 1e-5


class TestFiles:
    def test_a_published_file(self, tmp_path):
        theirs = asteroid_model("ConvTasNet", **SMALL["ConvTasNet"], sample_rate=16000)
        checkpoint = theirs.serialize()
        checkpoint["infos"]["final_metrics"] = {"si_sdr": np.float64(14.7), "stoi": np.float32(0.9)}
        torch.save(checkpoint, tmp_path / "model.pth")
        ours, mixture = from_asteroid(tmp_path / "model.pth"), torch.randn(1, 1001)
        assert ours.sample_rate == 16000 and ours.pad == "asteroid" and not ours.training
        with torch.no_grad():
            assert relative(ours(mixture).estimates, theirs(mixture)) < 1e-5

    def test_reading_a_file_needs_no_asteroid(self, tmp_path):
        theirs = asteroid_model("DPRNNTasNet", **SMALL["DPRNNTasNet"])
        # Files of before the option existed.
        del (checkpoint := theirs.serialize())["model_args"]["use_mulcat"]
        torch.save(checkpoint, tmp_path / "model.pth")
        code = (
            "import sys; sys.modules['asteroid'] = None\n"
            "from sepkit.models.bridges import from_asteroid\n"
            f"print(from_asteroid({str(tmp_path / 'model.pth')!r}).hypotheses)"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == "2"

    def test_a_file_that_would_run_code_is_refused_and_does_not(self, tmp_path):
        evil = Evil(tmp_path / "ran")
        torch.save({"model_name": "ConvTasNet", "model_args": evil, "state_dict": {}}, tmp_path / "evil.pth")
        (tmp_path / "bare.pth").write_bytes(pickle.dumps(evil, protocol=2))
        for name in ("evil.pth", "bare.pth"):
            line = complaint(lambda name=name: from_asteroid(tmp_path / name))
            assert f"{name}: refused, " in line and "; expected what asteroid's serialize" in line
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"state_dict": None}, "no state_dict in it"),
            ({"model_args": {"fb_name": "STFTFB"}}, "fb_name is 'STFTFB'"),
            ({"model_args": {"norm_type": "fgLN"}}, "norm_type is 'fgLN'"),
            ({"model_args": {"mask_act": "swish"}}, "mask_act is 'swish'"),
            ({"model_args": {"out_chan": 99}}, "out_chan is 99"),
            ({"model_args": {"n_filters": 8, "in_chan": 8, "out_chan": 8}}, "_filters has shape"),
            ({"model_args": {"n_blocks": 3}}, "is missing"),
            ({"model_args": {"n_blocks": 1}}, "is unexpected"),
            ({"model_args": {"bn_chan": "6"}}, "masker.bottleneck_channels: found '6', expected a whole number"),
            ({"model_args": {"kernel_size": None}}, "filterbank.kernel_size: found None, expected a whole number"),
            ({"model_args": {"n_blocks": ...}}, "model_args are not those of a ConvTasNet"),
        ],
    )
    def test_what_does_not_fit_is_refused_in_one_line(self, tmp_path, change, message):
        checkpoint = dict(asteroid_model("ConvTasNet", **SMALL["ConvTasNet"]).serialize())
        for key, value in change.items():
            checkpoint[key] = {**checkpoint[key], **value} if isinstance(value, dict) else value
        # An ellipsis: the argument is missing.
        checkpoint["model_args"] = {name: x for name, x in checkpoint["model_args"].items() if x is not ...}
        torch.save(checkpoint, tmp_path / "model.pth")
        assert message in complaint(lambda: from_asteroid(tmp_path / "model.pth"))

    def test_softmax_over_filters_is_refused(self):
        with pytest.raises(UserError, match="mask_act is 'softmax'"):
            from_asteroid(asteroid_model("DPRNNTasNet", **SMALL["DPRNNTasNet"], mask_act="softmax"))

    def test_no_file_and_no_asteroid_model(self, tmp_path):
        complaint(lambda: from_asteroid(tmp_path / "absent.pth"), "no such file")
        complaint(lambda: from_asteroid(nn.Linear(2, 2)), "found an asteroid 'Linear'")


class TestExportRefusals:
    MASKER = c.ConvTasNetConfig(6, 10, 7, blocks=1, repeats=1)
    CONFIG = c.ModelConfig(filterbank=c.FreeFilterbankConfig(16), masker=MASKER)

    @pytest.mark.parametrize(
        ("masker", "mean", "words"),
        [
            (CONFIG.masker, 0.01, "signal_mean: found 0.01"),
            (dataclasses.replace(CONFIG.masker, normalize_skip_sum=True, blocks=2), 0.0, "normalize_skip_sum"),
            (c.ImprovedSuDoRMRFConfig(6, 10, 1), 0.0, "hidden_channels: found 10; asteroid has as many as filters"),
            (c.RecurrentConfig(hidden_size=4), 0.0, "masker RecurrentMasker: asteroid has none like it"),
        ],
    )
    def test_what_asteroid_cannot_hold(self, masker, mean, words):
        model = build_model(dataclasses.replace(self.CONFIG, masker=masker))
        model.set_signal_statistics(mean=mean, std=0.1)
        assert words in complaint(lambda: to_asteroid_state_dict(model))


def speechbrain_masker(channels: int, feedforward_dim: int, layers: int, **sizes: int) -> nn.Module:
    """The mask network of speechbrain's recipes."""
    dual_path = peer("speechbrain.lobes.models.dual_path")
    torch.manual_seed(0)
    options = {"dropout": 0, "use_positional_encoding": True, "norm_before": True}
    blocks = [dual_path.SBTransformerBlock(layers, channels, 8, feedforward_dim, **options) for _ in range(2)]
    sizes["linear_layer_after_inter_intra"] = False
    return randomize(dual_path.Dual_Path_Model(channels, channels, *blocks, 2, "ln", **sizes).eval())


def compare_sepformers(theirs: nn.Module, ours: nn.Module, features: Tensor, tolerance: float = 1e-10) -> None:
    """Compare masks and gradients of speechbrain's network and ours."""
    table = "dual_mdl.0.inter_mdl.pos_enc.pe"
    # To the bit: digests of models count it.
    assert torch.equal(ours.network.get_buffer(table), theirs.get_buffer(table))
    ours.network.load_state_dict(theirs.state_dict())
    gradients = []
    for masker in (lambda x: theirs(x).transpose(0, 1), lambda x: ours(x).squeeze(2).relu()):
        x = features.clone().requires_grad_()
        masks = masker(x)
        (masks * torch.randn(masks.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
        gradients.append((masks.detach(), x.grad))
    (expected, expected_input), (found, found_input) = gradients
    assert relative(found, expected) <= tolerance
    assert relative(found_input, expected_input) <= tolerance
    found, expected = ({name: p.grad for name, p in net.named_parameters()} for net in (ours.network, theirs))
    assert_same_gradients(found, expected, tolerance)


def test_sepformer_has_the_parameters_outputs_and_gradients_of_speechbrain():
    sizes = {"encoding_dim": 256, "hypotheses": 2, "values_per_dimension": 1}
    assert sum(p.numel() for p in build(c.SepFormerConfig(), **sizes).parameters()) == 25_671_169
    # As wide, and two of the eight layers of each transformer: more compute the same once more.
    theirs = speechbrain_masker(256, 1024, 2, K=250, num_spks=2).double()
    ours = build(c.SepFormerConfig(transformer_layers=2), **sizes).double().eval()
    compare_sepformers(theirs, ours, torch.randn(1, 256, 377, dtype=torch.float64))


@pytest.mark.parametrize("chunk_size", [5, 6])
@pytest.mark.parametrize("frames", [1, 4, 6, 33])
def test_sepformer_cuts_chunks_as_speechbrain_does(chunk_size, frames):
    theirs = speechbrain_masker(16, 12, 1, K=chunk_size, num_spks=3).double()
    config = c.SepFormerConfig(16, 2, chunk_size, 1, 8, 12)
    ours = build(config, encoding_dim=16, hypotheses=3, values_per_dimension=1).double().eval()
    compare_sepformers(theirs, ours, torch.randn(2, 16, frames, dtype=torch.float64))
