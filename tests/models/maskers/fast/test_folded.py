"""Folded norms against the modules that they replace, in float64, where both are exact."""

import copy

import pytest
import torch
from torch import nn

from sepkit import config as c
from sepkit.models import build_model
from sepkit.models.maskers.fast import folded
from sepkit.registry import build

SIZES = {"bottleneck_channels": 6, "hidden_channels": 10}
MASKERS: dict[str, c.MaskerConfig] = {
    "conv_tasnet": c.ConvTasNetConfig(**SIZES, skip_channels=5, blocks=4, repeats=2),
    "conv_tasnet, even kernel, no skip path": c.ConvTasNetConfig(**SIZES, skip_channels=0, kernel_size=4, blocks=3),
    "conv_tasnet, kernel of one frame": c.ConvTasNetConfig(**SIZES, skip_channels=5, kernel_size=1, blocks=2),
    "conv_tasnet, mean of skips": c.ConvTasNetConfig(**SIZES, skip_channels=5, blocks=2, normalize_skip_sum=True),
    "sudormrf": c.SuDoRMRFConfig(**SIZES, blocks=2),
    "sudormrf, one resolution": c.SuDoRMRFConfig(**SIZES, blocks=2, upsampling_depth=1),
    "improved_sudormrf": c.ImprovedSuDoRMRFConfig(**SIZES, blocks=2),
    "improved_sudormrf, five resolutions": c.ImprovedSuDoRMRFConfig(**SIZES, blocks=1, upsampling_depth=5),
}
ENCODING_DIM = 7


def masker_of(config: c.MaskerConfig) -> nn.Module:
    """Build a masker in evaluation mode and float64, all of whose weights, gains and slopes differ."""
    masker = build(config, encoding_dim=ENCODING_DIM, hypotheses=2, values_per_dimension=1)
    for weight in masker.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    return masker.double().eval()


@pytest.fixture(params=MASKERS, ids=str)
def masker(request) -> nn.Module:
    return masker_of(MASKERS[request.param])


@pytest.fixture
def by_modules(modules_alone):
    """The values of a masker's modules."""

    def values(masker: nn.Module, features: torch.Tensor) -> torch.Tensor:
        with modules_alone(), torch.no_grad():
            return masker(features)

    return values


@pytest.mark.parametrize("tile", [3, 16, 1024])
@pytest.mark.parametrize("frames", [1, 2, 3, 15, 16, 17, 50])
def test_folded_values_are_those_of_the_modules(masker, by_modules, taken, monkeypatch, frames, tile):
    monkeypatch.setattr(folded, "_TILE", tile)
    features = torch.randn(3, ENCODING_DIM, frames, dtype=torch.float64)
    expected = by_modules(masker, features)
    with torch.no_grad():
        values = masker(features)
    assert len(taken) == 1
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-11 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["conv_tasnet", "improved_sudormrf", "sudormrf"])
def test_single_precision_stays_within_a_hundred_thousandth(name, by_modules):
    masker = masker_of(MASKERS[name])
    features = torch.randn(1, ENCODING_DIM, 5000, dtype=torch.float64)
    expected = by_modules(masker, features)
    with torch.inference_mode():
        values = masker.float()(features.float())
    assert float((values - expected).abs().max() / expected.abs().max()) < 1e-5


@pytest.mark.parametrize("features", ["silence", "constant", "far from zero"])
def test_features_without_variance_lose_no_digits(masker, by_modules, taken, features):
    of = {
        "silence": torch.zeros(1, ENCODING_DIM, 20),
        "constant": torch.full((1, ENCODING_DIM, 20), 3.0),
        "far from zero": 1e5 + torch.randn(1, ENCODING_DIM, 20),
    }[features].double()
    expected = by_modules(masker, of)
    with torch.no_grad():
        values = masker(of)
    assert taken and values.isfinite().all()
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-8 * float(expected.abs().max()))


def test_nan_stays_in_its_utterance(masker, taken):
    features = torch.randn(2, ENCODING_DIM, 20, dtype=torch.float64)
    features[0, 0, 3] = torch.nan
    with torch.no_grad():
        values = masker(features)
    assert taken and values[0].isnan().all() and values[1].isfinite().all()


