"""Planned schedules, and the command that prints them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from sepkit.annealing.amcl_planning import plan_amcl
from sepkit.annealing.collapse import PAPER_ALPHA, collapse_probability, growth_exponent, stability_alpha
from sepkit.annealing.planning import growth_curve, plan_inverse_temperature, plan_kl_warmup
from sepkit.annealing.split_delay import Cooling
from sepkit.cli.main import main
from sepkit.config import TrainConfig, from_dict
from sepkit.errors import UserError

SETTING = ["--dimension", "512", "--radius", "3", "--heavy-weight", "0.8"]


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    capsys.readouterr()
    assert main(["plan-schedule", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_inverse_temperature(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Output has the numbers of the theory under their names, and a figure if one is asked for."""
    figure = tmp_path / "growth.png"
    found = _json(
        capsys, "inverse-temperature", *SETTING, "--initial-beta", str(1 / 90), "--steps", "500", "--step-size", "0.05",
        "--figure", str(figure),
    )  # fmt: skip
    assert found["alpha"] == PAPER_ALPHA and found["flow_time"] == 25
    assert found["optimal_initial_beta"] == pytest.approx(0.0051011, abs=1e-6)
    assert found["stability_alpha"] == pytest.approx(0.5863, abs=1e-4)
    assert found["collapse_probability_paper"] == pytest.approx(0.248, abs=5e-4)
    assert found["collapse_probability"] == pytest.approx(0.188, abs=5e-4)
    assert found["start_probability"] == pytest.approx(0.922, abs=1e-3)
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("schedule", ["linear", "saturating", "step"])
def test_other_schedules_are_planned_too(capsys: pytest.CaptureFixture[str], schedule: str) -> None:
    """The probability lies between certain collapse and none, and falls with length."""
    arguments = ["inverse-temperature", *SETTING, "--initial-beta", "0.01", "--schedule", schedule]
    short, long = (_json(capsys, *arguments, "--steps", steps) for steps in ("500", "4000"))
    assert 0 < long["collapse_probability"] < short["collapse_probability"] < 1
    assert short["rate"] is None


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
        (["--initial-beta", "1", "--steps", "9"], "--initial-beta: found 1, expected a number between 0 and 1"),
        (["--initial-beta", "0", "--steps", "9"], "--initial-beta: found 0"),
        (["--radius", "0", "--steps", "9"], "--radius: found 0, expected a positive number"),
        (["--dimension", "-3", "--steps", "9"], "--dimension: found -3, expected a positive number"),
        (["--dimension", "1", "--steps", "9"], "--dimension: found 1, expected 2 or more"),
        (["--steps", "0"], "--steps: found 0, expected a positive number"),
        (["--steps", "-5"], "--steps: found -5, expected a positive number"),
        (["--step-size", "0", "--steps", "9"], "--step-size: found 0, expected a positive number"),
        (["--heavy-weight", "0", "--steps", "9"], "--heavy-weight: found 0, expected a number between 0 and 1"),
        (["--heavy-weight", "1.2", "--steps", "9"], "--heavy-weight: found 1.2"),
        ([], "--steps, --target-probability: expected exactly one of the two"),
        (["--target-probability", "1.5"], "--target-probability: found 1.5"),
        (["--target-probability", "0.01", "--limit-steps", "300"], "no schedule of up to 300 steps"),
        (["--target-probability", "0.01", "--initial-beta", "0.1"], "no schedule of up to 1e+06 steps"),
        (["--target-probability", "0.01", "--schedule", "step"], "only for --schedule exponential"),
        (["--radius", "0.4", "--steps", "9"], "radius: found 0.4, expected more than"),
    ],
)
def test_bad_numbers_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], line: str) -> None:
    """The line has option, found and expected; the exit code is 2."""
    given = [
        word for option, value in zip(SETTING[::2], SETTING[1::2], strict=True) if option not in arguments
        for word in (option, value)
    ]  # fmt: skip
    assert main(["plan-schedule", "inverse-temperature", *given, *arguments]) == 2
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
    assert plan.warnings == [
        "heavy-weight .5: neither mode attracts both means, so that the probability of collapse is 0"
    ]


def test_growth_curve_is_largest_at_the_optimum() -> None:
    """The curve in the figure peaks there."""
    betas, values = growth_curve(3.0, 500, 0.05, PAPER_ALPHA)
    best = betas[values.index(max(values))]
    assert 0.8 < best / 0.0051011 < 1.25


def test_amcl(capsys: pytest.CaptureFixture[str]) -> None:
    """Splits of nine free hypotheses were seen at .1722 and .2862 for 200 and 1,000 epochs of linear cooling."""
    arguments = ["amcl", "--critical-temperature", "0.4643", "--initial-temperature", "0.6", "--kind", "linear"]
    short = _json(capsys, *arguments, "--epochs", "200")
    assert short["split_temperature"] == pytest.approx(0.1722, rel=0.01)
    assert short["split_epoch"] == pytest.approx(200 * (1 - short["split_temperature"] / 0.6))
    assert short["recommended_initial_temperature"] == 0.4643
    assert short["recommended_split_temperature"] > short["split_temperature"]
    # One split that was seen predicts the others, whatever step size made it.
    observed = ["--observed-split", "0.1722", "--observed-epochs", "200"]
    long = _json(capsys, *arguments, "--epochs", "1000", *observed)
    assert long["split_temperature"] == pytest.approx(0.2862, rel=0.005)
    exponential = [*arguments[:-2], "--kind", "exponential", "--decay", "0.99", "--epochs", "1000", "--observed-kind"]
    found = _json(capsys, *exponential, "linear", *observed)
    assert found["split_temperature"] == pytest.approx(0.1920, rel=0.01)


