"""Words and links of README, pages, recipes, help and messages: the field's terms, short sentences, no dead link."""

import os
import re
from pathlib import Path

import pytest

from sepkit.cli.main import EVERY_COMMAND
from tests.docs.blocks import REPOSITORY
from tools.error_messages import errors_page
from tools.site import help_of, subcommands

PAGES = [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/**/*.md"))]
WRITTEN = [page for page in PAGES if page.stem != "failures"]
RECIPES = sorted(REPOSITORY.glob("egs/*/*.md"))
OTHERS = [REPOSITORY / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]

MOST_WORDS = 40
"""Of a sentence in README and docs."""

FORBIDDEN = (
    r"people|persons?|somebody|nobody|everybody|anybody|hears|tells|knows|says|holds|stands|mends?|mended|house|guests?"
    r"|brought nothing|brings nothing|plain processors?|make room|less PIT|draws? speakers|for other speakers"
    r"|who speaks when|hypotheses part|found another ending"
)
"""Words for which the field has a term. Those that fit elsewhere (`alone`, `where`, `has`) are left to readers."""


def prose(markdown: str) -> str:
    """Markdown without blocks of code, code spans, addresses and comments."""
    text = re.sub(r"^```.*?^```|<!--.*?-->|^---\n.*?^---\n", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", "X", re.sub(r"\]\([^)]*\)", "]", text))


def sentences(markdown: str) -> list[str]:
    """Sentences of prose; cells of tables, items of lists and headings end one."""
    text = re.sub(r"^ *([-*#|>]|\d+\.).*$", lambda line: f"\n\n{line[0]}\n\n", prose(markdown), flags=re.MULTILINE)
    parts = re.split(r"\n\s*\n|\|", text)
    return [one for part in parts for one in re.split(r"(?<=[.!?:])\s+(?=[A-Z*`\[(])", " ".join(part.split()))]


def anchors(markdown: str) -> set[str]:
    """The anchors of the headings, as GitHub and the site form them."""
    titles = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    plain = [re.sub(r"\[([^\]]+)\]\([^)]*\)|[`*]", r"\1", title).lower() for title in titles]
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip()) for title in plain}


@pytest.mark.parametrize("path", [*PAGES, *RECIPES, *OTHERS], ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_links_resolve_in_a_clone(path: Path) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = Path(os.path.normpath(path.parent / name)) if name else path
        known = anchors(target.read_text()) if target.is_file() and target.suffix == ".md" else {anchor}
        if ":" not in link and not (target.exists() and anchor in {"", *known}):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_sentences_are_short(path: Path) -> None:
    assert not [one for one in sentences(path.read_text(encoding="utf-8")) if len(one.split()) > MOST_WORDS]


def forbidden(text: str) -> list[str]:
    """The forbidden words of a text, with their surroundings."""
    return re.findall(rf"[^\n]{{0,30}}\b(?i:{FORBIDDEN})\b[^\n]{{0,20}}", text)


@pytest.mark.parametrize("path", [*WRITTEN, *RECIPES], ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_pages_use_the_terms_of_the_field(path: Path) -> None:
    assert not forbidden(prose(path.read_text(encoding="utf-8")))


def test_help_and_messages_use_the_terms_of_the_field() -> None:
    helps = [help_of(command) for command in EVERY_COMMAND]
    helps += [help_of(c, s) for c, text in zip(EVERY_COMMAND, helps, strict=True) for s in subcommands(text)]
    assert not forbidden("\n".join(helps)) and not forbidden(errors_page())


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_help_has_one_notation_and_an_example(command: str) -> None:
    names = subcommands(help_of(command))
    for words in [(command, name) for name in names] or [(command,)]:
        text = help_of(*words)
        assert "; default" not in " ".join(text.split())
        named = re.findall(r"^  (?:-\w, )?--([\w.-]+) ([A-Z]+)\b", text, re.MULTILINE)
        assert {name for name, metavar in named if name.replace("-", "_").upper() == metavar} <= {"model", "seconds"}
        assert f"\nExample: sepkit {' '.join(words)} " in text
