"""What the site adds to docs/: pages made from the code, and the recipes' own pages.

mkdocs calls `on_config`, `on_files`, `on_page_markdown` and `on_post_build` (mkdocs.yml, hooks).
"""

import contextlib
import html
import importlib
import io
import os
import pkgutil
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from mkdocs.structure.files import File, Files

from sepkit.cli.main import EVERY_COMMAND, groups, main
from sepkit.reporting.tables import markdown_table
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

UNSEARCHED = ("reference/changes.md", "reference/errors.md", "reference/rows.md", "reference/python/")
"""Pages that the search leaves out, or the folders of such pages: they repeat the words of other pages."""

GENERATED = {
    "CHANGELOG.md": "reference/changes.md",
    "egs": "reference/recipes/index.md",
    "sepkit": "reference/python/index.md",
    "sepkit/cli": "reference/commands/index.md",
    "sepkit/config": "reference/configuration.md",
    "sepkit/errors.py": "reference/errors.md",
    "tools/reproduce.py": "reference/rows.md",
}
"""Path in the repository -> the page of the site that a link to it opens."""


def on_config(config: Any) -> Any:
    """Put the generated pages into the menu; link to the repository that CITATION.cff names, if it names one."""
    config.nav = _with_generated(config.nav)
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    config.repo_url = citation.get("repository-code")
    config.copyright = f"sepkit {citation['version']}, {citation['license']} license"
    return config


def _with_generated(menu: Any) -> Any:
    """A menu in which each page of `GENERATED_BELOW` is followed by the pages below it."""
    if isinstance(menu, list):
        return [_with_generated(entry) for entry in menu]
    if isinstance(menu, dict):
        return {title: _with_generated(entry) for title, entry in menu.items()}
    return [menu, *GENERATED_BELOW[menu]()] if menu in GENERATED_BELOW else menu


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, the notebooks of the tutorials, the icon, and the figures of the recipes."""
    for path, make in generated_pages().items():
        files.append(File.generated(config, path, content=make()))
    for figure in sorted(REPOSITORY.glob("egs/*/figures/*.png")):
        path = f"reference/recipes/{figure.parent.parent.name}/figures/{figure.name}"
        files.append(File.generated(config, path, abs_src_path=str(figure)))
    icon = REPOSITORY / "sepkit" / "reporting" / "assets" / "web" / "icon.svg"
    files.append(File.generated(config, "assets/icon.svg", abs_src_path=str(icon)))
    for path, content in shown_files().items():
        files.append(File.generated(config, path, content=content))
    if _has_web_runtime():
        # Stands for the page that on_post_build makes, so that links to it are known.
        files.append(File.generated(config, "try/index.html", content=""))
    for page in tutorials():
        files.append(File.generated(config, f"tutorials/{page.stem}.ipynb", content=notebook_text(page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to files of the repository at their pages of the site; offer tutorials as notebooks.

    The search ranks guides and tutorials above concepts and commands, and those above the rest of the reference.
    """
    path = page.file.src_path
    boosts = {"reference/commands/": 2, "explanation/": 2, "reference/": 0.5, "": 3}
    boost = next(boost for folder, boost in boosts.items() if path.startswith(folder))
    page.meta["search"] = {"exclude": True} if path.startswith(UNSEARCHED) else {"boost": boost}
    # Tells the test of the pages why it does not run a block, and readers nothing.
    markdown = re.sub(r"^# not run: .*\n", "", with_shows(markdown, path), flags=re.MULTILINE)
    if path.startswith("tutorials/"):
        markdown = with_notebook(markdown, Path(path).stem)
    if path == "index.md":
        page.meta["hide"] = ["navigation"]
        if _has_web_runtime():
            # The page that separates stands beside the site, and is no page of it.
            markdown = markdown.replace("(web.md){ .try }", "(try/index.html){ .try }")
    return with_site_links(markdown, f"docs/{path}", path) if path not in generated_pages() else markdown


def with_site_links(markdown: str, source: str, page: str) -> str:
    """Point links to files of the repository at their pages of the site; links to files without a page become words.

    Args:
        markdown: Text whose links are relative to `source`.
        source: Path of the text in the repository.
        page: Path of its page below docs/.
    """

    def replaced(found: re.Match[str]) -> str:
        text, link, anchor = found.groups("")
        target = os.path.normpath(os.path.join(os.path.dirname(source), link))
        if not (to := target.removeprefix("docs/") if target.startswith("docs/") else page_of(target)):
            return f"`{text}`" if re.fullmatch(r"[\w./-]*[./][\w./-]*", text) else text
        return f"[{text}]({os.path.relpath(to, os.path.dirname(page))}{anchor})"

    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)]*)?\)", replaced, markdown)


