"""The hierarchy: parts of the bound, its twins, training, and the command that measures it by number of steps."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from sepkit.cli.main import main
from sepkit.config import RateConfig, TrainerConfig
from sepkit.studies.cdvae.config import CDVAETaskConfig, ImageDataConfig, ImageObjectiveConfig, ImageVAEConfig
from sepkit.studies.cdvae.levels import ConvBlock
from sepkit.studies.cdvae.model import ImageVAE, Noise
from sepkit.studies.cdvae.task import CDVAETask
from tests.complaint import complaint

SMALL = ImageVAEConfig(size=8, levels=2, latent_channels=2, width=4, drift_width=4, decoder_blocks=1, depth_steps=3)


def model_of(**changes: object) -> ImageVAE:
    torch.manual_seed(0)
    model = ImageVAE(dataclasses.replace(SMALL, **changes))
    with torch.no_grad():
        # Last layers that start at zero would hide what they see.
        for module in model.modules():
            if isinstance(module, ConvBlock):
                module.layers[-1].weight.normal_(0, 0.3)
    return model.eval()


def noise(seed: int = 0) -> Noise:
    return Noise(torch.Generator().manual_seed(seed))


IMAGES = torch.linspace(-1, 1, 3 * 64).view(3, 1, 8, 8)


@pytest.mark.parametrize("changes", [{}, {"discrete": 2}, {"ode_like": True}, {"likelihood": "bernoulli"}])
def test_parts_of_the_bound(changes: dict[str, object]) -> None:
    model = model_of(**changes)
    parts = model(IMAGES.clamp(0, 1).round(), noise())
    assert parts.distortion.shape == (3,) and parts.initial_rate.shape == (3, 2, 16)
    assert [tuple(rate.shape) for rate in parts.path_rates] == [(3, 2, 16), (3, 2, 64)]
    assert all(bool((rate >= -1e-5).all()) for rate in (parts.initial_rate, *parts.path_rates))
    parts.log_weight.sum().backward()
    unused = {"ode_like": 0, "discrete": 0}.get(next(iter(changes), ""), 0)
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # Contexts are masked in the comparison model, so that some weights see zeros only.
    assert len(without) == unused or "ode_like" in changes, without
    assert torch.equal(parts.log_weight, model(IMAGES.clamp(0, 1).round(), noise()).log_weight)


def test_the_rate_is_the_mean_of_the_log_ratio() -> None:
    for changes in ({}, {"discrete": 2}):
        model, image = model_of(**changes), IMAGES[:1].expand(4000, 1, 8, 8)
        with torch.no_grad():
            parts = model(image, noise())
        rates = sum(part.flatten(1).sum(1) for part in (parts.initial_rate, *parts.path_rates))
        difference = parts.log_ratio - rates
        assert abs(float(difference.mean())) < 4 * float(difference.std()) / math.sqrt(4000)


def test_an_ordinary_autoencoder_has_latents_at_the_coarsest_resolution_alone() -> None:
    model = model_of(discrete=2, one_level=True)
    parts = model(IMAGES.clamp(0, 1).round(), noise())
    assert all(not rate.any() for rate in parts.path_rates) and bool(parts.initial_rate.sum() > 0)
    samples = [model.sample(IMAGES, source=source, noise=noise()) for source in ("top", "posterior")]
    assert torch.equal(*samples)
    parts.log_weight.sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if name.startswith("levels"))
    assert "posterior" not in " ".join(dict(model.named_parameters()))


@pytest.mark.parametrize("changes", [{}, {"discrete": 1}, {"likelihood": "bernoulli"}])
def test_reconstructions_samples_and_top_only(changes: dict[str, object]) -> None:
    model = model_of(**changes)
    with torch.no_grad():
        images = [model.sample(IMAGES, source=source, noise=noise()) for source in ("posterior", "top")]
        images.append(model.sample(count=3, noise=noise()))
        drawn = model.sample(IMAGES, source="posterior", noise=noise(), draw=True)
    assert all(image.shape == (3, 1, 8, 8) and bool(image.isfinite().all()) for image in images)
    assert not torch.equal(images[0], images[1]) and not torch.equal(images[1], images[2])
    # Samples of the prior do not know the images.
    assert torch.equal(images[2], model.sample(IMAGES, count=3, source="prior", noise=noise()))
    if "likelihood" in changes:
        assert set(drawn.unique().tolist()) == {0.0, 1.0}
    if not changes:  # the deviation of new models is about softplus(0)
        assert 0.5 < float((drawn - images[0]).std()) < 0.9


def test_one_path_at_several_steps() -> None:
    model, shared, images = model_of(), noise(), IMAGES.repeat(20, 1, 1, 1)
    weights = {}
    with torch.no_grad():
        for steps in (4, 8, 16, 128):
            model.set_steps(steps)
            weights[steps] = model(images, shared).log_weight
    errors = [float((weights[steps] - weights[128]).abs().mean()) for steps in (4, 8, 16)]
    assert errors[0] > errors[1] > errors[2] > 0


def test_training_costs_free_nats_and_reports_none(poisson: Path, tmp_path: Path) -> None:
    objective = ImageObjectiveConfig(initial=RateConfig(free_nats=1e3), path=RateConfig(free_nats=1e3))
    data = ImageDataConfig(str(poisson / "train.npz"), str(poisson / "dev.npz"), batch_size=4)
    config = CDVAETaskConfig(dataclasses.replace(SMALL), objective, data, TrainerConfig(accelerator="cpu"))
    config.check()
    task = CDVAETask(config, tmp_path)
    task.position.batches_per_epoch = 16
    batch = task.collate([task.train_data[0, index] for index in range(4)])
    torch.manual_seed(0)
    losses = task.losses(task.model, batch)
    # The initial rate and two levels cost their free nats.
    torch.testing.assert_close(losses.loss, losses.statistics["distortion_nats"] + 3e3)
    assert bool((losses.statistics["initial_rate_nats"] < 900).all())
    assert not losses.statistics["clamped_diffusions"].any()
    rows = task.scores(task.model, batch)
    assert rows[0]["negative_elbo_nats"] == pytest.approx(
        rows[0]["distortion_nats"] + rows[0]["initial_rate_nats"] + rows[0]["path_rate_nats"], rel=1e-5
    )
    with torch.no_grad():
        task.model.diffusions()[0].raw.fill_(-20)
    assert float(task.losses(task.model, batch).statistics["clamped_diffusions"][0]) == 1
    assert task.after_epoch({"clamped_diffusions": 0.0}) == []
    assert "1 diffusions" in task.after_epoch({"clamped_diffusions": 1.0})[0]


def test_resume_is_exact(trained: Path, poisson: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from tests.studies.cdvae.conftest import TINY

    data = ["--data.train", str(poisson / "train.npz"), "--data.dev", str(poisson / "dev.npz")]
    command = ["train", "--config", "cdvae", *data, *TINY, "--out", str(tmp_path / "exp")]
    assert main([*command, "--trainer.max_epochs", "1"]) == 0
    assert main(command) == 0
    whole, resumed = (load_file(path / "last_model" / "model.safetensors") for path in (trained, tmp_path / "exp"))
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_evaluate_by_depth(trained: Path, poisson: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", "--model", str(trained), "--manifest", str(poisson / "test.npz"), "--out", str(tmp_path)]
    capsys.readouterr()
    assert main([*command, "--depth-steps", "2", "4", "9", "--samples", "4"]) == 0
    printed = capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert list(summary["by_depth_steps"]) == ["2", "4", "9"] and summary["trained_steps"] == 4
    assert summary["reference_steps"] == 4 and summary["bound"] is True and summary["n_images"] == 8
    own = summary["by_depth_steps"]["4"]
    means = {name: metric["mean"] for name, metric in own["metrics"].items()}
    parts = means["distortion_nats"] + means["initial_rate_nats"] + means["path_rate_nats"]
    assert means["negative_elbo_nats"] == pytest.approx(parts, rel=1e-6)
    assert own["over_reference_nats"]["mean"] == 0
    assert own["over_floor_nats"] == pytest.approx(means["negative_elbo_nats"] - summary["floor_nats"])
    initial = {steps: of["metrics"]["initial_rate_nats"]["mean"] for steps, of in summary["by_depth_steps"].items()}
    assert len(set(initial.values())) == 1
    assert "importance bound" in printed and f"floor: {summary['floor_nats']:.2f} nats" in printed
    assert (tmp_path / "images.png").stat().st_size > 2_000
    assert main(command) == 0
    assert list(json.loads((tmp_path / "summary.json").read_text())["by_depth_steps"]) == ["4"]
    assert main([*command, "--depth-steps", "0"]) == 2
    assert main([*command, "--samples", "0"]) == 2
    assert "--depth-steps: found 0, expected a whole number of steps" in capsys.readouterr().err


def test_the_importance_weighted_bound_is_tighter(trained: Path, poisson: Path, tmp_path: Path) -> None:
    from sepkit.studies.cdvae.evaluate import evaluate_images

    found = [evaluate_images(trained / "model", poisson / "test.npz", tmp_path, samples=k) for k in (1, 30)]
    one, many = (summary["by_depth_steps"]["4"]["metrics"]["importance_bound_nats"]["mean"] for summary in found)
    assert many < one - 0.5


def test_refusals() -> None:
    for changes, message in (
        ({"size": 6, "levels": 3}, r"^model\.size: found 6, expected a multiple of 4 for 3 levels$"),
        ({"discrete": 1, "ode_like": True}, r"^model\.ode_like: found true with discrete blocks"),
        ({"one_level": True}, r"^model\.one_level: found true without discrete blocks"),
    ):
        complaint(lambda changes=changes: ImageVAE(dataclasses.replace(SMALL, **changes)), message)
    complaint(lambda: model_of(discrete=1).set_steps(4), r"^--depth-steps: found 4, but this model has discrete blocks")
    task = CDVAETaskConfig()
    complaint(lambda: task.check(), r"^data\.train: no file given")
