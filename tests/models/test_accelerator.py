"""What a GPU asks of a model, as far as it shows without one: no tensor elsewhere, no look at data, bfloat16."""

from typing import Any

import pytest
import torch

from sepkit.choices import from_dict
from sepkit.config import ModelConfig
from sepkit.models import EncoderMaskerDecoder, build_model

LINEAR = {"name": "deterministic", "activation": "linear"}
STFT = {"name": "stft", "kernel_size": 64, "stride": 32}
COMPLEX: dict[str, Any] = {"encoding": LINEAR, "masks": LINEAR, "filterbank": STFT | {"complex_masks": True}}
PARTS: dict[str, Any] = COMPLEX | {"filterbank": STFT | {"features": "real_imaginary", "complex_masks": True}}
MAPPING: dict[str, Any] = PARTS | {"filterbank": PARTS["filterbank"] | {"mapping": True, "compression": 1.0}}
FREE = {"name": "free", "num_filters": 32}
# What a masker needs beside its name: few layers and channels, and a filterbank that suits it.
MODELS: dict[str, dict[str, Any]] = {
    "conv_tasnet": {"blocks": 3, "repeats": 2},
    "dual_path_rnn": {"hidden_channels": 16, "chunk_size": 20, "hop_size": 10, "repeats": 2},
    "sudormrf": {"blocks": 2},
    "improved_sudormrf": {"blocks": 2},
    "sepformer": {"model_dim": 32, "chunk_size": 20, "transformer_layers": 2, "feedforward_dim": 64},
    "recurrent": {"hidden_size": 32, "num_layers": 2},
    "gated_recurrence": {"num_layers": 2},
    "continuous_depth": {},
    "tf_locoformer": {"channels": 32, "num_layers": 2, "feedforward_dim": 32},
}
BANKS = {"recurrent": {"filterbank": STFT}, "tf_locoformer": PARTS}
BANKS |= dict.fromkeys(("gated_recurrence", "continuous_depth"), COMPLEX)
VARIATIONAL = {"encoding": {"name": "gaussian"}, "masks": {"name": "log_normal"}}


def model_of(name: str) -> EncoderMaskerDecoder:
    torch.manual_seed(0)
    masker, bank = ("conv_tasnet", VARIATIONAL) if name == "variational" else (name, BANKS.get(name, {}))
    described = {"filterbank": FREE} | bank | {"masker": {"name": masker} | MODELS[masker]}
    return build_model(from_dict(ModelConfig, described, name))


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
