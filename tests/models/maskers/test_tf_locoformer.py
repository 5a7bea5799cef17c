"""TF-Locoformer: shapes, symmetries and refusals."""

from dataclasses import replace

import torch

from sepkit.config import DeterministicConfig, ModelConfig, STFTFilterbankConfig, TFLocoformerConfig
from sepkit.models import build_model
from sepkit.models.maskers.tf_locoformer import RotaryAttention
from sepkit.models.streaming import ModelStream
from tests.complaint import complaint

MASKER = TFLocoformerConfig(4, 1, 2, attention_dim=8, feedforward_dim=5, kernel_size=3, norm_groups=2)
BANK = STFTFilterbankConfig(16, 8, compression=1.0, features="real_imaginary", complex_masks=True, mapping=True)
LINEAR = DeterministicConfig(activation="linear")
MODEL = ModelConfig(filterbank=BANK, masker=MASKER, masks=LINEAR, input_norm="mixture")


def test_attention_hears_only_differences_of_positions():
    attention = RotaryAttention(4, 2, 8, 0.0).double().eval()
    query, key = torch.randn(2, 1, 2, 1, 4, dtype=torch.float64).expand(2, 1, 2, 9, 4)
    scores = attention._rotated(query) @ attention._rotated(key).mT
    torch.testing.assert_close(scores[..., 1:, 1:], scores[..., :-1, :-1])
    assert not torch.allclose(scores[..., 0, 1], scores[..., 0, 2])


def model(**changes) -> torch.nn.Module:
    return build_model(replace(MODEL, **changes)).eval()


def test_frames_at_the_edges_are_shared_by_the_hypotheses_alike():
    separator = model(masker=replace(MASKER, edge_frames=2))
    features = torch.randn(3, separator.filterbank.encoding_dim, 9)
    with torch.no_grad():
        values = separator.masker(features)
        separator.masker.edge_frames = 0
        torch.testing.assert_close(values[..., 2:-2], separator.masker(features[..., 2:-2]))
    expected = (features / 2)[:, None, None].expand_as(values)
    torch.testing.assert_close(values[..., [0, 1, -2, -1]], expected[..., [0, 1, -2, -1]])


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
    complaint(lambda: ModelStream(separator), r"^streaming: this model, which needs the level")
