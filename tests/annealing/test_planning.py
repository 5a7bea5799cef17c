"""When splits of hypotheses are seen: sums over steps against products, closed forms, and descending hypotheses."""

import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.special import lambertw

from sepkit.annealing.planning import Cooling, plan_amcl, split_time, step_size_for_split
from sepkit.cli.main import main
from sepkit.config import TrainConfig, from_dict

CRITICAL = 0.4643
GROWTH = math.log(120)


def _temperature(cooling: Cooling, step_size: float, growth: float = GROWTH, critical: float = CRITICAL) -> float:
    time = split_time(cooling, critical, step_size, growth)
    return float(cooling.temperatures(np.array(math.floor(time))))


@pytest.mark.parametrize("cooling", [Cooling("linear", 0.6, 150), Cooling("exponential", 0.5, 1.0, 0.93)])
def test_steps_are_added_up(cooling: Cooling) -> None:
    """A distance that every step multiplies is as large as wanted in the epoch that is told, and not before."""
    distance, epoch = 1.0, -1
    while distance < 120:
        epoch += 1
        distance *= 1 + 2 * 0.06 * (CRITICAL / float(cooling.temperatures(np.array(epoch))) - 1)
    time = split_time(cooling, CRITICAL, 0.06)
    assert time is not None and math.floor(time) == epoch
    # One split that is seen tells the step size, up to the epoch that it is seen in.
    seen = float(cooling.temperatures(np.array(epoch)))
    assert cooling.epoch_of(seen) == pytest.approx(epoch)
    fitted = step_size_for_split(cooling, CRITICAL, seen)
    assert split_time(cooling, CRITICAL, fitted) == pytest.approx(epoch + 0.5)
    assert fitted == pytest.approx(0.06, rel=0.1)


def test_slow_cooling_has_a_closed_form() -> None:
    """From T_c it is -W_0(-exp(-1 - Lambda / kappa)) T_c, or T_c / -W_{-1} of the same; faster cooling is below it."""

    def closed(cooling: Cooling) -> float:
        if cooling.kind == "linear":
            return CRITICAL * -lambertw(-math.exp(-1 - GROWTH / (2 * 0.05 * cooling.epochs)), 0).real
        return CRITICAL / -lambertw(-math.exp(-1 - GROWTH * math.log(1 / cooling.decay) / (2 * 0.05)), -1).real

    for slow in (Cooling("linear", CRITICAL, 300_000), Cooling("exponential", CRITICAL, 1.0, 1 - 3e-6)):
        assert _temperature(slow, 0.05) == pytest.approx(closed(slow), rel=1e-4)
    for fast in (Cooling("linear", CRITICAL, 100), Cooling("exponential", CRITICAL, 1.0, 0.9)):
        assert _temperature(fast, 0.05) < 0.97 * closed(fast)
    assert split_time(Cooling("linear", 4.0, 20), CRITICAL, 0.05) is None


@pytest.mark.parametrize("kind", ["linear", "exponential"])
def test_two_hypotheses_split_where_predicted(kind) -> None:
    """Gradient descent on two free hypotheses for points on a line: within 2 % of the prediction."""
    points = np.random.default_rng(0).normal(size=200)
    points -= points.mean()
    critical, eta, small, seen = 2 * points.var(), 0.05, 1e-4, 1e-2
    cooling = Cooling(kind, 1.2 * critical, 800.0, 0.995)
    f = np.array([-small, small])
    for temperature in cooling.temperatures(np.arange(800.0)):
        distance = (f[:, None] - points) ** 2
        weights = np.exp(-(distance - distance.min(0)) / temperature)
        weights /= weights.sum(0)
        # The loss of one hypothesis divided by its own share, 1/2.
        f = f - eta * (weights * 2 * (f[:, None] - points)).mean(1) / 0.5
        if f[1] - f[0] > 2 * seen:
            break
    assert temperature == pytest.approx(_temperature(cooling, eta, math.log(seen / small), critical), rel=0.02)


