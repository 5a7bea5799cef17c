"""Requirements on every masker: shapes at every length, causality if stated, and one line for impossible sizes."""

import dataclasses
import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from sepkit import config as c
from sepkit.models import maskers as m
from sepkit.models.maskers.dual_path_rnn import overlap_add, segment
from sepkit.models.maskers.gated_scan import gated_scan, two_way_scan
from sepkit.registry import build
from tests.complaint import complaint

# Sizes are small and all different, so that mixed-up axes show.
SMALL = {
    m.ConvTasNetMasker: c.ConvTasNetConfig(6, 10, skip_channels=7, blocks=3, repeats=2),
    m.DualPathRNNMasker: c.DualPathRNNConfig(6, 5, chunk_size=8, hop_size=4, repeats=2),
    m.SuDoRMRFMasker: c.SuDoRMRFConfig(6, 10, blocks=2, upsampling_depth=3),
    m.ImprovedSuDoRMRFMasker: c.ImprovedSuDoRMRFConfig(6, 10, blocks=2, upsampling_depth=3),
    m.RecurrentMasker: c.RecurrentConfig(hidden_size=5, num_layers=2),
    m.GatedRecurrenceMasker: c.GatedRecurrenceConfig(model_dim=6, hidden_size=5, feedforward_dim=7, num_layers=2),
    m.ContinuousDepthMasker: c.ContinuousDepthConfig(model_dim=6, hidden_size=5, feedforward_dim=7, depth_steps=3),
    m.SepFormerMasker: c.SepFormerConfig(8, 2, chunk_size=6, transformer_layers=1, num_heads=2, feedforward_dim=12),
    m.SepReformerMasker: c.SepReformerConfig(channels=6, num_stages=1, num_heads=2, kernel_size=5, max_distance=7),
    m.TFLocoformerMasker: c.TFLocoformerConfig(
        4, 1, 2, attention_dim=8, feedforward_dim=5, kernel_size=3, norm_groups=2
    ),
    m.TIGERMasker: c.TIGERConfig(16000, 30, 5, 2, 3, 2, 3),
    m.SRCorrNetMasker: c.SRCorrNetConfig(8, 1, 1, 2, feedforward_dim=5, speaker_dim=7),
}
MASKERS = list(SMALL)
# Values a frame: real and imaginary parts, and the bins that a layout of bands divides.
DIMS: dict[type[m.Masker], int] = {m.TFLocoformerMasker: 18, m.SRCorrNetMasker: 18, m.TIGERMasker: 642}


def dim_of(masker_class: type[m.Masker]) -> int:
    return DIMS.get(masker_class, 9)


def small(masker_class, dim=None, hypotheses=2, values=1, **changes) -> m.Masker:
    config = dataclasses.replace(SMALL[masker_class], **changes)
    structure = {"encoding_dim": dim or dim_of(masker_class), "hypotheses": hypotheses, "values_per_dimension": values}
    return build(config, **structure).eval()


