"""Sessions with one person, in Python and from the shell, and the rule that stops them, against scikit-learn."""

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import Ridge

from sepkit.choices import to_dict
from sepkit.cli.main import main
from sepkit.errors import UserError
from sepkit.files import read_yaml, write_yaml
from sepkit.models import save_model
from sepkit.studies.audiogram import load_model, simulation
from sepkit.studies.audiogram.config import THRESHOLDS
from sepkit.studies.audiogram.data import Audiograms, write_audiograms
from sepkit.studies.audiogram.model import (
    BASELINE,
    FEATURES,
    STOPPING,
    AudiogramModel,
    latent_draws,
    low_elbos,
    read_stopping,
)
from sepkit.studies.audiogram.task import PartialVAE
from tests.complaint import complaint


@pytest.fixture
def dev(audiograms: Audiograms, tmp_path: Path) -> Path:
    return write_audiograms(tmp_path / "dev.csv", audiograms[np.arange(40)])


def _answer(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    assert main(["audiogram", "next", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_answers_as_the_contract_says(model_folder, dev, capsys) -> None:
    measured = ["--measured", "right_1000=35", "left_4000=60", "--age", 67]
    before = _answer(capsys, "--model", model_folder, *measured)
    assert before["expected_error_db"] is None and before["stop"] is None
    assert any("not calibrated" in note for note in before["notes"])
    assert main(["calibrate", str(model_folder), "--manifest", str(dev)]) == 0
    said = capsys.readouterr().out
    assert said.strip().endswith("stopping.yaml") and "fitted on 40 sessions, errors against the noise-free" in said
    answer = _answer(capsys, "--model", model_folder.parent, *measured)
    keys = ("next", "estimate", "deviation", "expected_error_db", "stop", "out_of_range", "measured", "notes", "notice")
    assert tuple(answer) == keys and answer["measured"] == 2
    assert tuple(answer["estimate"]) == tuple(answer["deviation"]) == THRESHOLDS
    assert answer["estimate"]["right_1000"] == 35 and answer["deviation"]["right_1000"] == 5
    assert answer["deviation"][answer["next"]] == max(answer["deviation"].values())
    assert answer["expected_error_db"] >= 0 and isinstance(answer["stop"], bool)
    assert json.dumps(answer).count("not a medical device") == 1
    assert _answer(capsys, "--model", model_folder, *measured, "--stop-at-db", 1e3)["stop"] is True
    assert _answer(capsys, "--model", model_folder, *measured, "--stop-at-db", 1e-6)["stop"] is False


def test_edges_of_a_session(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = _answer(capsys, "--model", model_folder)
    assert nothing["next"] and any("nothing is measured" in note for note in nothing["notes"])
    assert "age: not given, marginalized" in nothing["notes"]
    full = _answer(capsys, "--model", model_folder, "--age", 50, "--measured", *[f"{name}=30" for name in THRESHOLDS])
    assert full["next"] is None and full["stop"] is True and set(full["deviation"].values()) == {5.0}
    assert any("everything is measured" in note for note in full["notes"])


def test_bad_input_is_one_line_and_exit_code_2(model_folder: Path, refused) -> None:
    for words, message in (
        (["--measured", "right_750=30"], "right_750: unknown (did you mean right_"),
        (["--age", "-3"], "age: found -3 years"),
        (["--stop-at-db", "0"], "--stop-at-db: found 0"),
    ):
        assert message in refused(["audiogram", "next", "--model", model_folder, *words])


def test_what_is_no_model_is_refused(model_folder: Path, tmp_path: Path) -> None:
    weights, description = model_folder / "model.safetensors", model_folder / "model.yaml"
    text = description.read_text()
    for old, new, message in (
        ("kind: audiogram", "kind: separator", "another kind of model"),
        ("  - name: age\n    noise", "  - noise", "expected different ones"),
    ):
        description.write_text(text.replace(old, new))
        complaint(lambda: load_model(model_folder), message)
    description.write_text(text)
    whole = weights.read_bytes()
    state = load_file(weights)
    # NumPy's warning would stand before the line.
    save_file(state | {"scale": 0 * state["scale"]}, weights)
    with warnings.catch_warnings(), pytest.raises(UserError, match=r"damaged.*not finite"):
        warnings.simplefilter("error")
        load_model(model_folder)
    weights.write_bytes(whole[:-100])
    complaint(lambda: load_model(model_folder), "damaged")
    complaint(lambda: load_model(tmp_path / "absent"), "no model there")


def test_a_model_of_other_dimensions_is_refused(linear_config, dev: Path, tmp_path: Path) -> None:
    folder = save_model(PartialVAE(linear_config), tmp_path / "other")
    complaint(lambda: load_model(folder).session().measured("right", 500, 30), "unknown, expected one of a, b, c, d")
    complaint(lambda: load_model(folder).session(age=30), "the model was trained without ages")
    assert main(["calibrate", str(folder), "--manifest", str(dev)]) == 2


def test_a_session_in_python(model_folder: Path) -> None:
    model = load_model(model_folder)
    session = model.session(age=67)
    first = session.next()
    assert first is not None and session.count == 0
    ear, hz = first.split("_")
    session.measured(ear, int(hz), 40)
    assert session.next() != first and session.estimate()[first] == 40 and session.count == 1
    before = session.estimate()
    session.measured(ear, int(hz), 90)
    after = session.estimate()
    assert after[first] == 90 and session.count == 1 and all(after[name] != before[name] for name in THRESHOLDS)
    assert any("measured again, 90 replaces 40" in note for note in session.notes)
    complaint(lambda: session.measured(ear, int(hz), 200), "found 200 dB")
    assert session.estimate() == after
    one = model.session(60).measured("right", 500, 10).measured("left", 2000, 50)
    other = model.session(60).measured("left", 2000, 50).measured("right", 500, 10)
    assert one.estimate() == other.estimate() and one.deviation() == other.deviation()


def test_values_that_do_not_go_together_are_out_of_range_once_enough_are_measured(linear, linear_vae) -> None:
    low = low_elbos(linear_vae, linear.draw(1024, seed=2).values, latent_draws(2, 16))
    assert low.shape == (6,) and np.isfinite(low).all() and low[5] < low[1]
    model = AudiogramModel(replace(linear_vae, low_elbo=low), Path())
    # Where the factors do not reach there is noise alone: no value is 2 deviations off, but all of them together are 5.
    deviations = np.sqrt(np.diag(linear.covariance))
    direction = np.linalg.svd(linear.factor[1:].T)[2][2:].sum(0)
    person = linear.mean[1:] + direction * (2 * deviations[1:] / np.abs(direction)).min()
    session = model.session()
    said = [session.measured_all({n: value}).out_of_range() for n, value in zip(linear.names[1:], person, strict=True)]
    assert not said[0] and said[-1] and any("unlike the training data" in note for note in session.answer()["notes"])
    assert not model.session().measured_all(dict(zip(linear.names[1:], linear.mean[1:], strict=True))).out_of_range()


def test_answers_do_not_need_torch(model_folder: Path) -> None:
    script = (
        "import sys\n"
        "from sepkit.studies.audiogram import load_model\n"
        f"load_model({str(model_folder)!r}).session(age=40).measured('left', 500, 20).answer()\n"
        "assert not {'torch', 'scipy', 'matplotlib', 'lightning'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------------------- stopping


@pytest.fixture(scope="module")
def sessions() -> simulation.Sessions:
    """Errors that fall with the number of measurements, by as much as each session's own uncertainty says."""
    rng = np.random.default_rng(0)
    count, steps = 60, 8
    hard = rng.uniform(0.5, 2.0, (count, 1))
    errors = 3.0 + 8 * hard * np.exp(-0.4 * np.arange(steps + 1)) + 0.2 * rng.standard_normal((count, steps + 1))
    orders = np.tile(np.arange(steps), (count, 1))
    acquisition = np.square(errors) + rng.standard_normal(errors.shape)
    elbo = -4.0 * np.arange(steps + 1) - 3 * hard + 0.3 * rng.standard_normal(errors.shape)
    columns = (np.broadcast_to(np.arange(steps + 1), errors.shape), acquisition, elbo)
    return simulation.Sessions("noise-free", orders, errors, errors, dict(zip(FEATURES, columns, strict=True)))


def test_errors_areas_and_indices(sessions: simulation.Sessions) -> None:
    errors = simulation.rmse(np.array([[1.0, 2.0], [0.0, 0.0]]), np.array([[1.0, 5.0], [3.0, 4.0]]))
    assert errors == pytest.approx([4.5**0.5, 12.5**0.5])
    curves = np.array([[9.0, 5.0, 3.0, 2.0], [9.0, 8.0, 7.0, 6.0], [1.0, 4.0, 9.0, 1.0]])
    assert simulation.area(curves).tolist() == [10.0, 21.0, 14.0]
    assert simulation.stopping_index(curves, 3.5).tolist() == [2, 3, 3]
    assert simulation.stopping_index(curves, 4.5).tolist() == [2, 3, 1]
    oracle = simulation.stopping_index(sessions.rmse, 6.0)
    scores = simulation.stopping_scores(sessions.rmse, oracle, 6.0)
    assert scores["offset"] == 0 and scores["error_db"] < 6 and scores["index"] == oracle.mean()
    assert simulation.stopping_scores(curves, np.array([1, 3, 3]), 3.5)["offset"] == pytest.approx(1 / 3)
    by_hand = [np.abs(oracle - index).mean() for index in range(1, 9)]
    assert simulation.best_index(sessions.rmse, 6.0) == 1 + int(np.argmin(by_hand))


@pytest.mark.parametrize("names", [FEATURES, BASELINE])
def test_the_ridge_is_that_of_scikit_learn(sessions: simulation.Sessions, names: tuple[str, ...]) -> None:
    rule, features = simulation.fit_stopping(sessions, names), sessions.features
    assert rule.features == list(names) and rule.sessions == 60
    table = np.stack([features[name][:, 1:].ravel() for name in names], axis=-1)
    standardized = np.clip((table - table.mean(0)) / table.std(0), -rule.limit, rule.limit)
    fitted = Ridge(alpha=rule.ridge).fit(standardized, sessions.rmse[:, 1:].ravel())
    np.testing.assert_allclose(rule.predict(features)[:, 1:].ravel(), fitted.predict(standardized), rtol=1e-6)


def test_a_rule_is_kept_beside_its_model(sessions: simulation.Sessions, tmp_path: Path) -> None:
    rule = replace(simulation.fit_stopping(sessions), weights="abc", manifest="dev.csv")
    assert read_stopping(tmp_path, "abc") is None
    write_yaml(tmp_path / STOPPING, to_dict(rule))
    assert read_stopping(tmp_path, "abc") == rule
    complaint(lambda: read_stopping(tmp_path, "abd"), "fitted for another model")
    data = read_yaml(tmp_path / STOPPING)
    none = {name: [] for name in ("features", "means", "scales", "coefficients")}
    changes = ({"means": [1.0]}, {"scales": [0.0, 1.0, 1.0]}, {"format": 2}, {"intercept": "x"}, {"extra": 1}, none)
    for change in changes:
        write_yaml(tmp_path / STOPPING, data | change)
        complaint(lambda: read_stopping(tmp_path, "abc"), "sepkit calibrate")
