"""Fixtures for all tests: the folder of real recordings, tiny configurations, and a tiny corpus."""

import gc
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

# Before anything imports torch: tests run in several processes, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

# Whoever starts the tests with nohup ignores SIGHUP, and so would the commands that tests send it to.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import numpy as np
import pytest

from sepkit import registry
from sepkit.choices import Choice
from sepkit.cli.main import main
from sepkit.config import FreeFilterbankConfig, ModelConfig, RecurrentConfig
from sepkit.data import audio
from sepkit.data.manifest import MixtureEntry, SourceEntry, write_manifest
from tests.file_server import Server

REPOSITORY = Path(__file__).resolve().parent.parent

# Tests need not survive a power cut. tests/test_files.py records the calls, and checks what is synced and when.
os.fsync = lambda descriptor: None


def pytest_collection_finish() -> None:
    """Leave what the modules made to no collection of garbage, and collect the oldest generation a tenth as often.

    Each such collection goes through all objects of all libraries; together they took a fifteenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)


@pytest.fixture(autouse=True)
def _no_deferred_speechbrain_modules() -> Iterator[None]:
    """Hypothesis touches every module in sys.modules, and those that speechbrain defers fail when touched."""
    yield
    if "speechbrain" in sys.modules:
        for name, module in list(sys.modules.items()):
            if type(module).__module__ == "speechbrain.utils.importutils":
                del sys.modules[name]


class _Reversed(AbstractContextManager[Any]):
    """Entries of a folder as `os.scandir` gives them, in an order that no file system promises: the last name first."""

    def __init__(self, entries: Any) -> None:
        with entries:
            self.entries = iter(sorted(entries, key=lambda entry: entry.name, reverse=True))

    def __iter__(self) -> Iterator[Any]:
        return self.entries

    def __next__(self) -> Any:
        return next(self.entries)

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture(autouse=True)
def _folders_from_the_last_name_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    scandir, listdir = os.scandir, os.listdir
    monkeypatch.setattr(os, "scandir", lambda *path: _Reversed(scandir(*path)))
    monkeypatch.setattr(os, "listdir", lambda *path: sorted(listdir(*path), reverse=True))


@pytest.fixture
def own_choices_forgotten() -> Iterator[None]:
    """What a test registers, as `--import FILE` does, is unknown to the tests after it."""
    kinds = [kind for kind in Choice.__subclasses__() if "choices" in vars(kind)]
    registered = [*(kind.choices for kind in kinds), registry._builders, registry._imported]
    before = [dict(entries) for entries in registered]
    yield
    for entries, earlier in zip(registered, before, strict=True):
        for name in entries.keys() - earlier.keys():
            # Modules of sepkit that a test was the first to import register once, some a partial for a configuration.
            if not any(getattr(one, "__module__", "").startswith("sepkit.") for one in (name, entries[name])):
                del entries[name]
        entries.update(earlier)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real recordings (speech_mini, noise_mini, ...): the variable SEPKIT_DATA, or ../shared/data."""
    folder = Path(os.environ.get("SEPKIT_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"{folder}: no such folder; set SEPKIT_DATA to the folder that contains speech_mini and noise_mini")
    return folder


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was skipped and why, in one table: tests that a machine lacks something for are easily forgotten."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("skipped")
        for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])):
            terminalreporter.write_line(f"{count:5} tests  {reason}")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[object]], str]:
    """refused(words) -> the one line that the command says on standard error, with exit code 2."""

    def line_of(words: Sequence[object]) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        return error

    return line_of