@pytest.mark.parametrize("masker_class", MASKERS)
class TestEveryMasker:
    def test_configuration_is_the_constructor(self, masker_class):
        parameters = inspect.signature(masker_class).parameters
        assert list(parameters)[:3] == ["encoding_dim", "hypotheses", "values_per_dimension"]
        with pytest.raises(TypeError, match="no_field_of_it"):
            masker_class(dim_of(masker_class), no_field_of_it=1)
        masker = small(masker_class, None, 3, 2)
        assert type(masker) is masker_class
        assert (masker.encoding_dim, masker.hypotheses, masker.values_per_dimension) == (dim_of(masker_class), 3, 2)

    @pytest.mark.parametrize(("encoding_dim", "hypotheses", "values"), [(9, 3, 2), (8, 1, 1), (1, 5, 1)])
    def test_output_has_the_frames_of_the_input(self, masker_class, encoding_dim, hypotheses, values):
        # Others are made for frames of one size.
        encoding_dim = DIMS.get(masker_class, encoding_dim)
        masker = small(masker_class, encoding_dim, hypotheses, values)
        for frames in (1, 2, 3, 4, 5, 7, 8, 11, 16, 31, 64) if hypotheses == 3 else (1, 7, 16):
            assert masker(torch.randn(2, encoding_dim, frames)).shape == (2, hypotheses, values, encoding_dim, frames)

    def test_every_parameter_gets_a_gradient(self, masker_class):
        masker = small(masker_class, hypotheses=3, values=2)
        dim = dim_of(masker_class)
        (masker(torch.randn(2, dim, 23)) * torch.randn(2, 3, 2, dim, 23)).sum().backward()
        for name, parameter in masker.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name

    def test_utterances_of_a_batch_do_not_meet(self, masker_class):
        masker = small(masker_class).double()
        batch = torch.randn(3, dim_of(masker_class), 21, dtype=torch.float64)
        alone = torch.cat([masker(batch[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(masker(batch), alone, rtol=1e-9, atol=1e-9)

    def test_raw_values_have_both_signs_in_every_hypothesis(self, masker_class):
        raw = small(masker_class, hypotheses=3)(torch.randn(1, dim_of(masker_class), 50))
        assert (raw.amin((0, 2, 3, 4)) < 0).all() and (raw.amax((0, 2, 3, 4)) > 0).all()

    def test_silence_is_finite_and_so_is_its_gradient(self, masker_class):
        masker = small(masker_class)
        features = torch.zeros(1, dim_of(masker_class), 13, requires_grad=True)
        raw = masker(features)
        raw.sum().backward()
        assert raw.isfinite().all() and features.grad.isfinite().all()
        assert all(p.grad.isfinite().all() for p in masker.parameters())

    @pytest.mark.parametrize("field", ["encoding_dim", "hypotheses", "values_per_dimension"])
    def test_sizes_below_one_are_refused(self, masker_class, field):
        sizes = {"encoding_dim": dim_of(masker_class), "hypotheses": 2, "values_per_dimension": 1} | {field: 0}
        complaint(lambda: masker_class(**sizes), f"^model.masker.{field}: found 0, expected 1 to 100000$")


def future_changes_past(masker: m.Masker, frames: int = 40, at: int = 25) -> bool:
    features = torch.randn(2, masker.encoding_dim, frames)
    changed = features.clone()
    changed[..., at:] += torch.randn(2, masker.encoding_dim, frames - at)
    with torch.no_grad():
        before, after = masker(features), masker(changed)
    assert not torch.equal(before[..., at], after[..., at])
    return not torch.equal(before[..., :at], after[..., :at])


@pytest.mark.parametrize("masker_class", [m.ConvTasNetMasker, m.RecurrentMasker, m.GatedRecurrenceMasker])
def test_maskers_that_are_not_causal_see_the_future(masker_class):
    assert future_changes_past(small(masker_class, norm="channel_layer_norm"))


class TestConvTasNet:
    @pytest.mark.parametrize("norm", ["cumulative_layer_norm", "channel_layer_norm", "batch_norm"])
    @pytest.mark.parametrize("kernel_size", [2, 3, 4])
    def test_causal_output_does_not_see_the_future(self, norm, kernel_size):
        assert not future_changes_past(small(m.ConvTasNetMasker, causal=True, norm=norm, kernel_size=kernel_size))

    def test_causal_receptive_field_is_as_long_as_the_dilations_say(self):
        masker = small(m.ConvTasNetMasker, causal=True, norm="channel_layer_norm").double()
        features = torch.randn(1, 9, 60, dtype=torch.float64, requires_grad=True)
        masker(features)[..., -1].sum().backward()
        seen = features.grad.abs().sum((0, 1)) > 0
        # 2 repeats of dilations 1, 2, 4, kernel 3: 28 frames before the last.
        assert seen.nonzero().min() == 60 - 1 - 28

    def test_normalized_skip_sum_is_the_mean_over_blocks(self):
        plain, mean = small(m.ConvTasNetMasker), small(m.ConvTasNetMasker, normalize_skip_sum=True)
        mean.load_state_dict(plain.state_dict())
        features, bias = torch.randn(1, 9, 12), plain.output.bias.view(2, 1, 9, 1)
        torch.testing.assert_close((mean(features) - bias) * 6, plain(features) - bias, rtol=1e-5, atol=1e-5)


class TestDualPathRNN:
    @given(frames=st.integers(1, 70), chunk_size=st.integers(1, 12), data=st.data(), seed=st.integers(0, 1000))
    @settings(max_examples=60, deadline=None)
    def test_overlap_add_is_the_adjoint_of_segmenting_and_misses_no_frame(self, frames, chunk_size, data, seed):
        torch.manual_seed(seed)
        hop_size = data.draw(st.integers(1, chunk_size))
        x = torch.randn(2, 3, frames, dtype=torch.float64)
        chunks = segment(x, chunk_size, hop_size, chunk_size)
        other = torch.randn_like(chunks)
        back = overlap_add(other.permute(1, 3, 2, 0), frames, hop_size, chunk_size)
        torch.testing.assert_close((chunks * other).sum(), (x * back).sum())
        count = overlap_add(torch.ones_like(chunks).permute(1, 3, 2, 0), frames, hop_size, chunk_size)
        assert (count >= 1).all()
        if chunk_size % hop_size == 0:
            assert (count == chunk_size // hop_size).all()

    def test_chunks_are_those_of_torch_unfold(self):
        x = torch.randn(2, 3, 29)
        expected = functional.unfold(x.unsqueeze(-1), (8, 1), padding=(8, 0), stride=(4, 1)).view(2, 3, 8, -1)
        assert torch.equal(segment(x, 8, 4, 8).permute(1, 3, 0, 2), expected)


class TestSuDoRMRF:
    @pytest.mark.parametrize("encoding_dim", [1, 2, 5, 8])
    def test_first_version_slides_one_filter_over_the_encoding_dimensions(self, encoding_dim):
        masker = small(m.SuDoRMRFMasker, encoding_dim, 3).double()
        masker.blocks = torch.nn.Identity()
        features = torch.randn(2, encoding_dim, 4, dtype=torch.float64)
        x = masker.expand(masker.bottleneck(masker.norm(features)))
        before = encoding_dim - encoding_dim // 2
        padded = functional.pad(x, (0, 0, before, encoding_dim))
        weight, bias = masker.output.weight[:, 0, :, 0], masker.output.bias
        windows = padded.unfold(1, encoding_dim + 1, 1)[:, :encoding_dim]
        expected = torch.einsum("nk,bdfk->bndf", weight, windows) + bias[:, None, None]
        torch.testing.assert_close(masker(features).squeeze(2), expected)


class TestRecurrent:
    @pytest.mark.parametrize("norm", ["cumulative_layer_norm", "channel_layer_norm"])
    @pytest.mark.parametrize("rnn", ["lstm", "gru"])
    def test_unidirectional_is_causal(self, rnn, norm):
        assert not future_changes_past(small(m.RecurrentMasker, rnn=rnn, norm=norm, bidirectional=False))


class TestGatedRecurrence:
    @pytest.mark.parametrize("steps", [1, 3, 7, 12])
    def test_scan_is_the_recurrence_as_it_is_written(self, steps):
        forget, value = torch.rand(steps, 2, 3, dtype=torch.float64), torch.randn(steps, 2, 3, dtype=torch.float64)
        initial = torch.randn(2, 3, dtype=torch.float64)
        inputs = [x.requires_grad_() for x in (forget, value, initial)]
        hidden = gated_scan(*inputs)
        expected, last = [], initial
        for step in range(steps):
            last = forget[step] * last + (1 - forget[step]) * value[step]
            expected.append(last)
        torch.testing.assert_close(hidden, torch.stack(expected))
        assert torch.autograd.gradcheck(gated_scan, inputs)

    def test_two_way_scan_is_one_scan_each_way(self):
        forget, value = torch.rand(11, 2, 6, dtype=torch.float64), torch.randn(11, 2, 6, dtype=torch.float64)
        forwards = gated_scan(forget[..., :3], value[..., :3])
        backwards = gated_scan(forget[..., 3:].flip(0), value[..., 3:].flip(0)).flip(0)
        torch.testing.assert_close(two_way_scan(forget, value), torch.cat([forwards, backwards], dim=-1))

    @pytest.mark.parametrize("bands", [1, 4])
    @pytest.mark.parametrize("norm", ["cumulative_layer_norm", "channel_layer_norm"])
    def test_one_way_is_causal(self, norm, bands):
        assert not future_changes_past(small(m.GatedRecurrenceMasker, norm=norm, bands=bands, bidirectional=False))

    @pytest.mark.parametrize("bands", [2, 4, 9])
    def test_bands_hear_each_other_and_every_length_fits(self, bands):
        masker = small(m.GatedRecurrenceMasker, hypotheses=3, values=2, bands=bands)
        assert masker(torch.randn(2, 9, 1)).shape == (2, 3, 2, 9, 1)
        features = torch.randn(1, 9, 5, requires_grad=True)
        masker(features)[0, 0, 0, 8, 2].backward()
        assert (features.grad[0, :, 2] != 0).all()


class TestSepFormer:
    def test_longest_input(self):
        masker = small(m.SepFormerMasker, 2, chunk_size=2, model_dim=2, num_layers=1, num_heads=1)
        assert masker.max_frames == 2498
        with torch.no_grad():
            assert masker(torch.randn(1, 2, 2498)).shape[-1] == 2498
            complaint(lambda: masker(torch.randn(1, 2, 2499)), "takes at most 2498 frames, found 2499")
