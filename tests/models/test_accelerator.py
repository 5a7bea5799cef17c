"""What a GPU asks of a model, as far as it shows without one: no tensor elsewhere, no look at data, bfloat16."""

from dataclasses import replace

import pytest
import torch

from sepkit import config as c
from sepkit.models import EncoderMaskerDecoder, build_model

LINEAR = c.DeterministicConfig("linear")
STFT = c.STFTFilterbankConfig(64, 32)
COMPLEX = {"encoding": LINEAR, "masks": LINEAR, "filterbank": replace(STFT, complex_masks=True)}
PARTS = COMPLEX | {"filterbank": replace(STFT, features="real_imaginary", complex_masks=True)}
CONV_TASNET = c.ConvTasNetConfig(blocks=3, repeats=2)
# A masker of few layers and channels, and what suits it in place of the filterbank of 32 filters.
MODELS = {
    "conv_tasnet": (CONV_TASNET, {}),
    "dual_path_rnn": (c.DualPathRNNConfig(hidden_channels=16, chunk_size=20, hop_size=10, repeats=2), {}),
    "sudormrf": (c.SuDoRMRFConfig(blocks=2), {}),
    "improved_sudormrf": (c.ImprovedSuDoRMRFConfig(blocks=2), {}),
    "sepformer": (c.SepFormerConfig(32, chunk_size=20, transformer_layers=2, feedforward_dim=64), {}),
    "recurrent": (c.RecurrentConfig(hidden_size=32, num_layers=2), {"filterbank": STFT}),
    "gated_recurrence": (c.GatedRecurrenceConfig(num_layers=2), COMPLEX),
    "continuous_depth": (c.ContinuousDepthConfig(), COMPLEX),
    "tf_locoformer": (c.TFLocoformerConfig(32, 2, feedforward_dim=32), PARTS),
}
VARIATIONAL = {"variational": (CONV_TASNET, {"encoding": c.GaussianConfig(), "masks": c.LogNormalConfig()})}


def model_of(name: str) -> EncoderMaskerDecoder:
    masker, more = (MODELS | VARIATIONAL)[name]
    return build_model(c.ModelConfig(**({"filterbank": c.FreeFilterbankConfig(32)} | more), masker=masker))


@pytest.mark.parametrize("name", [*MODELS, "variational"])
def test_a_step_on_tensors_without_data(name: str) -> None:
    """The meta device has no values and refuses tensors of the CPU: a step there waits for and mixes nothing."""
    model = model_of(name).to("meta").train()
    estimates = model(torch.empty(2, 1000, device="meta")).estimates
    assert estimates.device.type == "meta" and estimates.shape == (2, 2, 1000)
    estimates.square().mean().backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert gradients and all(gradient.device.type == "meta" for gradient in gradients)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_stays_near_float32(name: str) -> None:
    """Under autocast, as with `--trainer.precision bf16-mixed`: half precision's rounding, and finite gradients."""
    model = model_of(name).eval()
    mixture = 0.1 * torch.randn(1, 1600, generator=torch.Generator().manual_seed(1))
    expected = model(mixture).estimates
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(mixture).estimates.float()
    assert (found - expected).norm() <= 0.05 * expected.norm()
    found.square().mean().backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert any(gradient.any() for gradient in gradients) and all(gradient.isfinite().all() for gradient in gradients)
