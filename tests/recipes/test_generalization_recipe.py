"""The comparison of twins: what it prepares, what it trains, its run from first to last stage, and what it refuses."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from sepkit.cli._configuration import parse_config
from sepkit.config import ConstantConfig, RateConfig, TrainConfig, to_dict
from sepkit.data import audio
from sepkit.data.manifest import read_manifest
from sepkit.models import EncoderMaskerDecoder, build_model
from sepkit.training.run import _flatten
from tests.noise_voices import RATE, talk

TINY = Path(__file__).with_name("tiny.yaml")
TEST_SETS = [f"test_{corpus}_{task}" for corpus in ("seen", "unseen") for task in ("noisy", "clean")]
RUNS = ["deterministic_seed0", "variational_seed0"]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """speech/SPLIT/SPEAKER/TAKE.flac of speakers a.. and b.., and noise/SPLIT/0.flac."""
    folder = tmp_path_factory.mktemp("recordings")
    for number, split in enumerate(("train", "dev", "test")):
        for speaker, name in enumerate(("a0", "a1", "a2", "b0", "b1")):
            for take in range(6):
                path = folder / "speech" / split / f"{name}{number}" / f"{take}.flac"
                audio.write(path, talk(100 * number + 10 * speaker + take, 1.1), RATE, subtype="PCM_16")
        audio.write(folder / "noise" / split / "0.flac", talk(1000 + number, 2.0), RATE, subtype="PCM_16")
    return folder


@pytest.fixture
def command(repository: Path, recordings: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """further options -> the command that compares tiny twins below tmp_path."""
    conf = tmp_path / "conf" / "tiny.yaml"
    conf.parent.mkdir()
    shutil.copy(TINY, conf)
    for method in ("deterministic", "variational"):
        own = repository / "egs" / "generalization" / "conf" / f"cpu_{method}.yaml"
        shutil.copy(own, conf.with_name(f"tiny_{method}.yaml"))

    def make(*options: str) -> list[str]:
        return [
            str(repository / "egs" / "generalization" / "run.sh"), "--speech", str(recordings / "speech"),
            "--noise", str(recordings / "noise"), "--groups", "seen=a.* unseen=b.*", "--conf", str(conf),
            "--seeds", "0",
            "--prepare-options", "--train-mixtures 12 --dev-mixtures 28 --test-mixtures 1 --segment-seconds 1",
            "--extra", "--trainer.max_epochs 1", "--calibrate-options", "--device cpu --views 1",
            "--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp"), *options,
        ]  # fmt: skip

    return make


def speakers_of(path: Path) -> set[str]:
    return {source.speaker for entry in read_manifest(path) for source in entry.sources}


def trained_with(log: Path) -> list[str]:
    """The options of the `sepkit train` that a dry run wrote into its log."""
    return log.read_text().split("sepkit train ")[1].split()


def parse(options: list[str]) -> TrainConfig:
    more = {"aliases": {"--seed": "trainer.seed"}, "add_options": lambda p: p.add("--out")}
    return parse_config("sepkit train", "", options, **more)[0]


def differences(first: TrainConfig, second: TrainConfig) -> set[str]:
    a, b = _flatten(to_dict(first)), _flatten(to_dict(second))
    return {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}


def parameters(model: EncoderMaskerDecoder) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def dry(repository: Path, run: Callable[..., str], tmp_path: Path) -> Callable[..., dict[str, TrainConfig]]:
    """dry(options) -> run -> what it would train with."""

    def make(*options: str) -> dict[str, TrainConfig]:
        exp, recipe = tmp_path / "dry", str(repository / "egs" / "generalization" / "run.sh")
        places = ["--stage", "2", "--stop-stage", "2", "--data", str(tmp_path), "--exp", str(exp)]
        run([recipe, *options, *places], train_cmd="echo")
        return {path.stem: parse(trained_with(path)) for path in sorted(exp.glob("*.log"))}

    return make


def test_from_first_to_last_stage(command: Callable[..., list[str]], run: Callable[..., str], tmp_path: Path) -> None:
    assert re.findall(r"^stage (\d)", run(command()), re.MULTILINE) == ["1", "2", "3", "4", "5", "6"]
    exp = tmp_path / "exp"
    assert sorted(path.name for path in exp.iterdir() if path.is_dir()) == RUNS
    for name in RUNS:
        assert (exp / name / "model" / "quality.yaml").is_file()
        for test_set in TEST_SETS:
            summary = json.loads((exp / name / "evaluation" / test_set / "summary.json").read_text())
            assert summary["n_utterances"] == 1 and summary["n_skipped"] == 0
            for metric in ("si_sdri_db", "blr_nats_per_sample"):
                assert np.isfinite(summary["metrics"][metric]["mean"])
            assert "calibration" in summary
    table = (exp / "table.md").read_text()
    assert all(f"### {test_set}\n" in table for test_set in TEST_SETS) and "| variational |" in table
    drops = re.findall(r"drop (\w+) to (\w+)", table)
    assert set(drops) == {(f"test_seen_{task}", f"test_unseen_{task}") for task in ("noisy", "clean")}
    assert "<audio" in (exp / "report.html").read_text(encoding="utf-8")


def test_trains_on_one_corpus_and_tests_noisy_and_clean(command, run, tmp_path) -> None:
    run(command("--stop-stage", "1"))
    data = tmp_path / "data"
    for name in ("train", "dev"):
        assert {speaker[0] for speaker in speakers_of(data / f"{name}.jsonl")} == {"a"}
        assert all(entry.noise is not None for entry in read_manifest(data / f"{name}.jsonl"))
    for corpus, first in (("seen", "a"), ("unseen", "b")):
        noisy, clean = (read_manifest(data / f"test_{corpus}_{task}.jsonl") for task in ("noisy", "clean"))
        assert {speaker[0] for speaker in speakers_of(noisy.path)} == {first}
        assert [entry.id for entry in noisy] == [entry.id for entry in clean] and len(noisy) == 1
        assert [entry.sources for entry in noisy] == [entry.sources for entry in clean]
        assert all(entry.noise is not None for entry in noisy) and all(entry.noise is None for entry in clean)


def test_twins_on_a_cpu_differ_in_their_latents_and_objective_alone(dry: Callable[..., dict[str, TrainConfig]]) -> None:
    configs = dry()
    methods = ("deterministic", "deterministic_blr", "variational")
    assert set(configs) == {f"{m}_seed{s}" for m in methods for s in (0, 1, 2)}
    assert {config.trainer.seed for config in configs.values()} == {0, 1, 2}
    plain, variational = (configs[name] for name in RUNS)
    own = ("model.encoding.", "model.masks.", "model.filterbank.deviation", "model.filterbank.initial_deviation")
    assert all(key.startswith((*own, "objective.")) for key in differences(plain, variational))
    # The third twin separates cost from latents.
    of_cost = differences(plain, configs["deterministic_blr_seed0"])
    assert of_cost and all(key.startswith("objective.cost.") for key in of_cost)
    assert configs["deterministic_blr_seed0"].objective.cost == variational.objective.cost
    models = [build_model(config.model) for config in (plain, variational)]
    assert [model.mask_family.variational for model in models] == [False, True]
    shapes = [{name: p.shape for name, p in model.named_parameters() if ".output." not in name} for model in models]
    # But for the heads: the masker's last layer, and one deviation a bin.
    assert all(shapes[1][name] == shape for name, shape in shapes[0].items())
    assert sum(shapes[1][name].numel() for name in shapes[1].keys() - shapes[0].keys()) == 512 // 2 + 1


def test_models_of_the_thesis(dry: Callable[..., dict[str, TrainConfig]]) -> None:
    configs = dry("--conf", "conf/gpu.yaml", "--seeds", "0", "--extra", "--trainer.max_minutes 10")
    models = {name.removesuffix("_seed0"): build_model(config.model) for name, config in configs.items()}
    assert set(models) == {"deterministic_tasnet", "vi_tasnet", "deterministic_sudormrf", "vi_sudormrf"}
    assert parameters(models["deterministic_tasnet"]) == 5_050_545 and parameters(models["vi_tasnet"]) == 5_190_833
    # Another masker between the same encoder and decoder.
    banks = [models[f"deterministic_{masker}"].filterbank.state_dict() for masker in ("sudormrf", "tasnet")]
    assert banks[0].keys() == banks[1].keys()
    for name, config in configs.items():
        tree = _flatten(to_dict(config))
        # Torch's scheduler with a patience of 50 halves at the 51st validation.
        assert tree["trainer.learning_rate"] == 3e-4 and tree["trainer.halve_patience"] == 51
        assert tree["data.batch_size"] == 16 and tree["data.segment_seconds"] == 3.0
        assert tree["trainer.max_minutes"] == 10 and tree["model.filterbank.init_range"] == 0.01
        assert tree["objective.margin_weight"] == 1.0
        is_variational = models[name[:-6]].mask_family.variational
        assert (tree["objective.cost.name"] == "blr_nll") == name.startswith("vi_") == is_variational
        if name.startswith("vi_"):
            assert tree["objective.rates.steering.total"] == 256 and tree["objective.rates.steering.per"] == "frame"
            assert tree["objective.rates.steering.change"] == 1e-4
    for twin in ("tasnet", "sudormrf"):
        changed = differences(configs[f"deterministic_{twin}_seed0"], configs[f"vi_{twin}_seed0"])
        assert all(key.startswith(("model.encoding.", "model.masks.", "objective.")) for key in changed)


def test_rows_of_table_3(dry: Callable[..., dict[str, TrainConfig]]) -> None:
    """Encoding, prior and likelihood of every row; parameters as the thesis counts them."""
    rows = {
        "tasnet": ("deterministic", "standard", "deterministic", "neg_si_sdr"),
        "tasnet_blr": ("deterministic", "standard", "deterministic", "blr_nll"),
        "gaussian": ("gaussian", "standard", "beta", "blr_nll"),
        "gamma": ("gamma", "standard", "beta", "blr_nll"),
        "flow": ("gaussian", "flow", "beta", "blr_nll"),
        "adaptive": ("gamma", "adaptive", "beta", "blr_nll"),
        "cauchy": ("gamma", "standard", "beta", "cauchy_nll"),
    }
    configs = dry("--conf", "conf/table3.yaml", "--task", "clean", "--seeds", "0")
    assert set(configs) == {f"{name}_seed0" for name in rows}
    for name, expected in rows.items():
        tree = _flatten(to_dict(configs[f"{name}_seed0"]))
        keys = ("model.encoding.name", "model.encoding_prior.name", "model.masks.name", "objective.cost.name")
        assert tuple(tree[key] for key in keys) == expected
        assert tree["model.filterbank.init_range"] == 0.01 and tree["objective.margin_weight"] == 1.0
        assert tree["data.train"].endswith("/train.jsonl") and "noisy" not in tree["data.train"]
        if expected[0] != "deterministic":
            assert [tree[f"objective.rates.{what}.free_nats"] for what in ("encoding", "masks")] == [128, 256]
            assert tree["objective.rates.estimator"] == "sample"
        auto = [tree[f"objective.autoencoding.{what}"] for what in ("sources", "mixtures")]
        assert auto == [float(name == "adaptive")] * 2
        assert tree["model.estimate_scales"] == (name == "cauchy")
    assert parameters(build_model(configs["tasnet_seed0"].model)) == 5_050_545
    # One more kernel of the encoder, and a second value for every mask (thesis, appendix J).
    assert parameters(build_model(configs["gaussian_seed0"].model)) == 5_190_833


def test_rows_of_table_2(dry: Callable[..., dict[str, TrainConfig]]) -> None:
    """A row's name says which parts are free and what the rates weigh."""
    configs = dry("--conf", "conf/table2.yaml", "--task", "clean", "--seeds", "0")
    assert len(configs) == 9
    rates = configs["free128_beta8_128_seed0"].objective.rates
    assert rates.encoding == RateConfig(ConstantConfig(1 / 8), 128.0, "frame")
    assert rates.masks == RateConfig(ConstantConfig(1 / 128), 256.0, "frame")
    rates = configs["free64_beta1_seed0"].objective.rates
    assert (rates.encoding.free_nats, rates.masks.free_nats, rates.masks.weight) == (64.0, 128.0, ConstantConfig(1.0))
    assert {config.model.encoding.name for config in configs.values()} == {"gamma"}


