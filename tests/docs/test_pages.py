"""README and the pages of docs/ tell the truth: every block of code is run in order, and links lead somewhere."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sepkit.cli.main import EVERY_COMMAND, main
from sepkit.data import audio
from tests.docs.blocks import CODE, DOCUMENTS, REPOSITORY, Block, blocks
from tests.docs.tiny import TINY_TEXT, tiny_options, tiny_text, write_recordings
from tests.noise_voices import buzz
from tools.site import generated_pages, help_of, subcommands

ALL = [block for document in DOCUMENTS for block in blocks(document)]


def test_every_page_is_tested() -> None:
    assert sorted(REPOSITORY.glob("docs/**/*.md")) == sorted(DOCUMENTS[1:])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", path.read_text())
    # Pages of the reference are made when the site is.
    made = {str(REPOSITORY / "docs" / name) for name in generated_pages()}
    places = [os.path.normpath(path.parent / link) for link in links if "://" not in link]
    assert not [place for place in places if place not in made and not Path(place).exists()]


def test_what_a_reader_is_to_run_is_marked_as_a_language_that_is_run() -> None:
    assert not [block for block in ALL if block.language not in CODE and block.code.startswith(("sepkit ", "make "))]


@pytest.mark.parametrize("block", [block for block in ALL if block.not_run], ids=lambda block: block.page)
def test_blocks_that_are_not_run_are_parsed(block: Block) -> None:
    """Their commands exist and have these options."""
    assert block.language in ("bash", "python") and len(block.not_run.split()) > 2
    if block.language == "python":
        compile(block.code, block.page, "exec")
        return
    for line in commands(block):
        words = shlex.split(line)
        for place, word in enumerate(words):
            name = words[place + 1] if word == "sepkit" and place + 1 < len(words) else ""
            if name in EVERY_COMMAND:
                after = words[place + 2 : place + 3]
                known = help_of(name, *(set(after) & set(subcommands(help_of(name)))), *_configurations(words))
                assert not [option for option in options_of(words[place:]) if option not in known], line
            elif word.startswith("egs/"):
                assert (REPOSITORY / word).exists(), line


def _configurations(words: list[str]) -> list[str]:
    """The --config options, by which the help of `sepkit train` is chosen."""
    return [part for name, value in itertools.pairwise(words) if name == "--config" for part in (name, value)]


def options_of(words: list[str]) -> list[str]:
    """The long options up to the next program of a pipe."""
    end = words.index("|") if "|" in words else len(words)
    return [word for word in words[:end] if word.startswith("--")]


def commands(block: Block) -> list[str]:
    """The commands of a shell block, without its comments."""
    lines = block.code.replace("\\\n", " ").strip().split("\n")
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.usefixtures("own_choices_forgotten")
def test_every_block_runs(tmp_path, monkeypatch, tiny_model_config, capsys) -> None:
    from sepkit.inference import calibration
    from sepkit.models import build_model
    from sepkit.models.storage.checkpoints import save_model

    assert all(any(part in block.code for block in ALL if block.file) for part in TINY_TEXT)
    # Calibration separates further recordings of this many mixtures, which takes most of its time.
    monkeypatch.setattr(calibration, "MOST_HEARD", 3)
    monkeypatch.chdir(tmp_path)
    write_recordings(tmp_path / "recordings")
    write_recordings(tmp_path / "noise")
    audio.write(tmp_path / "conversation.wav", buzz(120, 3.0, 44100), 44100)
    save_model(build_model(tiny_model_config), tmp_path / "egs/mini/exp/cpu_seed0/model", {})
    namespace = {"waveform": np.zeros(4410, dtype=np.float32), "sample_rate": 44100}
    for block in ALL:
        if block.not_run or block.language not in CODE:
            continue
        if block.file:
            Path(block.file).write_text(tiny_text(block.code.partition("\n")[2]))
        elif block.language == "python":
            exec(compile(block.code, block.page, "exec"), namespace)
        elif block.language == "console":
            run_console(block, capsys)
        elif block.language == "bash":
            for command in commands(block):
                run_command(command, block.page)
    assert Path("separated/conversation_s2.wav").is_file()
    assert Path("exp/evaluation/summary.json").is_file()


def run_console(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """The block shows exactly what its command prints."""
    command, _, output = block.code.removeprefix("$ sepkit ").partition("\n")
    capsys.readouterr()
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == output, block.page


def run_command(command: str, page: str) -> None:
    """Run a line of a shell block at a tiny size."""
    program, *arguments = shlex.split(command)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if set(arguments) & {"<", ">", "|"}:
        subprocess.run(["bash", "-euc", command], env=os.environ | {"PATH": path}, capture_output=True, check=True)
        return
    if program == "sepkit":
        try:
            code = main([*arguments, *tiny_options(arguments)])
        except SystemExit as stop:
            code = stop.code
        assert code in (0, None), f"{page}: {command}"
        return
    if program in ("cp", "mv") and len(arguments) == 2:
        getattr(shutil, {"cp": "copy", "mv": "move"}[program])(*arguments)
        return
    # Stage 0 of a recipe does nothing; tests/recipes runs the recipes.
    words = ["make", "--dry-run", *arguments] if program == "make" else [REPOSITORY / program, *arguments]
    words += [] if program == "make" else ["--stop-stage", "0"]
    folder = REPOSITORY if program == "make" else None
    environment = os.environ | {"PATH": path}
    done = subprocess.run(list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{page}: {command}\n{done.stdout}\n{done.stderr}"
