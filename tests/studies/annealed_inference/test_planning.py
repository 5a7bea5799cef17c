"""Planned inverse temperatures, and the command that prints them."""

import json

import pytest

from sepkit.cli.main import main
from sepkit.studies.annealed_inference import planning

SETTING = ["--dimension", "512", "--radius", "3", "--heavy-weight", "0.8"]


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    capsys.readouterr()
    assert main(["plan-schedule", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_inverse_temperature(capsys: pytest.CaptureFixture[str]) -> None:
    """Output has the numbers of the theory under their names."""
    schedule = ["--initial-beta", str(1 / 90), "--steps", "500", "--step-size", "0.05"]
    found = _json(capsys, "inverse-temperature", *SETTING, *schedule)
    assert found["alpha"] == planning.PAPER_ALPHA and found["flow_time"] == 25
    assert found["optimal_initial_beta"] == pytest.approx(0.0051011, abs=1e-6)
    assert found["stability_alpha"] == pytest.approx(0.5863, abs=1e-4)
    assert found["collapse_probability_paper"] == pytest.approx(0.248, abs=5e-4)
    assert found["collapse_probability"] == pytest.approx(0.188, abs=5e-4)
    assert found["start_probability"] == pytest.approx(0.922, abs=1e-3)


def test_target_probability(capsys: pytest.CaptureFixture[str]) -> None:
    """The plan has the steps that the probability needs, at the optimal start."""
    found = _json(capsys, "inverse-temperature", *SETTING, "--target-probability", "0.05")
    assert found["initial_beta"] == found["optimal_initial_beta"]
    alpha = planning.stability_alpha(3.0, 0.8)
    steps = (found["steps"], found["steps"] - 1)
    exponents = [planning.growth_exponent(found["initial_beta"], t, 0.05, 3.0, alpha) for t in steps]
    p = [planning.collapse_probability(exponent, 512, 3.0, 0.8, repelled=True) for exponent in exponents]
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
def test_bad_numbers_are_one_line(refused, arguments: list[str], line: str) -> None:
    """The line has option, found and expected; the exit code is 2."""
    words = [*SETTING, *arguments]
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert line in refused(["plan-schedule", "inverse-temperature", *(word for pair in given.items() for word in pair)])


def test_start_that_is_cold_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    """With beta_i above alpha / R^2 the probability is that of the start."""
    assert main(["plan-schedule", "inverse-temperature", *SETTING, "--initial-beta", "0.1", "--steps", "500"]) == 0
    assert "no hot phase" in capsys.readouterr().err
    found = _json(capsys, "inverse-temperature", *SETTING, "--initial-beta", "0.1", "--steps", "500")
    assert found["collapse_probability"] == found["start_probability"]


def test_no_bias_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """At w* = .5 the probability is 0."""
    found = _json(capsys, "inverse-temperature", *SETTING[:4], "--heavy-weight", ".5", "--steps", "100")
    assert found["collapse_probability"] == found["collapse_probability_paper"] == 0
