"""What the site adds to docs/: pages made from the code, and the recipes' own pages.

mkdocs calls `on_files`, `on_page_markdown` and `on_post_build` (mkdocs.yml, hooks).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.error_messages import errors_page
from tools.notebooks import notebook_text, tutorials
from tools.reproduce import declared_rows
from tools.site_shows import files as shown_files
from tools.site_shows import with_shows

REPOSITORY = Path(__file__).resolve().parent.parent

PACKAGES = {
    "sepkit": "What `import sepkit` gives.",
    "sepkit.inference": "Separating recordings.",
    "sepkit.models": "Filterbanks, maskers, latents and the model made of them.",
    "sepkit.objectives": "Costs, assignments, rates and the objective made of them.",
    "sepkit.schedules": "Values as functions of progress.",
    "sepkit.data": "Audio, manifests, mixing and data sets.",
    "sepkit.corpora": "How a corpus becomes a manifest.",
    "sepkit.annealing": "Temperatures of annealed matching.",
    "sepkit.training": "Training of every task.",
    "sepkit.evaluation": "Measuring.",
    "sepkit.reporting": "Figures, tables and pages.",
    "sepkit.studies": "The other systems of the papers.",
}
"""Package -> what its page is about."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, the notebooks of the tutorials, and the figures of the recipes."""
    for path, make in generated_pages().items():
        files.append(File.generated(config, path, content=make()))
    for figure in sorted(REPOSITORY.glob("egs/*/figures/*.png")):
        path = f"reference/recipes/{figure.parent.parent.name}/figures/{figure.name}"
        files.append(File.generated(config, path, abs_src_path=str(figure)))
    for path, content in shown_files().items():
        files.append(File.generated(config, path, content=content))
    for page in tutorials():
        files.append(File.generated(config, f"tutorials/{page.stem}.ipynb", content=notebook_text(page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write links to files of the repository that have no page as plain paths; offer tutorials as notebooks."""
    markdown = with_shows(markdown, page.file.src_path)
    if page.file.src_path.startswith("tutorials/"):
        return with_notebook(markdown, Path(page.file.src_path).stem)
    if "/" in page.file.src_path:
        return markdown
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"`\1`", markdown)


def with_notebook(markdown: str, name: str) -> str:
    """A tutorial with a link to its notebook below the heading."""
    heading, _, rest = markdown.partition("\n")
    link = f'[Download this page as a notebook]({name}.ipynb){{ .md-button download="{name}.ipynb" }}'
    return f"{heading}\n\n{link}\n{rest}"


def on_post_build(config: Any) -> None:
    """Make the page that separates in the browser, with the default model: try/ of the site.

    It needs ONNX Runtime Web, which `make docs` fetches once; without it the page is left out, and a line says so.
    """
    from sepkit.corpora.archives import WEB_RUNTIME
    from sepkit.files import cache_folder
    from sepkit.models.published.shipped import default_model
    from sepkit.reporting.web import write_web_page

    if (cache_folder("web") / WEB_RUNTIME).is_dir():
        write_web_page(default_model(), Path(config["site_dir"]) / "try")
    else:
        print(f"site: no try/, since {cache_folder('web') / WEB_RUNTIME} is not there: sepkit download onnxruntime-web")


def generated_pages() -> dict[str, Callable[[], str]]:
    """Path of each page below docs/ -> what makes its Markdown."""
    pages: dict[str, Callable[[], str]] = {
        "reference/commands.md": commands_page,
        "reference/configuration.md": configuration_page,
        "reference/changes.md": changes_page,
        "reference/python.md": python_index,
        "reference/errors.md": errors_page,
        "reference/recipes.md": recipe_index,
        "reference/rows.md": rows_page,
    }
    pages |= {f"reference/python/{package}.md": partial(python_page, package) for package in PACKAGES}
    return pages | {recipe_path(path): partial(recipe_page, path) for path in recipe_documents()}


def commands_page() -> str:
    """The help of every command and of its subcommands, as the terminal shows it."""
    from sepkit.cli.main import EVERY_COMMAND

    parts = ["# Commands\n\n`sepkit COMMAND --help` prints the same.\n"]
    for command in EVERY_COMMAND:
        told = help_of(command)
        parts.append(f"## sepkit {command}\n\n```text\n{told}\n```\n")
        for name in subcommands(told):
            parts.append(f"### sepkit {command} {name}\n\n```text\n{help_of(command, name)}\n```\n")
    return "\n".join(parts)


def help_of(*words: str) -> str:
    """What `sepkit WORDS --help` prints."""
    from sepkit.cli.main import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return printed.getvalue().strip()


def subcommands(told: str) -> list[str]:
    """Names of the subcommands that a usage line lists: `usage: sepkit prepare {mini,folder} ...`."""
    found = re.match(r"usage: sepkit [a-z-]+ \{([a-z0-9,-]+)\} \.\.\.", told)
    return found[1].split(",") if found else []


def configuration_page() -> str:
    """Every field of a training configuration with its default and meaning, from the dataclasses."""
    import sepkit.config

    head = (
        "# Configuration\n\nA YAML file holds these fields; `--KEY.SUB VALUE` on the command line changes one. "
        "A choice is picked by its `name`.\n\n"
    )
    modules = sorted(info.name for info in pkgutil.iter_modules(sepkit.config.__path__, "sepkit.config."))
    return head + "\n\n".join(f"::: {name}" for name in modules)


def python_index() -> str:
    """The packages, with links to their pages."""
    rows = [f"| [`{package}`](python/{package}.md) | {about} |" for package, about in PACKAGES.items()]
    return "\n".join(["# Python\n", "| package | what |", "|---|---|", *rows, ""])


def python_page(package: str) -> str:
    """Everything public of a package, from its docstrings, in the order of the source."""
    return f"# {package}\n\n{PACKAGES[package]}\n\n" + "\n\n".join(f"::: {name}" for name in public_modules(package))


def public_modules(package: str) -> list[str]:
    """A package and the modules below it, without those that begin with an underscore; of `sepkit` itself alone."""
    module = importlib.import_module(package)
    found = [package]
    if package != "sepkit" and hasattr(module, "__path__"):
        found += [info.name for info in pkgutil.walk_packages(module.__path__, f"{package}.")]
    return [name for name in found if not any(part.startswith("_") for part in name.split("."))]


def changes_page() -> str:
    """The changelog."""
    return without_outer_links((REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"))


def recipe_documents() -> list[Path]:
    """README.md and RESULTS.md of the recipes that have them."""
    return [path for name in ("README.md", "RESULTS.md") for path in sorted(REPOSITORY.glob(f"egs/*/{name}"))]


def recipe_path(document: Path) -> str:
    """Path of its page below docs/."""
    return f"reference/recipes/{document.parent.name}/{document.name.lower()}"


def recipe_page(document: Path) -> str:
    """The document, without links that lead out of the site."""
    return without_outer_links(document.read_text(encoding="utf-8"))


def recipe_index() -> str:
    """The recipes, with links to their pages."""
    links: dict[str, list[str]] = {}
    for document in recipe_documents():
        path = recipe_path(document).removeprefix("reference/")
        links.setdefault(document.parent.name, []).append(f"[{document.stem.lower()}]({path})")
    rows = [f"| `egs/{name}` | {', '.join(links[name])} |" for name in sorted(links)]
    return "\n".join(["# Recipes and results\n", "| recipe | pages |", "|---|---|", *rows, ""])


def rows_page() -> str:
    """The rows of RESULTS.md that can be made again, with their figures."""
    head = (
        "# Rows that can be reproduced\n\n`make reproduce ROW=NAME` runs a row again "
        "([how to](../reproduce.md)). Minutes are of two cores.\n\n"
    )
    lines = ["| row | minutes | figure | in RESULTS.md | spread | which covers |", "|---|---:|---|---:|---|---|"]
    for name, row in declared_rows().items():
        for place, figure in enumerate(row.figures):
            cells = [f"`{name}`", f"{row.minutes:g}"] if place == 0 else ["", ""]
            cells += [figure.name, figure.printed, f"{figure.lowest:g} to {figure.highest:g}", figure.spread]
            lines.append(f"| {' | '.join(cells)} |")
    return head + "\n".join([*lines, ""])


def without_outer_links(markdown: str) -> str:
    """Markdown whose links to other files of the repository are only their words; pictures stay."""
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[^)]+\)", r"\1", markdown)
