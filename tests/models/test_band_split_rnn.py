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


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def small(encoding_dim: int = 65, hypotheses: int = 2, values: int = 1, **changes) -> BandSplitRNNMasker:
    return BandSplitRNNMasker(encoding_dim, hypotheses, values, **({"channels": 3, "num_layers": 1} | changes)).eval()


@pytest.mark.parametrize(("encoding_dim", "hypotheses", "values"), [(65, 3, 2), (130, 2, 1)])
def test_output_has_the_frames_of_the_input_and_every_parameter_a_gradient(encoding_dim, hypotheses, values):
    masker = small(encoding_dim, hypotheses, values)
    for frames in (1, 2, 9):
        raw = masker(torch.randn(2, encoding_dim, frames))
        assert raw.shape == (2, hypotheses, values, encoding_dim, frames)
    (raw * torch.randn(raw.shape)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in masker.parameters())


def test_utterances_of_a_batch_do_not_meet():
    masker = small().double()
    batch = torch.randn(3, 65, 7, dtype=torch.float64)
    alone = torch.cat([masker(batch[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(masker(batch), alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["global_layer_norm", "channel_layer_norm"])
def test_silence_is_finite_and_so_is_its_gradient(norm):
    masker, features = small(norm=norm), torch.zeros(1, 65, 5, requires_grad=True)
    masker(features).sum().backward()
    assert features.grad is not None and features.grad.isfinite().all()


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: band_widths("44k", 129), "bands: found '44k', expected one of 8k, 16k"),
        (lambda: small(161), r"bands: the layout 8k divides windows of 128 samples.* \(.*kernel_size 320\)"),
        (lambda: small(65, bands="16k"), "bands: the layout 16k divides windows of 256 samples"),
        (lambda: small(residual=True), "residual: found true with features of magnitudes"),
        (lambda: small(norm="batch_norm"), "norm: found 'batch_norm'"),
        (lambda: small(channels=0), "channels: found 0, expected at least 1"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(UserError, match=rf"^model\.masker\.{message}") as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("bank", "masker", "rate", "message"),
    [
        ({}, {}, 16000, "bands: found a layout for 8000 Hz, but model.sample_rate is 16000"),
        (BARE | {"mapping": False}, {"residual": True}, 8000, "residual: .* set model.filterbank.mapping to true"),
        (BARE | {"compression": 0.3}, {"residual": True}, 8000, "residual: .*compression to 1,"),
    ],
)
def test_models_that_it_does_not_go_with_are_refused(bank, masker, rate, message):
    config = ModelConfig(
        sample_rate=rate,
        filterbank=STFTFilterbankConfig(128, 64, **bank),
        masker=BandSplitRNNConfig(channels=3, num_layers=1, **masker),
        masks=DeterministicConfig(activation="linear"),
    )
    with pytest.raises(UserError, match=rf"^model\.masker\.{message}"):
        build_model(config)