def _json(printed, *arguments: str) -> dict:
    return json.loads(printed(["plan-schedule", "amcl", *arguments, "--json"]))


def test_the_plan_of_nine_hypotheses(printed) -> None:
    """Splits of nine free hypotheses were seen at .1722 and .2862 for 200 and 1,000 epochs of linear cooling."""
    arguments = ["--critical-temperature", "0.4643", "--initial-temperature", "0.6", "--kind", "linear"]
    short = _json(printed, *arguments, "--epochs", "200")
    assert short["split_temperature"] == pytest.approx(0.1722, rel=0.01)
    assert short["split_epoch"] == pytest.approx(200 * (1 - short["split_temperature"] / 0.6))
    assert short["recommended_initial_temperature"] == 0.4643
    assert short["recommended_split_temperature"] > short["split_temperature"]
    # One split that was seen predicts the others, of either kind, whatever step size made it.
    fitted = _json(printed, *arguments, "--epochs", "200", "--observed-split", "0.1722")["step_size"]
    for more, seen in (([], 0.2862), (["--kind", "exponential", "--decay", "0.99"], 0.1920)):
        found = _json(printed, *arguments, "--epochs", "1000", *more, "--step-size", str(fitted))
        assert found["split_temperature"] == pytest.approx(seen, rel=0.01)
    own = ["--epochs", "1000", "--kind", "exponential", "--decay", "0.95", "--observed-split", "0.192"]
    assert _json(printed, *arguments, *own, "--observed-decay", "0.99")["step_size"] == pytest.approx(fitted, rel=0.02)


def test_warnings(printed, capsys) -> None:
    """It warns of a start far above T_c, and of a split that comes too late."""
    arguments = ["--critical-temperature", "0.4", "--initial-temperature", "4", "--epochs", "20", "--kind", "linear"]
    found = _json(printed, *arguments)
    assert found["split_epoch"] is None or found["split_epoch"] > 18
    main(["plan-schedule", "amcl", *arguments])
    error = capsys.readouterr().err
    assert "a hotter start makes the split later" in error and "too late" in error
    slow = ["--critical-temperature", "1", "--initial-temperature", "1", "--epochs", "9999"]
    assert main(["plan-schedule", "amcl", *slow]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--initial-temperature", "-1"], "--initial-temperature: found -1"),
        (["--decay", "1.5"], "--decay: found 1.5"),
        (["--initial-temperature", "0.3"], "--initial-temperature: found 0.3, below the critical temperature 0.4"),
        (["--observed-split", "0.5"], "--observed-split: found 0.5, expected less than the critical temperature 0.4"),
        (["--observed-split", "0.39", "--initial-temperature", "4", "--kind", "linear"], "found 0.39, too early"),
        (["--observed-split", "0.1", "--observed-decay", "2"], "--observed-decay: found 2"),
        (["--observed-decay", "0.5"], "--observed-split: missing"),
    ],
)
def test_bad_numbers(more: list[str], line: str, refused) -> None:
    """Each gives one line."""
    given = {"--critical-temperature": "0.4", "--initial-temperature": "0.6", "--epochs": "100"}
    given |= dict(zip(more[::2], more[1::2], strict=True))
    assert line in refused(["plan-schedule", "amcl", *(word for pair in given.items() for word in pair)])


@pytest.mark.parametrize("kind", ["linear", "exponential"])
def test_lines_for_a_configuration_are_one(kind) -> None:
    """`sepkit train` accepts these lines."""
    printed = plan_amcl(critical_temperature=0.4, initial_temperature=0.6, epochs=100, kind=kind)
    from_dict(TrainConfig, yaml.safe_load(printed[printed.index("objective:") :]), "planned")


def test_the_page_prints_what_the_command_prints(printed) -> None:
    """docs/plan-schedule.md: commands of all kinds and their output, word for word."""
    text = (Path(__file__).parents[2] / "docs" / "plan-schedule.md").read_text()
    blocks = re.findall(r"^```console\n\$ sepkit (.*?)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for command, output in blocks:
        assert printed(shlex.split(command)) == output
