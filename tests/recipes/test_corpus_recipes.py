"""The recipes of published corpora run from the download to the report, on small trees in the corpora's own layouts."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sepkit.config import ModelConfig, RecurrentConfig, STFTFilterbankConfig
from sepkit.data import audio
from sepkit.data.manifest import read_manifest
from sepkit.files import write_csv
from sepkit.models import build_model, save_model
from tests.file_server import Server
from tests.noise_voices import talk

TINY = Path(__file__).with_name("tiny.yaml")
RECIPES = ("wsj0-mix", "librimix", "vctk")
# Test sets with separated examples, and the folder of the evaluation, below the experiment.
TEST_SETS = {"wsj0-mix": ["test"], "librimix": ["test_noisy"], "vctk": ["libri2mix", "vctk2mix"]}
EVALUATION = {"wsj0-mix": "test", "librimix": "test_noisy", "vctk": "libri2mix_vctk2mix"}


def write(path: Path, seed: int, seconds: float, sample_rate: int) -> None:
    audio.write(path, talk(seed, seconds, sample_rate), sample_rate, subtype="PCM_16")


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    write_csv(path, list(rows[0]), [row.values() for row in rows])


def pairs_of(utterances: list[str], speaker: Callable[[str], str]) -> list[tuple[str, str]]:
    """Pair utterances of different speakers, each with the next suitable one."""
    return [(a, b) for i, a in enumerate(utterances) for b in utterances[i + 1 :] if speaker(a) != speaker(b)][:6]


def recipe_row(pair: tuple[str, str], noise: str) -> dict[str, str]:
    row = {"mixture_ID": "_".join(Path(path).stem for path in pair)}
    for number, path in enumerate(pair, start=1):
        row |= {f"source_{number}_path": path, f"source_{number}_gain": str(0.8 + 0.1 * number)}
    return row | {"noise_path": noise, "noise_gain": "0.3"}


def make_librispeech(folder: Path, tables: Path) -> None:
    for number, part in enumerate(("train-clean-100", "dev-clean", "test-clean")):
        utterances = []
        for speaker in range(100 * number + 10, 100 * number + 14):
            name = f"{part}/{speaker}/1/{speaker}-1-0000.flac"
            write(folder / "LibriSpeech" / name, speaker, 1.0 + 0.05 * (speaker % 4), 16000)
            utterances.append(name)
        noise = f"{('tr', 'cv', 'tt')[number]}/{number}.wav"
        pairs = pairs_of(utterances, lambda path: path.split("/")[1])
        write_rows(tables / f"libri2mix_{part}.csv", [recipe_row(pair, noise) for pair in pairs])
    # The published folder has a table of a part that is not here.
    row = recipe_row(("train-clean-360/1/1/1-1-0.flac",) * 2, "tr/0.wav")
    write_rows(tables / "libri2mix_train-clean-360.csv", [row])
    (folder / "LibriSpeech" / "SPEAKERS.TXT").write_text("; ID |SEX| SUBSET\n10 | F | train-clean-100 | 25 | Anna\n")


def make_noise(folder: Path) -> None:
    for number, split in enumerate(("tr", "cv", "tt")):
        write(folder / "wham_noise" / split / f"{number}.wav", 90 + number, 1.5, 16000)


def make_vctk(folder: Path, tables: Path) -> None:
    utterances = []
    for speaker in ("p225", "p226", "p227"):
        for take in (1, 2):
            seed = int(speaker[1:]) + 7 * take
            silence = np.zeros(12000, dtype=np.float32)
            path = folder / "VCTK-Corpus" / "wav48" / speaker / f"{speaker}_{take:03d}.wav"
            audio.write(path, np.concatenate([silence, talk(seed, 3.3, 48000)]), 48000, subtype="PCM_16")
            utterances.append(f"wav16_cut/{path.name}")
    pairs = pairs_of(utterances, lambda path: Path(path).name.split("_")[0])
    write_rows(tables / "VCTK2mix_VCTK_md.csv", [recipe_row(pair, "tt/2.wav") for pair in pairs])


def make_wsj0(folder: Path, lists: Path) -> None:
    (lists / "activlev").mkdir(parents=True)
    for number, (condition, part) in enumerate((("tr", "si_tr_s"), ("cv", "si_tr_s"), ("tt", "si_dt_05"))):
        paths = []
        for speaker in (f"{10 * (number > 1) + s + 11:03d}" for s in range(4)):
            take = f"{speaker}{'ocao'[number]}0101"
            path = f"wsj0/{part}/{speaker}/{take}.wav"
            write(folder / path, int(speaker) + 40 * number, 1.0 + 0.1 * (int(speaker) % 3), 16000)
            paths.append(path)
        # Its rhythm never pauses: the active level is the mean square.
        levels = [f"{Path(path).stem} {np.mean(audio.read(folder / path) ** 2)}\n" for path in paths]
        (lists / "activlev" / f"activlev_{condition}.txt").write_text("".join(levels))
        pairs = pairs_of(paths, lambda path: path.split("/")[2])
        lines = [f"{a} {0.4 * k} {b} {-0.4 * k}\n" for k, (a, b) in enumerate(pairs, start=1)]
        (lists / f"mix_2_spk_{condition}.txt").write_text("".join(lines))


class Corpora:
    """The corpora as a mirror serves them.

    Args:
        fetching: options of recipes that fetch from the mirror.
        wsj0: folder of what cannot be fetched.
        folder: of what the archives hold.
    """

    def __init__(self, folder: Path) -> None:
        mirror, self.folder = folder / "mirror", folder / "trees"
        mirror.mkdir()
        names = ("LibriMix", "VCTK-2Mix", "pywsj0-mix")
        repositories = {name: self.folder / f"{name}-0123abc" / "metadata" for name in names}
        make_librispeech(self.folder, repositories["LibriMix"] / "Libri2Mix")
        make_noise(self.folder)
        make_vctk(self.folder, repositories["VCTK-2Mix"] / "VCTK-2mix")
        make_wsj0(self.folder, repositories["pywsj0-mix"])
        for part in ("train-clean-100", "dev-clean", "test-clean"):
            shutil.make_archive(str(mirror / part), "gztar", self.folder, f"LibriSpeech/{part}")
        for name in ("wham_noise", "VCTK-Corpus"):
            shutil.make_archive(str(mirror / name), "zip", self.folder, name)
        for name in repositories:
            shutil.make_archive(str(mirror / name), "gztar", self.folder, f"{name}-0123abc")
        self.wsj0 = self.folder / "wsj0"
        checksums = folder / "md5sum.txt"
        sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in sorted(mirror.iterdir())}
        checksums.write_text("".join(f"{value}  {name}\n" for name, value in sums.items()))

        self.server = Server()
        for path in mirror.iterdir():
            self.server.put(path.name, path.read_bytes())
        self.fetching = ["--mirror", self.server.url, "--checksums", str(checksums)]


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpora]:
    made = Corpora(tmp_path_factory.mktemp("corpora"))
    yield made
    made.server.close()


@pytest.fixture
def command(repository: Path, corpora: Corpora, tmp_path: Path) -> Callable[..., list[str]]:
    """recipe, further options -> the command that runs it at tiny size below tmp_path."""

    def make(recipe: str, *options: str) -> list[str]:
        own = {
            "wsj0-mix": ["--wsj0", str(corpora.wsj0), "--assignment", "amcl"],
            "librimix": ["--task", "noisy", "--hypotheses", "3", "--assignment", "mcl"],
            "vctk": ["--libri-data", str(tmp_path / "libri")],
        }[recipe]
        places = ["--conf", str(TINY), "--data", str(tmp_path / "data"), "--exp", str(tmp_path / "exp")]
        fetched = ["--cache", str(tmp_path / "cache"), *corpora.fetching, "--evaluate-options", "--metrics si_sdr"]
        return [str(repository / "egs" / recipe / "run.sh"), *own, *places, *fetched, *options]

    return make


def assert_complete(recipe: str, folder: Path) -> None:
    summary = json.loads((folder / "exp" / "evaluation" / EVALUATION[recipe] / "summary.json").read_text())
    manifests = [folder / "data" / ("test_noisy.jsonl" if recipe == "librimix" else "test.jsonl")]
    manifests += [folder / "libri" / "test.jsonl"] if recipe == "vctk" else []
    assert summary["n_utterances"] == sum(len(read_manifest(path)) for path in manifests) == 6 * len(manifests)
    assert summary["n_skipped"] == 0 and np.isfinite(summary["metrics"]["si_sdri_db"]["mean"])
    # Other options of evaluation do not replace that of benchmarks.
    assert "--whole-seconds inf --metrics si_sdr" in summary["command"]
    for name in TEST_SETS[recipe]:
        examples = folder / "exp" / "examples" / name
        assert len(list((examples / "estimates").rglob("*_s2.wav"))) == len(list((examples / "mix").glob("*.wav"))) == 5
    report = (folder / "exp" / "report.html").read_text(encoding="utf-8")
    assert "<audio" in report and 'id="training"' in report
    assert not [path for path in folder.rglob(".*") if path.is_file() and path.suffix == ".tmp"]
    assert not [path for path in folder.rglob("*") if path.suffix == ".part" or path.name.endswith(".unpacking")]


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_runs_from_download_to_report(recipe, command, tmp_path, run) -> None:
    stages = re.findall(r"^stage (\d)", run(command(recipe)), re.MULTILINE)
    assert stages[0] == "0" and sorted(set(stages)) == list("012345")
    assert_complete(recipe, tmp_path)
    config = (tmp_path / "exp" / "config.yaml").read_text()
    assert {"wsj0-mix": "name: amcl", "librimix": "hypotheses: 3", "vctk": "name: pit"}[recipe] in config


def test_unseen_corpus_alone_with_a_model_that_is_there(command, tmp_path, run) -> None:
    masker = RecurrentConfig(rnn="gru", hidden_size=8, num_layers=1)
    save_model(build_model(ModelConfig(filterbank=STFTFilterbankConfig(512, 256), masker=masker)), tmp_path / "model")
    run([*command("vctk", "--model", str(tmp_path / "model")), "--exp", str(tmp_path / "measured")])
    summary = json.loads((tmp_path / "measured" / "evaluation" / "vctk2mix" / "summary.json").read_text())
    assert summary["n_utterances"] == 6 and not (tmp_path / "measured" / "model").exists()
    assert not (tmp_path / "libri").exists() and (tmp_path / "measured" / "report.html").is_file()


def test_corpora_that_are_here_are_not_fetched(command, corpora, tmp_path, run) -> None:
    tables = corpora.folder / "LibriMix-0123abc" / "metadata" / "Libri2Mix"
    here = ["--librispeech", str(corpora.folder / "LibriSpeech"), "--wham-noise", str(corpora.folder / "wham_noise")]
    run(command("librimix", *here, "--metadata", str(tables), "--stop-stage", "1"))
    assert not (tmp_path / "cache").exists()
    assert len(read_manifest(tmp_path / "data" / "train_noisy.jsonl")) == 6


def test_licensed_speech_is_asked_for(repository, corpora, tmp_path, environment) -> None:
    path = str(repository / "egs" / "wsj0-mix" / "run.sh")
    for stage in ("0", "1"):
        done = subprocess.run(
            [path, "--cache", str(tmp_path), *corpora.fetching, "--stage", stage],
            capture_output=True, text=True, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode == 2 and "LDC93S6A" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert (tmp_path / "pywsj0-mix" / "metadata" / "mix_2_spk_tr.txt").is_file()


def test_parts_without_a_table_are_told(command, corpora, tmp_path, run, environment) -> None:
    run(command("librimix", "--stop-stage", "0"))
    arguments = command("librimix", "--stage", "1", "--parts", "train-clean-100 train-dirty")
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2 and "libri2mix_train-dirty.csv: no such table" in done.stderr
