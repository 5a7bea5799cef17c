"""What PyPI shows: README.md with links that lead somewhere there, and the addresses of the project.

Both follow from `repository-code` in CITATION.cff, the one place that names the repository. Without it the page has
words in place of links to files. Hatchling calls `PyPIPage` at each build (pyproject.toml).
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class PyPIPage(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add them to what pyproject.toml says."""
        root = Path(self.root)
        address = repository((root / "CITATION.cff").read_text(encoding="utf-8"))
        text = page((root / "README.md").read_text(encoding="utf-8"), address)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if address:
            metadata["urls"] = {
                "Repository": address,
                "Documentation": f"{address}/blob/main/docs/index.md",
                "Changelog": f"{address}/blob/main/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }


def repository(citation: str) -> str:
    """Address of the repository that CITATION.cff names; "" if it names none."""
    found = re.search(r"^repository-code: *[\"']?(https://[^\s\"']+)", citation, re.MULTILINE)
    return found[1].rstrip("/") if found else ""


def page(readme: str, address: str) -> str:
    """README.md as PyPI shows it.

    Args:
        readme: its Markdown.
        address: of the repository; "" if there is none yet.
    """
    # Readers of PyPI have no clone.
    readme = re.sub(r"^(# not run: .*|Clone this repository.*\n)\n", "", readme, flags=re.MULTILINE)
    readme = re.sub(r'(pip install "?)\.(?=[\[\n`])', r"\1sepkit", readme)
    if not address:
        readme = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)]+\)\n\n", "", readme, flags=re.MULTILINE)
        return re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)", r"\1", readme)
    readme = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{address}/raw/main/", readme)
    return re.sub(r"((?<!!)\[[^\]]+\]\()(?!https?:|#)", rf"\1{address}/blob/main/", readme)
