"""Scores come from masks; duplicates, numbers of speakers and thresholds equal those of plain NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from sepkit.config import DeterministicConfig, DualPathRNNConfig, FreeFilterbankConfig, ModelConfig, ScoringConfig
from sepkit.errors import UserError
from sepkit.models import build_model, load_checkpoint, save_model
from sepkit.models.bridges import to_asteroid_state_dict
from sepkit.models.scoring import (
    DEFAULT_THRESHOLD,
    DUPLICATE_SI_SDR_DB,
    ScoringHead,
    best_hypotheses,
    calibrate_threshold,
    distinct_hypotheses,
    hypothesis_weights,
)


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


def test_a_score_follows_its_own_mask():
    head, masks = ScoringHead(6, 10), torch.rand(1, 4, 6, 17)
    order = [2, 0, 3, 1]
    torch.testing.assert_close(head(masks[:, order]), head(masks)[:, order])


def paper_config(scoring):
    return ModelConfig(
        filterbank=FreeFilterbankConfig(num_filters=64, kernel_size=16, stride=8),
        encoding=DeterministicConfig("relu"),
        masker=DualPathRNNConfig(),
        masks=DeterministicConfig("sigmoid"),
        scoring=scoring,
    )


def test_parameters_are_as_many_as_in_the_reference_code():
    counts = [
        sum(p.numel() for p in build_model(paper_config(scoring)).parameters()) for scoring in (None, ScoringConfig())
    ]
    assert counts == [3_652_865, 3_661_314]


def test_model_scores_its_masks_and_survives_the_disk(tiny_model_config, tmp_path):
    tiny_model_config.hypotheses, tiny_model_config.scoring = 4, ScoringConfig(8)
    model = build_model(tiny_model_config).eval()
    separation = model(torch.randn(2, 400))
    assert separation.scores is not None and separation.scores.shape == (2, 4)
    assert model.scoring_head is not None
    torch.testing.assert_close(separation.scores, model.scoring_head(separation.masks.median))
    loaded = load_checkpoint(save_model(model, tmp_path / "model", {"score_threshold": 0.25}))
    assert loaded.config == tiny_model_config and loaded.info == {"score_threshold": 0.25}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_what_cannot_be_is_said(tiny_model_config):
    tiny_model_config.scoring = ScoringConfig(0)
    with pytest.raises(UserError, match=r"model\.scoring\.hidden_size: found 0"):
        build_model(tiny_model_config)
    with pytest.raises(UserError, match=r"model\.scoring"):
        to_asteroid_state_dict(build_model(paper_config(ScoringConfig())))


# ---------------------------------------------------------------------------------------------------------- duplicates


def distinct_of(scores, estimates):
    """Return the expected result of `distinct_hypotheses` for one utterance."""
    found = []
    for index in sorted(range(len(scores)), key=lambda k: (-scores[k], k)):
        if np.ptp(estimates[index]) == 0:
            continue
        correlations = [np.corrcoef(estimates[index], estimates[other])[0, 1] for other in found]
        if not any(10 * np.log10(r**2 / (1 - r**2)) > DUPLICATE_SI_SDR_DB for r in correlations):
            found.append(index)
    return [index in found for index in range(len(scores))]


@pytest.mark.parametrize("seed", range(20))
def test_duplicates_are_found_as_with_numpy(seed):
    generator = np.random.default_rng(seed)
    sources = generator.standard_normal((2, 300))
    mixing = generator.standard_normal((5, 2)) * (generator.random((5, 2)) < 0.6)
    estimates = mixing @ sources + 0.3 * generator.standard_normal((5, 300)) + generator.standard_normal((5, 1))
    estimates[generator.integers(5)] = 0.7
    scores = generator.integers(-2, 3, 5).astype(float)
    found = distinct_hypotheses(torch.tensor(scores)[None], torch.tensor(estimates)[None])[0]
    assert found.tolist() == distinct_of(scores, estimates)


def test_the_limit_is_an_si_sdr():
    source, other = torch.randn(2, 4000, dtype=torch.float64)
    source, other = source - source.mean(), other - other.mean()
    other = other - (other @ source) / (source @ source) * source
    for difference_db, duplicate in ((-0.1, False), (0.1, True)):
        share = (source.norm() / other.norm()) * 10 ** (-(DUPLICATE_SI_SDR_DB + difference_db) / 20)
        estimates = torch.stack([source, -3 * (source + share * other)])[None]
        assert distinct_hypotheses(torch.tensor([[0.0, 1.0]]), estimates).tolist() == [[not duplicate, True]]


def test_padding_does_not_count():
    estimates = torch.randn(1, 3, 200)
    estimates[:, 1, :150] = -2 * estimates[:, 0, :150] + 1
    estimates[:, 2, :150] = 0
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    assert distinct_hypotheses(scores, estimates).tolist() == [[True, True, True]]
    assert distinct_hypotheses(scores, estimates, torch.tensor([150])).tolist() == [[False, True, False]]
    assert distinct_hypotheses(scores, torch.zeros(1, 3, 200)).any().item() is False


def test_a_known_number_takes_the_best_and_duplicates_last():
    scores = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    distinct = torch.tensor([[True, True, False, False]])
    kept = [best_hypotheses(scores, distinct, count)[0].nonzero()[:, 0].tolist() for count in range(5)]
    assert kept == [[], [1], [0, 1], [0, 1, 3], [0, 1, 2, 3]]


# ----------------------------------------------------------------------------------------------------------- threshold


def share_right(scores, counts, threshold):
    return np.mean([sum(s > threshold for s in row) == count for row, count in zip(scores, counts, strict=True)])


@pytest.mark.parametrize("seed", range(40))
def test_no_threshold_counts_better(seed):
    generator = np.random.default_rng(seed)
    size = int(generator.integers(1, 12))
    scores = [np.round(generator.standard_normal(generator.integers(0, 5)), 1).tolist() for _ in range(size)]
    counts = generator.integers(0, 4, size).tolist()
    threshold, share = calibrate_threshold(scores, counts)
    assert share == pytest.approx(share_right(scores, counts, threshold))
    every = sorted({s for row in scores for s in row})
    between = [(a + b) / 2 for a, b in itertools.pairwise(every)]
    for other in [*every, *between, -100.0, 100.0]:
        assert share >= share_right(scores, counts, other) - 1e-12


def test_threshold_is_the_middle_of_the_widest_of_the_best_intervals():
    threshold, share = calibrate_threshold([[4.0, -1.0], [3.0, 1.0, -2.0], [5.0, 4.0, 2.0]], [1, 2, 3])
    # [-1, 1) is right for all three.
    assert (threshold, share) == (0.0, 1.0)
    assert calibrate_threshold([[1.0], [3.0], [9.0]], [0, 1, 1]) == (2.0, 1.0)
    # It is right for one of two below 0 and from 10 on. Ends are open; the nearer ones lie 1 beyond the last scores.
    assert calibrate_threshold([[0.0], [10.0]], [1, 0]) == (-1.0, 0.5)
    assert calibrate_threshold([], [])[0] == DEFAULT_THRESHOLD
    assert calibrate_threshold([[], []], [0, 2]) == (DEFAULT_THRESHOLD, 0.5)


def test_weights_are_a_distribution():
    """The softmax, or probabilities over their sum; also where all scores are very low."""
    scores = torch.tensor([[1.0, -2.0, 0.5], [-90.0, -91.0, -300.0]], dtype=torch.float64)
    binary, softmax = hypothesis_weights(scores), hypothesis_weights(scores, "cross_entropy")
    for found in (binary, softmax):
        torch.testing.assert_close(found.sum(1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(binary, scores.sigmoid() / scores.sigmoid().sum(1, keepdim=True))
    torch.testing.assert_close(softmax, scores.exp() / scores.exp().sum(1, keepdim=True))