@pytest.mark.slow
def test_trains_and_tests_clean_and_draws_the_evidence(command, run, tmp_path) -> None:
    """Rows 4 and 6 of table 3, tiny: without noise from the first to the last stage, with figure 3."""
    folder = tmp_path / "conf"
    conf = Path(__file__).resolve().parents[2] / "egs" / "generalization" / "conf"
    tiny = yaml.safe_load((folder / "tiny.yaml").read_text())
    tiny["model"] = {
        "filterbank": {"name": "free", "num_filters": 16},
        "masker": {"name": "recurrent", "rnn": "gru", "hidden_size": 4, "num_layers": 1},
    }
    tiny["data"]["min_seconds"] = 0
    (folder / "table3.yaml").write_text(yaml.safe_dump(tiny))
    for row in ("gamma", "adaptive"):
        shutil.copy(conf / f"table3_{row}.yaml", folder)
    options = ["--task", "clean", "--noise", "", "--conf", str(folder / "table3.yaml")]
    # One mixture makes no correlation of the evidence with the score.
    options += ["--prepare-options", "--train-mixtures 12 --dev-mixtures 28 --test-mixtures 3 --segment-seconds 1"]
    output = run(command(*options, "--methods", "gamma adaptive"))
    assert re.findall(r"^stage (\d)", output, re.MULTILINE) == ["1", "2", "3", "4", "5", "6"]
    assert all(entry.noise is None for entry in read_manifest(tmp_path / "data" / "train.jsonl"))
    exp = tmp_path / "exp"
    evaluated = {path.name for path in (exp / "adaptive_seed0" / "evaluation").iterdir()}
    assert evaluated == {"test_seen_clean", "test_unseen_clean"}
    evidence = (exp / "evidence.md").read_text()
    assert evidence.count("| adaptive_seed0 |") == evidence.count("| gamma_seed0 |") == 2
    assert (exp / "evidence_evidence.png").is_file()
    assert "drop test_seen_clean to test_unseen_clean" in (exp / "table.md").read_text()


