"""The pages that a reader goes through, and their blocks of code."""

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# In the order in which a reader, and the test, goes through them: later pages use what earlier ones made.
_ORDER = """
install choose-model separate faq python public-models stream web train train-in-python own-loop gpus matching
plan-schedule variational calibrate depth quantize measure corpora rooms fine-tune export share coming-from extend
reproduce cluster meetings audiograms index
tutorials/separate tutorials/train tutorials/part tutorials/variational tutorials/masker tutorials/measure
explanation/data explanation/matching explanation/variational explanation/scores explanation/failures
explanation/glossary
reference/files reference/public
"""

DOCUMENTS = [REPOSITORY / "README.md", *(REPOSITORY / "docs" / f"{name}.md" for name in _ORDER.split())]
TUTORIALS = [path for path in DOCUMENTS if path.parent.name == "tutorials"]

CODE = {"bash", "python", "console", "yaml"}
"""Languages of blocks that a reader runs, or saves as a file."""

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    code: str

    @property
    def file(self) -> str:
        """The name that the reader saves it under; empty if it is to be run."""
        found = re.match(r"# file: (\S+)\n", self.code)
        return found[1] if found else ""

    @property
    def not_run(self) -> str:
        """The reason why the test does not run it; empty if it does."""
        found = re.match(r"# not run: (.+)\n", self.code)
        return found[1] if found else ""


def blocks(document: Path) -> list[Block]:
    """All fenced blocks of a document, in order."""
    page = document.relative_to(REPOSITORY).as_posix()
    return [Block(page, language, code) for language, code in _BLOCK.findall(document.read_text(encoding="utf-8"))]
