"""Strings of strangers: what a terminal, Markdown, HTML and a spreadsheet show of them."""

import csv
import html
import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from sepkit.cleaning import cell, code, escaped, plain, uncell
from sepkit.cli.main import main
from sepkit.data import audio
from sepkit.files import read_csv, write_csv

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\u2066|`x`<img src=x onerror=alert(1)>![a](http://x)\r**b**\x9b31m"


def test_what_a_terminal_obeys_becomes_an_escape():
    """Of all characters: those that Unicode calls controls, ends of lines, or marks of direction."""
    kept = {"\t", "\n"}
    for code_point in range(sys.maxunicode + 1):
        character = chr(code_point)
        obeyed = unicodedata.category(character) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(character) in (
            "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
        )  # fmt: skip
        obeyed |= character in "\u200e\u200f\u061c"
        assert (plain(character) != character) == (obeyed and character not in kept), hex(code_point)
    assert plain("a\x1b\u202e") == "a\\x1b\\u202e"


@pytest.mark.parametrize("text", [HOSTILE, "a_b", "_a_", "x\n# y", "<b>", "*", "a|b", "back\\slash", "plain name.wav"])
def test_markdown_shows_the_text(text):
    page = pytest.importorskip("markdown", reason="no Markdown package to compare with").markdown(escaped(text))
    shown = html.unescape(page.removeprefix("<p>").removesuffix("</p>").replace("\\|", "|").replace("\\~", "~"))
    assert shown == plain(" ".join(text.split())) and page.count("<") == 2


def test_markdown_has_no_markup_of_strangers():
    for text in (escaped(HOSTILE), code(HOSTILE)):
        assert "<img" not in text and "\x1b" not in text and "\u202e" not in text and "\n" not in text
        assert "](" not in text.replace("\\](", "") and "**" not in text.replace("\\*\\*", "")
    assert code("sepkit evaluate --out a|b") == "`sepkit evaluate --out a\\|b`"
    assert escaped("recurrent_seed_0") == "recurrent_seed_0"


@pytest.mark.parametrize("text", ["=1+1", "+cmd|'/c calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "=", "-", "-x.wav", "+1e5x"])
def test_a_spreadsheet_computes_no_cell(text, tmp_path):
    path = write_csv(tmp_path / "x.csv", ["id", text], [[text, -1.5], ["-1.5", text]])
    with path.open(encoding="utf-8", newline="") as file:
        cells = list(csv.reader(file))
    assert all(c[0] not in "=+@\t" and (c[0] != "-" or float(c)) for row in cells for c in row), cells
    assert cells[1][1] == cells[2][0] == "-1.5", "numbers stay numbers"
    _, rows = read_csv(path)
    assert [row["id"] for _, row in rows] == [text, "-1.5"], "what sepkit wrote, it reads"
    assert uncell(str(cell(text))) == text


def test_numbers_of_any_form_stay_numbers():
    for text in ("-1", "+2.5", "-.5", "-1e-7", "+1E+9", "-inf", "nan", "-3."):
        assert cell(text) == text and isinstance(float(text), float)
    assert cell(-1.5) == -1.5 and cell(None) is None and cell("- 1") == "- 1"


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    for k in range(2):
        audio.write(folder / f"s{k}.wav", np.random.default_rng(k).normal(0, 0.1, 4000).astype(np.float32), 8000)
    sources = [{"path": "s0.wav"}, {"path": "s1.wav"}]
    entry = {"id": "a", "sample_rate": 8000, "num_samples": 4000, "sources": sources, "corpus": HOSTILE}
    (folder / "m.jsonl").write_text(json.dumps(entry) + "\n")
    for name in ("m_s1", "m_s2"):
        audio.write(folder / "est" / f"{name.replace('m', 'a')}.wav", np.ones(4000, np.float32) / 9, 8000)
    options = ["--estimates", str(folder / "est"), "--metrics", "si_sdr", "--out", str(folder / "ev")]
    assert main(["evaluate", "--manifest", str(folder / "m.jsonl"), *options]) == 0
    return folder / "ev"


def hostile(value):
    """The same data with every string replaced by one of a stranger."""
    if isinstance(value, dict):
        return {key: hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("key", ["command", None])
def test_a_summary_of_a_stranger_is_shown_and_not_obeyed(evaluation, key, tmp_path):
    """By `summarize` and `report`, in the terminal and in their files; `key`: the one that lies, None: all strings."""
    folder, table, page = tmp_path / "ev", tmp_path / "t.md", tmp_path / "p.html"
    folder.mkdir()
    (folder / "utterances.csv").write_bytes((evaluation / "utterances.csv").read_bytes())
    told = json.loads((evaluation / "summary.json").read_text())
    told = hostile(told) if key is None else told | {key: hostile(told[key])}
    (folder / "summary.json").write_text(json.dumps(told))
    line = [sys.executable, "-m", "sepkit", "summarize", str(folder), "--out", str(table)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr, done.stderr
    texts = [done.stdout, done.stderr, table.read_text() if table.exists() else ""]
    assert "<img src=x" not in texts[2] and "![a](http" not in texts[2]
    if key is None:
        assert main(["report", str(folder), "--examples", "0", "--out", str(page)]) in (0, 2)
        texts.append(page.read_text() if page.exists() else "")
        assert "<img src=x" not in texts[-1]
    for text in texts:
        assert not any(bad in text for bad in ("\x1b", "\x07", "\x9b", "\u202e", "\u2066")), text[:500]
