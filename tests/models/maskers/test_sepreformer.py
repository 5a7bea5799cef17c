"""SepReformer beside what holds for every masker: its heads at inner stages, and its refusals."""

from __future__ import annotations

import pytest
import torch

from sepkit.config import DeterministicConfig, FreeFilterbankConfig, ModelConfig, ObjectiveConfig, SepReformerConfig
from sepkit.models import build_model
from sepkit.models.maskers import SepReformerMasker
from sepkit.objectives import build_objective
from sepkit.types import Batch

SIZES = {"channels": 6, "num_stages": 2, "num_heads": 2, "kernel_size": 3, "max_distance": 4}
FREE = FreeFilterbankConfig(5, 4, 2, mapping=True)
LINEAR = DeterministicConfig(activation="linear")


def small(hypotheses: int = 3, **changes) -> SepReformerMasker:
    torch.manual_seed(0)
    masker = SepReformerMasker(5, hypotheses, **(SIZES | changes)).eval()
    with torch.no_grad():
        for name, parameter in masker.named_parameters():
            # Blocks begin as almost nothing.
            if name.endswith("scale"):
                parameter.fill_(1.0)
    return masker


@pytest.mark.parametrize("frames", [1, 7, 8])
def test_every_inner_stage_makes_a_mask_of_the_encoding(frames):
    masker, features = small(), torch.randn(2, 5, frames)
    masker.attach(torch.nn.Identity)
    output = masker.with_extras(features, {"stage_estimates"})
    raw, masks = (
        output.values,
        [made / features.unsqueeze(1) for made in output.extras["stage_estimates"].encodings.unbind(1)],
    )
    torch.testing.assert_close(raw, masker(features))
    assert [mask.shape for mask in masks] == [(2, 3, 5, frames)] * masker.stages
    assert all((mask >= 0).all() and mask.std() > 0 for mask in masks) and masker.stages == 2
    # The first one changes only every 2^2 frames.
    if frames == 8:
        torch.testing.assert_close(masks[0][..., :4], masks[0][..., :1].expand(-1, -1, -1, 4))


def test_hypotheses_share_all_weights_behind_the_split():
    masker, features = small(), torch.randn(1, 5, 9)
    with torch.no_grad():
        for parameter in masker.split.layers[2].parameters():
            parameter[6:12] = parameter[:6]
    raw = masker(features)
    torch.testing.assert_close(raw[:, 0], raw[:, 1])
    assert not torch.allclose(raw[:, 0], raw[:, 2])


def test_attention_tells_distances_apart_up_to_a_limit():
    near, far = small().positions(3), small().positions(9)
    assert torch.equal(near, far[6:11])
    assert torch.equal(far[:5], far[:1].expand(5, -1)) and torch.equal(far[11], far[16])
    assert not torch.equal(far[4], far[5])


def model(**changes) -> torch.nn.Module:
    torch.manual_seed(0)
    config = ModelConfig(
        filterbank=FREE,
        encoding=DeterministicConfig(activation="gelu"),
        masker=SepReformerConfig(**SIZES),
        masks=LINEAR,
    )
    return build_model(ModelConfig(**(vars(config) | changes)))


def test_all_heads_and_their_decoders_learn():
    separator = model()
    batch = Batch(torch.randn(2, 61), torch.randn(2, 2, 61), torch.ones(2, 2, dtype=torch.bool), torch.tensor([61, 40]))
    objective = build_objective(ObjectiveConfig(), separator.traits())
    separation = separator(batch.mixture, **objective.inputs(batch))
    assert separation.extras["stage_estimates"].shape == (2, 2, 2, 61)
    objective(batch, separation).loss.sum().backward()
    for name, parameter in separator.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    for name in ("masker.stage_outputs.0.0.weight", "masker.stage_outputs.1.2.bias"):
        assert separator.get_parameter(name).grad.abs().sum() > 0
    for decoder in separator.masker.stage_decoders:
        assert all(parameter.grad.abs().sum() > 0 for parameter in decoder.parameters())


def test_estimates_of_stages_are_made_only_on_request():
    separator = model().eval()
    assert "stage_estimates" not in separator(torch.randn(1, 30)).extras
    separator = model(masker=SepReformerConfig(**SIZES, stage_heads=False))
    assert "stage_estimates" not in separator.traits().offers
    assert not separator(torch.randn(1, 30), wants={"stage_estimates"}).extras
