"""Everything public says what it is for, what it takes and what it returns.

Public is what stands in a file, a class and under a name that begin with no underscore; and `__call__` is.

* `Args` describes every parameter, and nothing else. It may say where they are described: "Args: those of `Masker`,
  and the fields of `ConvTasNetConfig`." The fields of a dataclass may have a docstring each.
* A function that returns something says so: in a section `Returns` or `Yields`, with "return" or "yield" in the first
  paragraph, or with a first line that names the result and so begins with an article, a question word or a shape.
* A method that overrides one of the package inherits what that one says of parameters of the same names, and of the
  result. Parameters of Lightning's hooks are Lightning's to describe, and options that commands share are described
  once, in `SHARED_HELP`.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sepkit.cli._parser import SHARED_HELP

SEPKIT = Path(__file__).resolve().parent.parent / "sepkit"
EVERY_FILE = sorted(SEPKIT.rglob("*.py"))
FILES = [path for path in EVERY_FILE if not path.stem.startswith("_") or path.stem == "__init__"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

SECTION = re.compile(r"^(Args|Attributes|Returns|Yields):.*\n((?:(?: .*)?(?:\n|\Z))*)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}((?:\*{0,2}\w+, )*\*{0,2}\w+):(?:\s|\Z)", re.MULTILINE)
REFERENCES = re.compile(r"^Args: ((?:.+(?:\n|\Z))+)", re.MULTILINE)
NAMES_THE_RESULT = re.compile(
    r"(The|An?|Each|Every|All|Both|One|Two|No|How|What|When|Where|Whether|Which|Who)\b|[(`0-9]"
)
SAYS_IT_RETURNS = re.compile(r"\b([Rr]eturn|[Yy]ield)s?\b")
RETURNS_NOTHING = ("None", "NoReturn", "Iterator[None]")
OF_LIGHTNING = {"Callback", "LightningModule"}
HOOK = re.compile(
    r"on_\w+|teardown|(load_)?state_dict|(training|validation)_step|configure_\w+|transfer_batch_to_device"
)


@dataclass
class Module:
    """A file of the package: what it defines, and from where it imports names."""

    name: str
    tree: ast.Module

    @functools.cached_property
    def definitions(self) -> dict[str, Definition]:
        return {node.name: node for node in self.tree.body if isinstance(node, Definition)}

    @functools.cached_property
    def imports(self) -> dict[str, str]:
        found = [node for node in self.tree.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: node.module or "" for node in found for alias in node.names}


@functools.cache
def modules() -> dict[Path, Module]:
    # A million nodes that all stay: collecting garbage meanwhile would take as long as parsing.
    gc.disable()
    try:
        return {
            path: Module(
                ".".join(path.relative_to(SEPKIT.parent).with_suffix("").parts),
                ast.parse(path.read_text(encoding="utf-8")),
            )
            for path in EVERY_FILE
        }
    finally:
        gc.enable()


@functools.cache
def homes() -> dict[str, list[Module]]:
    """The modules that define a name."""
    found = defaultdict(list)
    for module in modules().values():
        for name in module.definitions:
            found[name].append(module)
    return found


def public(
    node: ast.Module | ast.ClassDef, name: str, owner: ast.ClassDef | None = None
) -> Iterator[tuple[str, Definition, ast.ClassDef | None]]:
    """Public functions, classes and methods, each with the class that it is defined in."""
    for child in node.body:
        if not isinstance(child, Definition):
            continue
        if not child.name.startswith("_") or (owner is not None and child.name == "__call__"):
            yield f"{name}.{child.name}", child, owner
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{name}.{child.name}", child)


def is_decorated(node: Definition, *endings: str) -> bool:
    return any(ast.unparse(decorator).split("(")[0].endswith(endings) for decorator in node.decorator_list)


def documented_elsewhere(node: Definition) -> bool:
    """Whether it is the setter of a property, or one signature of several."""
    return is_decorated(node, ".setter", "overload")


def method(node: ast.ClassDef, name: str) -> Function | None:
    return next((child for child in node.body if isinstance(child, Function) and child.name == name), None)


def resolve(name: str, module: Module) -> tuple[Definition, Module] | None:
    """What a name means in a module; None if it is not of the package."""
    if name in module.definitions:
        return module.definitions[name], module
    source = f"{module.imports[name]}." if name in module.imports else ""
    return next(
        ((home.definitions[name], home) for home in homes().get(name, []) if f"{home.name}.".startswith(source)), None
    )


def base_names(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


def bases(node: ast.ClassDef, module: Module) -> Iterator[tuple[ast.ClassDef, Module]]:
    """The classes of the package that it descends from."""
    for name in base_names(node):
        found = resolve(name, module)
        if found is not None and isinstance(found[0], ast.ClassDef) and found[0] is not node:
            yield found[0], found[1]
            yield from bases(found[0], found[1])


def parameters(node: Function, is_method: bool) -> set[str]:
    """Its parameters but for `self` and `cls`."""
    given = node.args
    positional = [*given.posonlyargs, *given.args][is_method and not is_decorated(node, "staticmethod") :]
    starred = [argument for argument in (given.vararg, given.kwarg) if argument is not None]
    names = {argument.arg for argument in (*positional, *given.kwonlyargs, *starred)}
    return {name for name in names if not name.startswith("_")}


def fields(node: ast.ClassDef) -> dict[str, bool]:
    """The annotated names that a constructor would take -> whether a docstring follows."""
    found = {}
    for child, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(child, ast.AnnAssign) or not isinstance(child.target, ast.Name):
            continue
        name, text = child.target.id, ast.unparse(child)
        if not (name.startswith("_") or ": ClassVar" in text or text.endswith(": KW_ONLY") or "init=False" in text):
            value = after.value if isinstance(after, ast.Expr) else None
            found[name] = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return found


def entries(node: Definition, *titles: str) -> set[str]:
    """Names that these sections of its docstring describe."""
    sections = SECTION.findall(ast.get_docstring(node) or "")
    found = [names for title, text in sections if title in titles for names in ENTRY.findall(text)]
    return {name.strip("*") for names in found for name in names.split(", ")}


def referred(node: Definition, module: Module) -> set[str]:
    """Names that are described where its "Args: those of `...`" says."""
    names = set()
    text = " ".join(REFERENCES.findall(ast.get_docstring(node) or ""))
    for reference in re.findall(r"`(\w+)`", text):
        found = resolve(reference, module)
        assert found is not None, f"{module.name}: {node.name} refers to {reference}, which does not exist"
        names |= described(*found)
    return names


def described(node: Definition, module: Module) -> set[str]:
    """Parameters that it describes, in whichever way; a class has those of its bases, too."""
    names = entries(node, "Args", "Attributes") | referred(node, module)
    if isinstance(node, ast.ClassDef):
        names |= {name for name, has_docstring in fields(node).items() if has_docstring}
        for base, home in bases(node, module):
            names |= described(base, home)
    return names


def takes(node: ast.ClassDef) -> set[str]:
    """Parameters of the constructor that a class itself defines."""
    constructor = method(node, "__init__")
    if constructor is not None:
        return parameters(constructor, is_method=True)
    is_record = is_decorated(node, "dataclass") or "NamedTuple" in base_names(node)
    return set(fields(node)) if is_record else set()


def says_what_it_returns(node: Function) -> bool:
    """Whether it returns nothing, or its docstring says what; a property is named after its value."""
    if node.returns is None or ast.unparse(node.returns) in RETURNS_NOTHING or is_decorated(node, "property"):
        return True
    text = ast.get_docstring(node) or ""
    if any(title in ("Returns", "Yields") for title, _ in SECTION.findall(text)):
        return True
    return bool(NAMES_THE_RESULT.match(text) or SAYS_IT_RETURNS.search(text.split("\n\n")[0]))


def complaints(node: Definition, owner: ast.ClassDef | None, module: Module) -> Iterator[str]:
    """What a docstring leaves out, or describes in vain."""
    if documented_elsewhere(node):
        return
    listed, known = entries(node, "Args"), entries(node, "Args", "Attributes") | referred(node, module)
    if isinstance(node, ast.ClassDef):
        taken = takes(node)
        known |= {name for name, has_docstring in fields(node).items() if has_docstring}
        inherited = {name for base, _ in bases(node, module) for name in takes(base)}
        yield from (f"Args lacks {name}" for name in sorted(taken - known))
        yield from (f"Args has {name}, no parameter" for name in sorted(listed - taken - inherited))
        return
    ancestors = [] if owner is None else [(owner, module), *bases(owner, module)]
    if HOOK.fullmatch(node.name) and any(OF_LIGHTNING & {*base_names(kind)} for kind, _ in ancestors):
        return
    overridden = [(one, home) for kind, home in ancestors[1:] if (one := method(kind, node.name)) is not None]
    taken = parameters(node, owner is not None)
    known = known.union(*(described(one, home) for one, home in overridden))
    if module.name.startswith("sepkit.cli."):
        known |= SHARED_HELP.keys()
    yield from (f"Args lacks {name}" for name in sorted(taken - known))
    yield from (f"Args has {name}, no parameter" for name in sorted(listed - taken))
    if not any(says_what_it_returns(one) for one in (node, *(one for one, _ in overridden))):
        yield "does not say what it returns"


def complaints_of(module: Module) -> list[str]:
    found = public(module.tree, module.name)
    return [f"{name}: {text}" for name, node, owner in found for text in complaints(node, owner, module)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SEPKIT).as_posix())
def test_public_names_have_docstrings(path: Path) -> None:
    module = modules()[path].tree
    assert ast.get_docstring(module)
    assert [
        name
        for name, node, _ in public(module, path.stem)
        if not (ast.get_docstring(node) or documented_elsewhere(node))
    ] == []


def test_docstrings_describe_arguments_and_results() -> None:
    assert [line for path in FILES for line in complaints_of(modules()[path])] == []


def test_what_is_public_is_found() -> None:
    source = "class A:\n def b(self): pass\n def _c(self): pass\ndef d(): pass\nclass _E:\n def f(self): pass\n"
    assert [name for name, *_ in public(ast.parse(source), "m")] == ["m.A", "m.A.b", "m.d"]


def test_what_is_missing_is_found() -> None:
    source = '''
class Base:
    """A base.

    Args:
        size: of it.
    """
    def __init__(self, size: int) -> None: ...
    def measure(self, x: int, *more: int) -> int:
        """Return its length.

        Args:
            x, more: from where.
        """
class Heir(Base):
    """An heir.

    Args: those of `Base`, and
        color: of it.
        shape: gone.
    """
    def __init__(self, size: int, color: str, weight: float) -> None: ...
    def measure(self, x: int, *more: int) -> int:
        """Measure twice."""
    def cut(self, y: int, *, z: int) -> str:
        """Cut once.

        Args:
            z: where.
            w: why.
        """
@dataclass
class Record:
    """A record."""
    a: int
    """The first."""
    b: int = 0
    c: ClassVar[int] = 1
'''
    assert complaints_of(Module("m", ast.parse(source))) == [
        "m.Heir: Args lacks weight",
        "m.Heir: Args has shape, no parameter",
        "m.Heir.cut: Args lacks y",
        "m.Heir.cut: Args has w, no parameter",
        "m.Heir.cut: does not say what it returns",
        "m.Record: Args lacks b",
    ]
