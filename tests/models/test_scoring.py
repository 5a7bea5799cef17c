"""Scores come from masks."""

import torch
from torch import nn

from sepkit.config import DeterministicConfig, DualPathRNNConfig, FreeFilterbankConfig, ModelConfig, ScoringConfig
from sepkit.models import build_model, load_checkpoint, save_model
from sepkit.models.bridges import to_asteroid_state_dict
from sepkit.models.parts import ScoringHead
from tests.complaint import complaint


def test_head_is_that_of_the_reference_code():
    """Linear on every frame, mean over frames, ReLU, Linear."""
    head = ScoringHead(6, 10).double()
    masks = torch.rand(3, 4, 6, 17, dtype=torch.float64)
    frames = nn.functional.linear(masks.transpose(2, 3), head.hidden.weight, head.hidden.bias)
    expected = nn.functional.linear(frames.mean(2).relu(), head.output.weight, head.output.bias)[..., 0]
    torch.testing.assert_close(head(masks), expected, rtol=1e-12, atol=1e-12)


def test_scores_are_in_full_precision_under_autocast():
    head, masks = ScoringHead(6, 10), torch.rand(2, 4, 6, 300)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(head(masks), head.forward(masks.double()), rtol=1e-5, atol=1e-6)
        assert head(masks.bfloat16()).dtype == torch.float32


def paper_config(scoring):
    bank, relu, sigmoid = FreeFilterbankConfig(64, 16, 8), DeterministicConfig("relu"), DeterministicConfig("sigmoid")
    return ModelConfig(8000, 2, bank, relu, DualPathRNNConfig(), sigmoid, scoring=scoring)


def test_parameters_are_as_many_as_in_the_reference_code():
    models = [build_model(paper_config(scoring)) for scoring in (None, ScoringConfig())]
    assert [sum(p.numel() for p in model.parameters()) for model in models] == [3_652_865, 3_661_314]


def test_model_scores_its_masks_and_survives_the_disk(tiny_model_config, tmp_path):
    tiny_model_config.hypotheses, tiny_model_config.scoring = 4, ScoringConfig(8)
    model = build_model(tiny_model_config).eval()
    separation = model(torch.randn(2, 400))
    assert separation.scores is not None and separation.scores.shape == (2, 4)
    torch.testing.assert_close(separation.scores, model.scoring_head(separation.masks.mean))
    loaded = load_checkpoint(save_model(model, tmp_path / "model", {"score_threshold": 0.25}))
    assert loaded.config == tiny_model_config and loaded.info == {"score_threshold": 0.25}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_asteroid_has_no_scores():
    complaint(lambda: to_asteroid_state_dict(build_model(paper_config(ScoringConfig()))), r"model\.scoring")
