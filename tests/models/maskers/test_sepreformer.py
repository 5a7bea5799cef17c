"""SepReformer beside what holds for every masker: what its hypotheses share, its positions, and its gradients."""

import torch

from sepkit import config as c
from sepkit.models import build_model
from sepkit.models.maskers import SepReformerMasker
from sepkit.objectives import build_objective
from sepkit.types import Batch

SIZES = {"channels": 6, "num_stages": 2, "num_heads": 2, "kernel_size": 3, "max_distance": 4}


def small() -> SepReformerMasker:
    torch.manual_seed(0)
    masker = SepReformerMasker(5, 3, **SIZES).eval()
    with torch.no_grad():
        for name, parameter in masker.named_parameters():
            # Blocks begin as almost nothing.
            if name.endswith("scale"):
                parameter.fill_(1.0)
    return masker


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


def test_all_parameters_learn():
    bank, gelu, linear = c.FreeFilterbankConfig(5, 4, 2, mapping=True), *map(c.DeterministicConfig, ("gelu", "linear"))
    separator = build_model(c.ModelConfig(8000, 2, bank, gelu, c.SepReformerConfig(**SIZES), linear))
    batch = Batch(torch.randn(2, 61), torch.randn(2, 2, 61), torch.ones(2, 2, dtype=torch.bool), torch.tensor([61, 40]))
    objective = build_objective(c.ObjectiveConfig(), separator.traits())
    objective(batch, separator(batch.mixture, **objective.inputs(batch))).loss.sum().backward()
    for name, parameter in separator.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
