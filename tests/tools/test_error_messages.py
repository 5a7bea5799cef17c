"""The page of error messages says what the code says."""

import ast
from pathlib import Path

import pytest

from tools.error_messages import AREAS, about, divided, errors_page, fixed_words, messages


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("'--out: found nothing; give a folder'", "--out: found nothing; give a folder"),
        ("f'{path}: {header.sample_rate} Hz, expected {RATE}'", "PATH: SAMPLE_RATE Hz, expected RATE"),
        ("f'{name}: found {shown(value)}' + ', expected one'", "NAME: found VALUE, expected one"),
        ("""f"expected one of {', '.join(map(str, known))}" """, "expected one of VALUE"),
        ("""f"found {', '.join(words)}{did_you_mean(word, words)}" """, "found WORDS"),
        ("f'{values[0]}: {len(parts)} parts'", "VALUES: PARTS parts"),
    ],
)
def test_what_is_filled_in_stands_in_capitals(code: str, text: str) -> None:
    assert fixed_words(ast.parse(code.strip(), mode="eval").body) == text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("PATH: no such file; prepare it", ("PATH: no such file", "prepare it")),
        ("NAME: found VALUE, expected 0 to 1", ("NAME: found VALUE", "expected 0 to 1")),
        ("PATH: cannot be read", ("PATH: cannot be read", "")),
    ],
)
def test_a_message_is_divided_before_its_remedy(text: str, parts: tuple[str, str]) -> None:
    assert divided(text) == parts


def test_every_message_of_the_code_is_on_the_page(repository: Path) -> None:
    found = list(messages())
    raised = sum(path.read_text(encoding="utf-8").count("UserError(") for path in repository.glob("sepkit/**/*.py"))
    # Some are made by a function that several places share; one is the class itself.
    assert 0.9 * raised < len(found) <= raised
    assert {message.area for message in found} <= AREAS.keys()
    page = errors_page()
    assert "| `data.train: no manifest given` | expected the train.jsonl that" in page
    assert all(f"### {about(module)}" in page for module in {message.module for message in found})
    assert sum(bool(message.remedy) or "expected" in message.told for message in found) > 0.8 * len(found)
