"""The masker of continuous depth: steps, gradients, and the commands that choose the depth."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from sepkit import config as c
from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.errors import UserError
from sepkit.inference.loading import load_model
from sepkit.inference.separator import Separator
from sepkit.models import EncoderMaskerDecoder, build_model, save_model
from sepkit.models.maskers import ContinuousDepthMasker
from sepkit.training.separation import write_synthetic_set
from tests.complaint import complaint

BANK = c.STFTFilterbankConfig(32, 16)


def masker(depth_steps: int, **changes: object) -> ContinuousDepthMasker:
    torch.manual_seed(0)
    sizes = {"model_dim": 8, "hidden_size": 6, "feedforward_dim": 10} | changes
    return ContinuousDepthMasker(9, 2, 1, depth_steps=depth_steps, **sizes)


def separation_model(**changes: object) -> EncoderMaskerDecoder:
    torch.manual_seed(0)
    sizes = {"model_dim": 8, "hidden_size": 6, "feedforward_dim": 10, "depth_steps": 4} | changes
    masker, masks = c.ContinuousDepthConfig(**sizes), c.DeterministicConfig("sigmoid")
    return build_model(c.ModelConfig(filterbank=BANK, masker=masker, masks=masks)).eval()


def test_more_steps_solve_one_equation_better():
    net, features = masker(4).double().eval(), torch.randn(2, 9, 12, dtype=torch.float64)
    values = {}
    for steps in (4, 8, 16, 256):
        net.set_steps(steps)
        values[steps] = net(features).detach()
    errors = [float((values[steps] - values[256]).abs().max()) for steps in (4, 8, 16)]
    assert errors[0] > 1.6 * errors[1] > 1.6**2 * errors[2] > 0
    net.set_steps(None)
    assert torch.equal(net(features), values[4])


def test_gradients_are_the_same_to_the_bit_when_steps_are_computed_again():
    found = []
    for recompute in (False, True):
        net = masker(6)
        net.recompute = recompute
        features = torch.linspace(-1, 1, 2 * 9 * 7).view(2, 9, 7).requires_grad_()
        net(features).square().sum().backward()
        found.append([features.grad, *(p.grad for p in net.parameters())])
    assert all(torch.equal(a, b) and bool(a.abs().sum() > 0) for a, b in zip(*found, strict=True))


def test_memory_hardly_grows_with_steps_that_are_computed_again():
    """Bytes that the backward pass holds; the pack hooks see each tensor, counted once by its storage."""

    def held(steps: int, recompute: bool) -> int:
        net = masker(steps, model_dim=32, hidden_size=32, feedforward_dim=64)
        net.recompute = recompute
        features = torch.randn(2, 9, 50)
        parameters = {p.data_ptr() for p in net.parameters()}
        storages: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            values = net(features)
        del values
        return sum(storages.values())

    assert held(16, False) > 3 * held(4, False)
    # With it, what all steps hold is their state, and beside it one step is computed at a time.
    one_step = held(1, False)
    assert held(16, True) + one_step < 1.5 * (held(4, True) + one_step)


def test_separators_of_one_model_at_several_depths_share_its_weights():
    model = separation_model()
    waveform = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    own, two, many = Separator(model), Separator(model, depth_steps=2), Separator(model, depth_steps=16)
    assert [s.depth_steps for s in (own, two, many)] == [4, 2, 16]
    assert two.model.masker.input.weight is model.masker.input.weight
    found = [separator.separate(waveform, 8000).estimates for separator in (own, two, many)]
    assert all(x.shape == (2, 400) and np.isfinite(x).all() for x in found)
    assert not np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    assert own.fingerprint() == two.fingerprint() and own.provenance() != two.provenance()


@pytest.mark.parametrize("steps", [0, -1, 2.5, "3", True, 10**9])
def test_refusals(steps):
    complaint(lambda: masker(steps), r"^model\.masker\.depth_steps: found .*, expected a whole number of steps")
    fixed = build_model(c.ModelConfig(filterbank=BANK, masker=c.RecurrentConfig(hidden_size=4, num_layers=1)))
    with pytest.raises(UserError, match=r"^--depth-steps: found 4, but the depth of this model's masker \(RecurrentM"):
        Separator(fixed, depth_steps=4)
    complaint(lambda: Separator(separation_model(), depth_steps=0), r"^depth_steps: found 0, expected 1 to 10000$")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("depth")
    save_model(separation_model(), folder / "exp" / "model")
    tone = np.sin(np.arange(4000) / 9) / 4 + np.random.default_rng(1).standard_normal(4000) / 50
    audio.write(folder / "mix.wav", tone.astype(np.float32), 8000)
    return folder


def test_separate_at_two_depths(trained):
    told = {}
    for steps in (2, 16):
        out = trained / f"separated_{steps}"
        command = ["separate", str(trained / "mix.wav"), "--model", str(trained / "exp"), "--out", str(out)]
        assert main([*command, "--depth-steps", str(steps)]) == 0
        told[steps] = json.loads((out / "mix.json").read_text())
        for name in told[steps]["estimates"]:
            samples = audio.read(out / name)
            assert samples.shape == (4000,) and np.isfinite(samples).all()
    assert [told[steps]["depth_steps"] for steps in (2, 16)] == [2, 16]
    assert told[2]["weights"] == told[16]["weights"]


def test_evaluate_by_depth(trained, capsys):
    manifest = write_synthetic_set(trained / "tones", sample_rate=8000, sources=2, mixtures=2)
    command = ["evaluate", "--model", str(trained / "exp"), "--manifest", str(manifest), "--metrics", "si_sdr"]
    out = trained / "scores"
    assert main([*command, "--processes", "0", "--out", str(out), "--depth-steps", "2", "4", "8"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["depth_steps"] == 4 and list(summary["by_depth_steps"]) == ["2", "4", "8"]
    means = [summary["by_depth_steps"][steps]["metrics"]["si_sdr_db"]["mean"] for steps in ("2", "4", "8")]
    assert len(set(means)) == 3 and summary["metrics"]["si_sdr_db"]["mean"] == means[1]
    assert json.loads((out / "steps_8" / "summary.json").read_text())["depth_steps"] == 8
    assert (out / "utterances.csv").read_bytes() == (out / "steps_4" / "utterances.csv").read_bytes()
    assert "real-time factor" in capsys.readouterr().out
    # The model's own number of steps, without the option.
    assert main([*command, "--processes", "0", "--out", str(trained / "own")]) == 0
    own = json.loads((trained / "own" / "summary.json").read_text())
    assert own["depth_steps"] == 4 and own["metrics"]["si_sdr_db"]["mean"] == means[1]
    capsys.readouterr()
    assert main(["summarize", str(trained / "own"), "--figure", "depth", "--out", str(trained / "table.md")]) == 2
    assert "evaluate models of continuous depth with --depth-steps 2 4 8" in capsys.readouterr().err


def test_predictions_hold_for_the_steps_they_were_fitted_with():
    of_another = load_model().quality
    assert of_another is not None and of_another.depth_steps is None
    model, quality = separation_model(), dataclasses.replace(of_another, depth_steps=4)
    assert Separator(model, quality=quality).quality is quality
    # With other steps the agreement of the views remains.
    other = Separator(model, quality=quality, depth_steps=8).quality
    assert other is not None and other.of_any_model
    assert Separator(model, quality=dataclasses.replace(quality, views=1), depth_steps=8).quality is None
