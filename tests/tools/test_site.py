"""The site: what is made from the code, and that it builds strictly and needs no network."""

import html
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sepkit.cli.main import EVERY_COMMAND
from tools import griffe_examples, site, site_shows


def test_subcommands_are_those_that_the_help_lists() -> None:
    told = "usage: sepkit prepare KIND ...\n\n  mini      Make speech\n            of voices.\n  wsj0-mix  Mix."
    assert site.subcommands(told) == ["mini", "wsj0-mix"]
    assert site.subcommands("usage: sepkit separate INPUT [INPUT ...] [options]") == []


def test_every_command_has_a_page_of_80_columns() -> None:
    index = site.commands_index()
    assert re.findall(r"^\| \[`(\S+)`\]\((\S+)\.md\)", index, re.MULTILINE) == [(name, name) for name in EVERY_COMMAND]
    for name in EVERY_COMMAND:
        page = site.command_page(name)
        assert page.startswith(f"# sepkit {name}\n")
        text = html.unescape(re.sub("<.*?>", "", page))
        assert not [line for line in text.splitlines() if len(line) > 80 and " " in line.strip()]
    page = site.command_page("prepare")
    assert "## sepkit prepare folder" in page
    assert '<a href="#folder-speaker-from"><span id="folder-speaker-from">--speaker-from</span></a>' in page


def test_modules_have_a_page_each_and_packages_list_theirs() -> None:
    page = site.module_page("sepkit.annealing")
    assert "::: sepkit.annealing\n" in page
    assert "[`sepkit.annealing.temperature`](sepkit.annealing.temperature.md) |" in page
    assert "| module |" not in site.module_page("sepkit.annealing.temperature")


def test_examples_in_docstrings_are_blocks_of_code() -> None:
    fenced = griffe_examples.fenced("A.\n\n  >>> 1 + 1\n  2\n  >>> 3\n\nB")
    assert fenced == "A.\n\n  ```pycon\n  >>> 1 + 1\n  2\n  >>> 3\n  ```\n\nB"


def test_modules_with_an_underscore_are_left_out() -> None:
    modules = site.public_modules("sepkit.data")
    assert "sepkit.data.manifest" in modules and not [name for name in modules if "._" in name]


def test_links_open_pages_of_the_site_or_become_words() -> None:
    text = "[a](../tools/b.py) [c](https://d.org) ![e](figures/f.png) [g](#h) [i](../egs/mini/RESULTS.md#j) [k](k.md)"
    linked = "a [c](https://d.org) ![e](figures/f.png) [g](#h) [i](reference/recipes/mini/results.md#j) [k](k.md)"
    assert site.with_site_links(text, "docs/x.md", "x.md") == linked
    assert site.with_site_links("[c](../sepkit/config)", "docs/x.md", "x.md") == "[c](reference/configuration.md)"


def test_what_pages_show_is_made(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [page.read_text() for page in repository.glob("docs/**/*.md")]
    marks = [name for text in texts for name in re.findall("<!-- made: (.*?) -->", text)]
    assert set(marks) == {"parting", "separated", "citation"}
    monkeypatch.setattr(site_shows, "made", lambda: {"parting": "![a]({here}/a.png)"})
    assert site_shows.with_shows("b\n<!-- made: parting -->", "tutorials/c.md") == "b\n![a](../made/a.png)"
    assert site_shows.with_shows("<!-- made: parting -->", "index.md") == "![a](made/a.png)"


def test_every_page_is_in_the_menu_or_listed(repository: Path) -> None:
    menu = re.findall(r": (\S+\.md)$", (repository / "mkdocs.yml").read_text(), re.MULTILINE)
    written = {str(path.relative_to(repository / "docs")) for path in repository.glob("docs/**/*.md")}
    menu += _pages([below() for below in site.GENERATED_BELOW.values()])
    assert len(menu) == len(set(menu)) and set(menu) == written | site.generated_pages().keys()


def _pages(menu: Any) -> list[str]:
    if isinstance(menu, str):
        return [menu]
    return [page for part in (menu.values() if isinstance(menu, dict) else menu) for page in _pages(part)]


@pytest.mark.slow
def test_the_site_builds_strictly_and_fetches_nothing(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    scripts, sheets = r"<(?:script|img|source|audio)[^>]+src", r"<link[^>]+rel=\"stylesheet\"[^>]+href"
    assets = re.compile(rf"(?:{scripts}|{sheets})=\"https?://")
    pages = list(tmp_path.rglob("*.html"))
    # What pages play, show and offer for download is there.
    own = re.compile(r"<(?:audio|img|a)[^>]+(?:src|href)=\"([^\":#]+\.(?:wav|flac|png|ipynb))\"")
    named = [(page, path) for page in pages for path in own.findall(page.read_text(encoding="utf-8"))]
    assert not [(page.name, path) for page, path in named if not (page.parent / path).is_file()]
    assert {"wav", "flac", "png", "ipynb"} == {path.rpartition(".")[2] for _, path in named}
    assert len(pages) > 30 and not [page.name for page in pages if assets.search(page.read_text(encoding="utf-8"))]