@pytest.fixture
def server() -> Iterator[Server]:
    """A local web server without files."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def tiny_model_config() -> ModelConfig:
    """A separator of a few thousand parameters at 8 kHz."""
    filterbank = FreeFilterbankConfig(num_filters=16, kernel_size=16, stride=8)
    return ModelConfig(filterbank=filterbank, masker=RecurrentConfig(hidden_size=8, num_layers=1))


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[object]], str]:
    """printed(words) -> what the command says on standard output, with exit code 0."""

    def output_of(words: Sequence[object]) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return output_of


# A corpus of a few mixtures of noise, and separators whose scores are known.

RATE = 8000
LENGTH = 4000


class Corpus:
    """Mixtures of two colored noises that overlap in part: their manifest, and the sources by mixture identifier."""

    def __init__(self, folder: Path, count: int = 5, seed: int = 0, prefix: str = "mix") -> None:
        generator = np.random.default_rng(seed)
        self.sources: dict[str, np.ndarray] = {}
        self.entries: list[MixtureEntry] = []
        for number in range(count):
            name = f"{prefix}{number}"
            sources = np.cumsum(generator.standard_normal((2, LENGTH)), axis=1).astype(np.float32) / 200
            # The second comes later, and in a file whose ending is upper-case.
            sources[1, : LENGTH // 10] = 0
            sources -= sources.mean(1, keepdims=True)
            self.sources[name] = sources
            paths = [f"wav/{name}_0.wav", f"wav/{name}_1.WAV"]
            for path, source in zip(paths, sources, strict=True):
                audio.write(folder / path, source, RATE)
            parts = [SourceEntry(path=path, speaker=f"{name}{j}") for j, path in enumerate(paths)]
            self.entries.append(MixtureEntry(name, RATE, LENGTH, sources=parts, corpus="noise"))
        self.folder = folder
        self.manifest = write_manifest(folder / "test.jsonl", self.entries)

    def separator(self, noise: float = 0.1, extra_hypotheses: int = 0) -> "KnownSeparator":
        """Return a separator that gives the sources in reverse order, plus a share of the mixture."""
        return KnownSeparator(self, noise, extra_hypotheses)

    def rewrite(self) -> None:
        """Write the manifest again after the entries were changed."""
        write_manifest(self.manifest, self.entries)


class KnownSeparator:
    """Recognizes a mixture and gives its sources, reversed, with `noise` times the mixture in each."""

    def __init__(self, corpus: Corpus, noise: float, extra_hypotheses: int) -> None:
        self.corpus, self.noise, self.extra_hypotheses = corpus, noise, extra_hypotheses
        self.calls = 0

    def __call__(self, mixture: np.ndarray, sample_rate: int) -> np.ndarray:
        assert sample_rate == RATE
        self.calls += 1
        known = self.corpus.sources.values()
        sources = min(known, key=lambda sources: np.abs(sources.sum(0)[: len(mixture)] - mixture).sum())
        return np.stack([*[mixture] * self.extra_hypotheses, *(sources[::-1] + self.noise * mixture)])


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Five mixtures."""
    return Corpus(tmp_path / "corpus")


@pytest.fixture
def make_corpus() -> type[Corpus]:
    """Makes a corpus in a folder, of `count` mixtures."""
    return Corpus


@pytest.fixture(scope="session")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two experiment folders with logs, configurations, and evaluations of one manifest by estimates on disk."""
    from sepkit.evaluation.evaluate import EvaluationOptions, evaluate

    home = tmp_path_factory.mktemp("experiments")
    corpus = Corpus(home / "corpus", count=30)
    for number, entry in enumerate(corpus.entries):
        for source, sex in zip(entry.sources, ("F", "FM"[number % 2]), strict=True):
            source.sex = sex
    corpus.rewrite()
    folders = []
    for name, noise in (("first", 0.2), ("second <b>", 0.1)):
        folder = home / name
        separator = corpus.separator(noise, extra_hypotheses=1)
        for number, entry in enumerate(corpus.entries):
            # Later mixtures are harder, so that there are a worst and a best one.
            separator.noise = noise * (1 + number / 10)
            for k, estimate in enumerate(separator(corpus.sources[entry.id].sum(0), RATE)):
                audio.write(folder / "estimates" / f"{entry.id}_s{k + 1}.wav", estimate, RATE)
        out = folder / "evaluation" / "noise"
        evaluate(folder / "estimates", [corpus.manifest], out, EvaluationOptions(("si_sdr",)))
        (folder / "config.yaml").write_text(f"model: {{hypotheses: 3, noise: {noise}}}\n")
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in training_records()))
        folders.append(folder)
    (folders[0] / "evaluation" / "noise" / "rate_distortion.csv").write_text(
        "rate_nats_per_dimension,blr_nll_nats_per_sample,si_sdr_db\n1.25,-1.5,8\n0.5,-1.25,9\n"
    )
    return folders


def training_records() -> list[dict[str, object]]:
    """Three epochs as `sepkit train` writes them, with the entropy and temperature of an annealed assignment."""
    records: list[dict[str, object]] = []
    for epoch in range(1, 4):
        step = {"kind": "step", "epoch": epoch, "step": 100 * epoch - 50, "train_loss": -epoch, "gradient_norm": None}
        values = {"train_loss": -epoch, "dev_loss": -epoch, "dev_si_sdr_db": epoch, "learning_rate": 0.001}
        annealing = {"temperature": 1 / epoch, "train_entropy": 0.1 * epoch}
        records += [step, {"kind": "epoch", "epoch": epoch, "step": 100 * epoch} | values | annealing]
    return records
