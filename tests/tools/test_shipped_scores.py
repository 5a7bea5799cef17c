"""The scores of what ships, on every page that prints them."""

from sepkit.models.published.shipped import shipped_models
from tests.complaint import complaint
from tools import shipped_scores
from tools.shipped_scores import REPOSITORY, set_cells

PAGE = """# Results

| model | a, dB | b |
|---|---|---|
| **`one`**, by us | 1.0 | 2 |
| `one_small` | 3.0 | 4 |

| model | c |
|---|---|
| `one` | 5 |
"""


def test_cells_are_set_where_row_and_columns_say() -> None:
    found = set_cells(set_cells(PAGE, "`one`", {"a, dB": "1.5"}), "`one`", {"c": "6"})
    assert found == PAGE.replace("| 1.0 |", "| 1.5 |").replace("| 5 |", "| 6 |")
    for row, column in (("`two`", "c"), ("`one`", "d"), ("`one", "b")):
        complaint(lambda row=row, column=column: set_cells(PAGE, row, {column: "0"}), "expected one")


def test_the_pages_print_the_scores_of_the_cards() -> None:
    pages = [(REPOSITORY / name).read_text() for name in ("README.md", "egs/folder/RESULTS.md")]
    for model, folder in shipped_models().items():
        lines = (folder / "README.md").read_text().splitlines()
        header = next(line for line in lines if line.startswith("| Test set | Mixtures | Speakers |")).split(" | ")
        for name, corpus in shipped_scores.CORPORA.items():
            row = next(line for line in lines if line.startswith(f"| data {name} |")).split(" | ")
            cell, speakers = row[header.index("SI-SDRi (dB)")], row[header.index("Speakers")]
            told = {shipped_scores.README_SCORE: cell, "data": f"300 mixtures, {speakers} unseen speakers"}
            assert set_cells(pages[0], f"`{model}`, {corpus}", told) == pages[0]
            assert set_cells(pages[1], f"`{model}`", {f"SI-SDRi, dB: {corpus}": cell}) == pages[1]
