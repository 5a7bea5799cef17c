"""Linear layers: equal to torch's, whichever library multiplies, and torch's own wherever somebody looks closely."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sepkit.models import onednn
from sepkit.models.onednn import Linear, linear


@pytest.fixture(params=[False, True], ids=["torch", "onednn"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which library multiplies; oneDNN computes the same on every processor, if not as fast."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(onednn, "onednn_is_faster", lambda: request.param)
    return "onednn" if request.param else "torch"


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [(40, 24), (5, 8, 24), (1, 24), (24,), (0, 24), (3, 0, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_as_in_float64(library: str, shape: tuple[int, ...], bias: bool):
    x, weight, shift = values(*shape), values(17, 24), values(17) if bias else None
    expected = nn.functional.linear(x.double(), weight.double(), None if shift is None else shift.double())
    with torch.no_grad():
        found = linear(x, weight, shift)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_any_layout_in_memory(library: str):
    # Rows that are wider than what is used of them, time in the middle, and a matrix that was stored the other way.
    wide, transposed = values(40, 100), values(24, 17)
    x = wide[:, 30:54].view(8, 5, 24).transpose(0, 1)
    with torch.no_grad():
        found = linear(x, transposed.t(), values(17))
    torch.testing.assert_close(found, x @ transposed + values(17), rtol=1e-5, atol=1e-5)


def test_values_that_are_not_finite_stay_in_their_row(library: str):
    x = values(20, 24)
    x[3, 5], x[4, 6] = float("nan"), float("inf")
    with torch.no_grad():
        found = linear(x, values(17, 24))
    assert found[3].isnan().all()
    assert not found[4].isfinite().any()
    assert found[[0, 1, 2, *range(5, 20)]].isfinite().all()


def test_gradients(library: str):
    x, layer = values(20, 24).requires_grad_(), Linear(24, 17)
    layer(x).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * (x @ layer.weight.t() + layer.bias) @ layer.weight, rtol=1e-4, atol=1e-4)
    assert layer.weight.grad is not None


def test_autocast_and_float64_keep_their_types(library: str):
    layer = Linear(24, 17)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert layer(values(20, 24)).dtype == torch.bfloat16
    with torch.no_grad():
        assert layer.double()(values(20, 24).double()).dtype == torch.float64


def test_what_others_see_are_operations_of_torch(library: str):
    layer, x = Linear(24, 17).eval(), values(20, 24)
    with torch.no_grad():
        traced = torch.jit.trace(layer, x)
        assert isinstance(traced, torch.jit.ScriptModule) and "mkldnn" not in str(traced.inlined_graph)
        with FlopCounterMode(display=False) as counter:
            layer(x)
    assert counter.get_total_flops() == 2 * 20 * 24 * 17


def test_batches_by_vmap(library: str):
    weight, x = values(17, 24), values(4, 20, 24)
    with torch.no_grad():
        found = torch.func.vmap(lambda one: linear(one, weight))(x)
    torch.testing.assert_close(found, x @ weight.t(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_known", [False, True])
def test_an_operation_that_is_gone_or_rounds_is_not_used(is_known: bool, monkeypatch: pytest.MonkeyPatch):
    def changed(x: Tensor, weight: Tensor, bias: Tensor, *_: object) -> Tensor:
        if not is_known:
            raise RuntimeError("unknown operation")
        return nn.functional.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()).float()

    monkeypatch.setattr(onednn, "is_amd_with_avx512", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", changed)
    assert not onednn.onednn_is_faster.__wrapped__()


@pytest.mark.parametrize(
    ("abilities", "expected"),
    [
        ({"sse4a": True, "avx512_f": True}, True), ({"sse4a": False, "avx512_f": True}, False),
        ({"sse4a": True, "avx512_f": False}, False), ({"architecture": "aarch64"}, False), (None, False),
    ],
    ids=["zen4", "intel", "zen3", "arm", "older_torch"],
)  # fmt: skip
def test_which_processors(abilities: dict[str, object] | None, expected: bool, monkeypatch: pytest.MonkeyPatch):
    if abilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: abilities, raising=False)
    assert onednn.is_amd_with_avx512() is expected


def test_the_first_call_of_a_process_may_be_traced(monkeypatch: pytest.MonkeyPatch):
    def is_tried() -> bool:
        raise AssertionError("its operations would be part of the trace")

    monkeypatch.setattr(onednn, "onednn_is_faster", is_tried)
    layer, x = Linear(24, 17).eval(), values(20, 24)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 20 * 24 * 17
    with torch.no_grad():
        torch.jit.trace(layer, x, check_trace=False)
