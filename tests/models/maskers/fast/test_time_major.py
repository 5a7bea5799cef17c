"""The dual-path masker's fast paths against its modules: values, gradients, precision, and when they must not run."""

import copy

import pytest
import torch
from torch import Tensor, nn

from sepkit.errors import UserError
from sepkit.models.maskers import DualPathRNNMasker, dual_path_rnn


def masker_of(**changes) -> DualPathRNNMasker:
    sizes = {"bottleneck_channels": 6, "hidden_channels": 5, "chunk_size": 8, "hop_size": 4, "repeats": 2}
    masker = DualPathRNNMasker(9, 3, 2, **(sizes | changes))
    for parameter in masker.parameters():
        if parameter.dim() == 1:  # Gains and offsets of norms, which start as ones and zeros.
            nn.init.normal_(parameter, 0.5, 0.3)
    return masker.eval()


def by_modules(masker: DualPathRNNMasker, features: Tensor) -> Tensor:
    """The same masker's values, computed by its modules because of a hook that does nothing."""
    plain = copy.deepcopy(masker)
    plain.output.register_forward_hook(lambda *_: None)
    return plain(features)


def naive_blocks(masker: DualPathRNNMasker, features: Tensor) -> Tensor:
    """Values (B, n, P, K, F) with every chunk and hypothesis apart, and the norm written out."""

    def norm(module, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, (1, 2, 3), correction=0, keepdim=True)
        shape = (1, -1, 1, 1)
        return module.gamma.view(shape) * (x - mean) / (variance + module.eps).sqrt() + module.beta.view(shape)

    def path(module: dual_path_rnn.Path, x: Tensor) -> Tensor:
        # (B, C, Q, S), one sequence along Q for each S.
        columns = [module.linear(module.rnn(x[..., s].permute(2, 0, 1))[0]).permute(1, 2, 0) for s in range(x.shape[3])]
        return x + norm(module.norm, torch.stack(columns, -1))

    size, hop, frames = masker.chunk_size, masker.hop_size, features.shape[-1]
    hidden = nn.functional.pad(masker.bottleneck(masker.norm(features)), (size, size))
    starts = range(0, hidden.shape[-1] - size + 1, hop)
    x = torch.stack([hidden[..., start : start + size] for start in starts], -1)
    for block in masker.blocks:
        x = path(block.intra, x)
        x = path(block.inter, x.transpose(2, 3)).transpose(2, 3)
    spread = masker.spread(x)
    total = spread.new_zeros(*spread.shape[:2], hidden.shape[-1])
    for index, start in enumerate(starts):
        total[..., start : start + size] += spread[..., index]
    own = total[..., size : size + frames].unflatten(1, (masker.hypotheses, -1)).flatten(0, 1)
    return masker.output(masker.value(own) * masker.gate(own)).view(len(features), 3, 2, 9, frames)


OPTIONS = [{}, *({"chunk_size": size, "hop_size": hop} for size, hop in ((7, 3), (5, 5), (1, 1)))]
OPTIONS += [{"rnn": "gru"}, {"bidirectional": False, "num_layers": 2}]


@pytest.mark.parametrize("changes", OPTIONS, ids=str)
@pytest.mark.parametrize(("batch", "frames"), [(1, 1), (2, 29), (3, 64)])
def test_values_are_those_of_every_chunk_apart(taken, changes, batch, frames):
    masker, features = masker_of(**changes).double(), torch.randn(batch, 9, frames, dtype=torch.float64)
    with torch.no_grad():
        expected, fast = naive_blocks(masker, features), masker(features)
        assert taken == ["dual_path_trunk", "dual_path_values"]
        modules = by_modules(masker, features)
        assert len(taken) == 2
    recorded = masker(features)
    assert taken[2:] == ["dual_path_blocks"]
    for found in (fast, modules, recorded):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_float32_is_float64_but_for_rounding(offset):
    masker = masker_of(bottleneck_channels=16, hidden_channels=16, repeats=3)
    with torch.no_grad():
        for block in masker.blocks:
            block.intra.linear.bias += offset  # type: ignore[union-attr, operator]
        features = torch.randn(2, 9, 500)
        expected = copy.deepcopy(masker).double()(features.double())
        found = masker(features)
        modules = by_modules(masker, features)
    scale = expected.abs().max()
    error, of_modules = ((values - expected).abs().max() / scale for values in (found, modules))
    assert error < min(1e-5, 3 * of_modules)


