"""The extras of the package that provide optional imports."""

from importlib.util import find_spec

from sepkit.errors import UserError

EXTRAS = {
    "torch": "torch",
    "safetensors": "torch",
    "onnx": "torch",
    "lightning": "train",
    "tensorboard": "train",
    "fast_bss_eval": "evaluate",
    "pystoi": "evaluate",
    "scipy": "evaluate",
    "meeteval": "meeting",
    "matplotlib": "report",
    "PIL": "report",
    "pesq": "metrics",
    "pyroomacoustics": "reverb",
    "huggingface_hub": "hub",
    "zuko": "flow",
    "espeakng_loader": "tts",
    "sklearn": "dev",
}
"""Module -> extra that installs it."""


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    return find_spec(module) is not None


def missing(module: str, what: str) -> str:
    """Return the line that says what to install."""
    return f"{what} needs {module}, which is not installed: pip install 'sepkit[{EXTRAS[module]}]'"


def require(*modules: str, what: str = "this") -> None:
    """Raise UserError if a module cannot be imported: before any work, where that would come to nothing."""
    for module in modules:
        if not is_installed(module):
            raise UserError(missing(module, what))
