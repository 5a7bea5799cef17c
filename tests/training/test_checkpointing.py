"""Gradient checkpointing, and precisions that depend on the machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sepkit import config as c
from sepkit.errors import UserError
from sepkit.models import EncoderMaskerDecoder, build_model
from sepkit.objectives.objective import Objective
from sepkit.training import run
from sepkit.training.run import train
from sepkit.training.task import checkpoint_blocks, matmul_precision
from tests.training.runs import weights, with_model, with_trainer

BLOCKS = {"bottleneck_channels": 4, "hidden_channels": 6, "blocks": 2}
CHUNKS = {"num_layers": 2, "chunk_size": 6}
TRANSFORMER = {"model_dim": 4, "transformer_layers": 1, "num_heads": 2, "feedforward_dim": 6}
SMALL: dict[str, Any] = {
    "conv_tasnet": c.ConvTasNetConfig(**BLOCKS, skip_channels=4, repeats=1, norm="channel_layer_norm"),
    "dual_path_rnn": c.DualPathRNNConfig(4, **CHUNKS, hidden_channels=4, hop_size=3, repeats=2, dropout=0.3),
    "sudormrf": c.SuDoRMRFConfig(**BLOCKS, upsampling_depth=2),
    "improved_sudormrf": c.ImprovedSuDoRMRFConfig(**BLOCKS, upsampling_depth=2),
    "sepformer": c.SepFormerConfig(**TRANSFORMER, **CHUNKS, dropout=0.1),
}


def model_of(masker: Any) -> EncoderMaskerDecoder:
    torch.manual_seed(0)
    bank = c.FreeFilterbankConfig(num_filters=8, kernel_size=8, stride=4)
    return build_model(c.ModelConfig(masker=masker, filterbank=bank))


def gradients(model: EncoderMaskerDecoder) -> tuple[dict[str, Tensor], int]:
    """Gradients, with the same dropout each time, and how many values were kept for them."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    torch.manual_seed(1)
    mixture = torch.randn(2, 400)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model.train()(mixture).estimates.square().sum()
    loss.backward()
    named = {name: weight.grad for name, weight in model.named_parameters()}
    return {name: gradient for name, gradient in named.items() if gradient is not None}, sum(kept.values())


@pytest.mark.parametrize("name", SMALL)
def test_gradients_stay_and_memory_goes(name: str) -> None:
    plain, checkpointed = model_of(SMALL[name]), model_of(SMALL[name])
    checkpoint_blocks(checkpointed)
    (expected, kept), (found, kept_less) = gradients(plain), gradients(checkpointed)
    assert kept_less < kept
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")
    assert checkpointed.state_dict().keys() == plain.state_dict().keys()


def test_conv_tasnet_on_a_processor_does_so_by_itself() -> None:
    model = model_of(replace(SMALL["conv_tasnet"], norm="global_layer_norm"))
    checkpoint_blocks(model)
    assert not any("forward" in vars(module) for module in model.modules())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        checkpoint_blocks(model)
    assert any("forward" in vars(module) for module in model.modules())


def test_maskers_that_cannot_are_refused() -> None:
    with pytest.raises(UserError, match=r"trainer\.gradient_checkpointing: .* no blocks"):
        checkpoint_blocks(model_of(c.RecurrentConfig()))
    with pytest.raises(UserError, match=r"trainer\.gradient_checkpointing: .* batch normalization"):
        checkpoint_blocks(model_of(replace(SMALL["conv_tasnet"], norm="batch_norm")))


def test_training_ends_with_the_same_weights(config: c.TrainConfig, tmp_path: Path) -> None:
    config = with_trainer(with_model(config, masker=SMALL["dual_path_rnn"]), max_epochs=1)
    for name, on in (("plain", False), ("checkpointed", True)):
        train(with_trainer(config, gradient_checkpointing=on), tmp_path / name, limit_batches=2)
    torch.testing.assert_close(weights(tmp_path / "checkpointed"), weights(tmp_path / "plain"), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("gpu", "bfloat16", "processor", "accelerator", "expected"),
    [
        (False, False, False, "auto", "32-true"), (False, False, True, "auto", "bf16-mixed"),
        (True, True, False, "auto", "bf16-mixed"), (True, False, True, "auto", "32-true"),
        (True, True, False, "cpu", "32-true"), (True, True, True, "cpu", "bf16-mixed"),
    ],
)  # fmt: skip
def test_automatic_precision(gpu, bfloat16, processor, accelerator, expected, monkeypatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: processor)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    native = lambda including_emulation: bfloat16 and not including_emulation  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", native)
    assert run._precision(c.TrainerConfig(precision="auto", accelerator=accelerator)) == expected
    assert run._precision(c.TrainerConfig(precision="32-true", accelerator=accelerator)) == "32-true"


def test_recurrent_layers_in_a_precision_that_the_processor_lacks(config, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    with pytest.raises(UserError, match=r"trainer.precision: found bf16-mixed, .* use auto or 32-true"):
        train(with_trainer(config, precision="bf16-mixed"), tmp_path / "exp")
    assert not (tmp_path / "exp" / "last_model").exists()


def test_the_objective_is_never_in_tf32(config: c.TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Importing speechbrain turns TF32 on.
    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr(run, "_products", lambda _: matmul_precision("high"))
    seen: dict[str, set[str]] = {"objective": set(), "model": set()}
    evaluate, forward = Objective.__call__, EncoderMaskerDecoder.forward

    def spy(self: Objective, *arguments: Any) -> Any:
        seen["objective"].add(torch.get_float32_matmul_precision())
        return evaluate(self, *arguments)

    def spy_on_model(self: EncoderMaskerDecoder, *arguments: Any, **options: Any) -> Any:
        seen["model"].add(torch.get_float32_matmul_precision())
        return forward(self, *arguments, **options)

    monkeypatch.setattr(Objective, "__call__", spy)
    monkeypatch.setattr(EncoderMaskerDecoder, "forward", spy_on_model)
    train(replace(config, trainer=replace(config.trainer, max_epochs=1)), tmp_path, limit_batches=1)
    assert seen == {"objective": {"highest"}, "model": {"high"}}
    assert torch.get_float32_matmul_precision() == before


def test_tf32_is_asked_of_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu, accelerator, tf32, expected in (
        (True, "auto", True, "high"),
        (True, "auto", False, "highest"),
        (True, "cpu", True, "highest"),
        (False, "auto", True, "highest"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        trainer: Any = c.TrainerConfig(tf32=tf32, accelerator=accelerator)  # type: ignore[arg-type]
        with run._products(trainer):
            assert torch.get_float32_matmul_precision() == expected
