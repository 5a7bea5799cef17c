"""Complex masks of the STFT: what they are, what makes them, and what is refused."""

import pytest
import torch

from sepkit import config as c
from sepkit.models import EncoderMaskerDecoder, build_model
from sepkit.models.stft_filterbank import STFTFilterbank

LINEAR = c.DeterministicConfig(activation="linear")
COMPLEX = c.STFTFilterbankConfig(64, 32, complex_masks=True)


def model(filterbank=COMPLEX, masks=LINEAR, **changes) -> EncoderMaskerDecoder:
    masker = c.RecurrentConfig(hidden_size=6, num_layers=1)
    made = build_model(c.ModelConfig(**({"filterbank": filterbank, "masker": masker, "masks": masks} | changes)))
    made.set_signal_statistics(0.02, 0.3)
    return made.eval()


def test_masks_multiply_as_complex_numbers():
    bank = STFTFilterbank(32, 16, complex_masks=True)
    encoding, mask = torch.randn(2, 34, 5), torch.randn(2, 3, 34, 5)
    masked = torch.complex(*bank.apply_mask(mask, encoding).chunk(2, dim=-2))
    expected = torch.complex(*mask.chunk(2, dim=-2)) * torch.complex(*encoding.chunk(2, dim=-2)).unsqueeze(1)
    torch.testing.assert_close(masked, expected)


def test_a_masker_of_zeros_gives_half_the_mixture():
    half = model()
    half.masker.output.weight.data.zero_()
    half.masker.output.bias.data.zero_()
    mixture = 0.3 * torch.randn(2, 500)
    expected = 0.5 * (mixture - half.signal_mean).unsqueeze(1).expand(-1, 2, -1)
    torch.testing.assert_close(half(mixture).estimates, expected, rtol=0, atol=1e-5)


def test_gaussian_masks_start_narrow():
    narrow = model(masks=c.GaussianConfig(), encoding=c.GaussianConfig())
    narrow.masker.output.weight.data.zero_()
    narrow.masker.output.bias.data.zero_()
    posterior = narrow(0.3 * torch.randn(1, 300)).masks
    assert posterior.shape[1:3] == (2, narrow.filterbank.mask_dim)
    torch.testing.assert_close(posterior.deviation, torch.full(posterior.shape, 0.1), rtol=1e-4, atol=0)
    assert set(posterior.mean.unique().tolist()) == {0.0, 0.5}


@pytest.mark.parametrize("masks", [LINEAR, c.DeterministicConfig(activation="tanh"), c.GaussianConfig()])
@pytest.mark.parametrize("features", ["magnitude", "real_imaginary"])
def test_tiles_of_masks_and_every_length(features, masks, monkeypatch):
    from sepkit.models import emd

    monkeypatch.setattr(emd, "_TILE_FRAMES", 3)
    tiled = model(c.STFTFilterbankConfig(64, 32, complex_masks=True, features=features), masks)
    assert tiled.masker.encoding_dim == (33 if features == "magnitude" else 66) and tiled.filterbank.mask_dim == 66
    for num_samples in (1, 31, 64, 777):
        mixture = 0.3 * torch.randn(2, num_samples)
        with torch.no_grad():
            whole = tiled(mixture).estimates
            torch.testing.assert_close(tiled.estimates(mixture), whole, rtol=1e-5, atol=1e-6)
        assert whole.shape == (2, 2, num_samples)


def test_real_and_imaginary_features_have_compressed_magnitudes_and_the_phase():
    bank = STFTFilterbank(32, 16, features="real_imaginary", complex_masks=True)
    encoding = torch.randn(2, 34, 5)
    seen = torch.complex(*bank.features(encoding).chunk(2, dim=-2))
    exact = torch.complex(*encoding.chunk(2, dim=-2))
    torch.testing.assert_close(seen.abs(), exact.abs() ** 0.3, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(seen.angle(), exact.angle(), rtol=1e-4, atol=1e-4)
    silence = torch.zeros(1, 34, 3, requires_grad=True)
    bank.features(silence).sum().backward()
    assert silence.grad is not None and silence.grad.isfinite().all()


def test_mapping_gives_what_the_masker_makes():
    mapped = model(c.STFTFilterbankConfig(64, 32, features="real_imaginary", complex_masks=True, mapping=True))
    mixture = 0.3 * torch.randn(1, 400)
    with torch.no_grad():
        raw = mapped.masker(mapped.filterbank.features(mapped.encode(mixture).mean))[:, :, 0]
        torch.testing.assert_close(mapped(mixture).estimates, mapped.decode(raw, 400))


def test_scores_and_rates_see_all_values_of_a_mask():
    scored = model(masks=c.GaussianConfig(), encoding=c.GaussianConfig(), scoring=c.ScoringConfig(4))
    separation = scored.train()(0.3 * torch.randn(2, 300))
    assert separation.scores is not None and separation.scores.shape == (2, 2)
    assert separation.extras["mask_sample"] is not None and separation.extras["mask_sample"].shape[2] == 66
    separation.estimates.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in scored.masker.parameters())
