"""The band-split masker: shapes, layouts, causality, gradients, and what is refused."""

from __future__ import annotations

import pytest
import torch

from sepkit.config import BandSplitRNNConfig, DeterministicConfig, ModelConfig, STFTFilterbankConfig
from sepkit.errors import UserError
from sepkit.models import build_model
from sepkit.models.maskers import BandSplitRNNMasker
from sepkit.models.maskers.band_split_rnn import band_widths

BARE = {"features": "real_imaginary", "complex_masks": True, "mapping": True, "compression": 1.0}


def small(encoding_dim: int = 65, hypotheses: int = 2, values: int = 1, **changes) -> BandSplitRNNMasker:
    return BandSplitRNNMasker(encoding_dim, hypotheses, values, **({"channels": 3, "num_layers": 1} | changes)).eval()


@pytest.mark.parametrize(("encoding_dim", "values"), [(65, 2), (130, 1)])
def test_magnitudes_and_parts_give_every_parameter_a_gradient(encoding_dim, values):
    masker = small(encoding_dim, 3, values)
    raw = masker(torch.randn(2, encoding_dim, 9))
    (raw * torch.randn(2, 3, values, encoding_dim, 9)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in masker.parameters())


@pytest.mark.parametrize(
    ("changes", "causal"),
    [
        ({"norm": "channel_layer_norm", "bidirectional": False}, True),
        ({"norm": "global_layer_norm", "bidirectional": False}, False),
        ({"norm": "channel_layer_norm"}, False),
    ],
)
def test_the_future_is_heard_where_a_stream_is_refused_and_only_there(changes, causal):
    masker = small(**changes)
    features = torch.randn(1, 65, 20)
    changed = features.clone()
    changed[..., 12:] += torch.randn(1, 65, 8)
    with torch.no_grad():
        assert torch.equal(masker(features)[..., :12], masker(changed)[..., :12]) == causal
    if causal:
        masker.stream()
    else:
        with pytest.raises(UserError, match=r"^streaming: this band_split_rnn masker"):
            masker.stream()


def test_a_residual_of_zero_leaves_the_masked_mixture():
    model = build_model(
        ModelConfig(
            filterbank=STFTFilterbankConfig(128, 64, **BARE),
            masker=BandSplitRNNConfig(channels=3, num_layers=1, residual=True),
            masks=DeterministicConfig(activation="linear"),
        )
    ).eval()
    masker, mixture = model.masker, 0.3 * torch.randn(1, 700)
    with torch.no_grad():
        z = model.encode(mixture).mean
        features = model.filterbank.features(z)
        torch.testing.assert_close(features, z)
        for output in masker.residuals:
            output[3].weight.zero_()
            output[3].bias.zero_()
        values = masker(features)[:, :, 0]
        residuals, masker.residuals = masker.residuals, None
        mask = masker(features)[:, :, 0]
        masker.residuals = residuals
        expected = torch.complex(*mask.chunk(2, -2)) * torch.complex(*z.chunk(2, -2)).unsqueeze(1)
    torch.testing.assert_close(torch.complex(*values.chunk(2, -2)), expected)


@pytest.mark.parametrize(
    ("layout", "bins", "bands"), [("8k", 129, 32), ("8k", 257, 32), ("16k", 257, 40), ("16k", 129, 40)]
)
def test_layouts_hold_every_bin(layout, bins, bands):
    widths = band_widths(layout, bins)
    assert sum(widths) == bins and len(widths) == bands and min(widths) >= 1
    assert widths == sorted(widths) or widths[0] == widths[1] + 1