def test_silence_and_nan_are_as_by_the_modules():
    masker = masker_of()
    features = torch.zeros(2, 9, 30)
    features[1, 0, 3] = float("nan")
    with torch.no_grad():
        found, expected = masker(features), by_modules(masker, features)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()


@pytest.mark.parametrize("changes", OPTIONS[:2], ids=str)
def test_gradients_are_those_of_the_modules(taken, changes):
    masker = masker_of(**changes).double().train()
    features = torch.randn(2, 9, 20, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, 2, 9, 20, dtype=torch.float64)
    variables = [features, *masker.parameters()]
    found = torch.autograd.grad((masker(features) * weight).sum(), variables)
    assert taken == ["dual_path_blocks"]
    handle = masker.output.register_forward_hook(lambda *_: None)
    expected = torch.autograd.grad((masker(features) * weight).sum(), variables)
    handle.remove()
    assert len(taken) == 1
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_gradients_of_float32():
    masker = masker_of(bottleneck_channels=16, hidden_channels=16).train()
    features = torch.randn(2, 9, 300)
    exact = copy.deepcopy(masker).double()
    masker(features).square().mean().backward()
    exact(features.double()).square().mean().backward()
    for (name, parameter), expected in zip(masker.named_parameters(), exact.parameters(), strict=True):
        assert (parameter.grad - expected.grad).norm() / expected.grad.norm().clamp_min(1e-6) < 1e-4, name


@pytest.mark.parametrize("norm", ["channel_layer_norm", "batch_norm"])
def test_other_norms_are_left_to_their_modules(taken, norm):
    with torch.no_grad():
        masker_of(norm=norm)(torch.randn(1, 9, 20))
    assert taken == []


@pytest.mark.filterwarnings("ignore")
def test_training_mode_autocast_and_tracing_are_left_to_the_modules(taken):
    masker, features = masker_of(), torch.randn(1, 9, 20)
    with torch.no_grad():
        masker.train()(features)
        assert taken == ["dual_path_blocks"]
        masker.eval()
        taken.clear()
        with torch.autocast("cpu", torch.bfloat16):
            masker(features)
        torch.jit.trace(masker, features, check_trace=False)
    assert taken == []


def test_a_tile_of_the_trunk_has_its_own_values():
    masker, features = masker_of(), torch.randn(2, 9, 40)
    with torch.no_grad():
        whole, trunk = masker(features), masker.trunk(features)
        tiles = [masker.values(trunk[..., start : start + 7]) for start in range(0, 40, 7)]
    torch.testing.assert_close(torch.cat(tiles, -1), whole)


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="no bfloat16 in this processor")
class TestLowPrecision:
    def masker(self) -> DualPathRNNMasker:
        return masker_of(bottleneck_channels=32, hidden_channels=32, chunk_size=20, hop_size=10, repeats=4)

    def features(self) -> Tensor:
        """Like speech: bursts of few harmonics over a quiet floor."""
        time = torch.arange(600) / 100
        bursts = (torch.sin(2 * time) + 0.3).clamp_min(0)
        tones = torch.stack([torch.sin(torch.pi * (k + 1) * time) / (k + 1) for k in range(9)])
        return (bursts * tones + 1e-3 * torch.randn(9, 600)).relu()[None]

    @pytest.mark.parametrize("modules", [False, True])
    def test_within_50_db_of_float32_and_not_the_same(self, modules):
        masker, features = self.masker(), self.features()
        run = by_modules if modules else DualPathRNNMasker.__call__
        with torch.no_grad():
            expected = run(masker, features)
            masker.low_precision = True
            found = run(masker, features)
            masker.low_precision = False
            again = run(masker, features)
        assert found.dtype == torch.float32
        noise = (found - expected).square().sum()
        assert noise > 0
        assert 10 * torch.log10(expected.square().sum() / noise) > 50
        assert torch.equal(again, expected)

    def test_of_a_stream_is_that_of_the_whole(self):
        masker = masker_of(bidirectional=False, norm="channel_layer_norm")
        features = torch.randn(1, 9, 50)
        masker.low_precision = True
        with torch.no_grad():
            stream = masker.stream()
            blocks = [stream.push(block, end=k == 2) for k, block in enumerate(features.split(20, -1))]
            whole = masker(features)
        assert (torch.cat(blocks, -1) - whole).abs().max() < 2e-2 * whole.abs().max()

    def test_is_of_lstms_alone(self):
        masker = masker_of(rnn="gru")
        with pytest.raises(UserError, match=r"^precision: found bfloat16, but this dual_path_rnn has rnn: gru"):
            masker.low_precision = True
        masker.low_precision = False
        assert not masker.low_precision
