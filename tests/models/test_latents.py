from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sepkit.config import DeterministicConfig
from sepkit.errors import UserError
from sepkit.models.latents import Deterministic, Point
from sepkit.registry import build
from sepkit.types import Latent


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    torch.manual_seed(0)


ORACLES = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "exp": np.exp,
    "tanh": np.tanh,
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
}


@pytest.mark.parametrize("link", ORACLES)
def test_links(link):
    raw = torch.randn(2, 3, 1, 4, 5, dtype=torch.float64)
    point = Deterministic(link).posterior(raw)
    assert point.shape == (2, 3, 4, 5)
    np.testing.assert_allclose(point.mean.numpy(), ORACLES[link](raw.numpy()[:, :, 0]), rtol=1e-12, atol=1e-15)


@settings(deadline=None, max_examples=30)
@given(hypotheses=st.integers(1, 6), scale=st.sampled_from([0.0, 1.0, 1e3]))
def test_softmax_masks_sum_to_one_over_hypotheses(hypotheses, scale):
    masks = Deterministic("softmax").posterior(scale * torch.randn(2, hypotheses, 1, 4, 5)).mean
    torch.testing.assert_close(masks.sum(dim=1), torch.ones(2, 4, 5))


def test_a_point_is_a_latent_of_one_value():
    value = torch.randn(2, 4, 5, requires_grad=True)
    point = Deterministic("linear").posterior(value.unsqueeze(1))
    assert isinstance(point, Latent)
    for one in (point.mean, point.median, point.sample(), point.sample(torch.Generator())):
        assert torch.equal(one, value)
    point.sample().sum().backward()
    assert torch.equal(value.grad, torch.ones_like(value))


def test_a_point_has_rate_zero_and_all_its_mass_in_one_place():
    point = Point(torch.tensor([0.0, 2.0, math.nan]))
    assert torch.equal(point.kl(None), torch.zeros(3))
    expected = torch.tensor([0.0, -math.inf, -math.inf])
    assert torch.equal(point.log_prob(torch.tensor([0.0, 1.0, math.nan])), expected)


def test_nan_is_not_hidden_by_a_link():
    for link in ORACLES:
        assert Deterministic(link).posterior(torch.full((1, 2, 1, 1, 1), math.nan)).mean.isnan().all()


def test_built_from_its_configuration():
    family = build(DeterministicConfig(link="sigmoid"))
    assert (family.link, family.values_per_dimension) == ("sigmoid", 1)


def test_mistakes():
    with pytest.raises(UserError, match="link: found 'cubic'"):
        Deterministic("cubic")
    for shape in ((2, 3), (2, 2, 4, 5)):
        with pytest.raises(ValueError, match="expected"):
            Deterministic().posterior(torch.zeros(shape))
