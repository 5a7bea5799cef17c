"""LSTMs in 8 bits: estimates beside those in float32, at every length, with latents, in other processes, refusals."""

from __future__ import annotations

import pickle
import platform
from collections.abc import Iterator

import pytest
import torch

from sepkit.config import (
    DualPathRNNConfig,
    FreeFilterbankConfig,
    GatedRecurrenceConfig,
    GaussianConfig,
    LogNormalConfig,
    MaskerConfig,
    ModelConfig,
    RecurrentConfig,
)
from sepkit.errors import UserError
from sepkit.inference import Separator
from sepkit.inference.precision import with_precision
from sepkit.models import EncoderMaskerDecoder, build_model

pytest.importorskip("onnx", reason="onnx is missing: pip install 'sepkit[export]'")
pytest.importorskip("onnxruntime", reason="onnxruntime is missing: pip install 'sepkit[export]'")

LSTM = RecurrentConfig(rnn="lstm", hidden_size=24, num_layers=2)


def model_of(masker: MaskerConfig) -> EncoderMaskerDecoder:
    torch.manual_seed(0)
    bank = FreeFilterbankConfig(num_filters=16)
    return build_model(ModelConfig(filterbank=bank, masker=masker, encoding=GaussianConfig(), masks=LogNormalConfig()))


@pytest.fixture(scope="module", autouse=True)
def fast_processor() -> Iterator[None]:
    """The graph runs on a processor without AVX2 too, where only its slowness is a reason to refuse it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
        yield


@pytest.fixture(scope="module")
def model() -> EncoderMaskerDecoder:
    return model_of(LSTM).eval()


@pytest.fixture(scope="module")
def separator(model: EncoderMaskerDecoder) -> Separator:
    return Separator(model, levels="model", precision="int8")


def snr_db(exact: torch.Tensor, found: torch.Tensor) -> float:
    return float(10 * torch.log10(exact.square().sum() / (exact - found).square().sum()))


@pytest.mark.parametrize(("batch", "samples"), [(1, 1), (1, 16), (2, 4000), (3, 8017)])
@torch.inference_mode()
def test_estimates_and_posteriors_are_near_those_in_float32(model, separator, batch: int, samples: int):
    mixture = torch.randn(batch, samples, generator=torch.Generator().manual_seed(samples))
    exact, found = model(mixture), separator.model(mixture)
    assert 30 < snr_db(exact.estimates, found.estimates) < 80
    assert snr_db(exact.masks.mean, found.masks.mean) > 20
    # Tile by tile, too.
    torch.testing.assert_close(separator.model.estimates(mixture), found.estimates, rtol=1e-4, atol=1e-5)


def test_products_of_large_weights_do_not_overflow():
    model = model_of(LSTM).eval()
    with torch.no_grad():
        for name, weight in model.masker.rnn.named_parameters():
            # With all 8 bits, AVX2 would cut every sum of two of these products at 16 bits.
            if "weight" in name:
                weight.uniform_(0.018, 0.02)
            else:
                weight.zero_()
        features = torch.rand(2, 16, 40, generator=torch.Generator().manual_seed(0)) + 0.5
        model.masker.norm = torch.nn.Identity()
        exact = model.masker.trunk(features)
        found = with_precision(model, "int8", torch.device("cpu")).masker.trunk(features)
    assert snr_db(exact, found) > 40


def test_the_model_itself_stays_as_it_is(model, separator):
    mixture = torch.randn(4000, generator=torch.Generator().manual_seed(1)).numpy()
    before = model.state_dict()
    assert type(model.masker).__name__ == "RecurrentMasker"
    weights = separator.model.masker.masker.state_dict()
    assert all(weights[name].data_ptr() == before[f"masker.{name}"].data_ptr() for name in weights)
    assert separator.way()["precision"] == "int8" and separator.fingerprint() != Separator(model).fingerprint()
    # In 8 bits once, and in another process.
    again = Separator(pickle.loads(pickle.dumps(separator)).model, levels="model", precision="int8")
    expected = separator.separate(mixture, 8000).estimates
    assert (again.separate(mixture, 8000).estimates == expected).all()


@pytest.mark.parametrize(
    ("masker", "name"),
    [
        (GatedRecurrenceConfig(8, 8, 8, 1), "GatedRecurrenceMasker"),
        (DualPathRNNConfig(6, 5, 20, 10, 2), "DualPathRNNMasker"),
        (RecurrentConfig(rnn="gru", hidden_size=4, num_layers=1), "RecurrentMasker"),
    ],
)
def test_maskers_that_gain_little_are_refused(masker: MaskerConfig, name: str):
    with pytest.raises(UserError, match=rf"^precision: found int8, expected float32: {name} gains little"):
        Separator(model_of(masker), precision="int8")


def test_streams_accelerators_and_slow_processors_are_refused(model, separator, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"^precision: found int8, in which streams"):
        separator.model.masker.stream()
    with pytest.raises(UserError, match=r"^precision: found int8 on cuda, expected the device cpu"):
        with_precision(model, "int8", torch.device("cuda"))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(UserError, match=r"^precision: found int8, in which this processor is slow"):
        Separator(model, precision="int8")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert Separator(model, precision="int8").options.precision == "int8"
