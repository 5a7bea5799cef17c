"""Notebooks of the tutorials, made from the pages themselves: the Markdown of docs/tutorials is the one source.

The site (tools/site.py) writes each beside its page.
"""

import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
TUTORIALS = REPOSITORY / "docs" / "tutorials"

SHOW_FIGURES = "%matplotlib inline"
"""First cell of a notebook that draws."""

_FILE = re.compile(r"# file: (\S+)\n")
_NOT_RUN = "# not run: "
# Without it, the language of most blocks would be that of the notebook.
_PYTHON = "---\njupyter:\n  kernelspec: {display_name: Python 3, language: python, name: python3}\n---\n"
_BEGIN = """*This notebook is the page {page} of the documentation. Run it in an empty folder, with a Python that has \
sepkit.*"""


def tutorials() -> list[Path]:
    """The pages that are notebooks, too."""
    return sorted(TUTORIALS.glob("*.md"))


def notebook_text(page: Path) -> str:
    """The notebook of a page, as the text of an .ipynb file.

    Args:
        page: the Markdown.
    """
    import nbformat

    return nbformat.writes(notebook(page.read_text(encoding="utf-8"), page.stem))


def notebook(markdown: str, name: str) -> Any:
    """A notebook (nbformat 4) with a cell for each block of code.

    Python blocks are cells. Shell blocks begin with %%bash and stop at the first command that fails; a block that
    begins with `# file: NAME` writes that file. Blocks that begin with `# not run: ` stay text.

    Args:
        markdown: a page.
        name: of the page, for the first cell.
    """
    import jupytext
    import nbformat

    # To jupytext, a file in another language is text; as a cell it is written all the same.
    markdown = re.sub(r"^```\w+\n(?=# file: )", "```python\n", without_links(markdown), flags=re.MULTILINE)
    notebook = jupytext.reads(_PYTHON + markdown, fmt="md")
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            _as_cell(cell)
        # Identifiers are drawn by lot otherwise, and the file would differ from build to build.
        cell["id"] = f"{name}-{number}"
        cell["metadata"] = {}
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(_BEGIN.format(page=name), id=f"{name}-begin"))
    if "sepkit.reporting" in markdown:
        # Without it, a figure that a cell ends with is shown as words.
        notebook.cells.insert(2, nbformat.v4.new_code_cell(SHOW_FIGURES, id=f"{name}-figures"))
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return notebook


def _as_cell(cell: Any) -> None:
    """Give a block of code its magic."""
    magic, _, code = cell.source.partition("\n") if cell.source.startswith("%%") else ("", "", cell.source)
    language = magic.removeprefix("%%") or "python"
    if code.startswith(_NOT_RUN):
        cell.cell_type, cell.source = "markdown", f"```{language}\n{code}\n```"
        cell.pop("outputs", None)
        cell.pop("execution_count", None)
    elif (file := _FILE.match(code)) is not None:
        cell.source = f"%%writefile {file[1]}\n{code[file.end() :]}"
    elif language == "bash":
        cell.source = f"%%bash -e\n{code}"


def without_links(markdown: str) -> str:
    """Markdown for a notebook, which lies alone: links to pages are only words, what the site shows is gone."""
    markdown = re.sub(r"<!-- made: \w+ -->\n\n?", "", markdown)
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", markdown)
