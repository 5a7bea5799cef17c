"""PyPI's page: no link that leads nowhere."""

import re
from pathlib import Path

from tools.pypi_page import page, repository

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def test_links_are_absolute_where_the_repository_is_known() -> None:
    address = repository("title: x\nrepository-code: https://code.org/a/b/\n")
    assert address == "https://code.org/a/b"
    shown = page(README, address)
    assert f"![Spectrograms of a mixture of two speakers and of the two estimates.]({address}/raw/" in shown
    links = re.findall(r"\]\(([^)]+)\)", shown)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", README)) > 20
    assert all(link.startswith("https://") for link in links) and f"{address}/blob/main/docs/install.md" in links


def test_without_one_they_are_words() -> None:
    assert repository("title: x\n# repository-code: https://...\n") == ""
    shown = page(README, "")
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]+)\)", shown))
    assert "\npip install sepkit\n" in shown and 'pip install "sepkit[torch]"' in shown
    assert "Install · Choose a model" in shown
    assert not [words for words in ("docs/images", "# not run", "git clone") if words in shown]
