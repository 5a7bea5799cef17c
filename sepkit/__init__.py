"""sepkit separates overlapping speakers: models, hypothesis matching, recipes and honest evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sepkit.version import __version__

__all__ = ["Separator", "__version__", "load_model"]

if TYPE_CHECKING:
    from sepkit.inference.loading import load_model
    from sepkit.inference.separator import Separator


def __getattr__(name: str) -> Any:
    # torch takes a second to import: it is loaded when a model is asked for, never by `import sepkit`.
    if name in ("Separator", "load_model"):
        from sepkit import inference

        return getattr(inference, name)
    raise AttributeError(f"module 'sepkit' has no attribute {name!r}")
