"""TF-Locoformer: shapes, symmetries and refusals."""

from __future__ import annotations

import pytest
import torch

from sepkit.config import DeterministicConfig, ModelConfig, STFTFilterbankConfig, TFLocoformerConfig
from sepkit.errors import UserError
from sepkit.models import build_model
from sepkit.models.maskers import TFLocoformerMasker
from sepkit.models.maskers.tf_locoformer import RotaryAttention
from sepkit.models.streaming import ModelStream

SIZES = {
    "channels": 4, "num_layers": 1, "num_heads": 2, "attention_dim": 8, "feedforward_dim": 5, "kernel_size": 3,
    "norm_groups": 2,
}  # fmt: skip
BANK = STFTFilterbankConfig(16, 8, compression=1.0, features="real_imaginary", complex_masks=True, mapping=True)


def small(hypotheses: int = 3, values: int = 1, **changes) -> TFLocoformerMasker:
    torch.manual_seed(0)
    return TFLocoformerMasker(18, hypotheses, values, **(SIZES | changes)).eval()


@pytest.mark.parametrize("kernel_size", [1, 3, 4])
def test_output_has_the_frames_of_the_input(kernel_size):
    masker = small(3, 2, kernel_size=kernel_size)
    for frames in (1, 2, 5, 17):
        raw = masker(torch.randn(2, 18, frames))
        assert raw.shape == (2, 3, 2, 18, frames) and raw.isfinite().all()


def test_every_parameter_gets_a_gradient():
    masker = small()
    (masker(torch.randn(2, 18, 11)) * torch.randn(2, 3, 1, 18, 11)).sum().backward()
    for name, parameter in masker.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_utterances_of_a_batch_do_not_meet():
    masker = small().double()
    batch = torch.randn(3, 18, 7, dtype=torch.float64)
    alone = torch.cat([masker(batch[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(masker(batch), alone, rtol=1e-9, atol=1e-9)


def test_silence_and_half_precision():
    masker = small()
    features = torch.zeros(1, 18, 6, requires_grad=True)
    masker(features).sum().backward()
    assert features.grad.isfinite().all() and all(p.grad.isfinite().all() for p in masker.parameters())
    noise = torch.randn(1, 18, 6)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = masker(noise)
    with torch.no_grad():
        exact = masker(noise)
    assert (found.float() - exact).norm() < 0.1 * exact.norm()


def test_attention_hears_only_differences_of_positions():
    attention = RotaryAttention(4, 2, 8, 0.0).double().eval()
    query, key = torch.randn(2, 1, 2, 1, 4, dtype=torch.float64).expand(2, 1, 2, 9, 4)
    scores = attention._rotated(query) @ attention._rotated(key).mT
    torch.testing.assert_close(scores[..., 1:, 1:], scores[..., :-1, :-1])
    assert not torch.allclose(scores[..., 0, 1], scores[..., 0, 2])


def model(**changes) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(
        ModelConfig(
            **(
                {
                    "filterbank": BANK,
                    "masker": TFLocoformerConfig(**SIZES),
                    "masks": DeterministicConfig(activation="linear"),
                    "input_norm": "mixture",
                }
                | changes
            )
        )
    ).eval()


def test_levels_of_mixtures_come_back_in_the_estimates():
    separator = model().double()
    separator.set_signal_statistics(0.0, 0.3)
    mixture = torch.randn(2, 100, dtype=torch.float64)
    loud = separator(mixture * torch.tensor([[1.0], [50.0]])).estimates
    with torch.no_grad():
        torch.testing.assert_close(loud, separator(mixture).estimates * torch.tensor([[[1.0]], [[50.0]]]))
        assert (separator(torch.zeros(1, 50, dtype=torch.float64)).estimates.abs() < 1e-6).all()
    fixed = model(input_norm="training").double()
    fixed.load_state_dict(separator.state_dict())
    with torch.no_grad():
        own = fixed(mixture * 0.3 / mixture.std(-1, correction=0, keepdim=True)).estimates
        torch.testing.assert_close(own[0] * mixture[0].std(correction=0) / 0.3, separator(mixture).estimates[0])
    with pytest.raises(UserError, match=r"^streaming: this model, which needs the level"):
        ModelStream(separator)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": 5}, "model.masker.channels: found 5, expected a multiple of norm_groups 2"),
        ({"attention_dim": 6}, "model.masker.attention_dim: found 6, expected an even multiple of num_heads 2"),
        ({"num_layers": 0}, "model.masker.num_layers: found 0, expected at least 1"),
        ({"dropout": -0.1}, "model.masker.dropout: found -0.1, expected 0 <= dropout < 1"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        small(**changes)


def test_magnitudes_are_refused():
    with pytest.raises(UserError, match=r"^masker tf_locoformer: found features of 9 values a frame"):
        model(filterbank=STFTFilterbankConfig(16, 8))