def page_of(path: str) -> str:
    """The page of the site about a file or folder of the repository, below docs/; empty if there is none."""
    if path in GENERATED:
        return GENERATED[path]
    if REPOSITORY / path in recipe_documents():
        return recipe_path(REPOSITORY / path)
    package = path.replace("/", ".")
    return f"reference/python/{package}.md" if package in PACKAGES else ""


def with_notebook(markdown: str, name: str) -> str:
    """A tutorial with a link to its notebook below the heading."""
    heading, _, rest = markdown.partition("\n")
    link = f'[Download this page as a notebook]({name}.ipynb){{ .md-button download="{name}.ipynb" }}'
    return f"{heading}\n\n{link}\n{rest}"


def on_post_build(config: Any) -> None:
    """Make the page that separates in the browser, with the default model: try/ of the site.

    It needs ONNX Runtime Web, which `make docs` fetches once; without it the page is left out, and a line says so.
    """
    from sepkit.models.published.shipped import DEFAULT_MODEL
    from sepkit.reporting.web import write_web_page

    if _has_web_runtime():
        write_web_page(DEFAULT_MODEL, Path(config["site_dir"]) / "try", home="../index.html")
    else:
        print("site: no try/, since ONNX Runtime Web is not there: sepkit download onnxruntime-web")


def _has_web_runtime() -> bool:
    from sepkit.corpora.archives import WEB_RUNTIME
    from sepkit.files import cache_folder

    return (cache_folder("web") / WEB_RUNTIME).is_dir()


def generated_pages() -> dict[str, Callable[[], str]]:
    """Path of each page below docs/ -> what makes its Markdown."""
    pages: dict[str, Callable[[], str]] = {
        "reference/commands/index.md": commands_index,
        "reference/configuration.md": configuration_page,
        "reference/changes.md": partial(document_page, REPOSITORY / "CHANGELOG.md"),
        "reference/python/index.md": python_index,
        "reference/errors.md": errors_page,
        "reference/recipes/index.md": recipe_index,
        "reference/rows.md": rows_page,
    }
    pages |= {f"reference/commands/{command}.md": partial(command_page, command) for command in EVERY_COMMAND}
    for package in PACKAGES:
        pages |= {f"reference/python/{name}.md": partial(module_page, name) for name in public_modules(package)}
    return pages | {recipe_path(path): partial(document_page, path) for path in recipe_documents()}


def commands_index() -> str:
    """The commands in their groups, as `sepkit --help` lists them, with links to their pages."""
    parts = ["# Commands\n\n`sepkit COMMAND --help` prints what stands on these pages.\n"]
    for title, commands in groups().items():
        rows = [(f"[`{name}`]({name}.md)", text) for name, text in commands.items()]
        table = markdown_table(("command", "what it does"), rows, words=(0, 1))
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n{table}")
    return "\n".join(parts)


def command_page(command: str) -> str:
    """The help of a command and of its subcommands, as a terminal of 80 columns shows it; options have anchors."""
    told = help_of(command)
    parts = [f"# sepkit {command}\n\n{_linkable(told, '')}\n"]
    for name in subcommands(told):
        parts.append(f"## sepkit {command} {name}\n\n{_linkable(help_of(command, name), f'{name}-')}\n")
    return "\n".join(parts)


def _linkable(told: str, prefix: str) -> str:
    """Help as preformatted text, in which each option is a link to itself: `#out`, `#mini-out`."""
    text = re.sub(
        r"^(  (?:-\w, )?)--([a-z][\w.-]*)",
        lambda found: f'{found[1]}<a href="#{prefix}{found[2]}"><span id="{prefix}{found[2]}">--{found[2]}</span></a>',
        html.escape(told, quote=False),
        flags=re.MULTILINE,
    )
    return f'<div class="highlight language-text"><pre><code>{text}</code></pre></div>'


def help_of(*words: str) -> str:
    """What `sepkit WORDS --help` prints."""
    os.environ["COLUMNS"] = "80"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return printed.getvalue().strip()


def subcommands(told: str) -> list[str]:
    """Names of the subcommands that a help lists; of none without the word KIND in its usage."""
    return re.findall(r"^  ([a-z0-9-]+) ", told, re.MULTILINE) if re.match(r"usage: sepkit \S+ KIND ", told) else []


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
    rows = [(f"[`{package}`]({package}.md)", about) for package, about in PACKAGES.items()]
    return f"# Python\n\n{markdown_table(('package', 'what'), rows, words=(0, 1))}"


