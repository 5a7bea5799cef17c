"""Speaker encoders: shapes, unit length, what they are deaf to, and their files."""

import numpy as np
import pytest
import torch

from sepkit.config import SpeakerEncoderConfig
from sepkit.errors import UserError
from sepkit.models import build_model, load_checkpoint, save_model
from sepkit.models.speaker_encoder import SpeakerEncoder
from sepkit.signals import mel_bands
from tests.complaint import complaint

SMALL = SpeakerEncoderConfig(channels=8, pooled=8, dimensions=6)


@pytest.fixture
def noise() -> torch.Tensor:
    return torch.randn(3, 8000, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("trunk", ["convolutional", "resnet", "campplus"])
@pytest.mark.parametrize("seconds", [0.05, 0.5, 3.0])
def test_embeddings_of_any_length_are_unit_vectors(trunk, seconds):
    encoder = SpeakerEncoder(SpeakerEncoderConfig(channels=8, pooled=8, dimensions=6, trunk=trunk)).eval()  # type: ignore[arg-type]
    embeddings = encoder(torch.randn(2, round(8000 * seconds), generator=torch.Generator().manual_seed(1)))
    assert embeddings.shape == (2, 6)
    torch.testing.assert_close(embeddings.norm(dim=-1), torch.ones(2))


def test_level_does_not_matter_but_color_does(noise):
    encoder = SpeakerEncoder(SMALL).eval()
    torch.testing.assert_close(encoder.log_mel(noise), encoder.log_mel(0.01 * noise), atol=1e-3, rtol=0)
    assert (encoder.log_mel(noise - torch.roll(noise, 1, dims=-1)) - encoder.log_mel(noise)).abs().mean() > 0.3


def test_silence_is_finite():
    assert torch.isfinite(SpeakerEncoder(SMALL).eval()(torch.zeros(1, 4000))).all()


def test_log_mel_is_that_of_each_frame(noise):
    encoder = SpeakerEncoder(SMALL)
    frame = 256
    bands = mel_bands(frame, 8000, 40, 60.0)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)
    wave = noise[0].numpy().astype(np.float64)
    rows = [np.abs(np.fft.rfft(wave[s : s + frame] * window)) ** 2 @ bands.T for s in range(0, 8000 - frame + 1, 80)]
    power = np.array(rows)
    expected = np.log(power + 1e-6 * power.max())
    expected = (expected - expected.mean()).T
    np.testing.assert_allclose(encoder.log_mel(noise[:1])[0].numpy(), expected, atol=2e-3)


CAMPPLUS = SpeakerEncoderConfig(channels=8, pooled=8, dimensions=6, trunk="campplus", bands=56)


def test_bands_of_campplus_are_the_first_of_80_up_to_8_khz(noise):
    encoder = SpeakerEncoder(CAMPPLUS)
    whole = mel_bands(512, 16000, 80, 20.0, 8000.0, nearest_weight=0)[:56, :129]
    np.testing.assert_allclose(encoder.bands.numpy(), whole, atol=1.1e-3)
    means = encoder.log_mel(noise).mean(2)
    torch.testing.assert_close(means, torch.zeros_like(means), atol=1e-5, rtol=0)


@pytest.mark.parametrize("bands", [20, 64])
def test_bands_of_campplus_beyond_the_sample_rate_are_refused(bands):
    with pytest.raises(UserError, match=f"model.bands: found {bands}, expected a multiple of 8 .* below 4000 Hz"):
        SpeakerEncoder(SpeakerEncoderConfig(trunk="campplus", bands=bands))


def test_layer_of_campplus_masks_by_the_mean_over_time():
    encoder = SpeakerEncoder(CAMPPLUS).eval()
    layer, x = encoder.trunk[2], torch.randn(1, 8, 5, generator=torch.Generator().manual_seed(0))
    hidden = layer.hidden(x)[0].detach().numpy()
    first, second = (layer.mask[number] for number in (0, 2))
    weight = np.maximum(first.weight[..., 0].detach().numpy() @ hidden.mean(1) + first.bias.detach().numpy(), 0)
    mask = 1 / (1 + np.exp(-(second.weight[..., 0].detach().numpy() @ weight + second.bias.detach().numpy())))
    padded, kernel = np.pad(hidden, ((0, 0), (1, 1))), layer.local.weight.detach().numpy()
    local = np.stack([(kernel * padded[None, :, frame : frame + 3]).sum((1, 2)) for frame in range(5)], axis=1)
    expected = np.concatenate([x[0].numpy(), local * mask[:, None]])
    np.testing.assert_allclose(layer(x)[0].detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("gate", "one_head", "parts"),
    [("none", False, (None, None)), ("fixed", False, (6, 4)), ("uniform", True, (None, 4)), ("learned", True, (6, 4))],
)
def test_parts_of_mice(noise, gate, one_head, parts):
    experts = 1 if gate == "none" else 4
    config = SpeakerEncoderConfig(channels=8, pooled=8, dimensions=6, experts=experts, gate=gate, one_head=one_head)  # type: ignore[arg-type]
    encoder = SpeakerEncoder(config).eval()
    features = encoder.features(encoder.log_mel(noise))
    assert encoder.expert_embeddings(features).shape == (3, 1 if one_head else experts, 6)
    gates, prototypes = encoder.gate_embedding(features), encoder.unit_prototypes()
    assert (None if gates is None else gates.shape[-1], None if prototypes is None else len(prototypes)) == parts
    assert encoder(noise).shape == (3, 6 if experts == 1 or one_head else 16)


def test_saved_and_loaded(noise, tmp_path):
    encoder = SpeakerEncoder(SpeakerEncoderConfig(channels=8, pooled=8, dimensions=6, experts=3, gate="fixed")).eval()
    save_model(encoder, tmp_path, {"rule": "features"})
    loaded = load_checkpoint(tmp_path, of=SpeakerEncoder)
    assert loaded.info == {"rule": "features"}
    assert torch.equal(loaded(noise), encoder(noise))


def test_models_of_the_other_kind_are_refused(tiny_model_config, tmp_path):
    save_model(build_model(tiny_model_config), tmp_path / "separator")
    save_model(SpeakerEncoder(SMALL), tmp_path / "encoder")
    with pytest.raises(UserError, match="expected speaker_encoder"):
        load_checkpoint(tmp_path / "separator", of=SpeakerEncoder)
    complaint(lambda: load_checkpoint(tmp_path / "encoder"), "found a model of kind 'speaker_encoder'")