@pytest.mark.parametrize("kind", ["linear", "exponential"])
def test_amcl_the_other_way_round(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """A plan with the cooling recommended for a wanted split splits there."""
    arguments = ["amcl", "--critical-temperature", "0.4", "--initial-temperature", "0.4", "--kind", kind]
    found = _json(capsys, *arguments, "--epochs", "300", "--wanted-split", "0.3")
    if kind == "linear":
        again = _json(capsys, *arguments, "--epochs", str(found["required_epochs"]))
        assert found["required_decay"] is None
    else:
        again = _json(capsys, *arguments, "--epochs", "9999", "--decay", str(found["required_decay"]))
    assert again["split_temperature"] == pytest.approx(0.3, rel=1e-9)
    assert again["split_epoch"] == pytest.approx(found["wanted_split_epoch"])
    assert main(["plan-schedule", *arguments, "--epochs", "300", "--wanted-split", "0.3"]) == 0
    assert "for a split at 0.3" in capsys.readouterr().out


def test_amcl_warns(capsys: pytest.CaptureFixture[str]) -> None:
    """It warns of a start far above T_c, and of a split that comes too late."""
    arguments = ["amcl", "--critical-temperature", "0.4", "--initial-temperature", "4", "--epochs", "20"]
    found = _json(capsys, *arguments, "--kind", "linear")
    assert found["split_epoch"] is None or found["split_epoch"] > 18
    main(["plan-schedule", *arguments, "--kind", "linear"])
    error = capsys.readouterr().err
    assert "a hotter start makes the split later" in error and "too late" in error
    slow = plan_amcl(0.4, 0.4, 10_000, kind="linear")
    assert not slow.warnings
    floor = plan_amcl(0.4, 4.0, 1000, kind="linear", floor=True)
    assert floor.data["split_temperature"] > plan_amcl(0.4, 4.0, 1000, kind="linear").data["split_temperature"]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"epochs": 0}, "--epochs: found 0"),
        ({"initial_temperature": -1}, "--initial-temperature: found -1"),
        ({"decay": 1.5}, "--decay: found 1.5"),
        ({"spread_growth": 1}, "--spread-growth: found 1, expected more than 1"),
        ({"initial_temperature": 0.3}, "--initial-temperature: found 0.3, below the critical temperature 0.4"),
        ({"wanted_split": 0.4}, "--wanted-split: found 0.4, expected a number between 0 and the critical temperature"),
        ({"observed_split": 0.5}, "--observed-split: found 0.5, expected less than 0.4"),
        ({"observed_split": 0.39, "observed": Cooling("linear", 4.0, 100)}, "add --noise-floor"),
    ],
)
def test_amcl_refuses(more: dict, line: str) -> None:
    """Each bad number gives one line."""
    with pytest.raises(UserError) as caught:
        plan_amcl(**({"critical_temperature": 0.4, "initial_temperature": 0.6, "epochs": 100} | more))
    assert line in str(caught.value)


def test_observed_run_without_its_split(capsys: pytest.CaptureFixture[str]) -> None:
    """A schedule of an observed run without its observed split is refused."""
    arguments = ["--critical-temperature", "1", "--initial-temperature", "1", "--epochs", "9"]
    assert main(["plan-schedule", "amcl", *arguments, "--observed-epochs", "5"]) == 2
    assert "--observed-split: missing" in capsys.readouterr().err
    assert main(["plan-schedule", "amcl", *arguments, "--observed-split", ".1", "--observed-decay", "2"]) == 2
    assert "--observed-decay: found 2" in capsys.readouterr().err


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
    for bad in ([], [1.0, -1.0]):
        with pytest.raises(UserError, match="--variances"):
            plan_kl_warmup(bad, 0.5, 10)


@pytest.mark.parametrize(
    "plan",
    [plan_amcl(0.4, 0.6, 100), plan_amcl(0.4, 0.6, 100, kind="linear"), plan_kl_warmup([1.0], 0.5, 10)],
    ids=["amcl", "amcl linear", "kl-warmup"],
)
def test_lines_for_a_configuration_are_one(plan) -> None:
    """`sepkit train` accepts these lines."""
    assert plan.yaml
    from_dict(TrainConfig, yaml.safe_load("\n".join(plan.yaml)), "planned")


def test_the_page_prints_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/plan-schedule.md: four commands and their output, word for word."""
    text = (Path(__file__).parents[2] / "docs" / "plan-schedule.md").read_text()
    blocks = re.findall(r"^```console\n\$ sepkit (.*?)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for command, output in blocks:
        assert main(shlex.split(command)) == 0
        assert capsys.readouterr().out == output
