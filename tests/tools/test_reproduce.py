"""`make reproduce`: declared figures are those of RESULTS.md, and a run is judged by them."""

import re
from pathlib import Path

import jmespath
import pytest

from tools import reproduce

ROWS = reproduce.declared_rows()


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_what_its_results_say(name: str) -> None:
    row = ROWS[name]
    results = (row.recipe / "RESULTS.md").read_text(encoding="utf-8")
    assert f"ROW={name}" in results, "RESULTS.md does not name the row"
    assert row.figures and row.minutes > 0
    assert not row.config or (row.recipe / row.config).is_file()
    for figure in row.figures:
        (line,) = [line for line in results.splitlines() if figure.line in line]
        printed = re.findall(r"(?<![\d.])\d*\.?\d+", line)
        # A card has a third decimal, which may round otherwise than all of them did.
        near = 0.011 if figure.card else 0
        found = any(abs(float(number) - float(figure.printed)) <= near for number in printed)
        assert found, f"{figure.name}: {figure.printed} is not in {line}"
        assert figure.lowest <= float(figure.printed) <= figure.highest and figure.spread
        jmespath.compile(figure.query)


def test_every_row_that_results_name_is_declared(repository: Path) -> None:
    pages = [*repository.glob("egs/*/RESULTS.md"), *repository.glob("docs/**/*.md"), repository / "Makefile"]
    named = {name for page in pages for name in re.findall(r"ROW=(egs/[\w:-]+)", page.read_text(encoding="utf-8"))}
    assert named >= ROWS.keys() and named == ROWS.keys()


def test_every_page_of_results_answers_its_question_first(repository: Path) -> None:
    for page in repository.glob("egs/*/*.md"):
        if page.name != "README.md":
            answer = page.read_text(encoding="utf-8").split("\n\n")[1]
            assert answer.startswith("**") and re.search(r"\d", " ".join(answer.split()[:40])), page
            assert not re.search(r"^\|(?:[^|\n]*\|){6,}$", page.read_text(encoding="utf-8"), re.MULTILINE), page


def test_an_unknown_row_is_one_line_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["egs/mini:gpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(name in line for name in ROWS)


def test_without_a_row_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[: len(ROWS)]] == list(ROWS)


TOY = """
half:
  minutes: 1
  command: >-
    python -c "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), open(sys.argv[2], 'w'))"
    {config} {out}/found.json
  config: conf.yaml
  change: {deep: {b: %s}}
  figures:
    - {name: b, file: found.json, query: deep.b, printed: "0.50", lowest: 0.4, highest: 0.6, spread: two seeds, line: b}
data:
  minutes: 1
  command: python {data}
  data: {nowhere/corpus: example.org}
  figures: []
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "egs" / "toy"
    folder.mkdir(parents=True)
    (folder / "conf.yaml").write_text("{deep: {a: 1, b: 2}}")
    monkeypatch.setattr(reproduce, "REPOSITORY", tmp_path)
    return folder


@pytest.mark.parametrize(
    ("value", "code", "verdict"),
    [("0.604", 0, "within"), ("0.606", 1, "OUTSIDE"), ("'x'", 2, ""), ("0.4", 0, "within")],
)
def test_a_run_is_judged_by_the_stated_spread(value, code, verdict, toy, capfd) -> None:
    (toy / "rows.yaml").write_text(TOY % value)
    assert reproduce.main(["egs/toy:half", "--out", str(toy / "out")]) == code
    told = capfd.readouterr()
    if verdict:
        assert f"found {float(value):.2f}, RESULTS.md has 0.50, {verdict} 0.40 to 0.60 (two seeds)" in told.out
        assert ("NOT reproduced" in told.out) == (code == 1)
    else:
        assert "found 'x' at deep.b, expected a number" in told.err


def test_a_figure_may_be_a_mean_over_runs_and_that_of_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "REPOSITORY", tmp_path)
    (tmp_path / "card.md").write_text("---\nscores:\n- {type: dB, value: 7.454}\n---\n# The card\n")
    for seed, value in enumerate((7.2, 7.7)):
        (tmp_path / f"seed{seed}.json").write_text(f'{{"mean": {value}}}')
    figure = reproduce.Figure(
        name="dB", file="seed*.json", query="mean", spread="rounding", line="", card="card.md",
        card_query="scores[?type=='dB'].value | [0]", margin=0.02,
    )  # fmt: skip
    assert figure.printed == "7.45" and (figure.lowest, figure.highest) == pytest.approx((7.434, 7.474))
    assert reproduce.found_figure(figure, tmp_path) == 7.45 and reproduce.lies_within(figure, 7.45)
    assert not reproduce.lies_within(figure, 7.48)


def test_mistakes_are_one_line(toy: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (toy / "rows.yaml").write_text((TOY % 0.5).replace("json.dump", "no_such_name"))
    assert reproduce.main(["egs/toy:half", "--out", str(toy / "out")]) == 2
    assert "ended with exit code 1" in capfd.readouterr().err.splitlines()[-1]
    for folder in ("", str(toy)):
        monkeypatch.setenv("SEPKIT_DATA", folder)
        assert reproduce.main(["egs/toy:data", "--out", str(toy / "out")]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert "needs nowhere/corpus (example.org)" in line and "SEPKIT_DATA" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.minutes <= 2])
def test_rows_of_minutes_are_reproduced(name: str, tmp_path: Path, data_folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("SEPKIT_DATA", str(data_folder))
    assert reproduce.main([name, "--out", str(tmp_path)]) == 0
