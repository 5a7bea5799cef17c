"""The project around the code: how fast it starts, what it ships, and that its documents tell the truth."""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from sepkit import __version__
from sepkit.cli.main import COMMANDS, main
from sepkit.config import ModelConfig
from sepkit.data import audio
from tools.site import generated_pages

REPOSITORY = Path(__file__).resolve().parent.parent
# Configurations of other commands than `sepkit train`; tests/recipes runs them.
SIMULATIONS = {
    REPOSITORY / "egs" / recipe / "conf" / f"{name}.yaml"
    for recipe in ("annealed_vi", "cclvq", "quantization", "uci")
    for name in ("cpu", "paper")
} | {REPOSITORY / "egs" / "cclvq" / "conf" / "gpu.yaml"}
CONFIGURATIONS = sorted({*REPOSITORY.glob("conf/**/*.yaml"), *REPOSITORY.glob("egs/*/conf/*.yaml")} - SIMULATIONS)
TINY_MODEL = {"filterbank": {"name": "free", "num_filters": 16}, "masker": {"name": "recurrent", "hidden_size": 8}}


def _run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{shlex.join(done.args)}\n{done.stdout}\n{done.stderr}"
    return done


# ------------------------------------------------------------------------------------------------------------ start-up


def test_import_is_quick_and_without_torch() -> None:
    def seconds() -> float:
        done = _run(sys.executable, "-X", "importtime", "-c", "import sepkit")
        return int(done.stderr.strip().split("\n")[-1].split("|")[1]) / 1e6

    assert _fastest(seconds, 0.1) < 0.1
    _run(sys.executable, "-c", "import sepkit, sys; assert not {'torch', 'numpy'} & set(sys.modules)")


