"""SR-CorrNet: its correlations, and training with a number of speakers that varies."""

from dataclasses import replace

import torch
from torch.nn import functional

from sepkit import config as c
from sepkit.models import build_model
from sepkit.models.published.facts import model_facts
from sepkit.objectives import build_objective
from sepkit.types import Batch
from tests.complaint import complaint

BANK = c.STFTFilterbankConfig(16, 8, compression=1.0, features="real_imaginary", complex_masks=True, mapping=True)


def model(**changes):
    masker = c.SRCorrNetConfig(8, 1, 2, 2, 6, 10, count_speakers=True)
    masks = c.DeterministicConfig(activation="linear")
    config = c.ModelConfig(8000, 3, BANK, masker=masker, masks=masks, input_norm="mixture")
    return build_model(replace(config, **changes))


def test_correlations_as_they_are_written():
    masker = model(masker=c.SRCorrNetConfig(8, 1, 1, 2, 6, 10, bin_taps=1, frame_taps=2)).masker
    spectrum = torch.randn(2, 9, 7, dtype=torch.complex128)
    found = masker._correlations(masker._neighbors(torch.view_as_real(spectrum).movedim(-1, 1)))
    rms = spectrum.abs().square().mean(-1, keepdim=True).sqrt()
    padded = functional.pad(spectrum, (2, 2, 1, 1))
    for place, parts in enumerate(found.unflatten(1, (15, 2)).unbind(1)):
        k, f = divmod(place, 5)
        product = spectrum / rms * (padded[:, k : k + 9, f : f + 7] / rms).conj()
        expected = product / product.abs().sqrt().where(product != 0, 1.0)
        torch.testing.assert_close(torch.complex(*parts.unbind(1)), expected, rtol=1e-6, atol=1e-6)


def test_training_is_told_how_many_speak():
    separator = model().train()
    objective = build_objective(c.ObjectiveConfig(), separator.traits())
    active = torch.tensor([[True, False, False], [True, True, True], [False, True, True]])
    sources = torch.randn(3, 3, 200) * active.unsqueeze(2)
    batch = Batch(sources.sum(1), sources, active, torch.full((3,), 200))
    separation = separator(batch.mixture, **objective.inputs(batch))
    made = [[bool(estimate.any()) for estimate in estimates] for estimates in separation.estimates]
    assert made == [[True, False, False], [True, True, True], [True, True, False]]
    losses = objective(batch, separation)
    assert {"separation", "scoring"} == losses.terms.keys()
    losses.loss.sum().backward()
    for name, parameter in separator.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name
    # Scores learn how many are there, from the first place on, whichever sources those are.
    wanted = torch.tensor([[1.0, 0, 0], [1, 1, 1], [1, 1, 0]])
    expected = functional.binary_cross_entropy_with_logits(separation.scores, wanted, reduction="none").mean(1)
    torch.testing.assert_close(losses.terms["scoring"], expected)


def test_operations_are_counted_where_gradients_are_not():
    facts = model_facts(model().eval())
    assert facts.parameters == sum(tensor.numel() for tensor in model().parameters())
    assert facts.giga_multiply_adds_per_second > 0


def test_what_does_not_go_together():
    assert "scores of its own" in complaint(lambda: model(scoring=c.ScoringConfig(4)))
    masks = c.STFTFilterbankConfig(16, 8, features="real_imaginary", complex_masks=True)
    assert "are the estimates' coefficients" in complaint(lambda: model(filterbank=masks))
    both = c.STFTFilterbankConfig(16, 8, like_torch=True, like_sr_corrnet=True)
    assert "like_torch: found True, expected false with like_sr_corrnet" in complaint(lambda: model(filterbank=both))
