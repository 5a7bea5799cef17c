"""`sepkit smoke` on the command line; tests/test_project.py tries every configuration that ships."""

import tempfile

from sepkit.cli.main import main

TINY = [
    *["--model.filterbank.num_filters=8", "--data.segment_seconds=0.1", "--trainer.accelerator=cpu"],
    *["--model.masker.name=recurrent", "--model.masker.hidden_size=4", "--model.masker.num_layers=1"],
]


def test_says_what_passed(tmp_path, monkeypatch, printed):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert printed(["smoke", *TINY]) == "passed: 2 steps, a validation, a save, a resume and a load (recurrent)\n"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_users_mistake(capsys):
    assert main(["smoke", *TINY, "--trainer.learning_rate=0"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "sepkit smoke: trainer.learning_rate: found 0.0, expected more than 0, at most 1000000\n"
