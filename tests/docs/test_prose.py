"""The language of README and docs: short sentences, each with a verb."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.docs.blocks import DOCUMENTS, REPOSITORY

# Enough to find a sentence without any; words that are nouns as often (set, mean, match, sound) are left out.
VERBS = frozenset((Path(__file__).parent / "verbs.txt").read_text(encoding="utf-8").split())
# A sentence may begin with one of these, in the imperative; elsewhere they may be nouns.
IMPERATIVES = frozenset((Path(__file__).parent / "imperatives.txt").read_text(encoding="utf-8").split())

# What a clause begins after.
BEFORE = frozenset({*",;:(", "then", "and", "or", "to", "also", "so", "that", "which", "they", "it", "you", "please"})


def without_code(text: str) -> str:
    """Markdown without fenced blocks, addresses of links, and marks of emphasis; code in a line becomes a name."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]+`", "NAME", text).replace("*", "").replace("_", " ")


def sentences_of(text: str) -> list[str]:
    """Sentences; cells of tables, items of lists, headings and paragraphs end one, too."""
    parts = re.split(r"(?<=[.!?])\s+(?=[A-Z\"(])|\||\n\s*\n|\n(?=\s*(?:[-#]|\d+\.) )", without_code(text))
    return [" ".join(part.split()) for part in parts if part.strip()]


def prose_of(text: str) -> list[str]:
    """The sentences of running text: not of tables, headings and lists of links."""
    lines = without_code(text).split("\n")
    running = [line for line in lines if not re.match(r"\s*(\||#|- \[|\d+\. )", line)]
    parts = re.split(r"(?<=[.!?])\s+(?=[A-Z\"(])|\n\s*\n|\n(?=\s*- )", "\n".join(running))
    return [" ".join(part.split()) for part in parts if part.strip().endswith((".", "!", "?"))]


def has_verb(sentence: str) -> bool:
    """Whether a word of it is a verb: of `VERBS`, or one of `IMPERATIVES` where a clause begins."""
    words = re.findall(r"[a-z']+|[,;:()]", sentence.lower())
    if VERBS.intersection(words):
        return True
    starts = [words[0], *(word for before, word in itertools.pairwise(words) if before in BEFORE)]
    return bool(IMPERATIVES.intersection(starts))


def test_sentences_are_short() -> None:
    """At most 2 % of the sentences of README and docs have more than 35 words."""
    sentences = [sentence for path in DOCUMENTS for sentence in sentences_of(path.read_text(encoding="utf-8"))]
    long = [sentence for sentence in sentences if len(sentence.split()) > 35]
    print(f"{len(long)} of {len(sentences)} sentences have more than 35 words")
    assert len(long) <= 0.02 * len(sentences), long


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_sentences_have_a_verb(path: Path) -> None:
    without = [sentence for sentence in prose_of(path.read_text(encoding="utf-8")) if not has_verb(sentence)]
    assert not without, "rewrite these, or add their verbs to tests/docs/verbs.txt"


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("A table of scores.", False),
        ("The mean of the match.", False),
        ("Match the levels.", True),
        ("For many recordings, match the levels.", True),
        ("The scores are in a table.", True),
        ("Nothing leaves the machine.", True),
    ],
)
def test_verbs_are_found(sentence: str, expected: bool) -> None:
    assert has_verb(sentence) == expected


def test_a_number_is_called_n() -> None:
    texts = [*DOCUMENTS, *REPOSITORY.glob("sepkit/**/*.py")]
    assert not [path for path in texts if re.search(r"\bso\s+many\b", path.read_text(encoding="utf-8"))]
