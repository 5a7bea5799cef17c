"""Exit codes and one-line messages: 0 done, 1 a failure, 2 the user's mistake; never a traceback for a mistake."""

import subprocess
import sys
from pathlib import Path

import pytest

from sepkit.cli import main as module
from sepkit.cli._parser import MODEL_LINE
from sepkit.cli.main import EVERY_COMMAND, main
from sepkit.cli.models import MODEL_FORMS


def test_help_lists_every_command(printed):
    text = printed(["--help"])
    assert all(f"  {name} " in text for name in EVERY_COMMAND)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", ["train", "separate", "evaluate", "find-temperature", "export", "models", "smoke"])
def test_what_a_model_is_is_said_alike_everywhere(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert MODEL_LINE in text and "--import FILE" in text


def test_the_page_and_the_command_list_what_a_model_can_be(printed):
    listed = printed(["models"])
    page = (Path(__file__).resolve().parents[2] / "docs" / "choose-model.md").read_text(encoding="utf-8")
    for form, meaning in MODEL_FORMS.items():
        names = " or ".join(f"`{name}`" for name in form.split(" or "))
        assert form in listed and f"| {names} | {meaning} |" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["seperate", "x.wav"], "did you mean separate?"),
        (["prepare", "libri-mix"], "did you mean librimix?"),
        (["separate", "x.wav", "--modle", "m"], "--modle: unknown option (did you mean --model?)"),
        (["separate", "x.wav", "-out", "m"], "-out: unknown option (did you mean --out?)"),
        (["separate", "-"], "sepkit stream -"),
        (["train", "--model.masker.hiden_channels", "9"], "mean --model.masker.hidden_channels?"),
        (["train", "--model.masker.nonsense", "9"], "known here: name, bottleneck_channels"),
        (["separate", "x.wav", "--levels", "mixtur"], "did you mean mixture?"),
    ],
)
def test_what_was_probably_meant_is_said(arguments, words, refused):
    assert words in refused(arguments)


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["prepare", "nonsense"], ["prepare"], ["train"], ["separate"], ["train", "--nonsense", "1"]],
)
def test_mistakes_exit_with_2_and_one_line(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.strip().splitlines()) == 1


def test_version_and_nothing(printed):
    import sepkit

    assert printed(["--version"]).strip() == sepkit.__version__
    assert main([]) == 2


def test_traceback_on_request(monkeypatch):
    def fail(*_):
        raise ValueError("x")

    monkeypatch.setattr(module, "_run", fail)
    monkeypatch.setenv("SEPKIT_TRACEBACK", "1")
    with pytest.raises(ValueError):
        main(["train"])


def test_a_reader_that_goes_away_leaves_no_traceback():
    """The work is done to its end, so that `sepkit separate FOLDER | head -1` separates all files."""
    code = (
        "import sys; from sepkit.cli import main as m; sys.argv = ['sepkit', 'train']; "
        "m._run = lambda *_: print('x' * 10**6) or 'made'; sys.exit(m.main())"
    )
    late = code.replace("print('x' * 10**6) or 'made'", "__import__('time').sleep(1) or 'made'")
    for script, num_bytes in ((code, 1), (late, 0)):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(num_bytes)
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 0
