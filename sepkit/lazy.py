"""Names of packages that are imported when they are first used: what runs models takes seconds to import."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the function that imports names of a package when they are asked for, its submodules among them.

        __getattr__ = lazy_names(__name__, {"Separator": "separator"})

    Args:
        package: Full name of the package.
        modules: Name -> submodule of the package that defines it.
    """

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(f"{package}.{modules[name]}"), name)
        if not name.startswith("_"):
            try:
                return import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
