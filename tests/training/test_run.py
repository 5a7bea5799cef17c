"""What `train` writes, says and refuses."""

import errno
import io
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from sepkit import config as c
from sepkit.annealing.temperature import spread_db
from sepkit.data.dataset import MixtureDataset
from sepkit.errors import UserError
from sepkit.models import load_checkpoint
from sepkit.models.storage.folders import read_description
from sepkit.training import callbacks
from sepkit.training.run import _one_line_from_workers, locked, train
from sepkit.training.separation import SeparationTask, signal_statistics
from tests.complaint import complaint
from tests.training import runs
from tests.training.runs import epochs, plain, weights, with_data, with_model, with_trainer, write_corpus


def script_scores(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """Make the validation score of epoch e `scores[e]`."""

    def scripted(self: SeparationTask) -> None:
        self.validation = {"dev_si_sdr_db": scores[self.position.epoch], "dev_si_sdri_db": 0.0}

    monkeypatch.setattr(SeparationTask, "on_validation_epoch_end", scripted)


# ------------------------------------------------------------------------------------------------------ what it writes


def test_experiment_folder(config: c.TrainConfig, tmp_path: Path, capfd, monkeypatch) -> None:
    """Configuration, models, records of steps and epochs, and the same for TensorBoard; Lightning is not heard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr("sepkit.training.callbacks.RECORD_EVERY_STEPS", 3)
    assert train(config, tmp_path) == tmp_path / "model"
    assert c.from_dict(c.TrainConfig, yaml.safe_load((tmp_path / "config.yaml").read_text())) == config
    lines = runs.records(tmp_path)
    assert [(line["kind"], line["epoch"], line["step"]) for line in lines] == [
        ("step", 1, 3), ("step", 1, 6), ("epoch", 1, 7), ("step", 2, 9), ("step", 2, 12), ("epoch", 2, 14),
    ]  # fmt: skip
    assert {"train_loss", "train_si_sdr_db", "gradient_norm", "learning_rate"} <= lines[0].keys()
    info = read_description(tmp_path / "last_model")["info"]
    assert (info["epoch"], info["step"], info["dev_si_sdr_db"]) == (2, 14, lines[-1]["dev_si_sdr_db"])
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    scores = [(event.step, event.value) for event in board.Scalars("epoch/dev_si_sdr_db")]
    assert scores == [(line["step"], pytest.approx(line["dev_si_sdr_db"], rel=1e-5)) for line in epochs(tmp_path)]
    output = capfd.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 4, output.err
    assert "effective batch 2 = 2 mixtures of 0.1 s x 1 device x 1 accumulated" in output.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_on_a_terminal(config: c.TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("sepkit.training.callbacks.SHOW_EVERY_BATCHES", 1)
    train(config, tmp_path)
    assert "epoch 2" in terminal.getvalue()
    assert "SI-SDR" in terminal.getvalue()
    assert "%|" in terminal.getvalue()


def test_without_validation_set(config: c.TrainConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(with_data(config, dev=None), tmp_path)
    assert "no data.dev: the last model counts as the best" in capfd.readouterr().err
    model, last = weights(tmp_path, "model"), weights(tmp_path)
    assert all(torch.equal(model[name], last[name]) for name in last)
    assert "dev_si_sdr_db" not in epochs(tmp_path)[-1]


# ------------------------------------------------------------------------------------------------- plateaus, the best


def test_validation_every_so_many_epochs(config: c.TrainConfig, tmp_path: Path) -> None:
    """Only the epochs that were validated have a score; the end of the run is saved all the same."""
    train(with_trainer(config, max_epochs=5, validate_every_epochs=2), tmp_path, limit_batches=2)
    assert ["dev_si_sdr_db" in line for line in epochs(tmp_path)] == [False, True, False, True, False]
    assert read_description(tmp_path / "last_model")["info"]["epoch"] == 5
    assert read_description(tmp_path / "model")["info"]["epoch"] in (2, 4)
    # A run too short for a validation leaves a model, by epochs or by minutes.
    train(with_trainer(config, max_epochs=2, validate_every_epochs=3), tmp_path / "short", limit_batches=1)
    assert read_description(tmp_path / "short" / "model")["info"] == {"epoch": 2, "step": 2}
    train(with_trainer(config, max_minutes=1e-9, validate_every_epochs=3), tmp_path / "timed")
    assert read_description(tmp_path / "timed" / "model")["info"] == {"epoch": 1, "step": 2}


def test_temperature_in_multiples_of_the_spread(config: c.TrainConfig, tmp_path: Path) -> None:
    """The spread is measured before training, and a resumed run keeps it though its manifest may have moved."""
    assignment = c.AnnealedMCLConfig(temperature=c.ConstantConfig(2.0), unit="spread")
    config = replace(config, objective=c.ObjectiveConfig(assignment=assignment))
    train(with_trainer(config, max_epochs=1), tmp_path, limit_batches=1)
    of = config.data
    data = MixtureDataset(of.train, segment_seconds=of.segment_seconds, dynamic_mixing=of.dynamic_mixing)
    spreads = [spread_db(data[0, i].sources[None], data[0, i].active[None]).item() for i in range(len(data))]
    expected = 2 * sum(spreads) / len(spreads)
    train(with_trainer(config, max_epochs=2), tmp_path, limit_batches=1)
    assert [line["temperature"] for line in epochs(tmp_path)] == pytest.approx([expected, expected], rel=1e-6)


@pytest.mark.parametrize(
    ("hypotheses", "assignment", "monitor", "expected"),
    [
        (1, c.MCLConfig(), "auto", "dev_mcl_si_sdr_db"), (2, c.MCLConfig(), "auto", "dev_si_sdr_db"),
        (3, c.MCLConfig(), "auto", "dev_mcl_si_sdr_db"), (3, c.PITConfig(), "auto", "dev_si_sdr_db"),
        (3, c.SinkhornConfig(), "auto", "dev_si_sdr_db"), (2, c.MCLConfig(), "mcl", "dev_mcl_si_sdr_db"),
        (3, c.AnnealedMCLConfig(), "loss", "dev_loss"),
    ],
)  # fmt: skip
def test_what_picks_the_best_model(config, tmp_path, hypotheses, assignment, monitor, expected) -> None:
    config = replace(with_model(config, hypotheses=hypotheses), objective=c.ObjectiveConfig(assignment=assignment))
    train(with_trainer(config, monitor=monitor, max_epochs=1), tmp_path, limit_batches=1)
    info = read_description(tmp_path / "model")["info"]
    assert info["monitor"] == expected
    assert info["score"] == (-info["dev_loss"] if monitor == "loss" else info[expected])
    assert ("dev_si_sdr_db" in info) == (hypotheses > 1)


def test_the_annealed_loss_may_pick_the_model(config, tmp_path, monkeypatch) -> None:
    """As in aMCL's reference code: smaller is better, whatever the SI-SDR says."""
    losses = [3.0, 1.0, 2.0]

    def scripted(self: SeparationTask) -> None:
        self.validation = {"dev_si_sdr_db": float(self.position.epoch), "dev_loss": losses[self.position.epoch]}

    monkeypatch.setattr(SeparationTask, "on_validation_epoch_end", scripted)
    train(with_trainer(config, monitor="loss", max_epochs=3), tmp_path, limit_batches=1)
    assert read_description(tmp_path / "model")["info"]["epoch"] == 2


def test_matching_is_recorded(config: c.TrainConfig, tmp_path: Path) -> None:
    """Temperature, entropy, usage and hard costs, in training and on the dev set."""
    assignment = c.AnnealedMCLConfig(temperature=c.ConstantConfig(1e6))
    config = replace(config, objective=c.ObjectiveConfig(assignment=assignment))
    train(with_trainer(config, max_epochs=1), tmp_path)
    record = epochs(tmp_path)[0]
    for part in ("train", "dev"):
        assert record[f"{part}_entropy_nats"] == pytest.approx(math.log(2), abs=1e-4)
        assert record[f"{part}_usage_1"] + record[f"{part}_usage_2"] == pytest.approx(1)
        assert record[f"{part}_collapse_rate"] == sum(record[f"{part}_usage_{k}"] == 0 for k in (1, 2)) / 2
        assert record[f"{part}_hard_cost"] < record[f"{part}_loss"]
    assert record["dev_hard_cost"] == pytest.approx(-record["dev_mcl_si_sdr_db"], abs=1e-4)
    assert record["dev_mcl_si_sdr_db"] >= record["dev_si_sdr_db"]
    assert record["temperature"] == 1e6


def test_halving_and_early_stopping(config: c.TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience 2 for halving, 5 for stopping; a score that is only reached again is no better one."""
    script_scores(monkeypatch, [1.0, 3.0, 2.0, 3.0, 2.5, 2.0, 2.9, 9.0])
    config = with_trainer(config, max_epochs=8, halve_patience=2, early_stop_patience=5, learning_rate=0.008)
    train(config, tmp_path, limit_batches=1)
    assert [line["learning_rate"] for line in epochs(tmp_path)] == [0.008, 0.008, 0.008, 0.008, 0.004, 0.004, 0.002]
    assert read_description(tmp_path / "model")["info"]["dev_si_sdr_db"] == 3.0
    assert read_description(tmp_path / "last_model")["info"]["epoch"] == 7
    train(config, tmp_path, limit_batches=1)
    assert len(epochs(tmp_path)) == 7, "a run that stopped early stays stopped"


def test_the_rate_stays_until_an_epoch(config: c.TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs 4 and 5 count, 2 and 3 do not."""
    script_scores(monkeypatch, [3.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    config = with_trainer(config, max_epochs=6, halve_patience=2, halve_from_epoch=3, learning_rate=0.008)
    train(config, tmp_path, limit_batches=1)
    assert [line["learning_rate"] for line in epochs(tmp_path)] == [0.008] * 5 + [0.004]


def test_the_budget_includes_validation(config: c.TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 1 s, a validation 20 s, by a clock of the test: so the second one begins at 70 s of 90."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(callbacks, "time", clock)
    monkeypatch.setattr(SeparationTask, "before_step", lambda self: setattr(clock, "now", clock.now + 1))
    script_scores(monkeypatch, [0.0] * 500)
    scored = SeparationTask.on_validation_epoch_end
    slow = lambda self: (setattr(clock, "now", clock.now + 20), scored(self))  # noqa: E731
    monkeypatch.setattr(SeparationTask, "on_validation_epoch_end", slow)
    train(with_trainer(config, max_epochs=500, max_minutes=90 / 60, validate_every_epochs=4), tmp_path)
    assert 88 <= clock.now <= 93


def test_plateau_is_remembered_over_runs(config, tmp_path, monkeypatch) -> None:
    script_scores(monkeypatch, [1.0, 3.0, 2.0, 2.0, 2.5, 4.0, 2.9, 2.0])
    config = with_trainer(config, halve_patience=2, learning_rate=0.008)
    for last in range(1, 9):
        train(with_trainer(config, max_epochs=last), tmp_path, limit_batches=1)
    assert [line["learning_rate"] for line in epochs(tmp_path)] == [0.008] * 4 + [0.004] * 4
    assert read_description(tmp_path / "model")["info"]["epoch"] == 6


def test_run_that_begins_anew_replaces_the_model(config, tmp_path, monkeypatch) -> None:
    script_scores(monkeypatch, [9.0])
    train(with_trainer(config, max_epochs=1), tmp_path, limit_batches=1)
    shutil.rmtree(tmp_path / "resume")
    script_scores(monkeypatch, [1.0])
    train(with_trainer(config, max_epochs=1), tmp_path, limit_batches=1)
    assert read_description(tmp_path / "model")["info"]["dev_si_sdr_db"] == 1.0
    assert len(epochs(tmp_path)) == 1


@pytest.mark.parametrize(("scores", "best"), [([math.nan, 1.0, math.nan], 2), ([math.nan, math.nan], 2)])
def test_a_score_that_is_not_a_number_is_no_better_one(config, tmp_path, monkeypatch, scores, best) -> None:
    script_scores(monkeypatch, scores)
    train(with_trainer(config, max_epochs=len(scores)), tmp_path, limit_batches=1)
    assert read_description(tmp_path / "model")["info"]["epoch"] == best
    assert [line["dev_si_sdr_db"] for line in epochs(tmp_path)] == [None if math.isnan(s) else s for s in scores]


# --------------------------------------------------------------------------------------------------------- fine-tuning


@pytest.fixture(scope="module")
def first(session_config: c.TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("first")
    train(with_trainer(session_config, max_epochs=1), out)
    return out


def test_fine_tuning_starts_from_the_weights(config, first, tmp_path, capfd) -> None:
    other = write_corpus(tmp_path / "other", mixtures=4, seed=5)
    tuned = replace(with_data(config, train=str(other)), init_from=str(first / "model"))
    tuned = with_trainer(tuned, max_epochs=1, learning_rate=1e-12)
    train(tuned, tmp_path / "tuned")
    assert "loaded 2" in capfd.readouterr().err
    before, after = (weights(folder, "model") for folder in (first, tmp_path / "tuned"))
    for name in before:
        torch.testing.assert_close(before[name], after[name], rtol=0, atol=1e-8)


def test_fine_tuning_to_more_hypotheses(config, first, tmp_path, capfd) -> None:
    tuned = replace(with_model(config, hypotheses=3), init_from=str(first / "model"))
    train(tuned, tmp_path / "tuned", limit_batches=1)
    assert "another shape, left as it was" in capfd.readouterr().err
    assert load_checkpoint(tmp_path / "tuned").hypotheses == 3


def test_resumed_fine_tuning_goes_on(config: c.TrainConfig, first: Path, tmp_path: Path) -> None:
    shutil.copytree(first, tmp_path / "first")
    tuned = replace(config, init_from=str(tmp_path / "first" / "model"))
    train(tuned, tmp_path / "whole")
    train(with_trainer(tuned, max_epochs=1), tmp_path / "parts")
    shutil.rmtree(tmp_path / "first")
    train(tuned, tmp_path / "parts")
    runs.assert_same_weights(tmp_path / "parts", tmp_path / "whole")


# ------------------------------------------------------------------------------------------------------ what it refuses


def test_silent_training_set(config: c.TrainConfig, tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path / "corpus", mixtures=1, seed=0, silent={0: {0, 1}})
    (tmp_path / "corpus" / "wav" / "noise.wav").write_bytes((tmp_path / "corpus" / "wav" / "0_0.wav").read_bytes())
    complaint(lambda: signal_statistics(MixtureDataset(manifest)), "its mixtures are silent")


def test_a_silent_dev_set_is_said_and_the_last_model_counts(config: c.TrainConfig, tmp_path: Path, capsys: Any) -> None:
    dev = write_corpus(tmp_path / "dev", mixtures=2, seed=0, silent={0: {0, 1}, 1: {0, 1}})
    still = replace(config.data.dynamic_mixing, enabled=False)
    config = with_data(config, dev=str(dev), dynamic_mixing=still, mixtures_per_epoch=9)
    config = with_trainer(config, max_epochs=3, halve_patience=1, early_stop_patience=1)
    train(config, tmp_path / "exp")
    said = capsys.readouterr()
    assert said.err.count("warning: data.mixtures_per_epoch: has no effect") == 1
    lines = [line for line in (said.out + said.err).splitlines() if "data.dev" in line]
    assert len(lines) == 3 and "nothing in it has a dev_si_sdr_db" in lines[0]
    assert "the last model counts as the best; no halving, no early stopping" in lines[0]
    best, last = (read_description(tmp_path / "exp" / name)["info"] for name in ("model", "last_model"))
    assert best["epoch"] == last["epoch"] == 3
    assert {line["learning_rate"] for line in epochs(tmp_path / "exp")} == {config.trainer.learning_rate}


def test_out_is_a_file(config: c.TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "exp").write_text("")
    complaint(lambda: train(config, tmp_path / "exp"), r"exp.*cannot be written to")


@pytest.mark.parametrize("workers", [0, 1])
def test_recording_that_vanished_is_one_line(config: c.TrainConfig, tmp_path: Path, workers: int) -> None:
    """Also when a worker process finds it, whose errors arrive with a traceback in their text."""
    dev = write_corpus(tmp_path / "dev", mixtures=2, seed=0)
    (tmp_path / "dev" / "wav" / "1_0.wav").unlink()
    config = with_data(config, dev=str(dev), workers=workers)
    assert "Traceback" not in complaint(lambda: train(config, tmp_path / "exp", limit_batches=1), r"1_0\.wav")


@pytest.mark.parametrize(
    ("cause", "words", "expected"),
    [
        (None, "DataLoader worker (pid 3) is killed", (UserError, "data.workers: a data worker ended")),
        (None, "sizes differ", (RuntimeError, "sizes differ")),
        (OSError(errno.EMFILE, "Too many open files"), "no loader", (OSError, "Too many open files")),
        (OSError(errno.EIO, "broken"), "no loader", (RuntimeError, "no loader")),
    ],
)
def test_which_errors_of_a_loader_are_reworded(cause: Any, words: str, expected: tuple[type[Exception], str]) -> None:
    error = RuntimeError(words)
    error.__cause__ = cause
    with pytest.raises(expected[0], match=expected[1]) as found, _one_line_from_workers():
        raise error
    assert found.type is expected[0]


@pytest.mark.slow
def test_compiled_model_is_saved_as_usual(config: c.TrainConfig, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on CPUs (Debian: apt-get install g++)")
    train(plain(config), tmp_path / "plain")
    train(plain(config, compile=True), tmp_path / "compiled")
    expected, found = (weights(tmp_path / name, "model") for name in ("plain", "compiled"))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


# --------------------------------------------------------------------------------------------- one run, one folder


def test_another_process_in_the_folder_is_noticed(config: c.TrainConfig, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UserError, match="another process trains here"):
        train(config, tmp_path)
    train(with_trainer(config, max_epochs=1), tmp_path)


def test_a_changed_manifest_is_noticed(config, tmp_path, capfd) -> None:
    manifest = write_corpus(tmp_path / "data", mixtures=14, seed=0)
    own = with_trainer(with_data(config, train=str(manifest)), max_epochs=1)
    train(own, tmp_path / "exp")
    moved = tmp_path / "data" / "moved.jsonl"
    moved.write_bytes(manifest.read_bytes())
    train(with_data(own, train=str(moved)), tmp_path / "exp")
    assert "warning: data.train" not in capfd.readouterr().err
    write_corpus(tmp_path / "data", mixtures=15, seed=0)
    for _ in range(2):
        train(with_trainer(own, max_epochs=2), tmp_path / "exp")
        assert "has other mixtures than when this training began" in capfd.readouterr().err


@pytest.mark.parametrize("content", [None, "", "- 1", "model: [", "trainer: {max_epochs: many}", "objective: 3"])
def test_a_missing_or_broken_configuration_of_a_run_is_a_mistake(content, config, tmp_path) -> None:
    (tmp_path / "resume").mkdir()
    torch.save({}, tmp_path / "resume" / "last.ckpt")
    if content is not None:
        (tmp_path / "config.yaml").write_text(content)
    complaint(lambda: train(config, tmp_path), r"config\.yaml: .*take a new --out")


def test_a_damaged_state_is_noticed_before_it_is_loaded(config: c.TrainConfig, tmp_path: Path) -> None:
    one = with_trainer(config, max_epochs=1)
    train(one, tmp_path)
    state = tmp_path / "resume" / "last.ckpt"
    whole = state.read_bytes()
    at = whole.index(b"data.pkl") + 200
    for damaged in (whole[:-100], b"", b"no checkpoint", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
        state.write_bytes(damaged)
        complaint(lambda: train(one, tmp_path), "damaged")


def test_the_state_is_written_in_its_own_folder(config: c.TrainConfig, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    train(with_trainer(config, max_epochs=1), tmp_path / "exp")
    assert sorted(path.name for path in (tmp_path / "exp" / "resume").iterdir()) == [".lock", "last.ckpt"]
