"""The blocks of Conv-TasNet in training: one function that recomputes what autograd would keep."""

import copy

import pytest
import torch
from torch import Tensor

from sepkit.models.maskers import ConvTasNetMasker
from sepkit.models.maskers.fast.recomputed import is_recomputable, temporal_blocks

SMALL = {"bottleneck_channels": 4, "hidden_channels": 6, "skip_channels": 3, "blocks": 3, "repeats": 2}


def masker(dtype: torch.dtype = torch.float64, **changes) -> ConvTasNetMasker:
    made = ConvTasNetMasker(5, 2, **(SMALL | changes)).to(dtype)
    for weight in made.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    return made


def gradients(made: ConvTasNetMasker, features: Tensor) -> dict[str, Tensor]:
    features = features.clone().requires_grad_()
    shape, generator = (2, len(features), 2, 1, 5, features.shape[-1]), torch.Generator().manual_seed(3)
    weighting = torch.randn(shape, generator=generator, dtype=torch.float64)
    values = made(features)
    made.zero_grad()
    (values * weighting[0] + values.square() * weighting[1]).sum().backward()
    named = {name: weight.grad for name, weight in made.named_parameters()}
    return {"values": values.detach(), "features": features.grad} | {n: g for n, g in named.items() if g is not None}


@pytest.fixture
def by_modules(modules_alone):
    """`gradients`, computed by the masker's modules."""

    def computed(made: ConvTasNetMasker, features: Tensor) -> dict[str, Tensor]:
        with modules_alone():
            return gradients(made, features)

    return computed


CHANGES = [{}, {"skip_channels": 0}, {"kernel_size": 1}, {"kernel_size": 4}, {"normalize_skip_sum": True}]


@pytest.mark.parametrize("changes", [*CHANGES, {"kernel_size": 5, "blocks": 4}], ids=str)
@pytest.mark.parametrize("frames", [1, 3, 40, 203])
def test_values_and_all_gradients_are_those_of_the_modules(changes, frames, by_modules):
    made = masker(**changes)
    features = torch.randn(3, 5, frames, dtype=torch.float64)
    assert is_recomputable(made, made.bottleneck(features))
    expected, found = by_modules(made, features), gradients(made, features)
    for name, value in expected.items():
        # gLN removes constants, so such gradients are only rounding.
        scale = max(value.abs().max().item(), 1e-3)
        # Without a skip path only the last residual counts, and unused outputs get no gradient.
        assert (found.get(name, torch.zeros_like(value)) - value).abs().max().item() <= 1e-9 * scale, name


def test_statistics_keep_their_digits_where_the_mean_is_large(by_modules):
    made = masker(torch.float32)
    for block in list(made.blocks):
        block.expand[0].bias.data += 300.0
    exact = copy.deepcopy(made).double()
    features = torch.randn(1, 5, 400)
    expected = by_modules(exact, features.double())["values"]
    assert ((gradients(made, features)["values"] - expected).abs().max() / expected.abs().max()).item() < 1e-4


def test_gradients_of_gradients_are_refused():
    made = masker()
    x = torch.randn(1, 4, 9, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(temporal_blocks(made, x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_little_is_kept_for_the_backward_pass():
    made = masker(torch.float32, bottleneck_channels=8, hidden_channels=32, skip_channels=8, blocks=4)
    x = torch.randn(2, 8, 500, requires_grad=True)

    def kept(function) -> int:
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            function()
        return sum(sizes.values())

    def modules() -> None:
        y = x
        for block in made.blocks:
            y = y + block(y)[:, :8]

    # Each block keeps its input, against six tensors of the hidden channels.
    assert kept(lambda: temporal_blocks(made, x)) < 0.06 * kept(modules)


def test_a_frozen_weight_gets_no_gradient_and_the_others_theirs(by_modules):
    made = masker()
    made.blocks[2].requires_grad_(False)
    features = torch.randn(2, 5, 30, dtype=torch.float64)
    expected, found = by_modules(made, features), gradients(made, features)
    assert not any(name.startswith("blocks.2.") for name in found)
    assert expected.keys() == found.keys()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_hook_on_an_inner_module_is_called(kind):
    made, calls = masker(), []
    getattr(made.blocks[1].depthwise, f"register_{kind}_hook")(lambda *_: calls.append(1))
    gradients(made, torch.randn(1, 5, 9, dtype=torch.float64))
    assert calls


@pytest.mark.parametrize("norm", ["channel_layer_norm", "cumulative_layer_norm", "batch_norm"])
def test_other_norms_go_by_the_modules(norm):
    made = masker(norm=norm)
    assert not is_recomputable(made, torch.randn(1, 4, 9, dtype=torch.float64))
    assert "blocks.0.depthwise.weight" in gradients(made, torch.randn(1, 5, 9, dtype=torch.float64))


def test_without_gradients_under_autocast_or_with_other_layers_it_goes_by_the_modules():
    made = masker(torch.float32)
    x = torch.randn(1, 4, 9)
    assert is_recomputable(made, x)
    with torch.no_grad():
        assert not is_recomputable(made, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_recomputable(made, x)
        made(torch.randn(1, 5, 9)).float().sum().backward()
    assert not is_recomputable(made, x.double())
    made.blocks[0].activation = torch.nn.PReLU(6)
    assert not is_recomputable(made, x)
    made.blocks[0].activation = torch.nn.Identity()  # type: ignore[assignment]
    assert not is_recomputable(made, x)


def test_a_compiled_masker_is_traced_through_its_modules():
    made = masker(torch.float32)
    features = torch.randn(2, 5, 30)
    expected = gradients(made, features)
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(features).detach().double(), expected["values"].double(), rtol=1e-4, atol=1e-5)
