import math

import pytest
import torch
from torch import nn

from sepkit import config as c
from sepkit.models import EncoderMaskerDecoder, build_model
from sepkit.models.filterbanks import FreeFilterbank
from sepkit.models.latents import Deterministic
from sepkit.models.stft_filterbank import STFTFilterbank
from sepkit.types import Latent, Separation

FREE = c.FreeFilterbankConfig(num_filters=16)
SUDORMRF = c.FreeFilterbankConfig(num_filters=16, kernel_size=21, stride=10, padding=10, output_padding=9, multiple=80)
TINY_CONV = c.ConvTasNetConfig(bottleneck_channels=8, hidden_channels=8, skip_channels=8, blocks=2, repeats=1)
CONFIGS = {
    "conv_tasnet": c.ModelConfig(filterbank=FREE, masker=TINY_CONV),
    "dual_path_rnn": c.ModelConfig(filterbank=FREE, masker=c.DualPathRNNConfig(8, 4, 10, 5, repeats=1)),
    "sudormrf": c.ModelConfig(
        8000, 2, SUDORMRF, c.DeterministicConfig("relu"), c.SuDoRMRFConfig(8, 8, 1), c.DeterministicConfig("softmax")
    ),
    "improved_sudormrf": c.ModelConfig(filterbank=SUDORMRF, masker=c.ImprovedSuDoRMRFConfig(8, 8, 1)),
    "stft": c.ModelConfig(8000, 3, c.STFTFilterbankConfig(64, 16), masker=c.RecurrentConfig("gru", 8, 1)),
}


class ConstantMasker(nn.Module):
    """Raw values that are the same everywhere."""

    def __init__(self, hypotheses: int = 2, value: float = 1.0) -> None:
        super().__init__()
        self.hypotheses, self.value = hypotheses, value

    def forward(self, features):
        batch, dim, frames = features.shape
        return torch.full((batch, self.hypotheses, 1, dim, frames), self.value, dtype=features.dtype)


def constant(filterbank, value=1.0, **kwargs):
    linear = Deterministic("linear")
    return EncoderMaskerDecoder(filterbank, ConstantMasker(value=value), linear, linear, sample_rate=8000, **kwargs)


@pytest.mark.parametrize("pad", ["full", "asteroid"])
@pytest.mark.parametrize("name", CONFIGS)
def test_estimates_are_as_long_as_the_mixture(name, pad):
    model = build_model(CONFIGS[name])
    model.pad = pad
    for num_samples in (1, 2, 7, 8, 9, 16, 79, 80, 81, 255, 1001):
        separation = model.eval()(torch.randn(2, num_samples))
        assert isinstance(separation, Separation)
        assert separation.estimates.shape == (2, model.hypotheses, num_samples)
        assert separation.estimates.isfinite().all() and isinstance(separation.masks, Latent)
        bank, frames = model.filterbank, separation.encoding.shape[-1]
        assert separation.encoding.shape == (2, bank.full_dim, frames)
        assert separation.masks.shape == (2, model.hypotheses, bank.encoding_dim, frames)


@pytest.mark.parametrize("num_samples", [1, 5, 64, 65, 999])
def test_a_mask_of_ones_gives_the_mixture_back_to_its_very_ends(num_samples):
    mixture = torch.randn(3, num_samples)
    model = constant(STFTFilterbank(64, 16))
    model.set_signal_statistics(0.0, 0.05)
    torch.testing.assert_close(model(mixture).estimates, mixture.unsqueeze(1).expand(-1, 2, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pad", ["full", "asteroid"])
@pytest.mark.parametrize("geometry", [(16, 8, 0, 0, 1), (21, 10, 10, 9, 80), (5, 5, 0, 0, 1)])
def test_no_sample_is_lost(geometry, pad):
    """Every sample of the output depends on every input sample near it; "asteroid" may lose less than a stride."""
    model = constant(FreeFilterbank(8, *geometry), pad=pad)
    for num_samples in (1, 30, 77, 160):
        mixture = torch.randn(1, num_samples, requires_grad=True)
        estimates = model(mixture).estimates[0, 0]
        (gradient,) = torch.autograd.grad(estimates.square().sum(), mixture)
        silent = (gradient[0] == 0) | (estimates == 0)
        assert not (silent.any() if pad == "full" else silent[: max(num_samples - geometry[1], 0)].any())


def test_standardization_goes_in_and_comes_out():
    model = build_model(CONFIGS["conv_tasnet"]).eval()
    mixture = torch.randn(2, 400)
    plain = model(mixture).estimates
    model.set_signal_statistics(0.25, 0.01)
    torch.testing.assert_close(model(0.25 + 0.01 * mixture).estimates, 0.01 * plain, rtol=1e-3, atol=1e-6)


def test_statistics_are_stored_with_the_weights_and_must_make_sense():
    model = build_model(CONFIGS["conv_tasnet"])
    assert (model.signal_mean.item(), model.signal_std.item()) == (0.0, 1.0)
    assert {"signal_mean", "signal_std"} <= set(model.state_dict())
    for mean, std in ((0.0, 0.0), (0.0, -1.0), (math.nan, 1.0), (0.0, math.inf)):
        with pytest.raises(ValueError, match="deviation"):
            model.set_signal_statistics(mean, std)


@pytest.mark.parametrize("name", CONFIGS)
def test_nan_stays_in_its_utterance_and_is_not_hidden(name):
    model = build_model(CONFIGS[name]).eval()
    mixture = torch.randn(2, 300)
    mixture[0, 150] = math.nan
    estimates = model(mixture).estimates
    assert estimates[0].isnan().any() and estimates[1].isfinite().all()


@pytest.mark.parametrize(
    "mixture",
    [torch.zeros(5), torch.zeros(1, 1, 5), torch.zeros(2, 0), torch.zeros(1, 5, dtype=torch.int64)],
    ids=["1d", "3d", "empty", "integers"],
)
def test_wrong_mixtures_are_refused(mixture):
    with pytest.raises(ValueError, match=r"expected floating-point \(B, T\)"):
        build_model(CONFIGS["conv_tasnet"])(mixture)