def test_manifests_of_published_corpora(command, run, repository, environment, tmp_path) -> None:
    run(command("--stop-stage", "1"))
    data = tmp_path / "data"
    libri, vctk, exp = tmp_path / "libri", tmp_path / "vctk", tmp_path / "published"
    options = ["--librimix", str(libri), "--vctk", str(vctk), "--conf", str(tmp_path / "conf" / "tiny.yaml")]
    options += ["--seeds", "0", "--exp", str(exp), "--stop-stage", "4"]
    arguments = [str(repository / "egs" / "generalization" / "run.sh"), *options]
    for folder, corpus in ((libri, "seen"), (vctk, "unseen")):
        folder.mkdir()
        shutil.copy(data / f"test_{corpus}_noisy.jsonl", folder / "test_noisy.jsonl")
        shutil.copy(data / f"test_{corpus}_clean.jsonl", folder / "test.jsonl")
    shutil.copy(data / "train.jsonl", libri / "train_noisy.jsonl")
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"{libri}/dev_noisy.jsonl: no such manifest" in done.stderr
    shutil.copy(data / "dev.jsonl", libri / "dev_noisy.jsonl")
    subprocess.run(arguments, env=environment | {"train_cmd": "echo", "decode_cmd": "echo"}, check=True)
    for name in RUNS:
        log = (exp / f"{name}.log").read_text()
        assert f"--data.train {libri}/train_noisy.jsonl --data.dev {libri}/dev_noisy.jsonl" in log
        assert f"sepkit calibrate {exp}/{name}/model --manifest {libri}/dev_noisy.jsonl" in log
        assert dict(re.findall(r"--manifest (\S+) --metrics si_sdr blr .*--out \S+/evaluation/(\S+)", log)) == {
            f"{libri}/test_noisy.jsonl": "test_libri2mix_noisy",
            f"{libri}/test.jsonl": "test_libri2mix_clean",
            f"{vctk}/test_noisy.jsonl": "test_vctk2mix_noisy",
            f"{vctk}/test.jsonl": "test_vctk2mix_clean",
        }


def test_a_run_that_fails_ends_the_recipe_with_the_end_of_its_log(command, environment, tmp_path) -> None:
    (tmp_path / "conf" / "tiny_deterministic.yaml").write_text(yaml.safe_dump({"model": {"hypotheses": "many"}}))
    done = subprocess.run(command("--stage", "2"), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "many" in done.stderr and "deterministic_seed0.log" in done.stderr
    assert "stage 3" not in done.stdout
