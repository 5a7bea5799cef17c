"""Tutorials as notebooks: made of the page, whole, valid, and (slow) executed as they are."""

import os
import sys
import time
from pathlib import Path

import nbformat
import pytest

from tests.docs.blocks import CODE, TUTORIALS, blocks
from tools.notebooks import SHOW_FIGURES, notebook, notebook_text, tutorials, without_links

IDS = [path.stem for path in TUTORIALS]


def test_every_tutorial_is_a_notebook() -> None:
    assert tutorials() == sorted(TUTORIALS)


@pytest.mark.parametrize("page", TUTORIALS, ids=IDS)
def test_every_block_of_the_page_is_a_cell(page: Path) -> None:
    text = notebook_text(page)
    assert text == notebook_text(page), "another build makes another file"
    made = nbformat.reads(text, as_version=4)
    nbformat.validate(made)
    cells = [cell.source for cell in made.cells if cell.cell_type == "code"]
    expected = [SHOW_FIGURES] if "sepkit.reporting" in page.read_text(encoding="utf-8") else []
    for block in blocks(page):
        if block.language not in CODE or block.not_run:
            continue
        if block.file:
            expected.append(f"%%writefile {block.file}\n{block.code.partition(chr(10))[2].rstrip()}")
        else:
            expected.append(f"%%bash -e\n{block.code.rstrip()}" if block.language == "bash" else block.code.rstrip())
    assert len(expected) > 1 and cells == expected
    told = "\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
    headings = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert made.cells[0].source.startswith("# ") and all(heading in told for heading in headings)
    assert "](" not in told.replace("](http", ""), "a link leads to a page that lies elsewhere"


def test_blocks_that_are_not_run_and_links_become_text() -> None:
    page = "# A\n\n[b](b.md) and [c](https://d.org)\n\n```bash\n# not run: needs a cluster\nsbatch x\n```\n\n"
    page += "```python\n1\n```\n"
    made = notebook(page, "a")
    assert [cell.source for cell in made.cells if cell.cell_type == "code"] == ["1"]
    assert "```bash\n# not run: needs a cluster\nsbatch x\n```" in [cell.source for cell in made.cells]
    assert without_links("[b](b.md) [c](https://d.org)") == "b [c](https://d.org)"


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=IDS)
def test_the_notebook_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property) -> None:
    """Each as a reader runs it: in an empty folder, at its own size."""
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    made = nbformat.reads(notebook_text(page), as_version=4)
    began = time.monotonic()
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(made, timeout=1800, kernel_name="python3", resources=resources).execute()
    drawn = [out for cell in made.cells for out in cell.get("outputs", []) if "image/png" in out.get("data", {})]
    assert bool(drawn) == (SHOW_FIGURES in [cell.source for cell in made.cells])
    record_property("seconds", round(time.monotonic() - began))
    if folder := os.environ.get("SEPKIT_NOTEBOOKS"):
        nbformat.write(made, Path(folder) / f"{page.stem}.ipynb")
