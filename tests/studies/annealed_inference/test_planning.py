"""Planned inverse temperatures and warm-ups, and the commands that print them."""

from __future__ import annotations

import json

import pytest
import torch
import yaml

from sepkit.cli.main import main
from sepkit.config import TrainConfig, from_dict
from sepkit.errors import UserError
from sepkit.studies.annealed_inference.planning import (
    PAPER_ALPHA,
    collapse_probability,
    growth_exponent,
    plan_inverse_temperature,
    plan_kl_warmup,
    stability_alpha,
)

SETTING = ["--dimension", "512", "--radius", "3", "--heavy-weight", "0.8"]


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    capsys.readouterr()
    assert main(["plan-schedule", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_inverse_temperature(capsys: pytest.CaptureFixture[str]) -> None:
    """Output has the numbers of the theory under their names."""
    found = _json(
        capsys, "inverse-temperature", *SETTING, "--initial-beta", str(1 / 90), "--steps", "500", "--step-size", "0.05"
    )
    assert found["alpha"] == PAPER_ALPHA and found["flow_time"] == 25
    assert found["optimal_initial_beta"] == pytest.approx(0.0051011, abs=1e-6)
    assert found["stability_alpha"] == pytest.approx(0.5863, abs=1e-4)
    assert found["collapse_probability_paper"] == pytest.approx(0.248, abs=5e-4)
    assert found["collapse_probability"] == pytest.approx(0.188, abs=5e-4)
    assert found["start_probability"] == pytest.approx(0.922, abs=1e-3)


def test_target_probability(capsys: pytest.CaptureFixture[str]) -> None:
    """The plan has the steps that the probability needs, at the optimal start."""
    found = _json(capsys, "inverse-temperature", *SETTING, "--target-probability", "0.05")
    assert found["initial_beta"] == found["optimal_initial_beta"]
    alpha = stability_alpha(3.0, 0.8)
    p = [
        collapse_probability(growth_exponent(found["initial_beta"], t, 0.05, 3.0, alpha), 512, 3.0, 0.8, repelled=True)
        for t in (found["steps"], found["steps"] - 1)
    ]
    assert p[0] <= 0.05 < p[1]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--initial-beta", "1", "--steps", "9"], "--initial-beta: found 1.0, expected more than 0, less than 1"),
        (["--dimension", "1", "--steps", "9"], "--dimension: found 1, expected at least 2"),
        ([], "--steps, --target-probability: expected exactly one of the two"),
        (["--target-probability", "0.01", "--initial-beta", "0.1"], "no schedule of up to 1e+06 steps"),
        (["--radius", "0.4", "--steps", "9"], "radius: found 0.4, expected more than"),
    ],
)
def test_bad_numbers_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], line: str) -> None:
    """The line has option, found and expected; the exit code is 2."""
    words = [*SETTING, *arguments]
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert main(["plan-schedule", "inverse-temperature", *(word for pair in given.items() for word in pair)]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1


def test_start_that_is_cold_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    """With beta_i above alpha / R^2 the probability is that of the start."""
    assert main(["plan-schedule", "inverse-temperature", *SETTING, "--initial-beta", "0.1", "--steps", "500"]) == 0
    assert "no hot phase" in capsys.readouterr().err
    plan = plan_inverse_temperature(512, 3.0, 0.8, initial_beta=0.1, steps=500)
    assert plan.data["collapse_probability"] == plan.data["start_probability"]


def test_no_bias_is_said() -> None:
    """At w* = .5 the probability is 0."""
    plan = plan_inverse_temperature(512, 3.0, 0.5, steps=100)
    assert plan.data["collapse_probability"] == plan.data["collapse_probability_paper"] == 0
    assert len(plan.warnings) == 1


def test_kl_warmup(capsys: pytest.CaptureFixture[str]) -> None:
    """Warm-up kills what tempering never brings to life; they agree at the end."""
    found = _json(capsys, "kl-warmup", "--variances", "4", "1", "0.2", "--noise-variance", "0.5", "--epochs", "20")
    assert found["alive_after_kl_warmup"] == found["alive_after_tempering"] == 2
    first, second, third = found["latents"]
    assert first["kl_dies_at_epoch"] is None and first["tempered_alive_from_epoch"] == 0
    assert second["tempered_alive_from_beta"] == 0.5 and second["tempered_alive_from_epoch"] == pytest.approx(40 / 3)
    assert third["kl_dies_at_beta"] == 0.4 and third["kl_dies_at_epoch"] == pytest.approx(8)
    assert third["tempered_alive_from_epoch"] is None
    assert plan_kl_warmup([0.1], 0.5, 10).warnings
    assert (
        main(["plan-schedule", "kl-warmup", "--variances", "1", "-1", "--noise-variance", ".5", "--epochs", "9"]) == 2
    )
    with pytest.raises(UserError, match="--variances"):
        plan_kl_warmup([], 0.5, 10)


def test_lines_for_a_configuration_are_one() -> None:
    """`sepkit train` accepts these lines."""
    plan = plan_kl_warmup([1.0], 0.5, 10)
    from_dict(TrainConfig, yaml.safe_load("\n".join(plan.yaml)), "planned")


def _loss(parameters, variance, noise, beta, kind):
    """E_x[-log p(x | z) + beta KL] or E_x[-beta log p(x, z) + log q(z | x)] of W, V, log D, constants aside."""
    w, v, log_d = parameters
    d = log_d.exp()
    reconstruction = (variance * (1 - w * v) ** 2 + w**2 * d) / (2 * noise)
    second_moment = v**2 * variance + d
    if kind == "kl":
        return reconstruction + beta * 0.5 * (second_moment - log_d)
    return beta * (reconstruction + 0.5 * second_moment) - 0.5 * log_d


@pytest.mark.parametrize("kind", ["kl", "tempered"])
@pytest.mark.parametrize("variance", [0.05, 0.3, 0.49, 0.51, 2.0])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.99])
def test_a_latent_lives_where_zero_is_no_minimum(kind, variance, beta) -> None:
    """Exactly there the Hessian at W = V = 0 has a negative eigenvalue; zero is stationary."""
    noise = 0.5
    d = 1.0 if kind == "kl" else 1 / beta
    zero = torch.tensor([0.0, 0.0, torch.tensor(d).log()], dtype=torch.float64)

    def loss(p):
        return _loss(p, variance, noise, beta, kind)

    assert torch.autograd.functional.jacobian(loss, zero).abs().max() < 1e-6
    lowest = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, zero))[0]
    (latent,) = plan_kl_warmup([variance], noise, 10, initial_beta=0.01).data["latents"]
    dies, born = latent["kl_dies_at_beta"], latent["tempered_alive_from_beta"]
    alive = (dies is None or beta < dies) if kind == "kl" else born is not None and beta > born
    assert alive == bool(lowest < 0)
