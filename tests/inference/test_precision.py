"""The option for bfloat16: what it changes, what it leaves, and where it is refused."""

import numpy as np
import pytest
import torch

from sepkit import config as c
from sepkit.inference import Separator
from sepkit.models import EncoderMaskerDecoder, build_model
from tests.complaint import complaint

needs_bfloat16 = pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="no bfloat16 in this processor")


def model_of(masker: c.MaskerConfig, activation: str = "sigmoid") -> EncoderMaskerDecoder:
    torch.manual_seed(0)
    masks = c.DeterministicConfig(activation=activation)  # type: ignore[arg-type]
    return build_model(c.ModelConfig(filterbank=c.FreeFilterbankConfig(num_filters=16), masker=masker, masks=masks))


def dual_path(rnn: str = "lstm", activation: str = "sigmoid") -> EncoderMaskerDecoder:
    return model_of(c.DualPathRNNConfig(32, 32, 50, 25, repeats=3, rnn=rnn), activation)  # type: ignore[arg-type]


def conv_tasnet(norm: str = "global_layer_norm", activation: str = "sigmoid") -> EncoderMaskerDecoder:
    return model_of(c.ConvTasNetConfig(16, 32, 16, 3, blocks=3, repeats=2, norm=norm), activation)  # type: ignore[arg-type]


def recording() -> np.ndarray:
    """Two seconds like speech: syllables of harmonics of a moving pitch."""
    time = np.arange(16000) / 8000
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(3 * time)) / 8000
    syllables = np.clip(np.sin(2 * np.pi * 4 * time), 0, 1)
    voice = sum(np.sin(k * phase) / k for k in range(1, 20))
    return (0.1 * syllables * voice + 1e-3 * np.random.default_rng(0).standard_normal(16000)).astype(np.float32)


@needs_bfloat16
@pytest.mark.parametrize(
    ("model", "least_db"),
    [(dual_path(), 50), (dual_path(activation="relu"), 36), (conv_tasnet(), 50), (conv_tasnet(activation="relu"), 36)],
    ids=["dual_path", "dual_path_relu", "conv_tasnet", "conv_tasnet_relu"],
)
def test_how_far_estimates_are_above_what_they_differ_by(model, least_db):
    # Masks of an untrained model are around 0.5 by a sigmoid, which the errors are small beside, and near 0 by a relu.
    mixture = recording()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    exact = Separator(model, levels="model").separate(mixture, 8000).estimates
    separator = Separator(model, levels="model", precision="bfloat16")
    found = separator.separate(mixture, 8000).estimates
    assert found.dtype == np.float32
    noise = np.sum((found - exact) ** 2)
    assert noise > 0
    assert 10 * np.log10(np.sum(exact**2) / noise) > least_db
    assert separator.provenance()["precision"] == "bfloat16"
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    # And back.
    np.testing.assert_array_equal(Separator(model, levels="model").separate(mixture, 8000).estimates, exact)


@pytest.mark.parametrize(
    ("model", "precision", "message"),
    [
        (model_of(c.RecurrentConfig(hidden_size=4, num_layers=1)), "bfloat16", "found bfloat16, which RecurrentMasker"),
        pytest.param(dual_path("gru"), "bfloat16", "found bfloat16, but .* rnn: gru", marks=needs_bfloat16),
        pytest.param(
            conv_tasnet("channel_layer_norm"),
            "bfloat16",
            "found bfloat16, but this conv_tasnet has another norm than global_layer_norm",
            marks=needs_bfloat16,
        ),
        (dual_path(), "float16", "found 'float16'.*, expected one of float32, bfloat16"),
    ],
)
def test_refusals(model, precision, message):
    complaint(lambda: Separator(model, precision=precision), f"^precision: {message}")


def test_a_processor_without_it_is_refused(monkeypatch):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    complaint(lambda: Separator(dual_path(), precision="bfloat16"), r"^precision: found bfloat16, which this processor")
    assert Separator(dual_path()).options.precision == "float32"