@pytest.mark.parametrize("arguments", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_takes_less_than_a_second(arguments: list[str]) -> None:
    def seconds() -> float:
        # Processor time, so that other work on the machine counts little.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "usage" in _run(sys.executable, "-m", "sepkit", *arguments).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert _fastest(seconds, 1.0) < 1.0


def _fastest(seconds: Callable[[], float], limit: float) -> float:
    """The first time below the limit, or else the least of five."""
    times: list[float] = []
    while len(times) < 5 and not (times and times[-1] < limit):
        times.append(seconds())
    return min(times)


def test_help_does_not_import_torch() -> None:
    script = "import sys\nfrom sepkit.cli.main import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass\n"
    _run(sys.executable, "-c", script + "assert not {'torch', 'numpy', 'scipy', 'lightning'} & set(sys.modules)")


# ---------------------------------------------------------------------------------------------------------- the checks


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        ["lint-imports"],
        pytest.param(["pyright"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_check(command: list[str]) -> None:
    folder = Path(sys.executable).parent
    program = folder / command[0]
    if not program.exists():
        pytest.skip(f"{command[0]} is not installed; pip install 'sepkit[dev]'")
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    _run(program, *command[1:], cwd=REPOSITORY, env=environment)


def test_versions_agree() -> None:
    assert yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["version"] == __version__


def test_every_dependency_is_pinned() -> None:
    pinned = {
        _canonical(re.split(r"[=; ]", line)[0])
        for line in (REPOSITORY / "tools" / "constraints.txt").read_text().split("\n")
        if line
    }
    required = {_canonical(re.split(r"[^\w.-]", line)[0]) for line in importlib.metadata.requires("sepkit") or []}
    assert {"torch", "asteroid", "pesq", "ruff", "zuko", "docstring-parser", "uv"} <= required
    assert required - {"sepkit"} <= pinned


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_nothing_names_a_path_of_somebodys_machine() -> None:
    files = _run("git", "ls-files", cwd=REPOSITORY).stdout.split()
    homes = re.compile(rb"(?<![\w.])/(home|root|Users|work|mnt)/\w")
    found = [name for name in files if homes.search((REPOSITORY / name).read_bytes())]
    assert not found


def test_make_targets_exist_and_continuous_integration_has_nothing_of_its_own() -> None:
    for target in ("demo", "test", "lint", "bench"):
        assert _run("make", "--dry-run", target, cwd=REPOSITORY).stdout
    commands = (REPOSITORY / ".ci" / "run").read_text().split("\n")[1:]
    assert [line for line in commands if line and not line.startswith(("set ", "cd "))] == ["exec make test"]


# ----------------------------------------------------------------------------------------------------------- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, REPOSITORY)
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_its_configurations_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    shipped = {f"sepkit/{path.relative_to(REPOSITORY)}" for path in REPOSITORY.glob("conf/**/*.yaml")}
    assert shipped and shipped <= set(names)
    assert {"sepkit/__init__.py", "sepkit/py.typed"} <= set(names)
    assert any(name.endswith("licenses/NOTICE") for name in names)
    assert all(name.startswith(("sepkit/", f"sepkit-{__version__}.dist-info/")) for name in names)


def test_the_wheel_finds_configurations_by_name(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    script = "from sepkit.cli._configuration import find_config; print(find_config('recurrent_stft'))"
    found = _run(sys.executable, "-c", script, cwd=tmp_path, env=environment).stdout.strip()
    assert found == str(tmp_path / "site" / "sepkit" / "conf" / "model" / "recurrent_stft.yaml")


@pytest.mark.slow
def test_the_wheel_alone_trains(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    _run(sys.executable, "-m", "venv", environment)
    constraints = REPOSITORY / "tools" / "constraints.txt"
    _run(
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--python",
        environment / "bin" / "python",
        "-c",
        constraints,
        wheel,
    )
    _write_recordings(tmp_path / "recordings")
    command = environment / "bin" / "sepkit"
    prepare = ["--test-mixtures", "4", "--segment-seconds", "1"]
    _run(command, "prepare", "folder", "--speech", "recordings", "--out", "data", *prepare, cwd=tmp_path)
    manifests = ["--data.train", "data/train.jsonl", "--data.dev", "data/dev.jsonl"]
    _run(command, "train", "--config", "recurrent_stft", *manifests, *TINY_RUN, "--out", "exp", cwd=tmp_path)
    _run(command, "evaluate", "--model", "exp/model", "--manifest", "data/test.jsonl", "--out", "scores", cwd=tmp_path)


# --------------------------------------------------------------------------------------------------- configurations


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_configuration_passes_smoke(path: Path, tmp_path: Path) -> None:
    base, short = tmp_path / "base.yaml", ["--data.batch_size", "1", "--trainer.accelerator", "cpu"]
    base.write_text(yaml.safe_dump({}))
    if yaml.safe_load(path.read_text()).get("task", "separation") == "separation":
        base.write_text(yaml.safe_dump({"model": TINY_MODEL}))
        short += ["--data.segment_seconds", "0.25"]
    if "noise_probability" in path.read_text():
        # Whose noise it is, only the user knows.
        audio.write(tmp_path / "noise" / "n.wav", np.random.default_rng(0).standard_normal(8000) / 10, 8000)
        short += ["--data.dynamic_mixing.noise", str(tmp_path / "noise")]
    assert main(["smoke", "--config", str(base), "--config", str(path), *short]) == 0


# ----------------------------------------------------------------------------------------------------------- documents

# In the order in which a reader, and the test, goes through them: later pages use what earlier ones made.
PAGES = ["install", "separate", "stream", "web", "train", "gpus", "matching", "plan-schedule", "variational", "depth"]

PAGES += ["measure", "cluster", "audiograms", "index", "tutorials/separate", "tutorials/part", "tutorials/masker"]
PAGES += [f"explanation/{name}" for name in ("data", "matching", "variational", "scores", "glossary")]
PAGES += ["reference/files"]

TINY_RUN = [
    "--trainer.max_epochs",
    "1",
    "--data.segment_seconds",
    "0.5",
    "--data.batch_size",
    "2",
    "--data.workers",
    "0",
]
TINY_RUN += ["--trainer.accelerator", "cpu"]
TINY_MASKER = {
    "recurrent_stft": ["--model.masker.hidden_size", "8", "--model.masker.num_layers", "1"],
    "continuous_depth": ["--model.masker.model_dim", "8", "--model.masker.hidden_size", "8"],
    "conv_tasnet": ["--model.masker.hidden_channels", "8", "--model.masker.blocks", "1", "--model.masker.repeats", "1"],
}


def _write_recordings(folder: Path) -> None:
    """A tree split/speaker/file.wav of colored noise."""
    generator = np.random.default_rng(0)
    for split, speakers in (("train", 3), ("dev", 4), ("test", 2)):
        for speaker in range(speakers):
            for utterance in range(2):
                noise = np.cumsum(generator.standard_normal(16000)) / 300
                name = f"{split}/{split}{speaker}/{split}{speaker}-{utterance}.wav"
                audio.write(folder / name, (noise - noise.mean()).astype(np.float32), 8000)


DOCUMENTS = [REPOSITORY / "README.md", *(REPOSITORY / "docs" / f"{page}.md" for page in PAGES)]


def _blocks(language: str) -> list[str]:
    """Code of README and of the pages, in reading order, without what says that it is not run here."""
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [block for block in blocks if not block.startswith(("# not run: ", "# file: "))]


def _write_files() -> None:
    """Save the blocks of the pages that begin with `# file: NAME`."""
    saved = re.compile(r"^```python\n# file: (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for path in DOCUMENTS:
        for name, block in saved.findall(path.read_text()):
            Path(name).write_text(block)


def test_sentences_are_short() -> None:
    """At most 2 % of the sentences of README and docs have more than 35 words."""
    pages = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md")]
    text = "\n\n".join(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL) for page in pages)
    # Cells of tables, items of lists, headings and paragraphs end a sentence, too.
    sentences = [s for s in re.split(r"(?<=[.!?])\s+|\||\n\n|\n(?=[-*#\d])", text) if s.strip()]
    long = [sentence for sentence in sentences if len(sentence.split()) > 35]
    assert len(long) <= 0.02 * len(sentences), long


def test_a_number_is_called_n() -> None:
    texts = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("sepkit/**/*.py")]
    assert not [path for path in texts if re.search(r"\bso\s+many\b", path.read_text(encoding="utf-8"))]


def test_every_page_is_tested() -> None:
    assert sorted(REPOSITORY.glob("docs/**/*.md")) == sorted(DOCUMENTS[1:])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", path.read_text())
    # Pages of the reference are made when the site is.
    made = {str(REPOSITORY / "docs" / name) for name in generated_pages()}
    places = [os.path.normpath(path.parent / link) for link in links if "://" not in link]
    broken = [place for place in places if place not in made and not Path(place).exists()]
    assert not broken


def test_documents_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_config: ModelConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    from sepkit.models import build_model
    from sepkit.models.checkpoints import save_model

    monkeypatch.chdir(tmp_path)
    _write_recordings(tmp_path / "recordings")
    audio.write(
        tmp_path / "conversation.wav", np.random.default_rng(0).standard_normal(22050).astype(np.float32), 44100
    )
    save_model(build_model(tiny_model_config), tmp_path / "egs/mini/exp/cpu_seed0/model", {})
    _write_files()
    commands = [line for block in _blocks("bash") for line in block.strip().split("\n")]
    assert len(commands) > 8
    for command in commands:
        program, *arguments = shlex.split(command)
        if program == "sepkit":
            _type(arguments)
        elif program == "make":
            _run("make", "--dry-run", *arguments, cwd=REPOSITORY)
        else:
            # Stage 0 does nothing; tests/recipes runs the recipes.
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            _run(REPOSITORY / program, *arguments, "--stop-stage", "0", env=os.environ | {"PATH": path})
    capsys.readouterr()
    namespace = {"waveform": np.zeros(4410, dtype=np.float32), "sample_rate": 44100}
    for block in _blocks("python"):
        exec(block, namespace)
    assert Path("separated/conversation_s2.wav").is_file()
    assert Path("exp/evaluation/summary.json").is_file()


def _type(arguments: list[str]) -> None:
    """Run a command of the README at a tiny size."""
    options: list[str] = []
    if arguments[:2] == ["prepare", "audiograms"]:
        options = ["--examples", "128"]
    elif "audiogram" in arguments and arguments[0] == "train":
        options = ["--trainer.max_epochs", "1", "--trainer.validate_every_epochs", "1", "--model.hidden", "[8]"]
    elif "speaker_encoder" in arguments:
        options = ["--trainer.max_epochs", "1", "--data.batch_size", "2", "--model.channels", "8"]
    elif "cd_vae" in arguments:
        options = ["--trainer.max_epochs", "1", "--trainer.validate_every_epochs", "1", "--model.width", "4"]
        options += ["--model.drift_width", "4", "--data.batch_size", "128"]
    elif arguments[:2] == ["prepare", "folder"]:
        # A prediction of quality is fitted on no fewer than these.
        options = ["--test-mixtures", "4", "--dev-mixtures", "24", "--segment-seconds", "1"]
    elif arguments[0] in ("train", "smoke") and "--help" not in arguments:
        tiny = [] if "--import" in arguments else TINY_MASKER[arguments[arguments.index("--config") + 1]]
        options = [*TINY_RUN, *tiny]
    try:
        code = main([*arguments, *options])
    except SystemExit as stop:
        code = stop.code
    assert code in (0, None), arguments
