"""Requirements of a model: `needs` in its `info`, defaults for options that the user does not set. Without torch.

Bridges state them, and `model.yaml` and exported graphs hold them. Their names are those of the options of `sepkit
separate`: whole_seconds, chunk_seconds, overlap_seconds, levels, mixture_consistency.
"""

import math
from collections.abc import Mapping
from typing import Any

from sepkit.errors import UserError, shown

_WORDS = {"levels": ("mixture", "model"), "mixture_consistency": (False, True)}
_SECONDS = ("whole_seconds", "chunk_seconds", "overlap_seconds")


def needs_of(info: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the options that a model needs; empty if it states none.

    Args:
        info: Data saved with a model or a graph.
        where: names its file, for the message.

    Raises:
        UserError: an option that is none of these, or a value that it cannot have.
    """
    needs = info.get("needs", {})
    if not isinstance(needs, Mapping):
        raise UserError(f"{where}: info.needs is {shown(needs)}, expected a mapping; get the model again")
    for name, value in needs.items():
        if name in _SECONDS:
            right = type(value) in (int, float) and 0 < value < math.inf
        else:
            right = any(type(value) is type(word) and value == word for word in _WORDS.get(name, ()))
        if not right:
            raise UserError(f"{where}: info.needs has {shown({name: value})}, which no model needs; get it again")
    return dict(needs)


def chunks_for(trained_seconds: float) -> dict[str, float]:
    """Return the needs of a model whose attention counts positions, and that was trained on segments of this length.

    It is given four times as much, in one piece or in chunks that overlap by half. That is as good as shorter or longer
    pieces for a small SepFormer (docs/public-models.md), and leaves utterances whole, as in published scores. Others
    found models to get worse on input that is much longer than in training (arXiv 2504.19605).
    """
    most = 4.0 * trained_seconds
    return {"whole_seconds": most, "chunk_seconds": most, "overlap_seconds": most / 2}
