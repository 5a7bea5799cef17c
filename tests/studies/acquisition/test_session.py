"""Sessions with one person, in Python and from the shell: answers, replaced measurements, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import main
from sepkit.errors import UserError
from sepkit.models import save_model
from sepkit.studies.acquisition.audiogram import Audiograms, write_audiograms
from sepkit.studies.acquisition.calibration import low_elbos
from sepkit.studies.acquisition.demonstration import PEOPLE, example_sequence, told_after
from sepkit.studies.acquisition.model import PartialVAE
from sepkit.studies.acquisition.predictive import TrainedVAE, latent_draws
from sepkit.studies.acquisition.session import AudiogramModel, load_audiogram_model

EVERYTHING = [f"{ear}_{hz}=30" for ear in ("right", "left") for hz in (500, 1000, 2000, 3000, 4000, 6000, 8000)]


@pytest.fixture
def dev(audiograms: Audiograms, tmp_path: Path) -> Path:
    return write_audiograms(tmp_path / "dev.csv", audiograms[np.arange(40)])


def _answer(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    assert main(["audiogram", "next", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_answers_as_the_contract_says(
    model_folder: Path, dev: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = ["--measured", "right_1000=35", "left_4000=60", "--age", 67]
    before = _answer(capsys, "--model", model_folder, *measured)
    assert before["expected_error_db"] is None and before["stop"] is None
    assert any("not calibrated" in note for note in before["notes"])
    assert main(["calibrate", str(model_folder), "--manifest", str(dev)]) == 0
    said = capsys.readouterr().out
    assert said.strip().endswith("stopping.yaml") and "fitted on 40 sessions, errors against the noise-free" in said
    answer = _answer(capsys, "--model", model_folder.parent, *measured)
    assert set(answer) >= {"next", "estimate", "deviation", "expected_error_db", "stop"}
    assert len(answer["estimate"]) == len(answer["deviation"]) == 14
    assert answer["estimate"]["right_1000"] == 35 and answer["deviation"]["right_1000"] == 5
    assert answer["deviation"][answer["next"]] == max(answer["deviation"].values())
    assert answer["expected_error_db"] >= 0 and isinstance(answer["stop"], bool)
    assert json.dumps(answer).count("not a medical device") == 1
    assert _answer(capsys, "--model", model_folder, *measured, "--stop-at-db", 1e3)["stop"] is True
    assert _answer(capsys, "--model", model_folder, *measured, "--stop-at-db", 1e-6)["stop"] is False


def test_edges_of_a_session(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = _answer(capsys, "--model", model_folder)
    assert nothing["next"] and any("nothing is measured" in note for note in nothing["notes"])
    assert any(note == "age: not given, marginalized" for note in nothing["notes"])
    full = _answer(capsys, "--model", model_folder, "--age", 50, "--measured", *EVERYTHING)
    assert full["next"] is None and full["stop"] is True and set(full["deviation"].values()) == {5.0}
    assert any("everything is measured" in note for note in full["notes"])
    twice = _answer(capsys, "--model", model_folder, "--measured", "left_500=20", "left_500=33")
    assert twice["estimate"]["left_500"] == 33 and len([n for n in twice["notes"] if "left_500" in n]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--measured", "right_750=30"], "found frequency '750'"),
        (["--measured", "both_500=30"], "found ear 'both'"),
        (["--measured", "right_500=130"], "expected -10 to 120 dB"),
        (["--age", "-3"], "age: found -3 years, expected 0 to 120 years"),
        (["--age", "400"], "age: found 400 years"),
        (["--stop-at-db", "0"], "--stop-at-db: found 0"),
        (["--reward", "luck"], "luck"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    model_folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audiogram", "next", "--model", str(model_folder), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_models_that_are_none_are_refused(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model there"):
        load_audiogram_model(tmp_path / "absent")
    weights = model_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged"):
        load_audiogram_model(model_folder)
    description = model_folder / "model.yaml"
    description.write_text(description.read_text().replace("kind: audiogram", "kind: separator"))
    with pytest.raises(UserError, match="another kind of model"):
        load_audiogram_model(model_folder)


def test_a_model_of_other_dimensions_is_refused(linear_config, dev: Path, tmp_path: Path) -> None:
    folder = save_model(PartialVAE(linear_config), tmp_path / "other")
    with pytest.raises(UserError, match="unknown, expected one of a, b, c, d"):
        load_audiogram_model(folder).session().measured("right", 500, 30)
    with pytest.raises(UserError, match="the model knows no age"):
        load_audiogram_model(folder).session(age=30)
    assert main(["calibrate", str(folder), "--manifest", str(dev)]) == 2
    assert (
        main(["audiogram", "simulate", "--model", str(folder), "--manifest", str(dev), "--out", str(tmp_path / "x")])
        == 2
    )


def test_a_session_in_python(model_folder: Path) -> None:
    session = load_audiogram_model(model_folder).session(age=67)
    first = session.next()
    assert first is not None and session.count == 0
    ear, hz = first.split("_")
    session.measured(ear, int(hz), 40)
    assert session.next() != first and session.estimate()[first] == 40 and session.count == 1
    before = session.estimate()["left_8000"]
    session.measured(ear, int(hz), 90)
    assert session.estimate()[first] == 90 and session.count == 1 and session.estimate()["left_8000"] != before
    assert any("measured again, 90 replaces 40" in note for note in session.notes)
    with pytest.raises(UserError, match="found 200 dB"):
        session.measured(ear, int(hz), 200)
    assert session.estimate()[first] == 90
    order_free = load_audiogram_model(model_folder)
    one = order_free.session(60).measured("right", 500, 10).measured("left", 2000, 50)
    other = order_free.session(60).measured("left", 2000, 50).measured("right", 500, 10)
    assert one.estimate() == other.estimate() and one.deviation() == other.deviation()


def test_people_unlike_the_training_data_are_said_to_be(audiogram_vae: PartialVAE, audiograms: Audiograms) -> None:
    model = PartialVAE(audiogram_vae.config)
    model.load_state_dict(audiogram_vae.state_dict())
    draws = latent_draws(16, 2)
    low = low_elbos(model.trained(), audiograms.values, draws)
    assert low.shape == (16,) and np.isfinite(low).all() and low[15] < low[1]
    model.set_low_elbo(low[None])
    loaded = AudiogramModel(model.trained())
    usual = loaded.session(float(audiograms.values[:, 0].mean()))
    usual.measured_all(dict(zip(audiograms.names[1:], audiograms.values[:, 1:].mean(0), strict=True)))
    assert not usual.out_of_range()
    strange = loaded.session(5).measured_all([f"{w.split('=')[0]}={-10 if 'left' in w else 120}" for w in EVERYTHING])
    assert strange.out_of_range()
    assert any("unlike the training data" in note for note in strange.answer()["notes"])


def test_ordinary_values_that_do_not_go_together_are_said_to_be_unlike_once_enough_are_measured(
    linear, linear_vae: TrainedVAE
) -> None:
    data = linear.draw(1024, seed=2)
    vae = replace(linear_vae, low_elbo=low_elbos(linear_vae, data.values, latent_draws(16, 2)))
    # Where the factors do not reach there is noise alone: no value is 2 deviations off, but all of them together are 5.
    deviations = np.sqrt(np.diag(linear.covariance))
    direction = np.linalg.svd(linear.factor[1:].T)[2][2:].sum(0)
    person = linear.mean[1:] + direction * (2 * deviations[1:] / np.abs(direction)).min()
    session = AudiogramModel(vae).session()
    said = []
    for name, value in zip(linear.names[1:], person, strict=True):
        said.append(session.measured_all({name: value}).out_of_range())
    assert not said[0] and said[-1]
    usual = AudiogramModel(vae).session().measured_all(dict(zip(linear.names[1:], linear.mean[1:], strict=True)))
    assert not usual.out_of_range()


def test_people_typed_in_by_hand(model_folder: Path, dev: Path) -> None:
    assert main(["calibrate", str(model_folder), "--manifest", str(dev)]) == 0
    model = load_audiogram_model(model_folder)
    for age, thresholds in PEOPLE.values():
        steps = example_sequence(model, age, thresholds, stop_at_db=1e-9)
        assert [step["measured"] for step in steps] == list(range(15))
        assert len({step["next"] for step in steps if step["next"]}) == 14 and steps[-1]["error_db"] == 0


def test_when_people_are_said_to_be_out_of_range_is_told_in_ranges() -> None:
    for said, words in (("0000", "never"), ("0100", "1"), ("1011", "0, 2 to 3"), ("1111", "0 to 3")):
        assert told_after([{"out_of_range": digit == "1"} for digit in said]) == words


def test_answers_do_not_need_torch(model_folder: Path) -> None:
    script = (
        "import sys\nfrom sepkit.studies.acquisition.session import load_audiogram_model\n"
        f"session = load_audiogram_model({str(model_folder)!r}).session(age=40).measured('left', 500, 20)\n"
        "session.answer()\n"
        "assert not {'torch', 'scipy', 'matplotlib', 'lightning'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
