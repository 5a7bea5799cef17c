"""Objectives that cannot be meant, signals of other shapes, and separations that lack what a term needs."""

import math

import pytest
import torch

from sepkit import config as c
from sepkit.objectives import build_objective
from sepkit.objectives.likelihoods import pairwise_blr_nll, pairwise_cauchy_nll
from sepkit.types import Batch, ModelTraits, Separation
from tests.complaint import complaint

FIRST = ModelTraits({"encoding_prior"}, frames_for=lambda samples: samples // 8)
BOTH = ModelTraits({"encoding_prior", "mask_prior"}, frames_for=lambda samples: samples // 8)


def rates(traits: ModelTraits = BOTH, **changes) -> tuple[c.ObjectiveConfig, ModelTraits]:
    return c.ObjectiveConfig(cost=c.BLRConfig(), rates=c.RatesConfig(**changes)), traits


def steered(traits: ModelTraits = BOTH, **changes) -> tuple[c.ObjectiveConfig, ModelTraits]:
    return rates(traits, steering=c.SteeringConfig(**changes))


def objective(**changes) -> tuple[c.ObjectiveConfig, ModelTraits]:
    return c.ObjectiveConfig(**changes), ModelTraits()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (rates(masks=c.RateConfig(free_nats=math.nan)), "masks.free_nats: found nan"), (steered(), "expected a target"),
        (steered(total=1.0, masks=1.0), "expected a target"), (steered(ModelTraits(), total=1.0), "deterministic"),
        (steered(FIRST, masks=1.0), "deterministic"),
        (objective(silence=c.SilenceConfig(weight=1.0), assignment=c.MCLConfig()), "with mcl hypotheses without"),
    ],
)  # fmt: skip
def test_configurations(made, words):
    assert words in complaint(lambda: build_objective(*made))


@pytest.mark.parametrize(
    ("traits", "autoencoding", "words"),
    [
        (BOTH, 0.0, "no encoding_prior"),
        (ModelTraits({"scores"}), 0.0, "no scores"),
        (ModelTraits(), 1.0, "no source_reconstructions"),
    ],
)
def test_separations_that_lack_what_a_term_needs(traits, autoencoding, words):
    sources = torch.randn(1, 2, 80)
    batch = Batch(sources.sum(1), sources, torch.ones(1, 2, dtype=torch.bool), torch.tensor([80]))
    config = c.ObjectiveConfig(autoencoding=c.AutoencodingConfig(sources=autoencoding))
    with pytest.raises(ValueError, match=words):
        build_objective(config, traits)(batch, Separation(sources, None, None))


ONES = torch.ones(1, 2, 4)
NO_NUMBERS = (0.0, -1.0, math.nan, math.inf)
PRIOR = ("a0", "b0", "lambda0")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *[(lambda n=n, v=v: pairwise_blr_nll(ONES, ONES, **{n: v}), n) for n in PRIOR for v in NO_NUMBERS],
        *[(lambda v=v: pairwise_cauchy_nll(ONES, ONES, v), "scale must be positive") for v in NO_NUMBERS],
        (lambda: pairwise_cauchy_nll(ONES, ONES, ONES[:, :1]), r"\(1, 2, 4\), found \(1, 1, 4\)"),
    ],
)
def test_numbers_and_shapes_that_do_not_fit(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("scale", NO_NUMBERS)
def test_an_entry_that_is_no_scale_is_seen(scale):
    """In a tensor of scales it gives NaN or an infinite cost."""
    assert not pairwise_cauchy_nll(ONES, 2 * ONES, scale * ONES).isfinite().any()
