"""Files, names and options become one configuration; mistakes are one line that names what is wrong."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from sepkit import config as c
from sepkit.cli._configuration import conf_folder, find_config, merge, parse_config
from sepkit.cli._parser import call
from sepkit.cli.train import ALIASES, add_options
from sepkit.errors import UserError
from tests.complaint import complaint


def config_of(*arguments: str) -> c.TrainConfig:
    return parse_config("sepkit train", "", [*arguments, "--out", "x"], aliases=ALIASES, add_options=add_options)[0]


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_infinity_is_a_number():
    def command(files: list[str], *, seconds: float = 1.0) -> tuple[list[str], float]:
        """Nothing.

        Args:
            files: some
            seconds: how many
        """
        return files, seconds

    for arguments in (["inf", "--seconds", "inf"], ["inf", "--seconds=inf"]):
        assert call(command, "x", arguments) == (["inf"], float("inf"))
    assert call(command, "x", ["inf", "--seconds", "2"]) == (["inf"], 2.0)


def test_an_option_given_twice_keeps_the_values_of_both() -> None:
    def command(*, enroll: list[str] | None = None, metrics: Sequence[str] = ("si_sdr",)) -> tuple:
        """Do it."""
        return enroll, metrics

    assert call(command, "x", []) == (None, ("si_sdr",))
    assert call(command, "x", ["--enroll", "a=1", "b=2", "--enroll", "c=3"]) == (["a=1", "b=2", "c=3"], ("si_sdr",))
    assert call(command, "x", ["--metrics", "pesq", "--metrics", "stoi"])[1] == ["pesq", "stoi"]
    assert call(command, "x", [])[1] == ("si_sdr",)


def test_out_and_model_have_short_forms(capsys):
    def command(*, out: str, model: str = "m") -> tuple[str, str]:
        """Nothing.

        Args:
            out: folder of the results
            model: which
        """
        return out, model

    assert call(command, "x", ["-o", "a", "-m", "b"]) == call(command, "x", ["--out", "a", "--model=b"]) == ("a", "b")
    with pytest.raises(SystemExit):
        call(command, "x", ["-h"])
    assert "  -o, --out DIR " in capsys.readouterr().out
    complaint(lambda: call(command, "x", ["-o", "a", "-model", "b"]), r"-model: unknown option \(did you mean --model")


def test_later_files_win_and_options_win_over_files(tmp_path):
    masker = "model: {masker: {name: recurrent, hidden_size: 10, num_layers: 1}}"
    first = write(tmp_path / "a.yaml", f"{masker}\ntrainer: {{seed: 3}}")
    second = write(tmp_path / "b.yaml", "model: {masker: {hidden_size: 20}}")
    config = config_of("--config", first, f"--config={second}", "--model.masker.num_layers", "4", "--trainer.seed=5")
    assert config.model.masker == c.RecurrentConfig(hidden_size=20, num_layers=4) and config.trainer.seed == 5


def test_another_choice_starts_from_its_own_defaults(tmp_path):
    file = write(tmp_path / "a.yaml", "objective: {assignment: {name: amcl, temperature: {name: constant, value: 2}}}")
    assert config_of("--config", file).objective.assignment == c.AnnealedMCLConfig(temperature=c.ConstantConfig(2.0))
    temperature = "--objective.assignment.temperature"
    chosen = config_of("--config", file, f"{temperature}.name", "truncated_linear", f"{temperature}.end=7")
    assert chosen.objective.assignment == c.AnnealedMCLConfig(temperature=c.TruncatedLinearConfig(end=7.0))
    # The inner choice is named before the outer one, and still follows it.
    nested = config_of(f"{temperature}.name", "constant", "--objective.assignment.name", "amcl")
    assert nested.objective.assignment == c.AnnealedMCLConfig(temperature=c.ConstantConfig())


@pytest.mark.parametrize(("option", "key"), ALIASES.items())
def test_short_options_mean_their_keys(option, key):
    value = {"trainer.precision": "bf16-mixed", "init_from": "folder"}.get(key, "7")
    short, long = config_of(option, value), config_of(f"--{key}", value)
    assert short == long != c.TrainConfig()


def test_dashes_and_lists():
    found = config_of("--data.dynamic-mixing.noise-snr-db", "[1, 3]", "--data.dynamic_mixing.enabled=true")
    assert found.data.dynamic_mixing.noise_snr_db == (1.0, 3.0) and found.data.dynamic_mixing.enabled


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "conv_tasnot"], ["conv_tasnot", "no such file or shipped", "did you mean model/conv_tasnet?"]),
        (["--model.masker.hidden_size", "9"], ["--model.masker.hidden_size"]),
        (["--model.masker.hidden_channels", "wide"], ["model.masker.hidden_channels", "a whole number", "wide"]),
        (["--trainer.precision", "float"], ["precision", "bf16-mixed", "float"]),
        (["--objective.assignment.name", "pitt"], ["objective.assignment", "pitt", "did you mean pit"]),
    ],
)
def test_mistakes_are_one_line(arguments, words):
    message = complaint(lambda: config_of(*arguments))
    assert not [word for word in words if word not in message]


@pytest.mark.parametrize(
    "text", ["model: [", "model: {maskr: 1}", "- 1", "model: {masker: 3}", "trainer: {seed: x}", "\x00"]
)
def test_bad_files_are_named(tmp_path, text):
    file = write(tmp_path / "bad.yaml", text)
    complaint(lambda: config_of("--config", file), r"bad\.yaml")


def test_every_shipped_name_is_found_and_valid():
    files = sorted(conf_folder().rglob("*.yaml"))
    assert len(files) >= 20
    for file in files:
        assert find_config(file.stem) == file
        assert find_config(str(file.relative_to(conf_folder()).with_suffix(""))) == file
        config_of("--config", file.stem)


def test_merge_leaves_its_input_alone():
    tree = c.to_dict(c.TrainConfig())
    merge(c.TrainConfig, tree, {"model": {"hypotheses": 5}})
    assert tree == c.to_dict(c.TrainConfig())


def test_function_becomes_a_command_line():
    def command(
        inputs: list[str], *, out: Path, speaker_from: str = "first", limit: int | None = None, rttm: bool = False
    ) -> tuple:
        """Does a thing.

        Args:
            inputs: files.
            out: folder.
            speaker_from: rule.
            limit: at most.
            rttm: write it.
        """
        return inputs, out, speaker_from, limit, rttm

    assert call(command, "x", ["a", "b", "--out", "o"]) == (["a", "b"], Path("o"), "first", None, False)
    given = ["a", "--out=o", "--speaker-from", "parent", "--limit", "3", "--rttm"]
    assert call(command, "x", given) == (["a"], Path("o"), "parent", 3, True)
    for bad in (["a"], ["--out", "o"], ["a", "--out", "o", "--limit", "many"], ["a", "--out", "o", "--no"]):
        with pytest.raises(UserError):
            call(command, "x", bad)


def test_a_part_that_is_off_is_switched_on_by_any_of_its_fields(tmp_path):
    assert config_of() == c.TrainConfig() and config_of().model.scoring is None
    assert config_of("--model.scoring.hidden_size", "64").model.scoring == c.ScoringConfig(64)
    assert config_of("--config", write(tmp_path / "a.yaml", "model: {scoring: {}}")).model.scoring == c.ScoringConfig()
    file = write(tmp_path / "b.yaml", "model: {scoring: {hidden_size: 32}}")
    assert config_of("--config", file).model.scoring == c.ScoringConfig(32)
    assert config_of("--config", file, "--model.scoring.hidden_size=16").model.scoring == c.ScoringConfig(16)
    off = write(tmp_path / "c.yaml", "model: {scoring: null}")
    assert config_of("--config", file, "--config", off).model.scoring is None
    for text in ("model: {scoring: 3}", "model: {scoring: {hidden: 3}}"):
        with pytest.raises(UserError, match=r"model\.scoring"):
            config_of("--config", write(tmp_path / "bad.yaml", text))