def module_page(name: str) -> str:
    """Everything public of a module, from its docstrings, in the order of the source; of a package also its modules."""
    modules = public_modules(name)[1:] if name in PACKAGES else []
    rows = [(f"[`{below}`]({below}.md)", _first_line(below)) for below in modules]
    table = f"\n\n{markdown_table(('module', 'what'), rows, words=(0, 1))}" if rows else ""
    about = f"{PACKAGES[name]}\n\n" if name in PACKAGES else ""
    options = "    options: {show_root_heading: false, show_root_toc_entry: false}"
    return f"# {name}\n\n{about}::: {name}\n{options}{table}\n"


def _first_line(name: str) -> str:
    return (importlib.import_module(name).__doc__ or "").strip().partition("\n")[0].replace("|", "\\|")


def public_modules(package: str) -> list[str]:
    """A package and the modules below it, without those that begin with an underscore; of `sepkit` itself alone."""
    module = importlib.import_module(package)
    found = [package]
    if package != "sepkit" and hasattr(module, "__path__"):
        found += [info.name for info in pkgutil.walk_packages(module.__path__, f"{package}.")]
    return [name for name in found if not any(part.startswith("_") for part in name.split("."))]


def _commands_below() -> list[Any]:
    return [{command: f"reference/commands/{command}.md"} for command in EVERY_COMMAND]


def _modules_below() -> list[Any]:
    below: list[Any] = []
    for package in PACKAGES:
        own, *pages = [{n.removeprefix(f"{package}."): f"reference/python/{n}.md"} for n in public_modules(package)]
        below.append({package: [own[package], *pages]} if pages else own)
    return below


def _recipes_below() -> list[Any]:
    pages: dict[str, list[Any]] = {}
    for document in sorted(recipe_documents()):
        title = document.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").replace("`", "")
        pages.setdefault(document.parent.name, []).append({title: recipe_path(document)})
    return [{name: own} for name, own in pages.items()]


GENERATED_BELOW: dict[str, Callable[[], list[Any]]] = {
    "reference/commands/index.md": _commands_below,
    "reference/python/index.md": _modules_below,
    "reference/recipes/index.md": _recipes_below,
}
"""Page of the menu -> the generated pages below it."""


def recipe_documents() -> list[Path]:
    """The pages of the recipes: README.md and RESULTS.md where there are, and further studies."""
    return sorted(REPOSITORY.glob("egs/*/*.md"))


def recipe_path(document: Path) -> str:
    """Path of its page below docs/."""
    return f"reference/recipes/{document.parent.name}/{document.name.lower()}"


def recipe_index() -> str:
    """The results of the recipes: question, answer, and the minutes of the shortest row that can be made again."""
    declared = sorted(declared_rows().values(), key=lambda row: -row.minutes)
    minutes = {row.recipe.name: f"{row.minutes:g}" for row in declared}
    rows = []
    for document in recipe_documents():
        title, text = document.read_text(encoding="utf-8").removeprefix("# ").split("\n\n", 1)
        answer = text.split("**")[1] if text.startswith("**") else ""
        link = f"[{title}]({recipe_path(document).removeprefix('reference/recipes/')})"
        name = document.parent.name
        rows.append((link, answer, f"`egs/{name}`", minutes.get(name, "")))
    table = markdown_table(("question", "answer", "recipe", "reproduce, minutes"), rows, words=(0, 1, 2))
    return f"# Results and recipes\n\n{table}"


def rows_page() -> str:
    """The rows of RESULTS.md that can be made again, with their figures."""
    head = (
        "# Rows that can be reproduced\n\n`make reproduce ROW=NAME` runs a row again "
        "([how to](../reproduce.md)). Minutes are of two cores.\n\n"
    )
    rows = []
    for name, row in declared_rows().items():
        for place, figure in enumerate(row.figures):
            cells = [f"`{name}`", f"{row.minutes:g}"] if place == 0 else ["", ""]
            spread = f"{figure.lowest:g} to {figure.highest:g}"
            rows.append([*cells, figure.name, figure.printed, spread, figure.spread])
    columns = ("row", "minutes", "figure", "in RESULTS.md", "spread", "which covers")
    return head + markdown_table(columns, rows, words=(0, 2, 4, 5))


def document_page(document: Path) -> str:
    """A document of the repository, whose links open pages of the site; pictures stay."""
    source = str(document.relative_to(REPOSITORY))
    return with_site_links(document.read_text(encoding="utf-8"), source, page_of(source) or "reference/document.md")
