"""A new reader: from the front page of the site, what is sought is at most three clicks away."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY

DOCS = REPOSITORY / "docs"
QUESTIONS = {
    "the argument that sets the initial temperature of annealed MCL": (
        "matching.md",
        "`--objective.assignment.temperature.initial 5` | initial temperature, T_0",
    ),
    "the formula of the evidence of a Bayesian linear regression": (
        "explanation/variational.md",
        "log p(s | e) = log Gamma(a_T)",
    ),
    "how to evaluate a corpus laid out as mix/ s1/ s2/": (
        "corpora.md",
        "`DIR/mix/ID.wav`, `DIR/s1/ID.wav`, `DIR/s2/ID.wav` (WSJ0-mix, WHAM, LibriMix) | `sepkit prepare mixed DIR`",
    ),
    "how to add a cost": ("extend.md", "A cost is a function from estimates (B, n, T) and sources (B, m, T)"),
}
"""What is sought -> the page that has it, and its words."""


def clicks_from(front: str) -> dict[str, list[str]]:
    """Page -> words of the links from the front page to it, following links in the text alone, not the menu."""
    found: dict[str, list[str]] = {front: []}
    waiting = deque([front])
    while waiting:
        page = waiting.popleft()
        for words, link in re.findall(r"\[([^\]]+)\]\(([^)#]+\.md)", (DOCS / page).read_text(encoding="utf-8")):
            place = os.path.normpath(Path(page).parent / link)
            if place not in found and (DOCS / place).is_file():
                found[place] = [*found[page], words]
                waiting.append(place)
    return found


@pytest.mark.parametrize("question", QUESTIONS)
def test_it_is_three_clicks_away(question: str) -> None:
    page, words = QUESTIONS[question]
    assert words in (DOCS / page).read_text(encoding="utf-8")
    clicks = clicks_from("index.md")[page]
    print(f"{question}: {' > '.join(clicks)}")
    assert len(clicks) <= 3


def test_every_page_is_reached_from_the_front() -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")}
    assert max(len(clicks) for clicks in clicks_from("index.md").values()) <= 3
    assert clicks_from("index.md").keys() == written
