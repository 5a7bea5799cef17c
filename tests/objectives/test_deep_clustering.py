"""The deep-clustering term against the sum over all pairs of bins, and the embeddings of a masker."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest
import torch

from sepkit.choices import from_dict
from sepkit.config import ConstantConfig, DeepClusteringConfig, ModelConfig, ObjectiveConfig
from sepkit.errors import UserError
from sepkit.models import build_model
from sepkit.objectives import build_objective
from sepkit.types import Batch, Latent, Separation

BINS, FRAMES, DIM = 3, 5, 4
MASKER = {"name": "gated_recurrence", "model_dim": 6, "hidden_size": 5, "feedforward_dim": 7, "num_layers": 1}


def term_of(separation: Separation, batch: Batch) -> torch.Tensor:
    objective = build_objective(ObjectiveConfig(), embedded=True)
    return objective(batch, separation).terms["deep_clustering"]


def batch_and_separation(sources: int = 2) -> tuple[Batch, Separation]:
    """Make utterances of all, all (with silent bins), one and no sources."""
    generator = torch.Generator().manual_seed(0)
    active = torch.ones(4, sources, dtype=torch.bool)
    active[2, 1:] = active[3] = False
    features = torch.rand(4, sources, BINS, FRAMES, dtype=torch.float64, generator=generator)
    features[1, :, :, 3:] = 0
    embeddings = torch.randn(4, DIM, BINS, FRAMES, dtype=torch.float64, generator=generator)
    waveforms = torch.randn(4, sources, 40, dtype=torch.float64, generator=generator)
    estimates = torch.randn(4, 3, 40, dtype=torch.float64, generator=generator)
    separation = Separation(estimates, cast(Latent, None), cast(Latent, None))
    separation.embeddings = torch.nn.functional.normalize(embeddings, dim=1).requires_grad_()
    separation.source_features = features
    return Batch(waveforms.sum(1), waveforms, active, torch.full((4,), 40)), separation


def expected(embeddings: np.ndarray, features: np.ndarray) -> float:
    """The sum over all pairs of bins, of the embeddings (D, K, F) of an utterance with features (m, K, F)."""
    vectors, own = embeddings.reshape(len(embeddings), -1).T, features.reshape(len(features), -1).T
    weights, speakers = own.max(1) / own.max(1).sum(), own.argmax(1)
    alike = (speakers[:, None] == speakers[None]).astype(float)
    return float((weights[:, None] * weights[None] * (vectors @ vectors.T - alike) ** 2).sum())


@pytest.mark.parametrize("sources", [1, 2, 3])
def test_it_is_the_sum_over_pairs_of_bins(sources):
    batch, separation = batch_and_separation(sources)
    assert separation.embeddings is not None and separation.source_features is not None
    value = term_of(separation, batch)
    for number in range(4):
        there = separation.source_features[number, batch.active[number]].numpy()
        wanted = expected(separation.embeddings[number].detach().numpy(), there) if len(there) else 0.0
        assert value[number].item() == pytest.approx(wanted, abs=1e-12)
    value.sum().backward()
    gradient = separation.embeddings.grad
    assert gradient is not None and gradient.isfinite().all()
    assert gradient[3].count_nonzero() == 0 and gradient[1, :, :, 3:].count_nonzero() == 0 and gradient[1].any()


def test_it_does_not_depend_on_the_order_of_sources_or_on_their_level():
    batch, separation = batch_and_separation()
    value = term_of(separation, batch)
    assert separation.source_features is not None
    separation.source_features = 3 * separation.source_features.flip(1)
    turned = Batch(batch.mixture, batch.sources.flip(1), batch.active.flip(1), batch.lengths)
    torch.testing.assert_close(term_of(separation, turned), value)


def test_embeddings_that_tell_speakers_apart_cost_nothing():
    batch, separation = batch_and_separation()
    assert separation.source_features is not None
    speaker = separation.source_features.argmax(1)
    separation.embeddings = torch.nn.functional.one_hot(speaker, DIM).movedim(-1, 1).double()
    torch.testing.assert_close(term_of(separation, batch)[:2], torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("bands", [1, 2])
def test_a_model_learns_by_it_and_separates_the_same(bands):
    torch.manual_seed(0)
    described = {
        "filterbank": {"name": "stft", "kernel_size": 16, "stride": 8, "complex_masks": True},
        "masks": {"name": "deterministic", "link": "linear"},
        "masker": MASKER | {"bands": bands, "embedding_dim": DIM},
    }
    model = build_model(from_dict(ModelConfig, described))
    sources = torch.randn(2, 2, 100)
    batch = Batch(sources.sum(1), sources, torch.ones(2, 2, dtype=torch.bool), torch.tensor([100, 100]))
    objective = build_objective(
        ObjectiveConfig(deep_clustering=DeepClusteringConfig(ConstantConfig(0.5))), embedded=model.embeds
    )
    separation = model(batch.mixture, **objective.inputs(batch))
    bins, frames = model.filterbank.encoding_dim, model.frames_for(100)
    assert separation.embeddings.shape == (2, DIM, bins, frames)
    assert separation.source_features.shape == (2, 2, bins, frames)
    torch.testing.assert_close(separation.embeddings.norm(dim=1), torch.ones(2, bins, frames))
    losses = objective(batch, separation)
    assert objective.scheduled == {"deep_clustering_weight": 0.5}
    torch.testing.assert_close(losses.loss, losses.terms["separation"] + 0.5 * losses.terms["deep_clustering"])
    losses.terms["deep_clustering"].sum().backward()
    assert model.masker.embedding.weight.grad.any() and model.masker.blocks[0].time_norm.weight.grad.any()
    assert model.masker.output.weight.grad is None
    plain = model(batch.mixture)
    assert plain.embeddings is None
    torch.testing.assert_close(plain.estimates, separation.estimates)


def test_what_does_not_embed_has_no_such_term():
    model = build_model(from_dict(ModelConfig, {"masker": MASKER}))
    assert not model.embeds and "deep_clustering" not in build_objective(ObjectiveConfig(), embedded=False).terms
    with pytest.raises(ValueError, match="embedding_dim above 0"):
        model.masker.with_embeddings(torch.zeros(1, model.filterbank.encoding_dim, 3))
    with pytest.raises(UserError, match=r"^model.masker.embedding_dim: found -1, expected at least 0"):
        build_model(from_dict(ModelConfig, {"masker": MASKER | {"embedding_dim": -1}}))
    parts = {"name": "stft", "kernel_size": 16, "stride": 8, "complex_masks": True, "features": "real_imaginary"}
    described = {"filterbank": parts, "masker": MASKER | {"embedding_dim": 3}}
    with pytest.raises(UserError, match=r"^model.masker.embedding_dim: .* set model.filterbank.features to magnitude"):
        build_model(from_dict(ModelConfig, described | {"masks": {"name": "deterministic", "link": "linear"}}))
    for weight in (-1.0, math.nan):
        config = ObjectiveConfig(deep_clustering=DeepClusteringConfig(ConstantConfig(weight)))
        with pytest.raises(UserError, match=r"^objective.deep_clustering.weight: found .* expected 0 or more"):
            build_objective(config, embedded=True)
    batch, separation = batch_and_separation()
    separation.embeddings = None
    with pytest.raises(ValueError, match=r"call the model with Objective.inputs"):
        term_of(separation, batch)