def test_input_and_weights_are_left_alone(masker):
    features = torch.randn(1, ENCODING_DIM, 20, dtype=torch.float64)
    before, weights = features.clone(), copy.deepcopy(masker.state_dict())
    with torch.no_grad():
        first, second = masker(features), masker(features)
    assert torch.equal(features, before) and torch.equal(first, second)
    assert all(torch.equal(value, weights[name]) for name, value in masker.state_dict().items())


FEATURES = torch.randn(1, ENCODING_DIM, 20, dtype=torch.float64)


@pytest.fixture
def plain() -> nn.Module:
    return masker_of(MASKERS["conv_tasnet"])


def test_modules_are_used_where_gradients_are_recorded_and_in_training(plain, taken):
    plain(FEATURES).sum().backward()
    assert all(weight.grad is not None for weight in plain.parameters())
    with torch.no_grad():
        plain.train()(FEATURES)
    assert taken == ["temporal_blocks"]


def test_hooks_are_called(plain, taken):
    seen = []
    with torch.no_grad():
        handle = plain.blocks[1].activation.register_forward_hook(lambda *_: seen.append(1))
        plain(FEATURES)
        handle.remove()
        assert seen and not taken
        handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(2))
        plain(FEATURES)
        handle.remove()
        assert 2 in seen and not taken
        plain(FEATURES)
    assert taken


def test_a_module_put_in_the_place_of_another_is_used(plain, by_modules, taken):
    plain.blocks[0].activation = nn.ReLU()
    with torch.no_grad():
        values = plain(FEATURES)
    torch.testing.assert_close(values, by_modules(plain, FEATURES))
    assert not taken


def test_weights_of_another_type_are_used(plain, taken):
    nn.utils.parametrizations.weight_norm(plain.bottleneck)
    with torch.no_grad():
        plain(FEATURES)
        with torch.autocast("cpu", torch.bfloat16):
            masker_of(MASKERS["conv_tasnet"]).float()(FEATURES.float())
    assert not taken


def test_other_norms_are_left_to_their_modules(taken):
    masker = masker_of(c.ConvTasNetConfig(**SIZES, blocks=2, repeats=1, norm="cumulative_layer_norm", causal=True))
    with torch.no_grad():
        masker(FEATURES)
    assert not taken


def test_a_trace_sees_the_modules(plain, taken):
    with torch.no_grad():
        traced = torch.jit.trace(plain, FEATURES, check_trace=False)
        assert not taken
        longer = torch.randn(1, ENCODING_DIM, 33, dtype=torch.float64)
        torch.testing.assert_close(traced(longer), plain(longer))


FREE = c.FreeFilterbankConfig(num_filters=ENCODING_DIM, kernel_size=6, stride=3)
PADDED = c.FreeFilterbankConfig(ENCODING_DIM, 21, 10, padding=10, output_padding=9, multiple=80)
MODELS = {
    "conv_tasnet": c.ModelConfig(filterbank=FREE, masker=MASKERS["conv_tasnet"]),
    "softmax over hypotheses": c.ModelConfig(
        filterbank=PADDED, masker=MASKERS["sudormrf"], masks=c.DeterministicConfig("softmax"), pad="asteroid"
    ),
    "stft": c.ModelConfig(filterbank=c.STFTFilterbankConfig(32, 8), masker=c.RecurrentConfig(hidden_size=5)),
}


@pytest.mark.parametrize("num_samples", [1, 5, 40, 333])
@pytest.mark.parametrize("name", MODELS)
def test_estimates_alone_are_those_of_the_separation(monkeypatch, name, num_samples):
    monkeypatch.setattr("sepkit.models.emd._TILE_FRAMES", 7)
    model = build_model(MODELS[name]).double().eval()
    model.set_signal_statistics(0.1, 2.0)
    mixture = torch.randn(2, num_samples, dtype=torch.float64)
    assert not model.variational and model.scoring_head is None
    with torch.no_grad():
        expected = model(mixture).estimates
        estimates = model.estimates(mixture)
    assert estimates.shape == (2, 2, num_samples)
    torch.testing.assert_close(estimates, expected, rtol=0, atol=1e-11 * float(expected.abs().max()))
